//! The gRPC client of a shard service: a [`ShardSource`] with deadlines, retries, and typed errors.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use antdt_core::port::{SeamError, ShardSource};
use antdt_core::{
    Ack, AckOutcome, Epoch, Exchanged, Held, Holder, InvalidValue, Registered, RequestId, Retry, Seed,
};
use antdt_proto::convert::{ack_outcome, required, to_ns};
use antdt_proto::v1;
use antdt_proto::v1::shard_client::ShardClient as Stub;
use antdt_proto::{Bearer, JobChannel, WireError};
use antdt_rt::backoff;
use tokio::time::{Instant, timeout};
use tonic::transport::Endpoint;
use tonic::{Code, Response, Status};

use crate::error::SourceError;
use crate::ledger::{LedgerStatus, Missing};
use crate::runtime::status::from_status;
use crate::runtime::wire;
use crate::spec::DatasetSpec;

/// Deadlines and retries of a [`ShardClient`].
#[derive(Debug, Clone, Copy)]
pub struct ClientOptions {
    /// Longest duration of one call, on top of the time that the service was asked to hold the call. With a
    /// larger value the client notices a dead service later; with a smaller value it repeats calls to a busy
    /// service.
    pub call_deadline: Duration,
    /// Time for which a call is repeated while the service is unavailable. It should be longer than a restart
    /// of the service.
    pub retry_for: Duration,
    /// First pause between two tries; each further pause is twice as long.
    pub backoff_first: Duration,
    /// Longest pause between two tries.
    pub backoff_most: Duration,
    /// Seed of the random part (jitter) of the pauses.
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

/// A [`ShardSource`] that calls a shard service over gRPC. Clones share the connection and are one source.
///
/// A call that finds the service unavailable is repeated with the same request, which the service answers as
/// it answered the first: a grant is not given twice, an ack does not count twice.
#[derive(Debug, Clone)]
pub struct ShardClient {
    inner: Stub<JobChannel>,
    dataset: String,
    options: ClientOptions,
    /// The generation of the last registration; 0, which no service has, before the first.
    generation: Arc<AtomicU64>,
    /// The data set as this client opened it: what it must be again when the service was restarted without it.
    opened: Arc<OnceLock<v1::DatasetSpec>>,
}

/// Samples of one epoch that are not done: their number, and as many of their ranges as the service sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingSamples {
    /// Number of samples that are not done.
    pub samples: u64,
    /// Ranges of these samples, in the order of the data set. Incomplete if the caller asked for fewer
    /// shards, or if the samples lie in too many ranges.
    pub ranges: Vec<Missing>,
}

