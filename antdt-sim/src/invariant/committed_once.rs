//! Checks that the model contains exactly the samples that are acknowledged. No sample is acknowledged before
//! its gradient is part of a committed step; in synchronous training what is part of one is acknowledged
//! before another worker could train it again, whichever process dies in between; and a step is committed
//! once, by all that go on with the model, or by none.
//!
//! Samples may be trained twice that were committed and not yet acknowledged when the shard service was started again, if
//! they are granted to another worker before their holder has registered there and presented its lease.
//!
//! A checkpoint is of one moment: its model has exactly what its ledger has acknowledged; where workers average in groups
//! also steps of workers that had ended and that were not yet acknowledged. Where a job goes back to it, or to its start, that is what
//! is in the model, and nothing that was trained since gets into it.
//!
//! Source: our design: the two rounds of a step in all-reduce, and the commit in one place with servers.

use std::collections::{BTreeMap, BTreeSet};

use antdt_agent::MicroBatch;
use antdt_core::{
    Ack, AckOutcome, AckPoint, Barrier, Capabilities, CheckpointId, Contribution, Generation, Held, Holder,
    JobTime, Joined, LeaseId, MembershipVersion, Registered, ShardKey, Standing, StepCommit, StepResult,
};
use antdt_job::{Call, HeadAnswer, HeadEffect, HeadEvent, Reply};
use antdt_shard::DatasetSpec;
use antdt_shard::ledger::{Answer, Event, Record};

use super::Invariant;
use super::committed::{Committed, InModel};
use super::leases::{Ended, Leases, Move, Progress, shard};
use super::trained::{Times, Trained};
use crate::happening::Happening;
use crate::setup::Setup;

/// Leases whose shard is remembered beside those that are held: acks are for newer ones.
const LEASES_MAX: usize = 1 << 16;

/// Committed steps remembered: members of a group are at most one apart.
const STEPS_MAX: usize = 16;

/// Checks that the model contains exactly the acknowledged samples; see the [module](self).
#[derive(Debug)]
pub struct CommittedOnce {
    mode: Capabilities,
    leases: Leases,
    progress: Progress,
    keys: BTreeMap<LeaseId, ShardKey>,
    /// Samples in the model that are not acknowledged yet.
    in_model: BTreeMap<ShardKey, InModel>,
    /// Workers that have registered at this generation of the service and have presented their leases.
    registered: BTreeSet<Holder>,
    /// The group of each worker, and the result that it has last, with the group that it is of.
    groups: BTreeMap<Holder, MembershipVersion>,
    combined: BTreeMap<Holder, (MembershipVersion, StepResult)>,
    /// In which group a step was committed.
    steps: BTreeMap<u64, MembershipVersion>,
    /// The newest step in the model that a worker has; `None` for the one that all start from.
    models: BTreeMap<Holder, Option<u64>>,
    entering: BTreeMap<Holder, Option<u64>>,
    /// Standings of the workers that wait for a group.
    standings: BTreeMap<Holder, Standing>,
    /// The step of which parts of the dead were settled, until the group hears of it.
    decided: Option<u64>,
    /// With servers: what each worker said is due with its step.
    ready: BTreeMap<Holder, (u64, Vec<Ack>)>,
    committed: Option<u64>,
    /// The newest group. And if the job went back: the newest one of before, and the newest generation of the service before. What is
    /// trained in that group or under a lease of that generation gets into no model that counts.
    newest: MembershipVersion,
    undone: Option<(MembershipVersion, Generation)>,
    /// Lives that have ended, and those that take part since the job went back, if it did.
    died: BTreeSet<Holder>,
    since: Option<BTreeSet<Holder>>,
    copies: BTreeMap<CheckpointId, ModelCopy>,
    /// What the newest checkpoint's model has beyond its ledger.
    beyond: BTreeMap<ShardKey, InModel>,
    /// How often each sample is in the model, if it is counted.
    trained: Option<Trained>,
}

/// The model as it was copied for a checkpoint.
#[derive(Debug)]
struct ModelCopy {
    /// The caller does not know yet that the job went back, or it went back since.
    undone: bool,
    /// Acknowledged samples of that moment, which were all in the model.
    acked: u64,
    /// Shards of which the model had more.
    more: BTreeMap<ShardKey, More>,
}

