//! Freezing a port, turning it into bytes, and letting it go on: in place, or in another process and another life.
//!
//! - [`Freeze`]: the procedure, as a machine. It waits only for the port's own NICs.
//! - [`make_room`], [`dump`], [`append_payloads`]: a frozen port as one section of an image. [`load`] reads it back and
//!   believes nothing.
//! - [`compare`]: whether a section and a port in memory are the same. [`describe`]: a section for people.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod compare;
mod describe;
mod dump;
mod error;
mod freeze;
mod load;
mod parse;
mod records;

pub use compare::{Mismatch, compare};
pub use describe::{Frames, LinkReport, PayloadReport, PortReport, SendReport, describe};
pub use dump::{Payloads, append_payloads, dump, make_room};
pub use error::{DumpError, LoadError};
pub use freeze::{Freeze, FreezeError, Quiescing, Rail, Refused, restart};
pub use load::{Carried, CarriedReceive, Loaded, load};
pub use records::{SECTION_KIND, SECTION_VERSION};
