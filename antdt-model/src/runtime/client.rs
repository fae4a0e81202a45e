//! A worker's connections to all parameter servers.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use antdt_collective::runtime::{BulkStream, ChannelError, Fabric};
use antdt_collective::{AbortHandle, CollectiveError, JobToken};
use antdt_core::{
    CheckpointId, Connections, Holder, InvalidValue, Iteration, ParamLayout, PushMark, ServerWeights,
};

use super::stream::{MessageStream, StreamError};
use crate::wire::{PsHello, PsRefusal, PsReply, PsRequest, WireError};
use crate::{CommitToken, InitOutcome, PartitionMap, PushOutcome, Trained};

/// Reason why a call to the parameter servers failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PsError {
    /// A server refused the request. The connections can still be used.
    #[error("server {server} refused: {why}")]
    Refused {
        /// Index of the server.
        server: u32,
        /// Kind of refusal, for the caller to act on.
        refusal: PsRefusal,
        /// Reason why the server refused, in words.
        why: String,
    },
    /// A server did not answer in time.
    #[error("server {server} did not answer within {waited:.1?}; look at that node, then connect again")]
    Timeout {
        /// Index of the server.
        server: u32,
        /// Time since the call began.
        waited: Duration,
    },
    /// The connection to a server ended, most often because its process has died.
    #[error("server {server} closed its connection; connect again once it is back")]
    Closed {
        /// Index of the server.
        server: u32,
    },
    /// A server is on a host that the transport does not reach.
    #[error(
        "server {server} is on another host, where shared memory does not reach; choose the transport `auto` or `tcp`"
    )]
    OtherHost {
        /// Index of the server.
        server: u32,
    },
    /// A server sent a malformed reply, or one to another request.
    #[error("server {server} answered nonsense: {what}")]
    Protocol {
        /// Index of the server.
        server: u32,
        /// Description of the fault.
        what: String,
    },
    /// The abort handle ended the call.
    #[error("aborted: {reason}")]
    Aborted {
        /// Reason for the abort, as the caller of the handle gave it.
        reason: String,
    },
    /// An earlier call failed halfway: the connections are unusable, and the caller must connect again.
    #[error("an earlier call failed; connect again")]
    Broken,
    /// An argument of the call is invalid.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// The operating system refused an operation on this host, or a connection failed.
    #[error(transparent)]
    Io(#[from] CollectiveError),
}

impl PsError {
    /// Returns whether this incarnation of the worker was declared lost: it must exit without side effects.
    pub const fn is_fenced(&self) -> bool {
        matches!(self, Self::Refused { refusal: PsRefusal::Fenced, .. })
    }
}

/// Settings of a [`PsClient`]: the worker's identity and its limits.
#[derive(Debug, Clone, PartialEq)]
pub struct PsClientConfig {
    /// Worker and incarnation that calls.
    pub holder: Holder,
    /// Token of the job.
    pub job: JobToken,
    /// How the servers are connected with. Default: over plain streams.
    pub connections: Connections,
    /// Shape of the whole model.
    pub layout: ParamLayout,
    /// Longest duration of one call. Default 60 s.
    pub timeout: Duration,
    /// Longest reply, in bytes. Default 4 GiB.
    pub message_max: u64,
}

impl PsClientConfig {
    /// Returns settings with the default limits.
    pub fn new(holder: Holder, job: JobToken, layout: ParamLayout) -> Self {
        let connections = Connections::default();
        Self { holder, job, connections, layout, timeout: Duration::from_secs(60), message_max: 4 << 30 }
    }
}

/// A worker's connections to all parameter servers of a job.
///
/// Every call sends its requests to all servers before it waits for the first reply. After any error but a
/// refusal the connections are unusable, and the caller must connect again.
#[derive(Debug)]
pub struct PsClient {
    config: PsClientConfig,
    map: PartitionMap,
    servers: Vec<MessageStream>,
    abort: AbortHandle,
    broken: bool,
    rate_share: Option<f32>,
    // One message per server; kept to be reused.
    messages: Vec<Vec<u8>>,
}

