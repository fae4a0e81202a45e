//! The seam to the system that starts and ends the nodes of a job: this machine, a cluster, a test.
//!
//! A launcher speaks of nodes and their lives, never of processes: behind it may be a child process, a batch job or a
//! container. It tells what becomes of each life through the [`Outlets`] that it was built with. Run
//! `testing::check_launcher` over a launcher of your own.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use antdt_core::{Holder, NodeId};

/// One life of one node to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeSpec {
    /// The life.
    pub holder: Holder,
    /// The program that the node runs.
    pub program: PathBuf,
    /// The program's arguments.
    pub args: Vec<OsString>,
    /// Environment variables of the node, on top of those that the launcher gives to every node. A launcher may add its
    /// own after them, such as the address that the node binds to.
    pub env: Vec<(String, String)>,
}

/// Why a life could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The operating system refused.
    #[error("{holder}: `{program}` cannot be started; check its path and permissions")]
    Spawn {
        /// The life.
        holder: Holder,
        /// The program.
        program: String,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// That life was launched before.
    #[error("{holder} was started already; a new life needs a new incarnation")]
    Launched {
        /// The life.
        holder: Holder,
    },
    /// The launcher refused for a reason of its own.
    #[error("{holder} cannot be started: {why}")]
    Refused {
        /// The life.
        holder: Holder,
        /// The reason and the remedy.
        why: String,
    },
}

/// How a life ended. Both are `None` if the launcher cannot tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeExit {
    /// Exit code of the node, if it ended by itself.
    pub code: Option<i32>,
    /// Signal that ended the node, if one did.
    pub signal: Option<i32>,
}

/// State of an incarnation, as far as its launcher knows. It only ever moves down this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchStatus {
    /// Asked for, and not yet running: queued, scheduled, or being pulled.
    Pending,
    /// Running.
    Running,
    /// Ended, or never to run.
    Gone(NodeExit),
}

/// What a launcher tells of a life: at most one `Started`, then exactly one `Gone`, which is the last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LauncherEvent {
    /// The node runs.
    Started {
        /// The life.
        holder: Holder,
    },
    /// The node has ended, or will never run.
    Gone {
        /// The life.
        holder: Holder,
        /// Exit of the process.
        exit: NodeExit,
        /// The node's last lines of output, for the message about its failure; empty if the launcher has none.
        tail: Vec<String>,
    },
}

/// The output that a line came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutputStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// A line that a node wrote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLine<'a> {
    /// The life that wrote it.
    pub holder: Holder,
    /// The output that the life wrote it to.
    pub stream: OutputStream,
    /// The line, without its end. Lines above 8 KiB come in pieces; bytes that are not UTF-8 are replaced.
    pub text: &'a str,
}

impl fmt::Display for OutputLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.holder.node, self.text)
    }
}

/// Takes the events of a launcher. It returns at once and may be called from any thread.
pub type EventSink = Arc<dyn Fn(LauncherEvent) + Send + Sync>;

/// Takes every line that a node writes. It may be called from any thread, and may keep the node that wrote the line
/// waiting for a while.
pub type LineSink = Arc<dyn Fn(OutputLine<'_>) + Send + Sync>;

/// Where a launcher tells what becomes of its nodes.
#[derive(Clone)]
pub struct Outlets {
    /// Takes the events.
    pub events: EventSink,
    /// Takes the nodes' output, of launchers that see it.
    pub lines: LineSink,
}

impl fmt::Debug for Outlets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlets").finish_non_exhaustive()
    }
}

/// Builds the launcher of one job.
pub type LauncherFactory = Box<dyn FnOnce(Outlets) -> Box<dyn Launcher> + Send>;

/// Starts and ends the nodes of one job. No method blocks for longer than a system call takes; what becomes of a node is
/// told as [`LauncherEvent`]s.
///
/// Dropping a launcher ends the nodes that still run, as far as the launcher can reach them. Nodes that it cannot reach
/// end by themselves, when their master has not answered for `--master-grace`.
pub trait Launcher: Send {
    /// Returns the name of the host on which the next life of `node` runs: equal names for nodes of one host.
    ///
    /// The ranks within a host (`LOCAL_RANK`) follow from it. A launcher that learns the host only after the start
    /// returns a name of the node's own, so that the node counts as alone on its host.
    fn place(&mut self, node: NodeId) -> String;

    /// Starts a life.
    ///
    /// # Errors
    /// If the life cannot be started. Then no event follows.
    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError>;

    /// Ends a life: asks it to exit, and kills it after `grace`; a zero `grace` kills at once. A later call may shorten
    /// the grace. Returns `false` if that life is not pending or running, and never touches another life.
    fn end(&mut self, holder: Holder, grace: Duration) -> bool;

    /// Returns where a life stands; `None` if this launcher never launched it.
    fn status(&self, holder: Holder) -> Option<LaunchStatus>;
}
