//! The NIC over which a port reaches other hosts: the choices and their results.

use core::fmt;
use core::str::FromStr;
use std::net::{IpAddr, SocketAddr};

use crate::driver::Driver;
use crate::error::{DriverError, Errno, Operation};
use crate::interfaces::addresses;
use crate::limits::XDP_QUEUES_MAX;
use crate::udp::{UdpConfig, UdpDriver};
use crate::verbs::{VerbsConfig, VerbsDriver, device_at};
use crate::xdp::helper::{self, Refusal};
use crate::xdp::{
    Attach, Rights, XdpConfig, XdpDriver, check_capabilities as check_xdp_capabilities, helper_for,
    holds_a_rail, queues, receive_queues,
};

/// Names the NIC that ports of a process get: as [`NicChoice`] reads it.
pub const NIC_VARIABLE: &str = "STILLWIRE_NIC";

/// Variables in which launchers of MPI libraries, ours among them, set how many ranks share this host:
/// hydra's, and Open MPI's.
const RANKS_HERE_VARIABLES: [&str; 2] = ["MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE"];

/// Bytes of the longest name of an interface (IFNAMSIZ less the end).
const INTERFACE_BYTES_MAX: usize = 15;

/// Which NIC a port gets.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum NicChoice {
    /// AF_XDP where it disturbs no other process, else UDP: see [`open`].
    #[default]
    Auto,
    /// The kernel's UDP sockets.
    Udp {
        /// At an address of this interface; `None`: where the port receives otherwise.
        interface: Option<String>,
    },
    /// AF_XDP on this interface, and nothing else for a process's first port.
    Xdp {
        /// Its name.
        interface: String,
    },
    /// RDMA, and nothing else.
    Verbs {
        /// The device's name; `None`: the one that has the address on which the port receives.
        device: Option<String>,
    },
}

/// A choice that there is not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "the NIC is '{found}', expected auto, udp, xdp:INTERFACE such as xdp:eth0, udp:INTERFACE, verbs, or verbs:DEVICE"
)]
pub struct UnknownNic {
    /// The given text.
    pub found: String,
}

impl NicChoice {
    /// The kernel's UDP sockets, where the port receives otherwise.
    pub const UDP: NicChoice = NicChoice::Udp { interface: None };
}

impl FromStr for NicChoice {
    type Err = UnknownNic;

    fn from_str(text: &str) -> Result<NicChoice, UnknownNic> {
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic());
        match text.split_once(':') {
            None if text == "auto" => Ok(NicChoice::Auto),
            None if text == "udp" => Ok(NicChoice::UDP),
            None if text == "verbs" => Ok(NicChoice::Verbs { device: None }),
            Some(("xdp", name)) if is_name(name) && name.len() <= INTERFACE_BYTES_MAX => {
                Ok(NicChoice::Xdp { interface: name.to_owned() })
            }
            Some(("udp", name)) if is_name(name) && name.len() <= INTERFACE_BYTES_MAX => {
                Ok(NicChoice::Udp { interface: Some(name.to_owned()) })
            }
            Some(("verbs", name)) if is_name(name) => Ok(NicChoice::Verbs { device: Some(name.to_owned()) }),
            _ => Err(UnknownNic { found: text.to_owned() }),
        }
    }
}

impl fmt::Display for NicChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NicChoice::Auto => f.write_str("auto"),
            NicChoice::Udp { interface: None } => f.write_str("udp"),
            NicChoice::Udp { interface: Some(interface) } => write!(f, "udp:{interface}"),
            NicChoice::Xdp { interface } => write!(f, "xdp:{interface}"),
            NicChoice::Verbs { device: Some(device) } => write!(f, "verbs:{device}"),
            NicChoice::Verbs { device: None } => f.write_str("verbs"),
        }
    }
}

/// A choice, and further criteria.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NicRequest {
    /// The requested choice.
    pub choice: NicChoice,
    /// Ranks on this host; `None`: not known. Without a helper a device serves one AF_XDP rail.
    pub ranks_here: Option<u32>,
}

