//! Nodes are destroyed: keeper, ranks and directory are gone at one instant. Other nodes hold the data to rebuild them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{Place, Running, done, flip, keepers, rank_of, signal, stillwire, verified, wait_until};

const NODES: usize = 4;

fn node(place: &Place, number: usize) -> PathBuf {
    place.job().join("nodes").join(number.to_string())
}

fn run(place: &Place, parity: &str, options: &[&str]) -> Running {
    let mut all = vec!["--ckpt-every", "50ms", "--nodes", "4", "--parity", parity];
    all.extend(options);
    place.run(&all)
}

/// Ranks of a job with as many nodes, by their numbers, and its keepers, by those of their nodes.
fn processes(job: &Running) -> (Vec<u32>, Vec<u32>) {
    let ranks = job.ranks();
    let parent = |pid: u32| crate::support::parent(pid).expect("a rank's keeper");
    let keepers = ranks.iter().map(|rank| parent(*rank)).collect();
    (ranks, keepers)
}

/// Keeper, ranks and directory of a node are gone. Each node has one rank, with its own number.
fn destroy(place: &Place, job: &Running, numbers: &[usize]) {
    let (ranks, keepers) = processes(job);
    assert_eq!((ranks.len(), keepers.len()), (NODES, NODES));
    for number in numbers {
        assert_eq!(rank_of(ranks[*number]), Some(u32::try_from(*number).expect("few")));
        signal(keepers[*number], "KILL");
        signal(ranks[*number], "KILL");
    }
    for number in numbers {
        lose(place, *number);
    }
}

/// A node's directory is gone at one instant, also while a process still writes into it.
fn lose(place: &Place, number: usize) {
    let gone = place.folder.path().join("gone");
    std::fs::rename(node(place, number), &gone).expect("a directory");
    let _ = std::fs::remove_dir_all(gone);
}

/// A small generator (xorshift64*), seeded by the clock; the seed is shown with a test that fails.
struct Random(u64);

impl Random {
    fn new() -> Random {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let seed = u64::from(now.subsec_nanos()) | 1;
        println!("seed {seed}");
        Random(seed)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16) % bound
    }
}

fn stopped(place: &Place, parity: &str) -> String {
    let mut job = run(place, parity, &[]);
    for _ in 0..2 {
        job.wait_for("committed");
    }
    job.signal("INT");
    job.finish();
    place.generations("committed").pop().expect("a generation")
}

// R27, R28. At any instant: also while images are written, protected or committed, and node 0, whose keeper stands at the top of the tree.
#[test]
fn a_node_that_is_destroyed_is_rebuilt_and_the_job_goes_on() {
    let place = Place::new();
    let mut random = Random::new();
    let mut job = run(&place, "xor", &[]);
    for round in 0..4 {
        job.wait_for("committed");
        std::thread::sleep(Duration::from_millis(random.below(120)));
        let victim = if round == 0 { 0 } else { usize::try_from(random.below(4)).expect("few") };
        destroy(&place, &job, &[victim]);
        job.wait_for(&format!("rebuilding what node {victim} had"));
        job.wait_for("all ranks run again");
    }
    job.wait_for("committed");
    place.let_end();
    verified(&job.finish());
}

// Half of all nodes, which protect each other by copies (`partner`, the default for two).
#[test]
fn one_of_two_nodes_is_destroyed_and_the_job_goes_on() {
    let place = Place::new();
    let mut job = place.run(&["--ckpt-every", "50ms", "--nodes", "2"]);
    for victim in [1, 0] {
        job.wait_for("committed");
        let (ranks, keepers) = processes(&job);
        assert_eq!(ranks.len(), 4);
        signal(keepers[2 * victim], "KILL");
        ranks[2 * victim..2 * victim + 2].iter().for_each(|rank| signal(*rank, "KILL"));
        lose(&place, victim);
        job.wait_for(&format!("rebuilding what node {victim} had"));
        job.wait_for("all ranks run again");
    }
    job.wait_for("committed");
    place.let_end();
    verified(&job.finish());
}

