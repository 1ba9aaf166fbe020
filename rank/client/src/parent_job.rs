//! The launch record of a process that is no rank, but speaks to ranks that are saved as whole processes: one that they
//! have spawned.

use core::fmt::Write as _;

use ckpt_glue::enrolment::AddressTable;
use transport::{AuthLevel, JobId, Life, PortId, RawAddress};

/// Names the environment variable with a [`ParentJob`].
pub const PARENT_JOB_VARIABLE: &str = "STILLWIRE_PARENT_JOB";

/// Longest text of a [`ParentJob`]: the kernel takes no variable beyond 128 KiB.
pub const PARENT_JOB_BYTES_MAX: usize = 120 << 10;

/// The ranks among which a process lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParentJob {
    /// Their job.
    pub job: JobId,
    /// Their life.
    pub life: Life,
    /// The bytes that the tags of their frames cover at least.
    pub auth: AuthLevel,
    /// The addresses of ports that are older than this life: their ranks give out addresses of earlier lives, which
    /// their programs had stored.
    pub moved: AddressTable,
}

impl ParentJob {
    /// `JOB.COUNTER.NONCE.LEVEL`, and for each port `,PORT` and its rails, `:ADDRESS`, all but the counter in hexadecimal; `None` if that is too long.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        let mut text = format!("{}.{}.{}", self.job, self.life, level_name(self.auth));
        for (port, rails) in &self.moved {
            let _ = write!(text, ",{:x}", port.0);
            for rail in rails {
                text.push(':');
                rail.as_bytes().iter().for_each(|byte| {
                    let _ = write!(text, "{byte:02x}");
                });
            }
        }
        (text.len() <= PARENT_JOB_BYTES_MAX).then_some(text)
    }

    /// Reads a text that [`ParentJob::text`] wrote.
    #[must_use]
    pub fn parse(text: &str) -> Option<ParentJob> {
        let mut parts = text.split(',');
        let mut names = parts.next()?.split('.');
        let job = JobId(u128::from_str_radix(names.next()?, 16).ok()?);
        let counter = names.next()?.parse().ok()?;
        let nonce = u64::from_str_radix(names.next()?, 16).ok()?;
        let auth = names.next().and_then(level_of)?;
        if names.next().is_some() {
            return None;
        }
        let moved = parts.map(port).collect::<Option<_>>()?;
        Some(ParentJob { job, life: Life { counter, nonce }, auth, moved })
    }
}

fn level_name(level: AuthLevel) -> &'static str {
    match level {
        AuthLevel::Full => "full",
        AuthLevel::Header | AuthLevel::Off => "header",
    }
}

fn level_of(name: &str) -> Option<AuthLevel> {
    [AuthLevel::Header, AuthLevel::Full].into_iter().find(|level| level_name(*level) == name)
}

fn port(text: &str) -> Option<(PortId, Vec<RawAddress>)> {
    let mut parts = text.split(':');
    let port = PortId(u64::from_str_radix(parts.next()?, 16).ok()?);
    Some((port, parts.map(address).collect::<Option<_>>()?))
}

fn address(text: &str) -> Option<RawAddress> {
    if !text.is_ascii() {
        return None;
    }
    let bytes: Option<Vec<u8>> = text
        .as_bytes()
        .chunks(2)
        .map(|digits| match digits {
            [_, _] => u8::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok(),
            _ => None,
        })
        .collect();
    RawAddress::new(&bytes?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent_job(ports: u64) -> ParentJob {
        let rails = |port: u64| vec![RawAddress::new(&port.to_be_bytes()).unwrap(), RawAddress::NONE];
        let moved = (0..ports).map(|port| (PortId(port << 33 | 1), rails(port))).collect();
        let auth = if ports == 1 { AuthLevel::Header } else { AuthLevel::Full };
        ParentJob { job: JobId(77), life: Life { counter: 3, nonce: u64::MAX }, auth, moved }
    }

    #[test]
    fn a_parent_job_is_read_as_it_was_written() {
        for ports in [0, 1, 300] {
            let parent_job = parent_job(ports);
            assert_eq!(ParentJob::parse(&parent_job.text().unwrap()), Some(parent_job));
        }
        let too_long = parent_job(100_000).text();
        assert_eq!(too_long, None);
        for wrong in [
            "",
            "12",
            "12.3",
            "12.3.4",
            "12.3.4.some",
            "12.3.4.full.5",
            "x.1.2.full",
            "1.-1.2.full",
            "1.1.2.full,",
            "1.1.2.full,x",
            "1.1.2.full,1:1",
            "1.1.2.full,1:zz",
            "1.1.2.full,1:\u{e4}",
        ] {
            assert_eq!(ParentJob::parse(wrong), None, "{wrong}");
        }
    }
}