/// What a model had of a shard that was not acknowledged.
#[derive(Debug)]
struct More {
    /// Up to where it was acknowledged.
    acked: u64,
    samples: InModel,
    /// The worker that had contributed it had ended.
    of_dead: bool,
}

impl CommittedOnce {
    /// Returns the invariant for this job, with a ledger of this data set.
    pub fn new(setup: &Setup, spec: &DatasetSpec) -> Self {
        Self {
            mode: setup.sync.capabilities(),
            leases: Leases::default(),
            progress: Progress::new(spec),
            keys: BTreeMap::new(),
            in_model: BTreeMap::new(),
            registered: BTreeSet::new(),
            groups: BTreeMap::new(),
            combined: BTreeMap::new(),
            steps: BTreeMap::new(),
            models: BTreeMap::new(),
            entering: BTreeMap::new(),
            standings: BTreeMap::new(),
            decided: None,
            ready: BTreeMap::new(),
            committed: None,
            newest: MembershipVersion(0),
            undone: None,
            died: BTreeSet::new(),
            since: None,
            copies: BTreeMap::new(),
            beyond: BTreeMap::new(),
            trained: None,
        }
    }

    /// Returns the same, which also counts how often each sample is in the model. That takes some bytes for each
    /// sample of each epoch.
    #[must_use]
    pub fn counting(self) -> Self {
        Self { trained: Some(Trained::default()), ..self }
    }

    /// Returns how often each sample is in the model; `None` if that is not counted.
    pub fn times(&self) -> Option<&Times> {
        self.trained.as_ref().map(Trained::now)
    }

    /// Returns what the newest complete checkpoint contains: nothing if there is none.
    pub fn at_checkpoint(&self) -> Committed {
        Committed {
            done: self.progress.kept().clone(),
            beyond: self.beyond.clone(),
            times: self.trained.as_ref().map(|trained| trained.kept().clone()).unwrap_or_default(),
        }
    }

    /// The job goes on from a checkpoint of one that ended, and so did all that had contributed to it.
    fn resumed(&mut self, committed: &Committed) {
        let again = |(key, samples): (&ShardKey, &InModel)| (*key, InModel { again: true, ..*samples });
        self.beyond = committed.beyond.iter().map(again).collect();
        if let Some(trained) = &mut self.trained {
            trained.resumed(&committed.times);
        }
    }

    /// The job goes back: its model is that of the newest checkpoint, or of its start.
    fn set_back(&mut self) {
        self.undone = Some((self.newest, self.progress.generation));
        self.in_model.clone_from(&self.beyond);
        if let Some(trained) = &mut self.trained {
            trained.set_back();
        }
        self.since = Some(BTreeSet::new());
        self.copies.values_mut().for_each(|copy| copy.undone = true);
        self.steps.clear();
        self.models.clear();
        self.entering.clear();
    }

    fn record(&mut self, record: &Record) -> Result<(), String> {
        if let Record::GenerationStarted { .. } = record {
            self.registered.clear();
        }
        if let Record::Acked { epoch, position, offset } = record
            && let Some(key) = self.progress.key(*epoch, *position)
        {
            let in_model = self.in_model.get(&key).map_or(0, |samples| samples.end);
            if *offset > in_model {
                return Err(format!(
                    "{} is acknowledged up to {offset}, but only {in_model} are in the model",
                    shard(key)
                ));
            }
            if *offset == in_model {
                self.in_model.remove(&key);
            }
        }
        Ok(())
    }

    /// These samples of this holder are part of the model from now on.
    fn commit(&mut self, holder: Holder, acks: &[Ack]) {
        let undone = self.undone.map(|(_, generation)| generation);
        for ack in acks.iter().filter(|ack| undone < Some(ack.lease.generation)) {
            let Some(key) = self.keys.get(&ack.lease).copied() else { continue };
            if let Some(trained) = &mut self.trained {
                trained.commit(holder, key, ack.offset);
            }
            let before = self.in_model.get(&key).map_or(0, |samples| samples.end);
            if ack.offset > before.max(self.progress.offset(key)) {
                let (end, generation) = (ack.offset, ack.lease.generation);
                self.in_model.insert(key, InModel { end, holder, generation, again: false });
            }
        }
    }