#[test]
fn everything_is_killed_and_one_directory_lost() {
    for parity in ["xor", "partner", "rs:2+2", "rs:3+1"] {
        let place = Place::new();
        let mut job = run(&place, parity, &[]);
        for _ in 0..3 {
            job.wait_for("committed");
        }
        job.signal("KILL");
        job.finish();
        wait_until("the guard has cleaned up", || place.lock_is_free());
        let newest = place.generations("committed").pop().expect("a generation");
        std::fs::remove_dir_all(node(&place, 2)).expect("a directory");
        place.let_end();
        let done = place.restart(&[]).finish();
        done.says(&["rebuilding what node 2 had", &format!("begins from generation {newest}")]);
        verified(&done);
    }
}

#[test]
fn two_nodes_may_be_lost_if_parity_is_for_two() {
    let place = Place::new();
    let newest = stopped(&place, "rs:2+2");
    for number in [0, 3] {
        std::fs::remove_dir_all(node(&place, number)).expect("a directory");
    }
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&["rebuilding what node 0, node 3 had", &format!("begins from generation {newest}")]);
    verified(&done);
}

// R28
#[test]
fn two_nodes_are_too_many_for_one_parity() {
    let place = Place::new();
    let newest = stopped(&place, "xor");
    for number in [1, 2] {
        std::fs::rename(node(&place, number), place.folder.path().join(number.to_string()))
            .expect("a directory");
    }
    let done = place.restart(&[]).finish();
    assert_eq!(done.code, Some(4), "{done:?}");
    done.says(&[
        &format!("generation {newest} is passed over"),
        "2 of 4 nodes that protect each other have lost all their data of it (node 1, node 2), and 1 may",
        "it can be restored if 1 of these come back",
        "no generation is left",
    ]);
    // One of them comes back.
    let _ = std::fs::remove_dir_all(node(&place, 1));
    std::fs::rename(place.folder.path().join("1"), node(&place, 1)).expect("a directory");
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&["rebuilding what node 2 had", &format!("begins from generation {newest}")]);
    verified(&done);
}

/// Some nodes are cut off for good: keeper and ranks are gone, and their directories lie elsewhere.
fn take_away(place: &Place, job: &Running, numbers: &[usize]) {
    let (ranks, keepers) = processes(job);
    for number in numbers {
        signal(keepers[*number], "KILL");
        signal(ranks[*number], "KILL");
    }
    for number in numbers {
        std::fs::rename(node(place, *number), place.folder.path().join(number.to_string()))
            .expect("a directory");
    }
}

fn bring_back(place: &Place, number: usize) {
    let _ = std::fs::remove_dir_all(node(place, number));
    std::fs::rename(place.folder.path().join(number.to_string()), node(place, number)).expect("a directory");
}

// R9, R28: a job that has committed never begins anew by itself, for lost data may come back.
#[test]
fn two_nodes_are_too_many_while_it_runs_too() {
    let place = Place::new();
    let mut job = run(&place, "xor", &[]);
    for _ in 0..3 {
        job.wait_for("committed");
    }
    take_away(&place, &job, &[1, 2]);
    let done = job.finish();
    assert_eq!(done.code, Some(4), "{done:?}");
    let newest = place.generations("committed").pop().expect("a generation");
    done.says(&[
        &format!("generation {newest} is passed over"),
        "it can be restored if 1 of these come back",
        "no generation is left that can be restored, and a job that has committed one does not begin anew",
        &format!("generation {newest} can be restored if its lost images come back; go on with"),
    ]);
    assert!(!done.stderr.contains("from the beginning (attempt"), "{done:?}");
    // Files of the other nodes stay.
    for number in [0, 3] {
        let image = place.file(&newest, &format!("rank-{number:08}.image"));
        let image = image.strip_prefix(place.job()).expect("in the job's directory").to_owned();
        assert!(node(&place, number).join(&image).exists(), "{}", image.display());
    }
    bring_back(&place, 2);
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&["rebuilding what node 1 had", &format!("begins from generation {newest}")]);
    verified(&done);
}

