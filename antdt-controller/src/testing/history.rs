//! Random lives of a job, as values: drawn, shrunk, shown and played again.

use std::fmt;
use std::str::FromStr;

use antdt_core::{Capabilities, InvalidValue};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// Most workers of a history.
pub const WORKERS_MAX: u8 = 8;

/// The job that a history is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// What the sync mode asks of plans: the place of its capabilities in `Capabilities::COMMON`, 0 to 5.
    pub sync: u8,
    /// Workers at the start, 1 to 8. Worker 0 is the chief.
    pub workers: u8,
    /// Samples of a step for each of them.
    pub samples_per_worker: u16,
    /// Fewest samples that a worker takes.
    pub batch_size_min: u16,
    /// Restarts within an hour that even a small job has.
    pub restarts_per_hour: u8,
    /// Restarts at the same time, in percent of the workers.
    pub at_once_percent: u8,
    /// Whether the chief may be restarted.
    pub chief_allowed: bool,
}

/// What can happen, chosen by numbers that mean something in every state. What finds nothing to happen to is skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// Time passes, and the controller looks at the job.
    Tick {
        /// Seconds since the last event.
        after: u16,
    },
    /// The pace of a worker changes.
    Pace {
        /// Number of the worker.
        node: u8,
        /// Its time per sample in percent of the usual; 0 if it is not known.
        percent: u16,
        /// Whether it has been so for long.
        lasting: bool,
    },
    /// All workers switched to the plan on its way; or to the one that was withdrawn last, which is late news.
    Applied {
        /// Whether it is late.
        late: bool,
    },
    /// A worker is lost, and the others form a new group.
    Lose {
        /// Number of the worker.
        node: u8,
    },
    /// A worker that is not there comes, and they form a new group.
    Join {
        /// Number of the worker.
        node: u8,
    },
    /// News of a group that is no more.
    OldGroup,
    /// A restart ends.
    Ended {
        /// Which of those that run.
        which: u8,
        /// Whether the node came back.
        well: bool,
        /// Whether the news comes twice.
        twice: bool,
    },
    /// The cluster gets busy, or is no longer.
    Busy(bool),
}

/// A job and what happens to it.
///
/// `Display` writes it on one line, which [`replay`] reads; `Debug` shows one step on each line.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct History {
    job: Job,
    steps: Vec<Step>,
}

impl History {
    /// A history of your own making.
    ///
    /// # Errors
    /// If there is no such job.
    pub fn new(job: Job, steps: Vec<Step>) -> Result<Self, InvalidValue> {
        if job.workers == 0 || job.workers > WORKERS_MAX {
            return Err(InvalidValue::new("workers", job.workers, "1 to 8 in a history"));
        }
        if usize::from(job.sync) >= Capabilities::COMMON.len() {
            return Err(InvalidValue::new("sync", job.sync, "0 to 5"));
        }
        if job.samples_per_worker == 0 || job.batch_size_min > job.samples_per_worker {
            let expected = "at least 1, and at least batch_size_min";
            return Err(InvalidValue::new("samples_per_worker", job.samples_per_worker, expected));
        }
        Ok(Self { job, steps })
    }

    /// The job.
    pub const fn job(&self) -> &Job {
        &self.job
    }

    /// Returns the steps of the history.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }
}

fn jobs() -> impl Strategy<Value = Job> {
    let limits = (0..5_u8, prop_oneof![Just(5_u8), Just(100)], prop::bool::weighted(0.25));
    (0..6_u8, 1..=WORKERS_MAX, 1..200_u16, 0..3_u16, limits).prop_map(
        |(sync, workers, samples, min, limits)| {
            let (restarts_per_hour, at_once_percent, chief_allowed) = limits;
            let batch_size_min = min.min(samples);
            let samples_per_worker = samples;
            Job {
                sync,
                workers,
                samples_per_worker,
                batch_size_min,
                restarts_per_hour,
                at_once_percent,
                chief_allowed,
            }
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let node = || 0..WORKERS_MAX;
    let percent = prop_oneof![
        6 => 90..111_u16,
        3 => 130..1_000_u16,
        1 => Just(0_u16),
        1 => prop::num::u16::ANY,
    ];
    prop_oneof![
        12 => (0..90_u16).prop_map(|after| Step::Tick { after }),
        6 => (node(), percent, prop::bool::ANY).prop_map(|(node, percent, lasting)| Step::Pace { node, percent, lasting }),
        8 => prop::bool::weighted(0.1).prop_map(|late| Step::Applied { late }),
        1 => node().prop_map(|node| Step::Lose { node }),
        2 => node().prop_map(|node| Step::Join { node }),
        1 => Just(Step::OldGroup),
        3 => (prop::num::u8::ANY, prop::bool::weighted(0.7), prop::bool::ANY)
            .prop_map(|(which, well, twice)| Step::Ended { which, well, twice }),
        1 => prop::bool::ANY.prop_map(Step::Busy),
    ]
}

/// Any job of up to 8 workers, and up to 100 steps.
pub fn any() -> impl Strategy<Value = History> {
    (jobs(), prop::collection::vec(steps(), 0..=100)).prop_map(|(job, steps)| History { job, steps })
}

/// The history that was written on one line by a failure.
///
/// # Panics
/// If it is none. `text.parse::<History>()` returns an error instead.
#[must_use]
pub fn replay(text: &str) -> History {
    match text.parse() {
        Ok(history) => history,
        Err(error) => panic!("history::replay: {error}"),
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for History {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let read: Self = serde_json::from_str(text)
            .map_err(|error| InvalidValue::new("history", error, "the line that a failure printed, whole"))?;
        Self::new(read.job, read.steps)
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.job)?;
        for (at, step) in self.steps.iter().enumerate() {
            write!(f, "\n  {}. {step:?}", at + 1)?;
        }
        write!(f, "\n  replay: {}", Line(self))
    }
}

/// The line of code that is a history.
pub(super) struct Line<'a>(pub(super) &'a History);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "history::replay(r#\"{}\"#)", self.0)
    }
}