impl NicRequest {
    /// The request in the environment of this process.
    ///
    /// # Errors
    /// [`UnknownNic`].
    pub fn from_environment() -> Result<NicRequest, UnknownNic> {
        let choice = match std::env::var_os(NIC_VARIABLE) {
            None => NicChoice::Auto,
            Some(text) => text.to_string_lossy().parse()?,
        };
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
        Ok(NicRequest { choice, ranks_here: RANKS_HERE_VARIABLES.into_iter().find_map(number) })
    }
}

/// The NIC of a port, for a user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NicSelection {
    /// The NIC: as [`NicChoice`] writes it, or `none`.
    pub nic: String,
    /// A remark on it: how it works, or why it was not another one. May be empty.
    pub remark: String,
}

impl fmt::Display for NicSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.remark.as_str() {
            "" => f.write_str(&self.nic),
            remark => write!(f, "{} ({remark})", self.nic),
        }
    }
}

/// Why a NIC that was asked for is not available.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NicError {
    /// It cannot be opened.
    #[error("the NIC verbs:{device} is not available: {source}")]
    Verbs {
        /// The requested value.
        device: String,
        /// Why.
        source: DriverError,
    },
    /// No RDMA device has the address on which the port receives.
    #[error(
        "the NIC verbs is not available: ranks here receive on {address}, which no RDMA device has among its GIDs; have them receive on an address of one (--bind, or behind the @ of a host; STILLWIRE_ADDRESS), or name the device: verbs:DEVICE (`ls /sys/class/infiniband` lists them)"
    )]
    NoDeviceHas {
        /// Where the port receives.
        address: IpAddr,
    },
    /// The interface does not hold the address on which the port receives.
    #[error(
        "the NIC {nic} is not available: ranks here receive on {address}, which is not an address of {interface} ({has}); \
         have them receive on one of its own (--bind, or behind the @ of a host; STILLWIRE_ADDRESS)"
    )]
    Elsewhere {
        /// The requested value.
        nic: Box<str>,
        /// The interface.
        interface: Box<str>,
        /// Where the port receives.
        address: IpAddr,
        /// The interface's addresses, in words.
        has: Box<str>,
    },
    /// Several ranks want the same device.
    #[error(
        "the NIC xdp:{interface} is not available: {ranks} ranks share this host, and a device serves one AF_XDP rail, unless \
         `stillwire nic-helper` runs here and it has a queue for each; run one rank on each host, or use auto or udp"
    )]
    Shared {
        /// The interface.
        interface: String,
        /// Ranks on this host.
        ranks: u32,
    },
    /// More ranks than the device has queues.
    #[error(
        "the NIC xdp:{interface} is not available: {ranks} ranks share this host, and the device has {queues} queue(s), of which each AF_XDP \
         rail takes one at least; give it more (`ethtool -L {interface}`), run fewer ranks here, or use auto or udp"
    )]
    Queues {
        /// The interface.
        interface: String,
        /// Ranks on this host.
        ranks: u32,
        /// Queues by which it receives and sends.
        queues: u32,
    },
    /// There is no such interface.
    #[error("the NIC udp:{interface} is not available: this host has no such interface")]
    NoInterface {
        /// The requested value.
        interface: String,
    },
    /// It is there and cannot be opened.
    #[error("the NIC xdp:{interface} is not available: {source}{}", hint(source))]
    Xdp {
        /// The interface.
        interface: String,
        /// Why.
        source: DriverError,
    },
    /// The UDP sockets.
    #[error(transparent)]
    Udp(#[from] DriverError),
}

/// The most frequent cause of an error of the AF_XDP driver, as a hint.
fn hint(error: &DriverError) -> &'static str {
    let (operation, errno) = match error {
        DriverError::CannotOpen { operation, errno } => (operation, errno),
        DriverError::HelperRefused { refusal: Refusal::Failed { operation, errno } } => (operation, errno),
        _ => return "",
    };
    match (operation, errno.0) {
        (Operation::AttachProgram | Operation::BindQueue, libc::EBUSY) => {
            ". Another program is attached to the device already, or has its queue: another rank, another job, or the program that `ip link show` names; \
             a device serves one AF_XDP rail"
        }
        (Operation::LoadProgram, libc::EPERM) => {
            ". The kernel refuses it although this process has the capabilities: in a user namespace (a rootless container, \
             `unshare --user`) they do not count"
        }
        _ => "",
    }
}

