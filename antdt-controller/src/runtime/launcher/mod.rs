//! Launchers that ship with this crate.

mod process;
#[cfg(any(test, feature = "testing"))]
pub mod suite;

pub use process::{Bond, LAUNCHER_PID, ProcessLauncher, bind_to_launcher};
