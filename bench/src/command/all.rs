//! All benches but mpi, one after the other.

use std::fmt;
use std::path::{Path, PathBuf};

use drivers::DriverError;
use serde::Serialize;

use super::deltas::{quick_delta, quick_store};
use super::messages::{quick_bulk, quick_latency, quick_moves, quick_rate};
use super::{Shown, quick_checkpointable, quick_freeze, quick_loss, quick_pause, quick_protocol, write};
use crate::BenchError;
use crate::bulk;
use crate::checkpointable;
use crate::delta;
use crate::freeze;
use crate::latency;
use crate::loss;
use crate::moves;
use crate::packets;
use crate::parity::{self, ParityOptions};
use crate::pause;
use crate::progress;
use crate::protocol;
use crate::rate;

/// The report of `all`; each benchmark's own report is in a file.
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

/// Benches that `all` runs, each group of figures about parity counted as one.
const BENCHES: usize = 13;

/// Every bench with the parameters of the figures that are kept.
pub(super) fn all(out: &Path, quick: bool) -> Result<AllReport, BenchError> {
    let mut all_report = AllReport::new(out)?;
    let outcome = each(&mut all_report, quick);
    progress::set_of_all(None);
    outcome.map(|()| all_report)
}

fn each(all_report: &mut AllReport, quick: bool) -> Result<(), BenchError> {
    fn one<Options: Default>(quick: bool, few: fn() -> Options) -> Options {
        if quick { few() } else { Options::default() }
    }
    let mut begun = 0;
    let mut next = || {
        begun += 1;
        progress::set_of_all(Some((begun, BENCHES)));
    };
    next();
    all_report.keep("latency", &latency::run(&one(quick, quick_latency))?)?;
    next();
    all_report.keep("rate", &rate::run(&one(quick, quick_rate))?)?;
    next();
    all_report.keep("bulk", &bulk::run(&one(quick, quick_bulk))?)?;
    next();
    all_report.keep("loss", &loss::run(&one(quick, quick_loss))?)?;
    next();
    all_report.keep("protocol", &protocol::run(&one(quick, quick_protocol))?)?;
    next();
    all_report.keep("checkpointable", &checkpointable::run(&one(quick, quick_checkpointable))?)?;
    next();
    let report = parity::run(&one(quick, ParityOptions::quick))?;
    all_report.keep_drawn("parity", &report, &report.svg())?;
    next();
    for (name, options) in parity::group_figures(quick) {
        let report = parity::run_group(&options)?;
        all_report.keep_drawn(name, &report, &report.svg())?;
    }
    for (name, options) in parity::program_figures(quick) {
        let report = parity::run_programs(&options)?;
        all_report.keep_drawn(name, &report, &report.svg())?;
        all_report.note(name, report.is_right);
    }
    next();
    let report = freeze::run(&one(quick, quick_freeze))?;
    all_report.keep_drawn("freeze", &report, &report.svg())?;
    next();
    all_report.keep_or_skip("moves", moves::run(&one(quick, quick_moves)))?;
    next();
    let report = pause::run(&one(quick, quick_pause))?;
    all_report.keep_drawn("pause", &report, &report.svg())?;
    next();
    let report = delta::run(&one(quick, quick_delta))?;
    all_report.keep_drawn("delta", &report, &report.svg())?;
    all_report.note("delta", report.is_right());
    next();
    let report = packets::run(&one(quick, quick_store))?;
    all_report.keep_drawn("store", &report, &report.svg())?;
    all_report.note("store", report.is_right());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_machine_has_not_is_reported_and_the_rest_goes_on() {
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
        // A benchmark that fails although it can run on this machine ends the whole run.
        let altered = Err::<String, _>(BenchError::Altered { tag: 7 });
        assert!(all_report.keep_or_skip("moves", altered).is_err());
        all_report.note("delta", false);
        assert!(!all_report.is_right() && all_report.to_string().ends_with("delta: WRONG, see its report"));
    }
}
