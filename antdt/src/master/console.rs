//! Output to the user while a job runs, written by a thread of its own: a terminal that is held (Ctrl-S) or a
//! pipe that no process reads must not block the master, because workers would then give the master up.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt_launch::OutputStream;
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::report::{LiveProgress, ProgressLine};

/// Lines that may wait to be written; beyond that, the node that wrote them waits.
const LINES_MAX: usize = 4096;

/// How often a line that finds no room asks again.
const ASK_AGAIN: Duration = Duration::from_millis(20);

/// How long the last lines may take after the job is over.
const LAST_LINES: Duration = Duration::from_secs(2);

enum Said {
    Line(OutputStream, String),
    Progress(LiveProgress),
}

/// Where lines and progress go. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Console {
    /// `None` once the console is closed.
    sender: Arc<Mutex<Option<SyncSender<Said>>>>,
    closing: Arc<AtomicBool>,
    done: Arc<Mutex<Receiver<()>>>,
}

impl Console {
    /// Starts the thread. With `quiet`, or where standard error is no terminal, there is no progress line.
    pub(super) fn start(quiet: bool) -> Self {
        let (sender, said) = sync_channel(LINES_MAX);
        let (finished, done) = channel::<()>();
        std::thread::spawn(move || {
            write_all(&said, &mut ProgressLine::stderr(quiet));
            drop(finished);
        });
        Self {
            sender: Arc::new(Mutex::new(Some(sender))),
            closing: Arc::default(),
            done: Arc::new(Mutex::new(done)),
        }
    }

    fn sender(&self) -> Option<SyncSender<Said>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Writes a line of a node. Waits while there is no room, so that no line is lost; not after the job is over.
    pub(super) fn line(&self, stream: OutputStream, text: String) {
        let Some(sender) = self.sender() else { return };
        let Err(TrySendError::Full(mut said)) = sender.try_send(Said::Line(stream, text)) else { return };
        let wait = || {
            while !self.closing.load(Ordering::Relaxed) {
                std::thread::sleep(ASK_AGAIN);
                match sender.try_send(said) {
                    Err(TrySendError::Full(back)) => said = back,
                    Ok(()) | Err(TrySendError::Disconnected(_)) => return,
                }
            }
        };
        // The task that reads the node's output waits, and nothing else on its thread.
        match Handle::try_current().map(|handle| handle.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(wait),
            _ => wait(),
        }
    }

    /// Shows how far the job is. What cannot be shown now is out of date later.
    pub(super) fn progress(&self, progress: LiveProgress) {
        if let Some(sender) = self.sender() {
            let _ = sender.try_send(Said::Progress(progress));
        }
    }

    /// Has writers wait for room until the value is dropped.
    pub(super) fn close_on_drop(&self) -> Closing {
        self.closing.store(false, Ordering::Relaxed);
        Closing(Arc::clone(&self.closing))
    }

    /// Writes what is left, for a moment at most, and erases the progress line. After the console was closed.
    pub(super) fn finish(&self) {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner).take();
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        if done.recv_timeout(LAST_LINES) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the last lines of output could not be written; nobody reads them");
        }
    }
}

/// See [`Console::close_on_drop`].
pub(super) struct Closing(Arc<AtomicBool>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn write_all<W: Write>(said: &Receiver<Said>, line: &mut ProgressLine<W>) {
    while let Ok(said) = said.recv() {
        match said {
            Said::Progress(progress) => line.show(&progress),
            Said::Line(stream, text) => {
                line.clear();
                // A reader that went away (`| head`) is no reason to end the job.
                let _ = match stream {
                    OutputStream::Out => writeln!(std::io::stdout(), "{text}"),
                    OutputStream::Err => writeln!(std::io::stderr(), "{text}"),
                };
            }
        }
    }
    line.clear();
}
