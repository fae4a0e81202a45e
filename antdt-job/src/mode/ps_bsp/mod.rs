//! The sync mode `ps-bsp`: parameter servers with common steps of all workers.
//!
//! The servers buffer the pushes of a step. The step is committed in one place, the master's coordinator, together with its
//! acknowledgements; the servers apply exactly the committed pushes when the next pull tells them.
//!
//! A step of a worker: `Exchange`, `Load`, `Pull`, `Compute`, `Push`, `Ready`.
//!
//! Source: our design; bulk synchronous parallel training, Valiant's term.

use antdt_core::{Capabilities, InvalidValue};

use super::shared::coordinated::{Head, Worker};
use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

/// Entry of the sync mode `ps-bsp` in the registry.
pub const ENTRY: Entry = Entry {
    name: "ps-bsp",
    setting: None,
    about: "the model lives on servers; all workers take each step together",
    example: "ps-bsp",
    parse,
};

fn parse(_setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    Ok(SyncMode::new(PsBsp))
}

/// The sync mode `ps-bsp`: parameter servers, with steps that wait for all workers. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct PsBsp;

impl Mode for PsBsp {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::SERVERS_IN_STEP
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        Box::new(Head::new(0))
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(Worker::counted_always())
    }
}
