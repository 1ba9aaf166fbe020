//! The descriptors of another process, as far as /proc shows them: whether they could be saved.

use std::cmp::Ordering;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use super::facts::{Capacity, Declaration, Fact, Facts, FileId, Kind, WatchedFact, kind};
use super::judge::{self, Context};
use super::room::Span;
use super::{Refusal, details, diagnosis, kernel, outside, outsiders};
use crate::declared::Declared;
use crate::track;

/// Bytes of one text of /proc.
const TEXT_BYTES: usize = 64 << 10;

/// The reasons why descriptors of the process `pid` cannot be saved. `declared` are numbers of that process.
/// Data that waits in pipes and sockets is not looked at. An error: the process is gone, or may not be looked
/// into.
pub fn refusals_of(pid: u32, declared: &Declared) -> io::Result<Vec<Refusal>> {
    let folder = format!("/proc/{pid}");
    let mut numbers: Vec<RawFd> = std::fs::read_dir(format!("{folder}/fd"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    let capacity = Capacity {
        descriptors: numbers.len(),
        bytes: (numbers.len() + 1) * 2 * TEXT_BYTES,
        messages: 0,
        watched: numbers.len() * TEXT_BYTES / 64,
    };
    let mut facts = Facts::new(capacity)?;
    for number in numbers {
        // It may have been closed meanwhile.
        if let Ok(fact) = look(&mut facts, &folder, number) {
            facts.list.push(fact);
        }
    }
    share(&mut facts.list, pid);
    declare(&mut facts.list, declared);
    find_lonely(&mut facts, pid);
    let maps = std::fs::read(format!("{folder}/maps"))?;
    let mapped: Vec<FileId> = crate::maps::lines(&maps)
        .flatten()
        .filter(|line| line.is_shared && line.inode != 0)
        .map(|line| FileId { device: libc::makedev(line.device.0, line.device.1), inode: line.inode })
        .collect();
    let context = Context { declared, objects: &mapped, is_before: true, pid, shared: &[] };
    let mut refusals = judge::judge(&facts, &context).err().unwrap_or_default();
    refusals.extend(outside(&facts, pid).0);
    refusals.sort_by_key(|refusal| refusal.number);
    refusals.dedup_by_key(|refusal| refusal.number);
    Ok(refusals)
}

/// Numbers and names of a process's open descriptors.
fn links(pid: u32) -> io::Result<Vec<(RawFd, Vec<u8>)>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    let link = |entry: std::fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        // It may have been closed meanwhile.
        Some((number, std::fs::read_link(entry.path()).ok()?.into_os_string().into_encoded_bytes()))
    };
    Ok(entries.filter_map(link).collect())
}

/// Descriptors of the process `pid` by which the pages are watched that it writes ([`crate::track::Tracker`]).
pub fn trackers_of(pid: u32) -> io::Result<Vec<RawFd>> {
    let mut found = links(pid)?;
    found.retain(|(number, link)| {
        let text = || std::fs::read(format!("/proc/{pid}/fdinfo/{number}")).unwrap_or_default();
        track::is_descriptor(link) && track::is_tracker(&text())
    });
    Ok(found.into_iter().map(|(number, _)| number).collect())
}

/// Sockets of the process `pid` whose other end the process `other` has.
pub fn connected_to(pid: u32, other: u32) -> io::Result<Vec<RawFd>> {
    let inode = |link: &[u8]| {
        let digits = link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
        std::str::from_utf8(digits).ok()?.parse::<u64>().ok()
    };
    let others: Vec<u64> = links(other)?.iter().filter_map(|(_, link)| inode(link)).collect();
    let mut found = links(pid)?;
    found.retain(|(_, link)| {
        inode(link).and_then(|own| diagnosis::ask(own).ok()).is_some_and(|peer| others.contains(&peer.inode))
    });
    Ok(found.into_iter().map(|(number, _)| number).collect())
}

fn keep(facts: &mut Facts, text: &[u8]) -> Span {
    let bytes = text.len().min(TEXT_BYTES);
    facts.blob.rest()[..bytes].copy_from_slice(&text[..bytes]);
    facts.blob.take(bytes)
}

