//! Which rails a port gets on this host.

use core::str::FromStr;
use std::ffi::OsString;

use crate::capture::{CAPTURE_VARIABLE, CaptureDriver, CaptureError};
use crate::driver::Driver;
use crate::error::DriverError;
use crate::fault::{FaultDriver, Faults, FaultsError};
use crate::nic::{self, NIC_VARIABLE, NicChoice, NicError, NicRequest, NicSelection, UnknownNic};
use crate::shm::{ShmConfig, ShmDriver};
use crate::udp::UdpConfig;

/// Names the rails that ports of a process get: `auto`, `nic`, `udp`, `shm`.
pub const RAILS_VARIABLE: &str = "STILLWIRE_RAILS";

/// Faults that every rail of the process gets, for tests of programs: as [`Faults`] reads them, such as `loss=1%`.
pub const FAULTS_VARIABLE: &str = "STILLWIRE_FAULTS";

/// The rails of a port, and the NIC to other hosts.
pub struct Opened {
    /// The rails; rails within the host come first.
    pub rails: Vec<Box<dyn Driver>>,
    /// The NIC among them.
    pub nic: NicSelection,
}

/// Opens the rails that the environment asks for, with the NIC that the caller wishes or, without a wish, the environment.
///
/// # Errors
/// [`RailsError`].
pub fn open_rails(udp: &UdpConfig, nic: Option<&NicRequest>) -> Result<Opened, RailsError> {
    let (choice, wrappers) = (RailChoice::from_environment()?, Wrappers::from_environment()?);
    let nic = nic.cloned().map_or_else(NicRequest::from_environment, Ok)?;
    let mut opened = choice.open(udp, &nic)?;
    opened.rails = opened.rails.into_iter().map(|rail| wrappers.wrap(rail)).collect::<Result<_, _>>()?;
    Ok(opened)
}

/// Opens the NIC alone, as [`open_rails`] would, for a rail that goes on over it.
///
/// # Errors
/// [`RailsError`].
pub fn open_nic(udp: &UdpConfig, nic: &NicRequest) -> Result<(Box<dyn Driver>, NicSelection), RailsError> {
    RailChoice::from_environment()?.check(&nic.choice)?;
    let wrappers = Wrappers::from_environment()?;
    let (rail, taken) = nic::open(nic, udp)?;
    Ok((wrappers.wrap(rail)?, taken))
}

/// The wrappers around every rail, as the environment sets them.
struct Wrappers {
    faults: Option<Faults>,
    captured_to: Option<OsString>,
}

impl Wrappers {
    fn from_environment() -> Result<Wrappers, RailsError> {
        let faults: Option<Faults> = match std::env::var_os(FAULTS_VARIABLE) {
            None => None,
            Some(text) => Some(text.to_string_lossy().parse()?),
        };
        if let Some(faults) = &faults {
            tracing::warn!(?faults, "faults are injected into every rail");
        }
        Ok(Wrappers { faults, captured_to: std::env::var_os(CAPTURE_VARIABLE) })
    }

    fn wrap(&self, rail: Box<dyn Driver>) -> Result<Box<dyn Driver>, CaptureError> {
        let rail = match &self.captured_to {
            None => rail,
            Some(folder) => Box::new(CaptureDriver::open(rail, folder.as_ref())?),
        };
        Ok(match self.faults {
            None => rail,
            Some(faults) => Box::new(FaultDriver::new(rail, faults)),
        })
    }
}

/// Why there are no rails.
#[derive(Debug, thiserror::Error)]
pub enum RailsError {
    /// The value of [`RAILS_VARIABLE`].
    #[error("{variable}: {0}", variable = RAILS_VARIABLE)]
    Choice(#[from] UnknownChoice),
    /// The value of [`CAPTURE_VARIABLE`].
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The value of [`FAULTS_VARIABLE`].
    #[error("{variable}: {0}", variable = FAULTS_VARIABLE)]
    Faults(#[from] FaultsError),
    /// The value of [`NIC_VARIABLE`].
    #[error("{variable}: {0}", variable = NIC_VARIABLE)]
    UnknownNic(#[from] UnknownNic),
    /// Both together.
    #[error(
        "the rails are '{rails}', which leaves no room for the NIC {nic}: leave one of them out, or have the rails 'auto' or 'nic'"
    )]
    Contradiction {
        /// The rails.
        rails: &'static str,
        /// The NIC.
        nic: NicChoice,
    },
    /// A NIC that was asked for.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A rail.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Which rails a port gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RailChoice {
    /// Shared memory for peers on this host, where the system permits it, and a NIC for all others.
    #[default]
    Auto,
    /// The NIC alone, also within the host.
    Nic,
    /// The NIC alone, which is UDP.
    Udp,
    /// Shared memory alone: peers elsewhere cannot be reached.
    Shm,
}

impl RailChoice {
    /// All there are.
    pub const ALL: [RailChoice; 4] = [RailChoice::Auto, RailChoice::Nic, RailChoice::Udp, RailChoice::Shm];

