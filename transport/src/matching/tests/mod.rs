//! Conversations with a matcher, and a comparison with the plainest matcher there can be.

mod against_oracle;
mod conversations;

use super::*;

const TAGGED: Space = Space(0);
const UNTAGGED: Space = Space(1);

fn link(number: u32) -> LinkIndex {
    LinkIndex(number)
}

fn envelope(source: u32, tag: u64) -> Envelope {
    Envelope { source: link(source), space: TAGGED, tag, data: 0, bytes: 8 }
}

/// The receive `op` for `tag` of one source.
fn from(op: u64, source: u32, tag: u64) -> Receive {
    let pattern = Pattern { space: TAGGED, source: Some(link(source)), tag, ignore: 0 };
    Receive { op: OpId(op), pattern, bytes_max: 100, context: op + 1000, multi: None }
}

/// The receive `op` for `tag` of any source.
fn from_any(op: u64, tag: u64) -> Receive {
    let mut receive = from(op, 0, tag);
    receive.pattern.source = None;
    receive
}

fn any_tag(mut receive: Receive) -> Receive {
    receive.pattern.ignore = u64::MAX;
    receive
}

fn in_space(space: Space, mut receive: Receive) -> Receive {
    receive.pattern.space = space;
    receive
}

fn many(mut receive: Receive, bytes_max: u64, free_bytes_min: u64) -> Receive {
    receive.bytes_max = bytes_max;
    receive.multi = Some(MultiReceive { free_bytes_min, filled_bytes: 0 });
    receive
}
