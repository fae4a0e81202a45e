//! The seam to whatever starts and ends processes.

use std::fmt;
use std::io;

use antdt_core::Holder;

/// One life of one node to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchRequest {
    /// Which life.
    pub holder: Holder,
    /// Environment variables on top of the launcher's own.
    pub env: Vec<(String, String)>,
}

/// Why a process could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The operating system refused.
    #[error("{holder}: `{program}` cannot be started; check its path and permissions")]
    Spawn {
        /// Which life.
        holder: Holder,
        /// The program.
        program: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// That life was started before.
    #[error("{holder} was started already; a new life needs a new incarnation")]
    Running {
        /// Which life.
        holder: Holder,
    },
    /// The launcher is shutting down.
    #[error("{holder} is not started: the launcher is shutting down")]
    ShuttingDown {
        /// Which life.
        holder: Holder,
    },
}

/// What a launcher tells. For each life `Started` comes first and `Exited` last; both exactly once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LauncherEvent {
    /// A process runs.
    Started {
        /// Which life.
        holder: Holder,
        /// Its process id.
        pid: u32,
    },
    /// A process ended and was reaped.
    Exited {
        /// Which life.
        holder: Holder,
        /// Its exit code, if it ended by itself.
        code: Option<i32>,
        /// The signal that ended it, if one did.
        signal: Option<i32>,
        /// Its last lines of output, for the message about its failure.
        tail: Vec<String>,
    },
}

/// Which output a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutputStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// A line that a process wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLine<'a> {
    /// Which life wrote it.
    pub holder: Holder,
    /// Where to.
    pub stream: OutputStream,
    /// The line, without its end. Longer ones than 8 KiB come in pieces; bytes that are not UTF-8 are replaced.
    pub text: &'a str,
}

impl fmt::Display for OutputLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.holder.node, self.text)
    }
}

/// Starts and ends processes. What becomes of them is told as [`LauncherEvent`]s.
pub trait Launcher: Send {
    /// Starts a life.
    ///
    /// # Errors
    /// If it cannot be started. No event is told of it then.
    fn launch(&mut self, request: &LaunchRequest) -> Result<(), LaunchError>;

    /// Ends a life at once, without asking it. `false` if it does not run; never touches another life.
    fn kill(&mut self, holder: Holder) -> bool;
}