    fn from_environment() -> Result<RailChoice, UnknownChoice> {
        std::env::var_os(RAILS_VARIABLE).map_or(Ok(RailChoice::Auto), |text| text.to_string_lossy().parse())
    }

    /// Its name in [`RAILS_VARIABLE`].
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RailChoice::Auto => "auto",
            RailChoice::Nic => "nic",
            RailChoice::Udp => "udp",
            RailChoice::Shm => "shm",
        }
    }

    /// Whether a NIC can be chosen besides.
    ///
    /// # Errors
    /// [`RailsError::Contradiction`].
    pub fn check(self, nic: &NicChoice) -> Result<(), RailsError> {
        let is_forced = matches!(nic, NicChoice::Xdp { .. } | NicChoice::Verbs { .. });
        match self {
            RailChoice::Udp | RailChoice::Shm if is_forced => {
                Err(RailsError::Contradiction { rails: self.name(), nic: nic.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Opens the rails.
    ///
    /// # Errors
    /// That of a rail that must be there: the NIC, or with [`RailChoice::Shm`] the segment; a contradiction.
    pub fn open(self, udp: &UdpConfig, nic: &NicRequest) -> Result<Opened, RailsError> {
        self.check(&nic.choice)?;
        let mut rails: Vec<Box<dyn Driver>> = Vec::new();
        if matches!(self, RailChoice::Auto | RailChoice::Shm) {
            match ShmDriver::open(&ShmConfig::default()) {
                Ok(rail) => rails.push(Box::new(rail)),
                Err(error) if self == RailChoice::Shm => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, "no shared memory: peers on this host are reached by the NIC")
                }
            }
        }
        if self == RailChoice::Shm {
            let remark = "shared memory alone".to_owned();
            return Ok(Opened { rails, nic: NicSelection { nic: "none".to_owned(), remark } });
        }
        let by_udp = NicRequest { choice: NicChoice::UDP, ..NicRequest::default() };
        let is_by_udp = self == RailChoice::Udp && !matches!(nic.choice, NicChoice::Udp { .. });
        let (rail, nic) = nic::open_for_port(if is_by_udp { &by_udp } else { nic }, udp)?;
        rails.push(rail);
        Ok(Opened { rails, nic })
    }
}

/// A choice that there is not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the rails are '{found}', expected auto, nic, udp or shm")]
pub struct UnknownChoice {
    /// The given text.
    pub found: String,
}

impl FromStr for RailChoice {
    type Err = UnknownChoice;

    fn from_str(text: &str) -> Result<RailChoice, UnknownChoice> {
        let known = RailChoice::ALL.into_iter().find(|choice| choice.name() == text);
        known.ok_or_else(|| UnknownChoice { found: text.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_opens_what_it_says() {
        let here = UdpConfig::new(std::net::SocketAddr::from(([127, 0, 0, 1], 0)));
        let opens = [
            ("auto", &["shm", "udp"][..], "udp"),
            ("nic", &["udp"], "udp"),
            ("udp", &["udp"], "udp"),
            ("shm", &["shm"], "none"),
        ];
        for (text, kinds, nic) in opens {
            let choice: RailChoice = text.parse().expect("known");
            let opened = choice.open(&here, &NicRequest::default()).expect("memory, /proc and a socket");
            assert_eq!(opened.rails.iter().map(|rail| rail.caps().kind).collect::<Vec<_>>(), kinds);
            assert_eq!(opened.nic.nic, nic);
        }
        let error = "tcp".parse::<RailChoice>().expect_err("unknown");
        assert_eq!(error.to_string(), "the rails are 'tcp', expected auto, nic, udp or shm");
    }

    #[test]
    fn rails_without_a_nic_contradict_one() {
        for choice in RailChoice::ALL {
            for nic in ["auto", "udp", "xdp:eth0", "verbs:mlx5_0"] {
                let contradicts = ["udp", "shm"].contains(&choice.name()) && nic.contains(':');
                let nic = nic.parse().expect("known");
                assert_eq!(choice.check(&nic).is_err(), contradicts, "{choice:?} {nic}");
            }
        }
    }
}
