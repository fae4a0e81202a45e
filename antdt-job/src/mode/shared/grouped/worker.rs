//! The worker's half: a step of its own model, the question for a group, the average, and the master's commit.

use std::sync::Arc;

use antdt_agent::{Batch, Part};
use antdt_core::{
    Acks, Holder, Joined, MembershipVersion, Rank, Readiness, Standing, StepCommit, StepResult,
};

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
    /// The master is asked for a group.
    Asking,
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

#[derive(Debug, Clone, Default)]
pub(crate) struct Worker {
    at: At,
    /// The worker has a model that is no newcomer's.
    trained: bool,
    /// The model is the mean of all, and no step was taken since.
    is_mean: bool,
    /// The newest group of workers that it was told of.
    group: MembershipVersion,
    members: Arc<[(Holder, String)]>,
    /// Questions that it asked the master.
    asked: u64,
    /// Samples of the steps that are in no committed average.
    batches: Batch,
}

impl Worker {
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
    fn ask_for_group(&mut self, core: &mut WorkerCore, turn: &Turn<'_>) -> Call {
        // The shard service was restarted and gave a lease of these samples to another worker, which trains them again.
        if !core.holds(&self.batches) {
            return core.call(Call::Revert);
        }
        core.enter(turn, Part::BarrierWait);
        self.asked += 1;
        let call = self.question(core, 2 * self.asked, Acks::new(), 0);
        self.ask(core, At::Asking, call)
    }

    fn question(&self, core: &mut WorkerCore, step: u64, acks: Acks, samples: u64) -> Call {
        let (end_of_data, plan) = (core.end_of_data(), core.switch().ready());
        Call::Ready { step, readiness: Readiness { samples, end_of_data, plan, acks: acks.into_vec() } }
    }

    /// The master names the group.
    fn told(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, go: &StepCommit) -> Call {
        if go.end {
            // It is to leave, which the master may know before it does: what no other worker has goes back.
            core.abort_batch(&std::mem::take(&mut self.batches));
            return core.over(End::Drained);
        }
        if !go.counted {
            return self.next(core, turn);
        }
        let is_in = |(holder, _): &(Holder, String)| go.contributors.contains_key(holder);
        let ranks: Vec<Rank> = self
            .members
            .iter()
            .zip(0..)
            .filter(|(member, _)| is_in(member))
            .map(|(_, rank)| Rank(rank))
            .collect();
        core.enter(turn, Part::Communicate);
        let all = ranks.len() == self.members.len();
        let peers = Peers::Apart { group: go.step, ranks };
        let (step, samples, acks) = (core.steps(), self.batches.len(), core.acks_of(&self.batches));
        self.ask(core, At::Averaging { all }, Call::Combine { step, samples, acks, peers })
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
        Standing { group: self.group, applied, prepared: None }
    }

    fn knows(&self, joined: &Joined) -> bool {
        !joined.finished && joined.membership <= self.group
    }

    fn rolled_back(&mut self) {
        *self = Self { group: self.group, asked: self.asked, ..Self::default() };
    }

    fn joined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: &Joined) -> Call {
        if joined.finished {
            return core.over(End::EndOfData { trained: self.trained && self.is_mean });
        }
        turn.session.regrouped();
        self.group = joined.membership;
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
            return self.ask_for_group(core, turn);
        }
        core.enter(turn, Part::Compute);
        core.call(Call::Compute)
    }

    fn before_fault(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Option<Call> {
        // A lease that goes back says how far it is done; samples that wait for an average are not.
        if self.batches.is_empty() {
            return None;
        }
        core.abort();
        core.set_computed(0, 0.0);
        Some(self.ask_for_group(core, turn))
    }

    fn answered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, reply: &Reply) -> Call {
        match (std::mem::take(&mut self.at), reply) {
            (At::Entering, Reply::Entered) => {
                self.trained = true;
                core.note_plans(turn);
                self.begin(core, turn)
            }
            (At::Resting, Reply::Rested) => {
                // Standing still is no work.
                core.restart_meter(turn);
                self.begin(core, turn)
            }
            (At::Step, Reply::Computed { samples, loss_sum }) => {
                core.set_computed(*samples, *loss_sum);
                core.call(Call::Advance)
            }
            (At::Step, Reply::Advanced) => {
                core.collect(&mut self.batches);
                self.ask_for_group(core, turn)
            }
            (At::Step, Reply::Reverted) => {
                core.abort_batch(&std::mem::take(&mut self.batches));
                core.restart_meter(turn);
                core.take_batch(core.patience())
            }
            (At::Asking, Reply::Committed(go)) => self.told(core, turn, go),
            (At::Averaging { all }, Reply::Combined(_)) => {
                core.enter(turn, Part::BarrierWait);
                let (acks, samples) = (core.acks_of(&self.batches), self.batches.len());
                let call = self.question(core, 2 * self.asked + 1, acks, samples);
                self.ask(core, At::Reporting { all }, call)
            }
            (At::Reporting { all }, Reply::Committed(commit)) => {
                self.ask(core, At::Applying { all, end: commit.end }, Call::Apply)
            }
            // The average counts: all members have it, and the master has acknowledged its samples.
            (At::Applying { all, end }, Reply::Applied) => {
                core.settled_batch(&std::mem::take(&mut self.batches));
                self.is_mean = all;
                if end {
                    core.report_computed(turn);
                    return core.over(End::EndOfData { trained: true });
                }
                self.next(core, turn)
            }
            // The average is void; the steps stay in the worker's own model for the next one.
            (At::Entering | At::Asking | At::Averaging { .. } | At::Reporting { .. }, Reply::Broken) => {
                core.restart_meter(turn);
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
