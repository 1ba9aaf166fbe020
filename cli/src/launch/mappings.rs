//! What the processes of ranks have mapped: whether the provider is among it, and no shared memory of an MPI library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nix::unistd::Pid;
use transport::Rank;

/// Names of files through which MPI libraries share memory between processes of one host.
const SHARED_BY_MPI: [&str; 5] = ["mpich_", "Intel_MPI", "sm_segment", "vader_segment", "psm_shm"];

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Findings {
    /// Ranks in none of whose processes the provider is loaded.
    pub(crate) without_provider: Vec<Rank>,
    /// Two ranks, and the file that both have mapped: messages between them may go past the provider.
    pub(crate) shared: Option<(Rank, Rank, String)>,
    /// Files of MPI libraries in memory, which stay there when a rank is killed.
    pub(crate) files: BTreeSet<PathBuf>,
}

/// Looks at the processes of ranks, which are named by their process groups: the program may be a child of what was started.
pub(crate) fn look(ranks: &[(Rank, Pid)], provider: &Path) -> Findings {
    let groups = ranks.iter().map(|(rank, group)| (group.as_raw(), *rank)).collect();
    judge(&maps_of(&groups), &provider.to_string_lossy())
}

/// Files of MPI libraries in memory that processes of these groups have mapped.
pub(crate) fn files_of(groups: &BTreeSet<i32>) -> BTreeSet<PathBuf> {
    let groups = groups.iter().zip(0..).map(|(group, number)| (*group, Rank(number))).collect();
    judge(&maps_of(&groups), "").files
}

fn maps_of(groups: &BTreeMap<i32, Rank>) -> BTreeMap<Rank, String> {
    let mut maps: BTreeMap<Rank, String> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Some(rank) = group_of(pid).and_then(|group| groups.get(&group)) else { continue };
        // It may have ended just now.
        maps.entry(*rank)
            .or_default()
            .push_str(&std::fs::read_to_string(entry.path().join("maps")).unwrap_or_default());
    }
    // Of one that has just ended nothing can be said: how it ended is.
    maps.retain(|_, text| !text.is_empty());
    maps
}

fn judge(maps: &BTreeMap<Rank, String>, provider: &str) -> Findings {
    let mut findings = Findings::default();
    let mut files: BTreeMap<(&str, &str), (Rank, &str)> = BTreeMap::new();
    for (rank, text) in maps {
        if !text.lines().any(|line| line.ends_with(provider)) {
            findings.without_provider.push(*rank);
        }
        for line in text.lines() {
            // Addresses, rights, offset, device, inode, path.
            let mut words = line.split_ascii_whitespace();
            let (rights, device, inode) = (words.nth(1), words.nth(1), words.next());
            let path = words.next().unwrap_or_default();
            let name = path.rsplit('/').next().unwrap_or_default();
            let (Some(rights), Some(device), Some(inode)) = (rights, device, inode) else { continue };
            if !rights.ends_with('s') || !SHARED_BY_MPI.iter().any(|start| name.starts_with(start)) {
                continue;
            }
            if path.starts_with("/dev/shm/") {
                findings.files.insert(PathBuf::from(path));
            }
            let (first, _) = *files.entry((device, inode)).or_insert((*rank, path));
            if first != *rank && findings.shared.is_none() {
                findings.shared = Some((first, *rank, path.to_owned()));
            }
        }
    }
    findings
}

fn group_of(pid: u32) -> Option<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: state, parent, group.
    text[text.rfind(')')? + 1..].split_ascii_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROVIDER: &str = "7f00-7f01 r-xp 00000000 fe:00 77 /opt/my lib/libstillwire_fi.so\n";

    fn judged(maps: &[&str]) -> Findings {
        let ranks = (0..).map(Rank).zip(maps.iter().map(|text| (*text).to_owned()));
        judge(&ranks.collect(), "/opt/my lib/libstillwire_fi.so")
    }

    #[test]
    fn the_provider_is_looked_for_in_every_rank() {
        assert_eq!(judged(&[PROVIDER, PROVIDER]), Findings::default());
        let other = PROVIDER.replace("my lib", "another");
        assert_eq!(judged(&[PROVIDER, &other, ""]).without_provider, [Rank(1), Rank(2)]);
    }

    #[test]
    fn memory_that_two_ranks_of_a_library_share_is_found() {
        let shared = |inode: u32, name: &str| {
            format!("{PROVIDER}7f02-7f03 rw-s 00000000 00:1b {inode} /dev/shm/{name}\n")
        };
        let (one, two) = (shared(5, "mpich_shm_1_0"), shared(6, "mpich_shm_1_1"));
        let own = judged(&[&one, &two]);
        assert_eq!((own.shared, own.files.len()), (None, 2), "one of its own each");
        let gone = shared(5, "mpich_shm_1_0 (deleted)");
        assert_eq!(judged(&[&one, &gone]).shared, Some((Rank(0), Rank(1), "/dev/shm/mpich_shm_1_0".into())));
        let programs = shared(9, "the_programs_own");
        assert_eq!(judged(&[&programs, &programs]).shared, None);
        let private = one.replace("rw-s", "rw-p");
        assert_eq!(judged(&[&private, &private]).shared, None);
    }
}
