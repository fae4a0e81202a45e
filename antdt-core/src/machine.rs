//! The shape of every decision maker: no clock, no I/O, no threads, no logging, no ambient randomness.

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
    /// Everything that can happen to it.
    type Event;
    /// Answer that the sender of the event gets at once.
    type Answer;
    /// What the outside must do later, in order.
    type Effect;

    /// Takes one event and says what its sender is told.
    fn handle(&mut self, now: JobTime, event: Self::Event) -> Self::Answer;
    /// The next thing the outside must do, oldest first.
    fn poll_effect(&mut self) -> Option<Self::Effect>;
    /// When [`on_deadline`](Self::on_deadline) wants to be called; `None` when it does not.
    fn deadline(&self) -> Option<JobTime>;
    /// The deadline has passed.
    fn on_deadline(&mut self, now: JobTime);
}
