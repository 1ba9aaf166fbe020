//! Choice of the cheapest shape: the cost of an encoding by each of them, from the group, the bytes, and the network.
//!
//! Seconds are the sum of
//!
//! * **Flow.** M D g / B: the bytes that each member sends (and receives) of the D bytes that have changed with it, by the link's rate, both
//!   directions at once. Or the bytes that go through its disk, D (1 + M / K), by the disk's rate, whichever is longer. A ring passes rows through
//!   keepers of other rows, M (M - 1) / 2 units for each K M.
//! * **Growth** g. A broadcast sends each member's changes once. Where members have changed different places, a sum grows from hop to hop: with a
//!   share f of pages changed, the sum of h members has a share 1 - (1 - f)^h. With f = 1 nothing grows, with few changes in a chain of K
//!   it is (K + 1) / 2.
//! * **Fill.** The first window is read before anything can be sent; and the way there. A hop's data is announced,
//!   requested and sent, which takes a round trip and a half; before that members report their contents to each other,
//!   after it the last one answers, each half of one.
//! * **Messages.** Each costs its sender and its receiver some time.
//!
//! At a distance the *turns* bound the flow, not the link: a few messages may be under way to one member, and each is
//! for two round trips, RTS and CTS included. Then that term replaces the link's and the disk's.
//!
//! A pipeline has short windows, and many messages, all of them to one neighbour; a broadcast does not grow, has one hop, and a message of each window
//! for each member. A ring uses one link of each node only, and a tree bounds
//! how many senders meet at one receiver; on links that are all alike that is worth nothing, so the model hardly ever chooses them.

use store::limits::PAGE_BYTES;
use store::protect::Group;

use crate::limits::{MESSAGES_UNDER_WAY_MAX, OPEN_BYTES_MAX, OPEN_WINDOWS, WINDOW_BYTES};
use crate::shape::Shape;

/// Cost of a message to its sender or its receiver: measured with messages of 64 KiB over UDP on one host.
const MESSAGE_SECONDS: f64 = 20e-6;

/// Round trips of a hop, from the RTS to the last byte.
const HOP_TRIPS: f64 = 1.5;
/// Those of a message, until its sender has the answer and may send another one in its place.
const MESSAGE_TRIPS: f64 = 2.0;
/// Round trips before the first hop and after the last.
const END_TRIPS: f64 = 1.0;

/// Costs that differ by less than this part are taken for equal: then the fewest messages count, because the processor belongs to the program.
const EQUAL: f64 = 0.1;

/// Cycles of a window if all of them have changed, and how many windows may be open. All members come to the same.
pub(crate) fn windows(shape: Shape, group: &Group) -> (u64, u64) {
    let cycle_bytes = group.data_pages() * PAGE_BYTES as u64;
    // In a pipeline the time until the next member has something to do matters.
    let cycles = if shape == Shape::Pipeline { 1 } else { (WINDOW_BYTES / cycle_bytes).max(1) };
    let open_bytes = cycles * cycle_bytes * group.losses() as u64;
    let wanted = match shape {
        Shape::Pipeline => group.code().data() as u64 + OPEN_WINDOWS,
        _ => OPEN_WINDOWS,
    };
    (cycles, wanted.min(OPEN_BYTES_MAX / open_bytes).max(2))
}

/// Under which conditions parity is moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Conditions {
    /// Pages of a member's content, and how many of them have changed.
    pub(crate) pages: u64,
    pub(crate) changed: u64,
    /// Of one link, in each direction.
    pub(crate) link_bytes_per_s: f64,
    /// None: not the limit.
    pub(crate) disk_bytes_per_s: Option<f64>,
    /// A round trip.
    pub(crate) latency_s: f64,
}

#[expect(clippy::cast_precision_loss, reason = "pages and members are far below 2^52")]
impl Conditions {
    /// The shape to take.
    pub(crate) fn choose(&self, group: &Group) -> Shape {
        let costs = Shape::ALL.map(|shape| (shape, self.seconds(shape, group), self.messages(shape, group)));
        let least = costs.iter().map(|(_, seconds, _)| *seconds).fold(f64::INFINITY, f64::min);
        let equal = costs.iter().filter(|(_, seconds, _)| *seconds <= least * (1.0 + EQUAL));
        let fewest = equal.min_by(|a, b| a.2.total_cmp(&b.2).then(a.1.total_cmp(&b.1)));
        fewest.map_or(Shape::Broadcast, |(shape, ..)| *shape)
    }

    /// Predicted time of an encoding.
    pub(crate) fn seconds(&self, shape: Shape, group: &Group) -> f64 {
        let (k, m) = (group.code().data() as f64, group.losses() as f64);
        let changed = self.changed as f64 * PAGE_BYTES as f64;
        let through = if shape == Shape::Ring { 1.0 + (m - 1.0) / 2.0 / k } else { 1.0 };
        let network = m * changed * through * self.growth(shape, group) / self.link_bytes_per_s;
        let disk = self.disk_bytes_per_s.map_or(0.0, |rate| changed * (1.0 + m / k) / rate);
        let window = (windows(shape, group).0 * group.data_pages() * PAGE_BYTES as u64) as f64;
        let window = window.min(changed);
        let fill = self.disk_bytes_per_s.map_or(0.0, |rate| window / rate);
        let hops = match shape {
            Shape::Broadcast => 1.0,
            Shape::FanIn => (k + 1.0).log2().ceil(),
            Shape::Ring | Shape::Pipeline => k,
        };
        let way = (hops * HOP_TRIPS + END_TRIPS) * self.latency_s;
        let turns = self.turns(shape, group) * MESSAGE_TRIPS * self.latency_s;
        network.max(disk).max(turns) + fill + way + 2.0 * self.messages(shape, group) * MESSAGE_SECONDS
    }

