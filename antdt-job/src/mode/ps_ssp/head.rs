//! The master's half: clocks decide which worker may begin its next step.

use antdt_controller::Clocks;
use antdt_core::{Holder, JobTime, Readiness, Standing, StepCommit};

use super::step_of;
use crate::head::HeadCore;
use crate::mode::shared::servers::{Entrance, count_push};
use crate::mode::{Departure, HeadHalf};

#[derive(Debug)]
pub(super) struct Head {
    /// Steps that a worker may be ahead.
    steps: u32,
    entrance: Entrance,
    clocks: Clocks,
}

/// The answer to a worker that asked for this step: it takes it, or looks at its orders and for data, and asks again.
fn turn(step: u64, begins: bool) -> StepCommit {
    StepCommit { step, asked: step, counted: begins, everyone: true, ..StepCommit::default() }
}

impl Head {
    pub(super) fn new(steps: u32) -> Self {
        Self { steps, entrance: Entrance::default(), clocks: Clocks::new(steps) }
    }

    fn let_in(&mut self, now: JobTime, core: &mut HeadCore) {
        let Self { entrance, clocks, .. } = self;
        if let Some(entering) = entrance.open(now, core, |holder| clocks.join(holder)) {
            entering.tell(now, core, false, |joined| joined);
        }
        // An older life may have held others up.
        self.let_begin(core);
    }

    /// Tells the workers that may begin now.
    fn let_begin(&mut self, core: &mut HeadCore) {
        for (holder, step) in self.clocks.allowed() {
            core.tell_commit(holder, turn(step, true));
        }
    }

    fn remove(&mut self, core: &mut HeadCore, holder: Holder) {
        self.entrance.goes(holder);
        self.clocks.remove(holder);
        self.let_begin(core);
    }
}

impl HeadHalf for Head {
    fn joining(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, _standing: Standing) {
        self.entrance.comes(holder);
        self.let_in(now, core);
    }

    fn ready(
        &mut self,
        _now: JobTime,
        core: &mut HeadCore,
        holder: Holder,
        step: u64,
        readiness: Readiness,
    ) -> Result<(), String> {
        if !readiness.acks.is_empty() {
            count_push(core, holder, (step, step_of(step)), readiness);
            return Ok(());
        }
        let answer =
            self.clocks.ask(holder, step, readiness.samples > 0).map_err(|error| error.to_string())?;
        if let Some(begins) = answer {
            core.tell_commit(holder, turn(step, begins));
        }
        self.let_begin(core);
        Ok(())
    }

    fn ordered(&mut self, core: &mut HeadCore, holder: Holder) {
        if let Some(step) = self.clocks.call_off(holder) {
            core.tell_commit(holder, turn(step, false));
        }
    }

    fn left(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, departure: Departure) {
        self.remove(core, holder);
        if departure == Departure::Drained {
            self.let_in(now, core);
            let version = core.membership().version();
            core.replan(now, version);
        }
    }

    fn lost(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, took_part: bool) {
        self.remove(core, holder);
        if took_part {
            let version = core.membership().version();
            core.replan(now, version);
        }
    }

    fn set_back(&mut self, _now: JobTime, core: &mut HeadCore) {
        // The pushes behind the clocks are undone.
        for holder in std::mem::replace(&mut self.clocks, Clocks::new(self.steps)).waiting() {
            core.tell_undone(holder);
        }
    }

    fn go_on(&mut self, now: JobTime, core: &mut HeadCore) {
        self.let_in(now, core);
    }
}