/// Whether a requested NIC is available here, as far as that can be seen without opening it.
///
/// # Errors
/// [`NicError`]. [`NicChoice::Auto`] and [`NicChoice::UDP`] have none.
pub fn check(request: &NicRequest, address: IpAddr) -> Result<(), NicError> {
    let address = address_for(&request.choice, address);
    match &request.choice {
        NicChoice::Auto | NicChoice::Udp { interface: None } => Ok(()),
        NicChoice::Udp { interface: Some(interface) } => {
            nix::net::if_::if_nametoindex(interface.as_str())
                .map_err(|_| NicError::NoInterface { interface: interface.clone() })?;
            check_address(&request.choice, interface, address)
        }
        // Ranks share a device as they like; opening it shows whether it can be opened, and disturbs no other process.
        NicChoice::Verbs { device } => open_verbs(device.as_deref(), address).map(drop),
        NicChoice::Xdp { interface } => {
            let shared = request.ranks_here.filter(|ranks| *ranks > 1);
            if let Some(ranks) = shared
                && !helper::socket_path().exists()
            {
                return Err(NicError::Shared { interface: interface.clone(), ranks });
            }
            let cannot = |errno| NicError::Xdp {
                interface: interface.clone(),
                source: DriverError::CannotOpen { operation: Operation::FindDevice, errno },
            };
            nix::net::if_::if_nametoindex(interface.as_str()).map_err(|error| cannot(Errno(error as i32)))?;
            let queues = queues(interface);
            if let Some(ranks) = shared.filter(|ranks| *ranks > queues) {
                return Err(NicError::Queues { interface: interface.clone(), ranks, queues });
            }
            check_address(&request.choice, interface, address)
        }
    }
}

/// Addresses of an interface.
fn addresses_of(interface: &str) -> Vec<IpAddr> {
    addresses().into_iter().filter(|(name, _)| name == interface).map(|(_, ip)| ip).collect()
}

fn check_address(nic: &NicChoice, interface: &str, address: IpAddr) -> Result<(), NicError> {
    let own = addresses_of(interface);
    if own.contains(&address) {
        return Ok(());
    }
    let has = match own.as_slice() {
        [] => "it has none".to_owned(),
        own => own.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", "),
    };
    Err(NicError::Elsewhere {
        nic: nic.to_string().into(),
        interface: interface.into(),
        address,
        has: has.into(),
    })
}

/// The address on which a port with this NIC receives, and `bind` otherwise: an address of the named interface. Ranks
/// that receive on a loopback address talk only to each other, and rely on that for protection: they stay there.
#[must_use]
pub fn address_for(choice: &NicChoice, bind: IpAddr) -> IpAddr {
    let (NicChoice::Udp { interface: Some(interface) } | NicChoice::Xdp { interface }) = choice else {
        return bind;
    };
    let own = addresses_of(interface);
    if bind.is_loopback() || own.contains(&bind) {
        return bind;
    }
    let fits = |ip: &IpAddr| ip.is_ipv4() == bind.is_ipv4() && !ip.is_loopback();
    own.into_iter().find(fits).unwrap_or(bind)
}

/// By whose rights ranks open a rail over AF_XDP: a device that several share has its program from the helper.
fn rights(request: &NicRequest) -> Rights {
    match request.ranks_here {
        Some(2..) => Rights::Helper(helper::socket_path()),
        _ => Rights::OwnOrHelper(helper::socket_path()),
    }
}

