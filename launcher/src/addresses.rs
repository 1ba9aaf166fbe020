//! Where a node is, on each of its networks.

use std::net::IpAddr;
use std::str::FromStr;

use transport::config::RAILS_MAX;

/// Addresses of a host, one on each of its networks: on the first one its ranks receive, over all of them its protector sends and receives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The network that is used first.
    pub first: IpAddr,
    /// Its other networks.
    pub further: Vec<IpAddr>,
}

impl Addresses {
    /// Of a host with one network.
    pub fn one(first: IpAddr) -> Addresses {
        Addresses { first, further: Vec::new() }
    }

    /// All of them, the first one first.
    pub fn iter(&self) -> impl Iterator<Item = IpAddr> + '_ {
        [self.first].into_iter().chain(self.further.iter().copied())
    }
}

impl FromStr for Addresses {
    type Err = String;

    fn from_str(text: &str) -> Result<Addresses, String> {
        let parse = |part: &str| {
            let wrong = |_| {
                format!(
                    "expected an IPv4 or IPv6 address such as 127.0.0.1 or ::1, or several as 10.0.0.1+10.1.0.1, found `{part}` in `{text}`"
                )
            };
            part.parse::<IpAddr>().map_err(wrong)
        };
        let mut all = text.split('+').map(parse).collect::<Result<Vec<IpAddr>, String>>()?;
        if all.len() > RAILS_MAX {
            return Err(format!(
                "expected at most {RAILS_MAX} addresses, one on each network, found `{text}`"
            ));
        }
        if (1..all.len()).any(|at| all[..at].contains(&all[at])) {
            return Err(format!("expected an address on each network, found one twice in `{text}`"));
        }
        let further = all.split_off(1);
        Ok(Addresses { first: all[0], further })
    }
}

impl core::fmt::Display for Addresses {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.first)?;
        self.further.iter().try_for_each(|address| write!(f, "+{address}"))
    }
}
