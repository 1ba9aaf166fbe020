//! Messages of every kind that protectors send.

use protector::Shape;
use protector::message::{Answer, Body, Message, Part, Question, Strips};
use store::GenerationId;
use store::limits::PAGE_BYTES;
use store::protect::{Half, PageAnswer, Wanted};
use transport::{Epoch, Life};

use crate::corpora::seeds::Seed;

const GENERATION: GenerationId =
    GenerationId { life: Life { counter: 3, nonce: 0x0123_4567_89ab_cdef }, epoch: Epoch(7) };

pub(crate) fn all() -> Vec<Seed> {
    let from = GenerationId { epoch: Epoch(6), ..GENERATION };
    let wanted = Wanted { by: 2, half: Half::Parity, cycles: 5..8 };
    let record = b"content 1\n".to_vec();
    let content = |from, shape, changed: &[(u64, u64)]| Body::Content {
        from,
        shape,
        pages: 9,
        changed: changed.to_vec(),
        record: record.clone(),
    };
    let words = [
        ("content", content(None, Shape::Ring, &[])),
        ("content-upon", content(Some(from), Shape::FanIn, &[(2, 0), (1, 3), (4, 0), (1, 1)])),
        ("gave-up", Body::GaveUp { reason: "disk full".to_owned() }),
        ("question-content", Body::Question(Question::Content { of: 1 })),
        ("question-places", Body::Question(Question::Places(wanted))),
        ("answer-content", Body::Answer(Answer::Content(record.clone()))),
        (
            "answer-places",
            Body::Answer(Answer::Places(vec![PageAnswer::Zero, PageAnswer::Damaged, PageAnswer::Zero])),
        ),
        (
            "answer-pages",
            Body::Answer(Answer::Places(vec![PageAnswer::Zero, PageAnswer::Page(vec![7; PAGE_BYTES])])),
        ),
        ("answer-failed", Body::Answer(Answer::Failed("nothing is known of it".to_owned()))),
        ("alive", Body::Alive),
    ];
    let message = |(name, body): (&str, Body)| {
        (name.to_owned(), Message { generation: GENERATION, number: 11, body }.emit())
    };
    let mut seeds: Vec<Seed> = words.into_iter().map(message).collect();
    let pages = vec![5; 3 * PAGE_BYTES];
    let full = Part {
        keeper: 1,
        row: 1,
        chunks: vec![(4, 0b101, &pages[..2 * PAGE_BYTES]), (9, 0x8000, &pages[..PAGE_BYTES])],
    };
    let empty = Part { keeper: 3, row: 0, chunks: Vec::new() };
    for (name, parts) in [("strips-empty", vec![empty.clone()]), ("strips", vec![full, empty])] {
        seeds.push((name.to_owned(), Strips { generation: GENERATION, window: 2, parts }.to_bytes()));
    }
    seeds
}
