//! The sync mode `ps-asp`: parameter servers, each worker at its own pace.
//!
//! A push counts when all servers have it: its worker tells the master, which settles its samples in the ledger, and then
//! the servers, which apply it. Of a worker that dies in between, the master tells the servers whether its last push
//! counts. So each push is in the whole model and its samples are acknowledged, or it is in no part of it. No worker
//! waits for another one; a faster worker gets more shards.
//!
//! A step of a worker: `Exchange`, `Load`, `Pull`, `Compute`, `Push`, `Ready`, `Apply`.
//!
//! Source: our design; asynchronous parallel training as in public parameter servers.

mod head;
mod worker;

use antdt_core::{Capabilities, InvalidValue};

use super::{Entry, HeadHalf, Mode, SyncMode, WorkerHalf};

/// Entry of the sync mode `ps-asp` in the registry.
pub const ENTRY: Entry = Entry {
    name: "ps-asp",
    setting: None,
    about: "the model lives on servers; each worker trains at its own pace",
    example: "ps-asp",
    parse,
};

fn parse(_setting: Option<&str>) -> Result<SyncMode, InvalidValue> {
    Ok(SyncMode::new(PsAsp))
}

/// The sync mode `ps-asp`: parameter servers apply each push on its own. See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct PsAsp;

impl Mode for PsAsp {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::SERVERS_AT_OWN_PACE
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        Box::new(head::Head::default())
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        Box::new(worker::Worker::default())
    }
}
