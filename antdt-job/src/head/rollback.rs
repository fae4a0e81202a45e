//! [`Rollbacks`]: returns of the running job to its newest checkpoint, when the model is lost but the job is not.
//!
//! The model is lost with a server, of which each has a part, or with the last worker that has a replica. Then model and ledger
//! go back to one moment together: the newest checkpoint, or the start of the job if there is none. What was trained since is
//! undone and trained again, so that every sample is in the final model once for each epoch.
//!
//! Workers keep their processes. Each takes part again with its next question for a group; until it has done so, it speaks of
//! what is undone, and nothing that it says counts.
//!
//! Source: rollback recovery from a coordinated checkpoint (Chandy and Lamport, 1985; recalled); the rest is our design.

use std::sync::Arc;
use std::time::Duration;

use antdt_core::{Counts, Holder, JobTime, RollbackId};

/// How long it may take to find the newest checkpoint, to verify it, and to set the ledger back: as long as to write one.
const RESTORE_LIMIT: Duration = Duration::from_secs(1800);

/// State of the job that the ledger was set back to.
#[derive(Debug, Clone, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct RolledBack {
    /// Location of the checkpoint that models start from; `None` if they start from the job's initial
    /// parameters.
    pub checkpoint: Option<Arc<str>>,
    /// Sample counts of the ledger after the rollback.
    pub counts: Counts,
    /// Description of the state, for the user.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The job trains.
    Over,
    /// The ledger is being set back.
    Restoring {
        /// The answer is due by then.
        until: JobTime,
    },
    /// The ledger is set back, and servers start from the checkpoint.
    Starting,
}

/// See the [module](self).
#[derive(Debug, Clone)]
pub(super) struct Rollbacks {
    newest: RollbackId,
    stage: Stage,
    /// Why one is to begin.
    wanted: Option<String>,
    checkpoint: Option<Arc<str>>,
    /// Lives to be started when the ledger is set back, and how long to wait before.
    launches: (Vec<Holder>, Duration),
}

impl Rollbacks {
    pub(super) const fn new() -> Self {
        Self {
            newest: RollbackId(0),
            stage: Stage::Over,
            wanted: None,
            checkpoint: None,
            launches: (Vec::new(), Duration::ZERO),
        }
    }

    /// Rollbacks up to this one began under an earlier master.
    pub(super) const fn continue_after(&mut self, newest: RollbackId) {
        self.newest = newest;
    }

    /// Number of the newest one; 0 before the first.
    pub(super) const fn newest(&self) -> RollbackId {
        self.newest
    }

    /// Place of the checkpoint that models start from.
    pub(super) fn checkpoint(&self) -> Option<Arc<str>> {
        self.checkpoint.clone()
    }

    /// Whether one is wanted or under way: nobody trains.
    pub(super) const fn is_busy(&self) -> bool {
        self.wanted.is_some() || !matches!(self.stage, Stage::Over)
    }

    /// The model is lost; one that begins soon is reason enough for all.
    pub(super) fn want(&mut self, why: String) {
        self.wanted.get_or_insert(why);
    }

    /// Takes out why one is to begin, if one is.
    pub(super) const fn take_wanted(&mut self) -> Option<String> {
        self.wanted.take()
    }

    /// Begins one. It replaces one that is under way: the checkpoint is looked for again.
    pub(super) fn begin(&mut self, now: JobTime) -> RollbackId {
        self.newest = self.newest.next();
        self.stage = Stage::Restoring { until: now + RESTORE_LIMIT };
        self.launches.1 = Duration::ZERO;
        self.newest
    }

    /// This life is to be started when the ledger is set back, and no life before so much time has passed then.
    pub(super) fn launch_later(&mut self, holder: Holder, after: Duration) {
        self.launches.0.retain(|other| other.node != holder.node);
        self.launches.0.push(holder);
        self.launches.1 = self.launches.1.max(after);
    }

    /// The ledger is set back. Returns which lives to start after which time; `None` if it is no answer to the newest rollback.
    pub(super) fn restored(
        &mut self,
        rollback: RollbackId,
        checkpoint: Option<Arc<str>>,
    ) -> Option<(Vec<Holder>, Duration)> {
        if rollback != self.newest || !matches!(self.stage, Stage::Restoring { .. }) {
            return None;
        }
        self.stage = Stage::Starting;
        self.checkpoint = checkpoint;
        Some(std::mem::take(&mut self.launches))
    }

    /// The servers are up, or there are none. Returns whether that ends a rollback.
    pub(super) fn started(&mut self) -> bool {
        let ends = self.stage == Stage::Starting && self.wanted.is_none();
        if ends {
            self.stage = Stage::Over;
        }
        ends
    }

    /// Whether the ledger is still to be set back.
    pub(super) const fn is_restoring(&self) -> bool {
        matches!(self.stage, Stage::Restoring { .. })
    }

    /// When the ledger must be set back.
    pub(super) const fn deadline(&self) -> Option<JobTime> {
        match self.stage {
            Stage::Restoring { until } => Some(until),
            Stage::Starting | Stage::Over => None,
        }
    }
}
