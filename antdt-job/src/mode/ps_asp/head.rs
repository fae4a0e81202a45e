//! The master's half: workers come and go, and each push counts when its worker says that all servers have it.

use antdt_core::{Holder, JobTime, Readiness, Standing};

use crate::head::HeadCore;
use crate::mode::shared::servers::{Entrance, count_push};
use crate::mode::{Departure, HeadHalf};

#[derive(Debug, Default)]
pub(super) struct Head {
    entrance: Entrance,
}

impl Head {
    fn let_in(&mut self, now: JobTime, core: &mut HeadCore) {
        if let Some(entering) = self.entrance.open(now, core, |_| {}) {
            entering.tell(now, core, false, |joined| joined);
        }
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
        count_push(core, holder, (step, step), readiness);
        Ok(())
    }

    fn left(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, departure: Departure) {
        self.entrance.goes(holder);
        if departure == Departure::Drained {
            self.let_in(now, core);
            let version = core.membership().version();
            core.replan(now, version);
        }
    }

    fn lost(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, took_part: bool) {
        self.entrance.goes(holder);
        if took_part {
            let version = core.membership().version();
            core.replan(now, version);
        }
    }
    fn set_back(&mut self, _now: JobTime, _core: &mut HeadCore) {}

    fn go_on(&mut self, now: JobTime, core: &mut HeadCore) {
        self.let_in(now, core);
    }
}
