//! A restart that gives hosts other numbers of ranks: images move to the nodes of another layout before a life begins there (R35).
//!
//! Each host has a disk of its own: the folder that its remote shell names as the user's state folder.

use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use crate::support::{Place, Running, children_of, done, stillwire, verified, wait_until, write_key};

struct Hosts {
    place: Place,
    shell: String,
}

impl Hosts {
    fn new() -> Hosts {
        let place = Place::new();
        let folder = place.folder.path().display().to_string();
        let shell = place.remote_shell(&format!(
            "host=$1; shift; [ ! -e {folder}/gone-$host ] || exit 255\n\
             case $* in *__images) while [ -e {folder}/slow-$host ]; do touch {folder}/waits-$host; sleep 0.05; done; [ ! -e {folder}/broken-$host ] || exit 255;; esac\n\
             case $* in *__images) ;; *) while [ -e {folder}/late-$host ]; do touch {folder}/awaited-$host; sleep 0.05; done;; esac\n\
             export XDG_STATE_HOME={folder}/disk-$host\n\
             case $*-$(ls {folder}) in *__images*stall-$host*) {{ dd bs=1 count=12000 2> {folder}/dd\n\
             touch {folder}/waits-$host\n\
             while [ -e {folder}/stall-$host ]; do sleep 0.05; done; }} | \"$@\"; exit;; esac\n\
             exec \"$@\""
        ));
        Hosts { place, shell }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.folder.path().join(name)
    }

    /// HOST:RANKS,... with an address for each.
    fn list(hosts: &str) -> String {
        let number = |host: &str| host.bytes().next().expect("a letter") - b'a' + 1;
        hosts.split(',').map(|host| format!("{host}@127.0.0.{}", number(host))).collect::<Vec<_>>().join(",")
    }

    fn run(&self, hosts: &str, options: &[&str]) -> Running {
        let hosts = Hosts::list(hosts);
        let usual = ["--hosts", &hosts, "--remote-shell", &self.shell, "--node-timeout", "2s"];
        self.place.run(&[usual.as_slice(), options].concat()).reading()
    }

    fn restart(&self, hosts: &str) -> Running {
        self.place.restart(&["--hosts", &Hosts::list(hosts)]).reading()
    }

    /// A job on these hosts that was stopped with something committed.
    fn stopped(&self, hosts: &str, options: &[&str]) -> String {
        let mut job = self.run(hosts, &[&["--ckpt-every", "200ms"], options].concat());
        job.wait_for("all ranks run");
        job.wait_for("committed");
        job.wait_for("committed");
        job.signal("INT");
        job.finish_reading();
        self.place.generations("committed").pop().expect("a generation")
    }

    /// A job on these hosts that was stopped after its only checkpoint. A restart saves nothing that nobody asks for.
    fn saved_once(&self, hosts: &str) -> String {
        let mut job = self.run(hosts, &["--parity", "partner"]);
        job.wait_for("all ranks run");
        job.checkpoint();
        job.signal("INT");
        job.finish_reading();
        self.place.generations("committed").pop().expect("a generation")
    }

    /// The host is gone, with its disk.
    fn lose(&self, host: &str) {
        self.mark("gone", host);
        std::fs::remove_dir_all(self.path(&format!("disk-{host}"))).expect("its disk");
    }

    fn mark(&self, what: &str, host: &str) {
        std::fs::write(self.path(&format!("{what}-{host}")), b"").expect("a file");
    }

    fn unmark(&self, what: &str, host: &str) {
        std::fs::remove_file(self.path(&format!("{what}-{host}"))).expect("a file");
    }

    /// Launcher, keepers and guards have ended.
    fn wait_for_end(&self) {
        wait_until("its keepers are gone", || self.place.lock_is_free());
    }

    /// The folder of the job's nodes on a host, in a layout.
    fn root(&self, host: &str, layout: &str) -> PathBuf {
        let entries =
            std::fs::read_dir(self.path(&format!("disk-{host}")).join("stillwire")).expect("a folder");
        let first = |path: &PathBuf| path.extension().is_none();
        let root = entries.flatten().map(|entry| entry.path()).find(first).expect("the first layout");
        PathBuf::from(format!("{}{layout}", root.display()))
    }

    /// Roots of the job's nodes on a host, with the numbers of the layouts behind them.
    fn roots(&self, host: &str) -> Vec<String> {
        roots(&self.path(&format!("disk-{host}")).join("stillwire"))
    }

