//! `stillwire demo`: verified whatever the instant of the kill.

mod support;

use support::{Running, done, stillwire};

fn demo(arguments: &[&str]) {
    let mut command = stillwire(&["demo", "--json", "--class", "S"]);
    let done = done(command.args(arguments));
    assert_eq!(done.code, Some(0), "{done:?}");
    let result = done.json();
    assert_eq!(result["verified"], true, "{result}");
    assert!(result["generations"].as_u64().unwrap() >= 3, "{result}");
    assert_eq!((&result["killed"], &result["rollbacks"]), (&1.into(), &1.into()), "{result}");
    assert!(result["seconds"].as_f64().unwrap() < 60.0, "{result}");
    let outcome = &result["outcome"];
    assert_eq!(outcome["partial_passed"], outcome["partial_expected"]);
    assert_eq!(outcome["full_passed"], outcome["full_expected"]);
    for generation in result["timeline"].as_array().unwrap() {
        assert_eq!(generation["ranks"].as_array().unwrap().len(), 4);
    }
}

#[test]
fn ten_random_instants() {
    for _ in 0..10 {
        demo(&[]);
    }
}

// The checkpoints come every 250 ms: these lie before, in and behind the next one.
#[test]
fn chosen_instants() {
    for millis in ["0", "240", "252", "262"] {
        demo(&["--kill-after", millis]);
    }
}

#[test]
fn a_demo_that_is_ended_says_so() {
    let mut demo = Running::start(stillwire(&["demo", "--json", "--class", "S"]));
    demo.wait_for("committed");
    demo.signal("INT");
    let done = demo.finish();
    assert_eq!(done.code, Some(130), "{done:?}");
    assert_eq!(done.json()["verified"], false, "{done:?}");
}

#[test]
fn the_timeline_is_readable() {
    let done = done(&mut stillwire(&["demo"]));
    assert_eq!(done.code, Some(0), "{done:?}");
    for words in
        ["committed", "kill -9", "rolling back", "all ranks run again", "verified", "rollbacks     1"]
    {
        assert!(done.stdout.contains(words), "{words}: {}", done.stdout);
    }
}
