//! Copies of generations outside the nodes: a job goes on from one when its directory is gone, and a damaged copy costs the job nothing.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::threads::Still;
use crate::support::{Done, Place, Running, done, flip, stillwire, verified, wait_until, write_key};
use serde_json::Value;

/// The shared directory.
fn shared(place: &Place) -> String {
    let path = place.folder.path().join("shared");
    fs::create_dir_all(&path).expect("a directory can be made");
    path.display().to_string()
}

fn key_file(place: &Place, name: &str, digits: &str) -> String {
    let path = place.folder.path().join(name);
    write_key(&path, &digits.repeat(32));
    path.display().to_string()
}

/// Runs with these options until two copies are there; then everything is killed, and the job's directory lost.
fn lost_with_copies(place: &Place, options: &[&str]) {
    killed_with_copies(place, options);
    fs::remove_dir_all(place.job()).expect("the directory can be removed");
}

fn killed_with_copies(place: &Place, options: &[&str]) {
    let mut all = vec!["--ckpt-every", "60ms", "--flush-every", "2", "--flush-keep", "2"];
    all.extend(options);
    let mut job = place.run(&all);
    job.wait_for(" copied (");
    job.wait_for(" copied (");
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || place.lock_is_free());
}

fn listed(place: &str) -> Value {
    done(&mut stillwire(&["ls", "--json", place])).json()["jobs"][0].clone()
}

fn generations(of: &Value) -> Vec<String> {
    let copies = of["copies"].as_array().expect("a list").iter();
    copies.map(|copy| copy["generation"].as_str().expect("a name").to_owned()).collect()
}

/// Goes on from a copy, and lets the job end.
fn go_on(place: &Place, options: &[&str], from: &str) -> Done {
    let mut job = place.restart(options);
    job.wait_for(&format!("generation {from} brought from"));
    job.wait_for(&format!("begins from generation {from}"));
    job.wait_for("all ranks run");
    place.let_end();
    let done = job.finish();
    verified(&done);
    done
}

#[test]
fn a_job_whose_directory_is_gone_goes_on_from_a_copy_and_is_copied_again() {
    let place = Place::new();
    let shared = shared(&place);
    lost_with_copies(&place, &["--flush-to", &shared]);
    let before = listed(&shared);
    let copies = generations(&before);
    assert!(copies.len() == 2 && copies.iter().all(|name| name.starts_with("1.")), "{before}");
    for copy in &copies {
        let epoch: u32 = copy.split('/').nth(1).unwrap().parse().unwrap();
        assert_eq!(epoch % 2, 0, "every second one: {before}");
    }
    let verified = done(&mut stillwire(&["verify", &shared]));
    assert!(
        verified.code == Some(0) && verified.stdout.contains("every byte is as it was copied"),
        "{verified:?}"
    );
    let mut job = place.restart(&["--from", &shared, "--trust"]);
    job.wait_for(&format!("begins from generation {}", copies[1]));
    // It goes on being copied: its file has the setting.
    job.wait_for("generation 2.");
    job.wait_for(" copied (");
    place.let_end();
    crate::support::verified(&job.finish());
    let after = generations(&listed(&shared));
    assert!(after.len() >= 2 && after[after.len() - 1].starts_with("2."), "{after:?}");
    // The newer one depends on the older one, which is good as long as it is there.
    let of_newer = &before["copies"][1];
    assert_eq!(of_newer["upon"].as_str(), Some(&copies[0][..]), "{before}");
    assert!(of_newer["stored_bytes"].as_u64() < of_newer["bytes"].as_u64(), "{before}");
    let older = &["restart", &place.job_text(), "--from", &shared, "--trust", "--generation", &copies[0]];
    let older = done(&mut stillwire(older));
    if after.contains(&copies[0]) {
        older.says(&["is newer than the copy of", &format!("generation {} brought from", copies[0])]);
    } else {
        older.says(&["there is no such copy"]);
    }
}

#[test]
fn an_older_copy_can_be_chosen_and_a_file_url_is_a_place() {
    let place = Place::new();
    let shared = shared(&place);
    lost_with_copies(&place, &["--flush-to", &format!("file://{shared}")]);
    let before = listed(&shared);
    let copies = generations(&before);
    let of_job = format!("{shared}/{}", before["job"].as_str().unwrap());
    go_on(&place, &["--from", &of_job, "--trust", "--generation", &copies[0]], &copies[0]);
    // A generation of which there is no copy.
    let other = Place::new();
    let brought =
        done(&mut stillwire(&["restart", &other.job_text(), "--from", &shared, "--generation", "77"]));
    brought.says(&["there is no such copy", "stillwire ls"]);
    assert_eq!(brought.code, Some(1));
}

