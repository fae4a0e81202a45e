//! Checkpoints of a simulated job: one worker has the model copied and the ledger cut, the copies are written, and what is whole
//! then is what the job goes back to.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{CheckpointId, Counts, InvalidValue, JobTime};
use antdt_job::limits::CALL_TIMEOUT;
use antdt_job::{HeadAnswer, HeadEvent, Reply};
use antdt_shard::{Cut, DatasetSpec, LedgerSnapshot};

use super::life::LifeId;
use super::{Due, MESSAGE_BYTES, World, dataset};
use crate::Setup;
use crate::happening::{Happening, Observer};

/// How long it takes to copy the model.
const COPY_TIME: Duration = Duration::from_millis(20);

/// How long it takes to write the copies.
const WRITE_TIME: Duration = Duration::from_millis(300);

/// How long the ledger may take to have the samples of the model.
const ACKS_LIMIT: Duration = Duration::from_secs(10);

/// How often the master looks whether it has them.
const LOOK: Duration = Duration::from_millis(5);

/// A copy of the model, for which the ledger is to be cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Copied {
    keeper: LifeId,
    /// Call of the keeper that the cut answers.
    call: u64,
    checkpoint: CheckpointId,
    /// Samples in the model.
    samples: u64,
    /// The ledger has them by then.
    until: JobTime,
}

/// The model and the ledger at one moment: what a job goes back to, and what [`World::resumed`] continues with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moment {
    pub(super) ledger: LedgerSnapshot,
    /// Samples in the model.
    pub(super) samples: u64,
    pub(super) checkpoint: Option<CheckpointId>,
    /// Samples of a shard.
    pub(super) shard_len: u64,
}

impl Moment {
    /// Returns the number of the checkpoint; `None` for the start of a job.
    pub const fn checkpoint(&self) -> Option<CheckpointId> {
        self.checkpoint
    }

    /// Returns the number of samples in each state by the ledger.
    pub const fn counts(&self) -> Counts {
        self.ledger.counts()
    }

    /// Returns these settings for a job that continues from here: its data are cut into shards as before, however
    /// many workers it has.
    #[must_use]
    pub fn settings(&self, setup: Setup) -> Setup {
        Setup { shard_len: Some(self.shard_len), ..setup }
    }

    /// The number of the first checkpoint after this one.
    pub(super) fn next_checkpoint(&self) -> CheckpointId {
        CheckpointId(self.checkpoint.map_or(1, |checkpoint| checkpoint.0 + 1))
    }

    /// The same for a new job.
    pub(super) fn continued(&self, spec: &DatasetSpec) -> Result<Self, InvalidValue> {
        Ok(Self { ledger: self.ledger.continued(spec.clone())?, ..self.clone() })
    }
}

/// Samples of a shard of this job.
pub(super) fn shard_len(setup: &Setup) -> u64 {
    match dataset(setup).cut {
        Cut::Every(len) => len,
        Cut::At(_) => unreachable!("a simulated job cuts its data into shards of one length"),
    }
}

/// The checkpoints of a job that takes some.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// Those that are being written.
    open: BTreeMap<CheckpointId, Moment>,
    /// The newest whole one.
    pub(super) newest: Option<Moment>,
    /// The last step that the servers have committed, and the samples in their parameters.
    committed: (Option<u64>, u64),
    /// Samples in the model that the job began with, or went back to.
    restored: u64,
}

impl Checkpoints {
    /// Those of a job that goes on from a checkpoint of another.
    pub(super) fn after(newest: Moment) -> Self {
        let samples = newest.samples;
        Self { committed: (None, samples), restored: samples, newest: Some(newest), ..Self::default() }
    }

    /// The servers have committed a step.
    pub(super) fn committed(&mut self, step: u64, samples: u64) {
        let (last, all) = &mut self.committed;
        if last.is_none_or(|last| last < step) {
            (*last, *all) = (Some(step), *all + samples);
        }
    }

    /// The model is one with so many samples again. What is being written is of before.
    pub(super) fn set_back(&mut self, samples: u64) {
        self.open.clear();
        (self.committed, self.restored) = ((None, samples), samples);
    }

    /// Samples in the model that the job began with, or went back to.
    pub(super) const fn restored(&self) -> u64 {
        self.restored
    }

    /// The master ends: no process knows any more of the checkpoint that was being written.
    pub(super) fn forget(&mut self) {
        self.open.clear();
    }
}

