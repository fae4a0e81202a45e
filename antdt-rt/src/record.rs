//! Observers of a state machine that a task drives.

use antdt_core::JobTime;

#[cfg(feature = "record")]
mod packing;
#[cfg(feature = "record")]
mod writer;

#[cfg(feature = "record")]
pub use packing::{PackedFile, Packing, open_trace};
#[cfg(feature = "record")]
pub use writer::{MachineRecorder, Recorded, TraceSink, TraceWriter};

/// An observer that sees the events, answers and effects of one machine, in order. The task that owns the
/// machine calls it, so it must be quick.
///
/// `()` observes nothing and costs nothing; an `Option` of a recorder is a recorder, and so is a pair of
/// them.
pub trait Recorder<Event, Answer, Effect>: Send {
    /// Called with an event, before the machine handles it.
    fn event(&mut self, _now: JobTime, _event: &Event) {}
    /// Called with the machine's answer to the previous event, before the answer is sent.
    fn answer(&mut self, _now: JobTime, _answer: &Answer) {}
    /// Called before the machine is told that its deadline has passed.
    fn deadline(&mut self, _now: JobTime) {}
    /// Called with an effect of the machine, before the effect is carried out.
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
