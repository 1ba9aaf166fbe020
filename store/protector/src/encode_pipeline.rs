//! One encoding, as one member sees it: input, output, and kept data. Knows no thread, no socket and no file.
//!
//! An encoding proceeds in *windows* of cycles ([`Windows`]). In each window and for each row of each keeper a *flow*
//! runs along a tree ([`Routes`]): a member adds its contribution to the input from those before it, and passes the sum
//! on when it is complete; the keeper stores the result, window after window. A member to whose sum nobody contributes sends nothing.
//! A member has at most so many windows *ahead* open: neither does it read further ahead, nor accept parts of later windows. A window is closed when
//! everything that it sent has been received and the parity it keeps is written. So memory is bounded by a few windows however different the members'
//! speeds are.
//!
//! That cannot block: take the oldest window that is open anywhere, and in it the flow with the fewest hops left to compute. It waits only for parts
//! of a window that every member has open or closed.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

use parity::Kernel;
use store::protect::{CHUNK_PAGES, Group, Strip};

use crate::limits::ALONE_BYTES;
use crate::message::Strips;
use crate::routes::Routes;
use crate::shape::Shape;
use crate::windows::Windows;

/// The next step.
#[derive(Debug)]
pub(crate) enum Out {
    /// Read this member's contribution to a window: in these cycles.
    Read { window: u64, cycles: Range<u64> },
    /// Send to a member; [`EncodePipeline::sent`] when it has been received.
    Send { to: usize, window: u64, parts: Vec<(u16, u16, Strip)> },
    /// Keep; [`EncodePipeline::kept`] when that has been written.
    Keep { window: u64, strip: Strip },
}

/// A message that does not belong where it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("strips of window {window} for row {row} of member {keeper}, which {why}")]
pub(crate) struct Misplaced {
    window: u64,
    keeper: u16,
    row: u16,
    why: &'static str,
}

pub(crate) struct EncodePipeline {
    routes: Routes,
    group: Group,
    rows: usize,
    kernel: Kernel,
    windows: Windows,
    /// How many windows may be open.
    ahead: u64,
    open: BTreeMap<u64, Window>,
    /// All before it are closed.
    oldest: u64,
    /// All before it have been kept, or are about to be: parity is written front to back.
    unkept: u64,
    /// The first one that is not open yet.
    next: u64,
    out: VecDeque<Out>,
    arithmetic: Duration,
}

struct Window {
    /// By keeper, then by row.
    flows: Vec<Flow>,
    /// Flows that are not passed on or kept yet.
    running: usize,
    /// Messages that have not been received, and unwritten strips.
    unconfirmed: usize,
    /// Rows of ours that are complete, added up; none: nothing comes.
    sum: Option<Strip>,
    rows_missing: usize,
}

struct Flow {
    /// Our own contribution is missing.
    own: bool,
    /// Members whose contribution is missing.
    from: Vec<usize>,
    sum: Strip,
}

impl Flow {
    fn is_complete(&self) -> bool {
        !self.own && self.from.is_empty()
    }
}

impl EncodePipeline {
    pub(crate) fn new(
        shape: Shape,
        group: &Group,
        me: usize,
        windows: Windows,
        ahead: u64,
    ) -> EncodePipeline {
        let mut pipeline = EncodePipeline {
            routes: Routes::new(shape, group, me),
            group: group.clone(),
            rows: group.losses(),
            kernel: Kernel::best(),
            windows,
            ahead,
            open: BTreeMap::new(),
            oldest: 0,
            unkept: 0,
            next: 0,
            out: VecDeque::new(),
            arithmetic: Duration::ZERO,
        };
        pipeline.close();
        pipeline
    }

    pub(crate) fn poll(&mut self) -> Option<Out> {
        self.out.pop_front()
    }

    /// Everything has been sent, received, kept.
    pub(crate) fn is_done(&self) -> bool {
        self.oldest == self.windows.count()
    }

    /// Windows below this may be received.
    pub(crate) fn accepts_below(&self) -> u64 {
        (self.oldest + self.ahead).min(self.windows.count())
    }

    /// Windows that are closed, and all of them.
    pub(crate) fn windows(&self) -> (u64, u64) {
        (self.oldest, self.windows.count())
    }

