//! Mappings of the processes of an MPI job: whether they include the provider, and no shared memory of an MPI library.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use ckpt_glue::pmi::Member;
use nix::unistd::Pid;
use transport::Rank;

use crate::mpi::is_mpi_library;

/// Names of files through which MPI libraries share memory between processes of one host.
const SHARED_BY_MPI: [&str; 5] = ["mpich_", "Intel_MPI", "sm_segment", "vader_segment", "psm_shm"];

/// The result of a look.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Findings {
    /// Members in none of whose processes the provider is loaded.
    pub(crate) without_provider: Vec<Member>,
    /// The MPI library of each process that has one.
    pub(crate) libraries: BTreeMap<Member, PathBuf>,
    /// Two of them, and the file that both have mapped: messages between them may go past the provider.
    pub(crate) shared: Option<(Member, Member, String)>,
    /// Files of MPI libraries in memory, which stay there when a process is killed.
    pub(crate) files: BTreeSet<PathBuf>,
}

/// Looks at processes, which are named by their groups: the program may be a child of the started process.
pub(crate) fn look(members: &[(Member, Pid)], provider: &Path) -> Findings {
    let groups = members.iter().map(|(member, group)| (group.as_raw(), *member)).collect();
    judge(&maps_of(&groups), &provider.to_string_lossy())
}

/// Files of MPI libraries in memory that processes of these groups have mapped.
pub(crate) fn files_of(groups: &BTreeSet<i32>) -> BTreeSet<PathBuf> {
    let groups =
        groups.iter().zip(0..).map(|(group, number)| (*group, Member::of_job(Rank(number)))).collect();
    judge(&maps_of(&groups), "").files
}

/// Files that MPICH makes in memory in `MPI_Init` of a world of this name, on the first of its nodes: those of others differ in the number at the end.
/// It names them after a hash of the name (FNV-1a), so that they are known before they exist.
pub(crate) fn files_of_world(name: &str) -> [PathBuf; 2] {
    let hash =
        name.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    ["shm", "vci"].map(|what| PathBuf::from(format!("/dev/shm/mpich_{what}_{hash:x}_0")))
}

/// Removes files that killed processes have left in memory, and those of other processes of their worlds: libraries name them alike but for a number
/// at the end, and a process that was killed at the begin of its life was never looked at. Nobody else has files of these names: processes of this
/// job had them mapped.
pub(crate) fn remove(files: impl IntoIterator<Item = PathBuf>) {
    let files: BTreeSet<PathBuf> = files.into_iter().collect();
    let stems: BTreeSet<PathBuf> = files.iter().filter_map(|file| without_number(file)).collect();
    let folders: BTreeSet<&Path> = stems.iter().filter_map(|stem| stem.parent()).collect();
    let found = folders.into_iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    let alike = found
        .map(|entry| entry.path())
        .filter(|file| without_number(file).is_some_and(|stem| stems.contains(&stem)));
    for file in alike.collect::<BTreeSet<_>>().union(&files) {
        // Most often its owner has removed it.
        let _ = std::fs::remove_file(file);
    }
}

/// A file's path up to the number at its end.
fn without_number(file: &Path) -> Option<PathBuf> {
    let text = file.to_str()?;
    let stem = text.trim_end_matches(|symbol: char| symbol.is_ascii_digit());
    (stem.len() < text.len() && stem.ends_with('_')).then(|| PathBuf::from(stem))
}

/// Files of MPI libraries in memory that this process has mapped, without those that it has started.
pub(crate) fn files_of_process(process: Pid) -> BTreeSet<PathBuf> {
    // It may have ended just now.
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    judge(&[(Member::of_job(Rank(0)), maps)].into(), "").files
}

/// The MPI library that a process has loaded.
fn mpi_library(maps: &str) -> Option<PathBuf> {
    let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    paths.find(|path| path.rsplit('/').next().is_some_and(is_mpi_library)).map(PathBuf::from)
}

