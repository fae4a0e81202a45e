//! How often each sample is in the model, counted apart from the ledger.
//!
//! A sample is known by its place in the data set, as the worker reads it, and not by shard and offset: a ledger that
//! orders the samples of a shard otherwise than before gives out the same offsets, and other samples. It counts when a
//! step is committed that contains a batch in which a worker has loaded it.
//!
//! Source: the counting model, in which each sample has a parameter that counts, without the model; our design.

use std::collections::BTreeMap;

use antdt_core::{CheckpointId, Epoch, Fragment, Grant, Holder, ShardKey};

/// Epoch and place in the data set.
type Sample = (Epoch, u64);

/// How often each sample is in a model, by epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times {
    trained: BTreeMap<Sample, u32>,
    /// How often each was handed out again while it was in the model, for one of the reasons that excuse it.
    excused: BTreeMap<Sample, u32>,
}

impl Times {
    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        self.trained.values().map(|times| u64::from(*times)).sum()
    }

    /// Returns a description of the first sample that is in one of the models more often than in the other;
    /// `None` if both have the same. Excused repetitions do not count: see
    /// [`committed_once`](super::committed_once).
    pub fn difference(&self, uninterrupted: &Self) -> Option<String> {
        let samples = self.trained.keys().chain(uninterrupted.trained.keys());
        samples.copied().find_map(|sample| {
            let (times, expected) = (self.of(sample), uninterrupted.of(sample));
            let (epoch, place) = sample;
            (times != expected).then(|| {
                format!(
                    "sample {place} of epoch {epoch} is {times} times in the model, and {expected} times in that of a job \
                     without an interruption"
                )
            })
        })
    }

    /// How often a sample is in the model, but for excused repetitions.
    fn of(&self, sample: Sample) -> u32 {
        let times = self.trained.get(&sample).copied().unwrap_or_default();
        let excused = self.excused.get(&sample).copied().unwrap_or_default();
        times.saturating_sub(excused).max(times.min(1))
    }
}

/// Counts while a job runs; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Trained {
    /// By worker and shard: what is loaded and not committed, in order.
    loaded: BTreeMap<Holder, BTreeMap<ShardKey, Vec<Fragment>>>,
    now: Times,
    copies: BTreeMap<CheckpointId, Times>,
    /// In the model of the newest whole checkpoint.
    kept: Times,
}

impl Trained {
    /// What is in the model.
    pub(super) const fn now(&self) -> &Times {
        &self.now
    }

    /// What is in the model of the newest whole checkpoint.
    pub(super) const fn kept(&self) -> &Times {
        &self.kept
    }

    /// The job goes on from a checkpoint of one before.
    pub(super) fn resumed(&mut self, kept: &Times) {
        self.kept.clone_from(kept);
    }

    /// A worker loads this batch. What it has loaded of later samples before, it has not trained: a step was broken off.
    pub(super) fn loads(&mut self, holder: Holder, fragments: &[Fragment]) {
        let of_worker = self.loaded.entry(holder).or_default();
        for fragment in fragments {
            let of_shard = of_worker.entry(fragment.grant.key).or_default();
            of_shard.retain(|before| before.to <= fragment.from);
            of_shard.push(*fragment);
        }
    }

    /// What this worker has loaded of the shard up to there is in the model from now on.
    pub(super) fn commit(&mut self, holder: Holder, key: ShardKey, offset: u64) {
        let Some(of_shard) = self.loaded.get_mut(&holder).and_then(|of_worker| of_worker.get_mut(&key))
        else {
            return;
        };
        for fragment in of_shard.extract_if(.., |fragment| fragment.to <= offset) {
            for sample in fragment.samples() {
                *self.now.trained.entry((key.epoch, sample)).or_default() += 1;
            }
        }
    }

    /// This worker has given the shard back: what it has loaded of it and not trained, others train.
    pub(super) fn gave_back(&mut self, holder: Holder, key: ShardKey) {
        if let Some(of_worker) = self.loaded.get_mut(&holder) {
            of_worker.remove(&key);
        }
    }

    /// Samples `grant.resume_at..to` of this shard are in the model and may be trained once more.
    pub(super) fn excuse(&mut self, grant: Grant, to: u64) {
        for sample in (Fragment { grant, from: grant.resume_at, to }).samples() {
            *self.now.excused.entry((grant.key.epoch, sample)).or_default() += 1;
        }
    }

    /// A copy of the model exists for this checkpoint.
    pub(super) fn copied(&mut self, checkpoint: CheckpointId) {
        self.copies.insert(checkpoint, self.now.clone());
    }