impl PsClient {
    /// Connects to the servers, given in order of their index, which [serve](super::PsServer) over the same
    /// fabric. The servers say how much of the model each of them holds.
    ///
    /// # Errors
    /// If there is no server, a server cannot be reached, a server refuses this worker because its job or
    /// layout differs, or the servers do not agree on their weights.
    pub fn connect(
        addresses: &[SocketAddr],
        config: PsClientConfig,
        fabric: &dyn Fabric,
        abort: &AbortHandle,
    ) -> Result<Self, PsError> {
        let count = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        let map = PartitionMap::new(count, config.layout.dense_len())?;
        let started = Instant::now();
        let deadline = started + config.timeout;
        let mut servers = Vec::with_capacity(addresses.len());
        for (server, address) in (0..).zip(addresses) {
            if let Some(reason) = abort.reason() {
                return Err(PsError::Aborted { reason: reason.to_owned() });
            }
            // A server's socket listens before its address is known, so it answers at once, or its host is away.
            let stream = BulkStream::open(*address, deadline, &config.connections);
            let channel = stream.and_then(|stream| fabric.dial(stream, config.job, deadline, abort));
            servers.push(MessageStream::new(channel.map_err(|e| failed(server, started, e))?));
        }
        let messages = vec![Vec::new(); servers.len()];
        let mut client =
            Self { config, map, servers, abort: abort.clone(), broken: false, rate_share: None, messages };
        for (server, message) in (0..count).zip(&mut client.messages) {
            let PsClientConfig { holder, job, layout, .. } = &client.config;
            PsRequest::Hello(PsHello::new(*job, *holder, server, count, layout)).encode(message);
        }
        let mut all: Option<ServerWeights> = None;
        client.ask(|_, reply| {
            let PsReply::Welcome(weights) = reply else { return None };
            // Servers that differ were started for different jobs, or one of them has yet to end.
            let agree = weights.fits(count) && all.as_ref().is_none_or(|all| all == weights);
            all = Some(weights.clone());
            agree.then_some(())
        })?;
        client.map = PartitionMap::weighted(count, client.map.dense_len(), &all.unwrap_or_default())?;
        Ok(client)
    }

    /// Returns the assignment of parameters to servers.
    pub const fn map(&self) -> &PartitionMap {
        &self.map
    }

    /// Sends the initial values of the flat vector, `[dense_len]`. A server keeps the first values that it
    /// gets.
    ///
    /// # Errors
    /// See [`PsError`].
    pub fn init_dense(&mut self, values: &[f32]) -> Result<InitOutcome, PsError> {
        self.check_dense(values.len())?;
        for (server, message) in (0..).zip(&mut self.messages) {
            PsRequest::Init(Cow::Borrowed(&values[self.map.dense(server)])).encode(message);
        }
        let mut outcome = InitOutcome::AlreadyInitialised;
        self.ask(|_, reply| match reply {
            PsReply::Init(InitOutcome::Stored) => {
                outcome = InitOutcome::Stored;
                Some(())
            }
            PsReply::Init(InitOutcome::AlreadyInitialised) => Some(()),
            _ => None,
        })?;
        Ok(outcome)
    }

    /// Reads the flat vector into `dense`, `[dense_len]`, and the values of `rows` (ascending, each once)
    /// into `row_values`, `[rows, dim]`, which is overwritten. Every server carries out `commit` first, if it
    /// has not yet.
    ///
    /// # Errors
    /// See [`PsError`]. The buffers may then hold parts of the answer.
    pub fn pull(
        &mut self,
        commit: Option<&CommitToken>,
        rows: &[u64],
        dense: &mut [f32],
        row_values: &mut Vec<f32>,
    ) -> Result<(), PsError> {
        self.check_dense(dense.len())?;
        for (message, rows) in self.messages.iter_mut().zip(self.map.split_rows(rows)) {
            PsRequest::Pull { commit: commit.map(Cow::Borrowed), rows: Cow::Owned(rows) }.encode(message);
        }
        row_values.clear();
        row_values.resize(self.config.layout.rows_len(rows), 0.0);
        let (map, layout) = (self.map.clone(), self.config.layout.clone());
        self.ask(|server, reply| {
            let PsReply::Pulled { dense: dense_bytes, rows: row_bytes } = reply else { return None };
            let into: &mut [u8] = bytemuck::cast_slice_mut(&mut dense[map.dense(server)]);
            if dense_bytes.len() != into.len() {
                return None;
            }
            into.copy_from_slice(dense_bytes);
            let mut rest = *row_bytes;
            let places = layout.by_row_mut(rows, row_values).filter(|(row, _)| map.owner(*row) == server);
            for (_, place) in places {
                let place: &mut [u8] = bytemuck::cast_slice_mut(place);
                let (value, left) = rest.split_at_checked(place.len())?;
                place.copy_from_slice(value);
                rest = left;
            }
            rest.is_empty().then_some(())
        })
    }

    /// Sets the share of the learning rate that later pushes carry, as
    /// [`Push::rate_share`](crate::Push::rate_share) says; `None` at first.
    #[doc(alias = "ADJUST_LR")]
    pub const fn set_rate_share(&mut self, share: Option<f32>) {
        self.rate_share = share;
    }

