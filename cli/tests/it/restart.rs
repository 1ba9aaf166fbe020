//! `stillwire restart`: a job goes on when everything of it is gone, also with files that are missing or in the wrong place.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{Done, Place, Running, done, flip, outcome, signal, stillwire, verified, wait_until};
use serde_json::Value;

fn restarts(done: &Done) -> bool {
    done.stderr.contains("begins from generation")
}

/// Restarts the job, lets it end, and returns the generation it began from.
fn go_on(place: &Place, options: &[&str]) -> (String, Done) {
    let mut job = place.restart(options);
    let life = job.wait_for("begins from generation");
    job.wait_for("all ranks run");
    place.let_end();
    let done = job.finish();
    verified(&done);
    let generation =
        life.split("from generation ").nth(1).expect("a name").split(' ').next().expect("a name");
    (generation.to_owned(), done)
}

#[test]
fn a_job_goes_on_from_its_newest_generation() {
    let place = Place::new();
    let generations = place.with_generations();
    let (from, done) = go_on(&place, &[]);
    assert_eq!(Some(&from), generations.last());
    assert!(done.stderr.contains("life 2."), "{done:?}");
}

#[test]
fn a_person_can_choose_the_generation() {
    let place = Place::new();
    let generations = place.with_generations();
    let oldest = &generations[0];
    let (from, _) = go_on(&place, &["--generation", oldest]);
    assert_eq!(&from, oldest);
    // A later life began from an older one: generations on which it did not build do not count any more.
    for newer in &generations[1..] {
        let refused = done(&mut stillwire(&["restart", &place.job_text(), "--generation", newer]));
        assert_eq!(refused.code, Some(1), "{refused:?}");
        refused.says(&["is not a committed generation", "stillwire ls"]);
    }
}

#[test]
fn two_restarts_of_one_generation_are_two_lives() {
    let place = Place::new();
    let generations = place.with_generations();
    let newest = generations.last().unwrap();
    // The same directory, twice: as if it had been copied to another cluster.
    let copy = Place::new();
    let copied = Command::new("cp").arg("-a").arg(place.job()).arg(copy.job()).status().unwrap();
    assert!(copied.success());
    let mut first = place.restart(&[]);
    // One user's launchers of one job find each other where both run.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut command = stillwire(&["restart", &copy.job_text()]);
    command.env("XDG_STATE_HOME", copy.state()).env("XDG_RUNTIME_DIR", elsewhere.path());
    let mut second = Running::start(command);
    let lives = [first.wait_for("begins from"), second.wait_for("begins from")];
    for life in &lives {
        assert!(life.contains("life 2.") && life.contains(newest.as_str()), "{life}");
    }
    let name = |life: &str| life.split("life ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_ne!(name(&lives[0]), name(&lives[1]), "one counter, two nonces");
    first.wait_for("committed");
    second.wait_for("committed");
    // The copy's program still looks for the first one's file.
    place.let_end();
    let (first, second) = (first.finish(), second.finish());
    verified(&first);
    verified(&second);
    // And a third one, after both: a life of its own again.
    fs::remove_file(place.enough()).unwrap();
    let newest = place.generations("committed").pop().expect("one of life 2");
    let (from, third) = go_on(&place, &["--generation", &newest]);
    assert!(from.starts_with("2.") && third.stderr.contains("life 3."), "{from} {third:?}");
}

#[test]
fn a_finished_job_is_not_restarted_unless_a_generation_is_named() {
    let place = Place::new();
    place.with_generations();
    let listed = || done(&mut stillwire(&["ls", &place.job_text()]));
    assert!(!listed().stdout.contains("finished"), "its launcher was killed");
    let (_, ended) = go_on(&place, &[]);
    assert!(listed().stdout.contains("finished 20"), "{:?}", listed());
    let refused = done(&mut stillwire(&["restart", &place.job_text()]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["this job finished at 20", "there is nothing to restart", "--generation"]);
    let newest = place.generations("committed").pop().expect("it was saved");
    let (from, again) = go_on(&place, &["--generation", &newest]);
    assert_eq!(from, newest);
    // The newest generation may have been saved rounds before the sort saw that it may end, and now it sees that at once. The result of rounds
    // is the same, as often as they are done.
    let (again, ended) = (outcome(&again), outcome(&ended));
    let number = |of: &Value, key: &str| of[key].as_u64().unwrap_or_else(|| panic!("{key}: {of}"));
    let rounds = |of: &Value| number(of, "rounds");
    assert!((1..=rounds(&ended)).contains(&rounds(&again)), "{again} after {ended}");
    for key in ["partial_passed", "partial_expected", "full_passed", "full_expected"] {
        let [left, right] = [number(&again, key) * rounds(&ended), number(&ended, key) * rounds(&again)];
        assert_eq!(left, right, "{key}: {again} after {ended}");
    }
    assert_eq!(again["keys"], ended["keys"]);
    let report = done(&mut stillwire(&["ls", "--json", &place.job_text()])).json();
    assert!(report["finished_unix_ms"].is_number(), "{report}");
    let record = done(&mut stillwire(&["inspect", &place.job().join("end-00000003").display().to_string()]));
    record.says(&[]);
    assert!(record.stdout.contains("stillwire end 1"), "{record:?}");
}

#[test]
fn a_directory_in_use_is_not_taken() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "60ms"]);
    job.wait_for("committed");
    let refused = done(&mut stillwire(&["restart", &place.job_text()]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["another launcher works on this job", "stillwire kill"]);
    let refused = done(&mut stillwire(&["run", "-n", "1", "--ckpt-dir", &place.job_text(), "--", "true"]));
    refused.says(&["another launcher works on this job"]);
    place.let_end();
    verified(&job.finish());
    let refused = done(&mut stillwire(&["run", "-n", "1", "--ckpt-dir", &place.job_text(), "--", "true"]));
    refused.says(&["holds a job already", "stillwire restart"]);
}

