//! The interface to the system that starts and ends the nodes of a job: this machine, a cluster, a test.
//!
//! A launcher deals in nodes and their incarnations, never in processes: behind it may be a child process, a
//! batch job or a container. It reports the start and end of each incarnation through the [`Outlets`] that it
//! was built with. Run `testing::check_launcher` over a launcher of your own.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use antdt_core::{Holder, NodeId};

/// Name of the environment variable with the path of the node's file, which the launcher sets.
pub const NODE_FILE: &str = "ANTDT_NODE_FILE";

/// Name of the environment variable with the address that the node's data plane binds to. A launcher that starts nodes on several
/// hosts sets it for each node.
pub const BIND: &str = "ANTDT_BIND";

/// Name of the environment variable with the address or name at which other nodes reach this one; the default is the one that it
/// binds to. A launcher that starts nodes on several hosts may set it for each node.
pub const ADVERTISE: &str = "ANTDT_ADVERTISE";

/// Name of the environment variable with the address of the first worker's host, where that one listens for the others in programs that
/// read torchrun's variables. The job sets it to that of the master's host; a launcher that starts nodes on several hosts sets it anew for
/// each node that has it.
pub const MASTER_ADDR: &str = "MASTER_ADDR";

/// Incarnation of a node that a launcher is to start, with its program, arguments, environment and file.
#[derive(Clone, PartialEq, Eq)]
pub struct NodeSpec {
    /// Node and incarnation to start.
    pub holder: Holder,
    /// Program that the node runs.
    pub program: PathBuf,
    /// Arguments of the program.
    pub args: Vec<OsString>,
    /// Environment variables of the node, on top of those that the launcher gives to every node. A launcher may add its
    /// own after them, such as the address that the node binds to.
    pub env: Vec<(String, String)>,
    /// Text of the node's file: settings, which may be long, and the job's secret. The launcher gives the node a file of mode 0600
    /// with this text, which the node reads while it lives, sets [`NODE_FILE`] to its path, and removes it in the end. The text is
    /// in no environment and no command line, which other users may read.
    pub file: String,
}

impl NodeSpec {
    /// Names the address of the first worker's host in [`MASTER_ADDR`], if the node is told of one.
    pub(crate) fn set_first(&mut self, address: &str) {
        for (name, value) in &mut self.env {
            if name == MASTER_ADDR {
                address.clone_into(value);
            }
        }
    }
}

impl fmt::Debug for NodeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holder, program, args, env, file: _ } = self;
        f.debug_struct("NodeSpec")
            .field("holder", holder)
            .field("program", program)
            .field("args", args)
            .field("env", env)
            .finish_non_exhaustive()
    }
}

/// Reason why an incarnation could not be started.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// The operating system could not start the program.
    #[error("{holder}: `{program}` cannot be started{}", if passes(source) { "" } else { "; check its path and permissions" })]
    Spawn {
        /// Node and incarnation that was to start.
        holder: Holder,
        /// Path of the program.
        program: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The node's file could not be written.
    #[error("{holder}: its file cannot be written")]
    File {
        /// Node and incarnation that was to start.
        holder: Holder,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// This incarnation was launched before.
    #[error("{holder} was started already; a new life needs a new incarnation")]
    Launched {
        /// Node and incarnation that was to start.
        holder: Holder,
    },
    /// The launcher refused to start the incarnation, for the reason in `why`.
    #[error("{holder} cannot be started: {why}")]
    Refused {
        /// Node and incarnation that was to start.
        holder: Holder,
        /// Why the launcher refused, and the remedy.
        why: String,
    },
}

impl LaunchError {
    /// Returns whether the host lacked something for the moment only, so that a later launch may succeed.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Spawn { source, .. } | Self::File { source, .. } if passes(source))
    }
}

fn passes(error: &io::Error) -> bool {
    // ENFILE and EMFILE, which have no kind, on every Unix.
    let no_descriptor = matches!(error.raw_os_error(), Some(23 | 24));
    // EAGAIN, without a process that may be started, and ETXTBSY, while the program is being replaced.
    let passing = [io::ErrorKind::WouldBlock, io::ErrorKind::OutOfMemory, io::ErrorKind::ExecutableFileBusy];
    no_descriptor || passing.contains(&error.kind())
}

