#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod choice;
pub mod evaluation;
pub mod head;
pub mod limits;
pub mod mode;
pub mod worker;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

#[cfg(feature = "serde")]
pub use head::HeadSettings;
pub use head::{EventKind, Head, HeadAnswer, HeadConfig, HeadEffect, HeadEvent, Note, Registration, Seen};
pub use mode::SyncMode;
pub use worker::{Call, End, LoopDriver, Peers, PlanBegin, Reply, WorkerLoop};
