//! Observers of a driven machine.

use antdt_core::JobTime;

#[cfg(feature = "record")]
mod packing;
#[cfg(feature = "record")]
mod writer;

#[cfg(feature = "record")]
pub use packing::{PackedFile, Packing, open_trace};
#[cfg(feature = "record")]
pub use writer::{MachineRecorder, Recorded, TraceSink, TraceWriter};

/// Sees what goes in and out of one machine, in order. Called by the task that owns the machine, so it must be quick.
///
/// `()` sees nothing and costs nothing; `Some` or `None` of a recorder is one; so are two together.
pub trait Recorder<Event, Answer, Effect>: Send {
    /// The machine is about to be told this.
    fn event(&mut self, _now: JobTime, _event: &Event) {}
    /// It answered this to the event before. The answer is not out yet.
    fn answer(&mut self, _now: JobTime, _answer: &Answer) {}
    /// It is about to be told that its deadline has passed.
    fn deadline(&mut self, _now: JobTime) {}
    /// It wants this done. It is not done yet.
    fn effect(&mut self, _now: JobTime, _effect: &Effect) {}
}

impl<Event, Answer, Effect> Recorder<Event, Answer, Effect> for () {}

impl<Event, Answer, Effect, R: Recorder<Event, Answer, Effect>> Recorder<Event, Answer, Effect>
    for Option<R>
{
    fn event(&mut self, now: JobTime, event: &Event) {
        if let Some(recorder) = self {
            recorder.event(now, event);
        }
    }
    fn answer(&mut self, now: JobTime, answer: &Answer) {
        if let Some(recorder) = self {
            recorder.answer(now, answer);
        }
    }
    fn deadline(&mut self, now: JobTime) {
        if let Some(recorder) = self {
            recorder.deadline(now);
        }
    }
    fn effect(&mut self, now: JobTime, effect: &Effect) {
        if let Some(recorder) = self {
            recorder.effect(now, effect);
        }
    }
}

impl<Event, Answer, Effect, R, S> Recorder<Event, Answer, Effect> for (R, S)
where
    R: Recorder<Event, Answer, Effect>,
    S: Recorder<Event, Answer, Effect>,
{
    fn event(&mut self, now: JobTime, event: &Event) {
        self.0.event(now, event);
        self.1.event(now, event);
    }
    fn answer(&mut self, now: JobTime, answer: &Answer) {
        self.0.answer(now, answer);
        self.1.answer(now, answer);
    }
    fn deadline(&mut self, now: JobTime) {
        self.0.deadline(now);
        self.1.deadline(now);
    }
    fn effect(&mut self, now: JobTime, effect: &Effect) {
        self.0.effect(now, effect);
        self.1.effect(now, effect);
    }
}
