//! [`Group`]: the head half of modes whose model lives in the workers. Every step takes every member, so a member that dies or
//! comes changes the group: all meet at the master, and a new group is formed.
//!
//! Where a step need not wait for the gradients of all members, it begins at a [`StepGate`]. What is open there ends with the group.

use std::sync::Arc;

use antdt_controller::{Arrival, Brings, Formation, Passage, StepGate};
use antdt_core::{Holder, JobTime, Joined, Readiness, Standing, StepCommit};

use crate::head::{EventKind, HeadCore};
use crate::mode::{Departure, HeadHalf};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// What the members of the group in force were told.
    formed: Option<Arc<Joined>>,
    /// A group without the model, which is told when the job has gone back to a checkpoint.
    held: Option<Formation>,
    /// Where steps may begin without the gradients of some members.
    gate: Option<Gate>,
}

/// Where steps begin that do not wait for all gradients.
#[derive(Debug)]
struct Gate {
    /// Workers that a step need not wait for, unless the plan in force says how many.
    backups: u32,
    steps: StepGate,
}

impl Group {
    /// A group whose steps may begin without the gradients of some members: of `backups`, unless a plan says of how many.
    pub(crate) fn with_backups(backups: u32) -> Self {
        Self { gate: Some(Gate { backups, steps: StepGate::new() }), ..Self::default() }
    }

    /// The group is no more, or about to end: members that wait at its gate are told so.
    fn breaks_up(&mut self, core: &mut HeadCore) {
        for holder in self.gate.iter_mut().flat_map(|gate| gate.steps.break_up()) {
            core.tell_undone(holder);
        }
    }

    /// The same because of this worker, unless it was no member.
    fn breaks_up_by(&mut self, core: &mut HeadCore, holder: Holder) {
        if self.gate.as_ref().is_some_and(|gate| gate.steps.is_member(holder)) {
            self.breaks_up(core);
        }
    }

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
        if let Some(gate) = &mut self.gate {
            gate.steps.begin(next_step, members.iter().copied());
        }
        core.replan(now, version);
        let addresses: Arc<[(Holder, String)]> =
            members.iter().map(|holder| (*holder, core.data_address(*holder))).collect();
        let text = format!("group {version} of {} workers takes step {next_step}", members.len());
        core.event(now, None, EventKind::Membership, text);
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
        if arrival == Arrival::Waits {
            // A member that wants another group takes no further step in this one.
            self.breaks_up_by(core, holder);
        }
        self.arrived(now, core, holder, arrival);
    }

    fn ready(
        &mut self,
        _now: JobTime,
        core: &mut HeadCore,
        holder: Holder,
        step: u64,
        readiness: Readiness,
    ) -> Result<(), String> {
        let Some(Gate { backups, steps }) = &mut self.gate else {
            return Err(format!("{holder} waits at a gate, which --sync {} has not", core.sync()));
        };
        let passages = match steps.arrive(holder, step, Brings::of(&readiness)) {
            Ok(Some(passage)) => vec![passage],
            Ok(None) => {
                let planned = core.plan(readiness.plan).and_then(|plan| plan.backups);
                steps.close(planned.unwrap_or(*backups)).unwrap_or_default()
            }
            // Its group broke up before it came to the gate.
            Err(_) => {
                core.tell_undone(holder);
                Vec::new()
            }
        };
        for Passage { holder, step, counted } in passages {
            core.tell_commit(holder, StepCommit { step, asked: step, counted, ..StepCommit::default() });
        }
        Ok(())
    }

    fn left(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, _departure: Departure) {
        self.breaks_up_by(core, holder);
        self.form(now, core);
    }

    fn lost(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, _took_part: bool) {
        self.breaks_up_by(core, holder);
        self.form(now, core);
    }

    fn set_back(&mut self, _now: JobTime, core: &mut HeadCore) {
        self.breaks_up(core);
        if self.held.is_none() {
            // No group is in force any more. A member of it that lives starts from the checkpoint.
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
