use expect_test::expect;

use super::*;
use crate::plan::generate;

#[test]
fn every_drawn_plan_is_read_back_as_it_was() {
    for seed in 0..500 {
        let ranks = [2, 3, 4, 5, 6, 7, 8, 16, 64][usize::try_from(seed % 9).unwrap()];
        let plan = generate(seed, ranks);
        let text = write_plan(&plan);
        let read = parse_plan(&text).unwrap_or_else(|error| panic!("seed {seed}: {error}\n{text}"));
        assert_eq!(read, plan, "seed {seed}:\n{text}");
    }
}

#[test]
fn a_plan_reads_like_this() {
    expect![[r#"
        seed 5
        ranks 4
        losses 1
        frame-bytes 387
        messages 794
        reserve 3000
        message-bytes 1960
        floors 2000 frames, 3 commands, 1 restarts, crash by 562 frames
        mode counted
        calm yes
        pulls yes
        network corruption 1.47%, jitter 20us
        control-time 41.043us
        write-time 600us
        pause-time 18.281us
        drift -21 -86 74 -3 23 -41 54 -62
        at 85 frames: checkpoint when ready
        at 492 frames: checkpoint when ready
        at 939 frames: checkpoint when ready
        at 1204 frames: checkpoint when ready
        on frozen #3 after 7.859us: crash cause
        at 600 frames: destroy node 0 for 20ms
        on surveyed #2 after 23.052us: stop keeper of node 0 for 24.157132ms
        at 931 frames: move rank 3 in 47.874us
    "#]]
    .assert_eq(&write_plan(&generate(5, 4)));
    assert_eq!(parse("").unwrap().plan, plain());
    assert_eq!(write_plan(&plain()), "seed 0\nranks 4\n");
}

/// Every form that the language has and that drawn plans may lack.
#[test]
fn every_form_is_read_back() {
    let text = "\
expect: holds
expect without 3-higher-epoch-data: higher_epoch
seed 18446744073709551615
ranks 8
nodes 3
network still
drift 0 -12 300
at 1.5ms: checkpoint at once
at 12 frames: switch off node of other 2 for 1ms
on frozen #0: crash other 1
on restoring #2 after 7ns: switch off node of cause for 2ms
at 0ns: storm still, for 1ms
at 0 frames: clock of node 1 jumps -1us
";
    let scenario = parse(text).unwrap();
    assert_eq!(parse(&scenario.write()).unwrap(), scenario);
    assert_eq!(scenario.write(), text);
    let many = text.replace("seed 18446744073709551615", "seeds 3 to 12");
    let scenario = parse(&many).unwrap();
    assert_eq!((scenario.write().as_str(), scenario.seeds), (many.as_str(), 10));
    assert_eq!(scenario.plans().map(|plan| plan.seed).collect::<Vec<_>>(), (3..=12).collect::<Vec<_>>());
    assert_eq!(scenario.plan.drift[..4], [0, -12, 300, 0]);
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let texts = [
        "seed",
        "seed -1",
        "seed +1",
        "ranks 65",
        "ranks 1",
        "ranks 2\n\n# fine\nnodes 3",
        "nodes 17",
        "nodes 8\nranks 8\nlosses 2\ngroup 2",
        "seed 1\nseed 2",
        "seed 1\nseeds 2 to 3",
        "seeds 2 to 3\nseed 2",
        "seeds 3 to 2",
        "seeds 0 to 1000",
        "colour blue",
        "mode sometimes",
        "helper maybe",
        "network rain 3%",
        "network loss 3",
        "network loss 3%, ",
        "network loss 3% jitter 1us",
        "drift",
        "drift 1 --2",
        "drift 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17",
        "pause-time 1h",
        "pause-time 11s",
        "at noon: checkpoint at once",
        "at 12 frames checkpoint at once",
        "at 12: checkpoint at once",
        "on thawed #1: crash cause",
        "on frozen 1: crash cause",
        "at 1 frames: crash",
        "at 1 frames: crash rank 64",
        "at 1 frames: sing",
        "at 1 frames: checkpoint when ready now",
        "at 1 frames: power loss after 3 writes",
        "nodes 2\nlosses 2",
        "expect",
        "expect holds",
        "expect without 99-none: holds",
        "expect: Not A Kind",
        "naïve \u{7} line",
    ];
    let errors = texts.map(|text| format!("{text:?}: {}\n", parse(text).unwrap_err()));
    expect![[r#"
        "seed": line 1: expected a seed from 0 to 18446744073709551615, found the end of the line
        "seed -1": line 1: expected a seed from 0 to 18446744073709551615, found '-1'
        "seed +1": line 1: expected a seed from 0 to 18446744073709551615, found '+1'
        "ranks 65": line 1: expected ranks from 2 to 64, found '65'
        "ranks 1": line 1: expected ranks from 2 to 64, found '1'
        "ranks 2\n\n# fine\nnodes 3": line 4: expected at most as many nodes as ranks (2), found 3
        "nodes 17": line 1: expected nodes from 1 to 16, found '17'
        "nodes 8\nranks 8\nlosses 2\ngroup 2": line 4: expected a group of more nodes than losses (2), and at most all of them (8); or 0, found 2
        "seed 1\nseed 2": line 2: expected one line 'seed', found 'seed 2'
        "seed 1\nseeds 2 to 3": line 2: expected one line 'seed' or 'seeds', found 'seeds 2 to 3'
        "seeds 2 to 3\nseed 2": line 2: expected one line 'seed', found 'seed 2'
        "seeds 3 to 2": line 1: expected the last seed from 3 to 1002, found '2'
        "seeds 0 to 1000": line 1: expected the last seed from 0 to 999, found '1000'
        "colour blue": line 1: expected 'expect', 'at', 'on' or a setting (seed or seeds, ranks, nodes, losses, group, spares, reactions, ports, rails, mode, auth, messages, reserve, floors, calm, message-bytes, frame-bytes, tight-bounds, congested, pulls, helper, network, control-time, write-time, pause-time, nic-frames, completion-time, drift), found 'colour'
        "mode sometimes": line 1: expected 'instant' or 'counted', found 'sometimes'
        "helper maybe": line 1: expected 'yes' or 'no', found 'maybe'
        "network rain 3%": line 1: expected 'still', 'loss', 'duplication', 'reordering', 'corruption', 'delay' or 'jitter', found 'rain'
        "network loss 3": line 1: expected a chance such as 2.5%, with at most four decimals, found '3'
        "network loss 3%, ": line 1: expected 'still', 'loss', 'duplication', 'reordering', 'corruption', 'delay' or 'jitter', found the end of the line
        "network loss 3% jitter 1us": line 1: expected the end of the line, found 'jitter'
        "drift": line 1: expected the drift of a clock from -1024 to 1024, found the end of the line
        "drift 1 --2": line 1: expected the drift of a clock from -1024 to 1024, found '--2'
        "drift 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17": line 1: expected the end of the line, found '17'
        "pause-time 1h": line 1: expected a time such as 12us or 1.5ms, at most 10s, found '1h'
        "pause-time 11s": line 1: expected a time such as 12us or 1.5ms, at most 10s, found '11s'
        "at noon: checkpoint at once": line 1: expected a time such as 12us or 1.5ms, at most 10s, found 'noon'
        "at 12 frames checkpoint at once": line 1: expected ':', found 'checkpoint'
        "at 12: checkpoint at once": line 1: expected 'frames', found ':'
        "on thawed #1: crash cause": line 1: expected 'frozen' or 'dumping' or 'saved' or 'committing' or 'surveyed' or 'decided' or 'restoring', found 'thawed'
        "on frozen 1: crash cause": line 1: expected the number of the moment, #0 to #65536, found '1'
        "at 1 frames: crash": line 1: expected 'cause' or 'other', found the end of the line
        "at 1 frames: crash rank 64": line 1: expected the number of a rank from 0 to 63, found '64'
        "at 1 frames: sing": line 1: expected what happens ('checkpoint when ready', 'checkpoint at once', 'crash rank N', 'crash cause', 'crash other N', 'switch off node N for TIME', 'cut off node N for TIME', 'suspect node N', 'move rank N in TIME', 'destroy node N for TIME', 'kill launcher for TIME', 'kill launcher cut off for TIME', 'stop keeper of node N for TIME', 'power loss after N writes for TIME', 'partition nodes N and N for TIME', 'rail N of rank N dead for TIME', 'rails change to frames of N bytes', 'clock of node N jumps TIME', 'break control of node N', 'rank N unsavable for TIME', 'disk full after N writes', 'disk error after N writes', 'generations unreadable for TIME', 'storm CONDITIONS, for TIME', 'stall rank N for TIME'), found 'sing'
        "at 1 frames: checkpoint when ready now": line 1: expected the end of the line, found 'now'
        "at 1 frames: power loss after 3 writes": line 1: expected 'for', found the end of the line
        "nodes 2\nlosses 2": line 2: expected fewer losses than nodes (2), found 2
        "expect": line 1: expected ':', found the end of the line
        "expect holds": line 1: expected ':', found 'holds'
        "expect without 99-none: holds": line 1: expected the name of a rule, as 'sim sabotage' lists them, found '99-none'
        "expect: Not A Kind": line 1: expected 'holds' or the kind of a violation, found 'Not'
        "naïve \u{7} line": line 1: expected 'expect', 'at', 'on' or a setting (seed or seeds, ranks, nodes, losses, group, spares, reactions, ports, rails, mode, auth, messages, reserve, floors, calm, message-bytes, frame-bytes, tight-bounds, congested, pulls, helper, network, control-time, write-time, pause-time, nic-frames, completion-time, drift), found 'naïve'
    "#]].assert_eq(&errors.concat());
}

#[test]
fn each_setting_is_listed_with_what_is_usual() {
    for setting in SETTINGS {
        let line = format!("{} {}\n", setting.name, setting.usual);
        let read = parse_plan(&line).unwrap_or_else(|error| panic!("{line}{error}"));
        assert_eq!(read, plain(), "{line}");
    }
    // Every setting of a plan is one of them.
    for seed in 0..100 {
        for line in write_plan(&generate(seed, 4)).lines() {
            let name = line.split(' ').next().unwrap_or_default();
            let known =
                ["seed", "at", "on"].contains(&name) || SETTINGS.iter().any(|setting| setting.name == name);
            assert!(known, "{line}");
        }
    }
}

#[test]
fn bounds_are_kept() {
    let steps = "at 1 frames: crash cause\n";
    assert!(parse(&steps.repeat(STEPS_MAX)).is_ok());
    assert_eq!(parse(&steps.repeat(STEPS_MAX + 1)).unwrap_err().line, STEPS_MAX + 1);
    assert!(parse(&" ".repeat(TEXT_BYTES_MAX)).is_ok());
    assert!(parse(&" ".repeat(TEXT_BYTES_MAX + 1)).is_err());
}
