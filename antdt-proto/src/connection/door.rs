//! The driver of a gRPC port's [`Doorway`]: accepts connections, and closes those on which no call with the job's token
//! comes.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use antdt_core::{CallerId, Connections, Doorway, DoorwayLimits, LogLimit, StreamEnd};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::codegen::tokio_stream::Stream;

use super::GrpcStream;

/// How often a full doorway is looked at: a place becomes free when a call comes, of which the accepting task is not told.
const LOOK: Duration = Duration::from_millis(10);

/// Connections whose callers are unknown, each by what closes it.
type SharedDoorway = Arc<Mutex<Doorway<oneshot::Sender<()>>>>;

fn lock(doorway: &SharedDoorway) -> MutexGuard<'_, Doorway<oneshot::Sender<()>>> {
    doorway.lock().unwrap_or_else(PoisonError::into_inner)
}

fn close(connection: Option<oneshot::Sender<()>>) {
    if let Some(connection) = connection {
        // One that has ended by itself needs no word.
        let _ = connection.send(());
    }
}

/// The connections that clients make to a port, for a server to answer calls on.
///
/// A connection is closed unless a call with the job's token comes on it in time, as [`Doorway`] says;
/// [`TokenCheck`](crate::TokenCheck) tells of such calls. Errors of the system are waited for; the stream yields none, and does
/// not end.
#[derive(Debug)]
pub struct Incoming {
    listener: TcpListener,
    connections: Connections,
    opened: Instant,
    doorway: SharedDoorway,
    wake: Pin<Box<Sleep>>,
    errors: LogLimit,
}

impl Incoming {
    /// Returns the connections to `listener`. Must be called within a tokio runtime.
    pub fn new(listener: TcpListener, connections: Connections, limits: DoorwayLimits) -> Self {
        let (opened, doorway) = (Instant::now(), Arc::new(Mutex::new(Doorway::new(limits))));
        let wake = Box::pin(sleep_until(opened));
        Self { listener, connections, opened, doorway, wake, errors: LogLimit::default() }
    }

    /// Closes connections that took too long. Returns whether the next may be accepted, and the time of the next look.
    fn look(&self) -> (bool, Option<Duration>) {
        let (mut doorway, now) = (lock(&self.doorway), self.opened.elapsed());
        while let Some(connection) = doorway.expire(now) {
            close(Some(connection));
        }
        let opens_at = doorway.opens_at();
        if opens_at <= now {
            return (true, doorway.deadline());
        }
        (false, Some(opens_at.min(now + LOOK)))
    }

    fn admit(&self, socket: TcpStream) -> GrpcStream {
        // As in `channel`, for answers. A connection that is gone by now fails with its first call.
        let _ = socket.set_nodelay(true);
        let (closer, closed) = oneshot::channel();
        let (id, evicted) = lock(&self.doorway).enter(self.opened.elapsed(), closer);
        close(evicted);
        let caller = Caller { id, doorway: Arc::clone(&self.doorway) };
        let admission = Some(Admission { caller, standing: Standing::Unknown(closed) });
        GrpcStream { admission, ..GrpcStream::new(socket, StreamEnd::Accepted, &self.connections) }
    }

    fn starved(&mut self, error: &io::Error) {
        let now = self.opened.elapsed();
        close(lock(&self.doorway).starved(now));
        if let Some(times) = self.errors.due(now) {
            tracing::error!(%error, times, "a connection cannot be accepted; trying again");
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<GrpcStream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let (is_open, look) = this.look();
            if is_open && let Poll::Ready(accepted) = this.listener.poll_accept(cx) {
                match accepted {
                    Ok((socket, _)) => return Poll::Ready(Some(Ok(this.admit(socket)))),
                    // The caller hung up before it was accepted.
                    Err(error)
                        if matches!(
                            error.kind(),
                            io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                        ) => {}
                    Err(error) => this.starved(&error),
                }
                continue;
            }
            // Without one the next caller wakes this task.
            let Some(look) = look else { return Poll::Pending };
            this.wake.as_mut().reset(this.opened + look);
            ready!(this.wake.as_mut().poll(cx));
        }
    }
}

/// The client at the other end of an accepted connection, among the extensions of its calls.
#[derive(Debug, Clone)]
pub struct Caller {
    id: CallerId,
    doorway: SharedDoorway,
}

impl Caller {
    /// The client is known, by the job's token or otherwise: its connection stays open.
    pub fn pass(&self) {
        drop(lock(&self.doorway).pass(self.id));
    }
}

/// What an accepted connection knows of its place in the doorway. It leaves with the connection.
#[derive(Debug)]
pub(super) struct Admission {
    caller: Caller,
    standing: Standing,
}

#[derive(Debug)]
enum Standing {
    /// Nothing is known of the client yet; what closes the connection comes from here.
    Unknown(oneshot::Receiver<()>),
    Known,
    Closed,
}

impl Admission {
    pub(super) fn caller(&self) -> Caller {
        self.caller.clone()
    }

    /// Whether the connection must be closed. Wakes the task when that changes.
    pub(super) fn is_closed(&mut self, cx: &mut Context<'_>) -> bool {
        if let Standing::Unknown(closed) = &mut self.standing
            && let Poll::Ready(told) = Pin::new(closed).poll(cx)
        {
            // Without a word the other end was dropped, because the caller has passed.
            self.standing = if told.is_ok() { Standing::Closed } else { Standing::Known };
        }
        matches!(self.standing, Standing::Closed)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.caller.pass();
    }
}