/// Damages the newest generation, and shows that the one before it is restarted, with a message that has `words`.
fn falls_back(words: &[&str], damage: impl Fn(&Place, &str)) {
    let place = Place::new();
    let generations = place.with_generations();
    let (newest, before) = (&generations[generations.len() - 1], &generations[generations.len() - 2]);
    damage(&place, newest);
    let checked = done(&mut stillwire(&["verify", &place.job_text(), "--json"]));
    assert_eq!((checked.code, &checked.json()["verified"]), (Some(3), &false.into()), "{checked:?}");
    let named = done(&mut stillwire(&["restart", &place.job_text(), "--generation", newest]));
    assert_eq!(named.code, Some(3), "{named:?}");
    named.says(words);
    let (from, done) = go_on(&place, &[]);
    assert_eq!(&from, before);
    done.says(&[&format!("generation {newest} is passed over")]);
    done.says(words);
}

fn cut_off(path: &Path, bytes: u64) {
    let length = fs::metadata(path).unwrap().len();
    fs::File::options().write(true).open(path).unwrap().set_len(length - bytes).unwrap();
}

#[test]
fn a_damaged_image_header() {
    falls_back(&["rank-00000000.image", "header"], |place, newest| {
        flip(&place.file(newest, "rank-00000000.image"), 17);
    });
}

#[test]
fn a_missing_image() {
    falls_back(&["rank-00000001.image"], |place, newest| {
        fs::remove_file(place.file(newest, "rank-00000001.image")).unwrap();
    });
}

#[test]
fn a_half_written_image() {
    falls_back(&["it is cut off or damaged"], |place, newest| {
        cut_off(&place.file(newest, "rank-00000003.image"), 100);
    });
}

#[test]
fn an_image_that_was_never_finished() {
    falls_back(&["never finished"], |place, newest| {
        let path = place.file(newest, "rank-00000003.image");
        let length = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
        fs::write(&path, vec![0; length]).unwrap();
    });
}

#[test]
fn an_image_of_another_rank() {
    falls_back(&["the image belongs to rank 1, rank 0 was expected"], |place, newest| {
        fs::copy(place.file(newest, "rank-00000001.image"), place.file(newest, "rank-00000000.image"))
            .unwrap();
    });
}

#[test]
fn an_image_of_an_older_generation() {
    falls_back(&["the image belongs to epoch"], |place, newest| {
        let generations = place.generations("committed");
        let before = &generations[generations.len() - 2];
        fs::copy(place.file(before, "rank-00000000.image"), place.file(newest, "rank-00000000.image"))
            .unwrap();
    });
}

