//! Capability, operation, mode and order bits (fi_getinfo(3), fi_msg(3), fi_cq(3)).

pub const MSG: u64 = 1 << 1;
pub const RMA: u64 = 1 << 2;
pub const TAGGED: u64 = 1 << 3;
pub const ATOMIC: u64 = 1 << 4;
pub const READ: u64 = 1 << 8;
pub const WRITE: u64 = 1 << 9;
pub const RECV: u64 = 1 << 10;
pub const SEND: u64 = 1 << 11;
pub const REMOTE_READ: u64 = 1 << 12;
pub const REMOTE_WRITE: u64 = 1 << 13;
pub const MULTI_RECV: u64 = 1 << 16;
pub const REMOTE_CQ_DATA: u64 = 1 << 17;
pub const MORE: u64 = 1 << 18;
pub const PEEK: u64 = 1 << 19;
pub const TRIGGER: u64 = 1 << 20;
pub const FENCE: u64 = 1 << 21;
pub const COMPLETION: u64 = 1 << 24;
pub const INJECT: u64 = 1 << 25;
pub const INJECT_COMPLETE: u64 = 1 << 26;
pub const TRANSMIT_COMPLETE: u64 = 1 << 27;
pub const DELIVERY_COMPLETE: u64 = 1 << 28;
pub const AFFINITY: u64 = 1 << 29;
pub const COMMIT_COMPLETE: u64 = 1 << 30;
pub const MATCH_COMPLETE: u64 = 1 << 31;
pub const HMEM: u64 = 1 << 47;
pub const LOCAL_COMM: u64 = 1 << 51;
pub const REMOTE_COMM: u64 = 1 << 52;
pub const PROV_ATTR_ONLY: u64 = 1 << 54;
pub const NUMERICHOST: u64 = 1 << 55;
pub const RMA_EVENT: u64 = 1 << 56;
pub const SOURCE: u64 = 1 << 57;
pub const NAMED_RX_CTX: u64 = 1 << 58;
pub const DIRECTED_RECV: u64 = 1 << 59;

/// Flags of receive calls: the bits are those of `NAMED_RX_CTX` and `DIRECTED_RECV`.
pub const DISCARD: u64 = 1 << 58;
pub const CLAIM: u64 = 1 << 59;

/// Of `fi_ep_bind`: only operations that ask for a completion get one.
pub const SELECTIVE_COMPLETION: u64 = 1 << 59;

/// Flags of atomic operations, of `query_atomic`.
pub const FETCH_ATOMIC: u64 = 1 << 58;
pub const COMPARE_ATOMIC: u64 = 1 << 59;

/// Of `fi_av_insertsym`, `fi_av_open`: report each address by itself.
pub const SYNC_ERR: u64 = 1 << 58;

/// Of `fi_av_open`: addresses follow each other.
pub const SYMMETRIC: u64 = 1 << 59;

/// Mode bits: demands of a provider on its user. This one demands nothing.
pub const MODE_CONTEXT: u64 = 1 << 59;

/// Orders that can be promised.
pub const ORDER_RAR: u64 = 1 << 0;
pub const ORDER_RAW: u64 = 1 << 1;
pub const ORDER_RAS: u64 = 1 << 2;
pub const ORDER_WAR: u64 = 1 << 3;
pub const ORDER_WAW: u64 = 1 << 4;
pub const ORDER_WAS: u64 = 1 << 5;
pub const ORDER_SAW: u64 = 1 << 7;
pub const ORDER_SAS: u64 = 1 << 8;
pub const ORDER_RMA_RAR: u64 = 1 << 32;
pub const ORDER_RMA_RAW: u64 = 1 << 33;
pub const ORDER_RMA_WAR: u64 = 1 << 34;
pub const ORDER_RMA_WAW: u64 = 1 << 35;
pub const ORDER_ATOMIC_RAR: u64 = 1 << 36;
pub const ORDER_ATOMIC_RAW: u64 = 1 << 37;
pub const ORDER_ATOMIC_WAR: u64 = 1 << 38;
pub const ORDER_ATOMIC_WAW: u64 = 1 << 39;
