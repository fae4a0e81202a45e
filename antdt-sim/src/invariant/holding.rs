//! What a worker has to take batches from, by what it was told and what it did: the notes that the checker of batches takes.

use std::collections::BTreeMap;

use antdt_agent::MicroBatch;
use antdt_core::{AckOutcome, Acks, Held, Holder, LeaseId, RollbackId, ShardKey};
use antdt_job::{Call, Reply};

/// The shards of one worker.
#[derive(Debug, Default)]
pub(super) struct Holding {
    /// The newest rollback that the worker was let in after.
    pub(super) rollback: RollbackId,
    /// The length of each shard, and how much of it is part of the model.
    shards: BTreeMap<ShardKey, (u64, u64)>,
    /// Names of the leases on them, those of before a restart of the service too.
    names: BTreeMap<LeaseId, ShardKey>,
    /// Parts of shards, up to here, in the batch that is out.
    batch: Vec<(ShardKey, u64)>,
    /// Parts of shards, up to here, in the worker's own model and not yet in an average.
    advanced: BTreeMap<ShardKey, u64>,
    /// What the call that is out acknowledges, and what it presents.
    acks: Acks,
    held: Vec<Held>,
    /// Leases that it was asked to give back by the last answer, if that answer asked for any.
    recalled: Option<Vec<LeaseId>>,
    /// A sample could not be read: the next batch is empty.
    failed: bool,
}

impl Holding {
    /// Nothing, of a worker that was let in after this rollback.
    pub(super) fn after(rollback: RollbackId) -> Self {
        Self { rollback, ..Self::default() }
    }

    /// Samples that it holds and that are in no model; 0 if it goes on without a batch this time.
    pub(super) fn left(&self) -> u64 {
        let left = |(key, (len, committed)): (&ShardKey, &(u64, u64))| {
            len - self.advanced.get(key).map_or(*committed, |to| *to.max(committed))
        };
        if self.failed { 0 } else { self.shards.iter().map(left).sum() }
    }

    /// The worker, which is `holder`, is told something.
    pub(super) fn replied(&mut self, holder: Holder, reply: &Reply) {
        self.recalled = None;
        match reply {
            Reply::Exchanged(exchanged) => {
                for (ack, outcome) in self.acks.iter().zip(&exchanged.outcomes) {
                    if *outcome == AckOutcome::StaleLease {
                        self.names.remove(&ack.lease).map(|key| self.shards.remove(&key));
                    }
                }
                for grant in exchanged.grants() {
                    self.names.insert(grant.lease, grant.key);
                    self.shards.entry(grant.key).or_insert((grant.len, grant.resume_at.min(grant.len)));
                }
                self.recalled = (!exchanged.recalled.is_empty()).then(|| exchanged.recalled.clone());
            }
            Reply::Registered(registered) => {
                for (held, adopted) in self.held.iter().zip(&registered.adopted) {
                    match adopted {
                        Some(grant) => drop(self.names.insert(grant.lease, held.key)),
                        None => drop(self.shards.remove(&held.key)),
                    }
                }
            }
            Reply::Applied => self.commit(),
            Reply::Unreadable { .. } => self.batch.clear(),
            Reply::Committed(commit) if commit.contributors.contains_key(&holder) => self.commit(),
            _ => {}
        }
        self.acks.clear();
        self.held.clear();
    }

    /// And does something.
    ///
    /// # Errors
    /// If it gives back what it was not asked for.
    pub(super) fn called(&mut self, call: &Call) -> Result<(), String> {
        match call {
            Call::Exchange { acks, .. } => self.acks.clone_from(acks),
            Call::Register(held) => self.held.clone_from(held),
            Call::Release(acks) => {
                let asked = self.recalled.take();
                for ack in acks {
                    if asked.as_ref().is_some_and(|asked| !asked.contains(&ack.lease)) {
                        return Err(format!("gives lease {} back, which it was not asked for", ack.lease));
                    }
                    self.give_up(ack.lease);
                }
            }
            Call::Fail { at, .. } => {
                self.give_up(at.lease);
                self.failed = true;
            }
            Call::Revert => self.advanced.clear(),
            Call::Advance => self.advanced.extend(self.batch.drain(..)),
            Call::Load(batch) | Call::LoadPiece(batch, MicroBatch { index: 0, .. }) => {
                self.failed = false;
                self.batch.clear();
                self.batch.extend(batch.fragments.iter().map(|part| (part.grant.key, part.to)));
            }
            _ => {}
        }
        Ok(())
    }

    fn give_up(&mut self, lease: LeaseId) {
        if let Some(key) = self.names.remove(&lease) {
            self.shards.remove(&key);
        }
    }

    /// The batch that is out is part of the model.
    fn commit(&mut self) {
        for (key, to) in std::mem::take(&mut self.advanced).into_iter().chain(self.batch.drain(..)) {
            if let Some((len, committed)) = self.shards.get_mut(&key) {
                *committed = to.max(*committed);
                if committed >= len {
                    self.shards.remove(&key);
                }
            }
        }
    }
}
