//! Brings a dump's memory into the caches before the port is frozen for it.

use core::hint::black_box;

use zerocopy::IntoBytes as _;

use crate::port::Port;
use crate::port::state::LinkView;

/// Bytes that memory hands over at one time.
const CACHE_LINE_BYTES: usize = 64;

impl Port {
    /// Reads of `links_max` links, from number `first` on, the state that a dump of the frozen port reads: their
    /// counters and unacknowledged messages. Nothing changes. Returns the number to continue with; `None`: that was
    /// all.
    #[must_use]
    pub fn warm(&self, first: usize, links_max: usize) -> Option<usize> {
        let links = self.links.get(first..).unwrap_or_default();
        for link in links.iter().take(links_max) {
            let link = LinkView::new(link);
            black_box(link.next());
            let Some(queues) = link.queues() else { continue };
            let (frames, copied) = (queues.frames(), queues.copied());
            for bytes in [frames.0.as_bytes(), frames.1.as_bytes(), copied.0, copied.1] {
                black_box(bytes.iter().step_by(CACHE_LINE_BYTES).fold(0, |all, byte| all ^ byte));
            }
        }
        (links.len() > links_max).then(|| first + links_max)
    }
}
