//! [`JobSpec`] and its parts: the settings of a job.

pub mod choice;
pub mod data_spec;
pub mod device;
pub mod elect;
pub mod host_count;
pub mod hot_rows;
pub mod http_addr;
pub mod network;
pub mod port_range;
pub mod processor;
pub mod setting;
pub mod spec;
pub mod straggler;
pub mod streams;
pub mod sync;
pub mod tables;
pub mod value;

pub use antdt_job::evaluation::{EarlyStopping, EvalEvery};
pub use choice::{DataPlane, LogFormat, Sharding};
pub use data_spec::DataSpec;
pub use device::{DeviceSetting, DeviceSpec};
pub use elect::EtcdSpec;
pub use host_count::HostCount;
pub use hot_rows::HotRowsSpec;
pub use http_addr::HttpAddr;
pub use network::NetworkSpec;
pub use port_range::PortRange;
pub use processor::Processor;
pub use setting::JobSetting;
pub use spec::JobSpec;
pub use straggler::{AfterRestart, StragglerSpec};
pub use streams::{RanksSpec, StreamsSpec};
pub use sync::SyncSpec;
pub use tables::{PartSettings, Tables};