    /// A group commits a step.
    fn applied(&mut self, holder: Holder) -> Result<(), String> {
        if self.mode.barrier == Barrier::Peers {
            return Ok(()); // The master has committed it.
        }
        let Some((group, result)) = self.combined.get(&holder).cloned() else {
            return Err(format!("{holder} applies a step that it does not have"));
        };
        if self.undone.is_some_and(|(newest, _)| group <= newest) {
            return Ok(()); // One that was given up and goes on.
        }
        self.models.insert(holder, Some(result.step));
        let known = *self.steps.entry(result.step).or_insert(group);
        if known != group {
            let step = result.step;
            return Err(format!(
                "step {step} of group {known} and that of group {group} are both in the model"
            ));
        }
        for contribution in result.contributions.iter() {
            self.commit(contribution.holder, &contribution.acks);
        }
        while self.steps.len() > STEPS_MAX {
            self.steps.pop_first();
        }
        Ok(())
    }

    /// Checks that all members go on from one model.
    fn entered(&mut self, holder: Holder, joined: &Joined) -> Result<(), String> {
        if self.mode.barrier == Barrier::Peers {
            return Ok(()); // Each has a model of its own.
        }
        let from = joined.source.map(|rank| (rank, joined.next_step.checked_sub(1)));
        let model = self.models.get(&holder).copied();
        let step = |step: Option<u64>| step.map_or("none".to_owned(), |step| step.to_string());
        match (from, model) {
            (None, Some(Some(mine))) => {
                return Err(format!("{holder} has step {mine}, and its group is to start anew"));
            }
            (Some((_, newest)), Some(mine)) if mine != newest => {
                let (mine, newest) = (step(mine), step(newest));
                return Err(format!("{holder} has step {mine}, and its group goes on from step {newest}"));
            }
            (Some((rank, newest)), None) => {
                let source = joined.members.get(rank.0 as usize).map(|(member, _)| *member);
                if source == Some(holder) {
                    let newest = step(newest);
                    return Err(format!("{holder} is to give the others step {newest} and has no model"));
                }
            }
            _ => {}
        }
        self.entering.insert(holder, from.and_then(|(_, newest)| newest));
        Ok(())
    }

    /// A worker registers at the shard service and presents its leases.
    fn registered(&mut self, holder: Holder, held: &[Held], registered: &Registered) {
        self.registered.insert(holder);
        if let Some(trained) = &mut self.trained {
            let void = held.iter().zip(&registered.adopted).filter(|(_, adopted)| adopted.is_none());
            void.for_each(|(held, _)| trained.gave_back(holder, held.key));
        }
        // A shard that was granted to another worker meanwhile is refused to it.
        for (key, samples) in self.in_model.iter_mut().filter(|(_, samples)| samples.holder == holder) {
            samples.again |= self.leases.holder_of(*key).is_some_and(|other| other != holder);
        }
    }

    /// The ledger has settled what was due of a worker.
    fn settled(&self, holder: Holder, acks: &[Ack], outcomes: &[AckOutcome]) -> Result<(), String> {
        let now = self.progress.generation;
        let is_acked =
            |ack: &Ack| self.keys.get(&ack.lease).is_some_and(|key| self.progress.offset(*key) >= ack.offset);
        // A worker that left in order gave the lease back, and said the same before.
        let lost = acks.iter().zip(outcomes).find(|(ack, outcome)| {
            **outcome == AckOutcome::StaleLease && ack.lease.generation == now && !is_acked(ack)
        });
        match lost {
            Some((ack, _)) => Err(format!("lease {} of {holder} ended before it was settled", ack.lease)),
            None => Ok(()),
        }
    }

    /// The master tells a worker its group.
    fn joined(&mut self, holder: Holder, joined: &Joined) -> Result<(), String> {
        self.newest = self.newest.max(joined.membership);
        if let Some(since) = &mut self.since {
            since.insert(holder);
        }
        self.standings.remove(&holder);
        match self.decided.take() {
            Some(step) if joined.next_step != step + 1 => {
                let next = joined.next_step;
                Err(format!("step {step} was settled, and the group goes on with step {next}"))
            }
            _ => Ok(()),
        }
    }

    /// A worker says what is due with a step. An old copy, which comes late, says nothing new.
    fn said(&mut self, holder: Holder, step: u64, acks: &[Ack]) {
        if self.ready.get(&holder).is_some_and(|(known, _)| *known > step) {
            return;
        }
        self.ready.insert(holder, (step, acks.to_vec()));
    }