#[test]
fn one_copy_is_verified_alone_and_one_that_is_not_there_is_no_success() {
    let place = Place::new();
    let shared = shared(&place);
    lost_with_copies(&place, &["--flush-to", &shared]);
    let before = listed(&shared);
    let copies = generations(&before);
    for copy in &copies {
        let one = done(&mut stillwire(&["verify", "--json", &shared, "--generation", copy]));
        let of = &one.json()["jobs"][0];
        assert_eq!((one.code, generations(of)), (Some(0), vec![copy.clone()]), "{one:?}");
        // Files of the other copy do not count as leftovers; those of a third may.
        assert_eq!(of["leftovers"], before["leftovers"], "{of}");
    }
    for missing in ["77", "9.00000000deadbeef/3"] {
        let none = done(&mut stillwire(&["verify", &shared, "--generation", missing]));
        none.says(&["there is no such copy", "stillwire ls"]);
        assert_eq!(none.code, Some(1), "{none:?}");
    }
    // An unreadable record is reported for its own generation, and for every generation that depends on it.
    let (first, last) = (0, copies.len() - 1);
    for (damaged, codes) in [(last, [0, 3]), (first, [3, 3])] {
        let record = blocks_of(&shared, &before, damaged, 0).with_file_name("copied");
        flip(&record, 30);
        for (copy, code) in [(first, codes[0]), (last, codes[1])] {
            let one = done(&mut stillwire(&["verify", &shared, "--generation", &copies[copy]]));
            assert_eq!(one.code, Some(code), "{one:?}");
        }
        flip(&record, 30);
    }
}

