//! [`Retention`]: the rule that decides which checkpoints are kept. Pure: the folder of checkpoints removes
//! the others.

use std::time::Duration;

use antdt_core::CheckpointId;

/// Limits on the number and the age of the checkpoints that are kept. The newest valid one is always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Number of checkpoints to keep, the newest ones; 0 counts as 1.
    pub newest: usize,
    /// Age beyond which a checkpoint is removed even if it is one of the newest; `None` for no limit.
    pub max_age: Option<Duration>,
    /// A checkpoint that is kept in any case, because processes that start now begin from it.
    pub pinned: Option<CheckpointId>,
}

/// State of a checkpoint in its folder, by which retention decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointState {
    /// The checkpoint has a complete manifest and all files.
    Valid {
        /// Time at which the checkpoint was taken, in seconds since 1970, UTC.
        created_unix_s: u64,
    },
    /// The checkpoint has no manifest: taking or removing it was interrupted.
    Unfinished,
    /// The checkpoint is damaged and the user should look at it, or it has a newer format.
    Unusable,
}

impl Retention {
    /// Returns the checkpoints to remove, oldest first: valid ones beyond the limits, and unfinished ones
    /// that are older than the newest valid one. Unusable ones are kept, because another version of the
    /// program may be able to read them. `now_unix_s` is the present time in seconds since 1970.
    pub fn doomed(&self, all: &[(CheckpointId, CheckpointState)], now_unix_s: u64) -> Vec<CheckpointId> {
        let mut newest_first = all.to_vec();
        newest_first.sort_by(|(a, _), (b, _)| b.cmp(a));
        let mut doomed = Vec::new();
        let mut valid = 0;
        for (id, standing) in newest_first {
            let goes = match standing {
                CheckpointState::Valid { created_unix_s } => {
                    valid += 1;
                    let age = Duration::from_secs(now_unix_s.saturating_sub(created_unix_s));
                    valid > 1 && (valid > self.newest || self.max_age.is_some_and(|most| age > most))
                }
                // A newer one may be about to be finished.
                CheckpointState::Unfinished => valid > 0,
                CheckpointState::Unusable => false,
            };
            if goes && self.pinned != Some(id) {
                doomed.push(id);
            }
        }
        doomed.reverse();
        doomed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn doomed(newest: usize, max_age_s: Option<u64>, all: &str) -> Vec<u64> {
        // Checkpoint `n` was taken at second `n`; now is 10.
        let all: Vec<_> = all
            .chars()
            .zip(1..)
            .map(|(kind, id)| {
                let standing = match kind {
                    'v' => CheckpointState::Valid { created_unix_s: id },
                    'u' => CheckpointState::Unfinished,
                    _ => CheckpointState::Unusable,
                };
                (CheckpointId(id), standing)
            })
            .collect();
        let retention = Retention { newest, max_age: max_age_s.map(Duration::from_secs), pinned: None };
        retention.doomed(&all, 10).into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn the_newest_are_kept_and_of_these_the_young() {
        for (newest, max_age, all, expected) in [
            (2, None, "vvvv", &[1, 2][..]),
            (0, None, "vvv", &[1, 2]),
            (9, None, "vvv", &[]),
            (9, Some(7), "vvvv", &[1, 2]),
            (9, Some(0), "vvv", &[1, 2]),
            (2, None, "vuvu", &[2]),
            (1, None, "uxvu", &[1]),
            (1, None, "uu", &[]),
            (1, None, "xvx", &[]),
            (1, None, "", &[]),
        ] {
            assert_eq!(doomed(newest, max_age, all), expected, "{newest} {max_age:?} {all}");
        }
    }

    #[test]
    fn the_one_that_processes_begin_from_stays_beside_the_newest() {
        let taken = |id| (CheckpointId(id), CheckpointState::Valid { created_unix_s: id });
        let doomed = |pinned| {
            let retention = Retention { newest: 2, max_age: None, pinned: Some(CheckpointId(pinned)) };
            retention.doomed(&[1, 2, 3, 4, 5].map(taken), 10)
        };
        assert_eq!(doomed(2), [1, 3].map(CheckpointId));
        assert_eq!(doomed(5), [1, 2, 3].map(CheckpointId), "it is one of them");
    }

    proptest! {
        #[test]
        fn the_newest_valid_one_and_all_after_it_stay(
            newest in 0_usize..4,
            max_age in prop::option::of(0_u64..20),
            all in "[vux]{0,9}",
        ) {
            let doomed = doomed(newest, max_age, &all);
            if let Some(last) = all.rfind('v') {
                prop_assert!(doomed.iter().all(|id| *id <= last as u64), "{doomed:?} of {all}");
            } else {
                prop_assert!(doomed.is_empty());
            }
            let kept = all.chars().zip(1..).filter(|(kind, id)| *kind == 'v' && !doomed.contains(id)).count();
            prop_assert!(kept <= newest.max(1));
        }
    }
}