/// Whether this process has the rights that a NIC needs which was asked for, or a helper serves it.
///
/// # Errors
/// [`NicError`]. [`NicChoice::Auto`] and UDP need none.
pub fn check_capabilities(request: &NicRequest) -> Result<(), NicError> {
    match &request.choice {
        NicChoice::Xdp { interface } => {
            let held = match (rights(request), check_xdp_capabilities()) {
                (Rights::OwnOrHelper(path), Err(_)) if path.exists() => helper::probe(&path, interface),
                (Rights::Helper(path), _) => helper::probe(&path, interface),
                (_, held) => held,
            };
            held.map_err(|source| NicError::Xdp { interface: interface.clone(), source })
        }
        NicChoice::Auto | NicChoice::Udp { .. } | NicChoice::Verbs { .. } => Ok(()),
    }
}

/// As [`open`], for a port that this process may have besides others, such as those that Open MPI opens for messages
/// and for windows. A device serves one AF_XDP rail, or with a helper as many as it has queues: if this process has all
/// of them, a further port goes over UDP, with a message, also if the device was requested by name.
///
/// # Errors
/// As [`open`].
pub(crate) fn open_for_port(
    request: &NicRequest,
    udp: &UdpConfig,
) -> Result<(Box<dyn Driver>, NicSelection), NicError> {
    let NicChoice::Xdp { interface } = &request.choice else { return open(request, udp) };
    if !holds_a_rail(interface) {
        return open(request, udp);
    }
    let refused = match helper_for(&rights(request)) {
        Ok(None) => None,
        _ => match open(request, udp) {
            Err(NicError::Xdp {
                source:
                    DriverError::HelperRefused {
                        refusal: refusal @ (Refusal::Queues { .. } | Refusal::Limit { .. }),
                    },
                ..
            }) => Some(refusal),
            opened => return opened,
        },
    };
    let by_udp =
        NicRequest { choice: NicChoice::Udp { interface: Some(interface.clone()) }, ..request.clone() };
    let (rail, mut selection) = open(&by_udp, udp)?;
    selection.remark = format!("not xdp:{interface}: another port of this process has it");
    if let Some(refusal) = refused {
        selection.remark += &format!(", and {refusal}");
    }
    tracing::info!(%selection, "a further port");
    Ok((rail, selection))
}

/// Opens the rail to other hosts.
///
/// [`NicChoice::Auto`] takes AF_XDP if all of this holds, and otherwise UDP, saying which of it did not: the address is that of an interface other than the
/// loopback; this rank is known to be the only one on its host, because a device would have to be divided; the rail can serve all receive queues that the
/// interface has, so that all that comes for the rail comes to it; its own driver runs programs, and shares the rail's memory: where it copies, UDP sends more
/// (docs/measurements.md); and the system permits all of it.
///
/// # Errors
/// [`NicError`]: the NIC that was asked for by name is taken, or none is.
pub fn open(request: &NicRequest, udp: &UdpConfig) -> Result<(Box<dyn Driver>, NicSelection), NicError> {
    let ip = address_for(&request.choice, udp.bind.ip());
    let udp = &match udp.bind {
        bind if bind.ip() == ip => udp.clone(),
        _ => UdpConfig { bind: SocketAddr::new(ip, 0), ..udp.clone() },
    };
    let by_udp = |remark: String| -> Result<(Box<dyn Driver>, NicSelection), NicError> {
        let rail = UdpDriver::open(udp)?;
        Ok((Box::new(rail), NicSelection { nic: NicChoice::UDP.to_string(), remark }))
    };
    match &request.choice {
        NicChoice::Udp { interface: None } => by_udp(String::new()),
        NicChoice::Udp { interface: Some(_) } => {
            check(request, ip)?;
            let rail = UdpDriver::open(udp)?;
            Ok((Box::new(rail), NicSelection { nic: request.choice.to_string(), remark: String::new() }))
        }
        NicChoice::Auto => {
            let opened = suitable(request, udp.bind.ip()).and_then(|interface| {
                open_xdp(request, interface, udp.bind, Some(Attach::Native)).map_err(reason)
            });
            match opened {
                Ok((rail, selection)) if rail.mode().1 => Ok((Box::new(rail), selection)),
                Ok((rail, selection)) => {
                    // It holds the address.
                    drop(rail);
                    by_udp(format!(
                        "not {}: its driver copies frames, and UDP sends more then",
                        selection.nic
                    ))
                }
                Err(reason) => by_udp(reason),
            }
        }
        NicChoice::Xdp { interface } => {
            check(request, udp.bind.ip())?;
            let (rail, selection) = open_xdp(request, interface.clone(), udp.bind, None)?;
            Ok((Box::new(rail), selection))
        }
        NicChoice::Verbs { device } => {
            let (rail, device) = open_verbs(device.as_deref(), udp.bind.ip())?;
            let pages = if rail.is_on_huge_pages() { "huge" } else { "ordinary" };
            let nic = NicChoice::Verbs { device: Some(device) }.to_string();
            Ok((Box::new(rail), NicSelection { nic, remark: format!("frames on {pages} pages") }))
        }
    }
}

