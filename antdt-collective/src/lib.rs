#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod element;
pub mod elements;
pub mod op;

pub mod kernel;

pub mod group;
pub mod schedule;

pub mod lanes;
pub mod weighted;

pub mod outcome;
pub mod patience;

pub mod bucket;
pub mod compress;

pub mod frame;

pub mod handover;

pub mod row_step;

pub mod error;

#[cfg(feature = "runtime")]
pub mod runtime;

pub use bucket::Buckets;
pub use compress::{Compression, ErrorFeedback, TopK};
pub use element::{Element, ElementType};
pub use elements::{Elements, ElementsMut};
pub use error::CollectiveError;
pub use group::{Group, JobToken, Member};
pub use lanes::{Lanes, Verdict};
pub use op::ReduceOp;
pub use outcome::Resolution;
pub use row_step::RowStep;
pub use weighted::WeightedMean;

#[cfg(feature = "runtime")]
pub use runtime::{
    AbortHandle, Communicator, CommunicatorBuffer, CommunicatorConfig, Compressor, History, Listener,
    MemTransport, MixedTransport, Reducer, ScheduledCommunicator, TcpTransport, Transport,
};
