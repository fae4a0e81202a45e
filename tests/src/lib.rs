//! Worlds made of the real machines, for tests across crates.
#![forbid(unsafe_code)]

pub mod backups;
pub mod feeder;
pub mod oracle;

pub mod ring;
pub mod servers;

pub use backups::{BackupSetup, BackupStep, BackupWorld, Steps};
pub use feeder::Feeder;
pub use oracle::Oracle;
pub use ring::RingWorld;
pub use servers::ServerWorld;