impl<O: Observer> World<O> {
    /// A worker begins at `at` to copy its model, or has the servers do so.
    pub(super) fn copy_model(&mut self, id: LifeId, at: JobTime, checkpoint: CheckpointId) {
        let call = self.lives[id].call;
        self.queue.push(at + COPY_TIME, Due::Copy(id, call, checkpoint));
    }

    /// The copy exists.
    pub(super) fn model_copied(&mut self, id: LifeId, call: u64, checkpoint: CheckpointId) {
        if !self.is_under_way(id, call) {
            return;
        }
        let life = &self.lives[id];
        let (holder, own) = (life.holder, life.samples);
        let samples = if self.setup.servers > 0 { self.checkpoints.committed.1 } else { own };
        self.saw(&Happening::Copied(holder, checkpoint));
        let until = self.now + ACKS_LIMIT;
        self.cut_ledger(Copied { keeper: id, call, checkpoint, samples, until });
    }

    /// The ledger is to be cut when it has exactly the samples of the model.
    pub(super) fn cut_ledger(&mut self, copied: Copied) {
        let Copied { keeper: id, call, checkpoint, samples, until } = copied;
        if self.put_off(id, Due::Cut(copied)) || self.lives[id].call != call {
            return;
        }
        if self.now < self.master_paused_until {
            self.queue.push(self.master_paused_until, Due::Cut(copied));
            return;
        }
        // The caller notices after a while, and asks again.
        if self.next_master().is_some() || self.travel(id, MESSAGE_BYTES, true).is_none() {
            self.queue.push(self.now + CALL_TIMEOUT, Due::Cut(copied));
            return;
        }
        let acked = self.ledger.counts().acked;
        let capabilities = self.setup.sync.capabilities();
        let servers = |world: &Self| {
            let servers = &world.lives[id].servers;
            servers.len() == world.setup.servers as usize
                && servers.iter().all(|server| !world.lives[*server].is_dead())
        };
        let taken = if self.setup.servers > 0 && !servers(self) {
            Err("a server has ended".to_owned())
        } else if acked == samples || !capabilities.steps_in_common() {
            Ok(())
        } else if self.now < until {
            self.queue.push(self.now + LOOK, Due::Cut(copied));
            return;
        } else {
            Err(format!("the model has {samples} samples and the ledger {acked}"))
        };
        let is_taken = taken.is_ok();
        if is_taken {
            self.saw(&Happening::Cut(checkpoint));
            let (ledger, shard_len) = (self.ledger.snapshot(), shard_len(&self.setup));
            let moment = Moment { ledger, samples, checkpoint: Some(checkpoint), shard_len };
            self.checkpoints.open.insert(checkpoint, moment);
            if self.setup.servers == 0 {
                self.lives[id].session.writing_begins();
            }
            self.queue.push(self.now + WRITE_TIME, Due::Written(id, checkpoint));
        }
        self.ask_head(HeadEvent::Cut { checkpoint, taken });
        if self.lives[id].last != Some(checkpoint) {
            if self.setup.servers > 0 && is_taken {
                // Whether the job hands its servers over, for which it stands still.
                let holder = self.lives[id].holder;
                self.park(id, HeadEvent::Rest { holder, checkpoint });
            } else {
                self.send_reply(self.now, id, call, Reply::Rested);
            }
        } else if !is_taken {
            self.leave(id);
        }
    }

    /// The copies are written, if their writer still lives.
    pub(super) fn written(&mut self, id: LifeId, checkpoint: CheckpointId) {
        if self.setup.servers == 0 && self.put_off(id, Due::Written(id, checkpoint)) {
            return;
        }
        if self.master_away(Due::Written(id, checkpoint)) {
            return;
        }
        if self.setup.servers == 0 {
            self.lives[id].session.writing_ends();
        }
        let open = self.checkpoints.open.remove(&checkpoint);
        // One that was begun later may be whole already.
        let newest = self.checkpoints.newest.as_ref().and_then(|moment| moment.checkpoint);
        let due = open.filter(|_| newest < Some(checkpoint));
        if let Some(moment) = due
            && matches!(self.ask_head(HeadEvent::Stored { checkpoint }), HeadAnswer::Noted)
        {
            self.checkpoints.newest = Some(moment);
            self.saw(&Happening::Kept(checkpoint));
            let outcome = Ok(format!("checkpoint {checkpoint}"));
            self.ask_head(HeadEvent::Kept { checkpoint, outcome });
        }
        let life = &self.lives[id];
        if !life.is_dead() && life.last == Some(checkpoint) {
            self.leave(id);
        }
    }
}
