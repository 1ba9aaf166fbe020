//! Mappings that cannot be saved, and how much the others hold.

use std::ops::Range;

use super::ForkAdvice;
use crate::files::FileId;
use crate::maps::{self, Line};
use crate::pages::{Plan, Saved};
use crate::refuse::Refusal;
use crate::smaps::{Entry, Smaps};
use crate::state::memory::Advice;

/// Devices of file systems that live in memory: shared mappings of their files end with the process.
pub(super) fn memory_devices() -> Vec<(u32, u32)> {
    // mountinfo: id, parent, major:minor, root, mount point, options, ... - type source options.
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let device = |line: &str| {
        let (before, after) = line.split_once(" - ")?;
        let kind = after.split(' ').next()?;
        let (major, minor) = before.split(' ').nth(2)?.split_once(':')?;
        let is_memory = kind == "tmpfs" || kind == "ramfs";
        Some((major.parse().ok()?, minor.parse().ok()?)).filter(|_| is_memory)
    };
    mounts.lines().filter_map(device).collect()
}

const SYSTEM_V: &str =
    "System V shared memory cannot be made anew under its identifier; use mmap with MAP_SHARED";
const DEVICE: &str = "a device lies behind it, whose state cannot be saved; unmap it before a checkpoint, or declare it as \
                      mapped anew by its owner";
const HUGE: &str = "pages of hugetlbfs cannot be saved; use transparent huge pages (MADV_HUGEPAGE)";
const SHADOW: &str = "a shadow stack cannot be put back: start with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off";
const WATCHED: &str = "a userfaultfd of the program watches it; unregister it before a checkpoint";
const KERNEL: &str =
    "asynchronous I/O, io_uring or perf events of the kernel cannot be saved; close them before a checkpoint";
const SECRET: &str = "secret memory cannot be read even by the kernel; use mlock instead";
const KEY: &str = "it has a protection key, which cannot be put back; free the key before a checkpoint";

/// Every mapping that cannot be saved.
pub(crate) fn refusals(maps: &[u8], smaps: &Smaps, plan: &Plan) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for line in maps::lines(maps).flatten() {
        if plan.parts(&line).next().is_none() {
            continue;
        }
        if let Some(why) = why_not(&line, smaps.at(line.start), plan) {
            let name = String::from_utf8_lossy(line.name).into_owned();
            refusals.push(Refusal::Mapping { start: line.start, end: line.end, name, why });
        }
    }
    refusals
}

