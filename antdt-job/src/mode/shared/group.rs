//! [`Group`]: the head half of modes whose model lives in the workers. Every step takes every member, so a member that dies or
//! comes changes the group: all meet at the master, and a new group is formed.

use std::sync::Arc;

use antdt_controller::{Arrival, Formation};
use antdt_core::{Holder, JobTime, Joined, Standing};

use crate::head::HeadCore;
use crate::mode::{Departure, HeadHalf};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// What the members of the group in force were told.
    formed: Option<Arc<Joined>>,
    /// A group without the model, which is told when the job has gone back to a checkpoint.
    held: Option<Formation>,
}

impl Group {
    /// What the members of the group in force were told; `None` before the first.
    pub(crate) fn formed(&self) -> Option<&Joined> {
        self.formed.as_deref()
    }

    /// Answers a worker that asked for a group, now or later.
    pub(crate) fn arrived(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, arrival: Arrival) {
        match arrival {
            Arrival::Waits => self.form(now, core),
            Arrival::Member if core.is_complete() => core.send_home(holder),
            Arrival::Member => {
                let joined = self.formed.clone().expect("a group with members was formed");
                core.let_in(holder, joined);
            }
            Arrival::NotLive => {}
        }
    }

    /// Forms a group if every worker has come that should be in it.
    fn form(&mut self, now: JobTime, core: &mut HeadCore) {
        if core.is_rolling_back() {
            return;
        }
        if core.is_complete() {
            // Everything is committed; a late replacement has nothing to do.
            for holder in core.membership().dismiss() {
                core.send_home(holder);
            }
            return;
        }
        let Some(mut formation) = core.membership().form() else { return };
        for contribution in std::mem::take(&mut formation.settled) {
            core.settle(contribution);
        }
        for holder in std::mem::take(&mut formation.released) {
            core.release_leases(holder);
        }
        // Even if no step was reported: one may have been committed since the last heartbeat.
        if formation.model_lost {
            core.roll_back("all workers were lost at once, and the model with them".to_owned());
            self.held = Some(formation);
            return;
        }
        self.tell(now, core, formation);
    }

    /// Tells the members of a group that they are in it.
    fn tell(&mut self, now: JobTime, core: &mut HeadCore, formation: Formation) {
        let Formation { version, members, commit, source, next_step, .. } = formation;
        let living: Vec<Holder> =
            members.iter().copied().filter(|holder| core.membership().is_live(*holder)).collect();
        if living.is_empty() {
            return;
        }
        core.start();
        core.membership_changes();
        core.take_in_only(&living);
        core.replan(now, version);
        let addresses: Arc<[(Holder, String)]> =
            members.iter().map(|holder| (*holder, core.data_address(*holder))).collect();
        let text = format!("group {version} of {} workers takes step {next_step}", members.len());
        core.event(now, None, "membership", text);
        let joined = Arc::new(Joined {
            commit_prepared: commit.is_some(),
            source,
            next_step,
            ..core.joined_reply(version, addresses)
        });
        for holder in living {
            core.let_in(holder, Arc::clone(&joined));
        }
        self.formed = Some(joined);
    }
}

impl HeadHalf for Group {
    fn joining(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, standing: Standing) {
        let arrival = core.membership().join(holder, standing);
        self.arrived(now, core, holder, arrival);
    }

    fn left(&mut self, now: JobTime, core: &mut HeadCore, _holder: Holder, _departure: Departure) {
        self.form(now, core);
    }

    fn lost(&mut self, now: JobTime, core: &mut HeadCore, _holder: Holder, _took_part: bool) {
        self.form(now, core);
    }
    fn set_back(&mut self, _now: JobTime, core: &mut HeadCore) {
        if self.held.is_none() {
            // No group is in force any more. Whoever was in it and lives starts from the checkpoint.
            for holder in core.membership().disband() {
                core.release_leases(holder);
            }
        }
    }

    fn go_on(&mut self, now: JobTime, core: &mut HeadCore) {
        match self.held.take() {
            // A member that died meanwhile breaks the group for the others, and they come again.
            Some(formation) => self.tell(now, core, formation),
            None => self.form(now, core),
        }
    }
}
