//! The record of the seats that a directory knows.

use ckpt_glue::protection::seat::{Known, Seat};
use transport::JobId;

use super::grammar::{Form, LineReader, RecordWriter, decimal, hexadecimal, job};
use crate::error::RecordError;
use crate::limits::SEATS_MAX;

const FORM: Form = Form { what: "seats", version: 1 };
const TAKEN: &str = "taken";
const TRIED: &str = "tried";
const INHERITED: &str = "inherited";
const PASSED_ON: &str = "passed-on";

/// The seats that a directory knows (rule 34): one of a node those of the nodes' launchers, one of a launcher its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seats {
    /// The job.
    pub job: JobId,
    /// The seats.
    pub known: Known,
}

impl Seats {
    /// The record's bytes.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut lines = RecordWriter::new(&FORM);
        lines.line("job", self.job);
        let text = |seat: &Seat| {
            let how = if seat.is_inherited { INHERITED } else { PASSED_ON };
            format!("{} {:016x} {:016x} {how}", seat.number, seat.id, seat.parent)
        };
        self.known.taken.iter().for_each(|seat| lines.line(TAKEN, text(seat)));
        self.known.tried.iter().for_each(|seat| lines.line(TRIED, text(seat)));
        lines.finish()
    }

    /// Reads [`Seats::emit`]'s bytes.
    pub fn parse(bytes: &[u8]) -> Result<Seats, RecordError> {
        let mut lines = LineReader::open(&FORM, bytes)?;
        let job = lines.line("job", "job JOB", job)?;
        let taken = lines.lines(TAKEN, "taken NUMBER ID PARENT inherited|passed-on", 1, seat)?.pop();
        let tried = lines.lines(TRIED, "tried NUMBER ID PARENT inherited|passed-on", SEATS_MAX, seat)?;
        lines.end()?;
        Ok(Seats { job, known: Known { taken, tried } })
    }
}

fn seat(text: &str) -> Option<Seat> {
    let mut words = text.split(' ');
    let number = decimal(words.next()?)?;
    let mut id = || u64::try_from(hexadecimal::<16>(words.next()?)?).ok();
    let (id, parent) = (id()?, id()?);
    let is_inherited = match words.next()? {
        INHERITED => true,
        PASSED_ON => false,
        _ => return None,
    };
    words.next().is_none().then_some(Seat { number, id, parent, is_inherited })
}
