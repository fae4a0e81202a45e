//! The worker's half: a step of its own model, the question for a group, the average, and the master's commit.
//!
//! A worker that [overlaps](Worker::overlapping) does so in another order: it begins to compute the gradient, averages while that is computed, and
//! applies it to the average. It asks for a partner until the gradient is there, and takes the question back then. The model
//! changes only by averages meanwhile, so what it gives to one is what the mean replaces.

use std::sync::Arc;

use antdt_agent::{Batch, Part};
use antdt_core::{
    Acks, Holder, Joined, MembershipVersion, Rank, Readiness, Standing, StepCommit, StepResult,
};

use super::Seeks;
use crate::mode::{Turn, WorkerHalf};
use crate::worker::{Call, End, Peers, Reply, WorkerCore};

/// What the reply that comes next answers.
#[derive(Debug, Clone, PartialEq, Default)]
enum At {
    /// The step of the worker's own model.
    #[default]
    Step,
    Entering,
    /// A checkpoint is taken; the next step follows.
    Resting,
    /// The master is asked for a group; beside the gradient, if that is being computed.
    Asking,
    /// The gradient that is computed beside averages is waited for.
    Finishing,
    Averaging {
        /// All workers are in the group.
        all: bool,
    },
    /// The master is told that the average is made.
    Reporting {
        all: bool,
    },
    Applying {
        all: bool,
        end: bool,
    },
}

/// The gradient of the batch that was loaded last, where it is computed beside averages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Beside {
    /// None was begun, or it is in the model.
    #[default]
    Nothing,
    /// It is being computed, of a model of before.
    Running,
    /// It is computed and not in the model.
    Done,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Worker {
    at: At,
    /// Averages run while the gradient is computed.
    overlaps: bool,
    beside: Beside,
    /// The batch that was loaded last is neither among `batches` nor given up, where averages run meanwhile.
    is_loaded: bool,
    /// The worker has a model that is no newcomer's.
    trained: bool,
    /// The model is the mean of all, and no step was taken since.
    is_mean: bool,
    /// The newest group of workers that it was told of.
    group: MembershipVersion,
    /// A call to its other members failed.
    broken: bool,
    members: Arc<[(Holder, String)]>,
    /// The newest question for a group that it asked the master, an even number.
    asked: u64,
    /// Samples of the steps that are in no committed average.
    batches: Batch,
}

impl Worker {
    /// The worker half of a mode whose averages run while the gradient is computed.
    pub(crate) fn overlapping() -> Self {
        Self { overlaps: true, ..Self::default() }
    }

    fn ask(&mut self, core: &mut WorkerCore, at: At, call: Call) -> Call {
        self.at = at;
        core.call(call)
    }

    fn begin(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if core.is_undone(turn) || turn.session.reform() {
            return core.join(self.standing());
        }
        if self.is_mean
            && let Some(checkpoint) = turn.session.take_checkpoint()
        {
            core.restart_meter(turn);
            return self.ask(core, At::Resting, Call::Rest(checkpoint));
        }
        self.is_mean = false;
        self.at = At::Step;
        core.offer_plan(turn);
        core.switch().apply_now();
        core.take_batch(core.patience())
    }

    /// The step is taken: which group does it go to?
    fn ask_for_group(&mut self, core: &mut WorkerCore, turn: &Turn<'_>, seeks: Seeks) -> Call {
        // The shard service was restarted and gave a lease of these samples to another worker, which trains them again.
        if !core.holds(&self.batches) {
            return core.call(Call::Revert);
        }
        core.enter(turn, Part::BarrierWait);
        self.question(core, seeks)
    }

    fn question(&mut self, core: &mut WorkerCore, seeks: Seeks) -> Call {
        self.asked = seeks.next(self.asked);
        let (step, readiness) = (self.asked, self.readiness(core, Acks::new(), 0));
        let call = match self.beside {
            Beside::Running => Call::ReadyBeside { step, readiness },
            Beside::Nothing | Beside::Done => Call::Ready { step, readiness },
        };
        self.ask(core, At::Asking, call)
    }

    /// Beside the gradient: is there a partner?
    fn ask_beside(&mut self, core: &mut WorkerCore) -> Call {
        let seeks = if self.batches.is_empty() { Seeks::Others } else { Seeks::Partner };
        self.question(core, seeks)
    }

