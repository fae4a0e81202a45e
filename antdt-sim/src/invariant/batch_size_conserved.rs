//! Checks that in synchronous training the batches of one step add up to the global batch, whatever the plans
//! are. They never have more samples. They have fewer only in two cases: while the part of a lost worker is
//! not yet shared out among the others; and where a worker has fewer samples than its batch and gets no more,
//! as at the end of the data, or gives back shards that the master asked for so that others can begin them. A
//! worker gives back no more than it was asked for.
//!
//! Source: `AntDT` changes the batch sizes of workers such that their sum, and with it the meaning of the learning rate, stays.

use std::collections::{BTreeMap, BTreeSet};

use antdt_agent::MicroBatch;
use antdt_core::{
    AckPoint, Capabilities, FetchOutcome, Fragment, Holder, JobTime, Joined, MembershipVersion, StepCommit,
};
use antdt_job::{Call, HeadAnswer, HeadEffect, HeadEvent, Note, Reply};

use super::Invariant;
use super::holding::Holding;
use super::seats::Seats;
use crate::happening::Happening;
use crate::setup::Setup;

/// What a worker brings to its next step.
#[derive(Debug, Clone, Copy, Default)]
struct Loaded {
    samples: u64,
    /// Batch size in its plan.
    size: u64,
    /// It was told that there is nothing for it now.
    short: bool,
}

/// A step of a group as far as its members have come to it.
#[derive(Debug, Clone, Copy, Default)]
struct Step {
    came: usize,
    sum: u64,
    short: bool,
}

/// Checks that the batches of a synchronous step add up to the global batch; see the [module](self).
#[derive(Debug)]
pub struct BatchSizeConserved {
    mode: Capabilities,
    global: u64,
    seats: Seats,
    loaded: BTreeMap<Holder, Loaded>,
    /// Samples in a worker's own model and in no average yet.
    advanced: BTreeMap<Holder, u64>,
    /// Workers that were told so since their last batch; at the end of the data, for ever.
    told: BTreeMap<Holder, bool>,
    /// What each worker has to take batches from.
    holdings: BTreeMap<Holder, Holding>,
    /// The group in force, its size, and its open step.
    group: (MembershipVersion, usize),
    open: BTreeMap<(MembershipVersion, u64), Step>,
    /// With servers: the members, and the workers that are ready for each step.
    members: BTreeSet<Holder>,
    ready: BTreeMap<Holder, (u64, Loaded)>,
    committed: Option<u64>,
}

impl BatchSizeConserved {
    /// Returns the invariant for a job with this setup.
    pub fn new(setup: &Setup) -> Self {
        Self {
            mode: setup.sync.capabilities(),
            global: setup.global_batch_size.into(),
            seats: Seats::default(),
            loaded: BTreeMap::new(),
            advanced: BTreeMap::new(),
            told: BTreeMap::new(),
            holdings: BTreeMap::new(),
            group: (MembershipVersion(0), 0),
            open: BTreeMap::new(),
            members: BTreeSet::new(),
            ready: BTreeMap::new(),
            committed: None,
        }
    }

    fn replied(&mut self, holder: Holder, reply: &Reply) {
        match reply {
            Reply::Exchanged(exchanged) => {
                match exchanged.fetched {
                    Some(FetchOutcome::Wait { .. } | FetchOutcome::AtLimit) => {
                        self.told.entry(holder).or_default();
                    }
                    Some(FetchOutcome::EndOfData) => {
                        self.told.insert(holder, true);
                    }
                    Some(FetchOutcome::Granted(_)) | None => {}
                }
                if !exchanged.recalled.is_empty() {
                    // Others are idle, and it gives back what it has not begun.
                    self.told.entry(holder).or_default();
                }
            }
            Reply::Applied => {
                self.advanced.remove(&holder);
            }
            // An empty batch takes its place.
            Reply::Unreadable { .. } => {
                self.loaded.insert(holder, Loaded { short: true, ..Loaded::default() });
            }
            Reply::Joined(joined) => self.joined(holder, joined),
            _ => {}
        }
    }

