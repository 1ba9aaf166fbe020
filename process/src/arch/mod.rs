//! Differences between processors: system calls, registers, signal frames, the processor's features.

#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::*;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("process: this processor needs a file of its own in process/src/arch");
