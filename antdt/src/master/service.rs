//! The control plane over gRPC: it translates calls and holds those that wait for others, and decides
//! nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use antdt_core::{
    CheckpointId, DeviceClass, Holder, Joined, LinkReport, NodeInfo, PlanVersion, PushMark, StepCommit,
};
use antdt_job::head::NodeNews;
use antdt_job::limits::PARK_MAX;
use antdt_job::{Head, HeadAnswer, HeadEvent, Registration};
use antdt_proto::convert::{metric, required, to_ns};
use antdt_proto::v1;
use antdt_rt::Mailbox;
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

use super::desk::Desk;

/// Calls that wait for one kind of decision.
type Waiting<T> = Arc<Mutex<BTreeMap<Holder, oneshot::Sender<T>>>>;

/// Calls that wait for a decision, by caller.
#[derive(Debug, Clone, Default)]
pub(super) struct Parked {
    joins: Waiting<v1::JoinReply>,
    /// The last answer to nodes that waited to join.
    told: Arc<Mutex<Option<Told>>>,
    /// Told nothing if their step is undone.
    ready: Waiting<Option<StepCommit>>,
    resting: Waiting<v1::RestReply>,
}

/// An answer to nodes that wait to join, as the head has it and as it is sent.
#[derive(Debug)]
struct Told {
    joined: Arc<Joined>,
    reply: v1::JoinReply,
}

impl Parked {
    /// Answers a worker that waits to join. The answer names all members of its group; it is encoded for the first worker of the group,
    /// and the others get the same bytes.
    pub(super) fn joined(&self, holder: Holder, joined: Arc<Joined>) {
        let Some(waiter) = lock(&self.joins).remove(&holder) else { return };
        let mut told = lock(&self.told);
        if told.as_ref().is_none_or(|told| !Arc::ptr_eq(&told.joined, &joined)) {
            let reply = (&*joined).into();
            *told = Some(Told { joined, reply });
        }
        let reply = told.as_ref().map(|told| told.reply.clone()).unwrap_or_default();
        // A caller that went away asks again and is told then.
        let _ = waiter.send(reply);
    }

    pub(super) fn committed(&self, holder: Holder, commit: StepCommit) {
        if let Some(waiter) = lock(&self.ready).remove(&holder) {
            let _ = waiter.send(Some(commit));
        }
    }

    pub(super) fn undone(&self, holder: Holder) {
        if let Some(waiter) = lock(&self.ready).remove(&holder) {
            let _ = waiter.send(None);
        }
    }

    pub(super) fn rested(&self, holder: Holder, checkpoint: CheckpointId, keep: bool, pushes: &[PushMark]) {
        if let Some(waiter) = lock(&self.resting).remove(&holder) {
            let _ = waiter.send(v1::RestReply { keep, checkpoint: checkpoint.0, pushes: marks(pushes) });
        }
    }

    /// Lets all callers go: the job is over.
    pub(super) fn clear(&self) {
        lock(&self.joins).clear();
        lock(&self.ready).clear();
        lock(&self.resting).clear();
    }
}

fn marks(pushes: &[PushMark]) -> Vec<v1::PushMark> {
    pushes.iter().copied().map(Into::into).collect()
}

fn lock<T>(shared: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn park<T>(map: &Mutex<BTreeMap<Holder, oneshot::Sender<T>>>, holder: Holder) -> oneshot::Receiver<T> {
    let (sender, receiver) = oneshot::channel();
    lock(map).insert(holder, sender);
    receiver
}

async fn parked<T>(receiver: oneshot::Receiver<T>) -> Result<T, Status> {
    match tokio::time::timeout(PARK_MAX, receiver).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) | Err(_) => Err(Status::aborted("not decided yet; ask again")),
    }
}

/// The service of one job.
#[derive(Debug, Clone)]
pub(super) struct ControlService {
    job: String,
    head: Mailbox<Head>,
    parked: Parked,
    /// Where checkpoints are put together, if the job takes any.
    desk: Option<Desk>,
}

impl ControlService {
    pub(super) const fn new(job: String, head: Mailbox<Head>, parked: Parked, desk: Option<Desk>) -> Self {
        Self { job, head, parked, desk }
    }

    fn desk(&self) -> Result<&Desk, Status> {
        self.desk.as_ref().ok_or_else(|| Status::failed_precondition("this job takes no checkpoints"))
    }