    /// Time spent with sums.
    pub(crate) fn arithmetic(&self) -> Duration {
        self.arithmetic
    }

    /// Members whose contribution to the oldest window is missing.
    pub(crate) fn waits_for(&self) -> Vec<usize> {
        let flows = self.open.get(&self.oldest).into_iter().flat_map(|window| &window.flows);
        let mut from: Vec<usize> = flows.flat_map(|flow| flow.from.iter().copied()).collect();
        from.sort_unstable();
        from.dedup();
        from
    }

    /// Adds this member's contributions to a window: by keeper, then by row.
    pub(crate) fn own(&mut self, number: u64, strips: Vec<Strip>) {
        let started = Instant::now();
        let kernel = self.kernel;
        let Some(window) = self.open.get_mut(&number) else { return };
        let mut ready = Vec::new();
        for (at, (flow, strip)) in window.flows.iter_mut().zip(strips).enumerate() {
            if core::mem::take(&mut flow.own) {
                flow.sum.add(kernel, strip);
                ready.extend(flow.is_complete().then_some(at));
            }
        }
        self.pass_on(number, ready);
        self.arithmetic += started.elapsed();
    }

    /// Adds another member's message.
    pub(crate) fn received(&mut self, from: usize, strips: &Strips<'_>) -> Result<(), Misplaced> {
        let started = Instant::now();
        let (number, kernel, rows) = (strips.window, self.kernel, self.rows);
        let mut ready = Vec::new();
        for part in &strips.parts {
            let misplaced = |why| Misplaced { window: number, keeper: part.keeper, row: part.row, why };
            let window = self.windows.cycles_of(number).zip(self.open.get_mut(&number));
            let (cycles, window) = window.ok_or_else(|| misplaced("is not open"))?;
            let at = usize::from(part.keeper) * rows + usize::from(part.row);
            let known = usize::from(part.row) < rows;
            let flow = window.flows.get_mut(at).filter(|_| known);
            let flow = flow.ok_or_else(|| misplaced("there is not in this group"))?;
            let place = flow.from.iter().position(|missing| *missing == from);
            let place = place.ok_or_else(|| misplaced("does not go this way, or came before"))?;
            let belong =
                |(chunk, mask, _): &(u64, u16, _)| belong(&self.group, &cycles, part.row, *chunk, *mask);
            if !part.chunks.iter().all(belong) {
                return Err(misplaced("has pages of other windows or rows"));
            }
            flow.from.swap_remove(place);
            for (chunk, mask, pages) in &part.chunks {
                flow.sum.add_chunk(kernel, *chunk, *mask, pages);
            }
            ready.extend(flow.is_complete().then_some(at));
        }
        self.pass_on(number, ready);
        self.arithmetic += started.elapsed();
        Ok(())
    }

    /// A message of this window has been received by its addressee.
    pub(crate) fn sent(&mut self, number: u64) {
        self.confirmed(number);
    }

    /// The parity kept of this window has been written.
    pub(crate) fn kept(&mut self, number: u64) {
        self.confirmed(number);
    }

    fn confirmed(&mut self, number: u64) {
        if let Some(window) = self.open.get_mut(&number) {
            window.unconfirmed -= 1;
        }
        self.close();
    }

    /// Opens the windows that may be open, and closes those of which nothing is left to do.
    fn close(&mut self) {
        loop {
            while self.next < self.accepts_below() {
                self.open_next();
            }
            self.keep_on();
            let is_over = |window: &Window| window.running == 0 && window.unconfirmed == 0;
            if !self.open.get(&self.oldest).is_some_and(is_over) {
                return;
            }
            self.open.remove(&self.oldest);
            self.oldest += 1;
        }
    }

    fn open_next(&mut self) {
        let (number, me, rows) = (self.next, self.routes.me(), self.rows);
        let is_busy = |member| self.windows.is_busy(number, member);
        let flow = |keeper, row| Flow {
            own: is_busy(me) && self.routes.contributes(keeper, row, me),
            from: self.routes.senders(keeper, row, &is_busy),
            sum: Strip::default(),
        };
        let flows: Vec<Flow> = (0..self.routes.members())
            .flat_map(|keeper| (0..rows).map(move |row| (keeper, row)))
            .map(|(keeper, row)| flow(keeper, row))
            .collect();
        let running = flows.iter().filter(|flow| !flow.is_complete()).count();
        let rows_missing = flows[me * rows..][..rows].iter().filter(|flow| !flow.is_complete()).count();
        let keeps = rows_missing > 0;
        let (sum, unconfirmed) = (keeps.then(Strip::default), usize::from(keeps));
        if is_busy(me)
            && let Some(cycles) = self.windows.cycles_of(number)
        {
            self.out.push_back(Out::Read { window: number, cycles });
        }
        self.open.insert(number, Window { flows, running, unconfirmed, sum, rows_missing });
        self.next += 1;
    }