    fn joined(&mut self, holder: Holder, joined: &Joined) {
        let holding = self.holdings.entry(holder).or_default();
        if joined.rollback > holding.rollback {
            // What it was told before is undone, and what it holds is void.
            *holding = Holding::after(joined.rollback);
            self.told.remove(&holder);
            self.loaded.remove(&holder);
            self.advanced.remove(&holder);
        }
        if self.mode.forms_groups() && joined.membership > self.group.0 {
            self.group = (joined.membership, joined.members.len());
            self.open.retain(|(membership, _), _| *membership >= joined.membership);
        }
    }

    fn called(&mut self, holder: Holder, call: &Call) -> Result<(), String> {
        let Some(seat) = self.seats.get(holder) else { return Ok(()) };
        match call {
            Call::Load(batch) | Call::LoadPiece(batch, MicroBatch { index: 0, .. }) => {
                let samples = batch.fragments.iter().map(Fragment::len).sum();
                let (size, end) = (u64::from(seat.size), self.told.get(&holder) == Some(&true));
                let left = self.holdings.get(&holder).map_or(0, Holding::left);
                if samples < size.min(left) {
                    return Err(format!(
                        "{holder} takes a batch of {samples} samples and has {left}; plan {} says {size}",
                        seat.applied
                    ));
                }
                let short = end || self.told.remove(&holder).is_some();
                if samples > size || (samples < size && !short) {
                    return Err(format!(
                        "{holder} takes a batch of {samples} samples; plan {} says {size}",
                        seat.applied
                    ));
                }
                self.loaded.insert(holder, Loaded { samples, size, short: samples < size });
            }
            Call::Revert => {
                self.advanced.remove(&holder);
            }
            Call::Advance => {
                let loaded = self.loaded.remove(&holder).unwrap_or_default();
                *self.advanced.entry(holder).or_default() += loaded.samples;
            }
            Call::Combine { step, samples, .. } if self.mode.averages_models() => {
                // Each batch was checked by itself; how many there are is the worker's own business.
                let advanced = self.advanced.get(&holder).copied().unwrap_or_default();
                if *samples != advanced {
                    return Err(format!(
                        "{holder} has trained {advanced} samples since the last average and brings {samples} to step {step}"
                    ));
                }
            }
            Call::Combine { step, samples, .. } => {
                let loaded = self.loaded.get(&holder).copied().unwrap_or_default();
                if *samples != loaded.samples {
                    return Err(format!(
                        "{holder} has a batch of {} samples and gives {samples} to step {step}",
                        loaded.samples
                    ));
                }
                if seat.membership != self.group.0 {
                    return Ok(()); // A group that is gone: the step ends nowhere.
                }
                let open = self.open.entry((seat.membership, *step)).or_default();
                open.came += 1;
                open.sum += samples;
                open.short |= loaded.short;
                if open.came == self.group.1 {
                    let Step { sum, short, .. } = *open;
                    self.open.remove(&(seat.membership, *step));
                    return self.check(*step, sum, self.global, short);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&self, step: u64, sum: u64, expected: u64, short: bool) -> Result<(), String> {
        if sum > self.global || sum > expected || (sum < expected && !short) {
            let global = self.global;
            return Err(format!(
                "the batches of step {step} add up to {sum}; {expected} by the plan, the global batch is {global}"
            ));
        }
        Ok(())
    }

    /// With servers: what a step is made of.
    fn committed(&mut self, commit: &StepCommit) -> Result<(), String> {
        if self.committed >= Some(commit.step) {
            return Ok(()); // All nodes are told.
        }
        self.committed = Some(commit.step);
        if let Some(late) = self.members.iter().find(|member| !self.ready.contains_key(member)) {
            return Err(format!("step {} is committed before {late} is ready", commit.step));
        }
        let ready = std::mem::take(&mut self.ready);
        let (mut expected, mut short, mut members, mut plan) = (0, false, 0, None);
        for (holder, (step, loaded)) in &ready {
            if *step != commit.step {
                return Err(format!(
                    "step {} is committed before {holder}, which is at step {step}",
                    commit.step
                ));
            }
            expected += loaded.size;
            short |= loaded.short;
            members += usize::from(loaded.size > 0);
            plan = plan.max(self.seats.get(*holder).map(|seat| seat.applied));
        }
        let plan = plan.and_then(|version| self.seats.plan(version));
        if plan.is_some_and(|plan| plan.batch_sizes.len() == members) {
            // All workers that the plan names took part.
            expected = self.global;
        }
        self.check(commit.step, commit.samples, expected, short)
    }
}

impl Invariant for BatchSizeConserved {
    fn name(&self) -> &'static str {
        "batch_size_conserved"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        if !self.mode.waits_for_all() {
            return Ok(());
        }
        // The reply first: it may put a plan in force, which the call follows.
        self.seats.saw(what);
        match what {
            Happening::Effect(HeadEffect::Note { note: Note::Published(plan), .. }) => {
                let sum: u64 = plan.batch_sizes.values().map(|size| u64::from(*size)).sum();
                if sum != self.global {
                    let (version, global) = (plan.version, self.global);
                    return Err(format!("plan {version} adds up to {sum}, the global batch is {global}"));
                }
                // From then on steps may be made of the batches of some workers only.
                if let Some(backups) = plan.backups.filter(|backups| *backups > 0) {
                    self.mode = self.mode.with_backups(backups);
                }
            }
            Happening::Worker(holder, reply, call) => {
                let holding = self.holdings.entry(*holder).or_default();
                holding.replied(*holder, reply);
                self.replied(*holder, reply);
                self.called(*holder, call)?;
                let holding = self.holdings.entry(*holder).or_default();
                return holding.called(call).map_err(|why| format!("{holder} {why}"));
            }
            Happening::Head(HeadEvent::Ready { holder, step, readiness }, HeadAnswer::Parked)
                if self.committed < Some(*step) =>
            {
                let mut loaded = self.loaded.get(holder).copied().unwrap_or_default();
                loaded.samples = readiness.samples;
                self.ready.insert(*holder, (*step, loaded));
            }
            // Nothing that was told before counts, and steps are numbered anew.
            Happening::Effect(HeadEffect::RollBack(_)) => {
                self.members.clear();
                self.ready.clear();
                self.open.clear();
                self.committed = None;
            }
            // A gradient of a worker that is gone is not part of the step.
            Happening::Effect(HeadEffect::LedgerLost(holder))
            | Happening::Head(HeadEvent::Leave { holder, .. }, HeadAnswer::Left { .. }) => {
                self.ready.remove(holder);
                self.members.remove(holder);
            }
            Happening::Effect(HeadEffect::Joined(holder, joined))
                if self.mode.acks == AckPoint::Commit && !joined.finished =>
            {
                self.members.insert(*holder);
            }
            Happening::Died(holder) => {
                self.advanced.remove(holder);
                self.holdings.remove(holder);
            }
            Happening::Effect(HeadEffect::Committed(_, commit)) => return self.committed(commit),
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_agent::Batch;
    use antdt_core::{Exchanged, PlanVersion, Readiness};

    use super::super::testing::{History, IDLE, ack, grant, holder, joined, lease, plan};
    use super::*;

    fn setup(sync: &str) -> Setup {
        Setup { sync: sync.parse().unwrap(), global_batch_size: 12, workers: 2, ..Setup::default() }
    }

    fn combine(samples: u64) -> Call {
        Call::Combine { step: 0, samples, acks: vec![].into(), peers: antdt_job::Peers::All }
    }

    fn in_a_group() -> History<BatchSizeConserved> {
        let mut history = History::new(BatchSizeConserved::new(&setup("allreduce")));
        let reply = Reply::Joined(Box::new(joined(1, &[holder(0), holder(1)], plan(1, &[8, 4]), 0)));
        history.worker(holder(0), &reply, &IDLE).worker(holder(1), &reply, &IDLE);
        history
    }

    fn batch(len: u64) -> Call {
        Call::Load(super::super::testing::batch(len))
    }

    #[test]
    fn i25_a_step_adds_up_unless_a_worker_has_no_samples() {
        let mut history = in_a_group();
        history.worker(holder(0), &Reply::Slept, &batch(8)).worker(holder(1), &Reply::Slept, &batch(4));
        history.worker(holder(0), &Reply::Slept, &combine(8));
        history.worker(holder(1), &Reply::Slept, &combine(4)).holds();
        let wait = FetchOutcome::Wait { retry_after: std::time::Duration::ZERO };
        let told = Reply::Exchanged(Exchanged { fetched: Some(wait), ..Exchanged::default() });
        history.worker(holder(1), &told, &batch(3)).holds();
        history.worker(holder(1), &Reply::Slept, &batch(3)).fails("a batch of 3 samples; plan 1 says 4");
    }

    #[test]
    fn no_worker_gives_more_or_less_than_its_batch() {
        let mut history = in_a_group();
        history.worker(holder(0), &Reply::Slept, &batch(9)).fails("a batch of 9 samples; plan 1 says 8");
        let mut history = in_a_group();
        history.worker(holder(0), &Reply::Slept, &batch(8)).holds();
        history.worker(holder(0), &Reply::Slept, &combine(7)).fails("gives 7 to step 0");
    }

    #[test]
    fn a_worker_with_a_short_batch_takes_all_it_has_and_gives_back_all_it_was_asked_for() {
        let lend = |recalled: &[u64]| Exchanged {
            fetched: Some(FetchOutcome::Granted(grant(1, 0, 0))),
            more: vec![grant(2, 1, 0)],
            recalled: recalled.iter().map(|number| lease(*number)).collect(),
            ..Exchanged::default()
        };
        let release = |number| Call::Release(vec![ack(number, 0)]);
        let mut history = in_a_group();
        history.worker(holder(1), &Reply::Exchanged(lend(&[2])), &release(2)).holds();
        history.worker(holder(1), &Reply::Released, &batch(3)).fails("3 samples and has 10; plan 1 says 4");
        let mut history = in_a_group();
        history.worker(holder(1), &Reply::Exchanged(lend(&[2])), &release(1)).fails("was not asked for");
        // Without being asked no worker takes less, however much it has given back.
        let mut history = in_a_group();
        history.worker(holder(1), &Reply::Exchanged(lend(&[])), &release(1));
        history.worker(holder(1), &Reply::Slept, &release(2));
        history.worker(holder(1), &Reply::Released, &batch(3)).fails("a batch of 3 samples; plan 1 says 4");
    }

    #[test]
    fn a_plan_adds_up() {
        let publish =
            |sizes: &[u32]| HeadEffect::Note { at: JobTime::ZERO, note: Note::Published(plan(1, sizes)) };
        let mut history = History::new(BatchSizeConserved::new(&setup("ps-bsp")));
        history.effect(&publish(&[6, 6])).holds();
        history.effect(&publish(&[7, 6])).fails("plan 1 adds up to 13");
    }

    #[test]
    fn i25_with_servers_too_a_step_adds_up() {
        let run = |second: Option<u64>, sum: u64| {
            let mut history = History::new(BatchSizeConserved::new(&setup("ps-bsp")));
            let note = Note::Published(plan(1, &[8, 4]));
            history.effect(&HeadEffect::Note { at: JobTime::ZERO, note });
            let reply = Reply::Joined(Box::new(joined(1, &[], plan(1, &[8, 4]), 0)));
            let mut contributors = BTreeMap::new();
            for (who, samples) in [(holder(0), Some(8)), (holder(1), second)] {
                let Some(samples) = samples else { continue };
                history.worker(who, &reply, &batch(samples));
                let plan = PlanVersion(1);
                let readiness = Readiness { samples, end_of_data: false, plan, acks: vec![] };
                let event = HeadEvent::Ready { holder: who, step: 0, readiness };
                history.head(&event, &HeadAnswer::Parked);
                contributors.insert(who, vec![]);
            }
            let contributors = contributors.into();
            let commit = StepCommit { contributors, samples: sum, everyone: true, ..StepCommit::default() };
            history.effect(&HeadEffect::Committed(holder(0), Box::new(commit)));
            history
        };
        run(Some(4), 12).holds();
        run(None, 8).holds();
        let mut late = History::new(BatchSizeConserved::new(&setup("ps-bsp")));
        let told = joined(1, &[], plan(1, &[8, 4]), 0).into();
        let commit = StepCommit { everyone: true, ..StepCommit::default() };
        late.effect(&HeadEffect::Joined(holder(1), told));
        late.effect(&HeadEffect::Committed(holder(0), Box::new(commit)));
        late.fails("before worker-1#0 is ready");
        run(Some(4), 8).fails("add up to 8; 12 by the plan");
        run(Some(4), 13).fails("add up to 13");
    }

    #[test]
    fn an_empty_batch_is_no_batch_of_a_plan() {
        let mut history = in_a_group();
        history.worker(holder(0), &Reply::Slept, &Call::Load(Batch::default())).fails("a batch of 0 samples");
    }
}