    /// The job runs on, with checkpoints, in the layout that it has now.
    fn goes_on(&self, job: &mut Running, from: &str) {
        job.wait_for(&format!("begins from generation {from}"));
        job.wait_for("all ranks run");
        job.wait_for("committed");
        job.wait_for("committed");
    }
}

/// The parts of the folders' names behind the job's number: "" for the first layout. Those without the directory of a node do not count.
fn roots(folder: &Path) -> Vec<String> {
    let has_node = |root: &std::fs::DirEntry| {
        let mut entries = std::fs::read_dir(root.path()).into_iter().flatten().flatten();
        entries.any(|entry| entry.path().is_dir())
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().filter(has_node);
    let name = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().expect("a name");
        name.split_once('.').map_or_else(String::new, |(_, layout)| layout.to_owned())
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}

#[test]
fn two_nodes_become_four_and_the_loss_of_one_of_them_is_survived() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:2,b:2", &[]);
    let mut job = hosts.restart("a:1,b:1,c:1,d:1");
    job.wait_for(&format!("generation {newest} moved from a:2, b:2 to a:1, b:1, c:1, d:1"));
    hosts.goes_on(&mut job, &newest);
    assert!(!job.seen.iter().any(|line| line.contains("not protected")), "{:?}", job.seen);
    // Nobody needs the images of the former layout any more.
    wait_until("they are removed", || ["a", "b"].iter().all(|host| hosts.roots(host) == ["2"]));
    job.signal("INT");
    job.finish_reading();
    let newest = hosts.place.generations("committed").pop().expect("a generation");
    hosts.lose("d");
    let mut job = hosts.restart("a:1,b:1,c:1,e:1");
    job.wait_for("e takes the place of d");
    hosts.goes_on(&mut job, &newest);
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn the_moved_generation_is_protected_before_a_checkpoint() {
    let hosts = Hosts::new();
    let newest = hosts.saved_once("a:2,b:2");
    let mut job = hosts.restart("a:1,b:1,c:1,d:1");
    job.wait_for("all ranks run");
    job.signal("KILL");
    job.finish_reading();
    assert_eq!(hosts.place.generations("committed"), [newest.as_str()]);
    hosts.lose("b");
    let mut job = hosts.restart("a:1,c:1,d:1,e:1");
    job.wait_for("e takes the place of b");
    job.wait_for(&format!("begins from generation {newest}"));
    job.wait_for("all ranks run");
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn four_nodes_become_two_whose_hosts_need_not_have_been_named() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:1,b:1,c:1,d:1", &[]);
    // c and d still answer. Without them, xor could not rebuild the images of both.
    let mut job = hosts.restart("a:2,b:2");
    job.wait_for(&format!("generation {newest} moved from a:1, b:1, c:1, d:1 to a:2, b:2"));
    job.wait_for("on c, d; remove them when a checkpoint has been committed");
    hosts.goes_on(&mut job, &newest);
    job.signal("INT");
    job.finish_reading();
    // And to three, of which one was never part of it.
    let newest = hosts.place.generations("committed").pop().expect("a generation");
    let mut job = hosts.restart("a:1,e:1,b:2");
    job.wait_for("moved from a:2, b:2 to a:1, e:1, b:2");
    hosts.goes_on(&mut job, &newest);
    wait_until("former layouts are removed", || {
        [hosts.roots("a"), hosts.roots("b"), hosts.roots("e")] == [["3"]; 3]
    });
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn images_of_a_lost_disk_are_rebuilt_and_then_moved() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:1,b:1,c:2", &["--parity", "xor"]);
    hosts.lose("c");
    let mut job = hosts.restart("a:1,b:1,d:1,e:1");
    job.wait_for("moved from a:1, b:1, d:2 to a:1, b:1, d:1, e:1");
    hosts.goes_on(&mut job, &newest);
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn too_much_that_is_lost_moves_nowhere() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:1,b:1,c:2", &["--parity", "xor"]);
    hosts.mark("gone", "b");
    hosts.mark("gone", "c");
    let job = hosts.restart("a:2,d:2");
    let done = job.finish_reading();
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["no generation of the job can be made whole on its nodes"]);
    // The former layout is as it was.
    hosts.unmark("gone", "b");
    hosts.unmark("gone", "c");
    let mut job = hosts.place.restart(&[]).reading();
    hosts.goes_on(&mut job, &newest);
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn a_launcher_killed_while_images_move_leaves_the_former_layout() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:2,b:2", &[]);
    for repeats in [false, true] {
        hosts.mark("slow", "d");
        let mut job = hosts.restart("a:1,b:1,c:1,d:1");
        // The former nodes are locked.
        wait_until("d is reached", || hosts.path("waits-d").exists());
        wait_until("the node of c is prepared", || hosts.roots("c") == ["2"]);
        job.signal("KILL");
        job.finish_reading();
        hosts.unmark("slow", "d");
        std::fs::remove_file(hosts.path("waits-d")).expect("a file");
        assert_eq!(hosts.place.generations("committed").pop().as_ref(), Some(&newest));
        job = if repeats { hosts.restart("a:1,b:1,c:1,d:1") } else { hosts.place.restart(&[]).reading() };
        if repeats {
            job.wait_for("moved from a:2, b:2 to a:1, b:1, c:1, d:1");
            hosts.goes_on(&mut job, &newest);
            hosts.place.let_end();
            verified(&job.finish_reading());
        } else {
            job.wait_for(&format!("begins from generation {newest}"));
            job.wait_for("all ranks run");
            job.signal("KILL");
            job.finish_reading();
            wait_until("its keepers are gone", || hosts.place.lock_is_free());
            if hosts.place.generations("committed").pop().as_ref() != Some(&newest) {
                // A checkpoint was faster; one round has shown it.
                return;
            }
        }
    }
}

