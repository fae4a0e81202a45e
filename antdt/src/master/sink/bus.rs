//! [`Notes`]: hands each note to every sink, in order.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use antdt_core::JobTime;

use super::{JobNote, NoteSink, Recorder};
use crate::master::{PartError, lock};

/// Notes that may wait for a sink; it misses those beyond. 500 workers bring about a thousand notes a second, so that a sink may
/// stand still for some seconds; a larger queue would cost memory.
const NOTES_MAX: usize = 4096;

/// How long each sink may take for its last notes after the job is over.
const LAST_NOTES: Duration = Duration::from_secs(2);

/// A note, with its time since the start of the job.
type Told = Arc<(JobTime, JobNote)>;

/// Why a sink misses notes.
#[derive(Debug, thiserror::Error)]
enum SinkError {
    #[error("the sink {sink} failed and gets no further notes: {source}")]
    Failed { sink: &'static str, source: PartError },
    #[error("the sink {sink} panicked and gets no further notes")]
    Panicked { sink: &'static str },
    #[error("the sink {sink} is slower than the job: it misses notes whenever {NOTES_MAX} wait for it")]
    Slow { sink: &'static str },
    #[error("the sink {sink} did not take its last notes within {LAST_NOTES:?} of the end of the job")]
    Unfinished { sink: &'static str },
}

/// The notes of a job whose processes were started `earlier` after the job.
#[derive(Debug, Clone)]
pub(in crate::master) struct Notes {
    pub(in crate::master) earlier: Duration,
    pub(in crate::master) recorder: Arc<Mutex<Recorder>>,
    pub(in crate::master) sinks: Sinks,
}

impl Notes {
    /// Tells every sink. `at` is the time since the processes were started.
    pub(in crate::master) fn tell(&self, at: JobTime, note: JobNote) {
        let told = Arc::new((at + self.earlier, note));
        // Held until all sinks have the note, so that all have the same order.
        let mut queues = lock(&self.sinks.0);
        lock(&self.recorder).note(told.0, &told.1);
        for queue in &mut *queues {
            queue.push(&told);
        }
    }
}

/// The sinks of a job besides its recorder, each with its thread.
#[derive(Debug, Clone)]
pub(in crate::master) struct Sinks(Arc<Mutex<Vec<Queue>>>);

impl Sinks {
    pub(in crate::master) fn new(sinks: impl IntoIterator<Item = Box<dyn NoteSink>>) -> Self {
        Self(Arc::new(Mutex::new(sinks.into_iter().map(Queue::start).collect())))
    }

    /// Waits until the sinks have taken all notes, for a moment at most.
    pub(in crate::master) fn finish(&self) {
        for Queue { sink, notes, done, .. } in lock(&self.0).drain(..) {
            drop(notes);
            if done.recv_timeout(LAST_NOTES) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!("{}", SinkError::Unfinished { sink });
            }
        }
    }
}

#[derive(Debug)]
struct Queue {
    sink: &'static str,
    notes: SyncSender<Told>,
    /// Closed by the end of the thread.
    done: Receiver<()>,
    is_slow: bool,
}

impl Queue {
    fn start(sink: Box<dyn NoteSink>) -> Self {
        let (notes, told) = sync_channel(NOTES_MAX);
        let (finished, done) = channel();
        let name = sink.name();
        std::thread::spawn(move || {
            if let Err(error) = serve(sink, &told) {
                tracing::warn!("{error}");
            }
            drop(finished);
        });
        Self { sink: name, notes, done, is_slow: false }
    }

    fn push(&mut self, told: &Told) {
        // One that has failed has said so.
        let is_full = matches!(self.notes.try_send(Arc::clone(told)), Err(TrySendError::Full(_)));
        if is_full && !std::mem::replace(&mut self.is_slow, true) {
            tracing::warn!("{}", SinkError::Slow { sink: self.sink });
        }
    }
}

/// Hands a sink its notes until there are no more.
fn serve(mut sink: Box<dyn NoteSink>, notes: &Receiver<Told>) -> Result<(), SinkError> {
    let name = sink.name();
    while let Ok(told) = notes.recv() {
        // What a panic leaves of the sink is dropped.
        match catch_unwind(AssertUnwindSafe(|| sink.note(told.0, &told.1))) {
            Ok(Ok(())) => {}
            Ok(Err(source)) => return Err(SinkError::Failed { sink: name, source }),
            Err(_) => return Err(SinkError::Panicked { sink: name }),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use antdt_job::SyncMode;

    use super::*;
    use crate::report::Outcome;

    struct Fn<F>(F);

    impl<F: FnMut(JobTime) -> Result<(), PartError> + Send> NoteSink for Fn<F> {
        fn note(&mut self, at: JobTime, _note: &JobNote) -> Result<(), PartError> {
            (self.0)(at)
        }
    }

    fn boxed(note: impl FnMut(JobTime) -> Result<(), PartError> + Send + 'static) -> Box<dyn NoteSink> {
        Box::new(Fn(note))
    }

    #[test]
    fn a_sink_that_fails_panics_or_stands_still_keeps_no_note_from_another() {
        let (go_on, gate) = channel::<()>();
        let heard = <[Arc<Mutex<Vec<u64>>>; 3]>::default();
        let [slow, failing, sound] = heard.clone();
        let sinks = Sinks::new([
            boxed(move |at| {
                let _ = gate.recv();
                lock(&slow).push(at.0);
                Ok(())
            }),
            boxed(move |at| {
                lock(&failing).push(at.0);
                if at.0 == 6 { Err("the disk is full".into()) } else { Ok(()) }
            }),
            boxed(|at| if at.0 == 5 { panic!("a defect of the sink") } else { Ok(()) }),
            boxed(move |at| {
                lock(&sound).push(at.0);
                Ok(())
            }),
        ]);
        let recorder = Arc::new(Mutex::new(Recorder::new(SyncMode::default().capabilities(), 1)));
        let notes = Notes { earlier: Duration::from_nanos(3), recorder, sinks };
        // The sound sink gets on, however long that takes.
        let last = NOTES_MAX as u64 + 9;
        for at in 0..=last {
            notes.tell(JobTime(at), JobNote::Ended(Outcome::Completed));
            while lock(&heard[2]).len() as u64 <= at {
                std::thread::yield_now();
            }
        }
        drop(go_on);
        notes.sinks.finish();
        let [slow, failing, sound] = heard.map(|heard| lock(&heard).clone());
        assert!(sound.iter().copied().eq(3..=last + 3), "times are since the start of the job");
        assert_eq!(failing, [3, 4, 5, 6]);
        assert!(slow.iter().zip(&sound).all(|(slow, sound)| slow == sound), "it misses the newest only");
        assert!((NOTES_MAX..sound.len()).contains(&slow.len()), "{}", slow.len());
    }
}
