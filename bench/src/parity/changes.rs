//! The content of a delta of a program's memory: the pages that differ from a base, and their places.

use process::state::machine::Machine;
use process::state::memory::{Advice, Backing, Memory, PageRun, Parts, Protection, Region};
use process::state::signals::{IntervalTimer, Signals};
use process::state::threads::{At, Thread};
use process::state::{self, PAGES_KIND, ProcessState, Program, Resume, STATE_KIND};
use store::image::Base;
use store::limits::PAGE_BYTES;
use store::{GenerationId, Section};

use super::cluster::Image;

/// Address of the first page of a program's memory.
const ADDRESS: usize = 1 << 32;

/// Pages that differ from those of a base.
pub(super) struct Changes {
    runs: Vec<PageRun>,
    /// The state of a process that has these pages.
    state: Vec<u8>,
    content: Vec<u8>,
}

impl Changes {
    /// Both are whole pages, and as many.
    pub(super) fn of(base: &[u8], now: &[u8]) -> Changes {
        let (mut runs, mut content): (Vec<PageRun>, _) = (Vec::new(), Vec::new());
        let pages = base.chunks_exact(PAGE_BYTES).zip(now.chunks_exact(PAGE_BYTES));
        for (number, (_, page)) in pages.enumerate().filter(|(_, (base, page))| base != page) {
            let address = (ADDRESS + number * PAGE_BYTES) as u64;
            match runs.last_mut().filter(|run| run.address + run.pages * PAGE_BYTES as u64 == address) {
                Some(run) => run.pages += 1,
                None => runs.push(PageRun { address, pages: 1 }),
            }
            content.extend_from_slice(page);
        }
        let state = process_with(now.len(), &runs).encode();
        Changes { runs, state, content }
    }

    /// How many.
    pub(super) fn pages(&self) -> u64 {
        self.runs.iter().map(|run| run.pages).sum()
    }

    pub(super) fn image(&self, base: Base, last: GenerationId) -> Image<'_> {
        let sections = vec![
            Section::new(STATE_KIND, state::VERSION, &self.state),
            Section::new(PAGES_KIND, state::VERSION, &self.content),
        ];
        Image { sections, base: Some(base), last: Some(last) }
    }

    /// A base with `pages` in the places of these; none if they are not as many.
    pub(super) fn over(&self, mut base: Vec<u8>, mut pages: &[u8]) -> Option<Vec<u8>> {
        for run in &self.runs {
            let at = usize::try_from(run.address).ok()? - ADDRESS;
            let (now, rest) = pages.split_at_checked(usize::try_from(run.pages).ok()? * PAGE_BYTES)?;
            base.get_mut(at..at + now.len())?.copy_from_slice(now);
            pages = rest;
        }
        pages.is_empty().then_some(base)
    }
}

/// A process that is only memory. It is not restored: it says which pages an image holds, as that of a real process
/// does.
fn process_with(bytes: usize, runs: &[PageRun]) -> ProcessState {
    let region = Region {
        start: ADDRESS as u64,
        end: (ADDRESS + bytes) as u64,
        protection: Protection::READ | Protection::WRITE | Protection::EXECUTE,
        backing: Backing::Anonymous,
        advice: Advice::empty(),
    };
    let parts = Parts {
        start_code: 0,
        end_code: 0,
        start_data: 0,
        end_data: 0,
        start_brk: 0,
        brk: 0,
        start_stack: 0,
        arg_start: 0,
        arg_end: 0,
        env_start: 0,
        env_end: 0,
    };
    let thread = Thread {
        tid: 1,
        at: At::Agent { registers: Vec::new(), mask: 0 },
        tls_base: 0,
        gs_base: 0,
        tid_address: 0,
        robust_list: (0, 0),
        rseq: None,
        name: [0; 16],
        parent_death_signal: 0,
        timer_slack_ns: 0,
        processors: None,
        scheduling: None,
    };
    ProcessState {
        machine: Machine {
            architecture: std::env::consts::ARCH.to_owned(),
            kernel: String::new(),
            page_bytes: u32::try_from(PAGE_BYTES).expect("a page is short"),
            features: Vec::new(),
            vector_components: 0,
            vector_bytes: 0,
        },
        program: Program {
            pid: 1,
            executable: b"bench".to_vec(),
            directory: b"/".to_vec(),
            personality: 0,
            umask: 0,
            limits: Vec::new(),
            dumpable: 1,
            huge_pages_disabled: false,
            is_subreaper: false,
            barriers: 0,
        },
        memory: Memory {
            parts,
            auxiliary: Vec::new(),
            regions: vec![region],
            files: Vec::new(),
            shared: Vec::new(),
            runs: runs.to_vec(),
            guards: Vec::new(),
        },
        threads: vec![thread],
        signals: Signals {
            actions: Vec::new(),
            pending: Vec::new(),
            interval_timers: [IntervalTimer::default(); 3],
            timers: Vec::new(),
        },
        resume: Resume { entry: ADDRESS as u64 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_found_named_and_laid_over_its_base() {
        let base = vec![7; 6 * PAGE_BYTES];
        let mut now = base.clone();
        for page in [1, 2, 5] {
            now[page * PAGE_BYTES + 9] = 8;
        }
        let changes = Changes::of(&base, &now);
        assert_eq!(changes.pages(), 3);
        assert_eq!(changes.over(base.clone(), &changes.content), Some(now));
        assert_eq!(changes.over(base.clone(), &changes.content[1..]), None);
        // The protector reads the state to know which pages they are.
        let state = ProcessState::decode(state::VERSION, &changes.state).expect("a state");
        assert_eq!(state.memory.runs, changes.runs);
        assert_eq!(state.memory.runs.len(), 2);
        assert_eq!(Changes::of(&base, &base).pages(), 0);
    }
}