fn reason(error: NicError) -> String {
    match error {
        NicError::Xdp { interface, source: DriverError::CapabilityMissing { missing } } => {
            format!("not xdp:{interface}: {missing} missing")
        }
        NicError::Xdp { interface, source: DriverError::CannotOpen { operation, errno } } => {
            format!("not xdp:{interface}: {operation} failed, {errno}")
        }
        NicError::Xdp { interface, source: DriverError::HelperRefused { refusal } } => {
            format!("not xdp:{interface}: the nic-helper refuses: {refusal}")
        }
        other => other.to_string(),
    }
}

/// The interface on which AF_XDP disturbs no other process, or why there is none.
fn suitable(request: &NicRequest, address: IpAddr) -> Result<String, String> {
    if address.is_loopback() {
        return Err("ranks receive on a loopback address".to_owned());
    }
    let found = addresses().into_iter().find(|(_, ip)| *ip == address);
    let (interface, _) = found.ok_or_else(|| format!("no interface has {address}"))?;
    let not = |why: String| Err(format!("not xdp:{interface}: {why}"));
    match request.ranks_here {
        Some(1) => {}
        Some(ranks) => return not(format!("{ranks} ranks share this host, and a device serves one")),
        None => return not("nobody says that this rank is alone on its host".to_owned()),
    }
    let served = queues(&interface).min(u32::try_from(XDP_QUEUES_MAX).unwrap_or(u32::MAX));
    match receive_queues(&interface) {
        Some(all) if all <= served => Ok(interface),
        Some(all) => not(format!("it has {all} receive queues, and a rail serves {served}")),
        None => not("it does not say how many receive queues it has".to_owned()),
    }
}

/// A rail over the device, or the one that has the address, and the device's name.
fn open_verbs(device: Option<&str>, address: IpAddr) -> Result<(VerbsDriver, String), NicError> {
    let named = device.map(str::to_owned).or_else(|| device_at(address));
    let device = named.ok_or(NicError::NoDeviceHas { address })?;
    let opened = VerbsDriver::open(&VerbsConfig::new(&device));
    let rail = opened.map_err(|source| NicError::Verbs { device: device.clone(), source })?;
    Ok((rail, device))
}

