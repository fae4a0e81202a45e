//! [`Checkpoints`]: when a checkpoint is taken, which worker takes it, and which workers stand still meanwhile.
//!
//! A checkpoint is the model and the ledger at one moment at which every acknowledged sample is in the model, and nothing else
//! is. One worker, the *keeper*, finds that moment: it stands still between two steps, takes a copy of the model or has
//! the servers take theirs, and has the ledger cut. It goes on as soon as the copies exist; writing them is done beside
//! the training.
//!
//! Where a step takes all workers, none can be committed while the keeper stands still, so it alone has to. Where each works at
//! its own pace, all of them stand still between two of their steps, those that come wait to be let in, and the last to
//! stop begins the copying.
//!
//! A checkpoint through which servers hand their parameters over holds the training until it is complete: every worker that stands
//! still when its copies exist, the keeper among them, stays so, and workers that come wait.
//!
//! An attempt that is not through in time is given up, and all workers go on; the next one has another number.
//!
//! Source: our design.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use antdt_core::text::{format_duration, parse_duration};
use antdt_core::{CheckpointId, Holder, InvalidValue, JobTime};

/// How long workers may take to come to rest, and the keeper to take its copies: far longer than a step.
const CUT_LIMIT: Duration = Duration::from_secs(120);

/// How long the copies may take to be written.
const WRITE_LIMIT: Duration = Duration::from_secs(1800);

/// How long after a failed attempt the next one begins.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Condition that makes a checkpoint due, besides the end of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CheckpointEvery {
    /// No condition: the only checkpoint is the one at the end of the job.
    #[default]
    End,
    /// This much time has passed since the last checkpoint.
    Time(Duration),
    /// This many steps were taken since the last checkpoint. In modes without common steps, those of the
    /// fastest worker count.
    Steps(u64),
    /// An epoch has ended.
    Epoch,
}

impl fmt::Display for CheckpointEvery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::End => f.write_str("end"),
            Self::Time(every) => f.write_str(&format_duration(*every)),
            Self::Steps(every) => write!(f, "{every}steps"),
            Self::Epoch => f.write_str("epoch"),
        }
    }
}

