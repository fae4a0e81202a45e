//! Launchers.

mod process;

pub use process::{ChildInput, LineSink, ProcessLauncher, ProcessSpec};
