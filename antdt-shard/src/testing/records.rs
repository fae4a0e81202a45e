//! Long histories of a ledger for the suites, without a model: only the records that they leave.

use antdt_core::{Ack, FetchOutcome, Generation, Holder, Incarnation, Machine, NodeId, RequestId, Seed};

use crate::ledger::{Effect, Record, ShardLedger};
use crate::spec::DatasetSpec;

/// What a ledger wrote down in each of the steps of its life.
#[derive(Debug, Clone)]
pub(crate) struct History {
    /// The records of each step that left any.
    pub(crate) groups: Vec<Vec<Record>>,
    /// The ledger after the last step.
    #[cfg(test)]
    pub(crate) ledger: ShardLedger,
}

impl History {
    /// Three workers that fetch, acknowledge, give back, fail and die at random; now and then the ledger is set back.
    pub(crate) fn play(spec: DatasetSpec, seed: u64, steps: u32) -> Self {
        let mut rng = Seed(seed).rng();
        let mut ledger = ShardLedger::new(spec, Generation(1)).expect("a valid data set");
        let mut lives = [0_u32; 3];
        let mut held = Vec::new();
        let mut kept = ledger.snapshot();
        let mut groups = vec![drain(&mut ledger)];
        for step in 1..=u64::from(steps) {
            let index = rng.below(3) as u32;
            let holder = Holder::new(NodeId::worker(index), Incarnation(lives[index as usize]));
            let generation = ledger.generation();
            match rng.below(40) {
                0 => {
                    ledger.worker_lost(holder);
                    lives[index as usize] += 1;
                }
                1 => kept = ledger.snapshot(),
                2 if rng.below(3) == 0 => {
                    ledger.restore(&kept, generation.next()).expect("its own snapshot and a new generation");
                }
                3..22 => {
                    let fetched = ledger
                        .register(holder)
                        .ok()
                        .and_then(|_| ledger.fetch(holder, generation, RequestId(step)).ok());
                    if let Some(FetchOutcome::Granted(grant)) = fetched {
                        held.push((holder, grant));
                    }
                }
                what if !held.is_empty() => {
                    let (holder, grant) = held.swap_remove(rng.below(held.len() as u64) as usize);
                    let offset = grant.resume_at + rng.below(grant.len - grant.resume_at + 1);
                    // What a stale lease says is refused, and leaves no record.
                    let part = Ack { lease: grant.lease, offset };
                    let all = Ack { lease: grant.lease, offset: grant.len };
                    match what {
                        22..27 => drop(ledger.release(holder, &[part])),
                        27..31 => drop(ledger.fail(holder, part)),
                        31..34 => drop(ledger.ack_all(holder, &[part])),
                        _ => drop(ledger.ack_all(holder, &[all])),
                    }
                    // Some come back to a lease that they have talked about.
                    if what % 2 == 0 {
                        held.push((holder, grant));
                    }
                }
                _ => {}
            }
            groups.push(drain(&mut ledger));
        }
        groups.retain(|group| !group.is_empty());
        Self {
            groups,
            #[cfg(test)]
            ledger,
        }
    }
}

fn drain(ledger: &mut ShardLedger) -> Vec<Record> {
    let effects = std::iter::from_fn(|| ledger.poll_effect());
    let record = |effect| match effect {
        Effect::Record(record) => Some(record),
        Effect::Wake => None,
    };
    effects.filter_map(record).collect()
}

/// Data sets with every setting that changes what is written down.
#[cfg(test)]
pub(crate) fn specs() -> Vec<DatasetSpec> {
    use crate::spec::{Assignment, Epochs, OnQuarantine, Shuffle};

    let base = DatasetSpec {
        epochs: Epochs::Finite(3),
        max_data_faults: 2,
        on_quarantine: OnQuarantine::Continue { max_samples: 1_000_000 },
        ..DatasetSpec::new("history", 103, 10)
    };
    vec![
        base.clone(),
        DatasetSpec { shuffle: Shuffle::None, num_samples: 100, ..base.clone() },
        DatasetSpec { epochs: Epochs::Infinite, epoch_overlap: 2, num_samples: 31, ..base.clone() },
        DatasetSpec {
            assignment: Assignment::Static { workers: 3 },
            epochs: Epochs::Finite(9),
            num_samples: 47,
            ..base.clone()
        },
        DatasetSpec { assignment: Assignment::Static { workers: 5 }, num_samples: 23, ..base.clone() },
        DatasetSpec { on_quarantine: OnQuarantine::FailJob, max_data_faults: 1, ..base },
    ]
}