impl ShardClient {
    /// Returns a client of the service at `address` (`host:port`), for a service that asks for no token. The
    /// first call makes the connection.
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
        Ok(Self::over(Bearer::default().over(endpoint.connect_lazy()), dataset, options))
    }

    /// Returns a client over a gRPC channel that other clients may share; the channel adds the job's token to
    /// each call.
    pub fn over(channel: JobChannel, dataset: impl Into<String>, options: ClientOptions) -> Self {
        let inner = Stub::new(channel);
        Self { inner, dataset: dataset.into(), options, generation: Arc::default(), opened: Arc::default() }
    }

    /// Asks the service to open the data set of this client. It may be open already, with equal settings.
    /// From then on every [`register`](ShardSource::register) asks so again, because a restarted service may
    /// not know the data set.
    ///
    /// # Errors
    /// If the settings are invalid or differ from those of the open data set, or the data set cannot be
    /// opened.
    pub async fn open(&self, spec: &DatasetSpec) -> Result<LedgerStatus, SourceError> {
        if spec.name != self.dataset {
            let expected = format!("{:?}, the data set of this client", self.dataset);
            let error = InvalidValue::new("name", format!("{:?}", spec.name), expected);
            return Err(SourceError::Rejected(error.to_string()));
        }
        let spec = wire::spec_out(spec);
        let status = self.open_wire(spec.clone()).await?;
        // The first one stands: another could not have been opened.
        let _ = self.opened.set(spec);
        Ok(status)
    }

    async fn open_wire(&self, spec: v1::DatasetSpec) -> Result<LedgerStatus, SourceError> {
        let request = v1::OpenRequest { spec: Some(spec) };
        let send = |mut client: Stub<JobChannel>, request| async move { client.open(request).await };
        let reply = self.call(request, Duration::ZERO, send).await?;
        let status = required("open.status", reply.status).map_err(|e| malformed(&e))?;
        wire::status_in(status).map_err(|e| malformed(&e))
    }

    /// Returns the progress of every data set of the service by name, or an error for each data set whose
    /// task has ended.
    ///
    /// # Errors
    /// If the service does not answer.
    pub async fn status(&self) -> Result<BTreeMap<String, Result<LedgerStatus, SourceError>>, SourceError> {
        use v1::dataset_status::State;
        let request = v1::StatusRequest::default();
        let send = |mut client: Stub<JobChannel>, request| async move { client.status(request).await };
        let reply = self.call(request, Duration::ZERO, send).await?;
        let entry = |dataset: v1::DatasetStatus| {
            let status = match required("status.state", dataset.state)? {
                State::Serving(status) => Ok(wire::status_in(status)?),
                State::Ended(why) => Err(SourceError::Unavailable { why, after: Duration::ZERO }),
            };
            Ok((dataset.dataset, status))
        };
        reply.datasets.into_iter().map(entry).collect::<Result<_, _>>().map_err(|e: WireError| malformed(&e))
    }

    /// Returns the samples of an epoch of this data set that are not done, from at most `shards` shards.
    ///
    /// # Errors
    /// If there is no such epoch, `shards` is above 4,096, or the service does not answer.
    pub async fn missing(&self, epoch: Epoch, shards: u32) -> Result<MissingSamples, SourceError> {
        let request = v1::MissingRequest { dataset: self.dataset.clone(), epoch: epoch.0, shards };
        let send = |mut client: Stub<JobChannel>, request| async move { client.missing(request).await };
        let v1::MissingReply { samples, ranges } = self.call(request, Duration::ZERO, send).await?;
        let ranges = ranges.into_iter().map(|range| wire::missing_in(epoch, range));
        let ranges = ranges.collect::<Result<_, _>>().map_err(|e| malformed(&e))?;
        Ok(MissingSamples { samples, ranges })
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    fn release_request(&self, holder: Holder, acks: &[Ack]) -> v1::ReleaseRequest {
        v1::ReleaseRequest {
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
        send: impl Fn(Stub<JobChannel>, Q) -> F,
    ) -> Result<A, SourceError>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let options = &self.options;
        let began = Instant::now();
        let mut delays =
            backoff(options.backoff_first, options.backoff_most, options.retry_for, options.seed);
        loop {
            let limit = options.call_deadline + held;
            let error = match timeout(limit, send(self.inner.clone(), request.clone())).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                // The service was restarted and no client has opened the data set again: registering does.
                Ok(Err(status)) if status.code() == Code::NotFound && self.opened.get().is_some() => {
                    SourceError::Reregister(status.message().to_owned())
                }
                Ok(Err(status)) => from_status(&status),
                Err(_) => {
                    SourceError::Unavailable { why: format!("no answer within {limit:?}"), after: limit }
                }
            };
            if error.retry() != Retry::Later {
                return Err(error);
            }
            // Tries that ran into their deadline count too: `retry_for` bounds the whole.
            let delay = delays.next().filter(|_| began.elapsed() < options.retry_for);
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
    ack_outcome(wire).map_err(|e| malformed(&e))
}

/// There must be an answer to each question.
fn complete(got: usize, asked: usize) -> Result<(), SourceError> {
    if got == asked {
        return Ok(());
    }
    Err(SourceError::Rejected(format!("the shard service gave {got} answers to {asked} entries")))
}

impl ShardSource for ShardClient {
    type Error = SourceError;

    async fn register(&self, holder: Holder, held: &[Held]) -> Result<Registered, SourceError> {
        if let Some(spec) = self.opened.get() {
            self.open_wire(spec.clone()).await?;
        }
        let request = v1::RegisterShardsRequest {
            dataset: self.dataset.clone(),
            holder: Some(holder.into()),
            held: held.iter().map(|held| (*held).into()).collect(),
        };
        let send = |mut client: Stub<JobChannel>, request| async move { client.register(request).await };
        let reply = self.call(request, Duration::ZERO, send).await?;
        let Registered { generation, adopted } = reply.try_into().map_err(|e| malformed(&e))?;
        self.generation.store(generation.0, Ordering::Relaxed);
        complete(adopted.len(), held.len())?;
        Ok(Registered { generation, adopted })
    }

    async fn exchange(
        &self,
        holder: Holder,
        request: RequestId,
        acks: &[Ack],
        want: u32,
        wait: Duration,
    ) -> Result<Exchanged, SourceError> {
        let request = v1::ExchangeRequest {
            dataset: self.dataset.clone(),
            holder: Some(holder.into()),
            generation: self.generation(),
            request: request.0,
            acks: acks.iter().map(|ack| (*ack).into()).collect(),
            want,
            wait_ns: to_ns(wait),
        };
        let send = |mut client: Stub<JobChannel>, request| async move { client.exchange(request).await };
        let reply = self.call(request, wait, send).await?;
        let exchanged: Exchanged = reply.try_into().map_err(|e| malformed(&e))?;
        complete(exchanged.outcomes.len(), acks.len())?;
        Ok(exchanged)
    }

    async fn release(&self, holder: Holder, acks: &[Ack]) -> Result<Vec<AckOutcome>, SourceError> {
        let request = self.release_request(holder, acks);
        let send = |mut client: Stub<JobChannel>, request| async move { client.release(request).await };
        let reply = self.call(request, Duration::ZERO, send).await?;
        complete(reply.outcomes.len(), acks.len())?;
        reply.outcomes.into_iter().map(outcome).collect()
    }

    async fn fail(&self, holder: Holder, ack: Ack, why: &str) -> Result<AckOutcome, SourceError> {
        let request = v1::FailRequest {
            dataset: self.dataset.clone(),
            holder: Some(holder.into()),
            generation: self.generation(),
            ack: Some(ack.into()),
            why: why.to_owned(),
        };
        let send = |mut client: Stub<JobChannel>, request| async move { client.fail(request).await };
        let reply = self.call(request, Duration::ZERO, send).await?;
        outcome(reply.outcome)
    }
}
