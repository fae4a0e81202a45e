//! The rules of groups over NCCL, without a device: who can take part, how a communicator becomes that of the next group,
//! and how often what is under way is asked for.
//!
//! Members decide by what all of them have said, never by what one of them knows: all come to the same decision. The library
//! itself is in `runtime::nccl`, behind the feature `nccl`.
//!
//! Source: our design over the header of NCCL 2.32, which was read.

mod pause;
mod statement;
mod way;

pub use pause::pause;
pub use statement::{Abilities, Last, Statement};
pub use way::{Renewal, Stop, Way, way};
