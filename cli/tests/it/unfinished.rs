//! Ranks of MPI programs that end with exit code 0 without MPI_Finalize.

use std::time::{Duration, Instant};

use crate::support::pmi::{BARRIER, END, ends};

#[test]
fn ranks_that_leave_out_mpi_finalize_end_well_if_nobody_misses_them() {
    let all = ends(2, &["--json"], &[&["map"], &BARRIER]);
    assert_eq!(all.code, Some(0), "{all:?}");
    let words = "ranks 0, 1 ended with exit code 0 without MPI_Finalize";
    assert!(all.json()["warnings"][0].as_str().is_some_and(|warning| warning.starts_with(words)), "{all:?}");
    // One of them does, and others finalize later.
    let one = ends(3, &[], &[&["map"], &BARRIER, &["only:1", "exit:0", "sleep:1"], &END]);
    assert_eq!(one.code, Some(0), "{one:?}");
    one.says(&["rank 1 ended with exit code 0 without MPI_Finalize"]);
    // A rank that does call it is not named.
    let none = ends(2, &["--json"], &[&["map"], &BARRIER, &END]);
    assert_eq!((none.code, &none.json()["warnings"]), (Some(0), &serde_json::json!([])), "{none:?}");
}

#[test]
fn a_rank_that_leaves_out_mpi_finalize_and_is_missed_has_died() {
    let words = "rank 1 ended with exit code 0 without MPI_Finalize, and ranks 0, 2 still ran";
    let waits: [(&[&str], Duration); 2] = [
        // Nobody can see for which event another rank waits.
        (&["only:1", "exit:0", "sleep:60"], Duration::from_secs(10)),
        // At a barrier of PMI it is seen.
        (&["only:1", "exit:0", "sleep:1", "say:cmd=barrier_in", "hear:x"], Duration::ZERO),
    ];
    for (steps, at_least) in waits {
        let started = Instant::now();
        let done = ends(3, &[], &[&["map"], &BARRIER, steps]);
        assert_eq!(done.code, Some(4), "{done:?}");
        done.says(&[words, "rank 1 exited with code 0 before it had finished"]);
        let took = started.elapsed();
        assert!(
            took >= at_least && (at_least != Duration::ZERO || took < Duration::from_secs(9)),
            "{took:?}"
        );
    }
}