impl FromStr for CheckpointEvery {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let expected = "a time such as 10m, a number of steps such as 500steps, epoch, or end";
        let refused = || InvalidValue::new("--checkpoint-every", text, expected);
        match text {
            "end" => return Ok(Self::End),
            "epoch" => return Ok(Self::Epoch),
            _ => {}
        }
        if let Some(steps) = text.strip_suffix("steps").or_else(|| text.strip_suffix("step")) {
            let steps = steps.trim().parse().ok().filter(|steps| *steps > 0);
            return steps.map(Self::Steps).ok_or_else(refused);
        }
        parse_duration(text).ok().filter(|every| !every.is_zero()).map(Self::Time).ok_or_else(refused)
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for CheckpointEvery {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for CheckpointEvery {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(from)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Settings of the checkpoints of a job: when one is due, and how they are numbered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CheckpointSchedule {
    /// Condition that makes a checkpoint due.
    pub every: CheckpointEvery,
    /// Number of the first checkpoint.
    pub first: CheckpointId,
    /// Number of passes over the data, from which the ends of epochs are computed.
    pub epochs: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Workers are to stand still.
    Resting,
    /// The keeper takes copies.
    Cutting,
    /// The copies exist and are written.
    Writing,
}

#[derive(Debug, Clone)]
struct Attempt {
    id: CheckpointId,
    stage: Stage,
    /// Every worker has to stand still, not the keeper alone.
    everyone: bool,
    /// The job goes on from nothing but the complete checkpoint: those that stand still do so until then.
    holds: bool,
    /// Takes the copies; where every worker stands still it is known once all do.
    keeper: Option<Holder>,
    /// Stand still and wait for the word to go on.
    resting: BTreeSet<Holder>,
    until: JobTime,
}

impl Attempt {
    /// The answers to the workers that stand still, once nothing waits for them any more.
    fn let_go(self) -> Vec<Rested> {
        let go_on = |holder| Rested { holder, checkpoint: self.id, keep: false };
        self.resting.into_iter().map(go_on).collect()
    }
}

/// What a worker that stands still is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rested {
    pub(super) holder: Holder,
    /// The checkpoint that the worker stands still for: it takes no answer for another one.
    pub(super) checkpoint: CheckpointId,
    /// Take the copies; otherwise go on.
    pub(super) keep: bool,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(super) struct Checkpoints {
    schedule: CheckpointSchedule,
    next: CheckpointId,
    /// When the last one was begun, in time, steps and epochs.
    last: (JobTime, u64, u64),
    not_before: JobTime,
    steps: u64,
    attempt: Option<Attempt>,
    /// The one that ends the job, and when it is given up.
    last_of_all: Option<(CheckpointId, JobTime)>,
    /// The newest one that is complete.
    newest: Option<CheckpointId>,
}

impl Checkpoints {
    pub(super) const fn new(schedule: CheckpointSchedule) -> Self {
        let next = schedule.first;
        let last = (JobTime::ZERO, 0, 0);
        Self {
            schedule,
            next,
            last,
            not_before: JobTime::ZERO,
            steps: 0,
            attempt: None,
            last_of_all: None,
            newest: None,
        }
    }

    /// A worker reported this step.
    pub(super) fn stepped(&mut self, step: u64) {
        self.steps = self.steps.max(step + 1);
    }

    /// Training begins, with this many samples committed of `total`: what was done before is behind an earlier checkpoint.
    pub(super) fn started(&mut self, now: JobTime, committed: u64, total: u64) {
        self.last = (now, self.steps, self.epochs_done(committed, total));
    }

    fn epochs_done(&self, committed: u64, total: u64) -> u64 {
        let rows = total / u64::from(self.schedule.epochs.max(1));
        committed.checked_div(rows).unwrap_or(0)
    }

    /// Whether an attempt should begin.
    pub(super) fn is_due(&self, now: JobTime, committed: u64, total: u64) -> bool {
        let (time, steps, epochs) = self.last;
        let due = match self.schedule.every {
            CheckpointEvery::End => false,
            CheckpointEvery::Time(every) => now.since(time) >= every,
            CheckpointEvery::Steps(every) => self.steps.saturating_sub(steps) >= every,
            CheckpointEvery::Epoch => self.epochs_done(committed, total) > epochs,
        };
        due && self.attempt.is_none() && now >= self.not_before
    }

    /// Begins an attempt. `keeper` alone stands still, or every worker if there is none.
    pub(super) fn begin(
        &mut self,
        now: JobTime,
        keeper: Option<Holder>,
        committed: u64,
        total: u64,
    ) -> CheckpointId {
        let id = self.next;
        self.next = CheckpointId(id.0 + 1);
        self.last = (now, self.steps, self.epochs_done(committed, total));
        let until = now + CUT_LIMIT;
        self.attempt = Some(Attempt {
            id,
            stage: Stage::Resting,
            everyone: keeper.is_none(),
            holds: false,
            keeper,
            resting: BTreeSet::new(),
            until,
        });
        id
    }

    /// Number of the next one.
    pub(super) const fn next(&self) -> CheckpointId {
        self.next
    }

    /// Those before this one were begun under an earlier master.
    pub(super) fn continue_at(&mut self, next: CheckpointId) {
        self.next = self.next.max(next);
    }

    /// How long this attempt has been written, if it is.
    pub(super) fn writes_for(&self, now: JobTime, id: CheckpointId) -> Option<Duration> {
        let writing = |attempt: &&Attempt| attempt.id == id && attempt.stage == Stage::Writing;
        // When it is given up was set when its copies existed.
        let attempt = self.attempt.as_ref().filter(writing)?;
        Some(WRITE_LIMIT.saturating_sub(attempt.until.since(now)))
    }

    /// Number of the attempt under way, or else of the last one.
    pub(super) const fn attempt_id(&self) -> CheckpointId {
        match &self.attempt {
            Some(attempt) => attempt.id,
            None => CheckpointId(self.next.0.saturating_sub(1)),
        }
    }

    /// Whether this checkpoint is being taken.
    pub(super) fn is_under_way(&self, id: CheckpointId) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.id == id) || self.last_of_all() == Some(id)
    }

    /// Whether this checkpoint may become complete: its copies were taken while the workers stood still for it, and it has not been
    /// given up since.
    pub(super) fn may_complete(&self, id: CheckpointId) -> bool {
        let is_open = |attempt: &Attempt| attempt.id == id && attempt.stage == Stage::Writing;
        self.attempt.as_ref().is_some_and(is_open) || self.last_of_all() == Some(id)
    }

    /// Whether an attempt is under way.
    pub(super) const fn is_busy(&self) -> bool {
        self.attempt.is_some()
    }

    /// Has the workers that stand still for the attempt under way do so until it is complete. Returns its number; `None` if there is
    /// none, or its copies exist and the job trains already.
    pub(super) fn hold_training(&mut self) -> Option<CheckpointId> {
        let attempt = self.attempt.as_mut().filter(|attempt| attempt.stage != Stage::Writing)?;
        attempt.holds = true;
        Some(attempt.id)
    }

    /// Whether no step may be committed without the keeper: an attempt waits for workers to stand still, or for its copies, or has
    /// them stand still to its end.
    pub(super) fn is_gathering(&self) -> bool {
        self.attempt.as_ref().is_some_and(|attempt| attempt.stage != Stage::Writing || attempt.holds)
    }

    /// The checkpoint for which this worker should stand still.
    pub(super) fn order(&self, holder: Holder) -> Option<CheckpointId> {
        let attempt = self.attempt.as_ref().filter(|attempt| attempt.stage == Stage::Resting)?;
        attempt.keeper.is_none_or(|keeper| keeper == holder).then_some(attempt.id)
    }

    /// Whether workers that come have to wait until the copies are taken, or the checkpoint is complete.
    pub(super) fn holds_joins(&self) -> bool {
        let holds = |of: &Attempt| of.holds || (of.everyone && of.stage != Stage::Writing);
        self.attempt.as_ref().is_some_and(holds)
    }

    /// A worker stands still for this checkpoint. The master waits for those of `workers` that do not yet; once all stand still,
    /// the answer is for the worker that is to take the copies. `None`: no worker is answered yet.
    pub(super) fn rests(
        &mut self,
        holder: Holder,
        id: CheckpointId,
        workers: impl Iterator<Item = Holder>,
    ) -> Option<Rested> {
        let answer = |keep| Some(Rested { holder, checkpoint: id, keep });
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.id == id) else {
            return answer(false);
        };
        match attempt.stage {
            Stage::Resting if attempt.keeper.is_none_or(|keeper| keeper == holder) => {
                attempt.resting.insert(holder);
                self.all_rest(workers)
            }
            // Its answer was lost.
            Stage::Cutting if attempt.keeper == Some(holder) => answer(true),
            Stage::Cutting if attempt.resting.contains(&holder) => None,
            Stage::Writing if attempt.holds => {
                attempt.resting.insert(holder);
                None
            }
            _ => answer(false),
        }
    }

