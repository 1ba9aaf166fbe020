//! Secrets in the launcher's environment stay there: no keeper, no rank and no image of a whole process gets them.

use std::fs;
use std::net::TcpListener;
use std::path::Path;

use crate::support::programs::{library, steps};
use crate::support::{Place, Running, children, keepers, signal, stillwire, wait_until};

const MARK: (&str, &str) = ("OF_THE_LAUNCHER", "what-anybody-may-read");
const CREDENTIALS: [(&str, &str); 3] = [
    ("AWS_ACCESS_KEY_ID", "the-name-of-a-user"),
    ("AWS_SECRET_ACCESS_KEY", "the-secret-of-a-user"),
    ("AWS_SESSION_TOKEN", "the-token-of-a-user"),
];

fn key() -> String {
    "5e".repeat(32)
}

fn environment(pid: u32) -> String {
    let bytes = fs::read(format!("/proc/{pid}/environ")).expect("a process of this user");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether a file below a folder has these bytes.
fn has_bytes(folder: &Path, bytes: &[u8]) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| {
        if path.is_dir() {
            return has_bytes(&path, bytes);
        }
        let content = fs::read(&path).unwrap_or_default();
        content.windows(bytes.len()).any(|window| window == bytes)
    })
}

/// A job of whole processes with all this in the launcher's environment; it runs, and has been saved.
fn saved(place: &Place, options: &[&str], also: &[(&str, &str)]) -> Running {
    let mut command =
        stillwire(&["run", "-n", "2", "--ckpt-every", "100ms", "--ckpt-dir", &place.job_text()]);
    let enough = place.enough().display().to_string();
    command.args(options).args(["--", &steps(), "90", "20000", "100000", &enough]);
    command.env("STILLWIRE_PROVIDER", library()).env("STILLWIRE_KEY", key()).env(MARK.0, MARK.1);
    command.envs(CREDENTIALS).envs(also.iter().copied());
    let mut job = Running::start(command);
    job.wait_for("committed");
    job
}

/// Every process of the job.
fn processes(job: &Running) -> Vec<u32> {
    let all = [keepers(job.pid()), children(job.pid())].concat();
    assert!(all.len() >= 3, "two ranks and a keeper at least: {all:?}");
    all
}

#[test]
fn the_key_is_in_no_process_and_no_image() {
    let place = Place::new();
    let job = saved(&place, &[], &[]);
    for pid in processes(&job) {
        let environment = environment(pid);
        assert!(environment.contains(MARK.1) && !environment.contains(&key()), "{environment}");
        // No copy goes to an object store: these may be the program's.
        assert!(CREDENTIALS.iter().all(|(_, value)| environment.contains(value)), "{environment}");
    }
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    assert!(has_bytes(&place.job(), MARK.1.as_bytes()), "images hold what ranks have in their environment");
    assert!(!has_bytes(&place.job(), key().as_bytes()), "an image has the key");
}

// Ranks have the key in their memory, and so in their images, which are encrypted with it.
#[test]
fn the_key_of_images_is_in_no_environment_and_no_image() {
    let place = Place::new();
    let job = saved(&place, &["--encrypt"], &[]);
    for pid in processes(&job) {
        let environment = environment(pid);
        assert!(environment.contains(MARK.1) && !environment.contains(&key()), "{environment}");
    }
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    for secret in [MARK.1.as_bytes(), key().as_bytes(), &[0x5e; 32]] {
        assert!(!has_bytes(&place.job(), secret), "{}", String::from_utf8_lossy(secret));
    }
}

#[test]
fn credentials_of_the_place_of_copies_are_the_launcher_s_alone() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("it has one"));
    for hosts in [false, true] {
        let place = Place::new();
        let shell = place.remote_shell("shift; exec \"$@\"");
        let disks = place.folder.path().join("disks").display().to_string();
        let two = "a:1@127.0.0.1,b:1@127.0.0.2";
        let remote = ["--hosts", two, "--remote-shell", &shell, "--node-dir", &disks];
        let mut options = vec!["--flush-to", "s3://bucket/prefix", "--env", "AWS_REGION=eu-north-1"];
        options.extend(remote.iter().filter(|_| hosts));
        let job = saved(&place, &options, &[("AWS_ENDPOINT_URL", &address)]);
        for pid in processes(&job) {
            let environment = environment(pid);
            assert!(environment.contains(MARK.1) && !environment.contains(&key()), "{environment}");
            assert!(CREDENTIALS.iter().all(|(_, value)| !environment.contains(value)), "{environment}");
        }
        for pid in job.ranks() {
            assert!(environment(pid).contains("AWS_REGION=eu-north-1"), "what is given by name is given");
        }
        signal(job.pid(), "KILL");
        job.finish();
        wait_until("the guard has cleaned up", || place.lock_is_free());
        let folder = place.folder.path();
        assert!(has_bytes(folder, MARK.1.as_bytes()), "images hold what ranks have in their environment");
        assert!(!has_bytes(folder, CREDENTIALS[1].1.as_bytes()), "an image has the credentials");
    }
}
