//! Sample accounting: in every state, for each epoch and for the job, every sample is in exactly one place.

use std::collections::BTreeMap;

use antdt_core::{Counts, Epoch};

use super::book::Book;
use crate::spec::{Cut, DatasetSpec, Epochs};

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

    /// The account of a book, by counting. `most` is how many epochs may be neither done nor untouched: a book
    /// with more is refused before memory is spent on them.
    pub(super) fn count(book: &Book, most: usize) -> Result<Self, &'static str> {
        let spec = &book.spec;
        let total = spec.num_samples;
        let mut shares: Vec<_> = book.shares.iter().filter(|share| share.start < share.end).collect();
        shares.sort_by_key(|share| share.opened);
        let opened = shares.last().map_or(0, |share| share.opened);
        let behind = shares.first().map_or(0, |share| share.opened);
        if (opened - behind) as usize > most {
            return Err("an epoch that somebody has yet to open has no account");
        }

        let mut runs = Runs { spec, shorter: BTreeMap::new() };
        let mut waiting: BTreeMap<Epoch, u128> = BTreeMap::new();
        for epoch in behind..opened {
            for share in shares.iter().take_while(|share| share.opened <= epoch) {
                *waiting.entry(Epoch(epoch)).or_default() +=
                    runs.samples(Epoch(epoch), share.start, share.end);
            }
        }
        for pass in shares.iter().flat_map(|share| &share.open) {
            let todo = waiting.entry(pass.epoch()).or_default();
            for (start, end) in pass.untouched.runs() {
                *todo += runs.samples(pass.epoch(), start, end);
            }
            for (position, begun) in &pass.begun {
                *todo += runs.samples(pass.epoch(), *position, position + 1) - u128::from(begun.offset);
            }
        }
        let mut quarantined: BTreeMap<Epoch, u64> = BTreeMap::new();
        for (place, given_up) in &book.quarantined {
            *quarantined.entry(place.epoch).or_default() += given_up.len - given_up.offset;
            waiting.entry(place.epoch).or_default();
        }

        let mut account = Self::new(spec);
        account.opened = opened;
        let mut job = Counts { total: total * u64::from(opened), ..Counts::default() };
        for (epoch, todo) in waiting {
            // No position counts twice, so no epoch has more than all samples.
            let todo = u64::try_from(todo).map_err(|_| "more samples wait than there are")?;
            let quarantined = quarantined.get(&epoch).copied().unwrap_or(0);
            let left = todo.checked_add(quarantined).filter(|left| *left <= total);
            let acked = total - left.ok_or("more samples are left than there are")?;
            account.epochs.insert(epoch, Counts { total, acked, todo, doing: 0, quarantined });
            job.todo += todo;
            job.quarantined += quarantined;
        }
        job.acked = job.total - job.todo - job.quarantined;
        if let Epochs::Finite(epochs) = spec.epochs {
            let unopened = total * u64::from(epochs - opened);
            job.total += unopened;
            job.todo += unopened;
        }
        account.job = job;
        Ok(account)
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

/// Counts the samples of runs of shards.
struct Runs<'a> {
    spec: &'a DatasetSpec,
    /// Where the shorter last shard of an epoch stands: asked for each of very many runs.
    shorter: BTreeMap<Epoch, Option<u64>>,
}

impl Runs<'_> {
    fn samples(&mut self, epoch: Epoch, start: u64, end: u64) -> u128 {
        let spec = self.spec;
        if end - start == spec.shard_count() {
            return u128::from(spec.num_samples);
        }
        match &spec.cut {
            Cut::At(_) => {
                let order = spec.shard_order(epoch);
                (start..end).map(|at| u128::from(spec.shard(order.at(at)).len())).sum()
            }
            Cut::Every(len) => {
                let full = u128::from(end - start) * u128::from(*len);
                let missing = (len - spec.num_samples % len) % len;
                let find = || spec.shard_order(epoch).position_of(spec.shard_count() - 1);
                let at = *self.shorter.entry(epoch).or_insert_with(find);
                if at.is_some_and(|at| (start..end).contains(&at)) {
                    full - u128::from(missing)
                } else {
                    full
                }
            }
        }
    }
}
