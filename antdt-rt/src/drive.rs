//! The task that runs one state machine. A machine reads no clock: this task passes the time to it, and calls it at its deadlines.

use std::future::Future;

use antdt_core::{JobTime, Machine};
use tokio_util::sync::CancellationToken;

use crate::clock::JobClock;
use crate::inbox::{Inbox, Letter};
use crate::record::Recorder;

/// Events taken in one round at most: bounds how long an answer can wait for others' effects.
const ROUND_MAX: usize = 256;

/// Carries out the effects of a machine that [`drive`](fn@drive) runs.
pub trait Runner<M: Machine>: Send {
    /// Carries out the effects of one round, in order, and empties the vector. The answers of the round are
    /// sent when this returns.
    fn carry_out(&mut self, now: JobTime, effects: &mut Vec<M::Effect>) -> impl Future<Output = ()> + Send;
}

/// Runs `machine` until `shutdown` is cancelled or every mailbox is dropped, then returns it.
///
/// A round handles the queued events, 256 at most, and carries out their effects together, so that a store flushes once for
/// many events. The answers of the round are sent after that.
pub async fn drive<M, R>(
    machine: M,
    inbox: Inbox<M>,
    runner: R,
    clock: JobClock,
    shutdown: CancellationToken,
) -> M
where
    M: Machine,
    R: Runner<M>,
{
    drive_recorded(machine, inbox, runner, clock, shutdown, ()).await
}

/// Runs a machine as [`drive`](fn@drive) does, with a recorder that sees every event, answer and effect of
/// the machine, in order and before it takes effect.
pub async fn drive_recorded<M, R, T>(
    mut machine: M,
    mut inbox: Inbox<M>,
    mut runner: R,
    clock: JobClock,
    shutdown: CancellationToken,
    mut recorder: T,
) -> M
where
    M: Machine,
    R: Runner<M>,
    T: Recorder<M::Event, M::Answer, M::Effect>,
{
    let mut letters = Vec::new();
    let mut effects = Vec::new();
    let mut answers = Vec::new();
    loop {
        let deadline = machine.deadline().and_then(|at| clock.instant(at));
        tokio::select! {
            () = shutdown.cancelled() => return machine,
            taken = inbox.receiver.recv_many(&mut letters, ROUND_MAX) => {
                if taken == 0 {
                    return machine;
                }
                for Letter { event, reply } in letters.drain(..) {
                    let now = clock.now();
                    recorder.event(now, &event);
                    let answer = machine.handle(now, event);
                    recorder.answer(now, &answer);
                    drain(&mut machine, now, &mut effects, &mut recorder);
                    answers.extend(reply.map(|reply| (reply, answer)));
                }
            }
            () = sleep_until(deadline) => {
                let now = clock.now();
                recorder.deadline(now);
                machine.on_deadline(now);
                drain(&mut machine, now, &mut effects, &mut recorder);
            }
        }
        if !effects.is_empty() {
            runner.carry_out(clock.now(), &mut effects).await;
            effects.clear();
        }
        for (reply, answer) in answers.drain(..) {
            // The asker may have gone away; the event stands all the same.
            let _ = reply.send(answer);
        }
    }
}

fn drain<M, T>(machine: &mut M, now: JobTime, effects: &mut Vec<M::Effect>, recorder: &mut T)
where
    M: Machine,
    T: Recorder<M::Event, M::Answer, M::Effect>,
{
    while let Some(effect) = machine.poll_effect() {
        recorder.effect(now, &effect);
        effects.push(effect);
    }
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::*;
    use crate::inbox::mailbox;

    /// Counts; each event asks for one effect; a deadline one second after the first event adds 100.
    #[derive(Default)]
    struct Counter {
        count: u64,
        due: Option<JobTime>,
        effects: Vec<u64>,
    }

    impl Machine for Counter {
        type Event = u64;
        type Answer = u64;
        type Effect = u64;

        fn handle(&mut self, now: JobTime, event: u64) -> u64 {
            self.count += event;
            self.due.get_or_insert(now + Duration::from_secs(1));
            self.effects.push(self.count);
            self.count
        }
        fn poll_effect(&mut self) -> Option<u64> {
            (!self.effects.is_empty()).then(|| self.effects.remove(0))
        }
        fn deadline(&self) -> Option<JobTime> {
            self.due
        }
        fn on_deadline(&mut self, _now: JobTime) {
            self.due = None;
            self.count += 100;
            self.effects.push(self.count);
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u64>>>);

    impl Runner<Counter> for Log {
        async fn carry_out(&mut self, _now: JobTime, effects: &mut Vec<u64>) {
            self.0.lock().unwrap().append(effects);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answers_come_after_their_effects_and_deadlines_fire() {
        let (sender, inbox) = mailbox(4);
        let log = Log::default();
        let shutdown = CancellationToken::new();
        let task =
            tokio::spawn(drive(Counter::default(), inbox, log.clone(), JobClock::start(), shutdown.clone()));
        assert_eq!(sender.call(1).await, Ok(1));
        assert_eq!(*log.0.lock().unwrap(), [1], "the effect was carried out before the answer");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(*log.0.lock().unwrap(), [1, 101]);
        shutdown.cancel();
        assert_eq!(task.await.unwrap().count, 101);
        assert_eq!(sender.call(1).await, Err(crate::Closed));
    }

    /// What was seen, in words.
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<Vec<String>>>);

    impl Seen {
        fn push(&self, now: JobTime, what: &str) {
            self.0.lock().unwrap().push(format!("{} {what}", now.since_start().as_secs()));
        }
    }

    impl Recorder<u64, u64, u64> for Seen {
        fn event(&mut self, now: JobTime, event: &u64) {
            self.push(now, &format!("event {event}"));
        }
        fn answer(&mut self, now: JobTime, answer: &u64) {
            self.push(now, &format!("answer {answer}"));
        }
        fn deadline(&mut self, now: JobTime) {
            self.push(now, "deadline");
        }
        fn effect(&mut self, now: JobTime, effect: &u64) {
            self.push(now, &format!("effect {effect}"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_recorder_sees_everything_in_order() {
        let (sender, inbox) = mailbox(4);
        let (seen, shutdown) = (Seen::default(), CancellationToken::new());
        let clock = JobClock::start();
        let recorders = (seen.clone(), Some(seen.clone()));
        let machine =
            drive_recorded(Counter::default(), inbox, Log::default(), clock, shutdown.clone(), recorders);
        let task = tokio::spawn(machine);
        assert_eq!(sender.call(1).await, Ok(1));
        tokio::time::sleep(Duration::from_secs(2)).await;
        sender.call(5).await.unwrap();
        shutdown.cancel();
        task.await.unwrap();
        let expected = ["0 event 1", "0 answer 1", "0 effect 1", "1 deadline", "1 effect 101", "2 event 5"];
        let twice: Vec<&str> = expected.iter().flat_map(|line| [*line; 2]).collect();
        assert_eq!(seen.0.lock().unwrap()[..12], twice);
    }

    #[tokio::test]
    async fn the_loop_ends_when_no_sender_is_left() {
        let (sender, inbox) = mailbox(4);
        sender.send(5).await.unwrap();
        drop(sender);
        let machine =
            drive(Counter::default(), inbox, Log::default(), JobClock::start(), CancellationToken::new())
                .await;
        assert_eq!(machine.count, 5);
    }
}