    /// Outputs complete windows in order: each is kept after everything before it.
    fn keep_on(&mut self) {
        while let Some(window) = self.open.get_mut(&self.unkept).filter(|window| window.rows_missing == 0) {
            let keep = |strip| Out::Keep { window: self.unkept, strip };
            self.out.extend(window.sum.take().map(keep));
            self.unkept += 1;
        }
    }

    /// These flows of a window are complete here.
    fn pass_on(&mut self, number: u64, ready: Vec<usize>) {
        let (rows, kernel, me) = (self.rows, self.kernel, self.routes.me());
        let mut going: BTreeMap<usize, Vec<(u16, u16, Strip)>> = BTreeMap::new();
        let mut messages = Vec::new();
        for at in ready {
            let (keeper, row) = (at / rows, at % rows);
            let next = self.routes.next(keeper, row, me);
            let Some(window) = self.open.get_mut(&number) else { return };
            window.running -= 1;
            let strip = core::mem::take(&mut window.flows[at].sum);
            let Some(next) = next else {
                if let Some(sum) = &mut window.sum {
                    sum.add(kernel, strip);
                }
                window.rows_missing -= 1;
                continue;
            };
            let parts = going.entry(next).or_default();
            parts.push((short(keeper), short(row), strip));
            // Small ones travel together, large ones alone.
            if parts.iter().map(|(.., strip)| strip.bytes()).sum::<usize>() >= ALONE_BYTES {
                messages.push((next, core::mem::take(parts)));
            }
        }
        messages.extend(going.into_iter().filter(|(_, parts)| !parts.is_empty()));
        // Each begins with its right neighbour, so that not all send to the same one at once.
        messages.sort_by_key(|(to, _)| self.routes.distance(*to, me));
        if let Some(window) = self.open.get_mut(&number) {
            window.unconfirmed += messages.len();
        }
        self.out.extend(messages.into_iter().map(|(to, parts)| Out::Send { to, window: number, parts }));
        self.close();
    }
}

/// Whether pages of parity lie in these cycles and this row. Pages elsewhere would be written to other places.
fn belong(group: &Group, cycles: &Range<u64>, row: u16, chunk: u64, mask: u16) -> bool {
    let mut pages = (0..CHUNK_PAGES).filter(|i| mask & (1 << i) != 0).map(|i| chunk * CHUNK_PAGES + i);
    pages.all(|page| {
        let (cycle, within) = (page / group.parity_pages(), page % group.parity_pages());
        cycles.contains(&cycle) && within / group.unit_pages() == u64::from(row)
    })
}

fn short(number: usize) -> u16 {
    u16::try_from(number).expect("a group has few members")
}

#[cfg(test)]
mod tests {
    use store::GenerationId;
    use store::limits::PAGE_BYTES;
    use transport::{Epoch, Life};

    use super::*;
    use crate::windows::Share;

    const GENERATION: GenerationId = GenerationId { life: Life { counter: 1, nonce: 2 }, epoch: Epoch(3) };

