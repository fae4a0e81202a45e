//! [`AgentError`]: why a call to the master failed for good.

use antdt_core::Holder;

/// Reason why a call to the master failed for good.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The master did not answer for longer than [`AgentConfig::master_timeout`](super::AgentConfig::master_timeout).
    #[error("the master at {master} cannot be reached: {why}")]
    MasterLost {
        /// Address of the master.
        master: String,
        /// Error of the last call, in words.
        why: String,
    },
    /// The master has declared this incarnation of the node dead; a newer one may run already.
    #[error("{holder} was declared lost and must exit")]
    Fenced {
        /// Incarnation that was declared dead.
        holder: Holder,
    },
    /// This process does not have the token of the job.
    #[error("the master at {master} does not know this process: {why}; start it through the job's launcher")]
    Unauthorized {
        /// Address of the master.
        master: String,
        /// The master's explanation.
        why: String,
    },
    /// The master refused the request.
    #[error("the master refused `{call}`: {why}")]
    Refused {
        /// Name of the call to the master.
        call: &'static str,
        /// The master's explanation.
        why: String,
    },
    /// The agent could not start in this process.
    #[error("the agent cannot start: {why}")]
    Start {
        /// Reason why the agent could not start, in words.
        why: String,
    },
}
