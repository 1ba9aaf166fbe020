//! Rights that are missing.

use std::net::SocketAddr;

use drivers::DriverError;
use drivers::xdp::{Rights, XdpConfig, XdpDriver};

/// The user nobody.
pub(crate) const NOBODY: u32 = 65534;

/// Makes this thread one of a user without rights.
pub(crate) fn give_up_rights() {
    become_user(NOBODY);
}

/// Makes this thread one of that user, without rights.
pub(crate) fn become_user(uid: u32) {
    // SAFETY: changes the user of this thread alone, unlike the C library's function.
    let changed = unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) };
    assert_eq!(changed, 0, "setresuid");
    let missing = drivers::xdp::check_capabilities();
    assert!(matches!(missing, Err(DriverError::CapabilityMissing { .. })), "{missing:?}");
}

/// Gives up these capabilities of this thread; false: it has not got all that `needed` names.
pub(crate) fn without(missing: u64, needed: u64) -> bool {
    let mut header = [0x2008_0522u32, 0];
    let mut sets = [[0u32; 3]; 2];
    // SAFETY: version 3 reads and writes a header of two words and two times three words, of this thread.
    let read = unsafe { libc::syscall(libc::SYS_capget, header.as_mut_ptr(), sets.as_mut_ptr()) };
    assert_eq!(read, 0, "capget");
    let effective = u64::from(sets[0][0]) | u64::from(sets[1][0]) << 32;
    let (low, high) = ((missing & 0xffff_ffff) as u32, (missing >> 32) as u32);
    sets[0][0] &= !low;
    sets[1][0] &= !high;
    // SAFETY: as above.
    let written = unsafe { libc::syscall(libc::SYS_capset, header.as_mut_ptr(), sets.as_ptr()) };
    assert_eq!(written, 0, "capset");
    effective & needed == needed
}

#[test]
fn a_missing_capability_is_named() {
    let (net_admin, net_raw, system, bpf) = (1 << 12, 1 << 13, 1 << 21, 1 << 39);
    for (missing, named) in [
        (net_admin, "CAP_NET_ADMIN"),
        (net_raw, "CAP_NET_RAW"),
        (bpf | system, "CAP_BPF"),
        (net_admin | net_raw, "CAP_NET_ADMIN and CAP_NET_RAW"),
        (net_admin | net_raw | bpf | system, "CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF"),
    ] {
        // They are a thread's.
        let opened = std::thread::spawn(move || {
            let config = XdpConfig {
                rights: Rights::Own,
                ..XdpConfig::new("lo", SocketAddr::from(([127, 0, 0, 1], 0)))
            };
            without(missing, net_admin | net_raw | bpf).then(|| XdpDriver::open(&config).err())
        });
        match opened.join().expect("no panic") {
            Some(error) => assert_eq!(error, Some(DriverError::CapabilityMissing { missing: named })),
            None => {
                return crate::skipped::skipped("a_missing_capability_is_named", "capabilities to give up");
            }
        }
    }
}
