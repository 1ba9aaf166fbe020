//! Which rails a port gets on this host.

use core::str::FromStr;

use crate::driver::Driver;
use crate::error::DriverError;
use crate::fault::{FaultDriver, Faults, FaultsError};
use crate::shm::{ShmConfig, ShmDriver};
use crate::udp::{UdpConfig, UdpDriver};

/// Names the rails that ports of a process get: `auto`, `udp`, `shm`.
pub const RAILS_VARIABLE: &str = "STILLWIRE_RAILS";

/// Faults that every rail of the process gets, for tests of programs: as [`Faults`] reads them, such as `loss=1%`.
pub const FAULTS_VARIABLE: &str = "STILLWIRE_FAULTS";

/// Opens the rails that the environment asks for.
///
/// # Errors
/// [`RailsError`].
pub fn open_rails(udp: &UdpConfig) -> Result<Vec<Box<dyn Driver>>, RailsError> {
    let choice = match std::env::var_os(RAILS_VARIABLE) {
        None => RailChoice::Auto,
        Some(text) => text.to_string_lossy().parse()?,
    };
    let faults: Option<Faults> = match std::env::var_os(FAULTS_VARIABLE) {
        None => None,
        Some(text) => Some(text.to_string_lossy().parse()?),
    };
    let rails = choice.open(udp)?;
    let Some(faults) = faults else { return Ok(rails) };
    tracing::warn!(?faults, "faults are injected into every rail");
    Ok(rails.into_iter().map(|rail| Box::new(FaultDriver::new(rail, faults)) as Box<dyn Driver>).collect())
}

/// Why there are no rails.
#[derive(Debug, thiserror::Error)]
pub enum RailsError {
    /// What [`RAILS_VARIABLE`] says.
    #[error("{variable}: {0}", variable = RAILS_VARIABLE)]
    Choice(#[from] UnknownChoice),
    /// What [`FAULTS_VARIABLE`] says.
    #[error("{variable}: {0}", variable = FAULTS_VARIABLE)]
    Faults(#[from] FaultsError),
    /// A rail.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// Which rails a port gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RailChoice {
    /// Shared memory for peers on this host, where the system permits it, and UDP for all others.
    #[default]
    Auto,
    /// UDP alone, also within the host.
    Udp,
    /// Shared memory alone: peers elsewhere cannot be reached.
    Shm,
}

impl RailChoice {
    /// All there are.
    pub const ALL: [RailChoice; 3] = [RailChoice::Auto, RailChoice::Udp, RailChoice::Shm];

    /// As [`RAILS_VARIABLE`] says it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            RailChoice::Auto => "auto",
            RailChoice::Udp => "udp",
            RailChoice::Shm => "shm",
        }
    }

    /// Opens the rails. Rails within the host come first.
    ///
    /// # Errors
    /// That of a rail that must be there: the socket, or with [`RailChoice::Shm`] the segment.
    pub fn open(self, udp: &UdpConfig) -> Result<Vec<Box<dyn Driver>>, DriverError> {
        let mut rails: Vec<Box<dyn Driver>> = Vec::new();
        if self != RailChoice::Udp {
            match ShmDriver::open(&ShmConfig::default()) {
                Ok(rail) => rails.push(Box::new(rail)),
                Err(error) if self == RailChoice::Shm => return Err(error),
                Err(error) => {
                    tracing::warn!(%error, "no shared memory: peers on this host are reached by UDP")
                }
            }
        }
        if self != RailChoice::Shm {
            rails.push(Box::new(UdpDriver::open(udp)?));
        }
        Ok(rails)
    }
}

/// A choice that there is not.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the rails are '{found}', expected auto, udp or shm")]
pub struct UnknownChoice {
    /// What was said.
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
        for (text, kinds) in [("auto", &["shm", "udp"][..]), ("udp", &["udp"]), ("shm", &["shm"])] {
            let choice: RailChoice = text.parse().expect("known");
            let rails = choice.open(&here).expect("memory, /proc and a socket");
            assert_eq!(rails.iter().map(|rail| rail.caps().kind).collect::<Vec<_>>(), kinds);
        }
        let error = "tcp".parse::<RailChoice>().expect_err("unknown");
        assert_eq!(error.to_string(), "the rails are 'tcp', expected auto, udp or shm");
    }
}