#[test]
fn without_parity_a_lost_node_is_the_end_of_its_generations() {
    let place = Place::new();
    let root = place.folder.path().join("disks").display().to_string();
    let mut job =
        place.run(&["--ckpt-every", "50ms", "--nodes", "4", "--parity", "none", "--node-dir", &root]);
    job.wait_for("no node protects another one");
    job.wait_for("committed");
    job.signal("INT");
    job.finish();
    let disks = std::fs::read_dir(&root).expect("a folder").next().expect("a job").expect("an entry").path();
    std::fs::remove_dir_all(disks.join("3")).expect("a directory");
    let done = place.restart(&[]).finish();
    assert_eq!(done.code, Some(4), "{done:?}");
    done.says(&["is passed over: node 3: ", "no generation is left"]);
}

#[test]
fn damaged_images_are_mended_before_they_are_restored() {
    let place = Place::new();
    let newest = stopped(&place, "xor");
    let (life, epoch) = newest.split_once('/').expect("LIFE/EPOCH");
    let (counter, nonce) = life.split_once('.').expect("COUNTER.NONCE");
    let folder = format!("life-{:0>8}-{nonce}/epoch-{:0>8}", counter, epoch);
    let image = node(&place, 1).join(folder).join("rank-00000001.image");
    let length = std::fs::metadata(&image).expect("an image").len();
    flip(&image, usize::try_from(length / 2).expect("small"));
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&["rebuilding what node 1 had", "1 damaged page", &format!("begins from generation {newest}")]);
    verified(&done);
}

// The launcher has the job file, and writes it anew.
#[test]
fn a_damaged_job_file_of_a_node_costs_nothing() {
    for damage in [|path: &Path| flip(path, 40), |path: &Path| std::fs::write(path, b"").expect("a file")] {
        let place = Place::new();
        let mut job = run(&place, "xor", &[]);
        for _ in 0..2 {
            job.wait_for("committed");
        }
        let own = std::fs::read(node(&place, 2).join("job")).expect("a file");
        damage(&node(&place, 2).join("job"));
        signal(job.ranks()[1], "KILL");
        let begins = job.wait_for("begins from");
        assert!(begins.contains("begins from generation"), "{begins}");
        job.wait_for("committed");
        job.signal("INT");
        let done = job.finish();
        assert!(!done.stderr.contains("passed over"), "{done:?}");
        assert!(std::fs::read(node(&place, 2).join("job")).expect("a file") == own);
        damage(&node(&place, 2).join("job"));
        place.let_end();
        let newest = place.generations("committed").pop().expect("a generation");
        let done = place.restart(&[]).finish();
        done.says(&[&format!("begins from generation {newest}")]);
        verified(&done);
    }
}

// R27: nodes have copies of the launcher's records, made after it had written them.
#[test]
fn damaged_records_of_the_launcher_are_written_anew_from_the_nodes() {
    let flipped = |path: &Path| flip(path, 40);
    let removed = |path: &Path| std::fs::remove_file(path).expect("a file");
    let damages: [&dyn Fn(&Path); 4] = [&flipped, &flipped, &removed, &flipped];
    for (name, damage) in ["commit", "manifest", "commit", "decision"].into_iter().zip(damages) {
        let place = Place::new();
        let newest = stopped(&place, "xor");
        let counter: u32 =
            newest.split('.').next().and_then(|counter| counter.parse().ok()).expect("a counter");
        let path = match name {
            "decision" => place.job().join(format!("decision-{counter:08}")),
            name => place.file(&newest, name),
        };
        let before = std::fs::read(&path).expect("a record");
        damage(&path);
        let repaired = done(&mut stillwire(&["repair", &place.job_text()]));
        assert_eq!(repaired.code, Some(0), "{name}: {repaired:?}");
        assert!(repaired.stdout.contains(&format!("generation {newest} is whole")), "{name}: {repaired:?}");
        assert!(std::fs::read(&path).expect("a record") == before, "{name}: {repaired:?}");
        damage(&path);
        place.let_end();
        let done = place.restart(&[]).finish();
        done.says(&["written anew from the nodes' copies", &format!("begins from generation {newest}")]);
        verified(&done);
    }
}

