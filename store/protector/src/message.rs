//! Messages between protectors. Every message begins with the same head; the transport decides who may speak.
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `SWPM` |
//! | 2 | version, 1 |
//! | 2 | kind |
//! | 4, 4, 8 | generation: counter of its life, epoch, nonce of its life |
//! | 8 | number: of a window (strips), of a question, else 0 |
//!
//! Numbers are little-endian. The kind decides the rest.

use core::fmt;

use store::GenerationId;
use store::limits::{CONTENT_PAGES_MAX, PAGE_BYTES};
use store::protect::{CHUNK_PAGES, Half, PageAnswer, Strip, Wanted};
use transport::{Epoch, Life};

use crate::shape::Shape;

const MAGIC: [u8; 4] = *b"SWPM";
/// The version that this build speaks.
pub const VERSION: u16 = 1;
/// Bytes of the head.
pub const HEAD_BYTES: usize = 32;

const STRIPS: u16 = 1;
const CONTENT: u16 = 2;
const GAVE_UP: u16 = 3;
const QUESTION: u16 = 4;
const ANSWER: u16 = 5;
const ALIVE: u16 = 6;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// They begin in another way.
    #[error("{bytes} bytes that do not begin like a message of a protector")]
    Alien {
        /// How many there are.
        bytes: usize,
    },
    /// Another version.
    #[error("a message of version {found}, this build speaks version {VERSION}")]
    Version {
        /// Which.
        found: u16,
    },
    /// It ends too early, goes on too long, or contradicts itself.
    #[error("a message of kind {kind} with {bytes} bytes: {what}")]
    Malformed {
        /// Kind.
        kind: u16,
        /// Length.
        bytes: usize,
        /// The expected value.
        what: &'static str,
    },
}

/// A message other than strips.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its subject.
    pub generation: GenerationId,
    /// Of a question, and of its answer.
    pub number: u64,
    /// Its contents.
    pub body: Body,
}

/// The contents of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The sender's content in a generation that is being protected.
    Content {
        /// The generation that it builds upon.
        from: Option<GenerationId>,
        /// Which way the sender would have contributions take; that of the group's first member counts.
        shape: Shape,
        /// Pages of its content, before or now, whichever are more.
        pages: u64,
        /// How many of them may have changed, run by run: cycles, and pages of each of them ([`store::protect::Changes::pages_to_read`]).
        changed: Vec<(u64, u64)>,
        /// [`store::record::Content`], as it was emitted.
        record: Vec<u8>,
    },
    /// The sender does not go on protecting the generation.
    GaveUp {
        /// Why.
        reason: String,
    },
    /// While the sender is repaired.
    Question(Question),
    /// To a question of that number.
    Answer(Answer),
    /// Nothing: that it is received is a sign of life.
    Alive,
}

/// A question of a member under repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A member's content, as far as the asked one knows.
    Content {
        /// Which member.
        of: u16,
    },
    /// The asked member's pages in stripes.
    Places(Wanted),
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// [`store::record::Content`], as it was emitted.
    Content(Vec<u8>),
    /// Page by page.
    Places(Vec<PageAnswer>),
    /// It cannot be answered.
    Failed(String),
}

fn head(kind: u16, generation: GenerationId, number: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&kind.to_le_bytes());
    put_generation(&mut bytes, generation);
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes
}

fn put_generation(bytes: &mut Vec<u8>, generation: GenerationId) {
    bytes.extend_from_slice(&generation.life.counter.to_le_bytes());
    bytes.extend_from_slice(&generation.epoch.0.to_le_bytes());
    bytes.extend_from_slice(&generation.life.nonce.to_le_bytes());
}