#[test]
fn a_launcher_killed_in_the_middle_of_an_image_moves_it_the_next_time() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:2,b:2", &[]);
    hosts.mark("stall", "d");
    let mut job = hosts.restart("a:1,b:1,c:1,d:1");
    wait_until("d has a part", || hosts.path("waits-d").exists());
    job.signal("KILL");
    // Its remote shell ends then, too.
    hosts.unmark("stall", "d");
    job.finish_reading();
    assert_eq!(hosts.place.generations("committed").pop().as_ref(), Some(&newest));
    job = hosts.restart("a:1,b:1,c:1,d:1");
    job.wait_for("moved from a:2, b:2 to a:1, b:1, c:1, d:1");
    hosts.goes_on(&mut job, &newest);
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn a_launcher_killed_after_the_move_goes_on_in_the_new_layout() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:2,b:2", &[]);
    let mut job = hosts.restart("a:1,b:1,c:1,d:1");
    job.wait_for("moved from");
    job.signal("KILL");
    job.finish_reading();
    let mut job = hosts.place.restart(&[]).reading();
    job.wait_for(&format!("begins from generation {newest}"));
    job.wait_for("all ranks run");
    job.wait_for("committed");
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn a_host_with_images_that_are_not_protected_yet_keeps_its_place() {
    let hosts = Hosts::new();
    hosts.saved_once("a:2,b:2");
    hosts.mark("late", "d");
    let mut job = hosts.restart("a:1,b:1,c:1,d:1");
    job.wait_for("moved from");
    wait_until("the new nodes are to protect it", || hosts.path("awaited-d").exists());
    job.signal("KILL");
    hosts.unmark("late", "d");
    job.finish_reading();
    hosts.wait_for_end();
    // A run without a checkpoint changes nothing.
    let mut job = hosts.place.restart(&[]).reading();
    job.wait_for("all ranks run");
    job.signal("KILL");
    job.finish_reading();
    hosts.wait_for_end();
    hosts.mark("gone", "c");
    let mut job = hosts.place.restart(&["--spare-hosts", "e@127.0.0.5"]).reading();
    job.wait_for("c does not answer, and its images were moved there and are not protected yet");
    hosts.unmark("gone", "c");
    job.wait_for("all ranks run");
    job.checkpoint();
    job.signal("INT");
    job.finish_reading();
    hosts.lose("c");
    let mut job = hosts.place.restart(&[]).reading();
    job.wait_for("c does not answer: e takes its place");
    job.wait_for("all ranks run");
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn a_detached_restart_whose_launcher_is_killed_while_images_move_reports_it() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:2,b:2", &[]);
    hosts.mark("slow", "d");
    let list = Hosts::list("a:1,b:1,c:1,d:1");
    let job = hosts.place.restart(&["--hosts", &list, "--detach"]).reading();
    wait_until("d is reached", || hosts.path("waits-d").exists());
    let only = |parent: u32| children_of(parent).pop().expect("a child");
    let launcher = only(only(job.pid()));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(launcher.cast_signed()), Signal::SIGKILL)
        .expect("it runs");
    hosts.unmark("slow", "d");
    let done = job.finish_reading();
    assert_eq!(done.code, Some(137), "{done:?}");
    done.says(&["the launcher was killed by SIGKILL before it had started any rank; repeat the command"]);
    assert_eq!(hosts.place.generations("committed").pop().as_ref(), Some(&newest));
}

