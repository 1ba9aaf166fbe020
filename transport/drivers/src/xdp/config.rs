//! How a rail over AF_XDP is opened.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::helper;

/// How the program is attached to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attach {
    /// In the device's own driver, before the kernel makes anything of the frame.
    Native,
    /// In the kernel's receive path, for devices whose driver cannot. If a sender on a virtual device has the
    /// kernel cut its frames (UDP_SEGMENT), they come uncut here, as one frame that no peer sent.
    Generic,
}

impl Attach {
    /// In words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Attach::Native => "native",
            Attach::Generic => "generic",
        }
    }
}

/// By whose rights a rail is opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Those of this process.
    Own,
    /// Those of this process, or, where it lacks some, the helper's that listens there.
    OwnOrHelper(PathBuf),
    /// The helper's that listens there.
    Helper(PathBuf),
}

/// How to open an [`super::XdpDriver`].
#[derive(Clone, Debug)]
pub struct XdpConfig {
    /// The device, such as `eth0`.
    pub interface: String,
    /// How many of its queues serve this rail, at most; `None`: all. Frames in other queues go through the
    /// companion.
    pub queues_max: Option<usize>,
    /// An IP address of the device; port 0 takes a free one.
    pub bind: SocketAddr,
    /// `None`: native where the device can, else generic.
    pub attach: Option<Attach>,
    /// By whose rights.
    pub rights: Rights,
}

impl XdpConfig {
    /// All queues of the device, by own rights or those of the helper where ranks look for it.
    #[must_use]
    pub fn new(interface: impl Into<String>, bind: SocketAddr) -> XdpConfig {
        let rights = Rights::OwnOrHelper(helper::socket_path());
        XdpConfig { interface: interface.into(), queues_max: None, bind, attach: None, rights }
    }
}
