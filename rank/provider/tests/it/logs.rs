//! The messages of the provider besides error numbers: to libfabric's log where that is on, else to standard
//! error.

use std::path::Path;
use std::process::Command;
use std::ptr::null_mut;

use stillwire_fi::abi::*;

use crate::processes::{Peer, at, hear, is_child};
use crate::rig::{ADDRESS_BYTES, Rig, accepted, close};

/// Libfabric's log, as far as a provider meets it.
const LOG: &str = r#"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
struct fi_provider { unsigned version, fi_version; void *context[4]; const char *name; };
int fi_log_enabled(const struct fi_provider *prov, int level, int subsystem)
{
    (void)prov;
    const char *most = getenv("LOG_LEVEL");
    return most != NULL && level <= atoi(most) && subsystem == 0;
}
void fi_log(const struct fi_provider *prov, int level, int subsystem, const char *func, int line, const char *format, ...)
{
    va_list list;
    (void)level, (void)subsystem, (void)func, (void)line;
    fprintf(stderr, "libfabric:%s: ", prov->name);
    va_start(list, format);
    vfprintf(stderr, format, list);
    va_end(list);
}
"#;

/// Does two things wrong: a peer refuses a request, and inserted bytes are no address.
fn clumsy() {
    let (library, rank, level) = (hear(), hear(), hear());
    // SAFETY: plain loading of a library of ours; no other thread reads the environment yet.
    unsafe {
        std::env::set_var("PMI_RANK", rank);
        if level != "off" {
            std::env::set_var("LOG_LEVEL", level);
        }
        let path = std::ffi::CString::new(library).unwrap();
        assert!(!libc::dlopen(path.as_ptr(), libc::RTLD_NOW).is_null());
    }
    let rig = Rig::new();
    let mut memory = [0u8; 8];
    let region = rig.register(&mut memory, 5);
    let to_itself = rig.insert(&rig.address());
    // SAFETY: injected bytes are copied at once; the bytes of no address are there.
    unsafe {
        accepted(&[], || {
            (rig.remote().write)(rig.ep, memory.as_ptr().cast(), 8, null_mut(), to_itself, 0, 6, at(1))
        });
        assert_eq!(rig.next(&[]).error, Some((errno::ENOKEY, 0)));
        let (nothing, mut number) = ([0u8; ADDRESS_BYTES], 0);
        let insert = (*(*rig.vector).ops).insert;
        assert_eq!(insert(rig.vector, nothing.as_ptr().cast(), 1, &raw mut number, 0, null_mut()), 0);
    }
    assert_eq!(close(region), 0);
}

#[test]
fn errors_are_reported_with_rank_peer_and_reason() {
    if is_child() {
        return clumsy();
    }
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("log.c"), folder.path().join("libfabric.so.1"));
    std::fs::write(&source, LOG).unwrap();
    let cc = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(cc.expect("a C compiler").success());
    let key: &Path = &folder.path().join("key");
    let said = |level: &str| {
        let mut peer = Peer::with_key("logs::errors_are_reported_with_rank_peer_and_reason", key);
        peer.send(library.to_str().unwrap());
        peer.send("17");
        peer.send(level);
        peer.errors()
    };
    // FI_LOG_WARN
    let on = said("0");
    let refused = on.lines().find(|line| line.contains("has refused")).expect(&on);
    assert!(refused.starts_with("libfabric:stillwire: rank 17, process "), "{on}");
    assert!(
        refused.contains("peer 0 (") && refused.ends_with("the peer has no memory region with this key"),
        "{on}"
    );
    assert!(
        on.contains("libfabric:stillwire: rank 17") && on.contains("is not one of this provider"),
        "{on}"
    );
    assert!(
        !on.contains("stillwire: stillwire") && !on.lines().any(|line| line.starts_with("stillwire:")),
        "twice: {on}"
    );
    let key_file = format!("key file: {}", key.display());
    assert!(!on.contains(&key_file), "{on}");
    // FI_LOG_INFO
    let all = said("2");
    let line = all.lines().find(|line| line.contains(&key_file)).expect(&all);
    assert!(line.starts_with("libfabric:stillwire: rank 17, process "), "{all}");
    let off = said("off");
    assert!(
        !off.contains("libfabric:") && !off.contains("has refused"),
        "the program has the error number: {off}"
    );
    let reported = off.lines().find(|line| line.contains("is not one of this provider")).expect(&off);
    assert!(reported.starts_with("stillwire: rank 17, process "), "{off}");
}
