#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod element;
pub mod op;

pub mod kernel;

pub mod group;
pub mod schedule;

pub mod lanes;
pub mod weighted;

pub mod ps;

pub mod frame;

pub mod error;

#[cfg(feature = "runtime")]
pub mod runtime;

pub use element::{Element, ElementType};
pub use error::CollectiveError;
pub use group::{Group, JobToken, Member};
pub use lanes::{Lanes, Verdict};
pub use op::ReduceOp;
pub use weighted::WeightedMean;

#[cfg(feature = "runtime")]
pub use runtime::{
    AbortHandle, Communicator, CommunicatorConfig, Listener, MemTransport, PsClient, PsServer,
    ScheduledCommunicator, TcpTransport, Transport,
};