    /// The master settles a contribution.
    fn settle(&mut self, contribution: &Contribution) -> Result<(), String> {
        let Contribution { holder, acks } = contribution;
        if self.mode.forms_groups() && self.mode.acks != AckPoint::Commit {
            let results = self.standings.values().flat_map(|s| s.applied.iter().chain(&s.prepared));
            let mut of = results.filter(|result| result.contributions.contains(contribution));
            let step = of.next().map(|result| result.step);
            let Some(step) = step else {
                return Err(format!("{holder} is settled for what no survivor knows of"));
            };
            if let Some(other) = self.decided.replace(step).filter(|other| *other != step) {
                return Err(format!("{holder} is settled for step {step}, others for step {other}"));
            }
        } else if self.ready.get(holder).is_none_or(|(_, due)| due[..] != acks[..]) {
            return Err(format!("{holder} is settled for {acks:?}, which it did not say"));
        } else if !self.mode.steps_in_common() {
            self.ready.remove(holder);
        }
        self.commit(*holder, acks);
        Ok(())
    }

    fn committed(&mut self, commit: &StepCommit) -> Result<(), String> {
        if !self.mode.steps_in_common() {
            // Each worker counts its own questions; what it brought was settled. An answer may be repeated when others of its group have
            // gone on.
            return Ok(());
        }
        if self.committed >= Some(commit.step) {
            return Ok(()); // All nodes are told.
        }
        self.committed = Some(commit.step);
        for (holder, acks) in commit.contributors.iter() {
            let said = self.ready.remove(holder);
            if said.as_ref().is_none_or(|(step, due)| *step != commit.step || due != acks) {
                return Err(format!(
                    "step {} contains {acks:?} of {holder}, which it did not say",
                    commit.step
                ));
            }
            for ack in acks {
                let Some(key) = self.keys.get(&ack.lease).copied() else { continue };
                let settled = self.in_model.get(&key).map_or(0, |samples| samples.end);
                if settled.max(self.progress.offset(key)) < ack.offset {
                    let (step, shard) = (commit.step, shard(key));
                    return Err(format!("step {step} contains {shard} up to {}, not settled", ack.offset));
                }
            }
        }
        Ok(())
    }

    fn worker(&mut self, holder: Holder, reply: &Reply, call: &Call) -> Result<(), String> {
        match reply {
            Reply::Joined(joined) => {
                self.groups.insert(holder, joined.membership);
            }
            Reply::Combined(result) => {
                let group = self.groups.get(&holder).copied().unwrap_or_default();
                self.combined.insert(holder, (group, result.clone()));
            }
            Reply::Entered => {
                if let Some(step) = self.entering.remove(&holder) {
                    self.models.insert(holder, step);
                }
            }
            _ => {}
        }
        match call {
            Call::Load(batch) | Call::LoadPiece(batch, MicroBatch { index: 0, .. }) => {
                if let Some(trained) = &mut self.trained {
                    trained.loads(holder, &batch.fragments);
                }
                Ok(())
            }
            // What servers have, a worker says right after they have said so.
            Call::Ready { readiness, .. }
                if self.mode.needs_servers() && !readiness.acks.is_empty() && *reply != Reply::Pushed =>
            {
                Err(format!("{holder} says that servers have a push, which they did not answer"))
            }
            // Of a push that counts the master says when.
            Call::Apply if self.mode.forms_groups() => self.applied(holder),
            Call::Enter(joined) => self.entered(holder, joined),
            _ => Ok(()),
        }
    }

    /// A copy of the model exists.
    fn copied(&mut self, holder: Holder, checkpoint: CheckpointId) {
        let undone = self.since.as_ref().is_some_and(|since| !since.contains(&holder));
        let of = |(key, samples): (&ShardKey, &InModel)| {
            let (acked, of_dead) = (self.progress.offset(*key), self.died.contains(&samples.holder));
            (samples.end > acked).then_some((*key, More { acked, samples: *samples, of_dead }))
        };
        let more = self.in_model.iter().filter_map(of).collect();
        self.copies.insert(checkpoint, ModelCopy { undone, acked: self.progress.acked(), more });
        if let Some(trained) = &mut self.trained {
            trained.copied(checkpoint);
        }
    }

