//! A launcher that begins in the directory of a node, because the job's own is not reached (R34).

use std::path::PathBuf;

use crate::support::{Done, Place, Running, stillwire, verified, wait_until};

/// The directory of a node of the job, whose nodes are on this machine.
fn node(place: &Place, number: usize) -> PathBuf {
    let jobs = std::fs::read_dir(place.folder.path().join("disks")).expect("the nodes' folder");
    jobs.into_iter().next().expect("a job").expect("an entry").path().join(number.to_string())
}

/// Some generations are committed, and launcher and nodes are gone.
fn gone(options: &[&str]) -> Place {
    let place = Place::new();
    let disks = place.folder.path().join("disks").display().to_string();
    let mut all = vec!["--ckpt-every", "50ms", "--node-dir", &disks];
    all.extend(options);
    let mut job = place.run(&all);
    job.wait_for("committed");
    job.wait_for("committed");
    job.signal("KILL");
    job.finish();
    let is_free = |path: PathBuf| std::fs::File::open(path).is_ok_and(|file| file.try_lock().is_ok());
    let locks = |number: usize| node(&place, number).with_file_name(format!("lock-{number}"));
    wait_until("the guards have cleaned up", || (0..3).all(|number| is_free(locks(number))));
    place.let_end();
    place
}

fn restart(place: &Place, directory: PathBuf) -> Done {
    let mut command = stillwire(&["restart"]);
    command.arg(directory).env("XDG_STATE_HOME", place.state());
    Running::start(command).finish()
}

#[test]
fn a_job_goes_on_from_a_nodes_directory_and_no_more_from_its_own() {
    let place = gone(&["--nodes", "3", "--parity", "xor"]);
    // One directory may be lost.
    std::fs::remove_dir_all(node(&place, 0)).expect("a directory");
    verified(&restart(&place, node(&place, 1)));
    let done = restart(&place, place.job());
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["knows life", "that one is an older state", "stillwire restart"]);
}

#[test]
fn fewer_than_most_nodes_do_not_take_the_job_over() {
    let place = gone(&["--nodes", "3", "--parity", "rs:1+2"]);
    for lost in [0, 2] {
        std::fs::remove_dir_all(node(&place, lost)).expect("a directory");
    }
    let done = restart(&place, node(&place, 1));
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&[
        "no life of the job begins from",
        "1 of 3 nodes have a directory that knows which launcher had the job last, and 2 have to know it",
    ]);
    // A person who names the job's own directory says that they are lost, and what is left is enough.
    verified(&restart(&place, place.job()));
}

#[test]
fn half_of_the_nodes_are_enough_for_the_jobs_own_directory_alone() {
    let place = gone(&["--nodes", "4", "--parity", "rs:2+2"]);
    for lost in [0, 3] {
        std::fs::remove_dir_all(node(&place, lost)).expect("a directory");
    }
    let done = restart(&place, node(&place, 1));
    done.says(&["2 of 4 nodes", "and 3 have to know it"]);
    verified(&restart(&place, place.job()));
}
