//! The worker's half: pull, compute, push, and wait for the master's word.

use antdt_core::{Joined, StepCommit};

use crate::mode::shared::RETRIES;
use crate::mode::shared::trip::{Next, Trip};
use crate::mode::{Turn, WorkerHalf};
use crate::worker::{Call, End, Reply, WorkerCore};

#[derive(Debug, Clone, Default)]
pub(crate) struct Worker {
    trip: Trip,
    /// Whether a step may be committed without this worker's push, unless the plan in force says so.
    may_come_late: bool,
    /// Times in a row that its push came too late.
    late: u32,
    /// Steps that it takes without samples, after it gave some back.
    sits_out: u64,
}

impl Worker {
    /// A worker without whose push no step is committed while it lives, unless a plan says so.
    pub(crate) fn counted_always() -> Self {
        Self::default()
    }

    /// A worker whose push may come too late, and is then in no step.
    pub(crate) fn that_may_come_late() -> Self {
        Self { may_come_late: true, ..Self::default() }
    }

    fn begin(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if let Some(call) = self.trip.orders(core, turn) {
            return call;
        }
        core.offer_plan(turn);
        if self.sits_out > 0 {
            self.sits_out -= 1;
            return core.take_nothing();
        }
        core.take_batch(core.patience())
    }

    fn ready(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        let (plan, acks) = (core.switch().ready(), core.batch().acks());
        self.trip.ready(core, turn, core.steps(), plan, acks)
    }

    /// The master committed the step, and acknowledged the samples that are in it.
    fn committed(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, commit: &StepCommit) -> Call {
        let is_late = !core.batch().is_empty() && !commit.counted;
        // After a plan that names backups, each one does: with 0 of them, too, older steps may have been committed without this one.
        if is_late && !self.may_come_late && core.switch().backups().is_none() {
            return core.fail(format!("step {} was committed without this worker's push", commit.asked));
        }
        core.report(turn, core.batch().len());
        if is_late {
            core.abort();
            self.late += 1;
        } else if !core.batch().is_empty() {
            core.settled();
            self.late = 0;
        }
        core.set_idle(commit.samples == 0);
        core.set_step(commit.step + 1);
        if let Some(version) = commit.apply {
            core.switch().agreed(version);
        }
        core.note_plans(turn);
        if commit.end {
            return core.over(End::EndOfData { trained: true });
        }
        if self.late > RETRIES {
            self.late = 0;
            // Until another worker has asked for a shard, it gets none: it would be given the same one again.
            self.sits_out = core.batches_of_a_shard() + 1;
            if let Some(call) = core.give_back() {
                return core.feed(call);
            }
        }
        self.begin(core, turn)
    }
}

impl WorkerHalf for Worker {
    fn rolled_back(&mut self) {
        *self = Self { may_come_late: self.may_come_late, ..Self::default() };
    }

    fn joined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: &Joined) -> Call {
        core.enter_with_servers(turn, joined);
        if joined.finished { core.over(End::EndOfData { trained: true }) } else { self.begin(core, turn) }
    }

    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if core.batch().is_empty() {
            core.set_computed(0, 0.0);
            return self.ready(core, turn);
        }
        self.trip.pull(core, turn)
    }

    fn answered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, reply: &Reply) -> Call {
        match self.trip.answered(core, turn, reply) {
            Next::Ask(call) => call,
            Next::Begin => self.begin(core, turn),
            Next::Pushed => self.ready(core, turn),
            Next::Answered(commit) => self.committed(core, turn, commit),
            Next::Applied => core.not_an_answer(reply, &self.trip),
        }
    }

    /// The leases of samples that came too late are given back.
    fn fed(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        self.begin(core, turn)
    }

    fn clone_box(&self) -> Box<dyn WorkerHalf> {
        Box::new(self.clone())
    }
}
