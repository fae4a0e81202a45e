//! A bounded queue of events in front of a machine.

use antdt_core::Machine;
use tokio::sync::{mpsc, oneshot};

/// The task that owned the machine has ended, so it accepts no events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the service has shut down")]
pub struct Closed;

pub(crate) struct Letter<M: Machine> {
    pub(crate) event: M::Event,
    pub(crate) reply: Option<oneshot::Sender<M::Answer>>,
}

/// The sending end of a machine's queue of events. Cheap to clone.
pub struct Mailbox<M: Machine> {
    sender: mpsc::Sender<Letter<M>>,
}

impl<M: Machine> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone() }
    }
}

impl<M: Machine> std::fmt::Debug for Mailbox<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mailbox").field("free", &self.sender.capacity()).finish()
    }
}

/// The receiving end of a machine's queue of events, which [`drive`](fn@crate::drive::drive) reads.
pub struct Inbox<M: Machine> {
    pub(crate) receiver: mpsc::Receiver<Letter<M>>,
}

impl<M: Machine> std::fmt::Debug for Inbox<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inbox").field("queued", &self.receiver.len()).finish()
    }
}

/// Returns both ends of a queue of at most `bound` events; a sender waits while the queue is full.
pub fn mailbox<M: Machine>(bound: usize) -> (Mailbox<M>, Inbox<M>) {
    let (sender, receiver) = mpsc::channel(bound);
    (Mailbox { sender }, Inbox { receiver })
}

impl<M: Machine> Mailbox<M> {
    /// Sends an event and waits for its answer, which comes after its effects were carried out.
    ///
    /// # Errors
    /// If the task that owned the machine has ended.
    ///
    /// # Cancel safety
    /// Dropping the future after the event was queued does not take the event back.
    pub async fn call(&self, event: M::Event) -> Result<M::Answer, Closed> {
        let (reply, answer) = oneshot::channel();
        self.sender.send(Letter { event, reply: Some(reply) }).await.map_err(|_| Closed)?;
        answer.await.map_err(|_| Closed)
    }

    /// Queues an event and discards its answer.
    ///
    /// # Errors
    /// If the task that owned the machine has ended.
    pub async fn send(&self, event: M::Event) -> Result<(), Closed> {
        self.sender.send(Letter { event, reply: None }).await.map_err(|_| Closed)
    }
}
