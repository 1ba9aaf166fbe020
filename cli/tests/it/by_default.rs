//! The default protection of images without --parity, and the warning about unprotected images.

use std::path::{Path, PathBuf};

use crate::support::{Place, Running, children_of, done, keepers, parent, signal, stillwire, verified};
use serde_json::Value;

const SAVED: [&str; 2] = ["--ckpt-every", "50ms"];

fn node(place: &Place, number: usize) -> PathBuf {
    place.job().join("nodes").join(number.to_string())
}

/// The nodes' own directories, as `ls` lists them; null: there are none.
fn on_nodes(place: &Place) -> Value {
    done(&mut stillwire(&["ls", "--json", &place.job_text()])).json()["nodes"].clone()
}

/// Two generations are committed.
fn saved(job: &mut Running) {
    job.wait_for("committed");
    job.wait_for("committed");
}

/// Ends it, and names the newest generation.
fn stopped(place: &Place, job: Running) -> String {
    job.signal("INT");
    assert_eq!(job.finish().code, Some(130));
    place.generations("committed").pop().expect("a generation")
}

/// Keeper, ranks and directory of the last node are gone.
fn destroy_last(place: &Place, job: &Running, nodes: usize) {
    let keeper = parent(*job.ranks().last().expect("a rank")).expect("a keeper");
    let ranks = children_of(keeper);
    [vec![keeper], ranks].concat().into_iter().for_each(|pid| signal(pid, "KILL"));
    let gone = place.folder.path().join("gone");
    std::fs::rename(node(place, nodes - 1), &gone).expect("a directory");
    let _ = std::fs::remove_dir_all(gone);
}

#[test]
fn a_lost_node_of_several_is_rebuilt() {
    for (nodes, scheme) in [(2, "partner"), (3, "xor"), (4, "xor")] {
        let place = Place::new();
        let mut job = place.run(&[&SAVED[..], &["--nodes", &nodes.to_string()]].concat());
        saved(&mut job);
        destroy_last(&place, &job, nodes);
        job.wait_for(&format!("rebuilding what node {} had", nodes - 1));
        job.wait_for("all ranks run again");
        saved(&mut job);
        let newest = stopped(&place, job);
        assert_eq!(on_nodes(&place)["parity"], scheme);
        assert!(!place.file(&newest, "rank-00000000.image").exists(), "records only");
        std::fs::remove_dir_all(node(&place, 0)).expect("a directory");
        place.let_end();
        let done = place.restart(&[]).finish();
        done.says(&["rebuilding what node 0 had", &format!("begins from generation {newest}")]);
        assert!(!done.stderr.contains("warning: "), "{done:?}");
        verified(&done);
    }
}

#[test]
fn hosts_keep_images_on_disks_of_their_own_and_it_is_said_where() {
    let place = Place::new();
    let shell = place.remote_shell("shift; exec \"$@\"");
    let hosts = ["--hosts", "a:2@127.0.0.1,b:2@127.0.0.2", "--remote-shell", &shell];
    let mut job = place.run(&[&SAVED[..], &hosts].concat());
    let begins = job.wait_for("images of each node in ~/.local/state/stillwire/");
    let (_, name) = begins.split_once("state/stillwire/").expect("it was said");
    let name = name.strip_suffix("/NUMBER").expect("one for each");
    assert_eq!(name.len(), 32, "all of the job's number: {name}");
    let root = place.state().join("stillwire").join(name);
    // They are one machine.
    job.wait_for("warning: a, b share the disk on which each is to have a directory of its own");
    saved(&mut job);
    let newest = stopped(&place, job);
    assert!(!place.file(&newest, "rank-00000000.image").exists(), "records only");
    std::fs::remove_dir_all(root.join("1")).expect("a directory");
    place.let_end();
    // A host that is left may be both.
    let done = place.restart(&["--hosts", "a@127.0.0.1,a@127.0.0.1"]).finish();
    done.says(&[
        "a takes the place of b",
        "rebuilding what a had",
        &format!("begins from generation {newest}"),
    ]);
    verified(&done);
    // A job that is not saved has no images, so no warning about them is printed.
    let places = ["--hosts", "a@127.0.0.1,b@127.0.0.2", "--remote-shell", &shell];
    let unsaved = crate::support::done(stillwire(&["run", "-n", "2"]).args(places).args(["--", "true"]));
    assert_eq!(unsaved.code, Some(0), "{unsaved:?}");
    assert!(!unsaved.stderr.contains("images of each node"), "{unsaved:?}");
}

// Every job of earlier versions was like this, and its job file looks the same.
#[test]
fn without_parity_there_is_one_directory_and_ranks_may_be_spread_otherwise() {
    let place = Place::new();
    let mut job = place.run(&[&SAVED[..], &["--nodes", "3", "--parity", "none"]].concat());
    for nodes in [2, 4] {
        saved(&mut job);
        let newest = stopped(&place, job);
        assert!(place.file(&newest, "rank-00000003.image").exists() && on_nodes(&place).is_null());
        let repair = done(&mut stillwire(&["repair", &place.job_text()]));
        assert_eq!(repair.code, Some(1), "{repair:?}");
        repair.says(&["lie in its directory", "--parity none"]);
        job = place.restart(&["--nodes", &nodes.to_string()]);
        job.wait_for(&format!("begins from generation {newest}"));
        job.wait_for("all ranks run");
        assert_eq!(keepers(job.pid()).len(), nodes);
    }
    place.let_end();
    verified(&job.finish());
}

