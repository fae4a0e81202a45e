//! Errors of a worker or server process, and whether the launcher should start it again.

use std::io::ErrorKind;

use antdt_agent::TrainError;
use antdt_agent::runtime::AgentError;
use antdt_collective::CollectiveError;
use antdt_core::{Exit, InvalidValue};
use antdt_model::runtime::{PsError, PsServerError};
use antdt_shard::SourceError;

use crate::resume::ResumeError;

/// Reason why a worker or server process failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The environment that the launcher sets is missing or wrong: the program was not started by `antdt
    /// run`.
    #[error("{0}; start this program through `antdt run`")]
    Environment(InvalidValue),
    /// The process that launched this one has died.
    #[error("the process that launched this node has ended")]
    Orphan,
    /// An address is unknown or cannot be reached, with this message.
    #[error("{0}")]
    Address(String),
    /// A setting is invalid or the data set cannot be used, with this message.
    #[error("{0}")]
    Input(String),
    /// The checkpoint that the job continues from cannot be loaded.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The session with the master ended.
    #[error(transparent)]
    Agent(#[from] AgentError),
    /// The shard service refused a request, or could not be reached any more.
    #[error(transparent)]
    Shards(#[from] SourceError),
    /// The trainer failed, in the model or in its data.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// Other workers or servers could not be reached any more.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// A parameter server refused a request, or could not be reached any more.
    #[error(transparent)]
    Servers(#[from] PsError),
    /// This parameter server could not start.
    #[error(transparent)]
    Serve(#[from] PsServerError),
    /// The training loop reached an impossible state, which is a defect.
    #[error("the training loop cannot go on: {0}")]
    Loop(String),
    /// Received parameters do not fit the model.
    #[error("parameters: {0}")]
    Parameters(String),
}

impl WorkerError {
    /// Returns whether another process listens at the port.
    pub(crate) const fn is_of_taken_port(&self) -> bool {
        matches!(
            self,
            Self::Collective(CollectiveError::Io { kind: ErrorKind::AddrInUse, .. })
                | Self::Serve(PsServerError::Io(CollectiveError::Io { kind: ErrorKind::AddrInUse, .. }))
        )
    }

    /// Returns the exit code that tells the launcher whether starting again can help.
    pub const fn exit_code(&self) -> i32 {
        match self {
            Self::Environment(_) | Self::Input(_) | Self::Resume(_) | Self::Serve(_) => Exit::CODE_NEVER,
            Self::Collective(e) if e.is_permanent() => Exit::CODE_NEVER,
            Self::Servers(PsError::OtherHost { .. }) => Exit::CODE_NEVER,
            Self::Agent(
                AgentError::MasterLost { .. } | AgentError::Fenced { .. } | AgentError::Start { .. },
            )
            | Self::Orphan
            | Self::Address(_)
            | Self::Collective(_)
            | Self::Servers(_) => Exit::CODE_RETRY,
            Self::Shards(e) => match e {
                SourceError::DataLost(_) | SourceError::Rejected(_) => Exit::CODE_NEVER,
                _ => Exit::CODE_RETRY,
            },
            Self::Train(TrainError::Device(_)) => Exit::CODE_RETRY,
            Self::Train(TrainError::OutOfMemory { .. }) => Exit::CODE_MEMORY,
            // A model that diverges or a request that is wrong does so again.
            Self::Agent(_) | Self::Train(_) | Self::Loop(_) | Self::Parameters(_) => Exit::CODE_NEVER,
        }
    }
}
