//! Random lives of a job, as values: drawn, shrunk, shown and played again.

use std::fmt;
use std::str::FromStr;

use antdt_core::InvalidValue;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

/// Most workers of a history.
pub const WORKERS_MAX: u8 = 4;

/// Most samples of a shard.
pub const SHARD_MAX: u8 = 11;

/// The job that a history is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Workers, 1 to 4.
    pub workers: u8,
    /// Samples of a step for each of them, at least 1.
    pub samples_per_worker: u8,
    /// Samples of each shard, 1 to 11.
    pub shards: Vec<u8>,
}

/// What can happen, chosen by numbers that mean something in every state. What finds nothing to happen to is skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// A process does the next things that it can do: replies reach workers in any order.
    Run {
        /// Which of those that live.
        process: u8,
        /// Number of repetitions.
        times: u8,
    },
    /// Every node sends its heartbeat, and the policy is asked.
    Beat,
    /// Time passes; deadlines of the master fire.
    Wait {
        /// Milliseconds.
        ms: u16,
    },
    /// A worker dies, mid-call or between two.
    Die {
        /// Which of those that live.
        process: u8,
        /// Whether the master hears of it only with the next heartbeats.
        late: bool,
        /// Which of its peers still get the result of the operation that it died in, one bit each.
        luck: u8,
    },
    /// The training thread of a worker that reads or computes never gets on; its heartbeats do.
    Hang {
        /// Which of those that live.
        process: u8,
    },
    /// The platform tells a node to leave, and does not end it.
    Preempt {
        /// Which of those that live, servers first.
        node: u8,
    },
    /// A server dies, and its part of the model with it.
    ServerDies {
        /// Which of those that live.
        server: u8,
        /// Whether the master hears of it only with the next heartbeats.
        late: bool,
        /// Whether checkpoints that were being written are complete.
        written: bool,
    },
    /// The call of a worker's group breaks off though no member died.
    Break {
        /// Which of the processes that live.
        process: u8,
    },
    /// The policy wants other batch sizes, and another number of local steps where there are such.
    Plan {
        /// Samples that the first worker gives to the last.
        shift: u8,
        /// Micro-batches in which batches are computed: 0 if all are computed at once, else more in one worker than in
        /// another.
        #[serde(default)]
        pieces: u8,
        /// Steps between two averages.
        local_steps: u8,
    },
    /// The policy wants a worker restarted; one that it adds is a worker that joins.
    Restart {
        /// Which of those that may be.
        worker: u8,
        /// Time to finish its batch.
        drain_ms: u16,
    },
    /// The user wants another number of workers.
    Scale {
        /// How many: 0 is refused, and so are more than the samples of a global batch.
        workers: u8,
    },
    /// The user wants a checkpoint at once.
    Checkpoint,
    /// The master dies with all that waits in it, and another one goes on from its record; so does the shard service.
    RestartMaster {
        /// Whether checkpoints that were being written are complete.
        written: bool,
    },
    /// A copy of an earlier question for a group arrives again.
    OldJoin {
        /// Which of the last questions.
        which: u8,
    },
    /// The shard service restarts: leases get other names.
    RestartService,
    /// The shard service asks a worker to give back what it has not begun.
    Recall {
        /// Which of the processes that live.
        process: u8,
    },
    /// The next batch that a worker reads holds a sample that it cannot read.
    Unreadable {
        /// Which of the processes that live.
        process: u8,
    },
}

/// A job and what happens to it. After the last step nothing goes wrong any more, and the job has to end.
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
        if !(1..=WORKERS_MAX).contains(&job.workers) {
            return Err(InvalidValue::new("workers", job.workers, "1 to 4 in a history"));
        }
        if job.samples_per_worker == 0 {
            return Err(InvalidValue::new("samples_per_worker", 0, "at least 1"));
        }
        if let Some(len) = job.shards.iter().find(|len| !(1..=SHARD_MAX).contains(*len)) {
            return Err(InvalidValue::new("shards", len, "1 to 11 samples each"));
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
    let shards = prop::collection::vec(1..=SHARD_MAX, 0..7);
    (1..=WORKERS_MAX, 1..5_u8, shards).prop_map(|(workers, samples_per_worker, shards)| Job {
        workers,
        samples_per_worker,
        shards,
    })
}

fn steps() -> impl Strategy<Value = Step> {
    let process = || 0..WORKERS_MAX;
    prop_oneof![
        40 => (process(), 1..6_u8).prop_map(|(process, times)| Step::Run { process, times }),
        8 => Just(Step::Beat),
        3 => (0..400_u16).prop_map(|ms| Step::Wait { ms }),
        3 => (process(), prop::bool::ANY, prop::num::u8::ANY)
            .prop_map(|(process, late, luck)| Step::Die { process, late, luck }),
        1 => process().prop_map(|process| Step::Hang { process }),
        1 => (0..WORKERS_MAX + 2).prop_map(|node| Step::Preempt { node }),
        1 => (0..2_u8, prop::bool::ANY, prop::bool::ANY)
            .prop_map(|(server, late, written)| Step::ServerDies { server, late, written }),
        2 => process().prop_map(|process| Step::Break { process }),
        3 => (0..8_u8, 0..4_u8, 1..6_u8)
            .prop_map(|(shift, pieces, local_steps)| Step::Plan { shift, pieces, local_steps }),
        2 => (process(), 0..300_u16).prop_map(|(worker, drain_ms)| Step::Restart { worker, drain_ms }),
        1 => (0..=WORKERS_MAX + 2).prop_map(|workers| Step::Scale { workers }),
        1 => Just(Step::Checkpoint),
        1 => prop::bool::ANY.prop_map(|written| Step::RestartMaster { written }),
        1 => (0..6_u8).prop_map(|which| Step::OldJoin { which }),
        1 => Just(Step::RestartService),
        1 => process().prop_map(|process| Step::Recall { process }),
        1 => process().prop_map(|process| Step::Unreadable { process }),
    ]
}

/// Any job of up to 4 workers and 66 samples, and up to 250 steps.
pub fn any() -> impl Strategy<Value = History> {
    (jobs(), prop::collection::vec(steps(), 0..=250)).prop_map(|(job, steps)| History { job, steps })
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
