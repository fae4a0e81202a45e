//! The agent of one process: a session kept alive in the background, and blocking calls for the training thread.

use std::fmt;
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use antdt_core::{
    CheckpointId, Connections, Holder, Joined, Metrics, NodeInfo, Plan, PushMark, Readiness, Retry, Seed,
    Standing, StepCommit,
};
use antdt_proto::convert::{WireError, group::push_marks, metric};
use antdt_proto::v1;
use antdt_proto::v1::control_client::ControlClient;
use antdt_proto::{Bearer, JobChannel, Token, connection};
use antdt_rt::{CancellationToken, JobClock, backoff};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tonic::Code;
use tonic::transport::Endpoint;

use super::error::AgentError;
use super::heartbeat::{LAST_REPORTS, Shared, Unusual, heartbeats, last_reports, over, send};
use super::pulse::Pulse;
use crate::session::{AgentSession, BeatReply, Notice, SessionState};

/// What a process ends with that SIGTERM ended: 128 and the number of the signal, as a shell reports it.
const SIGTERM_CODE: i32 = 128 + 15;

/// Settings of an [`Agent`]: the address of the master, and what the agent tells the master about its node.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// Address of the master as `address:port` or `name:port`; an IPv6 address is in brackets.
    pub master: String,
    /// Name of the job; a master of another job refuses it.
    pub job: String,
    /// The job's secret, which every call to the master carries.
    pub token: Token,
    /// How the master is connected with.
    pub connections: Connections,
    /// Identity and host of the node.
    pub info: NodeInfo,
    /// Address of this node's data plane; empty if it has none.
    pub data_address: String,
    /// Deadline of a call that the master answers at once.
    pub call_timeout: Duration,
    /// Time without an answer of the master after which this process gives up. A reply to a heartbeat may
    /// replace it.
    pub master_timeout: Duration,
}

/// What a worker tells the master about the copies of the model that it, or the servers, took for a
/// checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// Number of optimizer steps that the copied model has taken.
    pub steps: u64,
    /// Number of samples that the copied model was trained on.
    pub samples: u64,
    /// Layout of the model, as JSON.
    pub layout: String,
    /// Name of the optimizer with its settings.
    pub optimizer: String,
}

/// What the master wants a node to do before it exits.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Farewell {
    /// Pushes that count and that the servers may still have to apply before anything else.
    pub pushes: Vec<PushMark>,
    /// Last checkpoint of the job, which the node must take; `None` if there is none to take.
    pub checkpoint: Option<CheckpointId>,
    /// Whether the node must evaluate the model.
    pub evaluate: bool,
    /// Whether the node must join again after that, because epochs may follow; otherwise it exits.
    pub goes_on: bool,
}

/// A file with a part of a checkpoint, as the node that wrote it reports it to the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenPart {
    /// Name of the file that holds the part.
    pub name: String,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// CRC-32C of the file.
    pub crc32c: u32,
}

fn written_request(
    holder: Holder,
    checkpoint: CheckpointId,
    part: Result<WrittenPart, String>,
) -> v1::WrittenRequest {
    let (holder, checkpoint) = (Some(holder.into()), checkpoint.0);
    match part {
        Ok(WrittenPart { name, bytes, crc32c }) => {
            v1::WrittenRequest { holder, checkpoint, part: name, bytes, crc32c, failed: String::new() }
        }
        Err(failed) => v1::WrittenRequest { holder, checkpoint, failed, ..Default::default() },
    }
}

/// The connection of one incarnation of a node to the master: it sends heartbeats in the background, and
/// makes the node's calls.
pub struct Agent {
    runtime: tokio::runtime::Runtime,
    shared: Arc<Shared>,
    client: ControlClient<JobChannel>,
    channel: JobChannel,
    config: AgentConfig,
    stop: CancellationToken,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("holder", &self.shared.holder).finish_non_exhaustive()
    }
}

