//! `stillwire env` prints lines for a shell, or names the missing library.

use std::process::Command;

use crate::support::{done, stillwire};

#[test]
fn a_shell_takes_the_variables_whatever_the_folder_is_called() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("it's a folder");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("libstillwire_fi.so"), b"").unwrap();
    let printed = done(&mut stillwire(&["env", "--provider-dir", folder.to_str().unwrap()]));
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let script = format!("{}\nprintf '%s %s' \"$FI_PROVIDER_PATH\" \"$FI_PROVIDER\"", printed.stdout);
    let taken = Command::new("sh").args(["-c", &script]).output().unwrap();
    let expected = format!("{} stillwire", folder.canonicalize().unwrap().display());
    assert_eq!(String::from_utf8_lossy(&taken.stdout), expected);
}

#[test]
fn a_missing_library_is_named() {
    let place = tempfile::tempdir().unwrap();
    let printed = done(&mut stillwire(&["env", "--provider-dir", place.path().to_str().unwrap()]));
    assert_eq!(printed.code, Some(1), "{printed:?}");
    assert!(
        printed.stderr.contains("libstillwire_fi.so") && printed.stderr.contains("cargo build"),
        "{printed:?}"
    );
}
