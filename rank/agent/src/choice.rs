//! How the next image is written, and of which pages: all pages, by a fork; or pages that changed since the last whole
//! one, by a copy if the kernel reports them, else by a fork that compares.

use std::sync::Arc;

use ckpt_glue::names::ImageDigest;
use process::capture::{CaptureError, Mode, Options, Pause, Prepared};
use process::content::Hashes;
use process::declared::Declared;
use process::state::Unchanged;
use process::state::memory::PageRun;
use process::track::{self, Costs, DELTA_FRACTION, Extent, Scope, Tracker, Way};
use store::image::Base;
use store::{Directory, GenerationId, JobDirectory};
use transport::Rank;

/// The launcher sets this variable to the user's choice: the name of a [`CaptureMode`].
pub const CAPTURE_VARIABLE: &str = "STILLWIRE_CAPTURE";

/// The user's choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CaptureMode {
    /// The mode with the shortest pause, as measured in this process.
    #[default]
    Auto,
    /// A fork, always.
    Fork,
    /// Changed pages, if the kernel can report them and a whole image to build on exists.
    Scan,
    /// Pages whose content differs from the last whole image: a fork compares them. The kernel is not
    /// queried.
    Content,
    /// No fork: the program waits until all is written.
    Sync,
}

impl CaptureMode {
    /// Every name with its mode.
    pub const ALL: [(&str, CaptureMode); 5] = [
        ("auto", CaptureMode::Auto),
        ("fork", CaptureMode::Fork),
        ("scan", CaptureMode::Scan),
        ("content", CaptureMode::Content),
        ("sync", CaptureMode::Sync),
    ];

    /// The one of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<CaptureMode> {
        CaptureMode::ALL.iter().find(|(known, _)| *known == name).map(|(_, mode)| *mode)
    }

    fn of_environment() -> CaptureMode {
        std::env::var(CAPTURE_VARIABLE).ok().and_then(|name| CaptureMode::named(&name)).unwrap_or_default()
    }
}

/// Work on the content of pages besides writing it.
enum Content {
    Unknown,
    Noted,
    Compared(Arc<Hashes>),
}

/// The decision for one image.
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    copy_bytes: u64,
    content: Content,
    /// Put beside the next image.
    pub(crate) base: Option<Base>,
    scan_ns: u64,
    /// The rank's write rate while the program runs.
    pub(crate) disk_bytes_per_s: Option<u64>,
}

impl Plan {
    fn whole(mode: Mode) -> Plan {
        Plan {
            mode,
            copy_bytes: 0,
            content: Content::Unknown,
            base: None,
            scan_ns: 0,
            disk_bytes_per_s: None,
        }
    }

    pub(crate) fn options(&self) -> Options {
        Options { mode: self.mode, copy_bytes: self.copy_bytes, ..Options::default() }
    }

    /// Adds base, comparison and encryption to a capture.
    pub(crate) fn equip(&self, prepared: &mut Prepared) -> Result<(), CaptureError> {
        match &self.content {
            Content::Unknown => {}
            Content::Noted => prepared.note_content()?,
            Content::Compared(hashes) => prepared.compare_content(Arc::clone(hashes)),
        }
        Ok(())
    }
}

/// The last whole image, if later writes, or its content, are known.
struct Whole {
    base: Base,
    runs: Vec<PageRun>,
    hashes: Option<Arc<Hashes>>,
    /// The last delta by content held too much of it.
    is_stale: bool,
    /// Where the base has had a name last, besides its own.
    last: Option<GenerationId>,
    /// Deltas that were taken on top of it.
    deltas: u32,
}

/// The kernel's help.
enum Tracking {
    Untried,
    Ready { tracker: Tracker, is_armed: bool },
    None,
}

pub(crate) struct Choice {
    mode: CaptureMode,
    tracking: Tracking,
    whole: Option<Whole>,
    costs: Costs,
}

pub(crate) const PAGE_BYTES: u64 = 4096;

impl Choice {
    pub(crate) fn new() -> Choice {
        let (tracking, costs) = (Tracking::Untried, Costs::NOTHING);
        Choice { mode: CaptureMode::of_environment(), tracking, whole: None, costs }
    }

