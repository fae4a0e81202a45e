//! The worker's half: pull, compute, push, and wait for the master's word.

use antdt_agent::{Part, SessionState};
use antdt_core::{Joined, Readiness, StepCommit};

use crate::mode::{Turn, WorkerHalf};
use crate::worker::{Call, End, Reply, WorkerCore};

/// What the reply that comes next answers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum At {
    #[default]
    Nothing,
    Pulling,
    Computing,
    Pushing,
    Readying,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Worker {
    at: At,
}

impl Worker {
    fn ask(&mut self, core: &mut WorkerCore, at: At, call: Call) -> Call {
        self.at = at;
        core.call(call)
    }

    fn begin(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if turn.session.state() == SessionState::Draining {
            return core.over(End::Drained);
        }
        core.offer_plan(turn);
        core.take_batch(core.patience())
    }

    fn ready(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        core.enter(turn, Part::BarrierWait);
        let readiness = Readiness {
            samples: core.batch().len(),
            end_of_data: core.end_of_data(),
            plan: core.switch().ready(),
            acks: core.batch().acks().into_vec(),
        };
        let step = core.steps();
        self.ask(core, At::Readying, Call::Ready { step, readiness })
    }

    /// The master committed the step, and acknowledged its samples.
    fn committed(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, commit: &StepCommit) -> Call {
        if !core.batch().is_empty() {
            if !commit.contributors.contains_key(&core.holder()) {
                return core.fail(format!("step {} was committed without this worker's push", commit.step));
            }
            core.settled();
        }
        core.set_idle(commit.samples == 0);
        core.report(turn, core.batch().len());
        core.set_step(commit.step + 1);
        if let Some(version) = commit.apply {
            core.switch().agreed(version);
        }
        core.note_plans(turn);
        if commit.end { core.over(End::EndOfData { trained: true }) } else { self.begin(core, turn) }
    }
}

impl WorkerHalf for Worker {
    fn joined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: &Joined) -> Call {
        core.enter_with_servers(turn, joined);
        if joined.finished { core.over(End::EndOfData { trained: true }) } else { self.begin(core, turn) }
    }

    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if core.batch().is_empty() {
            core.set_computed(0, 0.0);
            return self.ready(core, turn);
        }
        core.enter(turn, Part::Communicate);
        self.ask(core, At::Pulling, Call::Pull)
    }

    fn answered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, reply: &Reply) -> Call {
        match (std::mem::take(&mut self.at), reply) {
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
            (At::Pushing, Reply::Pushed) => self.ready(core, turn),
            (At::Readying, Reply::Committed(commit)) => self.committed(core, turn, commit),
            (at, reply) => core.not_an_answer(reply, &at),
        }
    }

    fn fed(&mut self, core: &mut WorkerCore, _turn: &mut Turn<'_>) -> Call {
        core.fail("the shard service answered what was not asked".to_owned())
    }

    fn clone_box(&self) -> Box<dyn WorkerHalf> {
        Box::new(self.clone())
    }
}
