//! All benches but mpi, one after the other.

use std::fmt;
use std::path::{Path, PathBuf};

use drivers::DriverError;
use serde::Serialize;

use super::deltas::quick_delta;
use super::{Shown, quick_freeze, quick_pause, write};
use crate::BenchError;
use crate::bulk::{self, BulkOptions};
use crate::checkpointable::{self, CheckpointableOptions};
use crate::delta::{self, DeltaBenchOptions};
use crate::freeze::{self, FreezeOptions};
use crate::latency::{self, LatencyOptions};
use crate::loss::{self, LossOptions};
use crate::moves::{self, MovesOptions};
use crate::packets::{self, StoreOptions};
use crate::parity::{self, ParityOptions};
use crate::pause::{self, PauseOptions};
use crate::protocol::{self, ProtocolOptions};
use crate::rate::{self, RateOptions};

/// What `all` says for itself; the reports are in their files.
#[derive(Serialize)]
pub(super) struct AllReport {
    bench: &'static str,
    #[serde(skip)]
    folder: PathBuf,
    out: String,
    benches: Vec<&'static str>,
    /// The benches that could not run here.
    skipped: Vec<Skipped>,
    /// Those that came to a wrong result.
    wrong: Vec<&'static str>,
    #[serde(skip)]
    texts: Vec<String>,
}

#[derive(Serialize)]
struct Skipped {
    bench: &'static str,
    why: String,
}

impl fmt::Display for AllReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.texts.join("\n\n"))?;
        let wrong = self.wrong.iter().map(|bench| format!("\n\n{bench}: WRONG, see its report"));
        wrong.into_iter().try_for_each(|line| f.write_str(&line))
    }
}

impl AllReport {
    fn new(out: &Path) -> Result<AllReport, BenchError> {
        std::fs::create_dir_all(out).map_err(|error| BenchError::Write { path: out.to_owned(), error })?;
        Ok(AllReport {
            bench: "all",
            folder: out.to_owned(),
            out: out.to_string_lossy().into_owned(),
            benches: Vec::new(),
            skipped: Vec::new(),
            wrong: Vec::new(),
            texts: Vec::new(),
        })
    }

    /// Whether everything came to the right result.
    pub(super) fn is_right(&self) -> bool {
        self.wrong.is_empty()
    }

    fn keep<R: Serialize + fmt::Display>(
        &mut self,
        name: &'static str,
        report: &R,
    ) -> Result<(), BenchError> {
        let Shown { text, json } = Shown::of(report)?;
        write(&self.folder.join(format!("{name}.json")), &format!("{json}\n"))?;
        write(&self.folder.join(format!("{name}.txt")), &format!("{text}\n"))?;
        self.benches.push(name);
        self.texts.push(text);
        Ok(())
    }

    /// The same with a chart beside it.
    fn keep_drawn<R: Serialize + fmt::Display>(
        &mut self,
        name: &'static str,
        report: &R,
        svg: &str,
    ) -> Result<(), BenchError> {
        write(&self.folder.join(format!("{name}.svg")), svg)?;
        self.keep(name, report)
    }

