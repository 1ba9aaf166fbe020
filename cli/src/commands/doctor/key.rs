//! The key of programs that take the provider without `stillwire run`.

use client::user_key::{KEY_FILE_VARIABLE, KeyFile, KeySource};

use super::Finding;

const WHAT: &str = "key";

pub(super) fn look() -> Finding {
    let file = KeyFile::find(false);
    let path = file.path().display();
    let origin = match file.source() {
        KeySource::Variable => format!("named by {KEY_FILE_VARIABLE}"),
        KeySource::Home => "of this user".to_owned(),
        KeySource::Runtime => "of this user on this host".to_owned(),
    };
    match file.read() {
        Ok(Some(_)) => {
            Finding::ok(WHAT, format!("{path} ({origin}), for programs started without `stillwire run`"))
        }
        Ok(None) => Finding::ok(
            WHAT,
            format!(
                "{path} ({origin}) does not exist yet; the first program started without `stillwire run` makes it"
            ),
        ),
        Err(error) => Finding::problem(
            WHAT,
            error.to_string(),
            format!("remove it, or set {KEY_FILE_VARIABLE} to a file of your own with mode 600"),
        ),
    }
}