    /// A checkpoint is whole.
    fn kept(&mut self, checkpoint: CheckpointId) -> Result<(), String> {
        let parts = self.copies.remove(&checkpoint).zip(self.progress.acked_at_cut(checkpoint));
        let Some((copy, mut acked)) = parts else {
            return Err(format!("checkpoint {checkpoint} is whole without a model or a ledger"));
        };
        if copy.undone {
            return Err(format!("checkpoint {checkpoint} has a model of before the job went back"));
        }
        let exact = self.mode.steps_in_common() || self.mode.needs_servers();
        self.beyond.clear();
        for (key, More { acked: before, samples, of_dead }) in copy.more {
            let cut = self.progress.at_cut(checkpoint, key).unwrap_or_default();
            acked -= cut.saturating_sub(before);
            let may_lack = !exact && of_dead;
            if cut > samples.end || (cut < samples.end && !may_lack) {
                return Err(format!(
                    "checkpoint {checkpoint} has {} up to {} in its model, and up to {cut} in its ledger",
                    shard(key),
                    samples.end
                ));
            }
            if cut < samples.end {
                self.beyond.insert(key, samples);
            }
        }
        if acked != copy.acked {
            return Err(format!(
                "checkpoint {checkpoint} has {} other samples in its model, and {acked} in its ledger",
                copy.acked
            ));
        }
        if let Some(trained) = &mut self.trained {
            trained.keep(checkpoint);
        }
        Ok(())
    }

    fn granted(&mut self, what: &Happening<'_>) -> Result<(), String> {
        // A clone: what was moved is judged by what is known of all leases.
        for moved in self.leases.saw(what).to_vec() {
            if let (Move::Ended(lease, Ended::Released | Ended::Failed), Some(trained)) =
                (&moved, &mut self.trained)
            {
                trained.gave_back(lease.holder, lease.grant.key);
            }
            let Move::Granted(holder, grant) = moved else { continue };
            self.keys.insert(grant.lease, grant.key);
            // Of ten thousand workers each has dozens.
            if self.keys.len() > LEASES_MAX + self.leases.count() {
                self.keys.pop_first();
            }
            let Some(samples) = self.in_model.get(&grant.key).copied() else { continue };
            if grant.resume_at >= samples.end {
                continue;
            }
            if !self.is_excused(&samples) {
                let (shard, at, end) = (shard(grant.key), grant.resume_at, samples.end);
                return Err(format!("{holder} is to begin {shard} at {at}; the model has {end} of it"));
            }
            if let Some(trained) = &mut self.trained {
                trained.excuse(grant, samples.end);
            }
            self.in_model.insert(grant.key, InModel { again: true, ..samples });
        }
        Ok(())
    }

    /// Whether what is in the model may be granted again: see the [module](self).
    fn is_excused(&self, samples: &InModel) -> bool {
        let not_presented =
            samples.generation != self.progress.generation && !self.registered.contains(&samples.holder);
        samples.again || not_presented
    }
}