    /// SplitMix64.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            usize::try_from((mixed ^ (mixed >> 27)) >> 33).expect("31 bits") % bound
        }
    }

    /// Which cycles of a member have changed: some, and not the last ones.
    fn share(group: &Group, member: usize, seed: u64) -> Share {
        let mut random = Random(seed * 64 + member as u64);
        (0..7)
            .map(|_| (1, if random.below(3) == 0 { 0 } else { group.data_pages() }))
            .chain([(2, 0)])
            .collect()
    }

    fn windows(group: &Group, seed: u64) -> Windows {
        let shares: Vec<Share> = (0..group.members()).map(|member| share(group, member, seed)).collect();
        Windows::new(&shares, group.data_pages()).expect("few windows")
    }

    /// A member's contribution to a row of a keeper in a window in which it has something: one page of one byte, or nothing.
    fn contribution(group: &Group, keeper: usize, row: usize, member: usize, cycle: u64) -> Strip {
        let routes = Routes::new(Shape::Broadcast, group, member);
        let mut strip = Strip::default();
        let mut random = Random(((keeper * 64 + row) * 64 + member) as u64 * 1000 + cycle);
        if routes.contributes(keeper, row, member) && random.below(3) > 0 {
            let byte = u8::try_from(random.below(256)).expect("a byte");
            let page =
                cycle * group.parity_pages() + row as u64 * group.unit_pages() + random.below(3) as u64;
            strip.add_pages(Kernel::best(), page, &[byte; PAGE_BYTES]);
        }
        strip
    }

    /// Window and bytes of each.
    type Messages = VecDeque<(u64, Vec<u8>)>;

    /// Plays one encoding with members and messages of any speed. Returns each member's kept parity, by window, and the number of messages.
    fn play(shape: Shape, group: &Group, ahead: u64, seed: u64) -> (Vec<BTreeMap<u64, Strip>>, usize) {
        let (members, rows) = (group.members(), group.losses());
        let mut random = Random(seed);
        let mut pipelines: Vec<EncodePipeline> = (0..members)
            .map(|me| EncodePipeline::new(shape, group, me, windows(group, seed), ahead))
            .collect();
        let (mut kept, mut messages) = (vec![BTreeMap::new(); members], 0);
        let mut ordered: Vec<Option<u64>> = vec![None; members];
        // By sender and receiver, in order.
        let mut links: BTreeMap<(usize, usize), Messages> = BTreeMap::new();
        // Work that members have begun: reads and writes.
        let mut works: Vec<(usize, Out)> = Vec::new();
        let mut idle = 0;
        while !pipelines.iter().all(EncodePipeline::is_done) {
            for (me, pipeline) in pipelines.iter_mut().enumerate() {
                while let Some(out) = pipeline.poll() {
                    match out {
                        Out::Send { to, window, parts } => {
                            let bytes = Strips::emit(GENERATION, window, &parts);
                            messages += 1;
                            links.entry((me, to)).or_default().push_back((window, bytes));
                        }
                        work => {
                            if let Out::Keep { window, .. } = &work {
                                assert!(
                                    ordered[me].replace(*window) < Some(*window),
                                    "parity is written front to back"
                                );
                            }
                            works.push((me, work));
                        }
                    }
                }
                assert!(pipeline.open.len() as u64 <= ahead, "{shape}: too many windows are open");
            }
            idle += 1;
            assert!(idle < 10_000, "{shape} {members} {rows} {seed}: nothing goes on");
            if !works.is_empty() && random.below(2) == 0 {
                idle = 0;
                match works.swap_remove(random.below(works.len())) {
                    (me, Out::Read { window, cycles }) => {
                        // As many as fit into a window: one, and those before it in which nothing is.
                        let cycle = cycles.end - 1;
                        let flows = (0..members).flat_map(|keeper| (0..rows).map(move |row| (keeper, row)));
                        let own = flows.map(|(keeper, row)| contribution(group, keeper, row, me, cycle));
                        pipelines[me].own(window, own.collect());
                    }
                    (me, Out::Keep { window, strip }) => {
                        kept[me].insert(window, strip);
                        pipelines[me].kept(window);
                    }
                    (_, Out::Send { .. }) => unreachable!("it was put on a link"),
                }
                continue;
            }
            let busy: Vec<(usize, usize)> =
                links.iter().filter(|(_, link)| !link.is_empty()).map(|(ends, _)| *ends).collect();
            if busy.is_empty() {
                continue;
            }
            let (from, to) = busy[random.below(busy.len())];
            let link = links.get_mut(&(from, to)).expect("it is there");
            if link[0].0 >= pipelines[to].accepts_below() {
                continue;
            }
            idle = 0;
            let (window, bytes) = link.pop_front().expect("it is not empty");
            let strips = Strips::parse(&bytes).expect("it was emitted");
            pipelines[to].received(from, &strips).expect("it goes this way");
            pipelines[from].sent(window);
        }
        (kept, messages)
    }

    #[test]
    fn every_keeper_gets_the_sum_whoever_is_slow() {
        for (members, losses) in [(2, 1), (3, 1), (4, 1), (5, 2), (7, 3)] {
            let group = Group::new((0..members).collect(), losses).expect("a shape");
            let members = group.members();
            for (shape, seed) in
                Shape::ALL.into_iter().flat_map(|shape| (0..8).map(move |seed| (shape, seed)))
            {
                let (kept, messages) = play(shape, &group, 2 + seed % 3, seed);
                let windows = windows(&group, seed);
                let busy = |window| (0..members).filter(|member| windows.is_busy(window, *member)).collect();
                let busy: Vec<Vec<usize>> = (0..windows.count()).map(busy).collect();
                for (keeper, kept) in kept.into_iter().enumerate() {
                    for (window, busy) in (0..).zip(&busy) {
                        let cycle = windows.cycles_of(window).expect("a window").end - 1;
                        let mut expected = Strip::default();
                        for (member, row) in
                            busy.iter().flat_map(|member| (0..losses).map(move |row| (*member, row)))
                        {
                            expected.add(Kernel::best(), contribution(&group, keeper, row, member, cycle));
                        }
                        let kept = kept.get(&window).cloned().unwrap_or_default();
                        assert!(kept == expected, "{shape} {keeper} {window}");
                    }
                }
                // A member without data sends nothing; one that passes data on adds a message for each hop.
                let sending: usize = busy.iter().map(|busy| busy.len() * (members - 1)).sum();
                match shape {
                    Shape::Broadcast => assert_eq!(messages, sending, "{members} {losses} {seed}"),
                    _ => assert!(messages <= busy.len() * members * (members - 1) * losses),
                }
            }
        }
    }

    #[test]
    fn what_does_not_belong_here_is_refused() {
        let group = Group::new((0..4).collect(), 1).expect("a shape");
        let windows = |group: &Group| {
            let whole = vec![vec![(26, group.data_pages())]; group.members()];
            Windows::new(&whole, 3 * group.data_pages()).expect("few windows")
        };
        let send = |pipeline: &mut EncodePipeline, from, window, keeper, row, pages: &[u64]| {
            let mut strip = Strip::default();
            pages.iter().for_each(|page| strip.add_pages(Kernel::best(), *page, &[1; PAGE_BYTES]));
            let bytes = Strips::emit(GENERATION, window, &[(keeper, row, strip)]);
            pipeline.received(from, &Strips::parse(&bytes).expect("it was emitted"))
        };
        let pipeline = || EncodePipeline::new(Shape::Ring, &group, 2, windows(&group), 2);
        let mut reported = pipeline();
        assert_eq!(send(&mut reported, 1, 0, 3, 0, &[]), Ok(()));
        for (from, window, keeper, row) in
            [(1, 0, 3, 0), (0, 0, 3, 0), (1, 2, 3, 0), (1, 0, 4, 0), (1, 0, 3, 1), (1, 0, 1, 0)]
        {
            let outcome = send(&mut reported, from, window, keeper, row, &[]);
            assert!(outcome.is_err(), "{from} {window} {keeper} {row}");
        }
        // Three cycles of a unit make a window.
        let end = 3 * group.unit_pages();
        assert_eq!(send(&mut pipeline(), 1, 0, 3, 0, &[0, end - 1]), Ok(()));
        assert_eq!(send(&mut pipeline(), 1, 1, 3, 0, &[end, 2 * end - 1]), Ok(()));
        for (window, page) in [(0, end), (1, end - 1), (1, 2 * end), (1, 1 << 20)] {
            let error =
                send(&mut pipeline(), 1, window, 3, 0, &[page]).expect_err("a page of another window");
            assert!(error.to_string().contains("pages of other windows"), "{error}");
        }
        // Two rows of a unit make a cycle.
        let group = Group::new((0..4).collect(), 2).expect("a shape");
        for (page, row, belongs) in [(0, 0, true), (0, 1, false), (group.unit_pages(), 1, true)] {
            let mut pipeline = EncodePipeline::new(Shape::Broadcast, &group, 3, windows(&group), 2);
            let outcome = send(&mut pipeline, 1, 0, 3, row, &[page]);
            assert_eq!(outcome.is_ok(), belongs, "{page} {row}: {outcome:?}");
        }
    }
}
