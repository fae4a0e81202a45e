//! The rules of groups whose members compute on GPUs, without a device: who can take part, how the communicator of a library
//! becomes that of the next group, and how often what is under way is asked for.
//!
//! Members decide by what all of them have said, never by what one of them knows: all come to the same decision. The
//! libraries themselves are in `runtime::nccl` and `runtime::ipc`, behind the features of these names.
//!
//! [`RowStep`] is what a kernel computes for rows of tables that lie on a GPU (`runtime::rows`).
//!
//! Source: our design over the header of NCCL 2.32, which was read.

mod pause;
mod pool;
mod row_step;
mod statement;
mod target;
mod terms;
mod way;

pub use pause::pause;
pub use pool::{CommKey, CommOrder, HeldComms, HeldError, Pool, Use, splits};
pub use row_step::RowStep;
pub use statement::{Abilities, Last, Statement};
pub use target::Target;
pub use terms::Terms;
pub use way::{Renewal, Stop, Way, way};
