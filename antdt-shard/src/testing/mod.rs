//! For implementers and tests: a naive ledger to compare with, and suites for the two seams.
//!
//! * [`NaiveLedger`] says what the right answer to every event is, slowly.
//! * [`source`] is the conformance suite of a [`ShardSource`](antdt_core::port::ShardSource).
//! * [`store`] is the conformance suite of a [`LedgerStore`](crate::LedgerStore).

pub(crate) mod history;
mod naive;
pub mod source;
pub mod store;

pub use naive::{NaiveLedger, Note};