// Nobody has a whole one: it is named, and the one before it is had.
#[test]
fn a_record_that_is_damaged_everywhere_is_named() {
    let place = Place::new();
    let kept = place.stopped(4, 3);
    let commit = place.file(&kept[2], "commit");
    let relative = commit.strip_prefix(place.job()).expect("in the job's directory").to_owned();
    flip(&commit, 40);
    for number in 0..NODES {
        flip(&node(&place, number).join(&relative), 40);
    }
    let repaired = done(&mut stillwire(&["repair", &place.job_text()]));
    assert_eq!(repaired.code, Some(3), "{repaired:?}");
    repaired.says(&[&format!("generation {} is lost: ", kept[2])]);
}

#[test]
fn a_node_whose_directory_is_gone_costs_checkpoints_until_it_is_rebuilt() {
    let place = Place::new();
    let mut job = run(&place, "xor", &[]);
    job.wait_for("committed");
    lose(&place, 1);
    job.wait_for("was abandoned");
    // The program runs on; the next life begins with a directory that was made anew.
    signal(keepers(job.pid())[2], "KILL");
    job.wait_for("rebuilding what");
    job.wait_for("all ranks run again");
    job.wait_for("committed");
    place.let_end();
    verified(&job.finish());
}

/// Stops the keeper of node 2 in a job that has committed something.
fn with_a_stopped_keeper(place: &Place) -> (Running, u32) {
    let mut job = run(place, "xor", &[]);
    for _ in 0..2 {
        job.wait_for("committed");
    }
    let (_, keepers) = processes(&job);
    signal(keepers[2], "STOP");
    job.wait_for("node 2 is gone or cut off; rolling back");
    (job, keepers[2])
}

#[test]
fn a_node_that_stands_still_is_named_and_the_job_goes_on_with_it() {
    let place = Place::new();
    let (mut job, keeper) = with_a_stopped_keeper(&place);
    let newest = place.generations("committed").pop().expect("a generation");
    signal(keeper, "CONT");
    job.wait_for(&format!("begins from generation {newest}"));
    job.wait_for("all ranks run again");
    job.wait_for("committed");
    place.let_end();
    verified(&job.finish());
}

// Something of the old life may still run there (R9), so nobody begins a new one before its guard has ended it (R30).
#[test]
fn a_node_that_stands_still_for_long_gets_another_keeper() {
    let place = Place::new();
    let (mut job, keeper) = with_a_stopped_keeper(&place);
    let newest = place.generations("committed").pop().expect("a generation");
    job.wait_for(&format!("begins from generation {newest}"));
    assert!(!crate::support::runs(keeper), "its guard has ended it");
    job.wait_for("all ranks run again");
    job.wait_for("committed");
    place.let_end();
    verified(&job.finish());
}

// Nodes that are too slow to protect a generation in time cost that one; the program runs on.
#[test]
fn links_that_crawl_cost_checkpoints() {
    let place = Place::new();
    let mut job = run(&place, "xor", &["--ckpt-timeout", "1s", "--encode-budget", "link=100"]);
    job.wait_for("protecting generation");
    job.wait_for("was abandoned");
    place.let_end();
    let done = job.finish();
    done.says(&["no answer in 1 s"]);
    assert!(!done.stderr.contains("rolling back"), "{done:?}");
    verified(&done);
}

