//! A shard source in the same process as the service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use antdt_core::port::ShardSource;
use antdt_core::{Ack, AckOutcome, Exchanged, Generation, Held, Holder, Registered, RequestId};

use crate::error::SourceError;
use crate::runtime::service::ShardHandle;

/// A [`ShardSource`] that calls the service of a [`ShardHandle`] in the same process. Clones are one source.
#[derive(Debug, Clone)]
pub struct LocalSource {
    handle: ShardHandle,
    /// The generation of the last registration; 0, which no service has, before the first.
    generation: Arc<AtomicU64>,
}

impl LocalSource {
    /// Returns a source at which no worker has registered yet.
    pub fn new(handle: ShardHandle) -> Self {
        Self { handle, generation: Arc::default() }
    }
}

impl ShardSource for LocalSource {
    type Error = SourceError;

    async fn register(&self, holder: Holder, held: &[Held]) -> Result<Registered, SourceError> {
        let registered = self.handle.register(holder, held.to_vec()).await?;
        self.generation.store(registered.generation.0, Ordering::Relaxed);
        Ok(registered)
    }

    async fn exchange(
        &self,
        holder: Holder,
        request: RequestId,
        acks: &[Ack],
        want: u32,
        wait: Duration,
    ) -> Result<Exchanged, SourceError> {
        let generation = Generation(self.generation.load(Ordering::Relaxed));
        self.handle.exchange(holder, generation, request, acks.into(), want, wait).await
    }

    async fn release(&self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, SourceError> {
        self.handle.release(holder, acks.to_vec()).await
    }

    async fn fail(&self, holder: Holder, ack: Ack, why: &str) -> Result<AckOutcome, SourceError> {
        self.handle.fail(holder, ack, why).await
    }
}
