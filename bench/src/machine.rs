//! Where and how a measurement was made.

use std::fmt;

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