impl Agent {
    /// Registers with the master and starts the heartbeat.
    ///
    /// `on_notice` is called from a background thread; it should abort the call in which the training thread
    /// is blocked.
    ///
    /// # Errors
    /// If the master refuses or cannot be reached within `master_timeout`.
    pub fn connect(
        config: AgentConfig,
        on_notice: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Result<Self, AgentError> {
        let start = |why: &dyn fmt::Display| AgentError::Start { why: why.to_string() };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("antdt-agent")
            .enable_all()
            .build()
            .map_err(|e| start(&e))?;
        let channel = {
            let _in_runtime = runtime.enter();
            let endpoint = Endpoint::from_shared(format!("http://{}", config.master))
                .map_err(|e| start(&e))?
                // Without keep-alive a channel never notices a silent partition.
                .http2_keep_alive_interval(Duration::from_secs(2))
                .keep_alive_timeout(Duration::from_secs(2))
                .keep_alive_while_idle(true);
            connection::channel(&endpoint, config.call_timeout, config.connections.clone())
        };
        let channel = Bearer::new(&config.token).over(channel);
        let clock = JobClock::start();
        let session = AgentSession::new(clock.now(), config.master_timeout);
        let shared = Arc::new(Shared {
            session: Mutex::new(session),
            holder: config.info.holder,
            clock,
            nudge: Notify::new(),
            beating: tokio::sync::Mutex::new(()),
        });
        let agent = Self {
            client: ControlClient::new(channel.clone()),
            channel,
            runtime,
            shared,
            config,
            stop: CancellationToken::new(),
        };
        let info = &agent.config.info;
        let request = v1::RegisterRequest {
            holder: Some(info.holder.into()),
            job: agent.config.job.clone(),
            host: info.host.clone(),
            device: info.device.to_string(),
            batch_size_min: info.batch_size_min,
            batch_size_max: info.batch_size_max,
            data_address: agent.config.data_address.clone(),
            process_id: std::process::id(),
            memory_bytes: info.memory_bytes,
        };
        let reply = agent.call("register", agent.config.call_timeout, |mut client| {
            let request = request.clone();
            async move { client.register(request).await }
        })?;
        let first = BeatReply { plan: reply.plan.map(Plan::from), ..BeatReply::default() };
        agent.session().beat_answered(agent.shared.clock.now(), first);
        let every = Duration::from_nanos(reply.heartbeat_ns).max(Duration::from_millis(10));
        agent.runtime.spawn(heartbeats(
            agent.client.clone(),
            Arc::clone(&agent.shared),
            every,
            agent.config.call_timeout,
            agent.stop.clone(),
            on_notice,
        ));
        Ok(agent)
    }

    /// Returns the node and the incarnation that this agent speaks for.
    pub fn holder(&self) -> Holder {
        self.shared.holder
    }

    /// Returns the agent's clock. Its times are good for measuring durations only.
    pub fn clock(&self) -> JobClock {
        self.shared.clock
    }

    /// Locks the session and returns it. The heartbeat waits for the same lock, so the caller keeps it for a moment
    /// only.
    pub fn session(&self) -> MutexGuard<'_, AgentSession> {
        self.shared.session()
    }

    /// Returns a handle by which the training thread reports its activity.
    pub fn pulse(&self) -> Pulse {
        Pulse(Arc::clone(&self.shared))
    }

    /// Makes SIGTERM a request to leave instead of the end of this process. The agent tells the master that
    /// the platform wants the node to go, and the node hands its work over first. The process ends once the
    /// job is over, or with a second SIGTERM.
    pub fn heed_sigterm(&self) {
        let (shared, client) = (Arc::clone(&self.shared), self.client.clone());
        self.runtime.spawn(async move {
            let mut told = match signal(SignalKind::terminate()) {
                Ok(told) => told,
                Err(error) => {
                    tracing::warn!(%error, "SIGTERM cannot be caught; it ends this process at once");
                    return;
                }
            };
            told.recv().await;
            shared.session().preempted = true;
            shared.nudge.notify_one();
            tokio::select! {
                _ = told.recv() => {}
                () = over(&shared) => {
                    // A second one does not wait for the master.
                    tokio::select! {
                        _ = told.recv() => {}
                        _ = tokio::time::timeout(LAST_REPORTS, last_reports(client, &shared)) => {}
                    }
                }
            }
            std::process::exit(SIGTERM_CODE);
        });
    }

