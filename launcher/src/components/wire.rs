//! Questions to a component's process, and its answers: each is its length in bytes (32 bits, little-endian), then the message as `postcard` writes it.
//!
//! Each question has one answer, in their order. The component may have spoilt the memory of its process, so nothing in an answer is taken on trust.

use std::io::{self, Read};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ComponentKind;
use crate::limits::{COMPONENT_ANSWER_BYTES_MAX, LINK_FRAME_BYTES_MAX};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Question {
    /// The first one.
    Open(Opening),
    Report(Report),
    Poll {
        now_ms: u64,
        nodes: Vec<NodeView>,
    },
    React(FaultView),
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Opening {
    pub(crate) kind: ComponentKind,
    pub(crate) library: String,
    pub(crate) argument: String,
    pub(crate) job: String,
    pub(crate) ranks: u32,
    pub(crate) nodes: u32,
}

/// Numbers are those of the C interface.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) kind: u32,
    pub(crate) now_ms: u64,
    pub(crate) silent_ms: u64,
    pub(crate) rank: Option<u32>,
    pub(crate) node: Option<u32>,
    pub(crate) exit_code: Option<u8>,
    pub(crate) signal: Option<u8>,
    pub(crate) model: u32,
    pub(crate) is_asked: bool,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct NodeView {
    pub(crate) node: u32,
    pub(crate) ranks: u32,
    pub(crate) answers: bool,
    pub(crate) host: String,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct FaultView {
    pub(crate) model: u32,
    pub(crate) confidence: u32,
    pub(crate) protocol: u32,
    pub(crate) now_ms: u64,
    pub(crate) rank: Option<u32>,
    pub(crate) node: u32,
    pub(crate) host: String,
    pub(crate) candidates: Vec<CandidateView>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct CandidateView {
    pub(crate) host: String,
    pub(crate) ranks: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// The component has begun. `period_ms`: of a detector.
    Opened { name: String, period_ms: u32 },
    /// It is none of this version, or does not want to begin, and why.
    Refused(String),
    /// The model of a report.
    Model(u32),
    /// The node that is suspected, and why.
    Suspicion(Option<(u32, String)>),
    /// The reaction to a fault.
    Reaction { protocol: u32, candidate: i32, reason: String },
}

/// The bytes of a message.
pub(super) fn emit(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut bytes = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = u32::try_from(bytes.len() - 4).map_err(io::Error::other)?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// The next question; `None`: the launcher has gone.
pub(super) fn read<T: DeserializeOwned>(from: &mut impl Read) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match from.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let length = u32::from_le_bytes(length);
    if length as usize > LINK_FRAME_BYTES_MAX {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = Vec::new();
    from.take(u64::from(length)).read_to_end(&mut bytes)?;
    postcard::from_bytes(&bytes).map(Some).map_err(io::Error::other)
}

/// Takes an answer from bytes that have come; `Ok(None)`: it is not whole yet. An answer with bytes behind it is malformed.
pub(super) fn take_answer(bytes: &mut Vec<u8>) -> Result<Option<Answer>, Malformed> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > COMPONENT_ANSWER_BYTES_MAX {
        return Err(Malformed);
    }
    let Some(message) = rest.get(..length) else { return Ok(None) };
    let (answer, left) = postcard::take_from_bytes(message).map_err(|_| Malformed)?;
    if !left.is_empty() {
        return Err(Malformed);
    }
    bytes.drain(..4 + length);
    Ok(Some(answer))
}

/// Bytes that are no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Malformed;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answers() -> Vec<Answer> {
        vec![
            Answer::Opened { name: "watch".into(), period_ms: 1000 },
            Answer::Refused("no".into()),
            Answer::Model(2),
            Answer::Suspicion(None),
            Answer::Suspicion(Some((3, "memory errors".into()))),
            Answer::Reaction { protocol: 2, candidate: -1, reason: String::new() },
        ]
    }

    #[test]
    fn answers_are_taken_one_after_another_as_they_come() {
        let all: Vec<u8> = answers().iter().flat_map(|answer| emit(answer).expect("bytes")).collect();
        let (mut bytes, mut taken) = (Vec::new(), Vec::new());
        for byte in all {
            bytes.push(byte);
            taken.extend(take_answer(&mut bytes).expect("whole answers"));
        }
        assert_eq!((taken, bytes), (answers(), vec![]));
    }

    #[test]
    fn questions_come_as_they_were_written() {
        let fault = FaultView {
            model: 2,
            confidence: 1,
            protocol: 1,
            now_ms: 7,
            rank: Some(3),
            node: 1,
            host: "b".into(),
            candidates: vec![CandidateView { host: "e".into(), ranks: 0 }],
        };
        let questions = [Question::React(fault), Question::Report(Report::default())];
        let all: Vec<u8> = questions.iter().flat_map(|question| emit(question).expect("bytes")).collect();
        let mut from = all.as_slice();
        let read: Vec<Question> = std::iter::from_fn(|| read(&mut from).expect("questions")).collect();
        assert_eq!(read, questions);
    }

    #[test]
    fn a_spoilt_answer_is_none_and_is_not_waited_for() {
        for answer in answers() {
            let whole = emit(&answer).expect("bytes");
            for bit in 0..whole.len() * 8 {
                let mut bytes = whole.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                // Another answer, a part of one, or malformed: no panic, and nothing is made as large as a length claims.
                let _ = take_answer(&mut bytes);
            }
        }
        let mut long = u32::MAX.to_le_bytes().to_vec();
        assert_eq!(take_answer(&mut long), Err(Malformed));
        let mut followed = emit(&Answer::Model(1)).expect("bytes");
        followed[0] += 1;
        followed.push(0);
        assert_eq!(take_answer(&mut followed), Err(Malformed));
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_answer_or_malformed(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut taken = bytes.clone();
            if let Ok(Some(answer)) = take_answer(&mut taken) {
                let length = bytes.len() - taken.len();
                let again: Answer = postcard::from_bytes(&bytes[4..length]).expect("it was an answer");
                prop_assert_eq!(again, answer);
            }
        }
    }
}