#[test]
fn too_few_nodes_for_a_scheme_are_refused() {
    for (parity, nodes, words) in [
        ("rs:4+2", "4", "rs:4+2 needs groups of at least 6 nodes, the job has 4"),
        ("xor", "1", "xor needs groups of at least 2 nodes, the job has 1"),
    ] {
        let command = ["run", "-n", "4", "--nodes", nodes, "--parity", parity, "--", "true"];
        let done = done(&mut stillwire(&command));
        assert_eq!(done.code, Some(2), "{done:?}");
        done.says(&[words]);
    }
    let done = done(&mut stillwire(&["run", "-n", "4", "--parity", "raid", "--", "true"]));
    assert_eq!(done.code, Some(2), "{done:?}");
    done.says(&["expected none, partner, xor, or rs:K+M"]);
}

#[test]
fn what_is_lost_is_rebuilt_on_demand() {
    let place = Place::new();
    let newest = stopped(&place, "xor");
    std::fs::remove_dir_all(node(&place, 2)).expect("a directory");
    let repair = || done(&mut stillwire(&["repair", "--json", &place.job_text()]));
    let first = repair();
    assert_eq!(first.code, Some(0), "{first:?}");
    let report = first.json();
    assert_eq!(
        (&report["generation"], &report["protected"]),
        (&newest.as_str().into(), &true.into()),
        "{report}"
    );
    // All that are kept, the newest first.
    let mut kept = place.generations("committed");
    kept.reverse();
    let rebuilt = report["rebuilt"].as_array().expect("a list");
    let of = |key: &str| rebuilt.iter().map(|of| of[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("generation"), kept, "{report}");
    assert!(of("node").iter().all(|node| node == "node 2") && of("files").iter().all(|files| files == 1));
    let verified = done(&mut stillwire(&["verify", &place.job_text(), "--generation", &newest]));
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let second = repair();
    assert_eq!(
        (second.code, second.json()["rebuilt"].as_array().map(Vec::len)),
        (Some(0), Some(0)),
        "{second:?}"
    );
    for number in [0, 1] {
        std::fs::remove_dir_all(node(&place, number)).expect("a directory");
    }
    let third = repair();
    assert_eq!(third.code, Some(3), "{third:?}");
    assert!(third.json()["generation"].is_null() && !third.json()["lost"][0]["why"].is_null(), "{third:?}");
}

// The spare has the lost host's number from then on, and its images.
#[test]
fn a_spare_takes_the_place_of_a_lost_host() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    let (shell, disks) = (place.folder.path().join("shell"), place.folder.path().join("disks"));
    std::fs::write(&shell, "#!/bin/sh\nshift; exec \"$@\"\n").expect("a file");
    std::fs::set_permissions(&shell, std::fs::Permissions::from_mode(0o700)).expect("its owner's");
    let (shell, root) = (shell.display().to_string(), disks.display().to_string());
    let hosts = "a:2@127.0.0.1,b:1@127.0.0.2,c:1@127.0.0.3";
    let mut job = place.run(&[
        "--ckpt-every",
        "50ms",
        "--parity",
        "xor",
        "--node-dir",
        &root,
        "--hosts",
        hosts,
        "--remote-shell",
        &shell,
    ]);
    // They are one machine.
    job.wait_for("warning: a, b, c share the disk on which each is to have a directory of its own");
    for _ in 0..2 {
        job.wait_for("committed");
    }
    job.signal("INT");
    job.finish();
    let newest = place.generations("committed").pop().expect("a generation");
    let of_job =
        std::fs::read_dir(&disks).expect("a folder").next().expect("a job").expect("an entry").path();
    std::fs::remove_dir_all(of_job.join("1")).expect("a directory");
    place.let_end();
    let hosts = "c@127.0.0.3,spare@127.0.0.4,a@127.0.0.1";
    let done = place.restart(&["--hosts", hosts]).finish();
    done.says(&[
        "spare takes the place of b",
        "rebuilding what spare had",
        &format!("begins from generation {newest}"),
    ]);
    verified(&done);
}

