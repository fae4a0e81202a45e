//! Seams between crates that run in different tasks or processes. Standard futures; no runtime is named.

use std::error::Error;
use std::future::Future;
use std::time::Duration;

use crate::data::{Ack, AckOutcome, FetchOutcome};
use crate::error::Retry;
use crate::id::{Holder, RequestId};

/// An error of a seam: it says whether to try again.
pub trait SeamError: Error + Send + Sync + 'static {
    /// What the caller should do.
    fn retry(&self) -> Retry;
}

/// Where a worker gets its shards from: a service over the network, or a ledger in the same process.
pub trait ShardSource: Send + Sync {
    /// Why a call failed. None of these means "end of data".
    type Error: SeamError;

    /// Opens the source for a life of a node; earlier lives are fenced.
    fn register(&self, holder: Holder) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Asks for a shard. Repeating the last `request` returns the identical answer if it was a grant.
    ///
    /// `wait` is how long the source may hold the call when there is nothing to grant yet.
    fn fetch(
        &self,
        holder: Holder,
        request: RequestId,
        wait: Duration,
    ) -> impl Future<Output = Result<FetchOutcome, Self::Error>> + Send;

    /// Says what is done. One answer per entry, in order.
    fn ack(
        &self,
        holder: Holder,
        acks: &[Ack],
    ) -> impl Future<Output = Result<Vec<AckOutcome>, Self::Error>> + Send;

    /// Gives leases back: samples below each offset are done, the rest goes to somebody else.
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
