#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod error;
pub mod id;
pub mod near_queue;
pub mod node_map;
pub mod registry;
pub mod settings;
pub mod text;
pub mod time;

pub mod machine;
pub mod seed;

pub mod data;
pub mod metric;
pub mod param;

pub mod capability;
pub mod node;
pub mod report;
pub mod view;
pub mod weights;

pub mod action;
pub mod connection;
pub mod doorway;
pub mod group;
pub mod port;

#[cfg(feature = "serde")]
pub mod trace;

#[cfg(feature = "testing")]
pub mod testing;

pub use action::{ActionOutcome, Forecast, NodeAction, NodeActionKind, Plan, Reason};
pub use capability::{AckPoint, Barrier, BatchSizes, Capabilities, LocalSteps, ParamPlace};
pub use connection::{CodecBuffers, Connections, StreamCodec, StreamEnd, StreamWrapper};
pub use data::{
    Ack, AckOutcome, AckOutcomes, Acks, Counts, Delivery, Exchanged, FetchOutcome, Fragment, Grant, Held,
    Registered, SampleRange, ShardKey,
};
pub use doorway::{CallerId, Doorway, DoorwayLimits, LogLimit};
pub use error::{InvalidValue, Retry};
pub use group::{Contribution, Joined, PushMark, Readiness, Standing, StepCommit, StepResult};
pub use id::{
    ActionId, CheckpointId, Epoch, Generation, Holder, Incarnation, Iteration, LeaseId, MembershipVersion,
    NodeId, PlanVersion, Rank, RequestId, Role, RollbackId,
};
pub use machine::Machine;
pub use metric::{Better, Combine, Metric, MetricError, Metrics};
pub use near_queue::NearQueue;
pub use node::{DeviceClass, Exit, NodeInfo, NodeStatus};
pub use node_map::NodeMap;
pub use param::{GroupKind, ParamGroup, ParamLayout, TableRows, TableSpec};
pub use report::{BatchReport, GpuLoad, LinkReport, ModelDistance, NodeLoad, Phase, Stall, Work};
pub use seed::{DetRng, Permutation, Seed};
pub use time::JobTime;
pub use view::{
    BatchView, ClusterView, NodeView, Pace, PaceEstimate, Progress, SchedulerView, StepView, StragglerKind,
};
pub use weights::ServerWeights;
