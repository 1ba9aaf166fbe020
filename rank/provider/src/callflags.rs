//! Flags that calls may have. Others are refused with `-FI_EBADFLAGS`: a flag that is taken and not honoured breaks a promise without a word.
//!
//! `FI_COMMIT_COMPLETE` is among them: no memory here is persistent.

use crate::abi::{errno, flag};
use crate::boundary::{Errno, Result};

/// Flags of an endpoint for calls that send and have none of their own.
pub(crate) const TRANSMIT_DEFAULT: u64 = flag::COMPLETION
    | flag::INJECT
    | flag::INJECT_COMPLETE
    | flag::TRANSMIT_COMPLETE
    | flag::DELIVERY_COMPLETE
    | flag::MATCH_COMPLETE
    | flag::MORE
    | flag::FENCE;

/// Flags of an endpoint for calls that receive and have none of their own.
pub(crate) const RECEIVE_DEFAULT: u64 = flag::COMPLETION | flag::MULTI_RECV | flag::MORE;

/// `fi_sendmsg`, `fi_tsendmsg`, `fi_writemsg`.
pub(crate) const SEND: u64 = TRANSMIT_DEFAULT | flag::REMOTE_CQ_DATA;

/// `fi_readmsg`, `fi_atomicmsg` and its kin.
pub(crate) const REQUEST: u64 = TRANSMIT_DEFAULT;

/// `fi_recvmsg`.
pub(crate) const RECEIVE: u64 = RECEIVE_DEFAULT;

/// `fi_trecvmsg`.
pub(crate) const RECEIVE_TAGGED: u64 = RECEIVE | flag::PEEK | flag::CLAIM | flag::DISCARD;

/// `fi_mr_reg` and its kin.
pub(crate) const REGISTER: u64 = flag::RMA_EVENT;

/// `fi_av_insert` and its kin.
pub(crate) const INSERT: u64 = flag::MORE | flag::SYNC_ERR;

/// The flags of a call, if all of them are among those that it may have.
pub(crate) fn known(flags: u64, allowed: u64) -> Result<u64> {
    if flags & !allowed == 0 { Ok(flags) } else { Err(Errno(errno::EBADFLAGS)) }
}

/// The flags of a call; without any of its own, those of the endpoint, which were looked at when they were set.
pub(crate) fn of_call(own: Option<u64>, allowed: u64, default: impl FnOnce() -> u64) -> Result<u64> {
    own.map_or_else(|| Ok(default()), |flags| known(flags, allowed))
}
