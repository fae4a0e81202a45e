//! Interfaces between crates that run in different tasks or processes. They use standard futures and no
//! particular runtime.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use crate::data::{Ack, AckOutcome, Exchanged, FetchOutcome, Held, Registered};
use crate::error::Retry;
use crate::id::{Holder, RequestId};

/// An error of an interface between crates, which tells the caller whether to try again.
pub trait SeamError: Error + Send + Sync + 'static {
    /// Returns what the caller of the failed operation should do.
    fn retry(&self) -> Retry;
}

/// Largest number of shards that one exchange may ask for, so that the answer fits into a message.
pub const WANT_MAX: u32 = 1 << 12;

/// Largest number of acks, or presented leases, in one call. It keeps a request well below the limit of 4 MiB
/// for a message; a larger one would occupy the task of the data set for longer.
pub const ACKS_MAX: usize = 1 << 14;

/// The source of a worker's shards: a service over the network, or a ledger in the same process.
pub trait ShardSource: Send + Sync {
    /// Error of a call. No error means "end of data".
    type Error: SeamError;

    /// Registers an incarnation of a worker; its earlier incarnations are fenced.
    ///
    /// `held` are the leases that this incarnation still has from before a restart of the service; empty at
    /// first. A caller that gets [`Retry::Register`] registers with them and continues with those that are
    /// adopted.
    fn register(
        &self,
        holder: Holder,
        held: &[Held],
    ) -> impl Future<Output = Result<Registered, Self::Error>> + Send;

    /// Acknowledges samples and asks for up to `want` shards, in one call: at most [`ACKS_MAX`] acks and
    /// [`WANT_MAX`] shards. Repeating the last `request` returns the identical grants, and no ack counts
    /// twice. With a `want` of 0 the request number is ignored.
    ///
    /// The caller increments `request` after an answer with shards, and only then. A late copy of a call may
    /// be granted shards too, and only a repetition of the same call returns them.
    ///
    /// `wait` is how long the source may hold the call when there is nothing to grant yet.
    fn exchange(
        &self,
        holder: Holder,
        request: RequestId,
        acks: &[Ack],
        want: u32,
        wait: Duration,
    ) -> impl Future<Output = Result<Exchanged, Self::Error>> + Send;

    /// Asks for one shard, without acks, as [`exchange`](Self::exchange) does.
    fn fetch(
        &self,
        holder: Holder,
        request: RequestId,
        wait: Duration,
    ) -> impl Future<Output = Result<FetchOutcome, Self::Error>> + Send {
        let exchanged = self.exchange(holder, request, &[], 1, wait);
        async move {
            // A source that answers nothing to a question has nothing now.
            Ok(exchanged.await?.fetched.unwrap_or(FetchOutcome::Wait { retry_after: wait }))
        }
    }

    /// Acknowledges samples without asking for a shard, as [`exchange`](Self::exchange) does. Returns one
    /// outcome for each entry, in order.
    fn ack(
        &self,
        holder: Holder,
        acks: &[Ack],
    ) -> impl Future<Output = Result<Vec<AckOutcome>, Self::Error>> + Send {
        let exchanged = self.exchange(holder, RequestId(0), acks, 0, Duration::ZERO);
        async move { Ok(exchanged.await?.outcomes.into_vec()) }
    }

    /// Gives leases back: samples below each offset are done, and the rest of each shard goes to another
    /// worker.
    fn release(
        &self,
        holder: Holder,
        acks: &[Ack],
    ) -> impl Future<Output = Result<Vec<AckOutcome>, Self::Error>> + Send;

    /// Reports that the data of a lease cannot be read from `ack.offset` on; `why` is for the log.
    fn fail(
        &self,
        holder: Holder,
        ack: Ack,
        why: &str,
    ) -> impl Future<Output = Result<AckOutcome, Self::Error>> + Send;
}
