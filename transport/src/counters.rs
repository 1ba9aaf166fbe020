//! A port's counters: traffic, and every frame it turned away, by reason.

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts since the port was opened or restarted.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            /// All counters by name, for reports.
            pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }
    };
}

counters! {
    /// Frames written, of all kinds.
    frames_sent,
    /// Frames parsed, dropped ones included.
    frames_received,
    /// Numbered frames counted in order.
    frames_counted,
    /// Frames sent again.
    frames_resent,
    /// Resends that turned out to be needless.
    resends_spurious,
    /// Acknowledgements that had to travel alone.
    acks_alone,
    /// Dropped: not a frame of this wire version.
    dropped_malformed,
    /// Dropped: another job's tag.
    dropped_job,
    /// Dropped: another life (R7).
    dropped_life,
    /// Dropped: no link with that index, or the contact names another port.
    dropped_unknown_link,
    /// Dropped: authentication tag wrong.
    dropped_tag,
    /// Dropped: higher epoch (R3).
    dropped_epoch,
    /// Dropped: epoch too far ahead (R3).
    dropped_epoch_step,
    /// Dropped: had been received before.
    dropped_duplicate,
    /// Dropped: unnumbered frame that is not newer than the last.
    dropped_replayed,
    /// Dropped: beyond the window that was advertised.
    dropped_window,
    /// Dropped: no room to keep it now; it is retransmitted.
    dropped_no_room,
    /// Dropped: its payload could not be brought any more; it is retransmitted.
    dropped_not_fetched,
    /// Dropped: acknowledges a number that was never sent.
    dropped_ack_beyond,
    /// Dropped: a body that contradicts the state of the link.
    dropped_nonsense,
    /// Dropped: before the peer has been heard after a restart, or behind a close.
    dropped_out_of_turn,
    /// STOPPED hints ignored because they were old.
    hints_stale,
    /// Messages that found no posted receive.
    messages_unexpected,
    /// Copied messages that were announced instead, because the peer's window was full.
    messages_converted,
    /// Messages whose payload was pulled out of the sender's memory (R11).
    messages_pulled,
    /// Messages that were received by the fast path: in one go, by a receive that waited.
    messages_fast,
}
