//! Whether a process that runs could be saved.

use std::io;
use std::time::Duration;

use ::process::declared::Declared;
use ::process::files::connected_to;
use ::process::outside::refusals_of;

use super::Finding;

/// Looks at a process before a problem is reported: the agent of a rank that is being saved has files open for a moment.
const LOOKS: u32 = 3;

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(30);

/// Looks from outside.
pub(super) fn look(pid: u32) -> Vec<Finding> {
    let reported = match lasting(|| refusals(pid), || std::thread::sleep(PAUSE)) {
        Ok(reported) => reported,
        Err(error) => {
            let found = format!("process {pid} cannot be inspected: {error}");
            return vec![Finding::problem(
                "process",
                found,
                "look as the user whose process it is, while it runs",
            )];
        }
    };
    if reported.is_empty() {
        return vec![Finding::ok("process", format!("nothing prevents saving process {pid}"))];
    }
    let finding = |sentence: &String| {
        // "descriptor 5 (its kind): reason; cure"
        let (found, fix) =
            sentence.rsplit_once("; ").unwrap_or((sentence, "see docs/reference/image-format.md"));
        Finding::problem("process", found, fix)
    };
    reported.iter().map(finding).collect()
}

/// The sentences that every look has found.
fn lasting<E>(look: impl Fn() -> Result<Vec<String>, E>, pause: impl Fn()) -> Result<Vec<String>, E> {
    let mut found = look()?;
    for _ in 1..LOOKS {
        if found.is_empty() {
            break;
        }
        pause();
        let again = look()?;
        found.retain(|sentence| again.contains(sentence));
    }
    Ok(found)
}

/// Standard input, output and error are the launcher's, and so are the sockets connected to it, or the one that `PMI_FD` names.
fn refusals(pid: u32) -> io::Result<Vec<String>> {
    let standard = ["stdin", "stdout", "stderr"].into_iter().zip(0..);
    let mut handed_in: Vec<(String, i32)> =
        standard.map(|(name, number)| (name.to_owned(), number)).collect();
    match keeper_of(pid).and_then(|keeper| connected_to(pid, keeper).ok()) {
        // The process may have closed the descriptor that `PMI_FD` names and reused its number, so the keeper's sockets alone count.
        Some(sockets) => handed_in.extend(sockets.into_iter().map(|number| ("keeper".to_owned(), number))),
        None => handed_in.extend(pmi(pid).map(|number| ("pmi".to_owned(), number))),
    }
    refusals_of(pid, &Declared { handed_in, ..Declared::new() })
}

/// The keeper that has started a process, if one has.
fn keeper_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: state, parent.
    let parent = stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()?;
    let words = std::fs::read(format!("/proc/{parent}/cmdline")).ok()?;
    words.split(|byte| *byte == 0).nth(1).is_some_and(|word| word == b"__keeper").then_some(parent)
}

fn pmi(pid: u32) -> Option<i32> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let entry = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(b"PMI_FD="))?;
    std::str::from_utf8(entry).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    #[test]
    fn what_is_open_for_a_moment_is_not_reported() {
        let lasting = |looks: &[&[&str]]| {
            let left = RefCell::new(looks.iter());
            let look = || {
                let found = left.borrow_mut().next().ok_or("one look too many")?;
                Ok(found.iter().map(|sentence| (*sentence).to_owned()).collect::<Vec<_>>())
            };
            super::lasting(look, || ())
        };
        assert_eq!(lasting(&[&[]]), Ok(Vec::new()));
        assert_eq!(lasting(&[&["agent"], &[]]), Ok(Vec::new()));
        assert_eq!(
            lasting(&[&["agent", "pipe"], &["pipe"], &["pipe", "agent"]]),
            Ok(vec!["pipe".to_owned()])
        );
        assert_eq!(lasting(&[&["pipe"], &["pipe"]]), Err("one look too many"));
    }
}
