//! Joins the records of several directories about a job's lives: the launcher's may be new or old, while nodes know later lives.

use std::collections::BTreeMap;

use store::Decision;

/// Two directories have another decision under one number: the job has gone on twice from there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Divergence {
    pub(crate) one: (String, Decision),
    pub(crate) other: (String, Decision),
}

/// Every decision that one of them knows, oldest first. Each has a name for messages.
pub fn joined(known: Vec<(String, Vec<Decision>)>) -> Result<Vec<Decision>, Box<Divergence>> {
    let mut joined: BTreeMap<u32, (String, Decision)> = BTreeMap::new();
    for (name, decisions) in known {
        for decision in decisions {
            let one = joined.entry(decision.life.counter).or_insert_with(|| (name.clone(), decision));
            if one.1 != decision {
                return Err(Box::new(Divergence { one: one.clone(), other: (name, decision) }));
            }
        }
    }
    Ok(joined.into_values().map(|(_, decision)| decision).collect())
}

#[cfg(test)]
mod tests {
    use transport::{JobId, Life};

    use super::*;

    fn decision(counter: u32, nonce: u64) -> Decision {
        Decision { job: JobId(1), life: Life { counter, nonce }, from: None }
    }

    fn of(all: &[(&str, &[(u32, u64)])]) -> Result<Vec<u32>, String> {
        let known = all.iter().map(|(name, lives)| {
            let decisions = lives.iter().map(|(counter, nonce)| decision(*counter, *nonce)).collect();
            ((*name).to_owned(), decisions)
        });
        let joined = joined(known.collect())
            .map_err(|divergence| format!("{} {}", divergence.one.0, divergence.other.0))?;
        Ok(joined.into_iter().map(|decision| decision.life.counter).collect())
    }

    #[test]
    fn what_nothing_contradicts_is_known_by_all() {
        assert_eq!(
            of(&[("here", &[]), ("a", &[(1, 7)]), ("b", &[(1, 7), (2, 8), (3, 9)])]),
            Ok(vec![1, 2, 3])
        );
        // A spare knows later lives alone, if earlier ones could not be read.
        assert_eq!(of(&[("a", &[(2, 8)]), ("b", &[(1, 7)])]), Ok(vec![1, 2]));
        assert_eq!(of(&[("here", &[])]), Ok(vec![]));
    }

    #[test]
    fn who_contradicts_whom_is_said() {
        assert_eq!(of(&[("a", &[(1, 7), (2, 8)]), ("b", &[(1, 7), (2, 9)])]), Err("a b".to_owned()));
        assert_eq!(of(&[("here", &[(1, 6)]), ("a", &[]), ("b", &[(1, 7)])]), Err("here b".to_owned()));
    }
}
