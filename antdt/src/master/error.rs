//! [`JobError`]: reason why a job could not start.

use std::path::PathBuf;

use antdt_checkpoint::CheckpointWriteError;
use antdt_core::InvalidValue;
use antdt_core::registry::BuildError;

use super::claim::ClaimError;
use super::seams::PartError;
use crate::descriptors::TooFewDescriptors;
use crate::job::PortRange;
use crate::resume::ResumeError;
use crate::run_dir::RunDirError;

/// Reason why a job could not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JobError {
    /// A setting is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// The policy or the pace rule is unknown, or one of its settings is invalid.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The master cannot listen: the port is taken, or the address does not belong to this machine.
    #[error(
        "--bind, --master-port = {address}: {source}; choose an address of this machine, and another port or 0 for a free one"
    )]
    Listen {
        /// Address at which the master was to listen.
        address: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// Other processes have all the ports that the job may have.
    #[error("--port-range = {range}: every port is taken on this host; name more")]
    PortsTaken {
        /// The ports.
        range: PortRange,
    },
    /// The master cannot listen for readers of its page: the port is taken, or the address does not belong to this machine.
    #[error(
        "--http-addr = {address}: {source}; choose an address of this machine, and another port or 0 for a free one"
    )]
    HttpListen {
        /// Address at which the master was to listen.
        address: String,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The master listens on all addresses, so that it cannot know the one at which other hosts reach it:
    /// `--advertise` must be set.
    #[error(
        "--advertise = (nothing): with --bind {bind} it is needed; say the address or name by which the nodes reach this machine"
    )]
    Advertise {
        /// Address that the master listens on.
        bind: String,
    },
    /// The name of `--advertise` has no address, or this machine does not reach itself there.
    #[error("--advertise = {host}: {why}; say the address or name by which the nodes reach this machine")]
    Unreachable {
        /// Value of the flag.
        host: String,
        /// Description of the failure.
        why: String,
    },
    /// The run directory cannot be used.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The job cannot continue from the checkpoint.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The folder or store for checkpoints cannot be used.
    #[error("--checkpoint-dir: {0}")]
    Checkpoints(CheckpointWriteError),
    /// A running job keeps its checkpoints in the folder.
    #[error(transparent)]
    Claimed(#[from] ClaimError),
    /// The recording cannot be written.
    #[error("--record = {}: {why}", file.display())]
    Record {
        /// Path of the recording.
        file: PathBuf,
        /// Why the recording cannot be written, and the remedy.
        why: String,
    },
    /// The event file of TensorBoard cannot be written.
    #[error("--tensorboard = {}: {source}; name a folder that this user can write to", folder.display())]
    Tensorboard {
        /// Path of the folder.
        folder: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The timeline cannot be written.
    #[error("--trace-file = {}: {source}; name a file in a folder that exists", file.display())]
    TraceFile {
        /// Path of the file.
        file: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A part that the program replaces could not be built.
    #[error("the {part} cannot be used: {source}")]
    Part {
        /// Name of the replaced part, such as the launcher.
        part: &'static str,
        /// Error of the program's factory.
        source: PartError,
    },
    /// The process of the master may have too few files open for its nodes.
    #[error("{0}")]
    Descriptors(TooFewDescriptors),
    /// A part of the master failed, with this message.
    #[error("the master failed: {0}")]
    Master(String),
}

impl JobError {
    /// The error of a part that the program brought; the parts that ship say it themselves.
    pub(super) fn of_part(part: &'static str, source: PartError) -> Self {
        match source.downcast::<Self>() {
            Ok(error) => *error,
            Err(source) => Self::Part { part, source },
        }
    }

    /// The error of a machine of the master that has ended before the job.
    #[allow(clippy::needless_pass_by_value, reason = "`map_err` hands the error over")]
    pub(super) fn master(why: impl ToString) -> Self {
        Self::Master(why.to_string())
    }
}
