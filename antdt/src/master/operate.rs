//! What people ask of a running job, over gRPC: where it stands, and that it ends.

use std::sync::{Arc, Mutex};

use antdt_controller::LaunchStatus;
use antdt_proto::convert::to_ns;
use antdt_proto::v1;
use antdt_rt::{CancellationToken, JobClock};
use antdt_shard::runtime::ShardHandle;
use tonic::{Request, Response, Status};

use super::lock;
use super::recorder::Recorder;
use super::runner::{NodeView, Nodes};

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
    pub(super) workers: u32,
    pub(super) clock: JobClock,
    pub(super) pace: Arc<Mutex<Pace>>,
    pub(super) recorder: Arc<Mutex<Recorder>>,
    pub(super) nodes: Arc<Mutex<Option<Nodes>>>,
    pub(super) ledger: Option<ShardHandle>,
    pub(super) stop: CancellationToken,
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
        let (steps, loss) = lock(&self.recorder).pulse();
        // Taken out of its place when the job is over.
        let nodes = lock(&self.nodes).as_ref().map(Nodes::latest).unwrap_or_default();
        Ok(Response::new(v1::DescribeReply {
            job: self.job.clone(),
            elapsed_ns: to_ns(self.clock.now().since(antdt_core::JobTime::ZERO)),
            steps,
            counts,
            workers: self.workers,
            members: u32::try_from(pace.members).unwrap_or(u32::MAX),
            samples_per_second: pace.samples_per_second,
            loss,
            nodes: nodes.into_iter().map(node).collect(),
            stopping: self.stop.is_cancelled(),
        }))
    }

    async fn stop(&self, _request: Request<v1::StopRequest>) -> Result<Response<v1::StopReply>, Status> {
        tracing::info!(job = self.job, "asked to stop");
        self.stop.cancel();
        Ok(Response::new(v1::StopReply {}))
    }
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