impl Message {
    /// Its bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let begun = |kind| head(kind, self.generation, self.number);
        match &self.body {
            Body::Content { from, shape, pages, changed, record } => {
                let mut bytes = begun(CONTENT);
                bytes.push(shape.number());
                bytes.push(u8::from(from.is_some()));
                put_generation(&mut bytes, from.unwrap_or(NO_GENERATION));
                bytes.extend_from_slice(&pages.to_le_bytes());
                bytes.extend_from_slice(&u32::try_from(changed.len()).unwrap_or(u32::MAX).to_le_bytes());
                for (cycles, pages) in changed {
                    bytes.extend_from_slice(&cycles.to_le_bytes());
                    bytes.extend_from_slice(&pages.to_le_bytes());
                }
                bytes.extend_from_slice(record);
                bytes
            }
            Body::GaveUp { reason } => [begun(GAVE_UP), reason.as_bytes().to_vec()].concat(),
            Body::Question(Question::Content { of }) => {
                [begun(QUESTION), vec![0], of.to_le_bytes().to_vec()].concat()
            }
            Body::Question(Question::Places(wanted)) => {
                let mut bytes = begun(QUESTION);
                bytes.push(match wanted.half {
                    Half::Data => 1,
                    Half::Parity => 2,
                });
                bytes.extend_from_slice(&u16::try_from(wanted.by).unwrap_or(u16::MAX).to_le_bytes());
                bytes.extend_from_slice(&wanted.cycles.start.to_le_bytes());
                bytes.extend_from_slice(&wanted.cycles.end.to_le_bytes());
                bytes
            }
            Body::Answer(Answer::Content(record)) => [begun(ANSWER), vec![0], record.clone()].concat(),
            Body::Answer(Answer::Places(reported)) => {
                let mut bytes = begun(ANSWER);
                bytes.push(1);
                bytes.extend_from_slice(&u32::try_from(reported.len()).unwrap_or(u32::MAX).to_le_bytes());
                bytes.extend(reported.iter().map(|reported| match reported {
                    PageAnswer::Zero => 0,
                    PageAnswer::Page(_) => 1,
                    PageAnswer::Damaged => 2,
                }));
                for reported in reported {
                    if let PageAnswer::Page(page) = reported {
                        bytes.extend_from_slice(page);
                    }
                }
                bytes
            }
            Body::Answer(Answer::Failed(reason)) => {
                [begun(ANSWER), vec![2], reason.as_bytes().to_vec()].concat()
            }
            Body::Alive => begun(ALIVE),
        }
    }

    /// Reads [`Message::emit`]'s bytes.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn parse(bytes: &[u8]) -> Result<Message, MessageError> {
        let (kind, generation, number, mut rest) = parse_head(bytes)?;
        let malformed = |what| MessageError::Malformed { kind, bytes: bytes.len(), what };
        let body = match kind {
            CONTENT => rest.content(),
            GAVE_UP => rest.text().map(|reason| Body::GaveUp { reason }),
            QUESTION => rest.question().map(Body::Question),
            ANSWER => rest.answer().map(Body::Answer),
            ALIVE => Some(Body::Alive),
            _ => return Err(malformed("such a kind is not known among words")),
        };
        let body = body.ok_or_else(|| malformed("a field is missing or out of bounds"))?;
        if rest.0.is_empty() {
            Ok(Message { generation, number, body })
        } else {
            Err(malformed("bytes follow its end"))
        }
    }
}

const NO_GENERATION: GenerationId = GenerationId { life: Life { counter: 0, nonce: 0 }, epoch: Epoch(0) };

fn parse_head(bytes: &[u8]) -> Result<(u16, GenerationId, u64, Rest<'_>), MessageError> {
    let alien = || MessageError::Alien { bytes: bytes.len() };
    let mut rest = Rest(bytes.strip_prefix(&MAGIC).ok_or_else(alien)?);
    let found = rest.u16().ok_or_else(alien)?;
    if found != VERSION {
        return Err(MessageError::Version { found });
    }
    let mut fields = || Some((rest.u16()?, rest.generation()?, rest.u64()?));
    let (kind, generation, number) = fields().ok_or_else(alien)?;
    Ok((kind, generation, number, rest))
}

/// The bytes that have not been read yet.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        let [flag] = self.array()?;
        (flag < 2).then_some(flag == 1)
    }

    fn generation(&mut self) -> Option<GenerationId> {
        let (counter, epoch, nonce) = (self.u32()?, self.u32()?, self.u64()?);
        Some(GenerationId { life: Life { counter, nonce }, epoch: Epoch(epoch) })
    }

    fn all(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.all().to_vec()).ok()
    }

    fn content(&mut self) -> Option<Body> {
        let [shape] = self.array()?;
        let shape = Shape::ALL.into_iter().find(|known| known.number() == shape)?;
        let (builds, from) = (self.flag()?, self.generation()?);
        let pages = self.u64().filter(|pages| *pages <= CONTENT_PAGES_MAX)?;
        let (runs, mut changed, mut cycles) = (self.u32()?, Vec::new(), 0);
        for _ in 0..runs {
            let run = (self.u64()?, self.u64()?);
            // Not more cycles than pages, and none with more pages than there are.
            cycles = u64::checked_add(cycles, run.0).filter(|cycles| *cycles <= pages)?;
            if run.0 == 0 || run.1 > pages {
                return None;
            }
            changed.push(run);
        }
        if !builds && from != NO_GENERATION {
            return None;
        }
        let (from, record) = (builds.then_some(from), self.all().to_vec());
        Some(Body::Content { from, shape, pages, changed, record })
    }

    fn question(&mut self) -> Option<Question> {
        let [what] = self.array()?;
        let member = self.u16()?;
        let half = match what {
            0 => return Some(Question::Content { of: member }),
            1 => Half::Data,
            2 => Half::Parity,
            _ => return None,
        };
        let cycles = self.u64()?..self.u64()?;
        let fits = cycles.start <= cycles.end && cycles.end <= CONTENT_PAGES_MAX;
        fits.then_some(Question::Places(Wanted { by: usize::from(member), half, cycles }))
    }

    fn answer(&mut self) -> Option<Answer> {
        let [what] = self.array()?;
        match what {
            0 => Some(Answer::Content(self.all().to_vec())),
            1 => {
                let count = usize::try_from(self.u32()?).ok()?;
                let states = self.take(count)?;
                let reported = |state: &u8| match state {
                    0 => Some(PageAnswer::Zero),
                    1 => self.take(PAGE_BYTES).map(|page| PageAnswer::Page(page.to_vec())),
                    2 => Some(PageAnswer::Damaged),
                    _ => None,
                };
                states.iter().map(reported).collect::<Option<Vec<PageAnswer>>>().map(Answer::Places)
            }
            2 => self.text().map(Answer::Failed),
            _ => None,
        }
    }
}

