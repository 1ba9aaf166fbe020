//! Reading another process's memory, with one copy, by `process_vm_readv`.

use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use transport::RawAddress;
use xxhash_rust::xxh3::xxh3_64;

/// A sender's key: its address in its memory, and its value. Read along with every payload, because a process id alone
/// may have passed to another process meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub(super) address: u64,
    pub(super) value: u64,
}

impl Key {
    /// The key of the process that holds a segment.
    pub(super) fn value_of(segment: &RawAddress) -> u64 {
        xxh3_64(segment.as_bytes())
    }
}

/// Reads `to.len()` bytes at `address` of the process that holds `key`. False: it is not permitted, the
/// process has gone, or its memory has; the content of `to` is arbitrary then.
pub(super) fn pull(pid: u32, key: Key, address: u64, to: &mut [u8]) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    let (Ok(base), Ok(key_base)) = (usize::try_from(address), usize::try_from(key.address)) else {
        return false;
    };
    #[cfg(loom)]
    crate::sync::model::kernel_reads(address);
    let bytes = to.len();
    let mut found = [0; 8];
    let mut local = [IoSliceMut::new(to), IoSliceMut::new(&mut found)];
    let remote = [RemoteIoVec { base, len: bytes }, RemoteIoVec { base: key_base, len: 8 }];
    let read = process_vm_readv(Pid::from_raw(pid), &mut local, &remote);
    #[expect(clippy::host_endian_bytes, reason = "as it lies in the memory of a process of this host")]
    let expected = key.value.to_ne_bytes();
    read == Ok(bytes + 8) && found == expected
}

/// Yama's `ptrace_scope` 1 lets only descendants be read, unless the process permits more. A process that may
/// open our segment is of the same user, and may then read our memory too, as on a system without Yama.
pub(super) fn permit() {
    // SAFETY: takes two numbers. A kernel without Yama answers EINVAL, and needs no permission.
    let _ = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}