impl Invariant for CommittedOnce {
    fn name(&self) -> &'static str {
        "committed_once"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        self.granted(what)?;
        match what {
            Happening::Kept(checkpoint) => self.kept(*checkpoint)?,
            Happening::Resumed(committed) => self.resumed(committed),
            Happening::Record(Record::Restored(_)) => self.set_back(),
            _ => {}
        }
        self.progress.saw(what)?;
        match what {
            Happening::Copied(holder, checkpoint) => self.copied(*holder, *checkpoint),
            Happening::Record(record) => self.record(record)?,
            Happening::Ledger(Event::Register { holder, held }, Answer::Register(Ok(registered))) => {
                self.registered(*holder, held, registered);
            }
            Happening::Ledger(Event::Settle { holder, acks }, Answer::Ack(answer)) => match answer {
                Ok(outcomes) => self.settled(*holder, acks, outcomes)?,
                Err(error) => return Err(format!("{holder} cannot be settled: {error}")),
            },
            Happening::Worker(holder, reply, call) => self.worker(*holder, reply, call)?,
            // An old copy of its question takes nothing back.
            Happening::Head(HeadEvent::Join { holder, standing }, _)
                if self.standings.get(holder).is_none_or(|said| said.group <= standing.group) =>
            {
                self.standings.insert(*holder, standing.clone());
            }
            // What is refused was said before.
            Happening::Head(HeadEvent::Ready { holder, step, readiness }, HeadAnswer::Parked) => {
                self.said(*holder, *step, &readiness.acks);
            }
            Happening::Effect(HeadEffect::Settle(contribution)) => self.settle(contribution)?,
            Happening::Effect(HeadEffect::Committed(_, commit)) if self.mode.acks == AckPoint::Commit => {
                self.committed(commit)?;
            }
            // Nothing that was told before counts, and steps are numbered anew.
            Happening::Effect(HeadEffect::RollBack(_)) => {
                self.ready.clear();
                self.standings.clear();
                (self.committed, self.decided) = (None, None);
            }
            Happening::Effect(HeadEffect::Joined(holder, joined)) => self.joined(*holder, joined)?,
            Happening::Died(holder) => {
                self.died.insert(*holder);
                self.models.remove(holder);
                self.entering.remove(holder);
                self.combined.remove(holder);
            }
            // Until the master hears of its end, what it said counts.
            Happening::Head(HeadEvent::Exited(holder, ..), _) => {
                self.standings.remove(holder);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{PlanVersion, Rank, Readiness};

    use super::super::testing::{History, IDLE, ack, grant, holder, joined, plan, result, spec};
    use super::*;

    fn setup(sync: &str) -> Setup {
        Setup { sync: sync.parse().unwrap(), ..Setup::default() }
    }

    /// Two workers with a shard each have combined step 0.
    fn combined() -> History<CommittedOnce> {
        let mut history = History::new(CommittedOnce::new(&setup("allreduce"), &spec()));
        let members = [holder(0), holder(1)];
        let reply = Reply::Joined(Box::new(joined(1, &members, plan(1, &[4, 4]), 0)));
        let enter = Call::Enter(Box::new(joined(1, &members, plan(1, &[4, 4]), 0)));
        history.generation(1);
        for (who, shard) in members.into_iter().zip([0, 1]) {
            history.granted(who, 1, &[grant(shard + 1, shard, 0)]);
            history.worker(who, &reply, &enter).worker(who, &Reply::Entered, &IDLE);
            history.worker(who, &Reply::Combined(step(0)), &IDLE);
        }
        history
    }

    fn step(step: u64) -> StepResult {
        result(step, &[(holder(0), ack(1, 4)), (holder(1), ack(2, 4))])
    }

    fn again(source: Option<Rank>, next_step: u64, member: u32) -> Joined {
        Joined { source, ..joined(2, &[holder(member)], plan(2, &[8]), next_step) }
    }

    fn join(history: &mut History<CommittedOnce>, prepared: bool) {
        let (applied, prepared) = if prepared { (None, Some(step(0))) } else { (Some(step(0)), None) };
        let standing = Standing { applied, prepared, ..Standing::default() };
        history.head(&HeadEvent::Join { holder: holder(0), standing }, &HeadAnswer::Parked);
    }

    #[test]
    fn an_ack_follows_its_step() {
        let mut history = combined();
        history.worker(holder(0), &IDLE_REPLY, &Call::Apply).recorded_ack(0, 4).recorded_ack(1, 4).holds();
        combined().recorded_ack(0, 4).fails("only 0 are in the model");
        let mut history = combined();
        history
            .worker(holder(0), &IDLE_REPLY, &Call::Apply)
            .recorded_ack(0, 5)
            .fails("only 4 are in the model");
    }

    #[test]
    fn no_held_lease_is_forgotten_however_many_there_are() {
        let mut history = combined();
        for number in 0..=LEASES_MAX as u64 {
            history.granted(holder(2), 1 + number, &[grant(3 + number, 3 + number, 0)]);
        }
        history.worker(holder(0), &IDLE_REPLY, &Call::Apply).recorded_ack(0, 4).recorded_ack(1, 4).holds();
    }

    const IDLE_REPLY: Reply = Reply::Slept;

    #[test]
    fn samples_in_the_model_are_not_trained_again() {
        let mut history = combined();
        history.worker(holder(0), &IDLE_REPLY, &Call::Apply);
        history.lost(holder(1)).granted(holder(0), 2, &[grant(3, 1, 0)]).fails("the model has 4 of it");
        // Settled first, it is not.
        let mut history = combined();
        history.worker(holder(0), &IDLE_REPLY, &Call::Apply);
        join(&mut history, false);
        let dead = Contribution { holder: holder(1), acks: vec![ack(2, 4)].into() };
        history.effect(&HeadEffect::Settle(dead)).recorded_ack(1, 4);
        history.settled(holder(1), &[ack(2, 4)], &[AckOutcome::Accepted]);
        history.effect(&HeadEffect::LedgerLost(holder(1))).lost(holder(1));
        history.effect(&HeadEffect::Joined(holder(0), again(Some(Rank(0)), 1, 0).into()));
        history.granted(holder(0), 2, &[grant(3, 1, 4)]).holds();
        // A service that came back without its leases excuses it, until the holder has said what it has.
        let mut history = combined();
        history.worker(holder(0), &IDLE_REPLY, &Call::Apply).generation(2);
        history.granted(holder(0), 2, &[grant(3, 1, 0)]).holds();
        history.lost(holder(0)).granted(holder(0), 3, &[grant(4, 1, 2)]).holds();
        let mut history = combined();
        history.worker(holder(0), &IDLE_REPLY, &Call::Apply).generation(2).register(holder(1));
        history.granted(holder(0), 2, &[grant(3, 1, 0)]).fails("the model has 4 of it");
    }

    #[test]
    fn a_checkpoint_has_the_samples_of_its_ledger_and_none_of_before_the_job_went_back() {
        let one = CheckpointId(1);
        let trained = || {
            let mut history = combined();
            history.worker(holder(0), &IDLE_REPLY, &Call::Apply).recorded_ack(0, 4);
            history
        };
        // The model has four samples of the second shard that the ledger gets in time, or too late.
        let mut history = trained();
        history.saw(&Happening::Copied(holder(0), one)).recorded_ack(1, 4);
        history.saw(&Happening::Cut(one)).saw(&Happening::Kept(one)).holds();
        let mut history = trained();
        history.saw(&Happening::Copied(holder(0), one)).saw(&Happening::Cut(one)).recorded_ack(1, 4);
        history.saw(&Happening::Kept(one)).fails("up to 4 in its model, and up to 0 in its ledger");
        // What is trained after the copy is in the ledger only.
        let mut history = combined();
        history.saw(&Happening::Copied(holder(0), one));
        history.worker(holder(0), &IDLE_REPLY, &Call::Apply).recorded_ack(0, 4);
        history
            .saw(&Happening::Cut(one))
            .saw(&Happening::Kept(one))
            .fails("has 0 other samples in its model");
        history.saw(&Happening::Kept(CheckpointId(2)));
        // Back at its start, a worker has the model of before until it is let in again.
        let start = antdt_shard::ShardLedger::new(spec(), Generation(1)).unwrap().snapshot();
        let back = |history: &mut History<CommittedOnce>| {
            history.saw(&Happening::Record(&Record::Restored(Box::new(start.clone())))).generation(2);
        };
        let mut history = trained();
        back(&mut history);
        history.saw(&Happening::Copied(holder(0), one)).saw(&Happening::Cut(one));
        history.saw(&Happening::Kept(one)).fails("has a model of before the job went back");
        let mut history = trained();
        back(&mut history);
        history.effect(&HeadEffect::Joined(holder(0), again(None, 0, 0).into()));
        history.saw(&Happening::Copied(holder(0), one)).saw(&Happening::Cut(one));
        history.saw(&Happening::Kept(one)).holds();
    }

    #[test]
    fn a_settlement_comes_in_time_and_names_the_contributions() {
        let mut history = combined();
        history.settled(holder(1), &[ack(2, 4)], &[AckOutcome::StaleLease]).fails("before it was settled");
        let mut history = combined();
        join(&mut history, true);
        let dead = Contribution { holder: holder(1), acks: vec![ack(2, 9)].into() };
        history.effect(&HeadEffect::Settle(dead)).fails("what no survivor knows of");
        let mut history = combined();
        join(&mut history, true);
        let dead = Contribution { holder: holder(1), acks: vec![ack(2, 4)].into() };
        history.effect(&HeadEffect::Settle(dead)).holds();
        let rejoined = again(None, 0, 0);
        history.effect(&HeadEffect::Joined(holder(0), rejoined.into())).fails("goes on with step 0");
    }

    #[test]
    fn a_step_is_committed_in_one_group() {
        let mut history = combined();
        history.worker(holder(0), &IDLE_REPLY, &Call::Apply);
        let reply = Reply::Joined(Box::new(again(None, 0, 1)));
        history.worker(holder(1), &reply, &Call::Enter(Box::new(again(None, 0, 1))));
        history.worker(holder(1), &Reply::Entered, &IDLE);
        history
            .worker(holder(1), &Reply::Combined(result(0, &[])), &Call::Apply)
            .fails("are both in the model");
    }

    #[test]
    fn all_go_on_from_one_model() {
        let enter = |joined: Joined| (Reply::Joined(Box::new(joined.clone())), Call::Enter(Box::new(joined)));
        let (reply, call) = enter(again(Some(Rank(0)), 1, 0));
        combined().worker(holder(0), &reply, &call).fails("has step none, and its group goes on from step 0");
        let mut history = combined();
        history.worker(holder(0), &IDLE_REPLY, &Call::Apply).worker(holder(0), &reply, &call).holds();
        let (reply, call) = enter(again(None, 0, 0));
        let mut history = combined();
        history.worker(holder(0), &IDLE_REPLY, &Call::Apply);
        history.worker(holder(0), &reply, &call).fails("is to start anew");
        let (reply, call) = enter(again(Some(Rank(0)), 1, 7));
        combined().worker(holder(7), &reply, &call).fails("has no model");
    }

    #[test]
    fn with_servers_a_commit_settles_the_pushes_that_it_names() {
        let acks = vec![ack(1, 4)];
        let readiness =
            Readiness { samples: 4, end_of_data: false, plan: PlanVersion(1), acks: acks.clone() };
        let ready = HeadEvent::Ready { holder: holder(0), step: 0, readiness };
        let commit = |acks: Vec<Ack>| {
            let contributors = BTreeMap::from([(holder(0), acks)]).into();
            let commit = StepCommit { contributors, samples: 4, everyone: true, ..StepCommit::default() };
            HeadEffect::Committed(holder(0), Box::new(commit))
        };
        let new = || {
            let mut history = History::new(CommittedOnce::new(&setup("ps-bsp"), &spec()));
            history.granted(holder(0), 1, &[grant(1, 0, 0)]).head(&ready, &HeadAnswer::Parked);
            history
        };
        let settle = HeadEffect::Settle(Contribution { holder: holder(0), acks: acks.as_slice().into() });
        new().effect(&settle).recorded_ack(0, 4).effect(&commit(acks.clone())).holds();
        new().effect(&commit(acks)).fails("not settled");
        new().effect(&settle).effect(&commit(vec![ack(1, 5)])).fails("which it did not say");
    }

    #[test]
    fn a_push_at_ones_own_pace_is_acknowledged_when_it_counts_and_never_trained_again() {
        let acks = vec![ack(1, 4)];
        let readiness =
            Readiness { samples: 4, end_of_data: false, plan: PlanVersion(1), acks: acks.clone() };
        let ready = HeadEvent::Ready { holder: holder(0), step: 7, readiness };
        let settle = HeadEffect::Settle(Contribution { holder: holder(0), acks: acks.as_slice().into() });
        let new = || {
            let mut history = History::new(CommittedOnce::new(&setup("ps-asp"), &spec()));
            history.generation(1).granted(holder(0), 1, &[grant(1, 0, 0)]);
            history.worker(holder(0), &Reply::Pushed, &IDLE).head(&ready, &HeadAnswer::Parked);
            history
        };
        new().effect(&settle).recorded_ack(0, 4).holds();
        new().recorded_ack(0, 4).fails("only 0 are in the model");
        // What was pushed and does not count is trained by another worker; what counts is not.
        new().lost(holder(0)).granted(holder(1), 1, &[grant(2, 0, 0)]).holds();
        let mut history = new();
        history.effect(&settle).lost(holder(0)).granted(holder(1), 1, &[grant(2, 0, 0)]);
        history.fails("the model has 4 of it");
        let call = Call::Ready {
            step: 7,
            readiness: Readiness { samples: 4, end_of_data: false, plan: PlanVersion(1), acks },
        };
        new().worker(holder(0), &Reply::Pushed, &call).holds();
        new().worker(holder(0), &Reply::Loaded, &call).fails("which they did not answer");
        let other = HeadEffect::Settle(Contribution { holder: holder(0), acks: vec![ack(1, 5)].into() });
        new().effect(&other).fails("which it did not say");
    }
}
