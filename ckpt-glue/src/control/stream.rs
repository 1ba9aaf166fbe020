//! Control frames on a byte stream: length, authenticity, replay.

use alloc::vec::Vec;

use aegis::aegis128l::Aegis128LMac;
use transport::{Epoch, JobId, Life};

use super::wire::{Reader, Wire};
use super::{Control, Message};
use crate::error::Malformed;
use crate::limits::CONTROL_BYTES_MAX;
use crate::names::Party;

const MAGIC: u16 = 0x4c43;
const VERSION: u8 = 1;
const LENGTH_BYTES: usize = 4;
const TAG_OFFSET: usize = 56;
const TAG_BYTES: usize = 16;
const BODY_OFFSET: usize = TAG_OFFSET + TAG_BYTES;

/// Separates tags of control frames from tags of data frames made with the same key: the latter use a nonce of zeros.
const NONCE: [u8; 16] = *b"stillwire contrl";

/// The job's secret, as far as control frames need it: the same 16 bytes as the transport's.
#[derive(Clone)]
pub struct ControlKey(Aegis128LMac<TAG_BYTES>);

impl core::fmt::Debug for ControlKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ControlKey(..)")
    }
}

impl ControlKey {
    /// The key of a job.
    #[must_use]
    pub fn new(key: &[u8; 16]) -> ControlKey {
        ControlKey(Aegis128LMac::new_with_nonce(key, &NONCE))
    }

    fn tag(&self, head: &[u8], body: &[u8]) -> [u8; TAG_BYTES] {
        let mut mac = self.0.clone();
        mac.update(head);
        mac.update(body);
        mac.finalize()
    }
}

/// Turns messages into the bytes of one connection.
#[derive(Debug)]
pub struct ControlWriter {
    key: ControlKey,
    number: u64,
}

impl ControlWriter {
    /// The writer of a new connection.
    #[must_use]
    pub fn new(key: ControlKey) -> ControlWriter {
        ControlWriter { key, number: 0 }
    }

    /// Appends the frame of `control` to `out`.
    pub fn emit(&mut self, control: &Control, out: &mut Vec<u8>) {
        self.number += 1;
        emit(&self.key, self.number, control, out);
    }
}

/// Appends frame `number` of a connection to `out`.
///
/// # Panics
/// If the message is longer than [`CONTROL_BYTES_MAX`]: the bounds of its lists exclude that.
pub fn emit(key: &ControlKey, number: u64, control: &Control, out: &mut Vec<u8>) {
    let start = out.len();
    0u32.put(out);
    MAGIC.put(out);
    out.extend_from_slice(&[VERSION, 0]);
    control.job.put(out);
    control.life.put(out);
    control.epoch.put(out);
    control.sender.put(out);
    out.extend_from_slice(&[0; 3]);
    number.put(out);
    out.extend_from_slice(&[0; TAG_BYTES]);
    control.message.put(out);
    seal(key, &mut out[start..]);
}

/// Sets length and tag of a frame whose other bytes are in place. Public for tests of the code behind the tag, with
/// frames that [`emit`] would never make.
///
/// # Panics
/// If the frame is shorter than its head or longer than [`CONTROL_BYTES_MAX`].
pub fn seal(key: &ControlKey, frame: &mut [u8]) {
    let length = frame.len() - LENGTH_BYTES;
    assert!(length <= CONTROL_BYTES_MAX, "a control frame of {length} bytes: a list is beyond its bound");
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    frame[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    let (head, body) = frame.split_at(BODY_OFFSET);
    let tag = key.tag(&head[..TAG_OFFSET], body);
    frame[TAG_OFFSET..BODY_OFFSET].copy_from_slice(&tag);
}

/// Reads one whole frame, length field included. Returns its number and its contents.
///
/// # Errors
/// If a byte of it is not as it must be. Nothing behind the tag is looked at before the tag has been checked.
pub fn parse(key: &ControlKey, frame: &[u8]) -> Result<(u64, Control), Malformed> {
    let mut from = Reader::new(frame);
    let length = usize::try_from(u32::take(&mut from)?).unwrap_or(usize::MAX);
    if length > CONTROL_BYTES_MAX {
        return Err(Malformed::TooLong { expected: CONTROL_BYTES_MAX, found: length });
    }
    let found = frame.len() - LENGTH_BYTES;
    if found < length {
        return Err(Malformed::Short { what: "frame", expected: length, found });
    }
    if found > length {
        return Err(Malformed::Trailing { found: found - length });
    }
    let magic = u16::take(&mut from)?;
    if magic != MAGIC {
        return Err(Malformed::Magic { expected: MAGIC, found: magic });
    }
    let [version, reserved] = from.array("version")?;
    if version != VERSION {
        return Err(Malformed::Version { expected: VERSION, found: version });
    }
    if frame.len() < BODY_OFFSET {
        return Err(Malformed::Short { what: "head", expected: BODY_OFFSET, found: frame.len() });
    }
    let (head, body) = frame.split_at(BODY_OFFSET);
    let expected = key.tag(&head[..TAG_OFFSET], body);
    let difference = expected.iter().zip(&head[TAG_OFFSET..]).fold(0, |sum, (a, b)| sum | (a ^ b));
    if difference != 0 {
        return Err(Malformed::Tag);
    }
    let job = JobId::take(&mut from)?;
    let life = Life::take(&mut from)?;
    let epoch = Epoch::take(&mut from)?;
    let sender = Party::take(&mut from)?;
    let padding: [u8; 3] = from.array("padding")?;
    if let Some(found) = [reserved].iter().chain(&padding).find(|byte| **byte != 0) {
        return Err(Malformed::Variant { what: "reserved byte", found: (*found).into() });
    }
    let number = u64::take(&mut from)?;
    let mut from = Reader::new(body);
    let message = Message::take(&mut from)?;
    from.end()?;
    Ok((number, Control { job, life, epoch, sender, message }))
}

/// Takes the bytes of one connection as they come and hands out messages.
#[derive(Debug)]
pub struct ControlReader {
    key: ControlKey,
    held: Vec<u8>,
    taken: usize,
    last: u64,
}

impl ControlReader {
    /// The reader of a new connection.
    #[must_use]
    pub fn new(key: ControlKey) -> ControlReader {
        ControlReader { key, held: Vec::new(), taken: 0, last: 0 }
    }

    /// Adds bytes from the stream. Poll with [`ControlReader::next`] until it has nothing, so that no more than one
    /// unfinished frame is held.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.held.drain(..self.taken);
        self.taken = 0;
        self.held.extend_from_slice(bytes);
    }

    /// The next message; `None` if more bytes are needed.
    ///
    /// # Errors
    /// If the stream holds something else than our frames. The connection is then of no use any more: close it.
    #[expect(clippy::should_implement_trait, reason = "an iterator could not say that a connection is lost")]
    pub fn next(&mut self) -> Result<Option<Control>, Malformed> {
        let rest = &self.held[self.taken..];
        let Some(length) = rest.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
        if length > CONTROL_BYTES_MAX {
            return Err(Malformed::TooLong { expected: CONTROL_BYTES_MAX, found: length });
        }
        let Some(frame) = rest.get(..LENGTH_BYTES + length) else { return Ok(None) };
        let (number, control) = parse(&self.key, frame)?;
        if number <= self.last {
            return Err(Malformed::Replayed { last: self.last, found: number });
        }
        self.last = number;
        self.taken += LENGTH_BYTES + length;
        Ok(Some(control))
    }
}
