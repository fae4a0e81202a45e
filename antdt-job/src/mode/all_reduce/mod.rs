//! The sync mode `allreduce`: every worker holds a replica, and every step combines the gradients of all
//! workers.
//!
//! A step is three collectives: the dense sums, the sparse rows and leases of all members, and the control values. The second
//! round says that every member has the result of the first, so that a death in between leaves a step committed by all
//! survivors or by none.
//!
//! A step of a worker: `Load`, `Compute`, `Combine`, `Agree`, `Apply`, `Exchange`.
//!
//! # With backups
//!
//! A step of `allreduce=BACKUPS`, or of a plan with backups, does not wait for its slowest gradients. Gradients are computed beside the
//! training thread, and the master's [gate](antdt_controller::StepGate) closes when all are there but `BACKUPS`. Then all members go into the
//! all-reduce, those whose gradients are late with zeros and no samples. So the group, its two rounds and all that a death
//! means stay as they are; replicas stay equal, as every member gets the sums. The samples of a late gradient are taken again, and
//! a worker that is late four times in a row gives its shards back and takes steps without samples until another worker has asked for a
//! shard.
//!
//! A step of a worker: `Load`, `ComputeBeside`, `ReadyBeside`, `Ready` if the gradient is there before the gate closes, `Combine`, `Agree`, `Apply`,
//! `Exchange`. A worker that is late begins its next steps with `ReadyBeside`, until its gradient is there.
//!
//! Source: our design; the two rounds are those of a two-phase commit whose coordinator is consulted only after a failure.

mod worker;

use antdt_core::{Capabilities, InvalidValue};

use super::shared::group::Group;
use super::shared::member::Member;
use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

/// Entry of the sync mode `allreduce` in the registry.
pub const ENTRY: Entry = Entry {
    name: "allreduce",
    setting: Some("[BACKUPS]"),
    about: "every worker holds the model; all add their gradients to every step, or all but the BACKUPS slowest",
    example: "allreduce",
    parse,
};

/// Most backups: beyond, a slip of the hand is likelier than a wish.
const BACKUPS_MAX: u32 = 1_000_000;

fn parse(setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    let Some(given) = setting else { return Ok(SyncMode::new(AllReduce { backups: 0 })) };
    let backups = given.parse().ok().filter(|backups| (1..=BACKUPS_MAX).contains(backups));
    backups.map(|backups| SyncMode::new(AllReduce { backups })).ok_or_else(|| {
        let expected = format!(
            "{0}, or {0}= with the number of workers that a step need not wait for, 1 to {BACKUPS_MAX}",
            ENTRY.name
        );
        InvalidValue::new("--sync", format!("{}={given}", ENTRY.name), expected)
    })
}

/// The sync mode `allreduce`: every step combines the gradients of all workers. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct AllReduce {
    /// Number of workers that a step need not wait for, unless a plan says how many.
    pub backups: u32,
}

impl Mode for AllReduce {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn setting(&self) -> Option<String> {
        (self.backups > 0).then(|| self.backups.to_string())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::REPLICAS_IN_STEP.with_backups(self.backups)
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        Box::new(Group::with_backups(self.backups))
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(Member::new(worker::Gradient::new(self.backups)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_backups_may_be_left_out_and_is_written_back() {
        for text in ["allreduce", "allreduce=1", "allreduce=3"] {
            assert_eq!(text.parse::<SyncMode>().unwrap().to_string(), text);
        }
        let backups = |text: &str| text.parse::<SyncMode>().unwrap().capabilities().backups();
        assert_eq!(["allreduce", "allreduce=2"].map(backups), [0, 2]);
        for wrong in ["allreduce=", "allreduce=0", "allreduce=x", "allreduce=-1"] {
            let error = wrong.parse::<SyncMode>().unwrap_err().to_string();
            assert!(
                error.contains(&format!("--sync = {wrong}: must be allreduce, or allreduce=")),
                "{error}"
            );
        }
    }
}