    async fn ask(&self, event: HeadEvent) -> Result<HeadAnswer, Status> {
        match self.head.call(event).await {
            Ok(HeadAnswer::Fenced) => {
                Err(Status::permission_denied("this life of the node was declared lost"))
            }
            Ok(HeadAnswer::Refused(why)) => Err(Status::failed_precondition(why)),
            Ok(answer) => Ok(answer),
            Err(closed) => Err(Status::unavailable(closed.to_string())),
        }
    }
}

fn holder_of(wire: Option<v1::Holder>) -> Result<Holder, Status> {
    Ok(required("holder", wire)?.try_into()?)
}

fn unexpected() -> Status {
    Status::internal("the head gave an answer of another kind")
}

#[tonic::async_trait]
impl v1::control_server::Control for ControlService {
    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterReply>, Status> {
        let request = request.into_inner();
        if request.job != self.job {
            let why = format!("this is the master of job `{}`, not of `{}`", self.job, request.job);
            return Err(Status::unauthenticated(why));
        }
        if request.batch_size_min == 0 || request.batch_size_min > request.batch_size_max {
            return Err(Status::invalid_argument(
                "batch_size_min must be at least 1 and at most batch_size_max",
            ));
        }
        let info = NodeInfo {
            holder: holder_of(request.holder)?,
            host: request.host,
            device: DeviceClass(request.device.into()),
            memory_bytes: request.memory_bytes,
            batch_size_min: request.batch_size_min,
            batch_size_max: request.batch_size_max,
        };
        let registration =
            Registration { info, data_address: request.data_address, process_id: request.process_id };
        match self.ask(HeadEvent::Register(registration)).await? {
            HeadAnswer::Registered { heartbeat, plan } => Ok(Response::new(v1::RegisterReply {
                heartbeat_ns: to_ns(heartbeat),
                plan: plan.as_ref().map(Into::into),
            })),
            _ => Err(unexpected()),
        }
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatReply>, Status> {
        let request = request.into_inner();
        let holder = holder_of(request.holder)?;
        let mut news = Vec::new();
        news.extend(request.preempted.then_some(NodeNews::Preempted));
        news.extend(request.stall.map(|stall| NodeNews::Stalled(stall.into())));
        news.extend(request.load.map(|load| NodeNews::Loaded(load.into())));
        if !request.links.is_empty() {
            let links = request.links.into_iter().map(LinkReport::try_from).collect::<Result<_, _>>()?;
            news.push(NodeNews::Transferred(links));
        }
        news.extend(request.model_distance.map(|distance| NodeNews::Averaged(distance.into())));
        let reports = request.reports.iter().map(|r| (r.to_core(holder), r.loss_sum)).collect();
        let event = HeadEvent::Heartbeat {
            holder,
            reports,
            plan_ready: PlanVersion(request.plan_ready),
            plan_applied: (PlanVersion(request.plan_applied), request.plan_applied_at),
            news,
        };
        match self.ask(event).await {
            Ok(HeadAnswer::Beat(reply)) => Ok(Response::new(v1::HeartbeatReply {
                plan: reply.plan.as_ref().map(Into::into),
                drain: reply.drain,
                reform: reply.reform,
                fenced: false,
                lost: marks(&reply.lost),
                finished: reply.finished,
                broken_group: reply.broken_group.map_or(0, |group| group.0),
                checkpoint: reply.checkpoint.map_or(0, |checkpoint| checkpoint.0),
                rollback: reply.rollback.0,
                peer_wait_ns: reply.peer_wait.map_or(0, to_ns),
                master_wait_ns: reply.master_wait.map_or(0, to_ns),
            })),
            Ok(_) => Err(unexpected()),
            Err(status) if status.code() == tonic::Code::PermissionDenied => {
                Ok(Response::new(v1::HeartbeatReply { fenced: true, ..Default::default() }))
            }
            Err(status) => Err(status),
        }
    }

    async fn join(&self, request: Request<v1::JoinRequest>) -> Result<Response<v1::JoinReply>, Status> {
        let (holder, standing) = request.into_inner().into_core()?;
        let receiver = park(&self.parked.joins, holder);
        self.ask(HeadEvent::Join { holder, standing }).await?;
        Ok(Response::new(parked(receiver).await?))
    }

    async fn ready(&self, request: Request<v1::ReadyRequest>) -> Result<Response<v1::StepCommit>, Status> {
        let (holder, step, readiness) = request.into_inner().into_core()?;
        let receiver = park(&self.parked.ready, holder);
        let commit = match self.ask(HeadEvent::Ready { holder, step, readiness }).await? {
            HeadAnswer::Undone => None,
            _ => parked(receiver).await?,
        };
        let undone = || v1::StepCommit { asked: step, undone: true, ..Default::default() };
        Ok(Response::new(commit.as_ref().map_or_else(undone, Into::into)))
    }

    async fn leave(&self, request: Request<v1::LeaveRequest>) -> Result<Response<v1::LeaveReply>, Status> {
        let request = request.into_inner();
        let event = HeadEvent::Leave {
            holder: holder_of(request.holder)?,
            end_of_data: request.end_of_data,
            can_evaluate: request.can_evaluate,
        };
        match self.ask(event).await? {
            HeadAnswer::Left { evaluate, checkpoint, pushes, goes_on } => {
                let checkpoint = checkpoint.map_or(0, |checkpoint| checkpoint.0);
                let pushes = marks(&pushes);
                Ok(Response::new(v1::LeaveReply { evaluate, checkpoint, pushes, goes_on }))
            }
            _ => Err(unexpected()),
        }
    }

    async fn evaluated(
        &self,
        request: Request<v1::EvaluatedRequest>,
    ) -> Result<Response<v1::EvaluatedReply>, Status> {
        let request = request.into_inner();
        let event = HeadEvent::Evaluated {
            holder: holder_of(request.holder)?,
            samples: request.samples,
            metrics: metric::to_core(request.metrics)?,
        };
        self.ask(event).await?;
        Ok(Response::new(v1::EvaluatedReply {}))
    }

    async fn rest(&self, request: Request<v1::RestRequest>) -> Result<Response<v1::RestReply>, Status> {
        let request = request.into_inner();
        let holder = holder_of(request.holder)?;
        let receiver = park(&self.parked.resting, holder);
        self.ask(HeadEvent::Rest { holder, checkpoint: CheckpointId(request.checkpoint) }).await?;
        Ok(Response::new(parked(receiver).await?))
    }

    async fn cut(&self, request: Request<v1::CutRequest>) -> Result<Response<v1::CutReply>, Status> {
        let request = request.into_inner();
        holder_of(request.holder)?;
        let taken = self.desk()?.cut(request).await;
        Ok(Response::new(v1::CutReply { taken }))
    }

    async fn written(
        &self,
        request: Request<v1::WrittenRequest>,
    ) -> Result<Response<v1::WrittenReply>, Status> {
        let request = request.into_inner();
        holder_of(request.holder)?;
        self.desk()?.written(request).await;
        Ok(Response::new(v1::WrittenReply {}))
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, MembershipVersion, NodeId, Plan, RollbackId};

    use super::*;

    fn worker(index: u32) -> Holder {
        Holder::new(NodeId::worker(index), Incarnation(0))
    }

    fn joined(membership: u64, workers: u32) -> Arc<Joined> {
        let membership = MembershipVersion(membership);
        Arc::new(Joined {
            membership,
            members: (0..workers).map(|index| (worker(index), format!("host-{index}:29500"))).collect(),
            commit_prepared: false,
            source: None,
            next_step: 0,
            plan: Plan::new(
                PlanVersion(1),
                membership,
                (0..workers).map(|i| (NodeId::worker(i), 8)).collect(),
            ),
            last_commit: None,
            pushes: Arc::default(),
            finished: false,
            rollback: RollbackId(0),
            checkpoint: None,
            servers: Arc::default(),
        })
    }

    /// Tells all of them, and returns where the bytes are that each was answered with.
    fn told(parked: &Parked, workers: u32, joined: &Arc<Joined>) -> Vec<*const u8> {
        let waiting: Vec<_> = (0..workers).map(|index| park(&parked.joins, worker(index))).collect();
        (0..workers).for_each(|index| parked.joined(worker(index), Arc::clone(joined)));
        let replies = waiting.into_iter().map(|mut waiter| waiter.try_recv().expect("it was answered"));
        replies
            .map(|reply| {
                assert_eq!(&Joined::try_from(reply.clone()).unwrap(), &**joined);
                reply.joined.as_ptr()
            })
            .collect()
    }

    #[test]
    fn a_message_to_all_members_is_encoded_once() {
        let parked = Parked::default();
        let (first, second) = (joined(1, 256), joined(2, 200));
        let places = told(&parked, 256, &first);
        assert!(places.iter().all(|place| *place == places[0]), "one encoding for 256 members");
        let later = told(&parked, 200, &second);
        assert!(later.iter().all(|place| *place == later[0]) && later[0] != places[0]);
    }

    #[test]
    fn a_node_that_does_not_wait_is_not_answered() {
        let parked = Parked::default();
        parked.joined(worker(0), joined(1, 1));
        assert!(lock(&parked.told).is_none(), "nothing was encoded");
    }
}
