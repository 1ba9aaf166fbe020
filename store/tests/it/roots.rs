//! Other users cannot get into a job through its directory, or through one above it.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, lchown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::unistd::geteuid;
use store::storage::{ExposedPart, Exposure};
use store::{Directory, Storage, StorageError};

/// A user that is not the one of the tests.
const OTHER: u32 = 65533;

/// For the process of another user: the directory of the test that has started it, and the number that it sees for root.
const SCRATCH: &str = "STILLWIRE_TEST_ROOTS";
const OWNER_OF_ROOT: &str = "STILLWIRE_TEST_OWNER_OF_ROOT";

/// Directories with these modes, below each other, and the path of the last.
fn nested(scratch: &Path, modes: &[u32]) -> PathBuf {
    let mut path = scratch.to_owned();
    for (depth, mode) in modes.iter().enumerate() {
        path.push(depth.to_string());
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(*mode)).unwrap();
    }
    path
}

fn exposed(path: &Path) -> Exposure {
    match Directory::open(path) {
        Err(StorageError::Exposed { exposure, .. }) => exposure,
        other => panic!("{}: {other:?}", path.display()),
    }
}

#[track_caller]
fn refused_for(path: &Path, part: ExposedPart, component: &Path) -> Exposure {
    let found = exposed(path);
    assert_eq!((found.part, found.path.as_str()), (part, component.to_str().unwrap()), "{found}");
    found
}

#[test]
fn a_directory_that_others_may_write_is_refused() {
    for mode in [0o770, 0o702, 0o1777, 0o775] {
        let scratch = tempfile::tempdir().unwrap();
        let path = nested(scratch.path(), &[mode]);
        let found = refused_for(&path, ExposedPart::Root, &path);
        assert_eq!((found.owner, found.mode, found.user), (geteuid().as_raw(), mode, geteuid().as_raw()));
        let error = Directory::create(&path).unwrap_err().to_string();
        let owner = geteuid();
        for words in [
            format!("{} is not safe from other users", path.display()),
            format!("belongs to user {owner} and has mode {mode:04o}"),
            "expected no write permission for group and others".to_owned(),
            format!("or run `chmod go-w {}`", path.display()),
        ] {
            assert!(error.contains(&words), "{error}");
        }
        // The error's own cure.
        fs::set_permissions(&path, Permissions::from_mode(mode & !0o022)).unwrap();
        Directory::open(&path).unwrap();
    }
}

#[test]
fn a_directory_above_must_be_closed_or_sticky() {
    for (mode, is_safe) in
        [(0o777, false), (0o770, false), (0o702, false), (0o1777, true), (0o1770, true), (0o755, true)]
    {
        let scratch = tempfile::tempdir().unwrap();
        let above = nested(scratch.path(), &[0o755, mode]);
        let path = above.join("a").join("job");
        let made = Directory::create(&path);
        assert_eq!(made.is_ok(), is_safe, "{mode:o}: {made:?}");
        if is_safe {
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700);
            Directory::open(&path).unwrap();
        } else {
            assert_eq!(fs::read_dir(&above).unwrap().count(), 0, "something was made there");
            fs::create_dir_all(&path).unwrap();
            refused_for(&path, ExposedPart::Above, &above);
        }
    }
}

#[test]
fn a_link_is_followed_by_what_it_leads_through() {
    let scratch = tempfile::tempdir().unwrap();
    let open = nested(scratch.path(), &[0o755, 0o777]);
    let hidden = open.join("job");
    fs::create_dir(&hidden).unwrap();
    let closed = scratch.path().join("closed");
    fs::create_dir(&closed).unwrap();
    let link = |name: &str, target: &str| {
        let path = scratch.path().join(name);
        symlink(target, &path).unwrap();
        path
    };
    // Ours, through directories that only we can change.
    for (name, target) in [("whole", closed.to_str().unwrap()), ("part", "closed"), ("up", "0/../closed")] {
        let path = link(name, target);
        assert_eq!(Directory::open(&path).unwrap().root(), path, "{target}");
        Directory::create(path.join("below")).unwrap();
    }
    assert!(closed.join("below").is_dir());
    // Ours, through one that others can change.
    refused_for(&link("exposed", "0/1/job"), ExposedPart::Above, &open);
    refused_for(&link("above", "0/1").join("job"), ExposedPart::Above, &open);
    // To itself, or to nothing.
    let error = Directory::open(link("loop", "loop")).unwrap_err();
    assert!(
        matches!(error, StorageError::Io { errno, .. } if errno == nix::errno::Errno::ELOOP as i32),
        "{error}"
    );
    assert!(matches!(Directory::open(link("gone", "nothing")), Err(StorageError::NotFound { .. })));
    fs::write(closed.join("file"), b"").unwrap();
    for path in [link("file", "closed/file"), closed.join("file"), closed.join("file").join("job")] {
        assert!(matches!(Directory::open(path), Err(StorageError::WrongType { .. })));
    }
}

