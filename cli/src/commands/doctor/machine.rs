//! The machine: the features that its kernel allows.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use drivers::udp::UdpConfig;
use launcher::spawn::namespace::{NamespaceError, Namespaces};
use launcher::text;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::utsname::uname;
use process::facilities::Facilities;

use super::{Finding, probe};
use crate::error::CliError;

const YAMA: &str = "/proc/sys/kernel/yama/ptrace_scope";
const HUGE: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

pub(super) fn look() -> Result<Vec<Finding>, CliError> {
    let kernel = uname().map(|name| name.release().to_string_lossy().into_owned()).unwrap_or_default();
    let mut findings = vec![Finding::ok("kernel", kernel), reading(), memory_files(), huge_pages()];
    findings.extend(facilities(process::facilities::look()));
    findings.push(pid_namespaces());
    findings.extend(socket_buffers());
    findings.extend(offloads());
    Ok(findings)
}

fn setting(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Large messages on one host are read straight from the sender's memory.
fn reading() -> Finding {
    const WHAT: &str = "reading peers";
    let yama =
        setting(YAMA).map_or_else(|| "no Yama".to_owned(), |scope| format!("Yama ptrace_scope {scope}"));
    match (probe::reads_sibling(false), probe::reads_sibling(true)) {
        (Ok(true), _) => Finding::ok(WHAT, format!("process_vm_readv works between processes ({yama})")),
        (_, Ok(true)) => Finding::ok(
            WHAT,
            format!("process_vm_readv works where the peer permits it, as ours do ({yama})"),
        ),
        (_, Ok(false)) => Finding::slow(
            WHAT,
            format!(
                "process_vm_readv is not permitted ({yama}): large messages on one host are copied once more"
            ),
            format!(
                "sysctl -w kernel.yama.ptrace_scope=1 (file {YAMA}); in a container: --cap-add SYS_PTRACE or a seccomp \
                     profile that allows process_vm_readv"
            ),
        ),
        (_, Err(error)) => {
            Finding::slow(WHAT, format!("could not be tried: {error}"), "is a process left (ulimit -u)?")
        }
    }
}

/// Memory that processes of a host share has no name, and is found through /proc.
fn memory_files() -> Finding {
    const WHAT: &str = "shared memory";
    let fix =
        "mount /proc, and allow memfd_create (Linux 3.17 or newer; in a container: its seccomp profile)";
    match memfd_create("stillwire-doctor", MFdFlags::MFD_CLOEXEC) {
        Ok(file) => match fs::File::open(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd())) {
            Ok(_) => Finding::ok(WHAT, "memfd_create works, and /proc opens what it makes"),
            Err(error) => {
                Finding::slow(WHAT, format!("/proc does not open a memory file: {}", text::io(&error)), fix)
            }
        },
        Err(error) => Finding::slow(WHAT, format!("memfd_create: {}", error.desc()), fix),
    }
}

/// Saving a process forks it; with huge pages the fork takes a tenth of the time.
fn huge_pages() -> Finding {
    const WHAT: &str = "huge pages";
    let Some(text) = setting(HUGE) else {
        return Finding::slow(
            WHAT,
            "the kernel has no transparent ones",
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        );
    };
    match text.split(['[', ']']).nth(1).unwrap_or_default() {
        mode @ ("always" | "madvise") => Finding::ok(WHAT, format!("transparent ones: {mode}")),
        mode => Finding::slow(WHAT, format!("transparent ones: {mode}"), format!("echo madvise > {HUGE}")),
    }
}

/// For ranks whose processes are to have the same ids in every life.
fn pid_namespaces() -> Finding {
    const WHAT: &str = "pid namespaces";
    match Namespaces::new() {
        Ok(_) => Finding::ok(
            WHAT,
            "each rank can have one of its own, and its ids in every life (run --pid-namespace)",
        ),
        Err(error) => {
            let (problem, fix) = NamespaceError::parts(&error);
            let found = format!("restored processes get new ids, run --pid-namespace {problem}");
            Finding::slow(WHAT, found, fix)
        }
    }
}

