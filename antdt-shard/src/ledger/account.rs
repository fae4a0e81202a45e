//! Sample accounting: in every state, for each epoch and for the job, every sample is in exactly one place.

use std::collections::BTreeMap;

use antdt_core::{Counts, Epoch};

use crate::spec::{DatasetSpec, Epochs};

/// Where samples go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Move {
    /// A grant: from todo to doing.
    Grant,
    /// An ack: from doing to acknowledged.
    Ack,
    /// An ack in the log, which does not say what was granted: from todo to acknowledged.
    Replay,
    /// A lease that ends: from doing to todo.
    Return,
    /// A quarantine: from doing to quarantined.
    Quarantine,
}

/// The counts of the job and of those epochs that are not simply "all done" or "not begun".
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    num_samples: u64,
    pub(super) job: Counts,
    pub(super) opened: u32,
    limit: u32,
    // Epochs that are open and not acknowledged in full.
    pub(super) epochs: BTreeMap<Epoch, Counts>,
}

impl Account {
    pub(crate) fn new(spec: &DatasetSpec) -> Self {
        let total = match spec.epochs {
            Epochs::Finite(epochs) => spec.num_samples * u64::from(epochs),
            Epochs::Infinite => 0,
        };
        Self {
            num_samples: spec.num_samples,
            job: Counts { total, todo: total, ..Counts::default() },
            opened: 0,
            limit: spec.epoch_limit(),
            epochs: BTreeMap::new(),
        }
    }

    /// The same account where there are another number of epochs, of which none that has begun is left out.
    pub(crate) fn for_epochs(&self, spec: &DatasetSpec) -> Self {
        let mut account = Self { limit: spec.epoch_limit(), ..self.clone() };
        if let Epochs::Finite(epochs) = spec.epochs {
            account.job.total = self.num_samples * u64::from(epochs);
            account.job.todo = account.job.total - (self.job.total - self.job.todo);
        }
        account
    }

    pub(crate) const fn job(&self) -> Counts {
        self.job
    }

    /// Counts of one epoch; `None` if the job has no such epoch.
    pub(crate) fn epoch(&self, epoch: Epoch) -> Option<Counts> {
        if epoch.0 >= self.limit {
            return None;
        }
        let total = self.num_samples;
        Some(match self.epochs.get(&epoch) {
            Some(counts) => *counts,
            None if epoch.0 < self.opened => Counts { total, acked: total, ..Counts::default() },
            None => Counts { total, todo: total, ..Counts::default() },
        })
    }

    /// Some share has opened an epoch.
    pub(crate) fn open(&mut self, epoch: Epoch, spec: &DatasetSpec) {
        if epoch.0 < self.opened {
            return;
        }
        self.opened = epoch.0 + 1;
        let total = self.num_samples;
        self.epochs.insert(epoch, Counts { total, todo: total, ..Counts::default() });
        if spec.epochs == Epochs::Infinite {
            self.job.total += total;
            self.job.todo += total;
        }
    }

    /// Moves samples of an epoch that is open.
    pub(crate) fn shift(&mut self, epoch: Epoch, to: Move, samples: u64) {
        let counts =
            self.epochs.get_mut(&epoch).expect("samples move only in an epoch with unacknowledged samples");
        for counts in [&mut self.job, &mut *counts] {
            let (from, into) = match to {
                Move::Grant => (&mut counts.todo, &mut counts.doing),
                Move::Ack => (&mut counts.doing, &mut counts.acked),
                Move::Replay => (&mut counts.todo, &mut counts.acked),
                Move::Return => (&mut counts.doing, &mut counts.todo),
                Move::Quarantine => (&mut counts.doing, &mut counts.quarantined),
            };
            *from -= samples;
            *into += samples;
        }
        if matches!(to, Move::Ack | Move::Replay) && counts.acked == counts.total {
            self.epochs.remove(&epoch);
        }
    }
}