// The groups of nodes are decided once: also where a spare's name comes elsewhere in the alphabet, and where a host that is left has two nodes.
#[test]
fn partners_stay_partners_when_another_host_takes_a_place() {
    let place = Place::new();
    let shell = place.remote_shell("shift; exec \"$@\"");
    let disks = place.folder.path().join("disks");
    let root = disks.display().to_string();
    let hosts = |names: [&str; NODES]| {
        let all = (1..).zip(names).map(|(number, name)| format!("{name}@127.0.0.{number}"));
        all.collect::<Vec<_>>().join(",")
    };
    let began = hosts(["a", "b", "c", "d"]);
    let options = ["--ckpt-every", "50ms", "--parity", "partner", "--node-dir", &root];
    let mut job = place.run(&[&options[..], &["--hosts", &began, "--remote-shell", &shell]].concat());
    let of_job = || {
        let jobs = std::fs::read_dir(&disks).expect("a folder");
        jobs.map(|entry| entry.expect("an entry").path()).next().expect("a job")
    };
    for (lost, name, places) in [(1, "spare", ["a", "spare", "c", "d"]), (3, "a", ["a", "spare", "c", "a"])] {
        for _ in 0..2 {
            job.wait_for("committed");
        }
        job.signal("INT");
        job.finish();
        let newest = place.generations("committed").pop().expect("a generation");
        std::fs::remove_dir_all(of_job().join(lost.to_string())).expect("a directory");
        job = place.restart(&["--hosts", &hosts(places)]);
        job.wait_for(&format!("rebuilding what {name} had"));
        job.wait_for(&format!("begins from generation {newest}"));
    }
    job.wait_for("committed");
    place.let_end();
    verified(&job.finish());
}

// The job's own directory is on one disk; each node has a copy of its records.
#[test]
fn a_node_s_directory_stands_for_the_job_s_own() {
    let place = Place::new();
    let newest = stopped(&place, "xor");
    for entry in std::fs::read_dir(place.job()).expect("a directory") {
        let path = entry.expect("an entry").path();
        match (path.file_name().and_then(|name| name.to_str()), path.is_dir()) {
            (Some("nodes"), _) => {}
            (_, true) => std::fs::remove_dir_all(path).expect("a directory"),
            (_, false) => std::fs::remove_file(path).expect("a file"),
        }
    }
    place.let_end();
    let from = node(&place, 2).display().to_string();
    let done = Running::start(stillwire(&["restart", &from])).finish();
    done.says(&[&format!("begins from generation {newest}")]);
    verified(&done);
}

// The life waits only for the restored generation. When the rest is whole, too, another node may be lost, and an older generation be restored.
#[test]
fn older_generations_are_rebuilt_while_the_job_runs() {
    let place = Place::new();
    let kept = place.stopped(4, 3);
    std::fs::remove_dir_all(node(&place, 2)).expect("a directory");
    let mut job = place.restart(&[]);
    job.wait_for(&format!("generation {}: rebuilding what node 2 had", kept[2]));
    // The first older one may be begun before all ranks have reported that they run.
    job.wait_for("begins from generation");
    for older in [&kept[1], &kept[0]] {
        job.wait_for(&format!("generation {older}, which is kept: rebuilding what node 2 had"));
        job.wait_for(&format!("generation {older} is whole on all nodes again"));
    }
    // Killed, so that nobody tidies up.
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    for generation in &kept {
        let verified = done(&mut stillwire(&["verify", &place.job_text(), "--generation", generation]));
        assert_eq!(verified.code, Some(0), "{verified:?}");
    }
    std::fs::remove_dir_all(node(&place, 0)).expect("a directory");
    place.let_end();
    let done = place.restart(&["--generation", &kept[0]]).finish();
    done.says(&["rebuilding what node 0 had", &format!("begins from generation {}", kept[0])]);
    verified(&done);
}

