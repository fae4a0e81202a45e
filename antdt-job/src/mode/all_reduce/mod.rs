//! The sync mode `allreduce`: every worker holds a replica, and every step combines the gradients of all
//! workers.
//!
//! A step is three collectives: the dense sums, the sparse rows and leases of all members, and the control values. The second
//! round says that every member has the result of the first, so that a death in between leaves a step committed by all
//! survivors or by none.
//!
//! A step of a worker: `Load`, `Compute`, `Combine`, `Agree`, `Apply`, `Exchange`.
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
    setting: None,
    about: "every worker holds the model; all add their gradients to every step",
    example: "allreduce",
    parse,
};

fn parse(_setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    Ok(SyncMode::new(AllReduce))
}

/// The sync mode `allreduce`: every step combines the gradients of all workers. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct AllReduce;

impl Mode for AllReduce {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::REPLICAS_IN_STEP
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        Box::new(Group::default())
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(Member::new(worker::Gradient))
    }
}
