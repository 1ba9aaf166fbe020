//! The seats of a job, and its end, as its directories know them (rule 34).

use ckpt_glue::protection::seat::{JobEnd, Known, Seat};

use super::JobDirectory;
use super::names;
use crate::error::{RecordError, StoreError};
use crate::limits::SEATS_MAX;
use crate::record::{JobEndRecord, Seats};
use crate::storage::{Storage, StorageError};

impl<S: Storage> JobDirectory<S> {
    /// The seats that this node's directory knows; none if it is new, or was made by an older build.
    pub fn seats(&mut self) -> Result<Known, StoreError> {
        self.read_seats(names::SEATS)
    }

    /// Notes a seat in this node's directory, durably. Writing it again is no error.
    pub fn note_seat(&mut self, seat: Seat, is_taken: bool) -> Result<(), StoreError> {
        // One that cannot be read has no vote, and may be replaced.
        let before = self.seats().unwrap_or_default();
        let mut known = before.clone();
        if is_taken {
            known.confirm(seat);
        } else {
            known.attempt(seat);
        }
        if known.tried.len() > SEATS_MAX {
            let error =
                RecordError::TooMany { what: "tried", count: known.tried.len(), count_max: SEATS_MAX };
            return Err(StoreError::Record { path: names::SEATS.to_owned(), error });
        }
        if known == before { Ok(()) } else { self.write_seats(names::SEATS, known) }
    }

    /// The seat that the launcher of this directory holds, if it holds one.
    pub fn held_seat(&mut self) -> Result<Option<Seat>, StoreError> {
        Ok(self.read_seats(names::HELD_SEAT)?.taken)
    }

    /// The launcher of this directory has taken a seat.
    pub fn hold_seat(&mut self, seat: Seat) -> Result<(), StoreError> {
        self.write_seats(names::HELD_SEAT, Known { taken: Some(seat), tried: Vec::new() })
    }

    /// Notes the job's end in this node's directory, durably. Only the newest life can be over.
    pub fn write_job_end(&mut self, end: JobEnd) -> Result<(), StoreError> {
        self.expect_current(end.life)?;
        let record = JobEndRecord { job: self.job, end }.emit();
        self.replace_record(names::JOB_END, &names::temporary(names::JOB_END), &record)
    }

    /// The job's end, if this node's directory knows it and no later life.
    pub fn job_end(&mut self) -> Result<Option<JobEnd>, StoreError> {
        let found = match self.read_record(names::JOB_END, JobEndRecord::parse) {
            Err(StoreError::Storage(StorageError::NotFound { .. })) => return Ok(None),
            read => read?,
        };
        if found.job != self.job {
            let error = RecordError::WrongJob { expected: self.job, found: found.job };
            return Err(StoreError::Record { path: names::JOB_END.to_owned(), error });
        }
        let newest = self.lives()?.current();
        Ok(Some(found.end).filter(|end| newest == Some(end.life)))
    }

    /// Why this node's seats or its note of the job's end cannot be read.
    pub fn damaged_notes(&mut self) -> Vec<StoreError> {
        [self.seats().err(), self.job_end().err()].into_iter().flatten().collect()
    }

    /// Removes notes that are damaged: they say as little as none at all.
    pub fn remove_damaged_notes(
        &mut self,
        is_damage: impl Fn(&StoreError) -> bool,
    ) -> Result<(), StoreError> {
        for (path, error) in [(names::SEATS, self.seats().err()), (names::JOB_END, self.job_end().err())] {
            if error.is_some_and(|error| is_damage(&error)) {
                self.storage.remove_file(path)?;
                self.storage.sync_directory("")?;
            }
        }
        Ok(())
    }

    fn read_seats(&mut self, path: &str) -> Result<Known, StoreError> {
        let seats = match self.read_record(path, Seats::parse) {
            Err(StoreError::Storage(StorageError::NotFound { .. })) => return Ok(Known::default()),
            read => read?,
        };
        if seats.job != self.job {
            let error = RecordError::WrongJob { expected: self.job, found: seats.job };
            return Err(StoreError::Record { path: path.to_owned(), error });
        }
        Ok(seats.known)
    }

    fn write_seats(&mut self, path: &str, known: Known) -> Result<(), StoreError> {
        let record = Seats { job: self.job, known }.emit();
        self.replace_record(path, &names::temporary(path), &record)
    }
}
