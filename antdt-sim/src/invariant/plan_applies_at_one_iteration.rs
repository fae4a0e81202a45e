//! Checks that in synchronous training all workers switch to a plan at the same step, or none does: every
//! step is computed under one plan, and a plan that is agreed on is held by every worker that agreed.
//!
//! Source: `AntDT`'s global actions, which every worker carries out at one iteration.

use std::collections::BTreeMap;

use antdt_core::{
    BatchReport, Capabilities, Holder, JobTime, MembershipVersion, PlanVersion, Role, RollbackId, StepCommit,
};
use antdt_job::{Call, HeadAnswer, HeadEffect, HeadEvent, Note, Reply};

use super::Invariant;
use super::seats::Seats;
use crate::happening::Happening;
use crate::setup::Setup;

/// Steps of which the plan is remembered: reports come late, with a heartbeat.
const STEPS_MAX: usize = 4096;

/// Checks that all workers switch to a plan at the same step, or none does; see the [module](self).
#[derive(Debug)]
pub struct PlanAppliesAtOneIteration {
    mode: Capabilities,
    seats: Seats,
    /// The newest step of each group that lately took one, and the plan of the first worker that came to it.
    open: BTreeMap<(RollbackId, MembershipVersion), (u64, PlanVersion)>,
    /// What each worker said it holds when it gave its control values, or was ready.
    said: BTreeMap<Holder, PlanVersion>,
    ready: BTreeMap<Holder, (u64, PlanVersion)>,
    committed: Option<u64>,
    /// The plan under which a step's batches were computed, as they were reported.
    reported: BTreeMap<u64, (Holder, PlanVersion)>,
    /// The newest plan, and the newest one of those that were made before the job went back.
    newest: PlanVersion,
    undone: PlanVersion,
}

impl PlanAppliesAtOneIteration {
    /// Returns the invariant for a job with this setup.
    pub fn new(setup: &Setup) -> Self {
        Self {
            mode: setup.sync.capabilities(),
            seats: Seats::default(),
            open: BTreeMap::new(),
            said: BTreeMap::new(),
            ready: BTreeMap::new(),
            committed: None,
            reported: BTreeMap::new(),
            newest: PlanVersion(0),
            undone: PlanVersion(0),
        }
    }

    /// A worker comes to a step.
    fn came(&mut self, holder: Holder, step: u64) -> Result<(), String> {
        let Some(seat) = self.seats.get(holder) else { return Ok(()) };
        let open = self.open.entry((seat.rollback, seat.membership)).or_insert((step, seat.applied));
        if step > open.0 {
            *open = (step, seat.applied);
        } else if step == open.0 && seat.applied != open.1 {
            let (mine, others) = (seat.applied, open.1);
            return Err(format!("{holder} takes step {step} under plan {mine}, others under plan {others}"));
        }
        while self.open.len() > 4 {
            self.open.pop_first();
        }
        Ok(())
    }

    fn agreed(&self, holder: Holder, version: Option<PlanVersion>) -> Result<(), String> {
        match (version, self.said.get(&holder)) {
            (Some(version), Some(said)) if version != *said => {
                Err(format!("{holder} holds plan {said} and hears that all hold plan {version}"))
            }
            _ => Ok(()),
        }
    }

    fn committed(&mut self, commit: &StepCommit) -> Result<(), String> {
        if self.committed >= Some(commit.step) {
            return Ok(()); // All nodes are told.
        }
        self.committed = Some(commit.step);
        for (holder, (step, plan)) in std::mem::take(&mut self.ready) {
            let took_part = step == commit.step && commit.contributors.contains_key(&holder);
            if let Some(version) = commit.apply.filter(|version| took_part && *version != plan) {
                return Err(format!("step {step} puts plan {version} in force; {holder} holds plan {plan}"));
            }
        }
        Ok(())
    }

    fn reported(&mut self, report: &BatchReport) -> Result<(), String> {
        // A step of a worker's own model that outlives its group may have begun under the plan before.
        if report.samples == 0 || self.mode.averages_models() {
            return Ok(()); // One that waits for its first plan.
        }
        if self.undone > PlanVersion(0) && report.plan <= self.undone {
            return Ok(()); // A step that was undone before it was heard of.
        }
        let step = report.iteration.0;
        let (holder, mine) = (report.holder, report.plan);
        let (other, plan) = *self.reported.entry(step).or_insert((holder, mine));
        if plan != mine {
            return Err(format!(
                "{holder} computed a batch of step {step} under plan {mine}, {other} under plan {plan}"
            ));
        }
        if self.reported.len() > STEPS_MAX {
            self.reported.pop_first();
        }
        Ok(())
    }
}

