//! [`Trip`]: the part of a worker's step that is the same in every mode with servers: its orders, then pull, compute and push.

use antdt_agent::{Part, SessionState};
use antdt_core::{Acks, PlanVersion, Readiness, StepCommit};

use crate::mode::Turn;
use crate::worker::{Call, End, Reply, WorkerCore};

/// What the reply that comes next answers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum At {
    #[default]
    Nothing,
    /// A checkpoint is taken; the next step follows.
    Resting,
    Pulling,
    Computing,
    Pushing,
    /// The master is asked.
    Readying,
    /// The servers apply what counts.
    Applying,
}

/// Where a worker is on its way to the servers and back.
#[derive(Debug, Clone, Default)]
pub(crate) struct Trip {
    at: At,
}

/// What follows a reply.
pub(crate) enum Next<'r> {
    /// This call.
    Ask(Call),
    /// The next step: a checkpoint was taken.
    Begin,
    /// The gradient is on all servers.
    Pushed,
    /// The master has answered.
    Answered(&'r StepCommit),
    /// The servers have applied what counts.
    Applied,
}

impl Trip {
    fn ask(&mut self, core: &mut WorkerCore, at: At, call: Call) -> Call {
        self.at = at;
        core.call(call)
    }

    /// The call that comes before the next step, if the worker is to leave, to join again or to stand still.
    pub(crate) fn orders(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Option<Call> {
        if turn.session.state() == SessionState::Draining {
            return Some(core.over(End::Drained));
        }
        if core.is_undone(turn) {
            return Some(core.join_again(turn));
        }
        let checkpoint = turn.session.take_checkpoint()?;
        core.restart_meter(turn);
        Some(self.ask(core, At::Resting, Call::Rest(checkpoint)))
    }

    /// Sets out with the batch that is loaded.
    pub(crate) fn pull(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        core.enter(turn, Part::Communicate);
        self.ask(core, At::Pulling, Call::Pull)
    }

    /// Asks the master about the step, under this number, with this plan and these acknowledgements.
    pub(crate) fn ready(
        &mut self,
        core: &mut WorkerCore,
        turn: &mut Turn<'_>,
        number: u64,
        plan: PlanVersion,
        acks: Acks,
    ) -> Call {
        core.enter(turn, Part::BarrierWait);
        self.ask_master(core, number, plan, acks)
    }

    fn ask_master(&mut self, core: &mut WorkerCore, number: u64, plan: PlanVersion, acks: Acks) -> Call {
        let (samples, end_of_data) = (core.batch().len(), core.end_of_data());
        let readiness = Readiness { samples, end_of_data, plan, acks: acks.into_vec() };
        self.ask(core, At::Readying, Call::Ready { step: number, readiness })
    }

    /// At its own pace: asks the master, under this number, to count the push that is on all servers. The master does not keep it
    /// waiting for others.
    pub(crate) fn count(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, number: u64) -> Call {
        core.enter(turn, Part::Communicate);
        let (plan, acks) = (core.switch().applied(), core.acks_of(core.batch()));
        self.ask_master(core, number, plan, acks)
    }

    /// The push counts, and its samples are acknowledged: the servers are to apply it.
    pub(crate) fn counted(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        core.settled();
        core.report(turn, core.batch().len());
        // The plan was in force in the step that is over.
        core.note_plans(turn);
        core.set_step(core.steps() + 1);
        core.forget_batch();
        core.enter(turn, Part::Communicate);
        self.ask(core, At::Applying, Call::Apply)
    }

    pub(crate) fn answered<'r>(
        &mut self,
        core: &mut WorkerCore,
        turn: &mut Turn<'_>,
        reply: &'r Reply,
    ) -> Next<'r> {
        Next::Ask(match (std::mem::take(&mut self.at), reply) {
            (At::Resting, Reply::Rested) => {
                core.rested(turn);
                return Next::Begin;
            }
            (At::Pulling, Reply::Pulled) => {
                core.enter(turn, Part::Compute);
                self.ask(core, At::Computing, Call::Compute)
            }
            (At::Computing, Reply::Computed { samples, loss_sum }) => {
                core.set_computed(*samples, *loss_sum);
                core.enter(turn, Part::Communicate);
                let push = core.push();
                self.ask(core, At::Pushing, push)
            }
            (At::Pushing, Reply::Pushed) => return Next::Pushed,
            (At::Readying, Reply::Committed(commit)) => return Next::Answered(commit),
            (At::Applying, Reply::Applied) => return Next::Applied,
            (At::Pulling | At::Pushing | At::Readying | At::Applying, Reply::Broken) => core.join_again(turn),
            (at, reply) => core.not_an_answer(reply, &at),
        })
    }
}
