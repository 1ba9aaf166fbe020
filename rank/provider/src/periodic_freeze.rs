//! Periodic freezes under a program that knows nothing of them: every few milliseconds each endpoint is frozen, dumped and thawed, and,
//! if asked for, its links are handed from shared memory to the network or back.
//!
//! A periodic freeze is local: the epoch stays as it is, so no peer has to cut too. Now and then the dump is
//! compared with the frozen port, which finds state that a dump would lose.
//! `stillwire-dev bench freeze --mpi` switches it on, and reads the reports.

use core::time::Duration;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use endpoint::Endpoint;
use transport::PortId;
use transport::config::AuthLevel;

use crate::boundary::complain;
use crate::engine::Engine;
use crate::limits::DRAIN_MAX;

/// Milliseconds between two freezes; without it there are none.
const EVERY_VARIABLE: &str = "STILLWIRE_PERIODIC_FREEZE_MS";
/// If it is 1, each freeze hands all links over to another rail, or back.
const HANDOVER_VARIABLE: &str = "STILLWIRE_PERIODIC_FREEZE_HANDOVER";
/// Milliseconds that a port stands still in each freeze, as for a process whose memory is saved; it is announced to
/// peers. Without it: no longer than the dump takes.
const PAUSE_VARIABLE: &str = "STILLWIRE_PERIODIC_FREEZE_PAUSE_MS";
/// Folder into which each endpoint writes its measurements: a file of its own, one JSON object with counts,
/// and with samples in microseconds.
const REPORT_VARIABLE: &str = "STILLWIRE_PERIODIC_FREEZE_REPORT";

/// Of so many freezes one compares the dump with the port.
const COMPARE_EVERY: u64 = 16;

/// Samples of each kind that are kept: the newest. A report's p99.9 wants thousands, and a program may run for days.
const SAMPLES_MAX: usize = 1 << 16;

/// The requested value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    every: Duration,
    pause: Duration,
    handover: bool,
    report: Option<PathBuf>,
}

impl Settings {
    pub(crate) fn from_environment() -> Option<Settings> {
        Some(Settings {
            every: milliseconds(EVERY_VARIABLE)?,
            pause: milliseconds(PAUSE_VARIABLE).unwrap_or_default(),
            handover: std::env::var_os(HANDOVER_VARIABLE).is_some_and(|value| value == "1"),
            report: std::env::var_os(REPORT_VARIABLE).map(PathBuf::from),
        })
    }
}

/// The value of a variable; reports an invalid one.
fn milliseconds(variable: &str) -> Option<Duration> {
    let text = std::env::var_os(variable)?;
    let found = text.to_str().and_then(|text| text.parse().ok()).filter(|found| *found > 0);
    if found.is_none() {
        complain(format_args!("{variable} is {text:?}, expected milliseconds such as 5; it is ignored"));
    }
    found.map(Duration::from_millis)
}

/// The thread of one endpoint. Dropping it ends it.
pub(crate) struct PeriodicFreeze(Option<JoinHandle<()>>);

