//! `libstillwire_fi.so`: the libfabric provider. MPI libraries load it as they are and use the transport as their device.
//!
//! One file per object of the interface: `info`, `fabric`, `domain`, `av`, `mr`, `cq`, `cntr`, `eq`, `ep`,
//! `waitset`; `msg`, `tagged`, `rma`, `atomic` hold the calls of an endpoint. They translate between C and
//! Rust and decide nothing. `engine` decides about requests, over one [`endpoint::Endpoint`] for each enabled
//! endpoint.
//!
//! ```text
//!   C tables (msg, tagged, rma, atomic)      completion queues, counters
//!                  |                                  ^
//!                  v                                  |
//!   engine: requests, claims, regions, requests of peers        one lock
//!                  |
//!   endpoint::Endpoint: gate, port, rails, helper               one lock, always taken second
//! ```

pub mod abi;
mod address;
mod atomic;
mod av;
mod boundary;
mod callflags;
mod cntr;
mod cq;
mod domain;
mod engine;
mod ep;
mod eq;
mod fabric;
mod identity;
mod info;
mod keeper;
mod launcher;
mod limits;
mod log;
mod memory;
mod mr;
mod msg;
mod periodic_freeze;
mod rma;
mod tagged;
mod waitset;
mod waker;

use core::ffi::c_char;

use abi::FiProvider;

/// Name of the provider, as `FI_PROVIDER` and `fi_info` know it.
pub const NAME: &core::ffi::CStr = c"stillwire";

unsafe extern "C" fn cleanup() {}

/// Runs when the library is loaded. In a program that is saved as a whole process that is before its own constructors, because the launcher has
/// it loaded before all others.
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

extern "C" fn construct() {
    // A panic, which has been printed, must not unwind into the loader.
    let _ = std::panic::catch_unwind(agent::enter);
}

/// The entry point of a provider's library, which libfabric looks up by name. The answer is never freed:
/// libfabric keeps it, and writes to `context`.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut FiProvider {
    let provider = Box::into_raw(Box::new(FiProvider {
        version: abi::version(0, 1),
        // Libfabric wants at least the version that the application asks for, and checks no upper bound.
        fi_version: abi::version(2, 99),
        context: [core::ptr::null_mut(); 4],
        name: NAME.as_ptr().cast::<c_char>(),
        getinfo: info::getinfo,
        fabric: fabric::fabric,
        cleanup,
    }));
    log::known_as(provider);
    provider
}