#[test]
fn below_the_root_the_open_directory_counts_and_no_link() {
    let scratch = tempfile::tempdir().unwrap();
    let (path, other) = (scratch.path().join("job"), scratch.path().join("other"));
    let mut directory = Directory::create(&path).unwrap();
    let mut theirs = Directory::create(&other).unwrap();
    for (directory, content) in [(&mut directory, b"ours"), (&mut theirs, b"them")] {
        directory.create_directory("folder").unwrap();
        let mut file = directory.create("folder/file").unwrap();
        directory.append(&mut file, content).unwrap();
    }
    symlink(other.join("folder/file"), path.join("folder/link")).unwrap();
    symlink(other.join("folder"), path.join("away")).unwrap();
    assert!(directory.read("folder/link", 10).is_err());
    assert!(directory.reopen("folder/link").is_err());
    assert!(directory.open_file("folder/link").is_err());
    assert!(directory.list("away").is_err());
    // Another directory in its place.
    fs::rename(&path, scratch.path().join("aside")).unwrap();
    fs::rename(&other, &path).unwrap();
    assert_eq!(directory.read("folder/file", 10).unwrap(), b"ours");
    assert_eq!(directory.list("folder").unwrap().len(), 2);
    directory.rename("folder/file", "folder/renamed").unwrap();
    directory.publish("folder/renamed", "folder/published").unwrap();
    assert_eq!(theirs.list("folder").unwrap().len(), 1);
    assert!(!directory.is_removed());
    fs::remove_dir_all(scratch.path().join("aside")).unwrap();
    assert!(directory.is_removed());
    assert!(directory.create("file").is_err());
}

/// Whether the tests may make files of another user.
fn can_give_away() -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        crate::skipped::skipped("roots::*", "only root can give a file to another user");
    }
    is_root
}

#[test]
fn nothing_of_another_user_is_used() {
    if !can_give_away() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    // As /var/tmp is: somebody else has made the directory of the job first, or one above it.
    let shared = nested(scratch.path(), &[0o1777]);
    let (job, node) = (shared.join("stillwire-job"), shared.join("stillwire-job").join("0"));
    fs::create_dir_all(&node).unwrap();
    Directory::open(&node).unwrap();
    chown(&job, Some(OTHER), Some(OTHER)).unwrap();
    for opened in [Directory::open(&node), Directory::create(&node)] {
        let Err(StorageError::Exposed { exposure, .. }) = opened else { panic!("it was used") };
        assert_eq!((exposure.part, exposure.owner, exposure.user), (ExposedPart::Above, OTHER, 0));
    }
    let error = Directory::open(&job).unwrap_err().to_string();
    for words in ["belongs to user 65533 and has mode 0755, expected user 0", "or run as user 65533"] {
        assert!(error.contains(words), "{error}");
    }
    // A link of theirs, to a directory of ours.
    let ours = scratch.path().join("ours");
    fs::create_dir(&ours).unwrap();
    let link = shared.join("link");
    symlink(&ours, &link).unwrap();
    Directory::open(&link).unwrap();
    lchown(&link, Some(OTHER), Some(OTHER)).unwrap();
    refused_for(&link, ExposedPart::Link, &link);
}

#[test]
fn a_user_uses_no_directory_of_root_but_goes_through_them() {
    if !can_give_away() {
        return;
    }
    let scratch = tempfile::Builder::new().permissions(Permissions::from_mode(0o755)).tempdir().unwrap();
    let path = |name: &str| scratch.path().join(name);
    for name in ["of-root", "theirs", "theirs/job", "in-root"] {
        fs::create_dir(path(name)).unwrap();
    }
    fs::create_dir(path("in-root/job")).unwrap();
    for name in ["theirs", "theirs/job", "in-root/job"] {
        chown(path(name), Some(OTHER), Some(OTHER)).unwrap();
    }
    let own = std::env::current_exe().unwrap();
    let seen = |command: &mut Command, owner_of_root: u32| {
        let run = command
            .args(["--exact", "roots::seen_by_another_user", "--nocapture"])
            .env(SCRATCH, scratch.path())
            .env(OWNER_OF_ROOT, owner_of_root.to_string())
            .uid(OTHER)
            .gid(OTHER)
            .output()
            .unwrap();
        let [out, err] = [&run.stdout, &run.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(run.status.success() && out.contains("1 passed"), "{out}{err}");
    };
    seen(&mut Command::new(&own), 0);
    // As a rank with ids of its own: a user namespace, in which root has no number.
    let mut within = Command::new("unshare");
    within.args(["--user", &format!("--map-user={OTHER}")]);
    let is_possible = Command::new("unshare").args(within.get_args()).arg("true").uid(OTHER).status();
    if is_possible.is_ok_and(|status| status.success()) {
        fs::remove_dir_all(path("theirs/made")).unwrap();
        seen(within.arg(&own), 65534);
    } else {
        eprintln!("not run in a user namespace: there can be none");
    }
}

/// Run by the test above, as the other user.
#[test]
fn seen_by_another_user() {
    let Some(scratch) = std::env::var_os(SCRATCH).map(PathBuf::from) else { return };
    assert_eq!(geteuid().as_raw(), OTHER);
    let found = refused_for(&scratch.join("of-root"), ExposedPart::Root, &scratch.join("of-root"));
    let root = std::env::var(OWNER_OF_ROOT).unwrap().parse().unwrap();
    assert_eq!((found.owner, found.user), (root, OTHER));
    Directory::open(scratch.join("theirs/job")).unwrap();
    Directory::open(scratch.join("in-root/job")).unwrap();
    Directory::create(scratch.join("theirs/made/job")).unwrap();
    assert!(matches!(Directory::create(scratch.join("of-root/job")), Err(StorageError::Permission { .. })));
}
