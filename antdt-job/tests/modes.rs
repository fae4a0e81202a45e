//! `check_mode` as a user has it: over a mode of one's own that is sound, and over modes with planted defects, each of which must be
//! found and named; `check_mode` finds it again by the line that replays it.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use antdt_agent::Batch;
use antdt_core::{
    AckPoint, Capabilities, Contribution, Holder, JobTime, Joined, Readiness, Standing, StepCommit,
};
use antdt_job::head::HeadCore;
use antdt_job::mode::{Departure, HeadHalf, Mode, Turn, WorkerHalf};
use antdt_job::testing::history::Step;
use antdt_job::testing::{Broken, Invariant, check_mode};
use antdt_job::worker::WorkerCore;
use antdt_job::{Call, Reply, SyncMode};

/// What is wrong with a mode.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Defect {
    None,
    /// The mode names another moment at which samples count than the one at which its workers or the master acknowledge them.
    OtherAcks,
    /// A worker acknowledges its batch as soon as it has read it.
    EarlyAck,
    /// The master forgets those that die.
    ForgetsTheDead,
    /// A worker takes the reply to a gradient for no answer.
    Confused,
    /// The master says that a push counts, and does not have its samples acknowledged.
    CountsWithoutAck,
    /// The master has the samples of a push acknowledged, and says that none counts.
    AcksWithoutCount,
    /// After a rollback, a worker trains the batch that it had before.
    TrainsUndone,
    /// After a rollback, the master goes on with the step that was open before.
    KeepsOpenStep,
    /// The master lets every worker begin that asks.
    NeverWaits,
    /// A worker takes samples that came too late for trained.
    CountsTheLate,
    /// A worker whose gradient came too late brings it all the same.
    BringsTheLate,
}

/// A mode that ships, with a defect.
#[derive(Debug)]
struct Mine(SyncMode, Defect);

impl Mode for Mine {
    fn name(&self) -> &'static str {
        "mine"
    }
    fn capabilities(&self) -> Capabilities {
        let capabilities = self.0.capabilities();
        match self.1 {
            Defect::OtherAcks => {
                let other = match capabilities.acks {
                    AckPoint::Commit => AckPoint::Step,
                    _ => AckPoint::Commit,
                };
                Capabilities { acks: other, ..capabilities }
            }
            _ => capabilities,
        }
    }
    fn head(&self) -> Box<dyn HeadHalf> {
        Box::new(Head(self.0.head(), self.1))
    }
    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(Worker(self.0.worker(), self.1, Old::default()))
    }
}

#[derive(Debug)]
struct Head(Box<dyn HeadHalf>, Defect);

impl HeadHalf for Head {
    fn joining(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, standing: Standing) {
        self.0.joining(now, core, holder, standing);
    }
    fn ready(
        &mut self,
        now: JobTime,
        core: &mut HeadCore,
        holder: Holder,
        step: u64,
        readiness: Readiness,
    ) -> Result<(), String> {
        if self.1 == Defect::NeverWaits && readiness.samples > 0 && readiness.acks.is_empty() {
            let begins =
                StepCommit { step, asked: step, counted: true, everyone: true, ..StepCommit::default() };
            core.tell_commit(holder, begins);
            return Ok(());
        }
        if self.1 == Defect::CountsWithoutAck {
            let acks = [].into();
            return self.0.ready(now, core, holder, step, Readiness { acks, ..readiness });
        }
        if self.1 == Defect::AcksWithoutCount {
            core.settle(Contribution { holder, acks: readiness.acks.into() });
            return Ok(());
        }
        self.0.ready(now, core, holder, step, readiness)
    }
    fn ordered(&mut self, core: &mut HeadCore, holder: Holder) {
        self.0.ordered(core, holder);
    }
    fn left(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, departure: Departure) {
        self.0.left(now, core, holder, departure);
    }
    fn lost(&mut self, now: JobTime, core: &mut HeadCore, holder: Holder, took_part: bool) {
        if self.1 != Defect::ForgetsTheDead {
            self.0.lost(now, core, holder, took_part);
        }
    }
    fn set_back(&mut self, now: JobTime, core: &mut HeadCore) {
        if self.1 != Defect::KeepsOpenStep {
            self.0.set_back(now, core);
        }
    }
    fn go_on(&mut self, now: JobTime, core: &mut HeadCore) {
        self.0.go_on(now, core);
    }
}

#[derive(Debug, Clone)]
struct Worker(Box<dyn WorkerHalf>, Defect, Old);

/// The batch of a call that broke off, and how far its worker has come with it after the rollback.
#[derive(Debug, Clone, Default)]
struct Old(Option<Batch>, u8);

