//! Rehearses checkpoints under a program that knows nothing of them: every few milliseconds each endpoint is frozen, dumped and thawed, and,
//! if asked for, its links are handed from shared memory to the network or back.
//!
//! A rehearsal is local: the epoch stays as it is, so no peer has to cut too. Now and then the dump is compared with the frozen port, which
//! finds what a dump would lose. `stillwire bench freeze --mpi` switches it on, and reads the reports.

use core::time::Duration;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use endpoint::Endpoint;
use transport::PortId;

use crate::boundary::complain;
use crate::engine::Engine;
use crate::limits::DRAIN_MAX;

/// Milliseconds between two rehearsals; without it there are none.
const EVERY_VARIABLE: &str = "STILLWIRE_REHEARSE_MS";
/// If it is 1, each rehearsal hands all links over to another rail, or back.
const HANDOVER_VARIABLE: &str = "STILLWIRE_REHEARSE_HANDOVER";
/// Folder into which each endpoint writes what it has measured: a file of its own, one JSON object.
const REPORT_VARIABLE: &str = "STILLWIRE_REHEARSE_REPORT";

/// Of so many rehearsals one compares the dump with the port.
const COMPARE_EVERY: u64 = 16;

/// Samples of each kind that are kept: the newest. A report's p99 wants thousands, and a program may run for days.
const SAMPLES_MAX: usize = 1 << 16;

/// What was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    every: Duration,
    handover: bool,
    report: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn from_environment() -> Option<Settings> {
        let text = std::env::var_os(EVERY_VARIABLE)?;
        let every = text.to_str().and_then(|text| text.parse().ok()).filter(|every| *every > 0);
        if every.is_none() {
            complain(format_args!(
                "{EVERY_VARIABLE} is {text:?}, expected milliseconds such as 5; it is ignored"
            ));
        }
        Some(Settings {
            every: Duration::from_millis(every?),
            handover: std::env::var_os(HANDOVER_VARIABLE).is_some_and(|value| value == "1"),
            report: std::env::var_os(REPORT_VARIABLE).map(PathBuf::from),
        })
    }
}

/// The thread of one endpoint. Dropping it ends it.
pub(crate) struct Rehearsal(Option<JoinHandle<()>>);

impl Rehearsal {
    /// Starts rehearsals of an engine; they end when it closes.
    pub(crate) fn start(engine: &Arc<Engine>, settings: Settings) -> Option<Rehearsal> {
        let weak = Arc::downgrade(engine);
        let thread = std::thread::Builder::new()
            .name("sw-rehearsal".to_owned())
            .spawn(move || rehearse(&weak, &settings));
        match thread {
            Ok(thread) => Some(Rehearsal(Some(thread))),
            Err(error) => {
                complain(format_args!("no thread to rehearse checkpoints: {error}"));
                None
            }
        }
    }

    /// Waits until it has ended and written its report.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.0.take()
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

fn rehearse(engine: &Weak<Engine>, settings: &Settings) {
    let mut taken = Taken::default();
    let mut last = None;
    loop {
        std::thread::sleep(settings.every);
        let Some(engine) = engine.upgrade().filter(|engine| !engine.is_closing()) else { break };
        let (port, endpoint) = engine.endpoint();
        if settings.handover && endpoint.frames_by_rail().len() > 1 {
            endpoint.use_rail(0, taken.handovers % 2 == 1);
            taken.handovers += 1;
        }
        taken.once(endpoint);
        last = Some(port);
    }
    if let (Some(folder), Some(port)) = (&settings.report, last) {
        let path = folder.join(format!("{}-{:016x}.json", std::process::id(), port.0));
        if let Err(error) = std::fs::write(&path, taken.report(port)) {
            complain(format_args!("{}: {error}", path.display()));
        }
    }
}

/// What was measured, in microseconds.
#[derive(Default)]
struct Taken {
    freeze: VecDeque<f64>,
    dump: VecDeque<f64>,
    thaw: VecDeque<f64>,
    freezes: u64,
    handovers: u64,
    compared: u64,
    refused: u64,
    mismatches: u64,
    section: Vec<u8>,
}

impl Taken {
    fn once(&mut self, endpoint: &Endpoint) {
        let section_bytes = self.section.len();
        nic_freeze::make_room(&mut self.section, section_bytes);
        let frozen = match endpoint.freeze(DRAIN_MAX) {
            Ok(frozen) => frozen,
            Err(error) => {
                self.refused += 1;
                complain(format_args!("a rehearsal was given up: {error}"));
                return;
            }
        };
        let begun = Instant::now();
        nic_freeze::dump(frozen.port(), &mut self.section);
        let dumped = begun.elapsed();
        if self.freezes.is_multiple_of(COMPARE_EVERY) {
            self.compared += 1;
            if let Err(mismatch) =
                nic_freeze::compare(nic_freeze::SECTION_VERSION, &self.section, frozen.port())
            {
                self.mismatches += 1;
                complain(format_args!("a dump is not what was frozen: {mismatch}"));
            }
        }
        self.freezes += 1;
        keep(&mut self.freeze, frozen.split().freeze);
        keep(&mut self.dump, dumped);
        keep(&mut self.thaw, frozen.thaw());
    }

    fn report(&mut self, port: PortId) -> String {
        let mut times = String::new();
        for (name, samples) in
            [("freeze", &mut self.freeze), ("dump", &mut self.dump), ("thaw", &mut self.thaw)]
        {
            let samples = samples.make_contiguous();
            samples.sort_unstable_by(f64::total_cmp);
            let at = |part: usize| {
                samples.get(samples.len().saturating_sub(1) * part / 1000).copied().unwrap_or(0.0)
            };
            times += &format!(
                r#","{name}_us_p50":{:.2},"{name}_us_p99":{:.2},"{name}_us_max":{:.2}"#,
                at(500),
                at(990),
                at(1000)
            );
        }
        format!(
            "{{\"port\":\"{:016x}\",\"freezes\":{},\"refused\":{},\"compared\":{},\"mismatches\":{},\"handovers\":{}{times}}}\n",
            port.0, self.freezes, self.refused, self.compared, self.mismatches, self.handovers,
        )
    }
}

fn keep(samples: &mut VecDeque<f64>, time: Duration) {
    if samples.len() == SAMPLES_MAX {
        samples.pop_front();
    }
    samples.push_back(time.as_secs_f64() * 1e6);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_middle_and_the_ends_of_the_newest_samples() {
        let mut taken = Taken { freezes: 7, ..Taken::default() };
        for n in 0..SAMPLES_MAX + 5000 {
            for samples in [&mut taken.freeze, &mut taken.dump, &mut taken.thaw] {
                keep(samples, Duration::from_micros(if n < 5000 { 1_000_000 } else { n as u64 % 1024 }));
            }
        }
        assert_eq!(taken.thaw.len(), SAMPLES_MAX);
        let text = taken.report(PortId(7));
        assert!(text.contains(r#""freezes":7,"#), "{text}");
        assert!(
            text.contains(r#""thaw_us_p50":511.00,"thaw_us_p99":1013.00,"thaw_us_max":1023.00}"#),
            "{text}"
        );
        assert!(Taken::default().report(PortId(7)).contains(r#""freeze_us_p50":0.00"#));
    }
}
