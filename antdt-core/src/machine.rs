//! The interface of all state machines: no clock, no I/O, no threads, no logging, no ambient randomness.

use crate::time::JobTime;

/// A pure state machine. The property tests, the simulator and the tokio driver run the same type.
///
/// Contract:
/// 1. **One mutation, then drain.** After each [`handle`](Self::handle) or [`on_deadline`](Self::on_deadline),
///    call [`poll_effect`](Self::poll_effect) until it returns `None`.
/// 2. **`now` never goes back.** Equal times are fine.
/// 3. **Answers wait for durability.** The driver releases an answer after the effects drained with it were carried out.
/// 4. **Deterministic.** Same constructor, same calls, same results, on every platform.
/// 5. **Late deadlines are legal.** A late `on_deadline` changes *when* something happens, never *whether*.
///
/// Machines keep named inherent methods for readers and tests; `handle` only dispatches to them.
pub trait Machine {
    /// An input of the machine, such as a call or a report.
    type Event;
    /// Answer that the sender of an event gets from the machine.
    type Answer;
    /// Effect that the driver must carry out; effects are carried out in order.
    type Effect;

    /// Handles one event and returns the answer to its sender.
    fn handle(&mut self, now: JobTime, event: Self::Event) -> Self::Answer;
    /// Returns the oldest effect that was not returned yet; `None` if there is none left.
    fn poll_effect(&mut self) -> Option<Self::Effect>;
    /// Returns the time at which the driver should call [`on_deadline`](Self::on_deadline); `None` if no
    /// deadline is set.
    fn deadline(&self) -> Option<JobTime>;
    /// Handles a deadline that has passed at `now`.
    fn on_deadline(&mut self, now: JobTime);
}