    /// The answer to the worker that is to take the copies, if all workers stand still that have to.
    fn all_rest(&mut self, mut workers: impl Iterator<Item = Holder>) -> Option<Rested> {
        let attempt = self.attempt.as_mut().filter(|attempt| attempt.stage == Stage::Resting)?;
        let ready = match attempt.keeper {
            Some(keeper) => attempt.resting.contains(&keeper),
            None => workers.all(|worker| attempt.resting.contains(&worker)),
        };
        let keeper = attempt.keeper.or_else(|| attempt.resting.first().copied()).filter(|_| ready)?;
        attempt.keeper = Some(keeper);
        attempt.stage = Stage::Cutting;
        Some(Rested { holder: keeper, checkpoint: attempt.id, keep: true })
    }

    /// The copies of an attempt exist, or cannot be had. Returns the answers to the other workers, which go on.
    pub(super) fn cut(&mut self, now: JobTime, id: CheckpointId, taken: bool) -> Vec<Rested> {
        let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.id == id) else {
            return Vec::new();
        };
        if attempt.stage != Stage::Cutting {
            return Vec::new();
        }
        attempt.stage = Stage::Writing;
        attempt.until = now + WRITE_LIMIT;
        if taken && attempt.holds {
            return Vec::new();
        }
        let keeper = attempt.keeper;
        let others: Vec<Holder> = std::mem::take(&mut attempt.resting)
            .into_iter()
            .filter(|holder| Some(*holder) != keeper)
            .collect();
        if !taken {
            self.give_up(now);
        }
        others.into_iter().map(|holder| Rested { holder, checkpoint: id, keep: false }).collect()
    }

    /// A checkpoint is complete, or never will be: the attempt under way, or the last of all. Returns the answers to the workers that
    /// stand still for it, which go on.
    pub(super) fn ended(&mut self, now: JobTime, id: CheckpointId, kept: bool) -> Vec<Rested> {
        self.last_of_all.take_if(|(last, _)| *last == id);
        if kept {
            self.newest = self.newest.max(Some(id));
        }
        let Some(attempt) = self.attempt.take_if(|attempt| attempt.id == id) else { return Vec::new() };
        if !kept {
            self.not_before = now + RETRY_PAUSE;
        }
        attempt.let_go()
    }

    /// A worker is gone. The master gives an attempt up whose keeper is gone, also while that worker writes the copies itself
    /// (`writes`); an attempt that waited for the worker goes on without it. Returns the answers to workers that stand still.
    pub(super) fn gone(
        &mut self,
        now: JobTime,
        holder: Holder,
        writes: bool,
        workers: impl Iterator<Item = Holder>,
    ) -> Vec<Rested> {
        let Some(attempt) = &mut self.attempt else { return Vec::new() };
        attempt.resting.remove(&holder);
        let mut workers = workers.peekable();
        // Without any worker none would begin the copying, and those that come would wait.
        let alone = attempt.keeper == Some(holder) || workers.peek().is_none();
        if alone && attempt.stage != Stage::Writing {
            return self.give_up(now);
        }
        if attempt.stage == Stage::Writing && writes && attempt.keeper == Some(holder) {
            return self.give_up(now);
        }
        self.all_rest(workers).into_iter().collect()
    }

    /// Gives the attempt up. Returns the answers to the workers that stand still, which go on.
    pub(super) fn give_up(&mut self, now: JobTime) -> Vec<Rested> {
        let Some(attempt) = self.attempt.take() else { return Vec::new() };
        self.not_before = now + RETRY_PAUSE;
        attempt.let_go()
    }

    /// What was trained is undone. Gives the attempt up; steps and epochs count from the checkpoint on, when training begins again.
    /// Returns the answers to the workers that stand still, which go on.
    pub(super) fn roll_back(&mut self, now: JobTime) -> Vec<Rested> {
        let told = self.give_up(now);
        self.not_before = now;
        self.steps = 0;
        self.last_of_all = None;
        told
    }

    /// All samples are done: returns the number of the checkpoint that a worker takes which has the model.
    pub(super) fn take_last(&mut self, now: JobTime) -> CheckpointId {
        let id = self.next;
        self.next = CheckpointId(id.0 + 1);
        self.last_of_all = Some((id, now + CUT_LIMIT + WRITE_LIMIT));
        id
    }

    /// The newest complete checkpoint.
    pub(super) const fn newest(&self) -> Option<CheckpointId> {
        self.newest
    }

    /// A complete checkpoint that is newer than this one, whose parts may have been removed for that reason.
    pub(super) fn overtaken(&self, id: CheckpointId) -> Option<CheckpointId> {
        self.newest.filter(|newest| *newest > id)
    }

    /// The checkpoint that ends the job, while it is awaited.
    pub(super) fn last_of_all(&self) -> Option<CheckpointId> {
        self.last_of_all.map(|(id, _)| id)
    }

    /// Gives the checkpoint up that ends the job, if it takes too long. Returns its number.
    pub(super) fn give_up_last(&mut self, now: JobTime) -> Option<CheckpointId> {
        self.last_of_all.take_if(|(_, until)| *until <= now).map(|(id, _)| id)
    }

    /// The one that ends the job will not come.
    pub(super) const fn without_last(&mut self) {
        self.last_of_all = None;
    }

    /// When the attempt under way is given up, or the one that ends the job.
    pub(super) fn deadline(&self) -> Option<JobTime> {
        let attempt = self.attempt.as_ref().map(|attempt| attempt.until);
        attempt.into_iter().chain(self.last_of_all.map(|(_, until)| until)).min()
    }
}

#[cfg(test)]
mod tests;