impl WorkerHalf for Worker {
    fn standing(&self) -> Standing {
        self.0.standing()
    }
    fn knows(&self, joined: &Joined) -> bool {
        self.0.knows(joined)
    }
    fn rolled_back(&mut self) {
        self.0.rolled_back();
    }
    fn joined(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, joined: &Joined) -> Call {
        if let Some(batch) = &self.2.0 {
            self.2.1 = 1;
            return core.call(Call::Load(batch.clone()));
        }
        self.0.joined(core, turn, joined)
    }
    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        if self.1 == Defect::EarlyAck
            && let Some(call) = core.commit()
        {
            return core.feed(call);
        }
        self.0.loaded(core, turn)
    }
    fn before_fault(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Option<Call> {
        self.0.before_fault(core, turn)
    }
    fn answered(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>, reply: &Reply) -> Call {
        if self.1 == Defect::Confused && matches!(reply, Reply::Computed { .. }) {
            return core.not_an_answer(reply, &"loading");
        }
        if self.1 == Defect::CountsTheLate
            && let Reply::Committed(commit) = reply
        {
            let counted = commit.answering(commit.asked, true);
            return self.0.answered(core, turn, &Reply::Committed(Box::new(counted)));
        }
        if self.1 == Defect::TrainsUndone {
            if *reply == Reply::Broken && !core.batch().is_empty() {
                self.2.0 = Some(core.batch().clone());
            }
            let call = match (reply, self.2.1, &self.2.0) {
                (Reply::Loaded, 1, _) => Some(Call::Compute),
                (Reply::Computed { samples, .. }, 2, _) => Some(Call::Push { step: 0, samples: *samples }),
                (Reply::Pushed, 3, Some(batch)) => {
                    let (samples, acks, plan) =
                        (batch.len(), batch.acks().into_vec(), core.switch().applied());
                    let readiness = Readiness { samples, end_of_data: false, plan, acks };
                    Some(Call::Ready { step: 0, readiness })
                }
                (Reply::Committed(_), 4, _) => Some(Call::Apply),
                _ => None,
            };
            if let Some(call) = call {
                self.2.1 += 1;
                return core.call(call);
            }
        }
        let call = self.0.answered(core, turn, reply);
        match call {
            Call::Combine { step, samples: 0, peers, .. } if self.1 == Defect::BringsTheLate => {
                let (samples, acks) = (core.batch().len(), core.acks_of(core.batch()));
                core.call(Call::Combine { step, samples, acks, peers })
            }
            call => call,
        }
    }
    fn fed(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Call {
        self.0.fed(core, turn)
    }
    fn clone_box(&self) -> Box<dyn WorkerHalf> {
        Box::new(self.clone())
    }
}

fn checked(mode: &str, defect: Defect) -> Result<(), Broken> {
    let mode = SyncMode::new(Mine(mode.parse().unwrap(), defect));
    let found = check_mode(&mode);
    if let Err(broken) = &found {
        // What each process does is needed, and that time passes; what goes wrong besides is not.
        let wrong = |step: &&Step| !matches!(step, Step::Run { .. } | Step::Beat | Step::Wait { .. });
        let wrong = broken.history().steps().iter().filter(wrong).count();
        assert!(wrong <= 6, "not small: {:?}", broken.history());
    }
    found
}

#[test]
fn a_sound_mode_of_ones_own_breaks_nothing() {
    for mode in SyncMode::examples() {
        checked(&mode.to_string(), Defect::None).unwrap();
    }
}

#[test]
fn every_planted_defect_is_found_and_named() {
    use Invariant::{SettledFirst, SurvivorsGoOn};
    for (mode, defect, broken) in [
        ("allreduce", Defect::OtherAcks, &[Invariant::Capabilities][..]),
        ("ps-asp", Defect::OtherAcks, &[Invariant::Capabilities][..]),
        ("allreduce", Defect::EarlyAck, &[Invariant::AckedIsInModel][..]),
        ("ps-asp", Defect::EarlyAck, &[Invariant::Capabilities][..]),
        ("local-sgd=2", Defect::EarlyAck, &[Invariant::AckedIsInModel][..]),
        ("ps-bsp", Defect::ForgetsTheDead, &[SettledFirst, SurvivorsGoOn]),
        ("local-sgd=2", Defect::Confused, &[Invariant::NeverConfused][..]),
        ("ps-asp", Defect::CountsWithoutAck, &[SurvivorsGoOn, Invariant::OnceInModel]),
        ("ps-asp", Defect::AcksWithoutCount, &[SurvivorsGoOn, Invariant::AckedIsInModel]),
        ("ps-asp", Defect::TrainsUndone, &[Invariant::ExactRollback][..]),
        ("ps-bsp", Defect::KeepsOpenStep, &[SurvivorsGoOn]),
        ("ps-backup=1", Defect::KeepsOpenStep, &[SurvivorsGoOn]),
        ("ps-backup=1", Defect::CountsTheLate, &[SurvivorsGoOn, Invariant::AckedIsInModel]),
        ("allreduce=1", Defect::ForgetsTheDead, &[SettledFirst, SurvivorsGoOn]),
        ("allreduce=1", Defect::BringsTheLate, &[Invariant::NeverConfused, Invariant::OnceInModel]),
        ("ps-ssp=0", Defect::NeverWaits, &[Invariant::BoundedLead][..]),
        ("ps-ssp=1", Defect::KeepsOpenStep, &[SurvivorsGoOn]),
    ] {
        let Err(found) = checked(mode, defect) else { panic!("{defect:?} of {mode} is not found") };
        assert!(broken.contains(&found.invariant()), "{mode} {defect:?}: {found}");
    }
}