#[test]
fn copies_that_are_damaged_or_encrypted_are_reported_and_not_restored() {
    let place = Place::new();
    let shared = shared(&place);
    let (key, other) = (key_file(&place, "key", "0f"), key_file(&place, "other", "1e"));
    lost_with_copies(&place, &["--flush-to", &shared, "--key-file", &key]);
    let before = listed(&shared);
    let newest = generations(&before).pop().unwrap();
    assert_eq!(before["copies"][0]["encrypted"], true);
    for (option, words) in [(vec![], "and none was given"), (vec!["--key-file", &other], "another key")] {
        let mut restart = vec!["restart", "--from", &shared];
        let path = place.job_text();
        restart.push(&path);
        restart.extend(&option);
        let refused = done(&mut stillwire(&restart));
        refused.says(&["is encrypted with", words]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let mut verify = vec!["verify", &shared];
        verify.extend(&option);
        let checked = done(&mut stillwire(&verify));
        assert!(checked.code == Some(3) && checked.stdout.contains(words), "{checked:?}");
    }
    assert_eq!(done(&mut stillwire(&["verify", &shared, "--key-file", &key])).code, Some(0));
    let (named, of_rank) = (newest.clone(), blocks_of(&shared, &before, 0, 2));
    let (path, name) = (place.job_text(), of_rank.display().to_string());
    flip(&of_rank, 100);
    let checked = done(&mut stillwire(&["verify", &shared, "--key-file", &key]));
    assert!(checked.code == Some(3) && checked.stdout.contains(&name), "{checked:?}");
    assert!(checked.stdout.contains("packet 0 has the checksum"), "{checked:?}");
    // All that depends on it is lost with it.
    let (first, hangs) = (generations(&before).remove(0), "it builds upon the copy of generation");
    assert!(checked.stdout.contains(&format!("{hangs} {first}: ")), "{checked:?}");
    assert!(checked.stdout.contains("remove its folder"), "{checked:?}");
    let restart = ["restart", &path, "--from", &shared, "--key-file", &key];
    let refused = done(&mut stillwire(&[&restart[..], &["--generation", &named]].concat()));
    refused.says(&[&name, hangs, "packet 0", "it is damaged"]);
    assert_eq!(refused.code, Some(1));
    let refused = done(&mut stillwire(&restart));
    refused.says(&[&name, "packet 0", "it is damaged", "is taken, which is older"]);
    assert_eq!(refused.code, Some(1));
    flip(&of_rank, 100);
    // Without the part that the newest one alone has, an older one is taken.
    let of_newest = blocks_of(&shared, &before, generations(&before).len() - 1, 2);
    let older = generations(&before).into_iter().rev().nth(1).unwrap();
    let bytes = fs::read(&of_newest).unwrap();
    fs::remove_file(&of_newest).unwrap();
    let shown = done(&mut stillwire(&["ls", &shared]));
    assert!(shown.stdout.contains("has lost"), "{shown:?}");
    let other = Place::new();
    let mut job = other.restart(&["--from", &shared, "--key-file", &key]);
    job.wait_for(&format!("the copy of generation {newest} cannot be used"));
    job.wait_for(&format!("begins from generation {older}"));
    job.signal("KILL");
    job.finish();
    fs::write(&of_newest, bytes).unwrap();
    // The files fetched before are there; with the original bytes the rest follows.
    go_on(&place, &["--from", &shared, "--key-file", &key], &newest);
    // From now on the key is asked for, so that nothing becomes readable by an oversight.
    // The one that was brought may have been collected since.
    let last = place.generations("committed").pop().expect("one that the job has kept");
    let forgotten = done(&mut stillwire(&["restart", &place.job_text(), "--generation", &last]));
    forgotten.says(&["copies of this job", "are encrypted", "--key-file"]);
}

// The copy says which program runs, with which environment, and how other hosts are reached.
#[test]
fn a_copy_without_a_key_is_shown_and_runs_only_with_consent() {
    let place = Place::new();
    let shared = shared(&place);
    lost_with_copies(&place, &["--flush-to", &shared, "--env", "COLOUR=a \u{1b}[31mred"]);
    let newest = generations(&listed(&shared)).pop().unwrap();
    let refused = done(&mut stillwire(&["restart", &place.job_text(), "--from", &shared]));
    refused.says(&[
        &format!("no key vouches for the copy of generation {newest} at {shared}"),
        "__demo-rank --class S",
        "\"COLOUR=a \\u{1b}[31mred\"",
        "of 4 ranks, code included",
        "add --trust",
    ]);
    assert!(refused.code == Some(1) && !place.job().exists(), "{refused:?}");
    go_on(&place, &["--from", &shared, "--trust"], &newest);
}

#[test]
fn a_signed_copy_runs_with_its_key_and_without_questions() {
    let place = Place::new();
    let shared = shared(&place);
    let (key, other) = (key_file(&place, "key", "0f"), key_file(&place, "other", "1e"));
    lost_with_copies(&place, &["--flush-to", &shared, "--sign", &key]);
    let before = listed(&shared);
    let newest = generations(&before).pop().unwrap();
    assert_eq!(
        (&before["copies"][0]["signed"], &before["copies"][0]["encrypted"]),
        (&true.into(), &false.into())
    );
    for options in [vec![], vec!["--sign", &key], vec!["--key-file", &key]] {
        let verified = done(&mut stillwire(&[&["verify", &shared], &options[..]].concat()));
        assert_eq!(verified.code, Some(0), "{verified:?}");
    }
    let path = place.job_text();
    let restart = ["restart", &path, "--from", &shared];
    let others = done(&mut stillwire(&[&restart[..], &["--sign", &other]].concat()));
    others.says(&["is signed with another key than the one that was given"]);
    // Somebody who can write there, and has no key, takes the signature away.
    let record = blocks_of(&shared, &before, 0, 2).with_file_name("copied");
    let own = fs::read(&record).unwrap();
    let mut forged = store::record::Copied::parse(&own).unwrap();
    forged.signature = None;
    fs::write(&record, forged.emit()).unwrap();
    let name = record.display().to_string();
    let checked = done(&mut stillwire(&["verify", &shared, "--sign", &key]));
    assert!(checked.code == Some(3) && checked.stdout.contains(&name), "{checked:?}");
    let refused = done(&mut stillwire(&[&restart[..], &["--sign", &key]].concat()));
    refused.says(&[&name, "is not signed with the key that was given"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    fs::write(&record, own).unwrap();
    go_on(&place, &["--from", &shared, "--sign", &key], &newest);
    // From now on the key is asked for, so that no copy is written that nobody vouches for.
    let last = place.generations("committed").pop().expect("one that the job has kept");
    for options in [vec![], vec!["--sign", &other]] {
        let arguments = [&["restart", &path, "--generation", &last], &options[..]].concat();
        done(&mut stillwire(&arguments)).says(&["copies of this job", "are signed", "with --sign"]);
    }
}

#[test]
fn a_key_that_signs_nothing_is_an_error() {
    let place = Place::new();
    let key = key_file(&place, "key", "0f");
    let mut run = stillwire(&["run", "-n", "1", "--sign", &key, "--", "true"]);
    done(&mut run).says(&["--sign signs copies, and none are written or read here"]);
    let shared = shared(&place);
    // The other key would encrypt neither images nor copies.
    let both = ["run", "-n", "1", "--flush-to", &shared, "--sign", &key, "--key-file", &key, "--", "true"];
    let refused = done(&mut stillwire(&both));
    refused.says(&["--key-file is the key of encrypted images and of copies"]);
    assert_eq!(refused.code, Some(2));
}

/// The blocks of a rank in a copy.
fn blocks_of(shared: &str, copies: &Value, copy: usize, rank: u32) -> PathBuf {
    let name = copies["copies"][copy]["generation"].as_str().unwrap();
    let (life, epoch) = name.split_once('/').unwrap();
    let (counter, nonce) = life.split_once('.').unwrap();
    let folder = format!(
        "life-{:08}-{nonce}/epoch-{:08}",
        counter.parse::<u32>().unwrap(),
        epoch.parse::<u32>().unwrap()
    );
    let job = Path::new(shared).join(copies["job"].as_str().unwrap());
    job.join(folder).join(format!("rank-{rank:08}.blocks"))
}

#[test]
fn what_is_wrong_with_the_place_is_reported_and_costs_the_job_nothing() {
    let missing = Place::new();
    let nowhere = missing.folder.path().join("nowhere").display().to_string();
    let refused = missing.run(&["--flush-to", &nowhere]).finish();
    refused.says(&[&nowhere, "no such file or directory"]);
    assert!(refused.code == Some(1) && !missing.job().exists(), "{refused:?}");

    let place = Place::new();
    let shared = shared(&place);
    let mut job = place.run(&["--ckpt-every", "60ms", "--flush-to", &shared]);
    job.wait_for(" copied (");
    // As if it had been unmounted: a file stands where it was.
    let hidden = place.folder.path().join("hidden");
    fs::rename(&shared, &hidden).unwrap();
    fs::write(&shared, b"").unwrap();
    let reported = job.wait_for("was abandoned");
    assert!(reported.contains("the job goes on") && reported.contains(&shared), "{reported}");
    job.wait_for("committed");
    fs::remove_file(&shared).unwrap();
    fs::rename(&hidden, &shared).unwrap();
    job.wait_for(" copied (");
    place.let_end();
    let ended = job.finish();
    verified(&ended);
    assert!(done(&mut stillwire(&["verify", &shared])).code == Some(0), "{ended:?}");
}

/// A store that takes requests and never answers.
fn silent_store() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    (listener, address)
}

#[test]
fn a_job_s_end_waits_for_a_copy_until_a_person_asks_twice() {
    let place = Place::new();
    let (_listener, address) = silent_store();
    let mut command = stillwire(&["run", "-n", "4", "--ckpt-dir", &place.job_text(), "--ckpt-every", "60ms"]);
    command.args(["--flush-to", "s3://bucket/prefix", "--"]).args(place.sort());
    command.env("AWS_ENDPOINT_URL", address).env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
    let mut job = Running::start(command);
    // The third one is not waited for by the second, nor that by the first.
    job.wait_for("is not copied: an older copy is still being written");
    place.let_end();
    job.wait_for("waiting for the copy of generation");
    // It does wait.
    std::thread::sleep(Duration::from_millis(300));
    job.signal("INT");
    job.wait_for("once more");
    job.signal("INT");
    let words = job.wait_for("is given up: it was asked for");
    for word in ["0 B of ", "does not count", "this run has made no copy", "stays where it is"] {
        assert!(words.contains(word), "{word} is missing: {words}");
    }
    // The store still does not answer, and nobody waits for it.
    job.wait_for("has waited for s3://bucket/prefix for 2s, and is left behind");
    verified(&job.finish());
}

// As with a server that is gone: the thread that writes copies waits in a system call.
#[test]
fn a_copy_that_hangs_is_given_up_and_the_next_one_follows_when_its_place_answers() {
    let place = Place::new();
    let shared = shared(&place);
    let options =
        ["--ckpt-every", "60ms", "--flush-to", &shared, "--flush-patience", "3s", "--flush-keep", "64"];
    let mut job = place.run(&options);
    job.wait_for(" copied (");
    let still = Still::new(job.pid(), "stillwire-copies");
    let given_up = job.wait_for("it has made no progress for 3s, as if its place did not answer");
    assert!(given_up.contains("the next one begins when that answers"), "{given_up}");
    drop(still);
    job.wait_for(" copied (");
    // The end of the job does not wait for one that hangs, either.
    let still = Still::new(job.pid(), "stillwire-copies");
    job.wait_for("is not copied: an older copy is still being written");
    place.let_end();
    job.wait_for("is given up: it makes no progress");
    job.wait_for("is left behind there");
    drop(still);
    verified(&job.finish());
    assert_eq!(done(&mut stillwire(&["verify", &shared])).code, Some(0));
}

#[test]
fn a_store_that_is_not_there_or_is_not_named_rightly_is_reported() {
    let place = Place::new();
    let address = silent_store().1;
    let mut command = stillwire(&["ls", "s3://bucket/prefix"]);
    command.env("AWS_ENDPOINT_URL", &address).env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
    let refused = done(&mut command);
    refused.says(&["cannot list s3://bucket/prefix", "check AWS_ENDPOINT_URL"]);
    assert_eq!(refused.code, Some(1));
    for wrong in ["gs://bucket", "s3://", "file://host/path"] {
        let refused = place.run(&["--flush-to", wrong]).finish();
        assert!(refused.code == Some(2) && refused.stderr.contains("expected"), "{refused:?}");
    }
    for command in ["ls", "verify"] {
        let refused = done(&mut stillwire(&[command, "gs://bucket"]));
        refused.says(&["expected a directory", "s3://BUCKET/PREFIX"]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
    }
    let key = key_file(&place, "key", "0f");
    let refused = place.run(&["--key-file", &key]).finish();
    refused.says(&["--key-file", "--flush-to"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let refused = place.run(&["--flush-every", "3"]).finish();
    assert!(refused.code == Some(2) && refused.stderr.contains("--flush-to"), "{refused:?}");
    assert!(!Path::new(&place.job()).exists());
}

#[test]
fn nodes_with_directories_of_their_own_are_copied_and_brought_back() {
    let place = Place::new();
    let shared = shared(&place);
    let own = place.folder.path().join("own").display().to_string();
    killed_with_copies(&place, &["--nodes", "2", "--node-dir", &own, "--flush-to", &shared]);
    fs::remove_dir_all(&own).unwrap();
    let newest = generations(&listed(&shared)).pop().unwrap();
    let lost = place.restart(&[]).finish();
    lost.says(&[
        "no generation is left",
        &format!("`stillwire restart {} --from {shared}`", place.job_text()),
    ]);
    fs::remove_dir_all(place.job()).unwrap();
    go_on(&place, &["--from", &shared, "--trust"], &newest);
    assert_eq!(done(&mut stillwire(&["verify", &shared])).code, Some(0));
    // A node's directory that cannot be read is reported as unreadable, and only an absent one as missing.
    let of_job = fs::read_dir(&own).unwrap().next().unwrap().unwrap().path();
    fs::remove_dir_all(of_job.join("1")).unwrap();
    let missing = done(&mut stillwire(&["verify", &place.job_text()]));
    assert!(
        missing.code == Some(3) && missing.stdout.contains("is missing; `stillwire repair`"),
        "{missing:?}"
    );
    fs::write(of_job.join("1"), b"").unwrap();
    let unread = done(&mut stillwire(&["verify", &place.job_text()]));
    assert!(unread.code == Some(3) && unread.stdout.contains("a file where a directory was"), "{unread:?}");
}

#[test]
fn unsigned_copies_in_a_place_that_others_can_write_to_are_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let place = Place::new();
    place.let_end();
    let key = key_file(&place, "key", "5a");
    let warned = |mode, options: &[&str]| {
        let shared = shared(&place);
        fs::set_permissions(&shared, fs::Permissions::from_mode(mode)).expect("it is ours");
        let done = place.run(&[&["--ckpt-every", "1h", "--flush-to", &shared], options].concat()).finish();
        verified(&done);
        fs::remove_dir_all(place.job()).expect("the job's directory");
        done.stderr.contains(&format!(
            "neither signed nor encrypted, and other users can change them ({shared} belongs"
        ))
    };
    // Of others, of a group; a sticky one, too: another user makes the next job's folder in it first.
    for mode in [0o777, 0o775, 0o1777] {
        assert!(warned(mode, &[]), "{mode:o}");
        assert!(!warned(mode, &["--sign", &key]), "{mode:o}");
    }
    assert!(!warned(0o755, &[]));
    // As all warnings about options.
    assert!(!warned(0o777, &["-q"]));
}
