//! [`HostSource`]: what starts and stops the program on the hosts of a job, such as steps of a batch system or pods of a cluster.
//!
//! Which hosts are started, and when, [`HostKeeper`](crate::HostKeeper) decides; [`keep`] asks it, and has the source do what it says. A
//! source that ships is a file or folder beside this file and a line of its registry. It is built with what its hosts need to join
//! ([`SourceContext`]), and reports through the callback in it.

mod driver;
pub mod kubernetes;
mod registry;
mod slurm;

use std::fmt;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;

use antdt_core::InvalidValue;

use crate::KeeperLimits;

pub use driver::keep;
pub use registry::{HOST_SOURCES, SourceEntry};

/// A host that a source is to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostRequest {
    /// Name of the host in the job, which stays when it is started again.
    pub name: String,
    /// Number of workers that it takes.
    pub slots: u32,
}

/// What a source reports of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostEvent {
    /// The start waits for its turn; it may take long.
    Waits {
        /// Name of the host.
        host: String,
        /// What the start waits for; `None` if nothing is amiss.
        why: Option<String>,
    },
    /// The program runs.
    Runs {
        /// Name of the host.
        host: String,
    },
    /// What was started has ended, or will never run. The host may be started again from now on.
    Ended {
        /// Name of the host.
        host: String,
        /// Why it ended.
        why: String,
        /// Whether the source knows that the program does not run on this host any more.
        is_dead: bool,
    },
    /// No host can be started, now or later, for the reason in `why`.
    Failed {
        /// Why not, and the remedy.
        why: String,
    },
    /// Something that concerns no single host.
    Notice {
        /// One line.
        line: String,
    },
}

/// Callback for the events of a source. It returns at once and may be called from any thread.
pub type HostEventSink = Arc<dyn Fn(HostEvent) + Send + Sync>;

/// What a source needs to start hosts of a job.
#[derive(Clone)]
pub struct SourceContext {
    /// Where the job's gate is open, `HOST:PORT`.
    pub endpoint: String,
    /// File with the secret of the job; `None` if it has none.
    pub secret: Option<PathBuf>,
    /// Callback for events.
    pub events: HostEventSink,
}

impl fmt::Debug for SourceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceContext").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

/// Callback that builds the source of a job, within a tokio runtime.
pub type SourceFactory =
    Arc<dyn Fn(SourceContext) -> Result<Box<dyn HostSource>, InvalidValue> + Send + Sync>;

/// Starts and stops the program on hosts of one job. No method blocks; what becomes of a start is reported as [`HostEvent`]s, of which
/// [`HostEvent::Ended`] is the last.
///
/// Dropping a source stops what it has started, as far as it can at once.
pub trait HostSource: Send {
    /// Returns how long to wait for its hosts.
    fn limits(&self) -> KeeperLimits {
        KeeperLimits::default()
    }

    /// Returns what it is asked for, such as "Slurm is asked for a step there", for the line that says so.
    fn asked(&self) -> &'static str;

    /// Starts the program on a host, which joins the job through the gate.
    fn start(&mut self, host: &HostRequest);

    /// Stops what was started for the host of this name; its end is reported.
    fn stop(&mut self, name: &str);

    /// Stops everything and waits for it, once the job is over.
    fn close(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        drop(self);
        Box::pin(std::future::ready(()))
    }
}

/// What a registry entry builds.
#[derive(Clone)]
pub struct SourceParts {
    /// Returns the names of the hosts that the source provides when the job wants so many; `None` if hosts come by themselves for the
    /// first time, this one too, and the source only brings them back.
    pub names: fn(u32) -> Option<Vec<String>>,
    /// Builds the source.
    pub factory: SourceFactory,
}

impl fmt::Debug for SourceParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceParts").finish_non_exhaustive()
    }
}