#[test]
fn an_older_state_of_the_job_runs_nowhere_after_a_move() {
    let hosts = Hosts::new();
    hosts.stopped("a:2,b:2", &[]);
    let older = hosts.path("older");
    copy_tree(&hosts.place.job(), &older);
    let mut job = hosts.restart("a:1,b:1,c:1,d:1");
    job.wait_for("moved from");
    job.signal("KILL");
    job.finish_reading();
    let done = done(&mut stillwire(&["restart", &older.display().to_string()]));
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["the job goes on in another layout of its ranks"]);
}

// R34, R35
#[test]
fn an_older_state_of_the_job_runs_nowhere_when_former_images_are_removed() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:2,b:2", &[]);
    let older = hosts.path("older");
    copy_tree(&hosts.place.job(), &older);
    let mut job = hosts.restart("a:1,b:1,c:1,d:1");
    hosts.goes_on(&mut job, &newest);
    wait_until("they are removed", || ["a", "b"].iter().all(|host| hosts.roots(host) == ["2"]));
    job.signal("INT");
    job.finish_reading();
    let done = done(&mut stillwire(&["restart", &older.display().to_string()]));
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["the job goes on in another layout of its ranks"]);
}

// As if the launcher had been killed before it marked them.
#[test]
fn former_nodes_that_were_not_marked_are_marked_by_the_new_ones() {
    let hosts = Hosts::new();
    hosts.stopped("a:2,b:2", &[]);
    let older = hosts.path("older");
    copy_tree(&hosts.place.job(), &older);
    let mut job = hosts.restart("a:1,b:1,c:1,d:1");
    job.wait_for("moved from");
    job.signal("KILL");
    job.finish_reading();
    hosts.wait_for_end();
    let marks = ["a", "b"].map(|host| hosts.root(host, "").join("left"));
    marks.iter().for_each(|mark| std::fs::remove_file(mark).expect("a mark"));
    let mut job = hosts.place.restart(&[]).reading();
    job.wait_for("all ranks run");
    assert!(marks.iter().all(|mark| mark.exists()));
    job.signal("KILL");
    job.finish_reading();
    hosts.wait_for_end();
    // The other way round: the job goes on in the former layout, or has gone on there.
    marks.iter().for_each(|mark| std::fs::remove_file(mark).expect("a mark"));
    let mut command = stillwire(&["restart", &older.display().to_string()]);
    // On another host: one user's launchers of one job find each other where both run.
    let elsewhere = tempfile::tempdir().expect("a folder");
    command.env("XDG_STATE_HOME", hosts.place.state()).env("XDG_RUNTIME_DIR", elsewhere.path());
    let mut job = Running::start(command).reading();
    job.wait_for("all ranks run");
    let done = hosts.place.restart(&[]).reading().finish_reading();
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["processes of this job run in its former layout of ranks", "lock-"]);
    assert!(!marks.iter().any(|mark| mark.exists()));
    job.signal("INT");
    job.finish_reading();
    let done = hosts.place.restart(&[]).reading().finish_reading();
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&["the job has gone on in its former layout of ranks"]);
}

#[test]
fn a_host_lost_while_images_move_leaves_the_former_layout() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:2,b:2", &[]);
    hosts.mark("slow", "d");
    let job = hosts.restart("a:1,b:1,c:1,d:1");
    wait_until("d is reached", || hosts.path("waits-d").exists());
    std::fs::write(hosts.path("broken-d"), b"").expect("a file");
    hosts.unmark("slow", "d");
    let done = job.finish_reading();
    assert_eq!(done.code, Some(1), "{done:?}");
    done.says(&[
        "images cannot be moved from or to d: the connection was lost",
        "The layout of the job is as before",
    ]);
    assert_eq!(["a", "c"].map(|host| hosts.roots(host).concat()), ["", ""], "nothing is left of the move");
    let mut job = hosts.place.restart(&[]).reading();
    hosts.goes_on(&mut job, &newest);
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn a_person_can_end_a_restart_before_and_after_images_move() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:2,b:2", &[]);
    for (awaited, has_moved) in [("b", false), ("d", true)] {
        hosts.mark("late", awaited);
        let job = hosts.restart("a:1,b:1,c:1,d:1");
        wait_until("a keeper is awaited", || hosts.path(&format!("awaited-{awaited}")).exists());
        job.signal("INT");
        hosts.unmark("late", awaited);
        let done = job.finish_reading();
        assert_eq!(done.code, Some(130), "{done:?}");
        let words = format!("{done:?}");
        assert_eq!(words.contains("moved from"), has_moved, "{words}");
        for wrong in ["no generation of the job", "begins from", "is not protected"] {
            assert!(!words.contains(wrong), "{words}");
        }
    }
    let mut job = hosts.place.restart(&[]).reading();
    hosts.goes_on(&mut job, &newest);
    hosts.place.let_end();
    verified(&job.finish_reading());
}

