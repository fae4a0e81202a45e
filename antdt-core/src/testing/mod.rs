//! What the test suites of several crates share: histories as values, the invariants that they are held to,
//! and the report of an invariant that is broken; and a [wrapper](Mask) of streams.
//!
//! A suite says which [`Setting`] its histories have and lists its invariants with
//! [`promises!`](crate::promises). [`find_break`] draws histories, and reduces the first one that breaks an
//! invariant to a small one, whose report has the line that replays it.

mod broken;
pub mod history;
mod mask;
mod promises;
#[cfg(test)]
mod tests;

pub use self::broken::{Broken, find_break};
pub use self::history::{History, Setting};
pub use self::mask::{Mask, connected_sockets};
pub use self::promises::Promise;