fn open_xdp(
    request: &NicRequest,
    interface: String,
    bind: SocketAddr,
    attach: Option<Attach>,
) -> Result<(XdpDriver, NicSelection), NicError> {
    let ranks = request.ranks_here.unwrap_or(1).max(1);
    let share = usize::try_from(queues(&interface) / ranks).unwrap_or(1).max(1);
    let config = XdpConfig {
        queues_max: Some(share),
        attach,
        rights: rights(request),
        ..XdpConfig::new(interface.clone(), bind)
    };
    let rail =
        XdpDriver::open(&config).map_err(|source| NicError::Xdp { interface: interface.clone(), source })?;
    let (attached, zero_copy) = rail.mode();
    let how = attached.name();
    let by = if rail.is_by_helper() { ", by nic-helper" } else { "" };
    let copies = if zero_copy { "zero-copy" } else { "copying" };
    let queues = match receive_queues(&interface) {
        Some(all) if usize::try_from(all).is_ok_and(|all| all > rail.queues()) => {
            format!(", {} of {all} queues: frames of the others go through the kernel", rail.queues())
        }
        Some(2..) => format!(", {} queues", rail.queues()),
        _ => String::new(),
    };
    let nic = NicChoice::Xdp { interface }.to_string();
    Ok((rail, NicSelection { nic, remark: format!("{how}, {copies}{queues}{by}") }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["auto", "udp", "udp:eth0", "xdp:eth0", "xdp:br0.100", "verbs", "verbs:mlx5_0"] {
            assert_eq!(text.parse::<NicChoice>().expect(text).to_string(), text);
        }
        for text in ["", "xdp", "xdp:", "xdp:a b", "xdp:longer-than-an-interface", "verbs:", "tcp", "udp:"] {
            let error = text.parse::<NicChoice>().expect_err(text);
            let expected =
                "expected auto, udp, xdp:INTERFACE such as xdp:eth0, udp:INTERFACE, verbs, or verbs:DEVICE";
            assert_eq!(error.to_string(), format!("the NIC is '{text}', {expected}"));
        }
    }

    #[test]
    fn what_cannot_be_had_is_refused_by_name() {
        let refused = |choice: &str, ranks_here| {
            let request = NicRequest { choice: choice.parse().expect("known"), ranks_here };
            let udp = UdpConfig::new(SocketAddr::from(([127, 0, 0, 2], 0)));
            open(&request, &udp).map(|(_, selection)| selection).expect_err("refused").to_string()
        };
        assert!(refused("verbs:none", None).starts_with("the NIC verbs:none is not available: "));
        let words =
            "the NIC verbs is not available: ranks here receive on 127.0.0.2, which no RDMA device has";
        assert!(refused("verbs", None).starts_with(words));
        assert_eq!(
            refused("udp:nowhere", None),
            "the NIC udp:nowhere is not available: this host has no such interface"
        );
        assert!(
            refused("udp:lo", None)
                .starts_with("the NIC udp:lo is not available: ranks here receive on 127.0.0.2")
        );
        assert!(refused("xdp:nowhere", None).contains("looking for the device failed (No such device"));
        assert!(refused("xdp:lo", Some(1)).contains("127.0.0.2, which is not an address of lo (127.0.0.1"));
        assert!(refused("xdp:lo", Some(3)).contains("3 ranks share this host, and a device serves one"));
    }

    #[test]
    fn by_itself_it_stays_with_udp_where_a_device_would_not_be_its_own() {
        let selection = |ip: IpAddr, ranks_here| {
            let request = NicRequest { choice: NicChoice::Auto, ranks_here };
            open(&request, &UdpConfig::new(SocketAddr::new(ip, 0))).expect("a socket").1.to_string()
        };
        let here = IpAddr::from([127, 0, 0, 1]);
        assert_eq!(selection(here, Some(1)), "udp (ranks receive on a loopback address)");
        let Some((interface, ip)) = addresses().into_iter().find(|(_, ip)| ip.is_ipv4() && !ip.is_loopback())
        else {
            return;
        };
        // A device that is named has ports receive on an address of its own, unless nothing was to leave this host.
        let elsewhere = IpAddr::from([198, 51, 100, 7]);
        let named = NicChoice::Udp { interface: Some(interface.clone()) };
        assert_eq!(address_for(&named, here), here);
        let at = address_for(&named, elsewhere);
        assert!(addresses_of(&interface).contains(&at), "{at}");
        let request = NicRequest { choice: named, ranks_here: None };
        let (rail, had) = open(&request, &UdpConfig::new(SocketAddr::new(elsewhere, 0)))
            .expect("it is an address of this host");
        let address = crate::udp::UdpAddress::try_from(&rail.local_address()).expect("UDP").0;
        assert_eq!((address.ip(), had.to_string()), (at, format!("udp:{interface}")));
        let words = format!("udp (not xdp:{interface}: 2 ranks share this host, and a device serves one)");
        assert_eq!(selection(ip, Some(2)), words);
    }
}
