//! The addresses on which the ranks of a node receive, and their part of the launcher's environment.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::super::Plan;
use super::super::secrets::withheld;

/// The address on which the provider receives in processes that are no ranks, such as those that ranks spawn.
const ADDRESS_VARIABLE: &str = "STILLWIRE_ADDRESS";

/// The address on which ranks receive, which stands in their environment. It is the same for them and for the processes that they spawn, however many
/// of them are on this node.
/// On a job's only host the user's setting counts: in the job's environment, or in the one below it.
pub(super) fn of_ranks(
    bind: SocketAddr,
    environment: &mut Vec<(OsString, OsString)>,
    below: Vec<(OsString, OsString)>,
) -> SocketAddr {
    let is_address = |(name, _): &(OsString, OsString)| name == ADDRESS_VARIABLE;
    let said = environment.iter().cloned().chain(below).find(is_address);
    match said.filter(|_| bind.ip() == Ipv4Addr::LOCALHOST) {
        Some((_, text)) => {
            // Ignore a value that is no address: the provider ignores it too, and reports it.
            let ip = text.to_str().and_then(|text| text.parse::<IpAddr>().ok());
            ip.map_or(bind, |ip| SocketAddr::new(ip, bind.port()))
        }
        None => {
            environment.retain(|variable| !is_address(variable));
            environment.push((ADDRESS_VARIABLE.into(), bind.ip().to_string().into()));
            bind
        }
    }
}

/// The environment of a launcher as ranks on another host get it: without the launcher's own variables, and those of its own host and session.
pub(crate) fn environment_for_others(plan: &Plan) -> Vec<(OsString, OsString)> {
    const OF_A_SESSION: [&str; 8] = [
        "HOSTNAME",
        "SSH_CLIENT",
        "SSH_CONNECTION",
        "SSH_TTY",
        "SSH_AUTH_SOCK",
        "XDG_RUNTIME_DIR",
        "DISPLAY",
        "DBUS_SESSION_BUS_ADDRESS",
    ];
    let is_own =
        |name: &OsString| OF_A_SESSION.iter().any(|own| name == own) || withheld(plan).any(|own| name == own);
    std::env::vars_os().filter(|(name, _)| !is_own(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(text: &str) -> (OsString, OsString) {
        (ADDRESS_VARIABLE.into(), text.into())
    }

    fn place(bind: &str, own: &[&str], below: &[&str]) -> (String, Vec<String>) {
        let mut environment: Vec<_> = own.iter().map(|text| variable(text)).collect();
        let below = below.iter().map(|text| variable(text)).collect();
        let place = of_ranks(bind.parse().expect("an address"), &mut environment, below);
        let said = environment.into_iter().map(|(_, text)| text.into_string().expect("words")).collect();
        (place.to_string(), said)
    }

    #[test]
    fn ranks_receive_where_the_launcher_says_and_on_one_host_where_a_person_does() {
        let said = |text: &str| vec![text.to_owned()];
        assert_eq!(place("127.0.0.1:0", &[], &[]), ("127.0.0.1:0".into(), said("127.0.0.1")));
        assert_eq!(
            place("127.0.0.1:0", &["10.0.0.5"], &["10.0.0.6"]),
            ("10.0.0.5:0".into(), said("10.0.0.5"))
        );
        assert_eq!(
            place("127.0.0.1:0", &[], &["10.0.0.6"]),
            ("10.0.0.6:0".into(), vec![]),
            "it is inherited"
        );
        assert_eq!(place("127.0.0.1:0", &["here"], &[]), ("127.0.0.1:0".into(), said("here")));
        assert_eq!(
            place("10.0.0.1:0", &["10.0.0.5"], &["10.0.0.6"]),
            ("10.0.0.1:0".into(), said("10.0.0.1"))
        );
    }
}
