//! A source over gRPC: deadlines, retries, and typed errors.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use antdt_core::port::{SeamError, ShardSource};
use antdt_core::{Ack, AckOutcome, FetchOutcome, Holder, InvalidValue, RequestId, Retry, Seed};
use antdt_proto::WireError;
use antdt_proto::convert::to_ns;
use antdt_proto::v1;
use antdt_proto::v1::shard_client::ShardClient as Stub;
use antdt_rt::Backoff;
use tokio::time::{Instant, timeout};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::error::SourceError;
use crate::runtime::status::from_status;

/// How patient a client is.
#[derive(Debug, Clone, Copy)]
pub struct ClientOptions {
    /// Longest time one call may take, on top of the time that the service was asked to hold it. A larger one notices
    /// a dead service later; a smaller one repeats calls of a busy one.
    pub call_deadline: Duration,
    /// How long a call is repeated while the service is unavailable. It should outlast a restart of the service.
    pub retry_for: Duration,
    /// First pause between two tries, doubled with each.
    pub backoff_first: Duration,
    /// Longest pause.
    pub backoff_most: Duration,
    /// Of the jitter of the pauses.
    pub seed: Seed,
}

impl Default for ClientOptions {
    /// 5 s for a call, repeated for 30 s with pauses from 20 ms to 1 s.
    fn default() -> Self {
        Self {
            call_deadline: Duration::from_secs(5),
            retry_for: Duration::from_secs(30),
            backoff_first: Duration::from_millis(20),
            backoff_most: Duration::from_secs(1),
            seed: Seed(0),
        }
    }
}

/// A [`ShardSource`] over a channel. Clones share the connection and are one source.
///
/// A call that finds the service unavailable is repeated with the same request, which the service answers as it
/// answered the first: a grant is not given twice, an ack does not count twice.
#[derive(Debug, Clone)]
pub struct ShardClient {
    inner: Stub<Channel>,
    dataset: String,
    options: ClientOptions,
    /// The generation of the last registration; 0, which no service has, before the first.
    generation: Arc<AtomicU64>,
}

impl ShardClient {
    /// A client of the service at `address` (`host:port`). The connection is made with the first call.
    ///
    /// # Errors
    /// If the address is malformed.
    pub fn connect(
        address: &str,
        dataset: impl Into<String>,
        options: ClientOptions,
    ) -> Result<Self, InvalidValue> {
        // A dead peer is noticed within four seconds, also while a fetch is held and nothing else is on the line.
        const KEEP_ALIVE: Duration = Duration::from_secs(2);
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|_| InvalidValue::new("address", address, "of the form host:port"))?
            .tcp_nodelay(true)
            .connect_timeout(options.call_deadline)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        Ok(Self::over(endpoint.connect_lazy(), dataset, options))
    }

    /// A client over a channel that others may use too.
    pub fn over(channel: Channel, dataset: impl Into<String>, options: ClientOptions) -> Self {
        let inner = Stub::new(channel);
        Self { inner, dataset: dataset.into(), options, generation: Arc::default() }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn ack_request(&self, holder: Holder, acks: &[Ack]) -> v1::AckRequest {
        v1::AckRequest {
            dataset: self.dataset.clone(),
            holder: Some(holder.into()),
            generation: self.generation(),
            acks: acks.iter().map(|ack| (*ack).into()).collect(),
        }
    }

    /// Sends a request until it is answered with anything but "unavailable", or the time for that is over.
    async fn call<Q, A, F>(
        &self,
        request: Q,
        held: Duration,
        send: impl Fn(Stub<Channel>, Q) -> F,
    ) -> Result<A, SourceError>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let options = &self.options;
        let began = Instant::now();
        let mut backoff =
            Backoff::new(options.backoff_first, options.backoff_most, options.retry_for, options.seed);
        loop {
            let limit = options.call_deadline + held;
            let error = match timeout(limit, send(self.inner.clone(), request.clone())).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => from_status(&status),
                Err(_) => {
                    SourceError::Unavailable { why: format!("no answer within {limit:?}"), after: limit }
                }
            };
            if error.retry() == Retry::Never {
                return Err(error);
            }
            // Tries that ran into their deadline count too: `retry_for` bounds the whole.
            let delay = backoff.next_delay().filter(|_| began.elapsed() < options.retry_for);
            let Some(delay) = delay else {
                let SourceError::Unavailable { why, .. } = error else { return Err(error) };
                return Err(SourceError::Unavailable { why, after: began.elapsed() });
            };
            tracing::debug!(dataset = %self.dataset, %error, ?delay, "the shard service is unavailable");
            tokio::time::sleep(delay).await;
        }
    }
}

/// An answer that breaks the schema will not be better the second time.
fn malformed(error: &WireError) -> SourceError {
    SourceError::Rejected(format!("malformed answer of the shard service: {error}"))
}

fn outcome(wire: i32) -> Result<AckOutcome, SourceError> {
    let unknown = WireError::Unknown { field: "ack.outcome", value: wire.into() };
    let known = v1::AckOutcome::try_from(wire).map_err(|_| malformed(&unknown))?;
    known.try_into().map_err(|e| malformed(&e))
}

fn outcomes(reply: &v1::AckReply, asked: usize) -> Result<Vec<AckOutcome>, SourceError> {
    if reply.outcomes.len() != asked {
        let got = reply.outcomes.len();
        return Err(SourceError::Rejected(format!("the shard service answered {got} of {asked} acks")));
    }
    reply.outcomes.iter().map(|wire| outcome(*wire)).collect()
}

impl ShardSource for ShardClient {
    type Error = SourceError;

    async fn register(&self, holder: Holder) -> Result<(), SourceError> {
        let request =
            v1::RegisterShardsRequest { dataset: self.dataset.clone(), holder: Some(holder.into()) };
        let send = |mut client: Stub<Channel>, request| async move { client.register(request).await };
        let reply = self.call(request, Duration::ZERO, send).await?;
        self.generation.store(reply.generation, Ordering::Relaxed);
        Ok(())
    }

    async fn fetch(
        &self,
        holder: Holder,
        request: RequestId,
        wait: Duration,
    ) -> Result<FetchOutcome, SourceError> {
        let request = v1::FetchRequest {
            dataset: self.dataset.clone(),
            holder: Some(holder.into()),
            generation: self.generation(),
            request: request.0,
            wait_ns: to_ns(wait),
        };
        let reply = self
            .call(request, wait, |mut client, request| async move { client.fetch(request).await })
            .await?;
        reply.try_into().map_err(|e| malformed(&e))
    }

    async fn ack(&self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, SourceError> {
        let request = self.ack_request(holder, acks);
        let send = |mut client: Stub<Channel>, request| async move { client.ack(request).await };
        let reply = self.call(request, Duration::ZERO, send).await?;
        outcomes(&reply, acks.len())
    }

    async fn release(&self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, SourceError> {
        let request = self.ack_request(holder, acks);
        let send = |mut client: Stub<Channel>, request| async move { client.release(request).await };
        let reply = self.call(request, Duration::ZERO, send).await?;
        outcomes(&reply, acks.len())
    }

    async fn fail(&self, holder: Holder, ack: Ack, why: &str) -> Result<AckOutcome, SourceError> {
        let request = v1::FailRequest {
            dataset: self.dataset.clone(),
            holder: Some(holder.into()),
            generation: self.generation(),
            ack: Some(ack.into()),
            why: why.to_owned(),
        };
        let send = |mut client: Stub<Channel>, request| async move { client.fail(request).await };
        let reply = self.call(request, Duration::ZERO, send).await?;
        outcome(reply.outcome)
    }
}