#[test]
fn a_restart_on_another_number_of_nodes_moves_the_images() {
    let place = Place::new();
    let mut job = place.run(&[&SAVED[..], &["--nodes", "2"]].concat());
    saved(&mut job);
    let newest = stopped(&place, job);
    place.let_end();
    let done = place.restart(&["--nodes", "3"]).finish();
    done.says(&[&format!("begins from generation {newest}")]);
    verified(&done);
}

#[test]
fn how_nodes_protect_each_other_may_be_said_without_saying_that_they_do() {
    let place = Place::new();
    let limits = ["--nodes", "4", "--shape", "ring", "--encode-budget", "link=1M", "--domains", "a,b,a,b"];
    let mut job = place.run(&[&SAVED[..], &limits].concat());
    saved(&mut job);
    let newest = stopped(&place, job);
    // Both nodes of a domain: exclusive or makes groups that survive it.
    for number in [0, 2] {
        std::fs::remove_dir_all(node(&place, number)).expect("a directory");
    }
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&["rebuilding what node 0, node 2 had", &format!("begins from generation {newest}")]);
    verified(&done);
}

#[test]
fn limits_of_a_protection_that_is_none_are_refused() {
    let place = Place::new();
    let (job, disks) = (place.job_text(), place.folder.path().join("disks").display().to_string());
    let unprotected = [
        &["--nodes", "4"][..],
        &["--nodes", "4", "--ckpt-dir", &job, "--parity", "none"],
        &["--ckpt-dir", &job],
        &["--node-dir", &disks],
    ];
    for option in [["--shape", "ring"], ["--encode-budget", "link=1M"]] {
        for none in unprotected {
            let command = [&["run", "-n", "4"], none, &option, &["--", "true"]].concat();
            let done = done(&mut stillwire(&command));
            assert_eq!(done.code, Some(2), "{command:?}: {done:?}");
            done.says(&[
                option[0],
                "no node protects another one",
                "--nodes",
                "--ckpt-every",
                "--parity none",
            ]);
        }
    }
    assert!(!place.job().exists());
}

const ONE: &str = "one node protects nothing";
const BARE: &str = "in the job's directory only";
const ALONE: &str = "no node protects another one";

fn warns_of(stderr: &str, expected: Option<&str>, options: &[&str]) {
    for words in [ONE, BARE, ALONE] {
        assert_eq!(stderr.contains(words), expected == Some(words), "{options:?}: {stderr}");
    }
    // With its cure.
    for words in ["stillwire: warning: ", "with --flush-to LOCATION"] {
        assert_eq!(stderr.contains(words), expected.is_some(), "{options:?}: {stderr}");
    }
}

#[test]
fn what_nobody_protects_is_said_when_a_job_begins() {
    let place = Place::new();
    place.let_end();
    let folder = |name: &str| place.folder.path().join(name).display().to_string();
    let (disks, copies) = (folder("disks"), folder("copies"));
    std::fs::create_dir(Path::new(&copies)).expect("a folder");
    for (options, said) in [
        (&["--ckpt-every", "1h"][..], Some(ONE)),
        (&["--node-dir", &disks], Some(ONE)),
        (&["--nodes", "4", "--parity", "none"], Some(BARE)),
        (&["--nodes", "4", "--parity", "none", "--node-dir", &disks], Some(ALONE)),
        (&["--nodes", "4"], None),
        (&["--nodes", "4", "--node-dir", &disks], None),
        (&["--flush-to", &copies], None),
        (&["--nodes", "4", "--parity", "none", "--flush-to", &copies], None),
        (&["--nodes", "4", "--parity", "none", "--node-dir", &disks, "--flush-to", &copies], None),
        (&["--quiet"], None),
        (&["--nodes", "4", "--parity", "none", "--quiet"], None),
    ] {
        let _ = std::fs::remove_dir_all(place.job());
        let done = place.run(options).finish();
        verified(&done);
        warns_of(&done.stderr, said, options);
        assert!(!done.stderr.contains("share the disk"), "{options:?}: {done:?}");
    }
    let unsaved = done(&mut stillwire(&["run", "-n", "1", "--", "true"]));
    assert_eq!(unsaved.code, Some(0), "{unsaved:?}");
    warns_of(&unsaved.stderr, None, &[]);
}

#[test]
fn what_nobody_protects_is_said_at_a_restart_too() {
    let place = Place::new();
    let shell = place.remote_shell("shift; exec \"$@\"");
    let hosts = ["--hosts", "a@127.0.0.1,b@127.0.0.2", "--remote-shell", &shell, "--parity", "none"];
    for (options, said) in [(&hosts[..], BARE), (&[], ONE)] {
        let _ = std::fs::remove_dir_all(place.job());
        let _ = std::fs::remove_file(place.enough());
        let mut job = place.run(options);
        job.wait_for(said);
        job.wait_for("all ranks run");
        job.checkpoint();
        stopped(&place, job);
        place.let_end();
        let done = place.restart(&[]).finish();
        verified(&done);
        warns_of(&done.stderr, Some(said), options);
    }
}