impl Invariant for PlanAppliesAtOneIteration {
    fn name(&self) -> &'static str {
        "plan_applies_at_one_iteration"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        if !self.mode.steps_in_common() {
            return Ok(());
        }
        if let Happening::Worker(holder, Reply::Agreed(verdict), _) = what {
            self.agreed(*holder, verdict.plan_agreed)?;
        }
        self.seats.saw(what);
        match what {
            Happening::Worker(holder, _, Call::Agree(lanes)) => {
                self.said.insert(*holder, lanes.plan_ready);
            }
            Happening::Worker(holder, _, Call::Combine { step, .. }) => return self.came(*holder, *step),
            Happening::Worker(holder, _, Call::Ready { step, readiness }) if readiness.samples > 0 => {
                return self.came(*holder, *step);
            }
            Happening::Effect(HeadEffect::Note { note: Note::Published(plan), .. }) => {
                self.newest = self.newest.max(plan.version);
            }
            // Steps are numbered anew, and taken under plans that are made from now on.
            Happening::Effect(HeadEffect::RollBack(_)) => {
                self.ready.clear();
                self.reported.clear();
                (self.committed, self.undone) = (None, self.newest);
            }
            Happening::Head(HeadEvent::Ready { holder, step, readiness }, HeadAnswer::Parked) => {
                self.ready.insert(*holder, (*step, readiness.plan));
            }
            Happening::Effect(HeadEffect::Committed(_, commit)) => return self.committed(commit),
            Happening::Head(HeadEvent::Heartbeat { reports, .. }, _) => {
                for (report, _) in
                    reports.iter().filter(|(report, _)| report.holder.node.role == Role::Worker)
                {
                    self.reported(report)?;
                }
            }
            Happening::Died(holder) => {
                self.said.remove(holder);
                self.ready.remove(holder);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_collective::lanes::{Lanes, Verdict};
    use antdt_job::Note;

    use super::super::testing::{History, IDLE, holder, joined, plan};
    use super::*;

    const fn verdict(plan: Option<u64>) -> Reply {
        let plan_agreed = match plan {
            Some(version) => Some(PlanVersion(version)),
            None => None,
        };
        Reply::Agreed(Verdict {
            whole: false,
            samples: 8,
            end_of_data: false,
            plan_agreed,
            reform: false,
            all_leaving: false,
            loss_sum: 0.0,
        })
    }

    fn combine(step: u64) -> Call {
        Call::Combine { step, samples: 4, acks: vec![].into(), peers: antdt_job::Peers::All }
    }

    fn agree(plan_ready: u64) -> Call {
        Call::Agree(Lanes { plan_ready: PlanVersion(plan_ready), ..Lanes::default() })
    }

    fn in_a_group() -> History<PlanAppliesAtOneIteration> {
        let mut history = History::new(PlanAppliesAtOneIteration::new(&Setup::default()));
        let reply = Reply::Joined(Box::new(joined(1, &[holder(0), holder(1)], plan(1, &[4, 4]), 0)));
        history.worker(holder(0), &reply, &IDLE).worker(holder(1), &reply, &IDLE);
        let note = Note::Published(plan(2, &[5, 3]));
        history.effect(&HeadEffect::Note { at: JobTime::ZERO, note });
        history.worker(holder(0), &Reply::Slept, &combine(0));
        history.worker(holder(1), &Reply::Slept, &combine(0));
        history
    }

    #[test]
    fn i26_all_switch_after_the_step_in_which_all_held_it() {
        let mut history = in_a_group();
        for who in [holder(0), holder(1)] {
            history.worker(who, &Reply::Slept, &agree(2)).worker(who, &verdict(Some(2)), &Call::Apply);
            history.worker(who, &Reply::Applied, &combine(1));
        }
        history.holds();
    }

    #[test]
    fn i26_one_alone_may_not_switch() {
        let mut history = in_a_group();
        history.worker(holder(0), &Reply::Slept, &agree(2)).worker(
            holder(0),
            &verdict(Some(2)),
            &Call::Apply,
        );
        history.worker(holder(1), &Reply::Slept, &agree(2)).worker(holder(1), &verdict(None), &Call::Apply);
        history.worker(holder(0), &Reply::Applied, &combine(1));
        history.worker(holder(1), &Reply::Applied, &combine(1)).fails("under plan 1, others under plan 2");
        let mut history = in_a_group();
        history.worker(holder(1), &Reply::Slept, &agree(1));
        history.worker(holder(1), &verdict(Some(2)), &Call::Apply).fails("holds plan 1");
    }
}
