//! Other users cannot get into a job through its directories: every command refuses one that they could fill or exchange.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use crate::support::{Done, Place, Running, done, stillwire, verified};

/// A user that is not the one of the tests.
const OTHER: u32 = 65533;

fn close(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("it is ours");
}

/// All commands that open a directory of a job.
fn opened(path: &Path) -> Vec<Done> {
    let path = path.display().to_string();
    let on = |words: &[&str]| done(&mut stillwire(&[words, &[&path]].concat()));
    vec![on(&["ls"]), on(&["verify"]), on(&["restart"]), on(&["repair"])]
}

#[track_caller]
fn refused(done: &Done, words: &[&str]) {
    assert!(matches!(done.code, Some(1 | 3)), "{done:?}");
    let said = format!("{}{}", done.stdout, done.stderr);
    for word in words {
        assert!(said.contains(word), "{word:?} is missing: {done:?}");
    }
}

#[test]
fn a_job_s_directory_that_others_may_write_is_refused_by_all_commands() {
    let place = Place::new();
    fs::create_dir(place.job()).expect("a directory");
    close(&place.job(), 0o777);
    let path = place.job_text();
    let words = [
        &*format!("{path} belongs to user {} and has mode 0777", geteuid()),
        "expected no write permission for group and others",
        &format!("run `chmod go-w {path}`"),
    ];
    refused(&place.run(&["--ckpt-every", "1h"]).finish(), &words);
    assert_eq!(fs::read_dir(place.job()).expect("a directory").count(), 0, "something was written there");
    close(&place.job(), 0o755);
    let newest = place.stopped(2, 1).pop().expect("a generation");
    close(&place.job(), 0o777);
    opened(&place.job()).iter().for_each(|done| refused(done, &words));
    // Through a link of our own as well; and where only one above it is open.
    let link = place.folder.path().join("link");
    symlink(place.job(), &link).expect("a link");
    opened(&link).iter().for_each(|done| refused(done, &words));
    let moved = place.folder.path().join("open").join("job");
    fs::create_dir(place.folder.path().join("open")).expect("a directory");
    close(&place.folder.path().join("open"), 0o777);
    close(&place.job(), 0o700);
    fs::rename(place.job(), &moved).expect("a directory");
    let above = ["/open belongs to user", "or the sticky bit: they can put another directory in the place"];
    opened(&moved).iter().for_each(|done| refused(done, &above));
    fs::rename(&moved, place.job()).expect("a directory");
    place.let_end();
    let done = Running::start(stillwire(&["restart", &link.display().to_string()])).finish();
    done.says(&[&format!("begins from generation {newest}")]);
    verified(&done);
}

/// The directory of the job's nodes.
fn of_job(root: &Path) -> PathBuf {
    let mut entries = fs::read_dir(root).expect("the nodes' folder");
    entries.next().expect("a job").expect("an entry").path()
}

#[test]
fn a_node_s_directory_that_others_may_write_is_refused_by_its_keeper() {
    let place = Place::new();
    let disks = place.folder.path().join("disks");
    fs::create_dir(&disks).expect("a directory");
    // As /var/tmp is.
    close(&disks, 0o1777);
    let words = disks.display().to_string();
    let mut job = place.run(&["--nodes", "2", "--node-dir", &words, "--ckpt-every", "1h"]);
    job.wait_for("all ranks run");
    job.checkpoint();
    job.signal("INT");
    job.finish();
    let root = of_job(&disks);
    let name = root.file_name().expect("a name").to_string_lossy().into_owned();
    assert_eq!(name.len(), "stillwire-".len() + 32, "all of the job's number: {name}");
    let node = root.join("1");
    place.let_end();
    let restart = || place.restart(&[]).finish();
    let verify = || done(&mut stillwire(&["verify", &place.job_text()]));
    // The directory of all nodes is met by any keeper first.
    for (path, name) in [(&node, "node 1"), (&root, "node ")] {
        close(path, 0o775);
        let found = format!("{} belongs to user {} and has mode 0775", path.display(), geteuid());
        refused(&restart(), &[name, &found]);
        refused(&verify(), &[name, &found]);
        close(path, 0o700);
    }
    if geteuid().is_root() {
        // Somebody else has made it first, and knows what a program that is restored from it would do.
        for (path, name) in [(&node, "node 1"), (&root, "node ")] {
            chown(path, Some(OTHER), Some(OTHER)).expect("root may");
            let found =
                format!("{} belongs to user {OTHER} and has mode 0700, expected user 0", path.display());
            refused(&restart(), &[name, &found]);
            refused(&verify(), &[name, &found]);
            chown(path, Some(0), Some(0)).expect("root may");
        }
    }
    verified(&restart());
}

/// Every process that can reach the socket of a job can stop the job.
#[test]
fn a_folder_of_sockets_that_others_may_enter_is_refused() {
    let place = Place::new();
    let (runtime, folder) = (place.folder.path().to_owned(), place.folder.path().join("stillwire"));
    fs::create_dir(&folder).expect("a directory");
    let run = || {
        let mut command = stillwire(&["run", "-q", "-n", "1", "--", "echo", "hello"]);
        done(command.env("XDG_RUNTIME_DIR", &runtime))
    };
    for mode in [0o755, 0o710, 0o701] {
        close(&folder, mode);
        let refused = run();
        refused.says(&[&format!("run `chmod 700 {}`", folder.display()), "other users may enter"]);
        assert!(refused.code == Some(1) && !refused.stdout.contains("hello"), "{refused:?}");
    }
    // The error's own cure.
    close(&folder, 0o700);
    let done = run();
    assert!(done.code == Some(0) && done.stdout.contains("hello"), "{done:?}");
}
