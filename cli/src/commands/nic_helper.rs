//! The privileged helper that opens AF_XDP sockets for ranks without rights.

use std::os::fd::AsFd as _;
use std::path::PathBuf;

use clap::Args;
use drivers::xdp::helper::{DEFAULT_PATH, Helper, HelperConfig, Limits, Rules};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Group, User};
use serde::Serialize;

use super::{print_json, print_message};
use crate::error::CliError;
use crate::exit::Exit;

pub(crate) const LONG_ABOUT: &str = "\
Open AF_XDP sockets for ranks without privileges, until Ctrl-C or SIGTERM.

AF_XDP needs CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF. With this helper no rank needs them. Run it once on each host, as root or with these three, \
in the ranks' network namespace. Ranks (`run --nic xdp:INTERFACE`, or auto) find it at the default socket, or where STILLWIRE_NIC_HELPER says; \
`stillwire ps` then shows `by nic-helper`.

A rank names an address of the interface. The helper binds a UDP port there, and gives the rank that socket, queues of the interface for frames to that address and port \
alone, and memory for frames. It takes no file from a rank. A port, queue or program that another process has is left alone, and the refusal names it. \
The helper owns the program at the interface, one for all ranks there, and renews it whenever a rank comes or goes. When a rank ends, in any way, the program takes \
no more frames for it. Several ranks on one host share an interface that has a queue for each (`ethtool -L`).

Attaching a program can reset the link. So it stays attached for ten minutes after the last rank's end, and is attached at most six times an hour.

A user that the helper serves can send any frame through these queues, with any sender's address, as with CAP_NET_RAW. Serve only users to whom you would grant that.

Without --uid and --group, the helper serves only the user that runs it. With --group, it serves the members of that group (mode 660). With --uid, it serves those users \
(mode 666; the kernel confirms who has connected). With both, it serves those users who are also members. --mode changes who can open the socket. \
Before Linux 6.16 a user who can open the socket can slow the helper down, even if it is not served: use --group there.

Each user has limits, so that none takes everything: --user-rails, --user-memory, --user-connections, --user-log-lines.

When it ends, it detaches everything. Running ranks continue: they send as before, and receive through the kernel, until they open a rail anew (a restart). \
The helper pins memory for frames: give it CAP_IPC_LOCK, or LimitMEMLOCK=infinity, unless it is root. It needs Linux 6.4 or later.

As a service of systemd:

  [Service]
  ExecStart=/usr/local/bin/stillwire nic-helper --interface eth0 --group stillwire
  RuntimeDirectory=stillwire
  User=stillwire-nic
  Group=stillwire
  AmbientCapabilities=CAP_NET_RAW CAP_NET_ADMIN CAP_BPF CAP_IPC_LOCK
  CapabilityBoundingSet=CAP_NET_RAW CAP_NET_ADMIN CAP_BPF CAP_IPC_LOCK
  NoNewPrivileges=yes";

#[derive(Debug, Args)]
pub(crate) struct NicHelperArguments {
    /// Socket on which the helper listens
    #[arg(long, value_name = "PATH", default_value = DEFAULT_PATH)]
    pub(crate) socket: PathBuf,
    /// Serve this user, by name or number; may be given several times
    #[arg(long = "uid", value_name = "USER", value_parser = user_argument)]
    pub(crate) uids: Vec<u32>,
    /// Give the socket to this group, by name or number
    #[arg(long, value_name = "GROUP", value_parser = group_argument)]
    pub(crate) group: Option<u32>,
    /// Permissions of the socket, such as 660 [default: 666 with --uid alone, 660 with --group, else 600]
    #[arg(long, value_name = "OCTAL", value_parser = mode_argument)]
    pub(crate) mode: Option<u32>,
    /// Serve this interface; may be given several times
    #[arg(long = "interface", value_name = "INTERFACE", required = true)]
    pub(crate) interfaces: Vec<String>,
    /// Attach programs in the kernel's receive path, also if the interface's driver can run them: slower, and resets no link
    #[arg(long)]
    pub(crate) generic: bool,
    /// Rails that each user gets
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().rails)]
    pub(crate) user_rails: u32,
    /// MiB of locked memory for frames that each user gets
    #[arg(long, value_name = "MIB", default_value_t = Limits::default().memory_mib)]
    pub(crate) user_memory: u32,
    /// Connections that each user gets, those of rails included
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().connections)]
    pub(crate) user_connections: u32,
    /// Lines about each user that are printed within a minute
    #[arg(long, value_name = "COUNT", default_value_t = Limits::default().log_lines)]
    pub(crate) user_log_lines: u32,
    /// Do not print the queues that each user gets
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

fn user_argument(text: &str) -> Result<u32, String> {
    if let Ok(uid) = text.parse() {
        return Ok(uid);
    }
    let found = User::from_name(text).ok().flatten();
    found.map(|user| user.uid.as_raw()).ok_or_else(|| format!("no user has the name {text}"))
}

fn group_argument(text: &str) -> Result<u32, String> {
    if let Ok(gid) = text.parse() {
        return Ok(gid);
    }
    let found = Group::from_name(text).ok().flatten();
    found.map(|group| group.gid.as_raw()).ok_or_else(|| format!("no group has the name {text}"))
}

fn mode_argument(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| format!("'{text}' are no permissions, expected up to three octal digits such as 660"))
}

/// The report that the command prints under `--json`, when ranks can connect.
#[derive(Serialize)]
struct Ready<'a> {
    socket: &'a str,
}

pub(crate) fn serve(arguments: NicHelperArguments, json: bool) -> Result<Exit, CliError> {
    let mode = match (arguments.mode, arguments.group, arguments.uids.as_slice()) {
        (Some(mode), ..) => mode,
        (None, Some(_), _) => 0o660,
        (None, None, []) => 0o600,
        (None, None, _) => 0o666,
    };
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().map_err(std::io::Error::from)?;
    let stop = SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC);
    let stop = stop.map_err(std::io::Error::from)?;
    let rules = Rules { uids: arguments.uids, devices: arguments.interfaces };
    let limits = Limits {
        rails: arguments.user_rails,
        memory_mib: arguments.user_memory,
        connections: arguments.user_connections,
        log_lines: arguments.user_log_lines,
    };
    let config = HelperConfig {
        mode,
        group: arguments.group,
        limits,
        generic: arguments.generic,
        ..HelperConfig::new(arguments.socket, rules)
    };
    let mut helper = Helper::open(&config)?;
    if json {
        print_json(&Ready { socket: &helper.path().to_string_lossy() })?;
    } else if !arguments.quiet {
        print_message(format_args!(
            "nic-helper: serves at {}, permissions {mode:o}",
            helper.path().display()
        ));
    }
    let served = helper.run(stop.as_fd(), &mut |event| {
        if !arguments.quiet {
            print_message(format_args!("nic-helper: {event}"));
        }
    });
    served.map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?;
    drop(helper);
    if !arguments.quiet {
        print_message(format_args!("nic-helper: ended; no program of it is left at any device"));
    }
    Ok(Exit::Success)
}