    fn readiness(&self, core: &mut WorkerCore, acks: Acks, samples: u64) -> Readiness {
        let (end_of_data, plan) = (core.end_of_data(), core.switch().ready());
        Readiness { samples, end_of_data, plan, acks: acks.into_vec() }
    }

    /// An average is over, or there is none now. Beside a gradient the worker is there for others `again`, until that is computed.
    fn averaged(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, again: bool) -> Call {
        match self.beside {
            Beside::Running if again => self.ask_beside(core),
            Beside::Running => self.ask(core, At::Finishing, Call::Finish),
            Beside::Done => self.ask(core, At::Step, Call::Advance),
            Beside::Nothing => self.next(core, turn),
        }
    }

    /// The worker is in a group, or done with a checkpoint: it takes a step, unless it computes a gradient already.
    fn begin_or_go_on(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, again: bool) -> Call {
        match self.beside {
            Beside::Nothing => self.begin(core, turn),
            Beside::Running | Beside::Done => self.averaged(core, turn, again),
        }
    }

    /// The average is made, and the master is told so.
    fn combined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, all: bool) -> Call {
        if self.beside != Beside::Running {
            core.enter(turn, Part::BarrierWait);
        }
        let (acks, samples) = (core.acks_of(&self.batches), self.batches.len());
        let readiness = self.readiness(core, acks, samples);
        self.ask(core, At::Reporting { all }, Call::Ready { step: self.asked + 1, readiness })
    }

    /// The average counts: all members have it, and the master has acknowledged its samples.
    fn applied(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, all: bool, end: bool) -> Call {
        core.settled_batch(&std::mem::take(&mut self.batches));
        self.is_mean = all;
        if end {
            self.give_batch_up(core);
            core.report_computed(turn);
            return core.over(End::EndOfData { trained: true });
        }
        if self.beside == Beside::Nothing {
            return self.next(core, turn);
        }
        if all && let Some(checkpoint) = turn.session.take_checkpoint() {
            core.restart_meter(turn);
            return self.ask(core, At::Resting, Call::Rest(checkpoint));
        }
        // After one with all there is nothing new to average, alone least of all.
        self.averaged(core, turn, !all)
    }

    /// The master names the group.
    fn told(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, go: &StepCommit) -> Call {
        if go.end {
            // It is to leave, which the master may know before it does: what no other worker has goes back.
            self.give_batch_up(core);
            core.abort_batch(&std::mem::take(&mut self.batches));
            return core.over(End::Drained);
        }
        if !go.counted {
            return self.averaged(core, turn, false);
        }
        let is_in = |(holder, _): &(Holder, String)| go.contributors.contains_key(holder);
        let ranks: Vec<Rank> = self
            .members
            .iter()
            .zip(0..)
            .filter(|(member, _)| is_in(member))
            .map(|(_, rank)| Rank(rank))
            .collect();
        if self.beside != Beside::Running {
            core.enter(turn, Part::Communicate);
        }
        let all = ranks.len() == self.members.len();
        let peers = Peers::Apart { group: go.step, ranks };
        let (step, samples, acks) = (core.steps(), self.batches.len(), core.acks_of(&self.batches));
        self.ask(core, At::Averaging { all }, Call::Combine { step, samples, acks, peers })
    }

    /// What was loaded last is read again, unless it is in the model.
    fn give_batch_up(&mut self, core: &mut WorkerCore) {
        if std::mem::take(&mut self.is_loaded) {
            core.abort();
        }
    }

    /// The step is over.
    fn next(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        core.report_computed(turn);
        core.note_plans(turn);
        core.set_idle(core.batch().is_empty());
        core.set_step(core.steps() + 1);
        self.begin(core, turn)
    }
}

impl WorkerHalf for Worker {
    fn standing(&self) -> Standing {
        // Models differ anyway: any that has been trained is as good as another one for those that come.
        let applied = self.trained.then(|| StepResult { step: 0, contributions: [].into() });
        Standing { group: self.group, applied, prepared: None, broken: self.broken }
    }

    fn knows(&self, joined: &Joined) -> bool {
        !joined.finished && joined.membership <= self.group
    }

    fn rolled_back(&mut self) {
        *self = Self { group: self.group, asked: self.asked, overlaps: self.overlaps, ..Self::default() };
    }

