//! Whether another process has a pipe or socket of ours open as well, or writes a file that we write: looked for in /proc, as far as it
//! lets us.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A process that has one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outsider {
    pub(super) pid: u32,
    pub(super) name: String,
}

/// Whether a link names a file.
pub(super) fn is_path(link: &[u8]) -> bool {
    link.starts_with(b"/")
}

/// Whether the descriptor of a process is open for writing.
fn writes(process: &Path, number: &std::ffi::OsStr) -> bool {
    let text = std::fs::read_to_string(process.join("fdinfo").join(number)).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok()).unwrap_or(libc::O_RDONLY);
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

/// Which of the links (`pipe:[7]`, `socket:[8]`) processes other than `own` have, and one of those; of files, those that they write. Processes whose descriptors may
/// not be listed are passed over: they belong to other users, and can have got ours from a common ancestor only.
pub(super) fn find(links: &[Vec<u8>], own: u32) -> BTreeMap<Vec<u8>, Outsider> {
    let mut found = BTreeMap::new();
    if links.is_empty() {
        return found;
    }
    let Ok(processes) = std::fs::read_dir("/proc") else { return found };
    for process in processes.flatten() {
        let pid = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok());
        let Some(pid) = pid.filter(|pid| *pid != own) else { continue };
        let Ok(descriptors) = std::fs::read_dir(process.path().join("fd")) else { continue };
        for descriptor in descriptors.flatten() {
            let Ok(link) = std::fs::read_link(descriptor.path()) else { continue };
            let link = link.as_os_str().as_bytes();
            if links.iter().any(|ours| ours == link)
                && !found.contains_key(link)
                && (!is_path(link) || writes(&process.path(), &descriptor.file_name()))
            {
                let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
                found.insert(link.to_vec(), Outsider { pid, name: name.trim_end().to_owned() });
            }
        }
    }
    found
}
