//! The gRPC service for operators of a running job: its status, a diagnosis of what is slow, scaling,
//! checkpoints, and stopping.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use antdt_core::{CheckpointId, JobTime, NodeId, NodeStatus};
use antdt_job::head::{AskedCheckpoint, Done, HostLoad, NodeDiagnosis, SlowHost};
use antdt_job::{Head, HeadAnswer, HeadEvent};
use antdt_launch::LaunchStatus;
use antdt_proto::convert::to_ns;
use antdt_proto::v1;
use antdt_rt::{CancellationToken, JobClock, Mailbox};
use antdt_shard::runtime::ShardHandle;
use tonic::{Request, Response, Status};

use super::lock;
use super::runner::{NodeView, Nodes};
use super::scaler::Scaler;
use super::sink::Recorder;
use crate::report::ActionEntry;

/// Newest actions that a look at the job shows.
const ACTIONS_SHOWN: usize = 5;

/// What the master last learned of the job's pace.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    pub(super) members: usize,
    pub(super) samples_per_second: f64,
}

/// The service of one job.
#[derive(Debug, Clone)]
pub(super) struct JobService {
    pub(super) job: String,
    pub(super) policy: String,
    pub(super) dry_run: bool,
    pub(super) scaler: Scaler,
    pub(super) head: Mailbox<Head>,
    pub(super) clock: JobClock,
    pub(super) pace: Arc<Mutex<Pace>>,
    pub(super) recorder: Arc<Mutex<Recorder>>,
    pub(super) nodes: Arc<Mutex<Option<Nodes>>>,
    pub(super) ledger: Option<ShardHandle>,
    pub(super) stop: CancellationToken,
    /// How often the head tells how far the job is.
    pub(super) control_tick: Duration,
}

#[tonic::async_trait]
impl v1::job_server::Job for JobService {
    async fn describe(
        &self,
        _request: Request<v1::DescribeRequest>,
    ) -> Result<Response<v1::DescribeReply>, Status> {
        let counts = match &self.ledger {
            Some(ledger) => {
                let status = ledger.status().await.map_err(|e| Status::unavailable(e.to_string()))?;
                Some(v1::Counts {
                    total: status.counts.total,
                    acked: status.counts.acked,
                    todo: status.counts.todo,
                    doing: status.counts.doing,
                    quarantined: status.counts.quarantined,
                })
            }
            None => None,
        };
        let pace = *lock(&self.pace);
        let (steps, loss, actions) = {
            let recorder = lock(&self.recorder);
            let (steps, loss) = recorder.pulse();
            let newest = recorder.actions.len().saturating_sub(ACTIONS_SHOWN);
            (steps, loss, recorder.actions[newest..].iter().map(entry).collect())
        };
        // Taken out of its place when the job is over.
        let nodes = lock(&self.nodes).as_ref().map(Nodes::latest).unwrap_or_default();
        Ok(Response::new(v1::DescribeReply {
            job: self.job.clone(),
            elapsed_ns: to_ns(self.clock.now().since(JobTime::ZERO)),
            steps,
            counts,
            workers: self.scaler.now(),
            members: u32::try_from(pace.members).unwrap_or(u32::MAX),
            samples_per_second: pace.samples_per_second,
            loss,
            nodes: nodes.into_iter().map(node).collect(),
            stopping: self.stop.is_cancelled(),
            policy: self.policy.clone(),
            dry_run: self.dry_run,
            actions,
        }))
    }

    async fn diagnose(
        &self,
        _request: Request<v1::DiagnoseRequest>,
    ) -> Result<Response<v1::DiagnoseReply>, Status> {
        let found = match self.head.call(HeadEvent::Diagnose).await {
            Ok(HeadAnswer::Diagnosed(found)) => found,
            Ok(answer) => return Err(unexpected(&answer)),
            Err(closed) => return Err(Status::unavailable(closed.to_string())),
        };
        let host = |node: NodeId| {
            let of = found.nodes.iter().find(|it| it.holder.node == node);
            of.map(|it| it.host.clone()).unwrap_or_default()
        };
        let links = found.links.iter().map(|link| v1::SlowLink {
            from: link.from.to_string(),
            to: link.to.to_string(),
            from_host: host(link.from),
            to_host: host(link.to),
            ratio: link.ratio,
            bytes_per_second: link.bytes_per_second,
            usual_bytes_per_second: link.usual_bytes_per_second,
            share: link.share,
            since_ns: to_ns(link.since.since(JobTime::ZERO)),
            reports: link.reports,
        });
        let links = links.collect();
        Ok(Response::new(v1::DiagnoseReply {
            job: self.job.clone(),
            elapsed_ns: to_ns(self.clock.now().since(JobTime::ZERO)),
            policy: found.policy,
            dry_run: found.dry_run,
            error_rate: found.error_rate,
            plan: found.plan.0,
            step_ns: found.step.map(|step| to_ns(step.time)),
            overhead_ns: found.step.map(|step| to_ns(step.overhead)),
            nodes: found.nodes.into_iter().map(diagnosed).collect(),
            decision: found.decision.map(decision),
            actions: found.done.into_iter().map(decision).collect(),
            slowdown: found.slowdown,
            hosts: found
                .hosts
                .into_iter()
                .map(|SlowHost { host, workers, ratio, load }| v1::SlowHost {
                    host,
                    workers: workers.into_iter().map(|worker| worker.index).collect(),
                    ratio,
                    load: load.map(host_load),
                })
                .collect(),
            links,
        }))
    }

