//! Tests for implementers of stores, sources and ledgers: random histories with the invariants that must hold
//! after each event, conformance suites, and a naive ledger to compare with.
//!
//! * [`history`] draws histories; [`Invariants`] replays them against your store, source or ledger.
//! * [`NaiveLedger`] computes the right answer to every event, slowly.
//! * [`source`] is the conformance suite of a [`ShardSource`](antdt_core::port::ShardSource).
//! * [`store`] is the conformance suite of a [`LedgerStore`](crate::LedgerStore).
//!
//! A conformance suite makes one fixed sequence of calls and checks what each call must do. The histories
//! check that no order of calls breaks an invariant. For example, a property test of a store, which is opened
//! anew with each restart:
//!
//! ```
//! use antdt_shard::MemStore;
//! use antdt_shard::testing::{Invariants, history};
//! use proptest::prelude::*;
//!
//! proptest! {
//!     # #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]
//!     # /*
//!     #[test]
//!     # */
//!     fn my_store_keeps_the_promises(history in history::any()) {
//!         let disk = MemStore::default();
//!         Invariants::all().check(&history, || disk.clone())?;
//!     }
//! }
//! # my_store_keeps_the_promises();
//! ```
//!
//! A failure names the invariant, the event and the history, shrunk, and prints the line of code that replays
//! it: `Invariants::all().check(&history::replay(r#"…"#), …)`.

mod block;
pub(crate) mod book;
pub(crate) mod call;
mod guarded;
pub mod history;
pub(crate) mod invariant;
pub(crate) mod model;
mod naive;
pub(crate) mod records;
pub mod source;
pub mod store;
pub(crate) mod story;
pub(crate) mod subject;
pub(crate) mod trial;
pub(crate) mod view;

pub use guarded::LedgerSource;
pub use history::History;
pub use invariant::{Invariant, Invariants};
pub use naive::{NaiveLedger, Note};
pub use trial::Violation;

pub use antdt_core::testing::find_break;
