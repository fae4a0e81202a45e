#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![allow(clippy::test_attr_in_doctest, reason = "the README shows a property test; `testing` runs the same")]

pub mod spec;

pub mod ledger;

pub mod order;

pub mod error;
pub mod store;

#[cfg(any(feature = "file-store", feature = "object-store"))]
pub mod journal;

#[cfg(feature = "runtime")]
pub mod runtime;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use error::{
    AckError, CutError, DecodeError, ExchangeError, FetchError, RecoverError, RegisterError, SourceError,
};
pub use ledger::{
    Answer, CutBinding, Effect, Event, LedgerCut, LedgerSnapshot, LedgerStatus, Missing, MissingWhy,
    Outstanding, Quarantined, Record, Recovery, ShardLedger,
};
pub use order::ShardOrder;
pub use spec::{
    Assignment, Cut, DatasetSpec, Epochs, OnQuarantine, Shuffle, WAIT_MAX, max_leases_default,
    shard_len_default,
};
pub use store::{BoxStore, CutStore, LedgerStore, MemStore, NullStore, StoreError, SyncPolicy};