#[test]
fn a_former_node_that_cannot_be_marked_is_a_warning() {
    let hosts = Hosts::new();
    let newest = hosts.stopped("a:2,b:2", &[]);
    // Its name is taken, by something that is not there.
    std::os::unix::fs::symlink("/nowhere/left", hosts.root("b", "").join("left")).expect("a link");
    let mut job = hosts.restart("a:1,b:1,c:1,d:1");
    job.wait_for("warning: b does not know yet that the job has left");
    hosts.goes_on(&mut job, &newest);
    hosts.place.let_end();
    verified(&job.finish_reading());
}

// R34: a launcher in the directory of a node, because the job's own is lost.
#[test]
fn images_move_from_the_directory_of_a_node_too() {
    let place = Place::new();
    let disks = place.folder.path().join("disks");
    let options = ["--ckpt-every", "200ms", "--node-dir", &disks.display().to_string(), "--nodes", "3"];
    let mut job = place.run(&options).reading();
    job.wait_for("committed");
    job.wait_for("committed");
    job.signal("INT");
    job.finish_reading();
    let newest = place.generations("committed").pop().expect("a generation");
    let first = std::fs::read_dir(&disks).expect("a folder").flatten().next().expect("a job").path();
    let second = PathBuf::from(format!("{}.2", first.display()));
    let restart = |directory: PathBuf, options: &[&str]| {
        let mut command = stillwire(&["restart", &directory.display().to_string()]);
        command.args(options).env("XDG_STATE_HOME", place.state());
        Running::start(command).reading()
    };
    // One of three directories does not make the seat known to most.
    let lost = [first.join("0"), first.join("2")];
    lost.iter().for_each(|node| std::fs::rename(node, node.with_extension("away")).expect("a directory"));
    let refused = restart(first.join("1"), &["--nodes", "4"]).finish_reading();
    assert_eq!(refused.code, Some(1), "{refused:?}");
    refused.says(&["no life of the job begins from", "and 2 have to know it"]);
    assert!(!second.exists());
    for node in &lost {
        let _ = std::fs::remove_dir_all(node);
        std::fs::rename(node.with_extension("away"), node).expect("a directory");
    }

    let mut job = restart(first.join("1"), &["--nodes", "4"]);
    job.wait_for(&format!("generation {newest} moved from"));
    job.wait_for(&format!("begins from generation {newest}"));
    job.wait_for("all ranks run");
    job.wait_for("committed");
    job.wait_for("committed");
    wait_until("the others are removed", || lost.iter().all(|node| !node.exists()));
    assert!(first.join("1/job").exists(), "the launcher works there");
    job.signal("INT");
    job.finish_reading();
    // The nodes of the new layout know the seat, and the former launchers have lost it.
    let stale = restart(place.job(), &[]).finish_reading();
    assert_eq!(stale.code, Some(1), "{stale:?}");
    stale.says(&["the job goes on in another layout of its ranks"]);
    std::fs::remove_dir_all(second.join("3")).expect("a directory");
    let mut job = restart(second.join("0"), &[]);
    job.wait_for("all ranks run");
    job.wait_for("committed");
    job.signal("INT");
    job.finish_reading();
    let stale = restart(first.join("1"), &[]).finish_reading();
    assert_eq!(stale.code, Some(1), "{stale:?}");
    stale.says(&["knows life"]);
    place.let_end();
    verified(&restart(second.join("0"), &[]).finish_reading());
}

#[test]
fn encrypted_images_move_as_they_are() {
    let hosts = Hosts::new();
    let path = hosts.path("key");
    write_key(&path, &"0f".repeat(32));
    let key = path.display().to_string();
    let newest = hosts.stopped("a:2,b:2", &["--encrypt", "--key-file", &key]);
    let list = Hosts::list("a:1,b:1,c:1,d:1");
    // Without its key, nothing moves.
    let forgotten = hosts.place.restart(&["--hosts", &list]).reading().finish_reading();
    assert_eq!(forgotten.code, Some(1), "{forgotten:?}");
    forgotten.says(&["images of this job are encrypted", "no key was given"]);
    assert!(hosts.roots("c").is_empty());
    let mut job = hosts.place.restart(&["--hosts", &list, "--key-file", &key]).reading();
    job.wait_for("moved from a:2, b:2 to a:1, b:1, c:1, d:1");
    hosts.goes_on(&mut job, &newest);
    hosts.place.let_end();
    verified(&job.finish_reading());
}

fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("a folder");
    for entry in std::fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry");
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_tree(&entry.path(), &to),
            false => assert!(std::fs::copy(entry.path(), to).is_ok(), "a file"),
        }
    }
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o700)).expect("its owner's");
}

#[test]
fn nodes_of_one_host_are_another_number() {
    let place = Place::new();
    let newest = place.stopped(4, 2).pop().expect("a generation");
    let mut job = place.restart(&["--nodes", "2"]).reading();
    job.wait_for(&format!(
        "generation {newest} moved from node 0:1, node 1:1, node 2:1, node 3:1 to node 0:2, node 1:2"
    ));
    job.wait_for(&format!("begins from generation {newest}"));
    job.wait_for("all ranks run");
    let later = job.checkpoint();
    assert!(!later.contains(&newest), "{later}");
    wait_until("the former ones are removed", || !place.job().join("nodes/0").exists());
    job.signal("INT");
    job.finish_reading();
    let newest = place.generations("committed").pop().expect("a generation");
    // One of them is lost in the new layout, and its images are rebuilt from the other's.
    std::fs::remove_dir_all(place.job().join("nodes.2/1")).expect("a node's directory");
    place.let_end();
    let done = place.restart(&[]).reading().finish_reading();
    done.says(&[&format!("begins from generation {newest}")]);
    verified(&done);
}

#[test]
fn nodes_of_one_host_spread_over_hosts() {
    let hosts = Hosts::new();
    let newest = hosts.place.stopped(2, 1).pop().expect("a generation");
    let list = Hosts::list("b:1,c:3");
    let mut job = hosts.place.restart(&["--hosts", &list, "--remote-shell", &hosts.shell]).reading();
    job.wait_for("moved from node 0:2, node 1:2 to b:1, c:3");
    job.wait_for("images of the former layout stay in");
    job.wait_for(&format!("begins from generation {newest}"));
    job.wait_for("all ranks run");
    hosts.place.let_end();
    verified(&job.finish_reading());
}

// A host beside the one of the launcher, which ends with it, is no spare host.
#[test]
fn a_host_that_is_not_used_does_not_stay_in_the_way() {
    let hosts = Hosts::new();
    let disks = hosts.path("disks").display().to_string();
    let mut job = hosts.place.run(&["--node-dir", &disks, "--ckpt-every", "200ms"]).reading();
    job.wait_for("committed");
    job.signal("INT");
    job.finish_reading();
    let list = "localhost@127.0.0.1,b@127.0.0.2";
    let mut job = hosts.place.restart(&["--hosts", list, "--remote-shell", &hosts.shell]).reading();
    job.wait_for("b is not used: all nodes of the job stay on localhost");
    job.wait_for("all ranks run");
    job.wait_for("committed");
    job.signal("INT");
    job.finish_reading();
    hosts.place.let_end();
    verified(&hosts.place.restart(&[]).reading().finish_reading());
}

#[test]
fn a_layout_that_is_too_small_for_the_scheme_is_refused_before_anything_moves() {
    let hosts = Hosts::new();
    hosts.stopped("a:1,b:1,c:2", &["--parity", "rs:2+1"]);
    let done = hosts.restart("a:2,b:2").finish_reading();
    assert_eq!(done.code, Some(2), "{done:?}");
    done.says(&["rs:2+1"]);
    assert_eq!(hosts.roots("a"), [""]);
}

#[test]
fn without_a_generation_the_number_of_nodes_stays() {
    let hosts = Hosts::new();
    let mut job = hosts.place.run(&["--nodes", "3", "--parity", "xor"]).reading();
    job.wait_for("all ranks run");
    job.signal("KILL");
    job.finish_reading();
    wait_until("its keepers are gone", || hosts.place.lock_is_free());
    let done = hosts.place.restart(&["--nodes", "2"]).reading().finish_reading();
    assert_eq!(done.code, Some(2), "{done:?}");
    done.says(&["the job had 3 nodes (node 0, node 1, node 2), and 2 are named", "Name as many"]);
}
