//! The worker's half: wait for its turn, pull, compute, push, have the push counted and applied.

use std::time::Duration;

use antdt_core::{Acks, Joined};

use super::{Question, number};
use crate::mode::shared::trip::{Next, Trip};
use crate::mode::{Turn, WorkerHalf};
use crate::worker::{Call, End, PATIENCE_ALONE, Reply, WorkerCore};

#[derive(Debug, Clone, Default)]
pub(super) struct Worker {
    trip: Trip,
    /// The master knows that there was no data.
    idle: bool,
}

impl Worker {
    fn begin(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if let Some(call) = self.trip.orders(core, turn) {
            return call;
        }
        core.offer_plan(turn);
        core.switch().apply_now();
        // Others may wait for this worker until the master knows that it has no data.
        core.take_batch(if self.idle { PATIENCE_ALONE } else { Duration::ZERO })
    }

    /// Asks whether to begin the step, or says that there is no data for it.
    fn ask_for_turn(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        let plan = core.switch().applied();
        self.trip.ready(core, turn, number(core.steps(), Question::Turn), plan, Acks::new())
    }

    /// It is not this worker's turn: it has no data, or orders to look at.
    fn passed(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        self.idle = core.batch().is_empty();
        core.abort();
        // Each question has a number of its own.
        core.set_step(core.steps() + 1);
        self.begin(core, turn)
    }
}

impl WorkerHalf for Worker {
    fn rolled_back(&mut self) {
        *self = Self::default();
    }

    fn joined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: &Joined) -> Call {
        core.enter_at_own_pace(turn, joined);
        if joined.finished { core.over(End::EndOfData { trained: true }) } else { self.begin(core, turn) }
    }

    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if core.batch().is_empty() && core.end_of_data() {
            core.over(End::EndOfData { trained: true })
        } else if core.batch().is_empty() && self.idle {
            self.begin(core, turn)
        } else {
            self.ask_for_turn(core, turn)
        }
    }

    fn answered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, reply: &Reply) -> Call {
        match self.trip.answered(core, turn, reply) {
            Next::Ask(call) => call,
            Next::Begin => self.begin(core, turn),
            Next::Answered(commit) if commit.asked == number(core.steps(), Question::Counts) => {
                self.trip.counted(core, turn)
            }
            Next::Answered(commit) if commit.counted => {
                self.idle = false;
                self.trip.pull(core, turn)
            }
            Next::Answered(_) => self.passed(core, turn),
            // What is pushed counts before the worker's clock goes on, which is when it asks for its next step.
            Next::Pushed => self.trip.count(core, turn, number(core.steps(), Question::Counts)),
            Next::Applied => self.begin(core, turn),
        }
    }

    /// It gives nothing back and acknowledges nothing itself.
    fn fed(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        self.begin(core, turn)
    }

    fn clone_box(&self) -> Box<dyn WorkerHalf> {
        Box::new(self.clone())
    }
}
