//! The launcher of a job, before there is a job for it: whether nodes of an earlier master live is asked of it.

use std::sync::Arc;

use antdt_launch::{Launcher, LauncherEvent, LauncherFactory, Outlets};
use tokio::sync::mpsc;

use super::console::Console;
use super::node_logs::NodeLogs;
use crate::job::JobSpec;

/// A launcher, with the ways out of it.
pub(crate) struct Fleet {
    /// Builds the launcher once more, for processes that start again.
    factory: LauncherFactory,
    pub(super) launcher: Box<dyn Launcher>,
    /// Bounded by what it carries: three events for each life, and the head bounds the lives.
    pub(super) events: mpsc::UnboundedReceiver<LauncherEvent>,
    /// Where the job's own lines go.
    pub(super) console: Console,
    pub(super) logs: NodeLogs,
}

impl Fleet {
    /// Builds the launcher of a job with these settings, with a console that shows progress unless it is to be `quiet`. In a tokio
    /// runtime.
    pub(crate) fn new(factory: &LauncherFactory, spec: &JobSpec, quiet: bool) -> Self {
        let console = Console::start(quiet);
        Self::with(factory, console.clone(), NodeLogs::of(spec, console))
    }

    /// Builds the launcher of processes that start again.
    pub(super) fn with(factory: &LauncherFactory, console: Console, logs: NodeLogs) -> Self {
        let (told, events) = mpsc::unbounded_channel();
        let lines = logs.clone();
        let launcher = factory(Outlets {
            // A master that has ended has no use for events.
            events: Arc::new(move |event| drop(told.send(event))),
            lines: Arc::new(move |output| lines.line(output)),
        });
        Self { factory: Arc::clone(factory), launcher, events, console, logs }
    }

    /// Returns the factory of the launcher.
    pub(super) fn factory(&self) -> LauncherFactory {
        Arc::clone(&self.factory)
    }
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fleet").finish_non_exhaustive()
    }
}
