//! The master's half: one coordinator commits the steps.

use antdt_controller::StepCoordinator;
use antdt_core::{Contribution, Holder, JobTime, Joined, Readiness, Standing};

use crate::head::HeadCore;
use crate::mode::shared::servers::Entrance;
use crate::mode::{Departure, HeadHalf};

#[derive(Debug, Default)]
pub(super) struct Head {
    entrance: Entrance,
    coordinator: StepCoordinator,
}

impl Head {
    fn let_in(&mut self, now: JobTime, core: &mut HeadCore) {
        let Self { entrance, coordinator } = self;
        let Some(entering) = entrance.open(now, core, |holder| coordinator.join(holder)) else { return };
        let (next_step, last_commit) = (coordinator.step(), coordinator.last_with_samples().cloned());
        entering.tell(now, core, true, |joined| Joined {
            next_step,
            last_commit: last_commit.clone(),
            ..joined
        });
    }

    /// Commits the open step if all are ready.
    fn commit(&mut self, core: &mut HeadCore) {
        let Some(commit) = self.coordinator.commit() else { return };
        for (holder, acks) in commit.contributors.iter() {
            core.settle(Contribution { holder: *holder, acks: acks.as_slice().into() });
        }
        for holder in self.coordinator.members() {
            core.tell_commit(holder, commit.clone());
        }
    }

    fn remove(&mut self, core: &mut HeadCore, holder: Holder) {
        self.coordinator.remove(holder);
        self.entrance.goes(holder);
        self.commit(core);
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
        match self.coordinator.ready(holder, step, readiness).map_err(|error| error.to_string())? {
            Some(commit) => core.tell_commit(holder, commit.clone()),
            None => self.commit(core),
        }
        Ok(())
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
}
