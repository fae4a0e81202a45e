//! Seams between crates that run in different tasks or processes. Standard futures; no runtime is named.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use crate::data::{Ack, AckOutcome, Exchanged, FetchOutcome, Held, Registered};
use crate::error::Retry;
use crate::id::{Holder, RequestId};

/// An error of a seam: it says whether to try again.
pub trait SeamError: Error + Send + Sync + 'static {
    /// What the caller should do.
    fn retry(&self) -> Retry;
}

/// Shards that may be asked for in one exchange: the answer must fit a message.
pub const WANT_MAX: u32 = 1 << 12;

/// Acks, or leases that are presented, in one call. With it a request stays well below the 4 MiB that a message may have; a
/// larger one would occupy the task of the data set for longer.
pub const ACKS_MAX: usize = 1 << 14;

/// Where a worker gets its shards from: a service over the network, or a ledger in the same process.
pub trait ShardSource: Send + Sync {
    /// Why a call failed. None of these means "end of data".
    type Error: SeamError;

    /// Opens the source for a life of a node; earlier lives are fenced.
    ///
    /// `held` are the leases that this life still has from before a restart of the service; empty at first. A caller that
    /// gets [`Retry::Register`] registers with them and goes on with those that are adopted.
    fn register(
        &self,
        holder: Holder,
        held: &[Held],
    ) -> impl Future<Output = Result<Registered, Self::Error>> + Send;

    /// Says what is done and asks for up to `want` shards, in one call: at most [`ACKS_MAX`] and [`WANT_MAX`]. Repeating the last `request` returns the
    /// identical grants, and no ack counts twice. With a `want` of 0 the request number means nothing.
    ///
    /// Count `request` up after an answer with shards, and only then: a copy of the question that arrives late may be
    /// granted too, and only a repetition of the same call returns it.
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

    /// [`exchange`](Self::exchange) of no acks for one shard.
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

    /// [`exchange`](Self::exchange) of acks for no shard. One answer for each entry, in order.
    fn ack(
        &self,
        holder: Holder,
        acks: &[Ack],
    ) -> impl Future<Output = Result<Vec<AckOutcome>, Self::Error>> + Send {
        let exchanged = self.exchange(holder, RequestId(0), acks, 0, Duration::ZERO);
        async move { Ok(exchanged.await?.outcomes.into_vec()) }
    }

    /// Gives leases back: samples below each offset are done, the rest goes to another worker.
    fn release(
        &self,
        holder: Holder,
        acks: &[Ack],
    ) -> impl Future<Output = Result<Vec<AckOutcome>, Self::Error>> + Send;

    /// Reports that the data of a lease cannot be read past `ack.offset`.
    fn fail(
        &self,
        holder: Holder,
        ack: Ack,
        why: &str,
    ) -> impl Future<Output = Result<AckOutcome, Self::Error>> + Send;
}
