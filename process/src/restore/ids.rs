//! Ids of the process and its threads: new ones, or those that they had.
//!
//! The kernel gives a thread the id that it is asked for (`clone3(2)`, Linux 5.5) if the id is free in the pid namespace, and if the caller has
//! the right to (`CAP_CHECKPOINT_RESTORE`, Linux 5.9) over that namespace. Ordinary users have it in namespaces of their own.

use std::io;

use super::{RestoreError, call};
use crate::state::ProcessState;
use crate::sys;

/// Which ids the restored process has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ids {
    /// New ones; the C library's copies, and the owners of its locks, are mended.
    #[default]
    New,
    /// Those of the image. This process has its first one already.
    Kept,
}

/// `CAP_CHECKPOINT_RESTORE`.
const RIGHT: u32 = 40;
/// `_LINUX_CAPABILITY_VERSION_3`, and this thread.
pub(super) const HEADER: [u32; 2] = [0x2008_0522, 0];

/// Effective, permitted, inheritable; twice, for 64 bits: `struct __user_cap_data_struct`.
pub(super) type Rights = [u32; 6];

/// Whether all ids of the image are available here, as far as that is known before anything is removed.
pub(super) fn check(state: &ProcessState, ids: Ids) -> Result<(), RestoreError> {
    if ids == Ids::New {
        return Ok(());
    }
    let here = sys::process_id();
    if here != state.program.pid {
        return Err(RestoreError::Id { here, image: state.program.pid });
    }
    let limit = std::fs::read_to_string("/proc/sys/kernel/pid_max").ok();
    let limit = limit.and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(u32::MAX);
    let highest = state.threads.iter().map(|thread| thread.tid).max().unwrap_or(0);
    if highest < limit { Ok(()) } else { Err(RestoreError::IdsEnd { highest, limit }) }
}

/// The rights that the threads go on with, if this process was given the one over ids for its restore alone (as an ambient one).
pub(super) fn without_right() -> Result<Option<Rights>, RestoreError> {
    // SAFETY: asks for a number.
    let is_ambient = unsafe {
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_IS_SET, RIGHT as libc::c_ulong, 0, 0)
    };
    if is_ambient != 1 {
        return Ok(None);
    }
    let (header, mut rights): ([u32; 2], Rights) = (HEADER, [0; 6]);
    let arguments = [&raw const header as usize, rights.as_mut_ptr() as usize, 0, 0, 0, 0];
    // SAFETY: the kernel reads the header and writes the rights, of this frame.
    unsafe { sys::call(libc::SYS_capget, arguments) }.map_err(|errno| {
        call("read this process's rights (capget)")(io::Error::from_raw_os_error(errno.0))
    })?;
    let (_, upper) = rights.split_at_mut(3);
    upper.iter_mut().for_each(|word| *word &= !(1 << (RIGHT - 32)));
    Ok(Some(rights))
}

/// `struct clone_args` of the kernel, in the version that knows `set_tid`.
#[repr(C)]
pub(super) struct CloneArguments {
    pub(super) flags: u64,
    pub(super) pidfd: u64,
    pub(super) child_tid: u64,
    pub(super) parent_tid: u64,
    pub(super) exit_signal: u64,
    /// Its lowest address.
    pub(super) stack: u64,
    pub(super) stack_bytes: u64,
    pub(super) tls: u64,
    /// Address of the ids, from the innermost namespace outwards, and how many there are.
    pub(super) ids: u64,
    pub(super) ids_count: u64,
}