impl PeriodicFreeze {
    /// Starts periodic freezes of an engine; they end when it closes.
    pub(crate) fn start(engine: &Arc<Engine>, settings: Settings) -> Option<PeriodicFreeze> {
        let weak = Arc::downgrade(engine);
        let thread = std::thread::Builder::new()
            .name("sw-freeze".to_owned())
            .spawn(move || freeze_periodically(&weak, &settings));
        match thread {
            Ok(thread) => Some(PeriodicFreeze(Some(thread))),
            Err(error) => {
                complain(format_args!("no thread for periodic freezes: {error}"));
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

fn freeze_periodically(engine: &Weak<Engine>, settings: &Settings) {
    let mut taken = Taken::default();
    let mut last = None;
    loop {
        std::thread::sleep(settings.every);
        let Some(engine) = engine.upgrade().filter(|engine| !engine.is_closing()) else { break };
        let (port, endpoint) = engine.endpoint();
        taken.ways.look(&endpoint.frames_by_rail());
        if settings.handover && taken.ways.frames.len() > 1 {
            taken.ways.hand_over(endpoint);
        }
        taken.once(endpoint, settings.pause);
        taken.strangers = engine.strangers();
        last = Some(port);
    }
    if let (Some(folder), Some(port)) = (&settings.report, last) {
        let path = folder.join(format!("{}-{:016x}.json", std::process::id(), port.0));
        if let Err(error) = std::fs::write(&path, taken.report(port)) {
            complain(format_args!("{}: {error}", path.display()));
        }
    }
}

/// Which way frames went. The first rail, shared memory where there are several, is in use after an even number of handovers.
#[derive(Default)]
struct Ways {
    handovers: u64,
    /// By rail, so far.
    frames: Vec<u64>,
    /// Over the other rails, while the first was not in use.
    away: u64,
    /// Over the first, after its links had come back.
    back: u64,
}

impl Ways {
    fn look(&mut self, frames: &[u64]) {
        let since = |rail: usize| {
            let before = self.frames.get(rail).copied().unwrap_or(0);
            frames.get(rail).map_or(0, |now| now.saturating_sub(before))
        };
        if self.handovers % 2 == 1 {
            self.away += (1..frames.len()).map(since).sum::<u64>();
        } else if self.handovers > 0 {
            self.back += since(0);
        }
        frames.clone_into(&mut self.frames);
    }

    fn hand_over(&mut self, endpoint: &Endpoint) {
        endpoint.use_rail(0, self.handovers % 2 == 1);
        self.handovers += 1;
    }
}

/// The measurements, in microseconds.
#[derive(Default)]
struct Taken {
    freeze: VecDeque<f64>,
    dump: VecDeque<f64>,
    thaw: VecDeque<f64>,
    freezes: u64,
    auth: Option<AuthLevel>,
    ways: Ways,
    compared: u64,
    refused: u64,
    mismatches: u64,
    /// Frames that were dropped because they were of another job, or not authentic.
    strangers: u64,
    section: Vec<u8>,
}

impl Taken {
    fn once(&mut self, endpoint: &Endpoint, pause: Duration) {
        let section_bytes = self.section.len();
        nic_freeze::make_room(&mut self.section, section_bytes);
        if !pause.is_zero() {
            endpoint.announce_pause(pause);
        }
        endpoint.warm();
        let frozen = match endpoint.freeze(DRAIN_MAX) {
            Ok(frozen) => frozen,
            Err(error) => {
                self.refused += 1;
                complain(format_args!("a periodic freeze was given up: {error}"));
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
        self.auth = Some(frozen.port().auth_level());
        std::thread::sleep(pause);
        keep(&mut self.freeze, frozen.split().freeze);
        keep(&mut self.dump, dumped);
        keep(&mut self.thaw, frozen.thaw());
    }

    fn report(&self, port: PortId) -> String {
        let Ways { handovers, frames, away, back } = &self.ways;
        let rank = crate::log::rank().and_then(|rank| rank.parse::<u32>().ok());
        let mut text = format!(
            r#"{{"port":"{:016x}","rank":{},"auth":{},"freezes":{},"refused":{},"compared":{},"mismatches":{},"handovers":{handovers}"#,
            port.0,
            rank.map_or("null".to_owned(), |rank| rank.to_string()),
            match self.auth {
                None => "null",
                Some(AuthLevel::Off) => r#""off""#,
                Some(AuthLevel::Header) => r#""header""#,
                Some(AuthLevel::Full) => r#""full""#,
            },
            self.freezes,
            self.refused,
            self.compared,
            self.mismatches,
        );
        let strangers = self.strangers;
        text += &format!(
            r#","strangers":{strangers},"frames_away":{away},"frames_back":{back},"frames_by_rail":{frames:?}"#
        );
        for (name, samples) in [("freeze", &self.freeze), ("dump", &self.dump), ("thaw", &self.thaw)] {
            let samples: Vec<String> = samples.iter().map(|sample| format!("{sample:.3}")).collect();
            text += &format!(r#","{name}_us":[{}]"#, samples.join(","));
        }
        text + "}\n"
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
    fn a_report_has_the_counts_and_the_newest_samples() {
        let mut taken = Taken { freezes: 7, ..Taken::default() };
        for n in 0..SAMPLES_MAX as u64 + 2 {
            keep(&mut taken.thaw, Duration::from_nanos(n));
        }
        assert_eq!(taken.thaw.len(), SAMPLES_MAX);
        taken.ways.look(&[3, 4]);
        let text = taken.report(PortId(7));
        assert!(text.starts_with(r#"{"port":"0000000000000007","rank":"#), "{text}");
        for part in
            [r#""freezes":7,"#, r#""frames_by_rail":[3, 4],"#, r#""dump_us":[],"thaw_us":[0.002,0.003,"#]
        {
            assert!(text.contains(part), "{part}: {}", &text[..400]);
        }
        assert!(text.ends_with(",65.537]}\n"));
    }

    #[test]
    fn frames_are_counted_by_the_way_that_links_had_been_reported_to_take() {
        let mut ways = Ways::default();
        ways.look(&[10, 1]);
        assert_eq!((ways.away, ways.back), (0, 0), "nothing was handed over yet");
        ways.handovers = 1;
        ways.look(&[12, 8]);
        assert_eq!((ways.away, ways.back), (7, 0));
        ways.handovers = 2;
        ways.look(&[17, 9]);
        assert_eq!((ways.away, ways.back), (7, 5));
    }
}