fn why_not(line: &Line<'_>, entry: Option<&Entry>, plan: &Plan) -> Option<&'static str> {
    if line.is_vvar() || line.is_vdso() || line.is_everywhere() {
        return None;
    }
    let special = entry.map(|entry| entry.special).unwrap_or_default();
    let name = line.name;
    let starts = |prefix: &[u8]| name.starts_with(prefix);
    if starts(b"/SYSV") {
        Some(SYSTEM_V)
    } else if starts(b"/secretmem") {
        Some(SECRET)
    } else if special.is_huge_file || starts(b"/anon_hugepage") {
        Some(HUGE)
    } else if special.is_shadow_stack {
        Some(SHADOW)
    } else if starts(b"/[aio]") || starts(b"anon_inode:") {
        Some(KERNEL)
    } else if special.is_device || (starts(b"/dev/") && !starts(b"/dev/shm/") && !starts(b"/dev/zero")) {
        Some(DEVICE)
    } else if special.is_watched && !plan.is_tracked(line) {
        Some(WATCHED)
    } else if entry.is_some_and(|entry| entry.protection_key != 0) {
        Some(KEY)
    } else {
        None
    }
}

/// The files behind shared memory that is saved, in the order in which regions name them first.
pub(crate) fn shared_files(maps: &[u8], plan: &Plan) -> Vec<FileId> {
    let mut files = Vec::new();
    for line in maps::lines(maps).flatten().filter(|line| plan.is_memory(line)) {
        let id = FileId { device: libc::makedev(line.device.0, line.device.1), inode: line.inode };
        if plan.parts(&line).next().is_some() && !files.contains(&id) {
            files.push(id);
        }
    }
    files
}

/// Regions that a fork would leave out or empty, of those that are saved.
pub(super) fn kept(smaps: &Smaps, plan: &Plan) -> Vec<(Range<u64>, ForkAdvice)> {
    const NOT_FORKED: ForkAdvice = ForkAdvice { keep: libc::MADV_DONTFORK, give: libc::MADV_DOFORK };
    const WIPED: ForkAdvice = ForkAdvice { keep: libc::MADV_WIPEONFORK, give: libc::MADV_KEEPONFORK };
    let mut kept = Vec::new();
    // Ignored memory belongs to others, which had a reason: a child that had a NIC's rings would keep the
    // NIC.
    let is_ignored =
        |range: &Range<u64>| plan.ignored.iter().any(|out| out.start <= range.start && range.end <= out.end);
    for entry in smaps.0.iter().filter(|entry| !is_ignored(&entry.range)) {
        for (advice, change) in [(Advice::DONT_FORK, NOT_FORKED), (Advice::WIPE_ON_FORK, WIPED)] {
            // Memory of a device never reaches a child.
            if entry.advice.contains(advice) && !entry.special.is_device {
                kept.push((entry.range.clone(), change));
            }
        }
    }
    kept
}

/// How much there is to save.
pub(super) struct Amounts {
    pub(super) private_bytes: u64,
    pub(super) shared_bytes: u64,
}

pub(super) fn amounts(maps: &[u8], smaps: &Smaps, plan: &Plan) -> Amounts {
    let mut amounts = Amounts { private_bytes: 0, shared_bytes: 0 };
    for line in maps::lines(maps).flatten() {
        let bytes: u64 = plan.parts(&line).map(|part| part.end - part.start).sum();
        match plan.saved(&line) {
            Saved::Not => {}
            Saved::Changed => {
                amounts.private_bytes +=
                    smaps.at(line.start).map_or(0, |entry| entry.private_bytes).min(bytes);
            }
            Saved::Whole => amounts.private_bytes += bytes,
            Saved::Copied | Saved::Vdso => amounts.shared_bytes += bytes,
        }
    }
    amounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_mapping_that_cannot_be_saved_is_named() {
        let cases: [(&str, &str, &str); 9] = [
            ("rw-s", "/SYSV00000000 (deleted)", "System V"),
            ("rw-s", "/dev/infiniband/uverbs0", "device"),
            ("rw-s", "anon_inode:[io_uring]", "io_uring"),
            ("rw-s", "/[aio] (deleted)", "asynchronous"),
            ("rw-p", "/anon_hugepage (deleted)", "hugetlbfs"),
            ("rw-s", "/secretmem (deleted)", "secret"),
            ("rw-s", "/dev/shm/x", ""),
            ("rw-p", "/dev/zero", ""),
            ("rw-s", "/memfd:x (deleted)", ""),
        ];
        for (flags, name, word) in cases {
            let text = format!("1000-2000 {flags} 00000000 00:05 77 {name}\n");
            let found = refusals(text.as_bytes(), &Smaps::default(), &Plan::default());
            assert_eq!(found.len(), usize::from(!word.is_empty()), "{name}: {found:?}");
            if let Some(refusal) = found.first() {
                assert!(refusal.to_string().contains(word), "{refusal}");
                assert!(refusal.to_string().contains(name), "{refusal}");
            }
        }
    }

    #[test]
    fn what_is_not_saved_is_not_given_to_the_child() {
        let text = b"1000-2000 rw-p 00000000 00:00 0 \nVmFlags: rd wr dc\n4000-6000 rw-p 00000000 00:00 0 \nVmFlags: rd wr dc\n";
        let kept_with = |ignored: &[Range<u64>]| -> Vec<u64> {
            let plan = Plan { ignored: ignored.to_vec(), ..Plan::default() };
            kept(&Smaps::parse(text), &plan).iter().map(|(range, _)| range.start).collect()
        };
        assert_eq!(kept_with(&[]), [0x1000, 0x4000]);
        assert_eq!(kept_with(std::slice::from_ref(&(0x1000..0x2000))), [0x4000]);
        // Part of it is saved.
        assert_eq!(kept_with(&[0x1000..0x2000, 0x4000..0x5000]), [0x4000]);
    }

    #[test]
    fn flags_of_smaps_count() {
        let maps = b"1000-2000 rw-p 00000000 00:00 0 \n";
        for (flags, word) in [("ht", "hugetlbfs"), ("ss", "shadow"), ("io", "device"), ("um", "userfaultfd")]
        {
            let text = format!("1000-2000 rw-p 00000000 00:00 0 \nVmFlags: rd wr {flags}\n");
            let found = refusals(maps, &Smaps::parse(text.as_bytes()), &Plan::default());
            assert!(found.len() == 1 && found[0].to_string().contains(word), "{found:?}");
        }
        let text = b"1000-2000 rw-p 00000000 00:00 0 \nProtectionKey:  3\n";
        assert_eq!(refusals(maps, &Smaps::parse(text), &Plan::default()).len(), 1);
    }

    #[test]
    fn what_our_own_tracker_watches_is_not_refused() {
        let maps = b"1000-3000 rw-p 00000000 00:00 0 \n";
        let text = b"1000-3000 rw-p 00000000 00:00 0 \nVmFlags: rd wr uw\n";
        // A mapping has one watcher, also where it has grown since it was registered.
        let cases =
            [(0x1000..0x3000, 0), (0x1000..0x2000, 0), (0x2000..0x4000, 0), (0x3000..0x4000, 1), (0..0, 1)];
        for (tracked, refused) in cases {
            let plan = Plan { tracked: Vec::from([tracked]), ..Plan::default() };
            assert_eq!(refusals(maps, &Smaps::parse(text), &plan).len(), refused);
        }
    }

    #[test]
    fn what_is_left_out_is_not_refused() {
        let plan = Plan { ignored: Vec::from([0x1000..0x2000, 0x9000..0xa000]), ..Plan::default() };
        let maps = b"1000-2000 rw-s 00000000 00:05 77 /dev/infiniband/uverbs0\n";
        assert_eq!(refusals(maps, &Smaps::default(), &plan), []);
    }
}
