//! The report of `bench freeze --mpi`.

use std::fmt;

use serde::Serialize;

use super::ports::Port;
use super::{NAME, PeriodicFreezeOptions, Runs};
use crate::machine::Machine;
use crate::statistics::{Summary, paired_ratios, percentile, sorted};

/// The ports of one rank, over all runs with freezes, or of all ranks together.
#[derive(Clone, Serialize, Default, Debug)]
pub struct RankRow {
    /// Times that a port was frozen, dumped and thawed.
    pub freezes: u64,
    /// Times that a port could not be frozen, and went on.
    pub refused: u64,
    /// Dumps that were compared with the frozen port, one of 16.
    pub dumps_compared: u64,
    /// Those that differed from it.
    pub mismatches: u64,
    /// Times that all links were handed from shared memory to UDP, or back.
    pub handovers: u64,
    /// Frames that went over UDP after links had been handed there.
    pub frames_away: u64,
    /// Frames that went through shared memory after links had been handed back.
    pub frames_back: u64,
    /// Freeze, microseconds: from the call until nothing can touch the port's memory, waiting for the gate included.
    pub freeze_us_p50: f64,
    /// Likewise.
    pub freeze_us_p99: f64,
    /// Likewise.
    pub freeze_us_p999: f64,
    /// Likewise.
    pub freeze_us_max: f64,
    /// Dump, microseconds.
    pub dump_us_p50: f64,
    /// Likewise.
    pub dump_us_p99: f64,
    /// Likewise.
    pub dump_us_p999: f64,
    /// Likewise.
    pub dump_us_max: f64,
    /// Thaw, microseconds.
    pub thaw_us_p50: f64,
    /// Likewise.
    pub thaw_us_p99: f64,
    /// Likewise.
    pub thaw_us_p999: f64,
    /// Likewise.
    pub thaw_us_max: f64,
}

impl RankRow {
    fn of<'a>(ports: impl Iterator<Item = &'a Port> + Clone) -> RankRow {
        let sum = |count: fn(&Port) -> u64| ports.clone().map(count).sum();
        let times = |samples: fn(&Port) -> &[f64]| {
            let all = sorted(ports.clone().flat_map(samples).copied().collect());
            [0.5, 0.99, 0.999, 1.0].map(|part| percentile(&all, part))
        };
        let [freeze_us_p50, freeze_us_p99, freeze_us_p999, freeze_us_max] = times(|port| &port.freeze_us);
        let [dump_us_p50, dump_us_p99, dump_us_p999, dump_us_max] = times(|port| &port.dump_us);
        let [thaw_us_p50, thaw_us_p99, thaw_us_p999, thaw_us_max] = times(|port| &port.thaw_us);
        RankRow {
            freezes: sum(|port| port.freezes),
            refused: sum(|port| port.refused),
            dumps_compared: sum(|port| port.compared),
            mismatches: sum(|port| port.mismatches),
            handovers: sum(|port| port.handovers),
            frames_away: sum(|port| port.frames_away),
            frames_back: sum(|port| port.frames_back),
            freeze_us_p50,
            freeze_us_p99,
            freeze_us_p999,
            freeze_us_max,
            dump_us_p50,
            dump_us_p99,
            dump_us_p999,
            dump_us_max,
            thaw_us_p50,
            thaw_us_p99,
            thaw_us_p999,
            thaw_us_max,
        }
    }
}

/// The result.
#[derive(Clone, Serialize, Debug)]
pub struct PeriodicFreezeReport {
    /// "freeze_mpi".
    pub bench: &'static str,
    /// Where it was measured.
    pub machine: Machine,
    /// The program that ran.
    pub program: String,
    /// Processes.
    pub processes: u32,
    /// "auto", "shm" or "udp".
    pub rails: &'static str,
    /// Milliseconds between two freezes of a port.
    pub every_ms: u32,
    /// Milliseconds that a port stood still each time; 0: no longer than the dump took.
    pub pause_ms: u32,
    /// Whether links were handed over at each freeze.
    pub handover: bool,
    /// Runs with freezes.
    pub pairs: usize,
    /// Seconds that these runs lasted, all together.
    pub frozen_seconds: f64,
    /// Every run's result was right.
    pub verified: bool,
    /// How that is known.
    pub verified_by: String,
    /// Time with freezes to time without; 1: none. Median over the runs with freezes, each against the mean of its neighbours.
    pub slowdown: f64,
    /// These ratios.
    pub slowdown_spread: Summary,
    /// Runs without freezes: seconds of a round of our program, or of a whole run of another.
    pub plain_seconds: Summary,
    /// Likewise with freezes.
    pub frozen_run_seconds: Summary,
    /// All ranks together.
    #[serde(flatten)]
    pub all: RankRow,
    /// By rank; empty if the launcher does not give ranks their numbers.
    pub ranks: Vec<RankRow>,
    /// Descriptions of the failures; empty if all is well.
    pub problems: Vec<String>,
}

