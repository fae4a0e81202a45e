//! The worker's half: pull, compute, push, have the push counted and applied.

use antdt_core::Joined;

use crate::mode::shared::trip::{Next, Trip};
use crate::mode::{Turn, WorkerHalf};
use crate::worker::{Call, End, PATIENCE_ALONE, Reply, WorkerCore};

#[derive(Debug, Clone, Default)]
pub(super) struct Worker {
    trip: Trip,
}

impl Worker {
    fn begin(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if let Some(call) = self.trip.orders(core, turn) {
            return call;
        }
        core.offer_plan(turn);
        core.switch().apply_now();
        core.take_batch(PATIENCE_ALONE)
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
        if !core.batch().is_empty() {
            self.trip.pull(core, turn)
        } else if core.end_of_data() {
            core.over(End::EndOfData { trained: true })
        } else {
            self.begin(core, turn)
        }
    }

    fn answered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, reply: &Reply) -> Call {
        match self.trip.answered(core, turn, reply) {
            Next::Ask(call) => call,
            Next::Begin => self.begin(core, turn),
            Next::Pushed => self.trip.count(core, turn, core.steps()),
            Next::Answered(_) => self.trip.counted(core, turn),
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
