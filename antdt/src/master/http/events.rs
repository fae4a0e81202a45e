//! `/events`: the state of the job as server-sent events, whole first and then what has changed.
//!
//! Each reader has a task of its own, which makes the next event when the last one is sent: a slow reader misses states in between, and
//! holds up neither the job nor another reader.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Response, StatusCode};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tonic::codegen::tokio_stream::StreamExt as _;
use tonic::codegen::tokio_stream::wrappers::ReceiverStream;

use super::door::Visit;
use super::guard::Refusal;
use super::{READERS_MAX, STATE_EVERY, Window, answer};
use crate::master::lock;

/// Longest time without a byte, so that a proxy in between keeps the connection.
const QUIET_MAX: Duration = Duration::from_secs(15);

/// Pause after which a reader whose connection has ended comes again.
const RETRY: &str = "retry: 2000\n\n";

/// Returns the answer to a reader: a stream of events.
pub(super) fn stream(window: Window, visit: &Visit) -> Response<Body> {
    let Ok(seat) = window.0.seats.clone().try_acquire_owned() else {
        return answer::refused(&Refusal::Full(READERS_MAX));
    };
    visit.reads_on();
    window.look();
    let (events, sent) = mpsc::channel(1);
    tokio::spawn(async move {
        send(&window, events).await;
        drop(seat);
    });
    let body = Body::from_stream(ReceiverStream::new(sent).map(Ok::<Bytes, Infallible>));
    answer::of(StatusCode::OK, "text/event-stream", body)
}

/// Sends states until the reader has gone or the job is over.
async fn send(window: &Window, events: mpsc::Sender<Bytes>) {
    let board = &window.0.board;
    let mut versions = board.version.subscribe();
    let mut seen = 0;
    if events.send(Bytes::from_static(RETRY.as_bytes())).await.is_err() {
        return;
    }
    loop {
        versions.mark_unchanged();
        let (state, newest, is_over) = {
            let view = lock(&board.view);
            (view.state(seen), view.version(), view.is_over())
        };
        seen = newest;
        if events.send(format!("data: {state}\n\n").into()).await.is_err() || is_over {
            return;
        }
        loop {
            let news = tokio::select! {
                // The last state is sent before the end.
                biased;
                () = events.closed() => return,
                news = timeout(QUIET_MAX, versions.changed()) => news,
                () = window.0.stop.cancelled() => return,
            };
            match news {
                Ok(Ok(())) => break,
                Ok(Err(_)) => return,
                // A comment, which readers skip.
                Err(_) if events.send(Bytes::from_static(b":\n\n")).await.is_err() => return,
                Err(_) => {}
            }
        }
    }
}

/// Has readers look at the job again and again, as long as there are any.
pub(super) async fn pulse(window: Window) {
    let mut beat = interval(STATE_EVERY);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = window.0.stop.cancelled() => return,
            _ = beat.tick() => {}
        }
        if window.0.board.version.receiver_count() > 0 {
            window.look();
            window.0.board.publish();
        }
    }
}