/// Exit code or signal with which a node ended. Both are `None` if the launcher cannot tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeExit {
    /// Exit code of the node's process, if the process ended by itself.
    pub code: Option<i32>,
    /// Number of the signal that ended the node's process, if one did.
    pub signal: Option<i32>,
}

/// State of an incarnation, as its launcher knows it. The state only ever changes to a later one in this
/// list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchStatus {
    /// Requested, and not yet running: queued, scheduled, or its image being pulled.
    Pending,
    /// The node runs.
    Running,
    /// The node has ended, or will never run.
    Gone(NodeExit),
}

/// What a launcher reports of an incarnation: at most one `Started`, then exactly one `Gone`, which is the
/// last; and before `Gone` one `Placed`, if the host was not known before the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LauncherEvent {
    /// The incarnation has started.
    Started {
        /// Node and incarnation that runs.
        holder: Holder,
    },
    /// The host of the incarnation is known now: [`Launcher::place`] returned `None` for it. An incarnation that waits in a queue may
    /// be placed before it starts, and one that never runs is not placed.
    Placed {
        /// Node and incarnation that was placed.
        holder: Holder,
        /// Name of its host: equal names for nodes of one host.
        host: String,
    },
    /// The incarnation has ended, or will never run.
    Gone {
        /// Node and incarnation that ended.
        holder: Holder,
        /// Exit code or signal, if known.
        exit: NodeExit,
        /// The node's last lines of output, for the error message; empty if the launcher has none. A launcher that knows why
        /// the node ended adds a line that begins with [`Exit::CAUSE`](antdt_core::Exit::CAUSE).
        tail: Vec<String>,
    },
    /// A host has come for which the job may have more workers: so many more than its hosts had room for before.
    Room {
        /// Number of workers by which the job may grow.
        workers: u32,
    },
}

/// Output stream of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OutputStream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// A line that a node wrote to one of its output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputLine<'a> {
    /// Node and incarnation that wrote the line.
    pub holder: Holder,
    /// Stream that the line was written to.
    pub stream: OutputStream,
    /// Text of the line, without its end. Lines above 8 KiB come in pieces; bytes that are not UTF-8 are
    /// replaced.
    pub text: &'a str,
}

impl fmt::Display for OutputLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}] {}", self.holder.node, self.text)
    }
}

/// Callback for the events of a launcher. It returns at once and may be called from any thread.
pub type EventSink = Arc<dyn Fn(LauncherEvent) + Send + Sync>;

/// Callback for every line that a node writes. It may be called from any thread, and may block the node that
/// wrote the line for a while.
pub type LineSink = Arc<dyn Fn(OutputLine<'_>) + Send + Sync>;

/// Callbacks through which a launcher reports on its nodes.
#[derive(Clone)]
pub struct Outlets {
    /// Callback for events.
    pub events: EventSink,
    /// Callback for lines of output, for launchers that see it.
    pub lines: LineSink,
}

impl fmt::Debug for Outlets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlets").finish_non_exhaustive()
    }
}

/// Callback that builds the launcher of one job. It is called again when the job's processes start again in another sync mode.
pub type LauncherFactory = Arc<dyn Fn(Outlets) -> Box<dyn Launcher> + Send + Sync>;

/// Starts and ends the nodes of one job. No method blocks for longer than a system call takes; the launcher
/// reports the start and end of a node as [`LauncherEvent`]s.
///
/// Dropping a launcher ends the nodes that still run, as far as the launcher can reach them. Nodes that it
/// cannot reach end by themselves, when their master has not answered for `--master-grace`.
pub trait Launcher: Send {
    /// Returns the name of the host on which the next incarnation of `node` runs: equal names for nodes of
    /// one host. `None` if it is known only once a scheduler has placed the incarnation; then
    /// [`LauncherEvent::Placed`] names it.
    ///
    /// The ranks within a host (`LOCAL_RANK`) follow from this name. A node that starts before its host is
    /// known counts as alone on its host.
    fn place(&mut self, node: NodeId) -> Option<String>;

