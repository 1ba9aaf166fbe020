//! Whether a process that runs could be saved.

use ::process::declared::Declared;
use ::process::files::connected_to;
use ::process::outside::refusals_of;

use super::Finding;

/// Looks from outside. Standard input, output and error are the launcher's, and so are the sockets connected to it, or the one that `PMI_FD` names.
pub(super) fn look(pid: u32) -> Vec<Finding> {
    let standard = ["stdin", "stdout", "stderr"].into_iter().zip(0..);
    let mut handed_in: Vec<(String, i32)> =
        standard.map(|(name, number)| (name.to_owned(), number)).collect();
    match keeper_of(pid).and_then(|keeper| connected_to(pid, keeper).ok()) {
        // The process may have closed the descriptor that `PMI_FD` names and reused its number, so the keeper's sockets alone count.
        Some(sockets) => handed_in.extend(sockets.into_iter().map(|number| ("keeper".to_owned(), number))),
        None => handed_in.extend(pmi(pid).map(|number| ("pmi".to_owned(), number))),
    }
    let reported = match refusals_of(pid, &Declared { handed_in, ..Declared::new() }) {
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