    /// A bench that needs facilities that some machines lack: without them, it reports that.
    fn keep_or_skip<R: Serialize + fmt::Display>(
        &mut self,
        name: &'static str,
        report: Result<R, BenchError>,
    ) -> Result<(), BenchError> {
        match report {
            Ok(report) => self.keep(name, &report),
            Err(
                why @ (BenchError::NoNamespaces { .. }
                | BenchError::Driver(DriverError::CapabilityMissing { .. })),
            ) => {
                let why = why.to_string();
                self.texts.push(format!("{name}: skipped: {why}"));
                self.skipped.push(Skipped { bench: name, why });
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn note(&mut self, name: &'static str, is_right: bool) {
        self.wrong.extend((!is_right).then_some(name));
    }
}

/// Every bench with the parameters of the figures that are kept.
pub(super) fn all(out: &Path, quick: bool) -> Result<AllReport, BenchError> {
    let mut all_report = AllReport::new(out)?;
    let runs = |full: usize| if quick { 1 } else { full };
    let defaults = LatencyOptions::default();
    let latency = LatencyOptions { pairs: runs(defaults.pairs), runs: runs(defaults.runs), ..defaults };
    all_report.keep("latency", &latency::run(&latency)?)?;
    let defaults = RateOptions::default();
    let rate = RateOptions { pairs: runs(defaults.pairs), runs: runs(defaults.runs), ..defaults };
    all_report.keep("rate", &rate::run(&rate)?)?;
    let defaults = BulkOptions::default();
    all_report.keep("bulk", &bulk::run(&BulkOptions { runs: runs(defaults.runs), ..defaults })?)?;
    let defaults = LossOptions::default();
    let losses = if quick { 50 } else { defaults.losses };
    all_report.keep("loss", &loss::run(&LossOptions { runs: runs(defaults.runs), losses, ..defaults })?)?;
    let defaults = ProtocolOptions::default();
    all_report
        .keep("protocol", &protocol::run(&ProtocolOptions { runs: runs(defaults.runs), ..defaults })?)?;
    let defaults = CheckpointableOptions::default();
    let options = CheckpointableOptions { pairs: runs(defaults.pairs), ..defaults };
    all_report.keep("checkpointable", &checkpointable::run(&options)?)?;
    let defaults = ParityOptions::default();
    let bytes = quick.then_some(1 << 20);
    let report = parity::run(&ParityOptions { runs: runs(defaults.runs), bytes, ..defaults })?;
    all_report.keep_drawn("parity", &report, &report.svg())?;
    for (name, options) in parity::group_figures(quick) {
        let report = parity::run_group(&options)?;
        all_report.keep_drawn(name, &report, &report.svg())?;
    }
    for (name, options) in parity::program_figures(quick) {
        let report = parity::run_programs(&options)?;
        all_report.keep_drawn(name, &report, &report.svg())?;
        all_report.note(name, report.is_right);
    }
    let report = freeze::run(&if quick { quick_freeze() } else { FreezeOptions::default() })?;
    all_report.keep_drawn("freeze", &report, &report.svg())?;
    let defaults = MovesOptions::default();
    all_report
        .keep_or_skip("moves", moves::run(&MovesOptions { moves: runs(defaults.moves), ..defaults }))?;
    let report = pause::run(&if quick { quick_pause() } else { PauseOptions::default() })?;
    all_report.keep_drawn("pause", &report, &report.svg())?;
    let report = delta::run(&if quick { quick_delta() } else { DeltaBenchOptions::default() })?;
    all_report.keep_drawn("delta", &report, &report.svg())?;
    all_report.note("delta", report.is_right());
    let defaults = StoreOptions::default();
    let bytes = if quick { vec![2 << 20] } else { defaults.bytes.clone() };
    let report = packets::run(&StoreOptions { runs: runs(defaults.runs), bytes, ..defaults })?;
    all_report.keep_drawn("store", &report, &report.svg())?;
    all_report.note("store", report.is_right());
    Ok(all_report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_machine_has_not_is_told_and_the_rest_goes_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut all_report = AllReport::new(folder.path()).expect("a folder");
        let none = |what: &str| Err::<String, _>(BenchError::NoNamespaces { what: what.to_owned() });
        all_report.keep_or_skip("moves", none("no rights")).expect("it is skipped");
        all_report.keep("latency", &"all is well".to_owned()).expect("room for a file");
        let text = all_report.to_string();
        assert!(text.starts_with(
            "moves: skipped: no network namespaces to measure AF_XDP in: no rights; run this as root"
        ));
        assert!(text.ends_with("all is well"));
        let json = serde_json::to_value(&all_report).expect("an object");
        assert_eq!(json["benches"], serde_json::json!(["latency"]));
        assert_eq!(json["skipped"][0]["bench"], "moves");
        assert!(all_report.is_right());
        assert!(!folder.path().join("moves.json").exists());
        // What fails although it could be measured is no reason to go on.
        let altered = Err::<String, _>(BenchError::Altered { tag: 7 });
        assert!(all_report.keep_or_skip("moves", altered).is_err());
        all_report.note("delta", false);
        assert!(!all_report.is_right() && all_report.to_string().ends_with("delta: WRONG, see its report"));
    }
}
