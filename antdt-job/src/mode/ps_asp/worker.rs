//! The worker's half: pull, compute, push, acknowledge.

use antdt_agent::{Part, SessionState};
use antdt_core::Joined;

use crate::mode::{Turn, WorkerHalf};
use crate::worker::{Call, End, PATIENCE_ALONE, Reply, WorkerCore};

/// What the reply that comes next answers.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
enum At {
    #[default]
    Nothing,
    Pulling,
    Computing,
    Pushing,
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
        core.switch().apply_now();
        core.take_batch(PATIENCE_ALONE)
    }
}

impl WorkerHalf for Worker {
    fn joined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: &Joined) -> Call {
        core.enter_with_servers(turn, joined);
        if joined.finished { core.over(End::EndOfData { trained: true }) } else { self.begin(core, turn) }
    }

    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if !core.batch().is_empty() {
            core.enter(turn, Part::Communicate);
            self.ask(core, At::Pulling, Call::Pull)
        } else if core.end_of_data() {
            core.over(End::EndOfData { trained: true })
        } else {
            self.begin(core, turn)
        }
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
            // The servers have applied it.
            (At::Pushing, Reply::Pushed) => match core.commit() {
                Some(call) => core.feed(call),
                None => self.fed(core, turn),
            },
            (at, reply) => core.not_an_answer(reply, &at),
        }
    }

    /// The batch is acknowledged.
    fn fed(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        core.report(turn, core.batch().len());
        // The plan was in force in the step that is over.
        core.note_plans(turn);
        core.set_step(core.steps() + 1);
        self.begin(core, turn)
    }

    fn clone_box(&self) -> Box<dyn WorkerHalf> {
        Box::new(self.clone())
    }
}