impl PeriodicFreezeReport {
    pub(super) fn new(machine: Machine, options: &PeriodicFreezeOptions, runs: Runs) -> PeriodicFreezeReport {
        let Runs { plain, frozen, frozen_seconds, ports, mut problems, verified } = runs;
        let of_rank = |rank| RankRow::of(ports.iter().filter(move |port| port.rank == Some(rank)));
        let ranks: Vec<RankRow> = (0..options.ranks).map(of_rank).collect();
        let all = RankRow::of(ports.iter());
        for (rank, row) in ranks.iter().enumerate().filter(|_| verified) {
            if row.freezes == 0 {
                problems.push(format!(
                    "no port of rank {rank} was frozen: does the program use another MPI library?"
                ));
            } else if options.handover && (row.frames_away == 0 || row.frames_back == 0) {
                problems.push(format!("links of rank {rank} were not handed over: {}", unmoved(row)));
            }
        }
        if all.mismatches > 0 {
            problems.push(format!("{} dumps differ from the frozen port", all.mismatches));
        }
        let slowdown_spread = Summary::of(&paired_ratios(&frozen, &plain));
        let words = |words: &Vec<_>| {
            words.iter().map(|word: &std::ffi::OsString| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        PeriodicFreezeReport {
            bench: "freeze_mpi",
            machine,
            program: if options.program.is_empty() { NAME.to_owned() } else { words(&options.program) },
            processes: options.ranks,
            rails: options.rails.name(),
            every_ms: options.every_ms,
            pause_ms: options.pause_ms,
            handover: options.handover,
            pairs: frozen.len(),
            frozen_seconds,
            verified,
            verified_by: match &options.expect {
                Some(words) => format!("printing '{words}'"),
                None if options.program.is_empty() => "checking every result".to_owned(),
                None => "its exit code alone".to_owned(),
            },
            slowdown: slowdown_spread.median,
            slowdown_spread,
            plain_seconds: Summary::of(&plain),
            frozen_run_seconds: Summary::of(&frozen),
            all,
            ranks,
            problems,
        }
    }
}

fn unmoved(row: &RankRow) -> String {
    format!(
        "{} frames went over UDP and {} through shared memory after that",
        row.frames_away, row.frames_back
    )
}

impl fmt::Display for PeriodicFreezeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.machine)?;
        writeln!(f, "program  {}: {} ranks under MPICH, rails {}", self.program, self.processes, self.rails)?;
        writeln!(
            f,
            "freezes  every {} ms in each rank{}, for {:.1} s in {} runs; in turns with {} runs without",
            self.every_ms,
            if self.pause_ms > 0 { format!(", each for {} ms", self.pause_ms) } else { String::new() },
            self.frozen_seconds,
            self.pairs,
            self.plain_seconds.runs
        )?;
        writeln!(
            f,
            "\n{:>5} {:>8} {:>7} {:>8} {:>10} {:>9}  {:>24}  {:>24}  {:>24}",
            "", "", "", "dumps", "", "", "freeze, us", "dump, us", "thaw, us"
        )?;
        let percentiles = "p50     p99   p99.9";
        writeln!(
            f,
            "{:>5} {:>8} {:>7} {:>8} {:>10} {:>9}  {percentiles:>24}  {percentiles:>24}  {percentiles:>24}",
            "rank", "freezes", "refused", "compared", "mismatches", "handovers"
        )?;
        let named = self.ranks.iter().enumerate().map(|(rank, row)| (rank.to_string(), row));
        for (rank, row) in named.chain([("all".to_owned(), &self.all)]) {
            let times = |p50: f64, p99: f64, p999: f64| format!("{p50:.2} {p99:7.2} {p999:7.1}");
            writeln!(
                f,
                "{rank:>5} {:>8} {:>7} {:>8} {:>10} {:>9}  {:>24}  {:>24}  {:>24}",
                row.freezes,
                row.refused,
                row.dumps_compared,
                row.mismatches,
                row.handovers,
                times(row.freeze_us_p50, row.freeze_us_p99, row.freeze_us_p999),
                times(row.dump_us_p50, row.dump_us_p99, row.dump_us_p999),
                times(row.thaw_us_p50, row.thaw_us_p99, row.thaw_us_p999),
            )?;
        }
        writeln!(f)?;
        if self.handover {
            let RankRow { frames_away, frames_back, .. } = self.all;
            writeln!(
                f,
                "handed over: {frames_away} frames went over UDP after links were handed there, {frames_back} through shared \
                 memory after they came back"
            )?;
        }
        let Summary { min, max, .. } = self.slowdown_spread;
        writeln!(
            f,
            "slowdown: {:.3} times the time without freezes ({min:.3} to {max:.3} over {} runs)",
            self.slowdown, self.pairs
        )?;
        write!(f, "verified: {}, by {}", if self.verified { "yes" } else { "NO" }, self.verified_by)?;
        for problem in &self.problems {
            write!(f, "\nWRONG: {problem}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(rank: u32, freezes: u64) -> Port {
        let samples: Vec<f64> = (0..freezes).map(|n| f64::from(u32::try_from(n).expect("few"))).collect();
        let [freeze_us, dump_us, thaw_us] = [(); 3].map(|()| samples.clone());
        Port { rank: Some(rank), freezes, compared: 1, freeze_us, dump_us, thaw_us, ..Port::default() }
    }

    fn report(options: &PeriodicFreezeOptions, ports: Vec<Port>) -> PeriodicFreezeReport {
        let (plain, frozen) = (vec![1.0, 1.0, 1.0], vec![1.1, 1.3]);
        let runs = Runs { plain, frozen, ports, verified: true, ..Runs::default() };
        PeriodicFreezeReport::new(Machine::here(), options, runs)
    }

    #[test]
    fn samples_of_a_rank_are_taken_together_and_the_slowdown_is_paired() {
        let report = report(&PeriodicFreezeOptions::default(), vec![port(0, 101), port(1, 50), port(0, 101)]);
        assert_eq!((report.ranks[0].freezes, report.ranks[1].freezes, report.all.freezes), (202, 50, 252));
        assert_eq!(report.ranks[0].freeze_us_p50, 50.0);
        assert_eq!(report.ranks[1].dump_us_max, 49.0);
        assert!(report.problems.is_empty(), "{:?}", report.problems);
        assert_eq!((report.slowdown_spread.min, report.slowdown_spread.max), (1.1, 1.3));
        let text = report.to_string();
        assert!(text.ends_with("verified: yes, by checking every result"), "{text}");
        let json = serde_json::to_value(&report).expect("numbers");
        for key in ["verified", "slowdown", "freezes", "freeze_us_p50", "dumps_compared", "ranks"] {
            assert!(!json[key].is_null(), "{key} in {json}");
        }
    }

    #[test]
    fn a_rank_without_freezes_or_handovers_is_a_problem() {
        let missing = report(&PeriodicFreezeOptions::default(), vec![port(0, 100)]);
        assert_eq!(missing.problems.len(), 1, "{:?}", missing.problems);
        assert!(missing.problems[0].contains("no port of rank 1 was frozen"), "{:?}", missing.problems);
        let options = PeriodicFreezeOptions { handover: true, ..PeriodicFreezeOptions::default() };
        let mut moved = port(0, 100);
        (moved.frames_away, moved.frames_back) = (5, 6);
        let unmoved = report(&options, vec![moved, port(1, 100)]);
        assert_eq!(unmoved.problems.len(), 1, "{:?}", unmoved.problems);
        assert!(
            unmoved.problems[0].contains("links of rank 1 were not handed over"),
            "{:?}",
            unmoved.problems
        );
        let mismatch = Port { mismatches: 1, ..port(1, 10) };
        let wrong = report(&PeriodicFreezeOptions::default(), vec![port(0, 10), mismatch]);
        assert_eq!(wrong.problems, ["1 dumps differ from the frozen port"]);
    }
}
