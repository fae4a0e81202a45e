//! The master's half: one coordinator commits the steps.

use antdt_controller::StepCoordinator;
use antdt_core::{Contribution, Holder, JobTime, Joined, Readiness, Standing};

use crate::head::HeadCore;
use crate::mode::shared::servers::Entrance;
use crate::mode::{Departure, HeadHalf};

#[derive(Debug)]
pub(crate) struct Head {
    /// Workers that a step need not wait for, unless the plan in force says how many.
    backups: u32,
    entrance: Entrance,
    coordinator: StepCoordinator,
}

impl Head {
    /// The head half of a mode whose steps wait for all workers but `backups` of them.
    pub(crate) fn new(backups: u32) -> Self {
        let coordinator = StepCoordinator::with_backups(backups);
        Self { backups, entrance: Entrance::default(), coordinator }
    }

    fn let_in(&mut self, now: JobTime, core: &mut HeadCore) {
        let Self { entrance, coordinator, .. } = self;
        let Some(entering) = entrance.open(now, core, |holder| coordinator.join(holder)) else { return };
        let (next_step, last_commit) = (coordinator.step(), coordinator.last_with_samples().cloned());
        entering.tell(now, core, true, |joined| Joined { next_step, last_commit, ..joined });
    }

    /// Commits the open step if enough workers are ready. The next one, which waits for as many as the plan says that comes into force
    /// with this one, is new to all of them.
    fn commit(&mut self, core: &mut HeadCore) {
        let Some(commit) = self.coordinator.commit() else { return };
        if let Some(version) = commit.apply {
            let backups = core.plan(version).and_then(|plan| plan.backups).unwrap_or(self.backups);
            self.coordinator.set_backups(backups);
            core.set_backups(backups);
        }
        for (holder, acks) in commit.contributors.iter() {
            core.settle(Contribution { holder: *holder, acks: acks.as_slice().into() });
        }
        for holder in self.coordinator.informed() {
            let counted = commit.contributors.contains_key(&holder);
            core.tell_commit(holder, commit.answering(commit.step, counted));
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
            Some(answer) => core.tell_commit(holder, answer),
            None => self.commit(core),
        }
        Ok(())
    }

    fn may_keep(&self, holder: Holder) -> bool {
        self.coordinator.is_informed(holder)
    }

    fn keeping(&mut self, _now: JobTime, core: &mut HeadCore, keeping: bool) {
        // The copies are of one step, which those that go on without the keeper would leave behind.
        self.coordinator.take_all_workers(keeping);
        self.commit(core);
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
        // What the servers buffer is gone with them, and so is the commit that none of them has applied.
        let undone = std::mem::replace(&mut self.coordinator, StepCoordinator::with_backups(self.backups));
        core.set_backups(self.backups);
        for holder in undone.members() {
            core.tell_undone(holder);
        }
    }

    fn go_on(&mut self, now: JobTime, core: &mut HeadCore) {
        self.let_in(now, core);
    }
}