fn maps_of(groups: &BTreeMap<i32, Member>) -> BTreeMap<Member, String> {
    let mut maps: BTreeMap<Member, String> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Some(member) = group_of(pid).and_then(|group| groups.get(&group)) else { continue };
        // It may have ended just now.
        maps.entry(*member)
            .or_default()
            .push_str(&std::fs::read_to_string(entry.path().join("maps")).unwrap_or_default());
    }
    // Nothing can be found out about a process that has just ended; its status is reported.
    maps.retain(|_, text| !text.is_empty());
    maps
}

fn judge(maps: &BTreeMap<Member, String>, provider: &str) -> Findings {
    let mut findings = Findings::default();
    let mut files: BTreeMap<(&str, &str), (Member, &str)> = BTreeMap::new();
    for (member, text) in maps {
        if !text.lines().any(|line| line.ends_with(provider)) {
            findings.without_provider.push(*member);
        }
        findings.libraries.extend(mpi_library(text).map(|library| (*member, library)));
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
            let (first, _) = *files.entry((device, inode)).or_insert((*member, path));
            if first != *member && findings.shared.is_none() {
                findings.shared = Some((first, *member, path.to_owned()));
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

    fn rank(rank: u32) -> Member {
        Member::of_job(Rank(rank))
    }

    fn judged(maps: &[&str]) -> Findings {
        let ranks = (0..).map(rank).zip(maps.iter().map(|text| (*text).to_owned()));
        judge(&ranks.collect(), "/opt/my lib/libstillwire_fi.so")
    }

    #[test]
    fn the_provider_is_looked_for_in_every_rank() {
        assert_eq!(judged(&[PROVIDER, PROVIDER]), Findings::default());
        let other = PROVIDER.replace("my lib", "another");
        assert_eq!(judged(&[PROVIDER, &other, ""]).without_provider, [rank(1), rank(2)]);
    }

    #[test]
    fn the_mpi_library_of_each_rank_is_known() {
        let library = "7f04-7f05 r-xp 00000000 fe:00 78 /usr/my lib/libmpich.so.12.2.2\n";
        let other = "7f04-7f05 r-xp 00000000 fe:00 79 /usr/lib/libmpichfort.so.12.2.2\n";
        let found = judged(&[&format!("{PROVIDER}{other}{library}"), PROVIDER]).libraries;
        assert_eq!(found, [(rank(0), PathBuf::from("/usr/my lib/libmpich.so.12.2.2"))].into());
    }

    /// As MPICH 5.0.2 had them in a job of this id in this life.
    #[test]
    fn files_of_a_world_are_known_by_its_name() {
        let [shm, vci] = files_of_world("stillwire-7c737965a0750e82617b7aa4fc901dfc-1.329da01037221860");
        assert_eq!(shm, Path::new("/dev/shm/mpich_shm_7b574f5c_0"));
        assert_eq!(vci, Path::new("/dev/shm/mpich_vci_7b574f5c_0"));
    }

    #[test]
    fn files_of_a_world_go_together() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let names =
            ["mpich_shm_1_0", "mpich_shm_1_12", "mpich_shm_2_0", "mpich_shm_1_x", "mpich_shm_1", "plain"];
        for name in names {
            std::fs::write(file(name), b"").unwrap();
        }
        remove([file("mpich_shm_1_3"), file("plain")]);
        let left: Vec<_> = names.into_iter().filter(|name| file(name).exists()).collect();
        assert_eq!(left, ["mpich_shm_2_0", "mpich_shm_1_x", "mpich_shm_1"]);
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
        assert_eq!(judged(&[&one, &gone]).shared, Some((rank(0), rank(1), "/dev/shm/mpich_shm_1_0".into())));
        let programs = shared(9, "the_programs_own");
        assert_eq!(judged(&[&programs, &programs]).shared, None);
        let private = one.replace("rw-s", "rw-p");
        assert_eq!(judged(&[&private, &private]).shared, None);
    }
}