    /// Returns the names of the hosts that this launcher may place workers on, as [`place`](Self::place)
    /// gives them. The set is empty if the launcher cannot choose among several hosts. It does not change
    /// while the launcher lives.
    fn hosts(&self) -> BTreeSet<String> {
        BTreeSet::new()
    }

    /// Makes the launcher place workers on hosts other than `hosts` from now on; the set replaces that of the
    /// call before and never contains all of the launcher's [`hosts`](Self::hosts). Incarnations that run
    /// stay where they are. The master does not call this if the launcher has fewer than two hosts.
    fn avoid(&mut self, hosts: &BTreeSet<String>) {
        let _ = hosts;
    }

    /// Starts an incarnation of a node.
    ///
    /// # Errors
    /// If the incarnation cannot be started; no event follows then.
    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError>;

    /// Ends an incarnation: asks it to exit, and kills it after `grace`; a zero `grace` kills at once. A
    /// later call may shorten the grace. Returns `false` if that incarnation is not pending or running;
    /// another incarnation is never affected.
    fn end(&mut self, holder: Holder, grace: Duration) -> bool;

    /// Returns the state of an incarnation; `None` if this launcher never launched or adopted it.
    fn status(&self, holder: Holder) -> Option<LaunchStatus>;

    /// Lets nodes that are started from now on survive the death of this process, so that a launcher of
    /// another process may [`adopt`](Self::adopt) them. `folder`, which exists, holds the files that such
    /// nodes need, such as their output. Returns `false` and changes nothing if this launcher cannot do that.
    fn outlive(&mut self, folder: &Path) -> bool {
        let _ = folder;
        false
    }

    /// Returns whether no incarnation outlives the host of this process, so that none is left after that host has started anew.
    fn ends_with_host(&self) -> bool {
        false
    }

    /// Returns a text by which a launcher of another process can adopt an incarnation; `None` if the incarnation does not
    /// [outlive](Self::outlive) this process, or is gone.
    fn handle(&self, holder: Holder) -> Option<String> {
        let _ = holder;
        None
    }

    /// Returns whether the incarnation that a [`handle`](Self::handle) names runs or may run; if so, the
    /// caller must not begin another job in its place. Returns `false` for a handle that this launcher does
    /// not understand.
    fn lives(&self, handle: &str) -> bool {
        let _ = handle;
        false
    }

    /// Takes over an incarnation that the launcher of a dead process has started, as if this launcher had
    /// started it. If the incarnation has ended meanwhile, its [`LauncherEvent::Gone`] follows at once. Until
    /// the node's next incarnation, [`place`](Self::place) returns the host of this one, or [`LauncherEvent::Placed`] names it again.
    ///
    /// # Errors
    /// If this launcher has the incarnation already, or does not understand the handle.
    fn adopt(&mut self, holder: Holder, handle: &str) -> Result<(), LaunchError> {
        Err(LaunchError::Refused {
            holder,
            why: format!("`{handle}` is not of a launcher that adopts nodes"),
        })
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Incarnation;

    use super::*;

    #[test]
    fn only_errors_of_the_moment_are_worth_another_try() {
        let spawn = |errno| LaunchError::Spawn {
            holder: Holder::new(NodeId::worker(0), Incarnation(0)),
            program: "antdt".to_owned(),
            source: io::Error::from_raw_os_error(errno),
        };
        // EAGAIN, ENOMEM, ENFILE, EMFILE and ETXTBSY of Linux.
        for errno in [11, 12, 23, 24, 26] {
            assert!(spawn(errno).is_passing(), "{errno}");
            assert!(!spawn(errno).to_string().contains("permissions"));
        }
        // ENOENT, EACCES and ENOEXEC.
        for errno in [2, 13, 8] {
            assert!(!spawn(errno).is_passing(), "{errno}");
            assert!(spawn(errno).to_string().ends_with("; check its path and permissions"));
        }
    }
}
