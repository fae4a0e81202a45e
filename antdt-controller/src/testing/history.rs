//! Random histories of a job as values, which can be drawn, shrunk, printed and replayed.

use antdt_core::testing::Setting;
use antdt_core::{Capabilities, InvalidValue};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

pub use antdt_core::testing::history::replay;

/// Largest number of workers in a history.
pub const WORKERS_MAX: u8 = 8;

/// Settings of the job of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Sync mode of the job, as an index into `Capabilities::COMMON`, 0 to 7.
    pub sync: u8,
    /// Number of workers at the start, 1 to 8. Worker 0 is the chief.
    pub workers: u8,
    /// Samples per step for each worker.
    pub samples_per_worker: u16,
    /// Smallest batch that a worker takes, in samples.
    pub batch_size_min: u16,
    /// Restarts that the budget allows within an hour.
    pub restarts_per_hour: u8,
    /// Restarts that the budget allows at the same time, in percent of the workers.
    pub at_once_percent: u8,
    /// Whether the policy may restart the chief.
    pub chief_allowed: bool,
}

/// One step of a history. Its numbers are valid in every state; a step that finds nothing to act on is
/// skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// Time passes, and the dispatcher gets a control tick.
    Tick {
        /// Seconds since the previous step of the history.
        after: u16,
    },
    /// The pace of a worker changes.
    Pace {
        /// Index of the worker.
        node: u8,
        /// The worker's time per sample, in percent of the usual time; 0 makes it unknown.
        percent: u16,
        /// Whether the worker has had this pace through the long window.
        lasting: bool,
    },
    /// The dispatcher hears that all workers switched to the plan in flight or, late, to the plan that was
    /// withdrawn last.
    Applied {
        /// Whether the message is about the plan that was withdrawn last.
        late: bool,
    },
    /// A worker is lost, and the others form a new group.
    Lose {
        /// Index of the worker.
        node: u8,
    },
    /// An absent worker joins, and the workers form a new group.
    Join {
        /// Index of the worker.
        node: u8,
    },
    /// A message about an earlier membership arrives late.
    OldGroup,
    /// A restart ends.
    Ended {
        /// Index of the restart among those in progress.
        which: u8,
        /// Whether the node came back.
        well: bool,
        /// Whether the dispatcher is told of the end twice.
        twice: bool,
    },
    /// The cluster becomes busy (`true`) or stops being so (`false`).
    Busy(bool),
}

/// A test case for a dispatcher and its policy: a job, and the steps that happen to it.
///
/// `Display` writes it on one line, which [`replay`] reads; `Debug` shows one step on each line.
pub type History = antdt_core::testing::History<Job>;

impl Setting for Job {
    const NAME: &'static str = "job";

    type Step = Step;

    fn check(&self) -> Result<(), InvalidValue> {
        if self.workers == 0 || self.workers > WORKERS_MAX {
            return Err(InvalidValue::new("workers", self.workers, "1 to 8 in a history"));
        }
        if usize::from(self.sync) >= Capabilities::COMMON.len() {
            return Err(InvalidValue::new("sync", self.sync, "0 to 7"));
        }
        if self.samples_per_worker == 0 || self.batch_size_min > self.samples_per_worker {
            let expected = "at least 1, and at least batch_size_min";
            return Err(InvalidValue::new("samples_per_worker", self.samples_per_worker, expected));
        }
        Ok(())
    }
}

fn jobs() -> impl Strategy<Value = Job> {
    let limits = (0..5_u8, prop_oneof![Just(5_u8), Just(100)], prop::bool::weighted(0.25));
    let modes = u8::try_from(Capabilities::COMMON.len()).expect("a few");
    (0..modes, 1..=WORKERS_MAX, 1..200_u16, 0..3_u16, limits).prop_map(
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

/// Returns a proptest strategy for histories of up to 8 workers and up to 100 steps.
pub fn any() -> impl Strategy<Value = History> {
    antdt_core::testing::history::of(jobs(), steps(), 0..=100)
}