    /// The pages of the next image and their source. Ordinary code, before anything stands still; `declared`
    /// without the watched memory.
    pub(crate) fn plan(
        &mut self,
        directory: &mut JobDirectory<Directory>,
        (generation, rank): (GenerationId, Rank),
        declared: &Declared,
    ) -> Plan {
        match self.mode {
            CaptureMode::Fork => return Plan::whole(Mode::Fork),
            CaptureMode::Sync => return Plan::whole(Mode::Sync),
            CaptureMode::Content => return self.plan_by_content(directory, (generation, rank)),
            CaptureMode::Auto | CaptureMode::Scan => {}
        }
        self.open(rank);
        if matches!(self.tracking, Tracking::None) || self.is_huge() {
            return self.plan_by_content(directory, (generation, rank));
        }
        if let Some(extent) = self.extent(declared) {
            let way = self.costs.way(&extent, self.mode == CaptureMode::Scan);
            if way != Way::Whole
                && let Some(whole) = &self.whole
                && directory.link_base(generation, rank, &whole.base, whole.last).is_ok()
            {
                let base = Some(whole.base);
                match (way, &whole.hashes) {
                    (Way::Compare, Some(hashes)) => {
                        let content = Content::Compared(Arc::clone(hashes));
                        return Plan { content, base, ..Plan::whole(Mode::Fork) };
                    }
                    _ => {
                        let (copy_bytes, scan_ns) = (extent.copy_bytes(), extent.scan_ns);
                        return Plan { copy_bytes, base, scan_ns, ..Plan::whole(Mode::Scan) };
                    }
                }
            }
            self.look_back();
        }
        let is_armed = self.arm(declared);
        // For deltas whose copy would take longer than a fork.
        let is_noted = is_armed && self.mode == CaptureMode::Auto;
        let content = if is_noted { Content::Noted } else { Content::Unknown };
        Plan { content, ..Plan::whole(Mode::Fork) }
    }

    /// Whether the kernel's help is not worth while: a huge page falls apart when it is written while it is armed.
    fn is_huge(&self) -> bool {
        let is_armed = matches!(self.tracking, Tracking::Ready { is_armed: true, .. });
        self.mode == CaptureMode::Auto && !is_armed && track::bytes().is_ok_and(|bytes| bytes.are_huge())
    }

    /// A fork costs the same pause either way; comparing reduces the bytes written afterwards.
    fn plan_by_content(
        &mut self,
        directory: &mut JobDirectory<Directory>,
        (generation, rank): (GenerationId, Rank),
    ) -> Plan {
        let mut plan = Plan::whole(Mode::Fork);
        if let Some(whole) = &self.whole
            && let Some(hashes) = &whole.hashes
        {
            if !whole.is_stale && directory.link_base(generation, rank, &whole.base, whole.last).is_ok() {
                plan.content = Content::Compared(Arc::clone(hashes));
                plan.base = Some(whole.base);
                return plan;
            }
            self.look_back();
        }
        self.whole = None;
        if self.mode == CaptureMode::Content || !self.costs.rests() {
            plan.content = Content::Noted;
        }
        plan
    }

    /// A whole image comes after one on top of which there may have been none.
    fn look_back(&mut self) {
        let was_in_vain = self.whole.as_ref().is_some_and(|whole| whole.deltas == 0);
        if was_in_vain && self.mode == CaptureMode::Auto {
            self.costs.missed();
        }
    }

    fn open(&mut self, rank: Rank) {
        if !matches!(self.tracking, Tracking::Untried) {
            return;
        }
        self.tracking = match Tracker::open() {
            Ok(tracker) => Tracking::Ready { tracker, is_armed: false },
            Err(errno) => {
                if self.mode == CaptureMode::Scan {
                    eprintln!(
                        "stillwire: rank {rank}: --capture scan: written pages cannot be tracked here ({errno}; Linux 6.7 can, unless \
                         userfaultfd(2) is forbidden): changed pages are found by their content, in a fork"
                    );
                }
                Tracking::None
            }
        };
    }

    /// Pages written since the last whole image; `None` if that is not known.
    fn extent(&mut self, declared: &Declared) -> Option<Extent> {
        let Tracking::Ready { tracker, is_armed: true } = &self.tracking else { return None };
        self.whole.as_ref()?;
        match tracker.extent(declared) {
            Ok(extent) => Some(extent),
            Err(_) => {
                self.lose();
                None
            }
        }
    }

    /// Before a whole image is taken: writes count from here on.
    fn arm(&mut self, declared: &Declared) -> bool {
        let Tracking::Ready { tracker, is_armed } = &mut self.tracking else { return false };
        let scope = match self.mode {
            CaptureMode::Scan => Scope::Everything,
            _ if self.costs.rests() => {
                self.whole = None;
                *is_armed = false;
                return false;
            }
            // A fork of a few pages is quicker than anything else.
            _ if track::bytes().is_ok_and(|bytes| !bytes.are_armed()) => return false,
            _ => Scope::Small,
        };
        // Arming restarts the record of changes: no image can build on the last whole one any more.
        self.whole = None;
        match tracker.arm(declared, scope) {
            Ok(()) => *is_armed = true,
            Err(_) => self.lose(),
        }
        matches!(self.tracking, Tracking::Ready { is_armed: true, .. })
    }