/// Contributions to one window, as they are received: nothing is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Strips<'a> {
    /// The generation being protected.
    pub generation: GenerationId,
    /// The window.
    pub window: u64,
    /// By keeper and row. One without chunks says that nothing comes.
    pub parts: Vec<Part<'a>>,
}

/// A contribution to one row of one keeper.
#[derive(Clone, PartialEq, Eq)]
pub struct Part<'a> {
    /// The keeper, by its number in the group.
    pub keeper: u16,
    /// The row.
    pub row: u16,
    /// As [`Strip::chunks`] returns them.
    pub chunks: Vec<(u64, u16, &'a [u8])>,
}

impl fmt::Debug for Part<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({}, {}, {} chunks)", self.keeper, self.row, self.chunks.len())
    }
}

impl<'a> Strips<'a> {
    /// The bytes of a message with these parts: keeper, row, strip.
    #[must_use]
    pub fn emit(generation: GenerationId, window: u64, parts: &[(u16, u16, Strip)]) -> Vec<u8> {
        let chunked: Vec<Part<'_>> = parts
            .iter()
            .map(|(keeper, row, strip)| Part { keeper: *keeper, row: *row, chunks: strip.chunks().collect() })
            .collect();
        Strips { generation, window, parts: chunked }.to_bytes()
    }

    /// The message's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = head(STRIPS, self.generation, self.window);
        let pages =
            self.parts.iter().flat_map(|part| &part.chunks).map(|(.., pages)| pages.len()).sum::<usize>();
        bytes.reserve(pages + 16 * self.parts.iter().map(|part| part.chunks.len() + 1).sum::<usize>());
        bytes.extend_from_slice(&u16::try_from(self.parts.len()).unwrap_or(u16::MAX).to_le_bytes());
        for part in &self.parts {
            bytes.extend_from_slice(&part.keeper.to_le_bytes());
            bytes.extend_from_slice(&part.row.to_le_bytes());
            bytes.extend_from_slice(&u32::try_from(part.chunks.len()).unwrap_or(u32::MAX).to_le_bytes());
            for (number, mask, _) in &part.chunks {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(&mask.to_le_bytes());
            }
        }
        for (.., pages) in self.parts.iter().flat_map(|part| &part.chunks) {
            bytes.extend_from_slice(pages);
        }
        bytes
    }

    /// Reads such bytes.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn parse(bytes: &'a [u8]) -> Result<Strips<'a>, MessageError> {
        let (kind, generation, window, mut rest) = parse_head(bytes)?;
        let malformed = |what| MessageError::Malformed { kind, bytes: bytes.len(), what };
        if kind != STRIPS {
            return Err(malformed("strips were expected"));
        }
        let mut parts = Vec::new();
        let mut tables = || {
            for _ in 0..rest.u16()? {
                let (keeper, row, count) = (rest.u16()?, rest.u16()?, rest.u32()?);
                let mut chunks: Vec<(u64, u16, &[u8])> = Vec::new();
                for _ in 0..count {
                    let (number, mask) = (rest.u64()?, rest.u16()?);
                    let after = chunks.last().is_none_or(|(last, ..)| *last < number);
                    if !after || mask == 0 || number > CONTENT_PAGES_MAX / CHUNK_PAGES {
                        return None;
                    }
                    chunks.push((number, mask, &[][..]));
                }
                parts.push(Part { keeper, row, chunks });
            }
            for (_, mask, pages) in parts.iter_mut().flat_map(|part| &mut part.chunks) {
                *pages = rest.take(mask.count_ones() as usize * PAGE_BYTES)?;
            }
            Some(())
        };
        tables().ok_or_else(|| malformed("a chunk is missing or out of order"))?;
        if rest.0.is_empty() {
            Ok(Strips { generation, window, parts })
        } else {
            Err(malformed("bytes follow its end"))
        }
    }
}
