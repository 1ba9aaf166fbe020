//! The launcher's facts about this process that its MPI library does not know.

use std::sync::OnceLock;

use crate::boundary::complain;

/// How many ranks `stillwire run` has started.
const RANKS_VARIABLE: &str = "STILLWIRE_RANKS";
/// A variable that Open MPI's own launcher sets.
const OPENMPI_VARIABLE: &str = "OMPI_COMM_WORLD_SIZE";

/// Whether this process should be one rank of several, but its library is Open MPI and has not been started by its own
/// launcher: it takes itself for a job of one rank, and so does every other. `stillwire run` hands Open MPI's programs
/// to their mpirun; one that it could not recognise (behind a shell script) is stopped here, by offering it no network.
pub(crate) fn is_alone_by_mistake() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let ranks = std::env::var(RANKS_VARIABLE).ok().and_then(|text| text.parse::<u32>().ok());
        let maps = || std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mistaken = is_mistake(ranks, std::env::var_os(OPENMPI_VARIABLE).is_some(), maps);
        if mistaken {
            complain(format_args!(
                "this is an Open MPI program, which only its own mpirun can start as one of several ranks. Start it with \
                 `stillwire run --mpi openmpi`, or use `stillwire env` and mpirun; if each rank is to be alone, --mpi none"
            ));
        }
        mistaken
    })
}

fn is_mistake(ranks: Option<u32>, by_mpirun: bool, maps: impl FnOnce() -> String) -> bool {
    let several = ranks.is_some_and(|ranks| ranks > 1);
    several && !by_mpirun && maps().lines().any(|line| line.contains("/libopen-pal.so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_lone_open_mpi_process_among_several_is_a_mistake() {
        let openmpi = || {
            "7f00-7f01 r-xp 0 fe:00 7 /l/libmpi.so.40\n7f02-7f03 r-xp 0 fe:00 8 /l/libopen-pal.so.80.0.5\n"
                .into()
        };
        let mpich = || "7f00-7f01 r-xp 0 fe:00 7 /l/libmpi.so.12\n".into();
        assert!(is_mistake(Some(2), false, openmpi));
        assert!(!is_mistake(Some(2), true, openmpi) && !is_mistake(Some(1), false, openmpi));
        assert!(!is_mistake(None, false, openmpi) && !is_mistake(Some(2), false, mpich));
    }
}
