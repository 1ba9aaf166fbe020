//! R1: a number once sent out is never used again in its life, and an abandoned epoch is never committed.

use super::{Generation, Violation};

/// The judge: it records which checkpoints begin and which are given up.
#[derive(Debug, Default)]
pub struct NamingJudge {
    newest: Option<Generation>,
    abandoned: Vec<Generation>,
}

impl NamingJudge {
    /// The coordinator has sent out the command for `generation`.
    ///
    /// # Errors
    /// If the life has used that number, or a higher one, before.
    pub fn begun(&mut self, generation: Generation) -> Result<(), Violation> {
        let before = self.newest.replace(generation);
        match before.filter(|before| before.life == generation.life && before.epoch >= generation.epoch) {
            Some(newest) => Err(Violation::NumberUsedAgain { generation, newest }),
            None => Ok(()),
        }
    }

    /// The coordinator has given `generation` up.
    pub fn abandoned(&mut self, generation: Generation) {
        self.abandoned.push(generation);
    }

    /// The commit record of `generation` is durable.
    ///
    /// # Errors
    /// If it had been given up.
    pub fn committed(&self, generation: Generation) -> Result<(), Violation> {
        if self.abandoned.contains(&generation) {
            Err(Violation::AbandonedCommitted { generation })
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Generation = Generation { life: 1, epoch: 1 };

    #[test]
    fn a_number_is_used_once_in_a_life() {
        let mut judge = NamingJudge::default();
        assert_eq!(judge.begun(FIRST), Ok(()));
        assert_eq!(judge.begun(Generation { epoch: 2, ..FIRST }), Ok(()));
        assert!(judge.begun(FIRST).is_err(), "it went back");
        assert_eq!(judge.begun(Generation { life: 2, ..FIRST }), Ok(()), "another life counts anew");
        assert!(judge.begun(Generation { life: 2, ..FIRST }).is_err(), "the same again");
    }

    #[test]
    fn what_was_given_up_is_not_committed() {
        let mut judge = NamingJudge::default();
        assert_eq!(judge.committed(FIRST), Ok(()));
        judge.abandoned(FIRST);
        assert_eq!(judge.committed(FIRST), Err(Violation::AbandonedCommitted { generation: FIRST }));
        assert_eq!(judge.committed(Generation { life: 2, ..FIRST }), Ok(()));
    }
}
