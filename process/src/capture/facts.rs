//! The kernel's facts about the process as a whole, while its threads stand still.

use crate::maps::number;
use crate::state::memory::Parts;
use crate::stop::{KernelAction, action};
use crate::sys::{self, Answer, Errno};

/// Signals have the numbers 1 to 64.
const SIGNALS: usize = 64;

/// Resources of `getrlimit(2)`.
const LIMITS: usize = 16;

/// `MEMBARRIER_CMD_GET_REGISTRATIONS`, Linux 6.3.
const BARRIERS_QUERY: usize = 1 << 9;
/// `MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED`, and the same with `_SYNC_CORE`.
const BARRIERS_PRIVATE: u32 = 1 << 4 | 1 << 6;

/// Answers of the kernel, as they come.
#[derive(Clone)]
pub(super) struct Facts {
    stat: [u8; 2048],
    stat_bytes: usize,
    pub(super) limits: [(u64, u64); LIMITS],
    pub(super) brk: u64,
    pub(super) personality: u32,
    pub(super) umask: u32,
    pub(super) dumpable: u8,
    pub(super) huge_pages_disabled: bool,
    pub(super) is_subreaper: bool,
    pub(super) barriers: u32,
    directory: [u8; 4096],
    pub(super) actions: [KernelAction; SIGNALS],
}

impl Facts {
    pub(super) const NOTHING: Facts = Facts {
        stat: [0; 2048],
        stat_bytes: 0,
        limits: [(0, 0); LIMITS],
        brk: 0,
        personality: 0,
        umask: 0,
        dumpable: 0,
        huge_pages_disabled: false,
        is_subreaper: false,
        barriers: 0,
        directory: [0; 4096],
        actions: [KernelAction::DEFAULT; SIGNALS],
    };

    /// Asks.
    pub(super) fn look(&mut self) -> Answer<()> {
        self.stat_bytes = sys::read_whole(c"/proc/self/stat", &mut self.stat)?;
        // SAFETY: the calls write to variables of their types, or to nothing. `umask` has to be set to be read; no
        // other thread runs that could make a file meanwhile.
        unsafe {
            for (resource, (soft, hard)) in self.limits.iter_mut().enumerate() {
                let mut limit = [0u64; 2];
                sys::call(libc::SYS_prlimit64, [0, resource, 0, limit.as_mut_ptr() as usize, 0, 0])?;
                [*soft, *hard] = limit;
            }
            self.brk = sys::call(libc::SYS_brk, [0; 6])? as u64;
            const ASK: usize = 0xffff_ffff;
            self.personality = sys::call(libc::SYS_personality, [ASK, 0, 0, 0, 0, 0])? as u32;
            let umask = sys::call(libc::SYS_umask, [0o077, 0, 0, 0, 0, 0])?;
            sys::call(libc::SYS_umask, [umask, 0, 0, 0, 0, 0])?;
            self.umask = umask as u32;
            self.dumpable = sys::prctl(libc::PR_GET_DUMPABLE, 0)? as u8;
            self.huge_pages_disabled = sys::prctl(libc::PR_GET_THP_DISABLE, 0).is_ok_and(|set| set != 0);
            let mut subreaper = 0i32;
            sys::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut subreaper as usize)?;
            self.is_subreaper = subreaper != 0;
            // If the kernel does not report it, an unused registration costs next to nothing.
            let reported = sys::call(libc::SYS_membarrier, [BARRIERS_QUERY, 0, 0, 0, 0, 0]);
            self.barriers = reported.map_or(BARRIERS_PRIVATE, |registered| registered as u32);
            let room = self.directory.len();
            sys::call(libc::SYS_getcwd, [self.directory.as_mut_ptr() as usize, room, 0, 0, 0, 0])?;
            for (signal, found) in (1..).zip(&mut self.actions) {
                *found = action(signal, None)?;
            }
        }
        Ok(())
    }

    /// The working directory.
    pub(super) fn directory(&self) -> &[u8] {
        self.directory.split(|byte| *byte == 0).next().unwrap_or(b"/")
    }

    /// Where the kernel knows the program's parts.
    pub(super) fn parts(&self) -> Answer<Parts> {
        let text = self.stat.get(..self.stat_bytes).unwrap_or(&[]);
        parts(text, self.brk).ok_or(Errno(libc::EPROTO))
    }
}

/// The fields of `/proc/self/stat`, whose second is a name that may hold anything.
fn parts(stat: &[u8], brk: u64) -> Option<Parts> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let fields: Vec<&[u8]> = stat.get(name_end + 2..)?.trim_ascii_end().split(|byte| *byte == b' ').collect();
    // Numbered as in proc_pid_stat(5): the first one here is the third.
    let field = |n: usize| fields.get(n - 3).and_then(|text| number(text, 10)).map(|(value, _)| value);
    Some(Parts {
        start_code: field(26)?,
        end_code: field(27)?,
        start_stack: field(28)?,
        start_data: field(45)?,
        end_data: field(46)?,
        start_brk: field(47)?,
        arg_start: field(48)?,
        arg_end: field(49)?,
        env_start: field(50)?,
        env_end: field(51)?,
        brk,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_as_it_is() {
        let mut facts = Facts::NOTHING;
        facts.look().expect("every kernel answers");
        let here = std::env::current_dir().expect("there is one");
        assert_eq!(facts.directory(), here.as_os_str().as_encoded_bytes());
        let parts = facts.parts().expect("a line as documented");
        assert!(parts.start_brk <= parts.brk && parts.start_code < parts.end_code);
        let here = std::ptr::from_ref(&parts) as u64;
        let main_stack = parts.start_stack;
        assert!(here != 0 && main_stack > parts.end_code);
        assert!(facts.limits[libc::RLIMIT_NOFILE as usize].0 > 0);
    }

    #[test]
    fn a_name_with_spaces_and_brackets_does_not_move_the_fields() {
        let mut line = b"12 (a) b (c) S".to_vec();
        for field in 4..=52 {
            line.extend_from_slice(format!(" {}", field * 100).as_bytes());
        }
        let parts = parts(&line, 7).expect("all fields");
        assert_eq!((parts.start_code, parts.start_stack, parts.env_end, parts.brk), (2600, 2800, 5100, 7));
        assert!(super::parts(b"12 (a) S 1 2", 0).is_none());
    }
}