    async fn stop(&self, _request: Request<v1::StopRequest>) -> Result<Response<v1::StopReply>, Status> {
        tracing::info!(job = self.job, "asked to stop");
        self.stop.cancel();
        Ok(Response::new(v1::StopReply {}))
    }

    async fn scale(&self, request: Request<v1::ScaleRequest>) -> Result<Response<v1::ScaleReply>, Status> {
        let v1::ScaleRequest { workers, servers } = request.into_inner();
        let scaled = match servers {
            Some(servers) => self.scaler.servers(servers).await,
            None => self.scaler.workers(workers).await,
        };
        scaled.map(|before| Response::new(v1::ScaleReply { before }))
    }

    async fn restart(
        &self,
        request: Request<v1::RestartRequest>,
    ) -> Result<Response<v1::RestartReply>, Status> {
        let node = NodeId::worker(request.into_inner().worker);
        match self.head.call(HeadEvent::Restart(node)).await {
            Ok(HeadAnswer::Noted) => Ok(Response::new(v1::RestartReply {})),
            Ok(HeadAnswer::Refused(why)) => Err(Status::failed_precondition(why)),
            Ok(answer) => Err(unexpected(&answer)),
            Err(closed) => Err(Status::unavailable(closed.to_string())),
        }
    }

    async fn checkpoint(
        &self,
        request: Request<v1::CheckpointRequest>,
    ) -> Result<Response<v1::CheckpointReply>, Status> {
        let asked = request.into_inner().checkpoint.map(CheckpointId);
        match self.head.call(HeadEvent::Checkpoint(asked)).await {
            Ok(HeadAnswer::Checkpointed { checkpoint, state }) => Ok(Response::new(v1::CheckpointReply {
                checkpoint: checkpoint.0,
                ended: match state {
                    AskedCheckpoint::UnderWay => None,
                    AskedCheckpoint::Complete(place) => Some(v1::checkpoint_reply::Ended::Place(place)),
                    AskedCheckpoint::Failed(why) => Some(v1::checkpoint_reply::Ended::Failure(why)),
                },
            })),
            Ok(HeadAnswer::Refused(why)) => Err(Status::failed_precondition(why)),
            Ok(answer) => Err(unexpected(&answer)),
            Err(closed) => Err(Status::unavailable(closed.to_string())),
        }
    }
}

pub(super) fn unexpected(answer: &HeadAnswer) -> Status {
    Status::internal(format!("the head gave an answer of another kind: {answer:?}"))
}

fn host_load(load: HostLoad) -> v1::HostLoad {
    let HostLoad { busy, others, steal } = load;
    v1::HostLoad { busy, others, steal, explains: load.explains() }
}

fn diagnosed(node: NodeDiagnosis) -> v1::NodeDiagnosis {
    v1::NodeDiagnosis {
        holder: Some(node.holder.into()),
        status: match node.status {
            NodeStatus::Pending => "pending",
            NodeStatus::Running => "running",
            NodeStatus::Draining => "draining",
            NodeStatus::Finished => "finished",
            NodeStatus::Lost => "lost",
        }
        .to_owned(),
        device: node.device.to_string(),
        pace: node.pace.name().to_owned(),
        straggler: node.straggler,
        ratio: node.ratio,
        ratio_low: node.bounds.map(|(low, _)| low),
        ratio_high: node.bounds.map(|(_, high)| high),
        batches: node.batches,
        pace_since_ns: node.pace_since.map(|at| to_ns(at.since(JobTime::ZERO))),
        slow_share: node.slow_share,
        batch_size: node.batch_size,
        data_wait_share: node.data_wait_share,
        host: node.host,
        load: node.load.map(Into::into),
        arrival: node.arrival.map(|it| v1::Arrival {
            barrier_wait_ns: to_ns(it.barrier_wait),
            communicate_ns: to_ns(it.communicate),
            last_share: it.last_share,
            holds_up_ns: to_ns(it.holds_up),
        }),
    }
}

fn entry(entry: &ActionEntry) -> v1::Decision {
    let at = Duration::try_from_secs_f64(entry.time_s).unwrap_or_default();
    let ActionEntry { kind, target, reason, .. } = entry.clone();
    v1::Decision { at_ns: to_ns(at), kind, target, reason }
}

fn decision(done: Done) -> v1::Decision {
    let Done { at, kind, target, reason } = done;
    v1::Decision { at_ns: to_ns(at.since(JobTime::ZERO)), kind, target, reason }
}

fn node(view: NodeView) -> v1::NodeState {
    let (state, exit) = match view.status {
        LaunchStatus::Pending => (v1::LaunchState::Pending, None),
        LaunchStatus::Running => (v1::LaunchState::Running, None),
        LaunchStatus::Gone(exit) => (v1::LaunchState::Gone, Some(exit)),
    };
    v1::NodeState {
        holder: Some(view.holder.into()),
        state: state.into(),
        code: exit.and_then(|exit| exit.code),
        signal: exit.and_then(|exit| exit.signal),
        host: view.host.unwrap_or_default(),
    }
}