    /// The program has closed the descriptor, or the kernel refuses: a new one is asked for next time.
    fn lose(&mut self) {
        self.whole = None;
        if let Tracking::Ready { tracker, .. } = core::mem::replace(&mut self.tracking, Tracking::Untried) {
            tracker.forget();
        }
    }

    /// Declares our own descriptors and memory.
    pub(crate) fn declare(&self, declared: &mut Declared) {
        if let Tracking::Ready { tracker, .. } = &self.tracking {
            tracker.declare(declared);
        }
        if let Some(hashes) = self.whole.as_ref().and_then(|whole| whole.hashes.as_ref()) {
            hashes.declare(declared);
        }
    }

    /// This is a restored process: nothing is watched, and the number of the descriptor is free; no hashes are in memory.
    pub(crate) fn restored(&mut self) {
        if let Some(hashes) = self.whole.as_mut().and_then(|whole| whole.hashes.take()) {
            hashes.forget();
        }
        self.lose();
        self.costs = Costs::NOTHING;
    }

    /// An image is whole and durable; `runs` are its pages.
    pub(crate) fn finished_whole(
        &mut self,
        generation: GenerationId,
        digest: ImageDigest,
        runs: Vec<PageRun>,
        hashes: Option<Arc<Hashes>>,
    ) {
        let base = Base { generation, digest: store::ImageDigest(digest.0) };
        let is_armed = matches!(self.tracking, Tracking::Ready { is_armed: true, .. });
        let is_known = is_armed || hashes.is_some();
        self.whole = is_known.then_some(Whole { base, runs, hashes, is_stale: false, last: None, deltas: 0 });
    }

    /// A delta is durable, which holds so many bytes and leaves so many out.
    pub(crate) fn finished_delta(&mut self, generation: GenerationId, base: &Base, bytes: u64, below: u64) {
        let Some(whole) = self.whole.as_mut().filter(|whole| whole.base == *base) else { return };
        whole.last = Some(generation);
        if whole.hashes.is_some() && bytes > (bytes + below) / DELTA_FRACTION {
            whole.is_stale = true;
            return;
        }
        whole.deltas += 1;
        self.costs.paid();
    }

    /// Learns the costs from a pause, in which `copied_bytes` were copied, if any.
    pub(crate) fn captured(&mut self, plan: &Plan, mode: Mode, pause: &Pause, copied_bytes: u64) {
        self.costs.captured(mode, pause, copied_bytes, plan.scan_ns);
    }

    /// Whether the base has all that a delta leaves out. It always should: else the delta must not exist.
    pub(crate) fn has(&self, base: &Base, unchanged: &Unchanged) -> bool {
        let Some(whole) = self.whole.as_ref().filter(|whole| whole.base == *base) else { return false };
        holds(&whole.runs, &unchanged.runs)
    }
}

/// Whether all pages of `inner` are among those of `outer`; both rise.
fn holds(outer: &[PageRun], inner: &[PageRun]) -> bool {
    let end = |run: &PageRun| run.address + run.pages * PAGE_BYTES;
    inner.iter().all(|run| {
        let mut at = run.address;
        while at < end(run) {
            let after = outer.partition_point(|outer| outer.address <= at);
            match after.checked_sub(1).and_then(|found| outer.get(found)).filter(|found| end(found) > at) {
                Some(found) => at = end(found),
                None => return false,
            }
        }
        true
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_the_base_lacks_are_found() {
        let run = |page: u64, pages| PageRun { address: page << 12, pages };
        let outer = [run(1, 4), run(5, 2), run(9, 1)];
        assert!(holds(&outer, &[]) && holds(&outer, &[run(1, 1), run(3, 4), run(9, 1)]));
        for lacking in [run(0, 1), run(6, 2), run(8, 2), run(10, 1)] {
            assert!(!holds(&outer, &[lacking]), "{lacking:?}");
        }
    }

    #[test]
    fn wishes_have_names() {
        assert_eq!(CaptureMode::named("scan"), Some(CaptureMode::Scan));
        assert_eq!(CaptureMode::named("Scan"), None);
        assert_eq!(CaptureMode::default(), CaptureMode::Auto);
    }
}