fn look(facts: &mut Facts, folder: &str, number: RawFd) -> io::Result<Fact> {
    let path = format!("{folder}/fd/{number}");
    let link = std::fs::read_link(&path)?;
    let link = link.as_os_str().as_bytes();
    let text = std::fs::read(format!("{folder}/fdinfo/{number}"))?;
    let stat = std::fs::metadata(&path)?;
    let flags = details::field(&text, b"flags:", 8).and_then(|flags| u32::try_from(flags).ok()).unwrap_or(0);
    let mut fact = Fact::new(number, false, flags & !libc::O_CLOEXEC.cast_unsigned());
    fact.shares = facts.list.len();
    fact.id = FileId { device: stat.dev(), inode: stat.ino() };
    (fact.mode, fact.device, fact.links, fact.bytes) = (stat.mode(), stat.rdev(), stat.nlink(), stat.size());
    fact.link = keep(facts, link);
    fact.details = keep(facts, &text);
    fact.kind = kind(link, stat.mode());
    match fact.kind {
        Kind::Regular => {
            let system = nix::sys::statfs::statfs(path.as_str());
            fact.file_system = system.map_or(0, |system| system.filesystem_type().0.cast_unsigned());
        }
        Kind::Socket => {
            fact.peer = diagnosis::ask(stat.ino()).ok();
            if fact.peer.is_some() {
                fact.kind = Kind::UnixSocket;
            }
        }
        Kind::Poll => {
            // Only the process itself can see whether the watched file is open elsewhere only.
            let first = facts.watched.len();
            let mut at = 0;
            while let Some((entry, next)) = details::watched(&text, at) {
                at = next;
                let open = Some(fact.shares);
                facts.watched.push(WatchedFact {
                    number: entry.number,
                    events: entry.events,
                    data: entry.data,
                    open,
                });
            }
            fact.list = (first, facts.watched.len() - first);
        }
        _ => {}
    }
    Ok(fact)
}

/// Finds descriptors that share one open file description, if the kernel reports it.
fn share(list: &mut [Fact], pid: u32) {
    for index in 1..list.len() {
        let (before, rest) = list.split_at_mut(index);
        let fact = &mut rest[0];
        let same = |other: &&Fact| {
            other.id == fact.id
                && other.flags == fact.flags
                && kernel::compare_in(pid, other.number, fact.number) == Ok(Some(Ordering::Equal))
        };
        if let Some(first) = before.iter().find(same) {
            fact.shares = first.shares;
            // Reported by the first one.
            fact.kind = Kind::Other;
        }
    }
}

fn declare(list: &mut [Fact], declared: &Declared) {
    let handed_in = declared.handed_in.iter().map(|(_, number)| *number).enumerate();
    let remade = declared.remade.iter().map(|(_, number)| *number).enumerate();
    let all = handed_in
        .map(|(index, number)| (number, Declaration::HandedIn(index)))
        .chain(remade.map(|(index, number)| (number, Declaration::Remade(index))));
    for (number, declaration) in all {
        let Some(first) = list.iter().find(|fact| fact.number == number).map(|fact| fact.shares) else {
            continue;
        };
        list[first].declared = list[first].declared.or(Some(declaration));
        list[first].kind = Kind::Declared;
    }
}

/// Pipes whose other end is closed: only the process itself could poll them, so all others are looked through.
fn find_lonely(facts: &mut Facts, pid: u32) {
    let pipes = || facts.list.iter().filter(|fact| fact.kind == Kind::Pipe);
    let links: Vec<Vec<u8>> = pipes().map(|fact| facts.blob.get(fact.link).to_vec()).collect();
    let outsiders = outsiders::find(&links, pid);
    let lonely: Vec<RawFd> = pipes()
        .filter(|fact| !outsiders.contains_key(facts.blob.get(fact.link)))
        .map(|fact| fact.number)
        .collect();
    for fact in &mut facts.list {
        fact.is_alone = lonely.contains(&fact.number);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::super::refusal;
    use super::*;

    #[test]
    fn another_process_is_judged_by_the_same_rules() {
        let directory = tempfile::tempdir().unwrap();
        let script = "exec 5<&0; exec 6>/dev/null; exec 7>file; exec 8<fifo; exec 9</proc/self/status; echo up; read x";
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let mut child = Command::new("bash")
            .args(["-c", script])
            .current_dir(directory.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let _writer = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
        let mut line = String::new();
        let mut output = io::BufReader::new(child.stdout.take().unwrap());
        io::BufRead::read_line(&mut output, &mut line).unwrap();
        let standard = ["stdin", "stdout", "stderr"].into_iter().zip(0..);
        let handed_in = standard.map(|(name, number): (&str, RawFd)| (name.to_owned(), number)).collect();
        let declared = Declared { handed_in, ..Declared::new() };
        let reported = refusals_of(child.id(), &declared).unwrap();
        let open = refusals_of(child.id(), &Declared::new()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // Descriptors that the test runner left open come behind.
        let reported: Vec<Refusal> = reported.into_iter().filter(|refusal| refusal.number < 10).collect();
        let numbers: Vec<u32> = reported.iter().map(|refusal| refusal.number).collect();
        assert_eq!(numbers, [8], "{reported:?}");
        assert_eq!(reported[0].why, refusal::why::NAMED_PIPE);
        let first = open.first().map(|refusal| (refusal.number, refusal.why));
        assert_eq!(first, Some((0, refusal::why::PIPE_OUTSIDE)), "nothing is handed in: {open:?}");
        assert!(refusals_of(u32::MAX, &declared).is_err(), "no such process");
    }
}