    fn joined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: &Joined) -> Call {
        if joined.finished {
            return core.over(End::EndOfData { trained: self.trained && self.is_mean });
        }
        turn.session.regrouped();
        (self.group, self.broken) = (joined.membership, false);
        self.members = Arc::clone(&joined.members);
        self.is_mean = false;
        if !self.trained {
            core.set_step(0);
        }
        core.switch().offer(joined.plan.clone());
        core.switch().apply_now();
        self.ask(core, At::Entering, Call::Enter(Box::new(joined.clone())))
    }

    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if core.batch().is_empty() {
            core.set_computed(0, 0.0);
            self.is_loaded = false;
            // Idle workers that all come and go would never meet; the data of the next epoch may wait for their samples.
            let waits = !self.overlaps || !self.batches.is_empty();
            let seeks = if waits { Seeks::Partner } else { Seeks::AtOnce };
            return self.ask_for_group(core, turn, seeks);
        }
        if !self.overlaps {
            core.enter(turn, Part::Compute);
            return core.call(Call::Compute);
        }
        self.is_loaded = true;
        // Here, because the steps that are undone must not be in the model that the gradient is of.
        if !core.holds(&self.batches) {
            return core.call(Call::Revert);
        }
        if core.is_last_piece() {
            return core.compute_beside(turn);
        }
        core.enter(turn, Part::Compute);
        core.call(Call::Compute)
    }

    fn before_fault(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Option<Call> {
        // A lease that goes back says how far it is done; samples that wait for an average are not.
        if self.batches.is_empty() {
            return None;
        }
        self.is_loaded = false;
        core.abort();
        core.set_computed(0, 0.0);
        Some(self.ask_for_group(core, turn, Seeks::Partner))
    }

    fn answered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, reply: &Reply) -> Call {
        match (std::mem::take(&mut self.at), reply) {
            (At::Entering, Reply::Entered) => {
                self.trained = true;
                core.note_plans(turn);
                self.begin_or_go_on(core, turn, true)
            }
            (At::Resting, Reply::Rested) => {
                core.rested(turn);
                self.begin_or_go_on(core, turn, false)
            }
            (At::Step, Reply::Computed { samples, loss_sum }) => {
                core.set_computed(*samples, *loss_sum);
                core.call(Call::Advance)
            }
            (At::Step, Reply::Computing) => {
                self.beside = Beside::Running;
                self.ask_beside(core)
            }
            (at @ (At::Asking | At::Finishing), Reply::Computed { samples, loss_sum })
                if self.beside == Beside::Running =>
            {
                core.set_computed(*samples, *loss_sum);
                self.beside = Beside::Done;
                match at {
                    // It takes the question back.
                    At::Asking => self.question(core, Seeks::AtOnce),
                    _ => self.averaged(core, turn, false),
                }
            }
            (At::Step, Reply::Advanced) => {
                (self.beside, self.is_loaded, self.is_mean) = (Beside::Nothing, false, false);
                core.collect(&mut self.batches);
                if self.overlaps {
                    self.next(core, turn)
                } else {
                    self.ask_for_group(core, turn, Seeks::Partner)
                }
            }
            (At::Step, Reply::Reverted) => {
                self.give_batch_up(core);
                core.abort_batch(&std::mem::take(&mut self.batches));
                core.restart_meter(turn);
                core.take_batch(core.patience())
            }
            (At::Asking, Reply::Committed(go)) => self.told(core, turn, go),
            (At::Averaging { all }, Reply::Combined(_)) => self.combined(core, turn, all),
            (At::Reporting { all }, Reply::Committed(commit)) => {
                self.ask(core, At::Applying { all, end: commit.end }, Call::Apply)
            }
            (At::Applying { all, end }, Reply::Applied) => self.applied(core, turn, all, end),
            // The average is void; the steps stay in the worker's own model for the next one.
            (
                at @ (At::Entering | At::Asking | At::Averaging { .. } | At::Reporting { .. }),
                Reply::Broken,
            ) => {
                core.restart_meter(turn);
                // In the other calls it is the master that says so.
                self.broken = matches!(at, At::Entering | At::Averaging { .. });
                core.join(self.standing())
            }
            (at, reply) => core.not_an_answer(reply, &at),
        }
    }

    fn fed(&mut self, core: &mut WorkerCore, _turn: &mut Turn<'_>) -> Call {
        core.fail(format!("the shard service answered what was not asked, while {:?}", self.at))
    }

    fn clone_box(&self) -> Box<dyn WorkerHalf> {
        Box::new(self.clone())
    }
}