// One is lost on two nodes: it is named, and costs the others nothing.
#[test]
fn a_repair_rebuilds_all_that_are_kept_or_the_one_that_is_named() {
    let place = Place::new();
    let kept = place.stopped(4, 3);
    std::fs::remove_dir_all(node(&place, 2)).expect("a directory");
    let image = place.file(&kept[1], "rank-00000001.image");
    let image = image.strip_prefix(place.job()).expect("in the job's directory");
    std::fs::remove_file(node(&place, 1).join(image)).expect("an image");
    let repair = |options: &[&str]| {
        let job = place.job_text();
        done(&mut stillwire(&[&["repair", "--json", &job][..], options].concat()))
    };
    let found = |report: &serde_json::Value, key: &str| -> Vec<(String, bool)> {
        let kept = report["kept"].as_array().expect("a list").iter();
        let one = |of: &serde_json::Value| (of["generation"].as_str().map(str::to_owned), of[key].as_bool());
        kept.map(one).map(|(name, is_so)| (name.expect("a name"), is_so.expect("yes or no"))).collect()
    };
    let named = repair(&["--generation", &kept[0]]);
    assert_eq!(named.code, Some(0), "{named:?}");
    assert_eq!(found(&named.json(), "protected"), [(kept[0].clone(), true)]);
    let all = repair(&[]);
    assert_eq!(all.code, Some(3), "{all:?}");
    let report = all.json();
    let expected = [(kept[2].clone(), true), (kept[1].clone(), false), (kept[0].clone(), true)];
    assert_eq!(found(&report, "protected"), expected, "{report}");
    assert_eq!(found(&report, "restorable"), expected, "{report}");
    let lost = &report["lost"][0];
    let why = lost["why"].as_str().expect("words");
    // Parity of stripes behind the end of node 1's image could be computed, if that is the shortest: node 2 then has a part of it.
    let places = ["(all of it on node 2, a part of it on node 1)", "(a part of it on node 1, node 2)"];
    assert!(
        lost["generation"] == kept[1].as_str() && places.iter().any(|places| why.contains(places)),
        "{report}"
    );
    assert_eq!(report["rebuilt"].as_array().map(Vec::len), Some(1), "the rest is there already: {report}");
}

// One group has lost more than it may; the data of the other group's nodes is rebuilt all the same.
#[test]
fn a_repair_rebuilds_what_a_group_has_lost_though_another_one_is_beyond_repair() {
    let place = Place::new();
    // Nodes 0 and 2 have each other, and so have 1 and 3.
    let newest = stopped(&place, "partner");
    for number in [0, 2] {
        std::fs::rename(node(&place, number), place.folder.path().join(number.to_string()))
            .expect("a directory");
    }
    std::fs::remove_dir_all(node(&place, 1)).expect("a directory");
    let repair = |json: &[&str]| done(&mut stillwire(&[&["repair", &place.job_text()], json].concat()));
    let first = repair(&[]);
    assert_eq!(first.code, Some(3), "{first:?}");
    first.says(&[
        &format!("generation {newest} is lost: 2 of 2 nodes that protect each other have lost all their data of it (node 0, node 2), and 1 may"),
        &format!("generation {newest}: rebuilding what node 1 had"),
    ]);
    let words = format!("generation {newest}: node 1 has what it had again, rebuilt from");
    assert!(first.stdout.contains(&words), "{first:?}");
    let again = repair(&["--json"]);
    assert_eq!(again.code, Some(3), "{again:?}");
    assert_eq!(again.json()["rebuilt"].as_array().map(Vec::len), Some(0), "it is there: {again:?}");
    // One of the others comes back, and everything can be rebuilt.
    bring_back(&place, 2);
    place.let_end();
    let done = place.restart(&[]).finish();
    done.says(&["rebuilding what node 0 had", &format!("begins from generation {newest}")]);
    verified(&done);
}
