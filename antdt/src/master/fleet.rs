//! The launcher of a job, before there is a job for it: whether nodes of an earlier master live is asked of it.

use std::sync::Arc;

use antdt_launch::{Launcher, LauncherEvent, LauncherFactory, Outlets};
use tokio::sync::mpsc;

use super::console::Console;

/// A launcher, with the ways out of it.
pub(crate) struct Fleet {
    /// Builds the launcher once more, for processes that start again.
    factory: LauncherFactory,
    pub(super) launcher: Box<dyn Launcher>,
    /// Bounded by what it carries: three events for each life, and the head bounds the lives.
    pub(super) events: mpsc::UnboundedReceiver<LauncherEvent>,
    /// Where its nodes' lines go.
    pub(super) console: Console,
}

impl Fleet {
    /// Builds the launcher, with a console that shows progress unless it is to be `quiet`. In a tokio runtime.
    pub(crate) fn new(factory: &LauncherFactory, quiet: bool) -> Self {
        Self::with(factory, Console::start(quiet))
    }

    /// Builds the launcher of processes that start again.
    pub(super) fn with(factory: &LauncherFactory, console: Console) -> Self {
        let (told, events) = mpsc::unbounded_channel();
        let lines = console.clone();
        let launcher = factory(Outlets {
            // A master that has ended has no use for events.
            events: Arc::new(move |event| drop(told.send(event))),
            lines: Arc::new(move |output| lines.line(output.stream, output.to_string())),
        });
        Self { factory: Arc::clone(factory), launcher, events, console }
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
