//! [`Totals`]: counters of a job, none of which ever goes down.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{BatchReport, Role};

use super::members::Absence;

/// Upper bounds of the buckets of batch times, in seconds: from a logistic regression's step to one that waits for a collective
/// timeout.
pub(super) const BUCKETS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// Names of the parts of a batch's time.
pub(super) const PHASES: [&str; 4] = ["data_wait", "compute", "communicate", "barrier_wait"];

/// Kinds of actions that are told apart; further ones, of a program's own, are counted together.
const ACTIONS_MAX: usize = 64;

/// A count that its source may begin anew, such as that of processes that are started again.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Growing {
    last: u64,
    pub(super) total: u64,
}

impl Growing {
    /// The source has counted this far. One that has counted less than before has begun anew.
    pub(super) const fn reached(&mut self, count: u64) {
        self.total += if count < self.last { count } else { count - self.last };
        self.last = count;
    }
}

/// Samples that are committed, of which a rollback undoes some.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Committed {
    last: u64,
    /// All commits, those included that were undone.
    pub(super) committed: u64,
    pub(super) undone: u64,
}

impl Committed {
    pub(super) const fn reached(&mut self, count: u64) {
        self.committed += count.saturating_sub(self.last);
        self.undone += self.last.saturating_sub(count);
        self.last = count;
    }
}

/// Sum and number of durations.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Durations {
    pub(super) sum: Duration,
    pub(super) count: u64,
}

impl Durations {
    pub(super) const fn add(&mut self, duration: Duration) {
        self.sum = self.sum.saturating_add(duration);
        self.count += 1;
    }
}

/// An action of the policy or the master, by what is bounded of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ActionKey {
    pub(super) action: &'static str,
    pub(super) reason: &'static str,
    pub(super) outcome: &'static str,
}

impl ActionKey {
    /// Of an action by its name in reports.
    pub(super) fn of(kind: &'static str) -> Self {
        let (action, outcome) = match kind {
            "REFUSED" => ("none", "refused"),
            _ => kind.strip_prefix("WOULD_").map_or((kind, "taken"), |action| (action, "dry_run")),
        };
        let reason = match action {
            "RESTART" | "GIVE_UP" => "lost_node",
            "SCALE" | "KILL" => "operator",
            _ => "policy",
        };
        Self { action, reason, outcome }
    }

    const OTHER: Self = Self { action: "other", reason: "policy", outcome: "taken" };
}

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    pub(super) samples: Committed,
    pub(super) duplicated: Growing,
    pub(super) lost: Growing,
    pub(super) steps: Growing,
    /// Ended leases on shards: done, released, lost, failed.
    pub(super) leases: [Growing; 4],
    /// Batches by the bucket of their time; the last one is of those beyond.
    pub(super) batches: [u64; BUCKETS.len() + 1],
    /// Times of all batches.
    pub(super) batch_time: Durations,
    /// Parts of the times of all batches, as [`PHASES`].
    pub(super) phases: [Duration; 4],
    /// Time for which workers were absent, by why, as far as it is over.
    absent: [Duration; 2],
    /// Of lives that took part after one that was lost.
    pub(super) recovery: Durations,
    /// Times in which checkpoints were written, from their copies on.
    pub(super) checkpoints: Durations,
    /// Lives of workers, and of servers, that were lost.
    losses: [u64; 2],
    restarts: [u64; 2],
    pub(super) actions: BTreeMap<ActionKey, u64>,
    /// Events by kind.
    pub(super) events: BTreeMap<&'static str, u64>,
    /// Stragglers by the kind of the finding and by what is slow.
    pub(super) stragglers: BTreeMap<(&'static str, &'static str), u64>,
    pub(super) evaluations: u64,
}

const fn of_role(counts: &mut [u64; 2], role: Role) -> &mut u64 {
    match role {
        Role::Worker => &mut counts[0],
        Role::Server => &mut counts[1],
    }
}

impl Totals {
    /// Lives of nodes of a role that were lost.
    pub(super) const fn lost_life(&mut self, role: Role) {
        *of_role(&mut self.losses, role) += 1;
    }

    /// A life that is not the first one of its node was launched.
    pub(super) const fn restarted(&mut self, role: Role) {
        *of_role(&mut self.restarts, role) += 1;
    }

    /// Lives that were lost and lives that followed, by role.
    pub(super) fn deaths(&self) -> impl Iterator<Item = (&'static str, u64, u64)> {
        let roles = ["worker", "server"].into_iter().zip(self.losses).zip(self.restarts);
        roles.map(|((role, lost), restarted)| (role, lost, restarted))
    }

    /// A worker is absent no more.
    pub(super) const fn absent(&mut self, why: Absence, lasted: Duration) {
        let of_reason = &mut self.absent[why as usize];
        *of_reason = of_reason.saturating_add(lasted);
    }

    /// Time for which workers were absent, as far as it is over.
    pub(super) const fn absences(&self, why: Absence) -> Duration {
        self.absent[why as usize]
    }

    /// A batch with samples.
    pub(super) fn batch(&mut self, report: &BatchReport) {
        let wall = report.wall();
        let seconds = wall.as_secs_f64();
        let bucket = BUCKETS.iter().position(|most| seconds <= *most).unwrap_or(BUCKETS.len());
        self.batches[bucket] += 1;
        self.batch_time.add(wall);
        let parts = [report.data_wait, report.compute, report.communicate, report.barrier_wait];
        for (phase, part) in self.phases.iter_mut().zip(parts) {
            *phase = phase.saturating_add(part);
        }
    }

    pub(super) fn action(&mut self, kind: &'static str) {
        let key = ActionKey::of(kind);
        let is_room = self.actions.len() < ACTIONS_MAX || self.actions.contains_key(&key);
        *self.actions.entry(if is_room { key } else { ActionKey::OTHER }).or_default() += 1;
    }
}