#[test]
fn a_missing_manifest() {
    falls_back(&["manifest"], |place, newest| fs::remove_file(place.file(newest, "manifest")).unwrap());
}

#[test]
fn without_a_commit_record_a_generation_does_not_exist() {
    let place = Place::new();
    let generations = place.with_generations();
    let (newest, before) = (&generations[generations.len() - 1], &generations[generations.len() - 2]);
    fs::remove_file(place.file(newest, "commit")).unwrap();
    let (from, done) = go_on(&place, &[]);
    assert_eq!(&from, before);
    assert!(restarts(&done) && !done.stderr.contains("passed over"), "{done:?}");
}

#[test]
fn nothing_whole_is_no_restart() {
    let place = Place::new();
    for generation in place.with_generations() {
        flip(&place.file(&generation, "rank-00000000.image"), 20_000);
    }
    let refused = done(&mut stillwire(&["restart", &place.job_text()]));
    assert_eq!(refused.code, Some(3), "{refused:?}");
    refused.says(&["cannot be restored", "it is damaged", "stillwire ls"]);
}

#[test]
fn nothing_committed_is_no_restart() {
    let place = Place::new();
    place.let_end();
    let done_job = place.run(&[]).finish();
    verified(&done_job);
    assert_eq!(outcome(&done_job)["rounds"], 1);
    let refused = done(&mut stillwire(&["restart", &place.job_text()]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["this job finished at 20", "stillwire ls"]);

    let place = Place::new();
    let mut job = place.run(&[]);
    job.wait_for("all ranks run");
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    let refused = done(&mut stillwire(&["restart", &place.job_text()]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["no committed generation", "stillwire run"]);
}

// The program is another one than the one that was saved.
#[test]
fn a_program_that_does_not_fit_its_image_says_so() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "60ms"]);
    job.wait_for("committed");
    job.signal("INT");
    job.finish();
    // The job file is text that ends with its checksum; `restart` reads nothing else of the program.
    let path = place.job().join("job");
    let text = fs::read_to_string(&path).unwrap();
    let body =
        text.lines().filter(|line| !line.starts_with("checksum")).collect::<Vec<_>>().join("\n") + "\n";
    let body = body.replace("argument S\n", "argument W\n");
    let sum = store::checksum::checksum(body.as_bytes());
    fs::write(&path, format!("{body}checksum {sum:016x}\n")).unwrap();
    let done = place.restart(&["--quiet"]).finish();
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["bytes in the image", "restart with the same program and arguments"]);
}

// Images are not read before a rollback, but by the ranks that restore them: damage there is found, the generation is
// passed over, and the one before it is restored.
#[test]
fn an_image_that_rots_while_the_job_runs() {
    let place = Place::new();
    let runtime = tempfile::tempdir().unwrap();
    let mut command = stillwire(&["run", "-n", "4", "--ckpt-dir", &place.job_text(), "--"]);
    command.args(place.sort()).env("XDG_RUNTIME_DIR", runtime.path());
    let mut job = Running::start(command);
    job.wait_for("all ranks run");
    while place.generations("committed").len() < 2 {
        // One that a rank was too far for is abandoned; the next one may not be.
        let _ = done(stillwire(&["checkpoint", ""]).env("XDG_RUNTIME_DIR", runtime.path()));
    }
    let generations = place.generations("committed");
    let [before, newest] = generations.as_slice() else { panic!("{generations:?}") };
    // In the middle of the keys.
    flip(&place.file(newest, "rank-00000002.image"), 20_000);
    signal(job.ranks()[0], "KILL");
    job.wait_for("rank 0 died (signal 9); rolling back");
    assert!(job.wait_for("life 2.").contains(&format!("begins from generation {newest}")));
    job.wait_for("it is damaged: restart from another generation");
    job.wait_for(&format!("generation {newest} is passed over"));
    assert!(job.wait_for("life 3.").contains(&format!("begins from generation {before}")));
    job.wait_for("all ranks run again");
    // Every rank has read all of it: the next rollback reads nothing first.
    signal(job.ranks()[3], "KILL");
    assert!(job.wait_for("life 4.").contains(&format!("begins from generation {before}")));
    job.wait_for("all ranks run again");
    place.let_end();
    verified(&job.finish());
}
