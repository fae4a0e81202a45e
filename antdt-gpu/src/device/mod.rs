//! The rules of groups whose members compute on GPUs, without any device code: which members can take part,
//! how a library's communicator is reused for the next group, and how often an operation in progress is
//! polled.
//!
//! All members decide by the same statements of all members, never by what only one of them knows, and so
//! decide alike. The libraries themselves are in `runtime::nccl` and `runtime::ipc`, behind the features `nccl`
//! and `cuda`.
//!
//! Source: our design over the header of NCCL 2.32, which was read.

mod pause;
mod pool;
mod statement;
mod target;
mod terms;
mod way;

pub use pause::pause;
pub use pool::{Claim, HELD_MAX, HeldComms, Sharing, WORTH, sharing};
pub use statement::{Abilities, Last, Statement};
pub use target::Target;
pub use terms::Terms;
pub use way::{Renewal, Stop, Way, way};
