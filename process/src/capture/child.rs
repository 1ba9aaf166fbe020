//! Child processes at the cut: our own, which writes an image while the program runs, and the program's, which cannot be saved.

use std::sync::atomic::Ordering;

use super::save::{self, Fault, SaveFault, SaveRoom, Work};
use crate::pages::{Pace, Sum};
use crate::sys::{self, Errno};

/// A child without exit signal: the program's `wait(2)` does not see it.
pub(super) fn fork() -> Result<usize, Errno> {
    // SAFETY: no flag: a copy of this process, of which only this thread runs.
    unsafe { sys::call(libc::SYS_clone, [0; 6]) }
}

pub(super) fn in_child(
    work: &Work<'_>,
    (maps, smaps): (&mut [u8], &mut [u8]),
    room: SaveRoom<'_>,
    sum: &mut dyn Sum,
    pace: Option<&mut (dyn Pace + 'static)>,
    report: &super::room::Report,
) -> ! {
    // SAFETY: this process has but this thread, and shares nothing with the program but the scratch and open files.
    unsafe {
        let _ = sys::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as usize);
        let _ = sys::prctl(libc::PR_SET_NAME, crate::preflight::WRITER.as_ptr() as usize);
        // Others who wait for the end of a pipe or connection must not wait for us.
        let sink = work.sink as usize;
        if let Some(below) = sink.checked_sub(1) {
            let _ = sys::call(libc::SYS_close_range, [0, below, 0, 0, 0, 0]);
        }
        let _ = sys::call(libc::SYS_close_range, [sink + 1, u32::MAX as usize, 0, 0, 0, 0]);
    }
    let outcome =
        all_is_there(work, maps).and_then(|()| save::protect(work.maps, work.plan, true)).and_then(|()| {
            // Before the pages are written: later, the parent's text may be another.
            let read = sys::read_whole(c"/proc/self/smaps", smaps);
            let read = read.map_err(|errno| SaveFault { fault: Fault::Maps, address: 0, errno })?;
            report.smaps.store(read as u64, Ordering::Relaxed);
            save::save(work, room, sum, pace, report)
        });
    if let Err(fault) = outcome {
        save::record_fault(report, fault);
    }
    loop {
        // SAFETY: ends this process.
        let _ = unsafe { sys::call(libc::SYS_exit_group, [usize::from(outcome.is_err()), 0, 0, 0, 0, 0]) };
    }
}

/// Whether the child has every region to save.
fn all_is_there(work: &Work<'_>, maps: &mut [u8]) -> Result<(), SaveFault> {
    let fault = |address, errno| SaveFault { fault: Fault::Maps, address, errno };
    let read = sys::read_whole(c"/proc/self/maps", maps).map_err(|errno| fault(0, errno))?;
    let maps = maps.get(..read).unwrap_or(&[]);
    for line in crate::maps::lines(work.maps).flatten() {
        if work.plan.saved(&line) != crate::pages::Saved::Changed {
            continue;
        }
        for part in work.plan.parts(&line) {
            if !save::covers(maps, part.clone()) {
                return Err(SaveFault {
                    fault: Fault::Missing,
                    address: part.start,
                    errno: Errno(libc::ENOMEM),
                });
            }
        }
    }
    Ok(())
}

/// Whether the program has children, ended ones that it has not waited for included. Without `__WALL`, forks of ours that write images do not count.
pub(super) fn has_child() -> bool {
    let flags = (libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) as usize;
    // SAFETY: reports nothing but whether there is one, and reaps none.
    let found = unsafe { sys::call(libc::SYS_waitid, [libc::P_ALL as usize, 0, 0, flags, 0, 0]) };
    found.is_ok()
}

pub(super) fn kill(child: u32) -> i32 {
    // SAFETY: our own child.
    let _ = unsafe { sys::call(libc::SYS_kill, [child as usize, libc::SIGKILL as usize, 0, 0, 0, 0]) };
    wait(child).unwrap_or(0)
}

/// Waits for the end of our child.
pub(super) fn wait(child: u32) -> Result<i32, Errno> {
    let mut status = 0i32;
    loop {
        // SAFETY: the kernel writes the status.
        let answer = unsafe {
            let flags = libc::__WALL as usize;
            sys::call(libc::SYS_wait4, [child as usize, &raw mut status as usize, flags, 0, 0, 0])
        };
        match answer {
            Ok(_) => return Ok(status),
            Err(Errno(libc::EINTR)) => {}
            Err(errno) => return Err(errno),
        }
    }
}
