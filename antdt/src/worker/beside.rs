//! [`Beside`]: a thread that works while the training thread does something else.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::error::WorkerError;

/// What came of a piece of work, and how long it took; what it panicked with otherwise.
type Outcome<T> = Result<(T, Duration), Box<dyn Any + Send>>;

/// A piece of work, and where its outcome goes.
type Task<T> = (Box<dyn FnOnce() -> T + Send>, oneshot::Sender<Outcome<T>>);

/// A thread that does one piece of work at a time. See the [module](self).
#[derive(Debug)]
pub(super) struct Beside<T> {
    tasks: mpsc::Sender<Task<T>>,
    /// Where the outcome of what the thread works on comes.
    away: Option<oneshot::Receiver<Outcome<T>>>,
    /// What has come and was not taken.
    here: Option<Outcome<T>>,
}

impl<T: Send + 'static> Beside<T> {
    /// Starts the thread, which ends with this.
    pub(super) fn spawn(name: &str) -> Result<Self, WorkerError> {
        let (tasks, received) = mpsc::channel::<Task<T>>();
        let works = move || {
            for (work, done) in received {
                let began = Instant::now();
                // What a panic leaves half done is given up with the process: the panic goes on in the thread that takes the outcome.
                let outcome = catch_unwind(AssertUnwindSafe(work)).map(|made| (made, began.elapsed()));
                // A worker that has left needs no outcome.
                let _ = done.send(outcome);
            }
        };
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(works);
        spawned.map_err(|error| WorkerError::Loop(format!("the thread `{name}` cannot start: {error}")))?;
        Ok(Self { tasks, away: None, here: None })
    }

    /// Has the thread do this. What it did before is dropped unless it was taken.
    pub(super) fn start(&mut self, work: impl FnOnce() -> T + Send + 'static) {
        let (done, outcome) = oneshot::channel();
        self.here = None;
        // The thread lives as long as this.
        self.away = self.tasks.send((Box::new(work), done)).is_ok().then_some(outcome);
    }

    /// Waits until the outcome is here. May be dropped before, and called again.
    pub(super) async fn arrives(&mut self) {
        if let Some(away) = &mut self.away {
            let outcome = away.await;
            self.away = None;
            self.here = outcome.ok();
        }
    }

    /// Waits for the outcome and takes it; `None` if nothing was started since the last one. A panic of the work goes on here.
    pub(super) fn take(&mut self) -> Option<(T, Duration)> {
        if let Some(away) = self.away.take() {
            self.here = away.blocking_recv().ok();
        }
        match self.here.take()? {
            Ok(made) => Some(made),
            Err(panic) => resume_unwind(panic),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_on_beside_the_caller_and_its_outcome_is_taken_once() {
        let mut beside = Beside::spawn("test").unwrap();
        assert!(beside.take().is_none(), "nothing was started");
        let (go, waits) = mpsc::channel::<u32>();
        beside.start(move || waits.recv().unwrap() + 1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let early = runtime
            .block_on(async { tokio::time::timeout(Duration::from_millis(10), beside.arrives()).await });
        assert!(early.is_err(), "it waits for the caller");
        go.send(41).unwrap();
        runtime.block_on(beside.arrives());
        assert_eq!(beside.take().map(|(made, _)| made), Some(42));
        assert!(beside.take().is_none());
        beside.start(|| 7);
        assert_eq!(beside.take().map(|(made, _)| made), Some(7), "without waiting for it before");
    }

    #[test]
    fn a_panic_goes_on_in_the_caller() {
        let mut beside = Beside::<()>::spawn("test").unwrap();
        beside.start(|| panic!("the model is torn"));
        let caught = catch_unwind(AssertUnwindSafe(|| beside.take())).unwrap_err();
        assert_eq!(caught.downcast_ref::<&str>(), Some(&"the model is torn"));
        beside.start(|| ());
        assert!(beside.take().is_some(), "the thread goes on");
    }
}