    /// Sends gradient sums over `samples`, which change nothing until they are committed or [count](Self::count):
    /// `dense` is `[dense_len]`; `rows` ascend, each once; `values` is `[rows, dim]`. Returns once every server has it. The outcome is `Duplicate` only if it was one on all
    /// servers.
    ///
    /// # Errors
    /// See [`PsError`]. If one server refuses, others may have taken the push. That has no effect, since the step is
    /// not committed, or the push does not count.
    pub fn push(
        &mut self,
        step: Iteration,
        samples: u64,
        dense: &[f32],
        rows: &[u64],
        values: &[f32],
    ) -> Result<PushOutcome, PsError> {
        self.check_dense(dense.len())?;
        let layout = &self.config.layout;
        let due = layout.rows_len(rows);
        if values.len() != due {
            let due = format!("{due}, as {} rows have", rows.len());
            return Err(InvalidValue::new("row gradients", values.len(), due).into());
        }
        let mut mine = Vec::new();
        for ((server, message), server_rows) in (0..).zip(&mut self.messages).zip(self.map.split_rows(rows)) {
            mine.clear();
            let owned = layout.by_row(rows, values).filter(|(row, _)| self.map.owner(*row) == server);
            owned.for_each(|(_, values)| mine.extend_from_slice(values));
            let push = PsRequest::Push {
                step,
                samples,
                rate_share: self.rate_share,
                dense: Cow::Borrowed(&dense[self.map.dense(server)]),
                rows: Cow::Owned(server_rows),
                values: Cow::Borrowed(&mine),
            };
            push.encode(message);
        }
        let mut outcome = PushOutcome::Duplicate;
        self.ask(|_, reply| match reply {
            PsReply::Pushed(PushOutcome::Duplicate) => Some(()),
            PsReply::Pushed(taken) => {
                outcome = *taken;
                Some(())
            }
            _ => None,
        })?;
        Ok(outcome)
    }

    /// In asynchronous training: has every server apply the pushes that count, which the coordinator has said. Every
    /// server must have them.
    ///
    /// # Errors
    /// See [`PsError`]. Some servers may have applied them then; the call can be repeated.
    pub fn count(&mut self, marks: &[PushMark]) -> Result<(), PsError> {
        for message in &mut self.messages {
            PsRequest::Count(Cow::Borrowed(marks)).encode(message);
        }
        self.ask(|_, reply| matches!(reply, PsReply::Counted).then_some(()))
    }

    /// Makes every server copy its part of the model for a checkpoint, after it has carried out `commit`.
    /// Returns, by server, the progress of training of its copy.
    ///
    /// # Errors
    /// See [`PsError`]. Some servers may have taken their copies then.
    pub fn copy(
        &mut self,
        commit: Option<&CommitToken>,
        checkpoint: CheckpointId,
    ) -> Result<Vec<Trained>, PsError> {
        for message in &mut self.messages {
            PsRequest::Copy { commit: commit.map(Cow::Borrowed), checkpoint }.encode(message);
        }
        let mut trained = Vec::with_capacity(self.servers.len());
        self.ask(|_, reply| {
            let PsReply::Copied(one) = reply else { return None };
            trained.push(*one);
            Some(())
        })?;
        Ok(trained)
    }

    fn check_dense(&self, len: usize) -> Result<(), PsError> {
        let expected = self.map.dense_len();
        if len == expected {
            Ok(())
        } else {
            Err(InvalidValue::new("dense values", len, format!("{expected} long")).into())
        }
    }

    // Sends each server its message, then takes each one's reply; `take` says whether it is of the right kind.
    fn ask(&mut self, mut take: impl FnMut(u32, &PsReply<'_>) -> Option<()>) -> Result<(), PsError> {
        if self.broken {
            return Err(PsError::Broken);
        }
        let started = Instant::now();
        let deadline = started + self.config.timeout;
        let failed = |server: u32, error: StreamError| match error {
            StreamError::Channel(error) => failed(server, started, error),
            StreamError::Wire(error) => PsError::Protocol { server, what: error.to_string() },
        };
        if let Some(reason) = self.abort.reason() {
            return Err(PsError::Aborted { reason: reason.to_owned() });
        }
        // Until all replies are in, the connections don't stand between two messages.
        self.broken = true;
        for ((server, stream), message) in (0..).zip(&mut self.servers).zip(&self.messages) {
            stream.send(message, deadline).map_err(|e| failed(server, e))?;
        }
        let mut refused = None;
        for (server, stream) in (0..).zip(&mut self.servers) {
            let payload = stream.receive(self.config.message_max, deadline).map_err(|e| failed(server, e))?;
            let protocol = |e: WireError| PsError::Protocol { server, what: e.to_string() };
            match PsReply::decode(payload).map_err(protocol)? {
                PsReply::Refused { refusal, why } => {
                    refused.get_or_insert_with(|| PsError::Refused { server, refusal, why: why.to_owned() });
                }
                reply => take(server, &reply).ok_or_else(|| PsError::Protocol {
                    server,
                    what: "a reply to another question".to_owned(),
                })?,
            }
        }
        self.broken = false;
        refused.map_or(Ok(()), Err)
    }
}

// The error of a call that a channel ended.
fn failed(server: u32, started: Instant, error: ChannelError) -> PsError {
    match error {
        ChannelError::Closed => PsError::Closed { server },
        ChannelError::Late => PsError::Timeout { server, waited: started.elapsed() },
        ChannelError::Aborted { reason } => PsError::Aborted { reason },
        ChannelError::OtherHost => PsError::OtherHost { server },
        ChannelError::Io { what, source } => {
            PsError::Io(CollectiveError::io(&format!("{what}, server {server}"), &source))
        }
        other => PsError::Protocol { server, what: other.to_string() },
    }
}