    /// Share of pages that have changed.
    fn share(&self) -> f64 {
        self.changed as f64 / (self.pages as f64).max(1.0)
    }

    fn growth(&self, shape: Shape, group: &Group) -> f64 {
        let (share, k) = (self.share(), group.code().data());
        if share <= 0.0 || shape == Shape::Broadcast {
            return 1.0;
        }
        let of = |members: usize| (1.0 - (1.0 - share).powf(members as f64)) / share;
        let below = |place: usize| match shape {
            Shape::FanIn => subtree(place, k),
            _ => place + 1,
        };
        (0..k).map(|place| of(below(place))).sum::<f64>() / k as f64
    }

    fn windows(&self, shape: Shape, group: &Group) -> f64 {
        let window_pages = windows(shape, group).0 * group.data_pages();
        (self.changed as f64 / window_pages as f64).ceil()
    }

    /// Messages that a member sends.
    fn messages(&self, shape: Shape, group: &Group) -> f64 {
        let (k, m) = (group.code().data() as f64, group.losses() as f64);
        // A broadcast takes all rows of one keeper along.
        self.windows(shape, group) * if shape == Shape::Broadcast { k + m - 1.0 } else { k * m }
    }

    /// How many times as many messages as may be under way to one member are sent to the one that gets most.
    fn turns(&self, shape: Shape, group: &Group) -> f64 {
        let (k, m) = (group.code().data() as f64, group.losses() as f64);
        let to_one = match shape {
            Shape::Broadcast => 1.0,
            // Two children have each parent, in the trees of two keepers.
            Shape::FanIn => m * k.min(2.0),
            Shape::Ring | Shape::Pipeline => m * k,
        };
        self.windows(shape, group) * to_one / MESSAGES_UNDER_WAY_MAX as f64
    }
}

/// Members of the binary tree below a place, itself included.
fn subtree(place: usize, members: usize) -> usize {
    if place >= members { 0 } else { 1 + subtree(2 * place + 1, members) + subtree(2 * place + 2, members) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB_PAGES: u64 = 1 << 18;

    fn conditions(pages: u64, changed: u64) -> Conditions {
        Conditions { pages, changed, link_bytes_per_s: 50e6, disk_bytes_per_s: Some(100e6), latency_s: 1e-4 }
    }

    fn group(members: u32, losses: usize) -> Group {
        Group::new((0..members).collect(), losses).expect("a shape")
    }

    #[test]
    fn whole_images_cost_what_the_link_takes_by_every_shape_however_many_nodes_there_are() {
        let bare = (GIB_PAGES * PAGE_BYTES as u64) as f64 / 50e6;
        for members in [2, 4, 8, 16] {
            for shape in Shape::ALL {
                let seconds = conditions(GIB_PAGES, GIB_PAGES).seconds(shape, &group(members, 1));
                assert!((bare..bare * 1.06).contains(&seconds), "{shape} {members}: {seconds} {bare}");
            }
        }
    }

    #[test]
    fn few_changes_grow_in_a_chain_and_not_in_a_broadcast() {
        let few = conditions(GIB_PAGES, GIB_PAGES / 100);
        let by = |shape| few.seconds(shape, &group(8, 1));
        assert!(by(Shape::Ring) > 2.5 * by(Shape::Broadcast), "{} {}", by(Shape::Ring), by(Shape::Broadcast));
        assert!(by(Shape::FanIn) < by(Shape::Ring));
        assert_eq!(few.choose(&group(8, 1)), Shape::Broadcast);
    }

    #[test]
    fn what_is_chosen_depends_on_the_conditions() {
        // Long enough that filling does not count: the fewest messages.
        assert_eq!(conditions(GIB_PAGES, GIB_PAGES).choose(&group(4, 1)), Shape::Broadcast);
        // Short, and near: small blocks are soon under way.
        assert_eq!(conditions(512, 512).choose(&group(4, 1)), Shape::Pipeline);
        // Short, and far: each hop costs a round trip.
        let far = Conditions { latency_s: 0.05, ..conditions(512, 512) };
        assert_eq!(far.choose(&group(4, 1)), Shape::Broadcast);
    }

    #[test]
    fn far_away_a_chain_of_short_windows_waits_for_its_turns() {
        // 16 MiB by four nodes, a round trip of 40 ms: 86 windows of 192 KiB, three messages of each to one neighbour, four at a time for 80 ms.
        let far = Conditions { latency_s: 0.04, link_bytes_per_s: 20e6, ..conditions(4096, 4096) };
        let pipeline = far.seconds(Shape::Pipeline, &group(4, 1));
        assert!((5.0..5.6).contains(&pipeline), "{pipeline}");
        let broadcast = far.seconds(Shape::Broadcast, &group(4, 1));
        assert!((0.84..1.0).contains(&broadcast), "{broadcast}");
        // Nearer, the disk's time to fill a window and that of the turns are about as long: it is taken while it is not longer.
        let slow = |latency_s| Conditions { latency_s, disk_bytes_per_s: Some(50e6), ..conditions(512, 512) };
        assert_eq!(slow(1e-3).choose(&group(4, 1)), Shape::Pipeline);
        assert_eq!(slow(6e-3).choose(&group(4, 1)), Shape::Broadcast);
    }

    #[test]
    fn a_tree_has_every_member_once() {
        for members in 1..20 {
            assert_eq!(subtree(0, members), members);
        }
    }
}
