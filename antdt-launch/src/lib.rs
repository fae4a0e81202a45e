#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod changed;
pub mod keeper;
pub mod launcher;
pub mod placement;
pub mod pool;

#[cfg(feature = "runtime")]
pub mod runtime;

pub use changed::Changed;
pub use keeper::{HostKeeper, KeeperLimits, KeeperOrder};
pub use launcher::{
    ADVERTISE, BIND, EventSink, LaunchError, LaunchStatus, Launcher, LauncherEvent, LauncherFactory,
    LineSink, MASTER_ADDR, NODE_FILE, NodeExit, NodeSpec, Outlets, OutputLine, OutputStream,
};
pub use placement::{HostRanks, Placement};
#[cfg(any(all(test, feature = "runtime"), feature = "testing"))]
pub use runtime::testing;