    /// This checkpoint is whole.
    pub(super) fn keep(&mut self, checkpoint: CheckpointId) {
        if let Some(copy) = self.copies.remove(&checkpoint) {
            self.kept = copy;
        }
        self.copies = self.copies.split_off(&checkpoint);
    }

    /// The job goes back to the newest whole checkpoint, or to its start.
    pub(super) fn set_back(&mut self) {
        self.now.clone_from(&self.kept);
        self.copies.clear();
        self.loaded.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{grant, holder};
    use super::*;

    /// Samples `from..to` of the second shard.
    fn fragment(from: u64, to: u64) -> Fragment {
        Fragment { grant: grant(1, 1, 0), from, to }
    }

    /// How often each sample of the shard is in the model.
    fn times(trained: &Trained) -> Vec<u32> {
        let key = grant(1, 1, 0).key;
        (10..20).map(|sample| trained.now.of((key.epoch, sample))).collect()
    }

    #[test]
    fn a_sample_counts_when_the_step_that_loaded_it_is_committed() {
        let (one, key) = (holder(0), grant(1, 1, 0).key);
        let mut trained = Trained::default();
        trained.loads(one, &[fragment(0, 4)]);
        trained.commit(one, key, 0);
        trained.commit(holder(1), key, 4);
        assert_eq!(times(&trained), [0; 10], "of another worker, or not so far");
        trained.commit(one, key, 4);
        trained.commit(one, key, 4);
        assert_eq!(times(&trained), [1, 1, 1, 1, 0, 0, 0, 0, 0, 0], "all members of a group commit a step");
        // A broken step is cut anew.
        trained.loads(one, &[fragment(4, 8)]);
        trained.loads(one, &[fragment(4, 6)]);
        trained.loads(one, &[fragment(6, 10)]);
        trained.commit(one, key, 10);
        assert_eq!(times(&trained), [1; 10]);
        // Given back and trained by another worker, it is not trained by the first one too when that one goes on with the shard.
        let mut other = Trained::default();
        other.loads(one, &[fragment(0, 4)]);
        other.gave_back(one, key);
        other.loads(one, &[fragment(4, 10)]);
        other.commit(one, key, 10);
        assert_eq!(times(&other), [0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
        // Loaded and committed twice, it is there twice.
        trained.loads(holder(1), &[fragment(8, 10)]);
        trained.commit(holder(1), key, 10);
        assert_eq!(times(&trained), [1, 1, 1, 1, 1, 1, 1, 1, 2, 2]);
    }

    #[test]
    fn samples_trained_after_a_checkpoint_are_gone_with_the_model() {
        let (one, key) = (holder(0), grant(1, 1, 0).key);
        let mut trained = Trained::default();
        let train = |trained: &mut Trained, from, to| {
            trained.loads(one, &[fragment(from, to)]);
            trained.commit(one, key, to);
        };
        train(&mut trained, 0, 2);
        trained.copied(CheckpointId(1));
        train(&mut trained, 2, 4);
        trained.set_back();
        assert_eq!(times(&trained), [0; 10], "the checkpoint was not whole");
        train(&mut trained, 0, 2);
        trained.copied(CheckpointId(2));
        train(&mut trained, 2, 4);
        trained.keep(CheckpointId(2));
        assert_eq!(trained.kept().total(), 2);
        trained.set_back();
        assert_eq!(times(&trained), [1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut next = Trained::default();
        next.resumed(trained.kept());
        next.set_back();
        assert_eq!(times(&next), times(&trained));
    }

    #[test]
    fn two_models_differ_in_a_sample_unless_its_repetition_is_excused() {
        let (one, key) = (holder(0), grant(1, 1, 0).key);
        let trained = |again: bool, excused: bool| {
            let mut trained = Trained::default();
            for _ in 0..1 + u32::from(again) {
                trained.loads(one, &[fragment(0, 2)]);
                trained.commit(one, key, 2);
            }
            if excused {
                trained.excuse(grant(1, 1, 0), 2);
            }
            trained.now
        };
        let once = trained(false, false);
        assert_eq!(once.difference(&once), None);
        let text = trained(true, false).difference(&once).unwrap();
        assert!(text.starts_with("sample 10 of epoch 0 is 2 times in the model, and 1 times"), "{text}");
        assert_eq!(trained(true, true).difference(&once), None);
        assert_eq!(trained(false, true).difference(&once), None, "what may be repeated need not be");
        let text = Times::default().difference(&once).unwrap();
        assert!(text.starts_with("sample 10 of epoch 0 is 0 times in the model"), "{text}");
    }
}