    /// Returns the gRPC connection to the master, for other clients of the same process.
    pub fn channel(&self) -> JobChannel {
        self.channel.clone()
    }

    /// Runs a future to its end on the calling thread. The future must have a deadline of its own.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.block_on(future)
    }

    /// Asks the master for a group, and waits until a group of all live workers is formed.
    ///
    /// # Errors
    /// If this incarnation is fenced, or the master is lost, before the master has answered.
    pub fn join(&self, standing: &Standing) -> Result<Joined, AgentError> {
        let request = v1::JoinRequest::new(self.holder(), standing);
        let reply = self.call("join", Duration::MAX, |mut client| {
            let request = request.clone();
            async move { client.join(request).await }
        })?;
        Joined::try_from(reply).map_err(|e| AgentError::Refused { call: "join", why: e.to_string() })
    }

    /// Tells the master that the push of `step` is on all servers, and waits until the step is committed. Returns
    /// `None` if a rollback of the job has undone the step: the worker must join again.
    ///
    /// # Errors
    /// If this incarnation is fenced, or the master is lost, before the master has answered.
    pub fn ready(&self, step: u64, readiness: &Readiness) -> Result<Option<StepCommit>, AgentError> {
        self.runtime.block_on(self.ready_async(step, readiness))
    }

    /// Does the same as [`ready`](Self::ready), but stops waiting when the future `over` ends, and then
    /// returns [`ControlFlow::Break`] with its outcome. The master may have committed the step by then; the
    /// worker learns that by asking again.
    ///
    /// # Errors
    /// If this incarnation is fenced, or the master is lost, before the master has answered.
    pub fn ready_until<T>(
        &self,
        step: u64,
        readiness: &Readiness,
        over: impl Future<Output = T>,
    ) -> Result<ControlFlow<T, Option<StepCommit>>, AgentError> {
        self.runtime.block_on(async {
            tokio::select! {
                biased;
                over = over => Ok(ControlFlow::Break(over)),
                commit = self.ready_async(step, readiness) => commit.map(ControlFlow::Continue),
            }
        })
    }

    async fn ready_async(&self, step: u64, readiness: &Readiness) -> Result<Option<StepCommit>, AgentError> {
        let request = v1::ReadyRequest::new(self.holder(), step, readiness);
        let ready = |mut client: ControlClient<JobChannel>| {
            let request = request.clone();
            async move {
                let reply = client.ready(request).await?;
                // The answer to an earlier call that was given up on its way is not this one's.
                let mine = reply.get_ref().asked == step;
                if mine { Ok(reply) } else { Err(tonic::Status::aborted("the commit of another step")) }
            }
        };
        let reply = self.call_async("ready", Duration::MAX, ready).await?;
        if reply.undone {
            return Ok(None);
        }
        let commit = StepCommit::try_from(reply);
        commit.map(Some).map_err(|e| AgentError::Refused { call: "ready", why: e.to_string() })
    }

    /// Tells the master that this worker has paused for a checkpoint, and waits for its answer. Returns `None` if the worker
    /// goes on training. Otherwise it takes the copies of the model; before servers take theirs, they apply the pushes that
    /// are returned.
    ///
    /// # Errors
    /// If this incarnation is fenced, or the master is lost, before the master has answered.
    pub fn rest(&self, checkpoint: CheckpointId) -> Result<Option<Vec<PushMark>>, AgentError> {
        let request = v1::RestRequest { holder: Some(self.holder().into()), checkpoint: checkpoint.0 };
        let reply = self.call("rest", Duration::MAX, |mut client| async move {
            let reply = client.rest(request).await?;
            // The answer to an earlier call that was given up on its way is not this one's.
            let mine = reply.get_ref().checkpoint == checkpoint.0;
            if mine { Ok(reply) } else { Err(tonic::Status::aborted("the word for another checkpoint")) }
        })?;
        let refused = |e: WireError| AgentError::Refused { call: "rest", why: e.to_string() };
        reply.keep.then(|| push_marks(reply.pushes).map_err(refused)).transpose()
    }

    /// Tells the master that copies of the model exist, or why they do not. The master cuts the ledger before
    /// it answers. Returns whether the cut succeeded.
    ///
    /// # Errors
    /// If this incarnation is fenced, or the master is lost, before the master has answered.
    pub fn cut(&self, checkpoint: CheckpointId, copies: &Result<Copies, String>) -> Result<bool, AgentError> {
        let (holder, checkpoint) = (Some(self.holder().into()), checkpoint.0);
        let request = match copies {
            Ok(Copies { steps, samples, layout, optimizer }) => v1::CutRequest {
                holder,
                checkpoint,
                steps: *steps,
                samples: *samples,
                layout: layout.clone(),
                optimizer: optimizer.clone(),
                failed: String::new(),
            },
            Err(why) => v1::CutRequest { holder, checkpoint, failed: why.clone(), ..Default::default() },
        };
        let reply = self.call("cut", Duration::MAX, |mut client| {
            let request = request.clone();
            async move { client.cut(request).await }
        })?;
        Ok(reply.taken)
    }

    /// Calls `write` on a background thread while training goes on, and tells the master how writing the part
    /// of the checkpoint ended.
    pub fn write_beside(
        &self,
        checkpoint: CheckpointId,
        write: impl FnOnce() -> Result<WrittenPart, String> + Send + 'static,
    ) {
        let (client, holder, limit) = (self.client.clone(), self.holder(), self.config.call_timeout);
        let shared = Arc::clone(&self.shared);
        shared.session().writing_begins();
        let written = self.runtime.spawn_blocking(write);
        self.runtime.spawn(async move {
            let written = written.await.unwrap_or_else(|e| Err(e.to_string()));
            shared.session().writing_ends();
            let request = written_request(holder, checkpoint, written);
            let mut delays = backoff(
                Duration::from_millis(20),
                Duration::from_secs(1),
                limit,
                Seed(u64::from(holder.node.index)),
            );
            // A master that hears nothing gives the checkpoint up.
            while let Err(status) = client.clone().written(request.clone()).await {
                match (retry_of(status.code()), delays.next()) {
                    (Retry::Now | Retry::Later, Some(delay)) => tokio::time::sleep(delay).await,
                    _ => {
                        tracing::warn!(%holder, %checkpoint, %status, "the master could not be told of a part");
                        return;
                    }
                }
            }
        });
    }

    /// Tells the master how the writing of a part of a checkpoint ended.
    ///
    /// # Errors
    /// If the master refuses the call or does not answer in time.
    pub fn written(
        &self,
        checkpoint: CheckpointId,
        part: Result<WrittenPart, String>,
    ) -> Result<(), AgentError> {
        let request = written_request(self.holder(), checkpoint, part);
        self.call("written", self.config.call_timeout, |mut client| {
            let request = request.clone();
            async move { client.written(request).await }
        })?;
        Ok(())
    }

    /// Sends the reports that are left, and tells the master that this node leaves the job. `end_of_data` says whether it
    /// leaves because there is no more data, `can_evaluate` whether it has the whole model, to evaluate it.
    ///
    /// Returns what the master wants this node to do before it exits.
    ///
    /// # Errors
    /// If the master refuses the call or does not answer in time.
    pub fn leave(&self, end_of_data: bool, can_evaluate: bool) -> Result<Farewell, AgentError> {
        self.flush();
        let holder = Some(self.holder().into());
        let request = v1::LeaveRequest { holder, end_of_data, can_evaluate };
        let reply =
            self.call(
                "leave",
                self.config.call_timeout,
                |mut client| async move { client.leave(request).await },
            )?;
        let refused = |e: WireError| AgentError::Refused { call: "leave", why: e.to_string() };
        Ok(Farewell {
            pushes: push_marks(reply.pushes).map_err(refused)?,
            checkpoint: (reply.checkpoint != 0).then_some(CheckpointId(reply.checkpoint)),
            evaluate: reply.evaluate,
            goes_on: reply.goes_on,
        })
    }

    /// Tells the master the metrics of an evaluation on `samples` samples, after the reports that are left.
    ///
    /// # Errors
    /// If the master refuses the call or does not answer in time.
    pub fn evaluated(&self, samples: u64, metrics: &Metrics) -> Result<(), AgentError> {
        self.flush();
        let metrics = metric::from_core(metrics);
        let request = v1::EvaluatedRequest { holder: Some(self.holder().into()), samples, metrics };
        self.call("evaluated", self.config.call_timeout, |mut client| {
            let request = request.clone();
            async move { client.evaluated(request).await }
        })?;
        Ok(())
    }

    /// Sends what was reported since the last heartbeat. A failure is not one of the caller's concerns.
    fn flush(&self) {
        let beat = self.session().beat();
        let sent = self.runtime.block_on(send(
            self.client.clone(),
            self.holder(),
            &beat,
            Unusual::default(),
            self.config.call_timeout,
        ));
        match sent {
            Ok(reply) => self.session().beat_answered(self.shared.clock.now(), reply),
            Err(_) => self.session().beat_failed(self.shared.clock.now(), beat),
        }
    }

    /// Calls until it succeeds, is refused, or the master is given up.
    fn call<T, F>(
        &self,
        name: &'static str,
        limit: Duration,
        call: impl Fn(ControlClient<JobChannel>) -> F,
    ) -> Result<T, AgentError>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        self.runtime.block_on(self.call_async(name, limit, call))
    }

    async fn call_async<T, F>(
        &self,
        name: &'static str,
        limit: Duration,
        call: impl Fn(ControlClient<JobChannel>) -> F,
    ) -> Result<T, AgentError>
    where
        F: Future<Output = Result<tonic::Response<T>, tonic::Status>>,
    {
        let holder = self.holder();
        let mut delays = backoff(
            Duration::from_millis(20),
            Duration::from_secs(1),
            self.session().master_wait(),
            Seed(u64::from(holder.node.index)),
        );
        loop {
            let status = tokio::select! {
                () = self.stop.cancelled() => return Err(self.ended(name)),
                reply = tokio::time::timeout(limit, call(self.client.clone())) => match reply {
                    Ok(Ok(reply)) => return Ok(reply.into_inner()),
                    Ok(Err(status)) => status,
                    Err(_) => tonic::Status::deadline_exceeded(format!("no answer within {limit:?}")),
                },
            };
            match retry_of(status.code()) {
                Retry::Never if status.code() == Code::PermissionDenied => {
                    return Err(AgentError::Fenced { holder });
                }
                Retry::Never if status.code() == Code::Unauthenticated => {
                    let (master, why) = (self.config.master.clone(), status.message().to_owned());
                    return Err(AgentError::Unauthorized { master, why });
                }
                Retry::Never | Retry::Register => {
                    return Err(AgentError::Refused { call: name, why: status.message().to_owned() });
                }
                Retry::Now => {}
                Retry::Later => match delays.next() {
                    Some(delay) => tokio::time::sleep(delay).await,
                    None => {
                        let master = self.config.master.clone();
                        return Err(AgentError::MasterLost { master, why: status.message().to_owned() });
                    }
                },
            }
        }
    }

    fn ended(&self, call: &'static str) -> AgentError {
        match self.session().state() {
            SessionState::Fenced => AgentError::Fenced { holder: self.holder() },
            SessionState::MasterLost => AgentError::MasterLost {
                master: self.config.master.clone(),
                why: format!("no heartbeat was answered for {:?}", self.session().master_wait()),
            },
            state @ (SessionState::Running | SessionState::Draining | SessionState::Finished) => {
                AgentError::Refused { call, why: format!("the session has ended ({state:?})") }
            }
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// What a status means for the caller. `Aborted` is the master's word for "ask again at once".
const fn retry_of(code: Code) -> Retry {
    match code {
        Code::Aborted => Retry::Now,
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::ResourceExhausted
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal => Retry::Later,
        Code::Ok
        | Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented
        | Code::DataLoss
        | Code::Unauthenticated => Retry::Never,
    }
}
