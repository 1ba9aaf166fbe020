//! Where and how a measurement was made.

use std::fmt;
use std::time::Instant;

use serde::{Deserialize, Serialize};

/// Load per core above which figures are not to be trusted.
const QUIET_LOAD_PER_CORE: f64 = 0.25;

/// The machine, its load before the measurement, and the command.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub struct Machine {
    /// Model name of the processor.
    pub cpu: String,
    /// Processors online.
    pub cores: usize,
    /// Kernel release.
    pub kernel: String,
    /// Load average of the last minute, before the measurement.
    pub load: f64,
    /// The load is low enough for absolute figures.
    pub quiet: bool,
    /// How the program was called.
    pub command: String,
}

impl Machine {
    /// Looks at this machine.
    #[must_use]
    pub fn here() -> Machine {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(": ").map(|(_, name)| name))
            .unwrap_or("unknown");
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let loads = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = loads.split(' ').next().and_then(|first| first.parse().ok()).unwrap_or(0.0);
        let command: Vec<String> = std::env::args().collect();
        #[expect(clippy::cast_precision_loss, reason = "a machine has few cores")]
        let quiet = load <= QUIET_LOAD_PER_CORE * cores as f64;
        Machine {
            cpu: cpu.to_owned(),
            cores,
            kernel: release.trim().to_owned(),
            load,
            quiet,
            command: command.join(" "),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "machine  {}, {} cores, Linux {}", self.cpu, self.cores, self.kernel)?;
        writeln!(f, "command  {}", self.command)?;
        if !self.quiet {
            writeln!(
                f,
                "warning  the machine is not quiet (load {}): trust the ratios, not the absolute figures",
                self.load
            )?;
        }
        Ok(())
    }
}

/// The processors' load meanwhile.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub struct Processor {
    /// Processor time of this process by time: 1 is one core.
    pub cores_used: f64,
    /// That by all cores.
    pub machine_used: f64,
    /// Part of all cores that all processes used; `null` where the system does not report it, or the time was too
    /// short.
    pub machine_busy: Option<f64>,
}

impl Processor {
    /// Part of all cores from which on the machine is taken for the limit.
    const LIMIT: f64 = 0.85;

    /// Nothing was left of the machine.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.machine_busy.unwrap_or(0.0).max(self.machine_used) > Processor::LIMIT
    }
}

/// A stretch of time in which processors are watched.
pub(crate) struct Busy {
    at: Instant,
    own_s: f64,
    ticks: Option<Ticks>,
}

impl Busy {
    pub(crate) fn begin() -> Busy {
        Busy { at: Instant::now(), own_s: processor_seconds(), ticks: Ticks::now() }
    }

    pub(crate) fn end(&self) -> Processor {
        self.end_with(processor_seconds() - self.own_s)
    }

    /// For processes that are measured and are not this one: seconds of processors that they have used meanwhile.
    pub(crate) fn end_with(&self, used_s: f64) -> Processor {
        let cores_used = used_s / self.at.elapsed().as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "a machine has few cores")]
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let machine_busy = self.ticks.zip(Ticks::now()).and_then(|(before, now)| before.busy_until(now));
        Processor { cores_used, machine_used: cores_used / cores, machine_busy }
    }
}

/// Counters of all processors: the first line of `/proc/stat`, proc_stat(5).
#[derive(Clone, Copy)]
struct Ticks {
    idle: u64,
    all: u64,
}

impl Ticks {
    /// Fewer than so many say nothing.
    const MIN: u64 = 20;

    fn now() -> Option<Ticks> {
        Ticks::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    fn parse(stat: &str) -> Option<Ticks> {
        let first = stat.lines().next()?.strip_prefix("cpu ")?;
        let counters: Option<Vec<u64>> = first.split_whitespace().map(|number| number.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are in user already.
        let counters = counters?;
        let idle = counters.get(3)? + counters.get(4)?;
        Some(Ticks { idle, all: counters.iter().take(8).sum() })
    }

    fn busy_until(self, now: Ticks) -> Option<f64> {
        let all = now.all.checked_sub(self.all).filter(|all| *all >= Ticks::MIN)?;
        #[expect(clippy::cast_precision_loss, reason = "ticks of one measurement are few")]
        let idle = now.idle.saturating_sub(self.idle) as f64 / all as f64;
        Some((1.0 - idle).clamp(0.0, 1.0))
    }
}

/// Processor time of this process so far.
fn processor_seconds() -> f64 {
    use nix::sys::resource::{UsageWho, getrusage};
    let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) else { return 0.0 };
    [usage.user_time(), usage.system_time()]
        .into_iter()
        .map(|time| {
            #[expect(clippy::cast_precision_loss, reason = "seconds and microseconds")]
            let seconds = time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
            seconds
        })
        .sum()
}

/// Binds this process, and threads that it starts from now on, to the `place`-th processor that it may use. Two spinning
/// processes that the scheduler puts on one processor would measure the scheduler. Being refused costs only steadiness.
pub(crate) fn pin(place: usize) {
    use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
    let this = nix::unistd::Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this) else { return };
    let usable: Vec<usize> = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu) == Ok(true)).collect();
    if usable.is_empty() {
        return;
    }
    let mut one = CpuSet::new();
    if one.set(usable[place % usable.len()]).is_ok() {
        let _ = sched_setaffinity(this, &one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_idle_is_busy() {
        let before = Ticks::parse("cpu  100 0 50 800 50 0 0 0 7 0\ncpu0 1 2 3\n").expect("counters");
        assert_eq!((before.idle, before.all), (850, 1000));
        let after = Ticks::parse("cpu  150 0 70 820 50 0 5 5 7 0\n").expect("counters");
        let busy = before.busy_until(after).expect("long enough");
        assert!((busy - 0.8).abs() < 1e-9, "{busy}");
        assert_eq!(before.busy_until(before), None);
        assert!(Ticks::parse("intr 1 2").is_none());
    }

    #[test]
    fn a_machine_without_anything_left_is_reported() {
        let with = |machine_used, machine_busy| Processor { cores_used: 1.0, machine_used, machine_busy };
        assert!(with(0.9, None).is_exhausted() && with(0.2, Some(0.95)).is_exhausted());
        assert!(!with(0.5, Some(0.6)).is_exhausted());
    }
}
