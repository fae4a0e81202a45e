//! Random histories of a job as values, which can be drawn, shrunk, printed and replayed.

use antdt_core::InvalidValue;
use antdt_core::testing::Setting;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

pub use antdt_core::testing::history::replay;

/// Largest number of workers in a history.
pub const WORKERS_MAX: u8 = 4;

/// Largest number of samples in a shard of a history.
pub const SHARD_MAX: u8 = 11;

/// The settings of the job that a history is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Number of workers, 1 to 4.
    pub workers: u8,
    /// Number of samples that each worker trains in a step, at least 1.
    pub samples_per_worker: u8,
    /// Number of samples in each shard, 1 to 11.
    pub shards: Vec<u8>,
}

/// One step of a history. Its numbers are taken modulo the number of things that exist at that moment, so
/// that they are valid in every state; a step that finds nothing to act on is skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// A process carries out its next actions. The history chooses the process, so that replies reach the
    /// workers in any order.
    Run {
        /// Index among the live processes.
        process: u8,
        /// Number of actions.
        times: u8,
    },
    /// Every node sends its heartbeat, and the policy is asked.
    Beat,
    /// Time passes, and deadlines of the master expire.
    Wait {
        /// Time that passes, in milliseconds.
        ms: u16,
    },
    /// A worker dies, in the middle of a call or between two calls.
    Die {
        /// Index among the live processes.
        process: u8,
        /// Whether the master hears of the death only with the next heartbeats.
        late: bool,
        /// Bit mask of the peers that still get the result of the operation in which the worker died.
        luck: u8,
    },
    /// The training thread of a worker hangs while it reads or computes, but the worker's heartbeats go on.
    Hang {
        /// Index among the live processes.
        process: u8,
    },
    /// The platform tells a node to leave, but does not end its process.
    Preempt {
        /// Index among the live nodes, servers first.
        node: u8,
    },
    /// A server dies, and its part of the model with it.
    ServerDies {
        /// Index among the live servers.
        server: u8,
        /// Whether the master hears of the death only with the next heartbeats.
        late: bool,
        /// Whether checkpoints that are being written are complete in spite of the death.
        written: bool,
    },
    /// An operation of a worker's group fails though no member died.
    Break {
        /// Index among the live processes.
        process: u8,
    },
    /// The policy asks for other batch sizes, and for another number of local steps where a mode has them.
    Plan {
        /// Number of samples that move from the first worker's batch to the last worker's.
        shift: u8,
        /// Number of micro-batches per batch: 0 if every batch is computed at once, otherwise different for different
        /// workers.
        #[serde(default)]
        pieces: u8,
        /// Number of steps between two averages.
        local_steps: u8,
        /// Number of workers that a step need not wait for, plus one; 0 leaves it to the mode.
        #[serde(default)]
        backups: u8,
    },
    /// The policy asks for the restart of a worker. A worker that joined the job later may be chosen, too.
    Restart {
        /// Index among the workers that may be restarted.
        worker: u8,
        /// Time in which the worker may finish its batch, in milliseconds.
        drain_ms: u16,
    },
    /// The user asks for another number of workers, and of servers where a mode has them.
    Scale {
        /// New number of workers. The master refuses 0, and more workers than the global batch has samples.
        workers: u8,
        /// New number of servers; 0 leaves it as it is.
        #[serde(default)]
        servers: u8,
    },
    /// The user asks for a checkpoint at once.
    Checkpoint,
    /// The master and the shard service die, with all calls that wait in them, and successors continue from
    /// what they recorded.
    RestartMaster {
        /// Whether checkpoints that are being written are complete in spite of the death.
        written: bool,
    },
    /// A copy of an earlier request to join a group arrives again.
    OldJoin {
        /// Index among the newest such requests.
        which: u8,
    },
    /// The shard service restarts, and gives the leases new ids.
    RestartService,
    /// The shard service asks a worker to give back the leases that it has not begun.
    Recall {
        /// Index among the live processes.
        process: u8,
    },
    /// The next batch that a worker reads holds a sample that it cannot read.
    Unreadable {
        /// Index among the live processes.
        process: u8,
    },
}

/// A job and what happens to it. After the last step no more faults happen, and the job has to end.
///
/// `Display` writes it on one line, which [`replay`] reads; `Debug` shows one step on each line.
pub type History = antdt_core::testing::History<Job>;

impl Setting for Job {
    const NAME: &'static str = "job";

    type Step = Step;

    fn check(&self) -> Result<(), InvalidValue> {
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            return Err(InvalidValue::new("workers", self.workers, "1 to 4 in a history"));
        }
        if self.samples_per_worker == 0 {
            return Err(InvalidValue::new("samples_per_worker", 0, "at least 1"));
        }
        if let Some(len) = self.shards.iter().find(|len| !(1..=SHARD_MAX).contains(*len)) {
            return Err(InvalidValue::new("shards", len, "1 to 11 samples each"));
        }
        Ok(())
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
        3 => (0..8_u8, 0..4_u8, 1..6_u8).prop_map(|(shift, pieces, local_steps)| {
            // A draw of its own would give every seed another history.
            Step::Plan { shift, pieces, local_steps, backups: shift % 4 }
        }),
        2 => (process(), 0..300_u16).prop_map(|(worker, drain_ms)| Step::Restart { worker, drain_ms }),
        // A draw of its own would give every seed another history.
        1 => (0..=WORKERS_MAX + 2).prop_map(|workers| Step::Scale { workers, servers: workers % 4 }),
        1 => Just(Step::Checkpoint),
        1 => prop::bool::ANY.prop_map(|written| Step::RestartMaster { written }),
        1 => (0..6_u8).prop_map(|which| Step::OldJoin { which }),
        1 => Just(Step::RestartService),
        1 => process().prop_map(|process| Step::Recall { process }),
        1 => process().prop_map(|process| Step::Unreadable { process }),
    ]
}

/// Returns a proptest strategy for histories of jobs with up to 4 workers and 66 samples, and up to 250
/// steps.
pub fn any() -> impl Strategy<Value = History> {
    antdt_core::testing::history::of(jobs(), steps(), 0..=250)
}