/// Of programs that are saved as whole processes.
fn facilities(here: Facilities) -> [Finding; 4] {
    let finding = |what, has: Result<(), process::Errno>, found: &str, without: &str, fix: &str| match has {
        Ok(()) => Finding::ok(what, found),
        Err(errno) => Finding::slow(what, format!("{without} ({errno})"), fix),
    };
    [
        finding(
            "written pages",
            here.written_pages,
            "the kernel tells which they are (userfaultfd, PAGEMAP_SCAN)",
            "the kernel does not tell which they are: later images hold the pages whose content has changed",
            "Linux 6.7 or newer; userfaultfd(2) allowed",
        ),
        finding(
            "own pages",
            here.page_ranges,
            "the kernel tells where they lie (PAGEMAP_SCAN)",
            "read one by one in /proc/self/pagemap; pages of zeros that were only read are saved, too",
            "Linux 6.7 or newer",
        ),
        finding(
            "pairs of sockets",
            here.socket_pairs,
            "the kernel tells who has the other end (sock_diag)",
            "the kernel does not tell who has the other end: programs that hold one cannot be saved",
            "modprobe unix_diag; in a container: its seccomp profile",
        ),
        finding(
            "timers",
            here.timers,
            "the kernel lists those of timer_create (/proc/PID/timers)",
            "the kernel does not list those of timer_create: programs that have one cannot be saved",
            "a kernel with CONFIG_CHECKPOINT_RESTORE",
        ),
    ]
}

fn socket_buffers() -> Vec<Finding> {
    let wanted = UdpConfig::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).socket_bytes;
    let look = |(what, name): (&'static str, &str)| {
        let path = format!("/proc/sys/net/core/{name}");
        let found = setting(&path).and_then(|text| text.parse::<usize>().ok());
        match found {
            Some(bytes) if bytes >= wanted => Finding::ok(what, format!("net.core.{name} is {bytes}")),
            Some(bytes) => Finding::slow(
                what,
                format!(
                    "net.core.{name} is {bytes}, {wanted} are asked for: bursts over UDP may be lost and sent again"
                ),
                format!("sysctl -w net.core.{name}={wanted}"),
            ),
            None => Finding::ok(what, format!("{path} cannot be read")),
        }
    };
    [("receive buffers", "rmem_max"), ("send buffers", "wmem_max")].map(look).into()
}

fn offloads() -> Vec<Finding> {
    let socket = match UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)) {
        Ok(socket) => socket,
        Err(error) => {
            let fix = "bring the loopback interface up: ip link set lo up";
            return vec![Finding::problem(
                "UDP",
                format!("no socket on 127.0.0.1: {}", text::io(&error)),
                fix,
            )];
        }
    };
    let finding = |what, tried: nix::Result<()>, linux| match tried {
        Ok(()) => Finding::ok(what, "works"),
        Err(error) => Finding::slow(
            what,
            format!("{}: one call for each frame", error.desc()),
            format!("Linux {linux} or newer"),
        ),
    };
    vec![
        finding("UDP send offload", setsockopt(&socket, sockopt::UdpGsoSegment, &1024), "4.18"),
        finding("UDP receive offload", setsockopt(&socket, sockopt::UdpGroSegment, &true), "5.0"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_lacks_is_said_with_what_is_done_instead() {
        let lacks = Err(process::Errno(libc::ENOTTY));
        let old = Facilities { written_pages: lacks, page_ranges: lacks, socket_pairs: lacks, timers: lacks };
        let text = format!("{:?}", facilities(old));
        for words in
            ["content has changed", "/proc/self/pagemap", "modprobe unix_diag", "CONFIG_CHECKPOINT_RESTORE"]
        {
            assert!(text.contains(words), "{text}");
        }
        let new =
            Facilities { written_pages: Ok(()), page_ranges: Ok(()), socket_pairs: Ok(()), timers: Ok(()) };
        assert!(facilities(new).iter().all(|finding| finding.fix.is_none()));
    }
}
