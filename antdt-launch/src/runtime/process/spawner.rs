//! The thread that starts all children.
//!
//! The kernel ties a child's wish to die with its parent to the parent *thread*. The threads of a tokio runtime come and
//! go, so that a child of one of them could be killed in the middle of a job. This one stays until all children are gone.

use std::io;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};

use tokio::process::{Child, Command};
use tokio::runtime::Handle;

/// A command to start, and where to send the child.
type Request = (Command, SyncSender<io::Result<Child>>);

/// The way to the thread; the thread ends with the last clone.
#[derive(Debug, Clone)]
pub(super) struct Spawner(Sender<Request>);

impl Spawner {
    /// Starts the thread. Panics outside a tokio runtime.
    pub(super) fn start() -> Self {
        let runtime = Handle::current();
        let (sender, requests) = channel::<Request>();
        std::thread::Builder::new()
            .name("antdt-launcher".to_owned())
            .spawn(move || {
                let _in_runtime = runtime.enter();
                for (mut command, reply) in requests {
                    // The launcher waits for the reply.
                    let _ = reply.send(command.spawn());
                }
            })
            .map_or_else(
                |error| tracing::error!(%error, "the thread that starts processes cannot be started"),
                drop,
            );
        Self(sender)
    }

    /// Starts a child of that thread.
    pub(super) fn spawn(&self, command: Command) -> io::Result<Child> {
        let gone = || io::Error::other("the thread that starts processes does not run");
        let (reply, child) = sync_channel(1);
        self.0.send((command, reply)).map_err(|_| gone())?;
        child.recv().map_err(|_| gone())?
    }
}
