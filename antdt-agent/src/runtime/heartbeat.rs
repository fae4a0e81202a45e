//! The heartbeats of a node, which carry what its training thread reports.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use antdt_core::{CheckpointId, Holder, MembershipVersion, NodeLoad, Plan, RollbackId, Stall};
use antdt_proto::convert::group::push_marks;
use antdt_proto::v1::control_client::ControlClient;
use antdt_proto::{JobChannel, v1};
use antdt_rt::{CancellationToken, JobClock};
use tokio::sync::Notify;

use super::load::LoadMeter;
use crate::session::{AgentSession, Beat, BeatReply, Notice, SessionState};

/// How long a process that ends with its job sends what its training thread still reports. A master that ends its nodes gives them 2 s.
pub(super) const LAST_REPORTS: Duration = Duration::from_secs(1);

/// What the heartbeat and the training thread share.
pub(super) struct Shared {
    pub(super) session: Mutex<AgentSession>,
    pub(super) holder: Holder,
    pub(super) clock: JobClock,
    /// The next heartbeat is due at once.
    pub(super) nudge: Notify,
    /// Held while a heartbeat is under way, whose reports are in the session no more.
    pub(super) beating: tokio::sync::Mutex<()>,
}

impl Shared {
    pub(super) fn session(&self) -> MutexGuard<'_, AgentSession> {
        // The session is valid after every method; a panic elsewhere cannot leave it half changed.
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a heartbeat says now and then.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unusual {
    stall: Option<Stall>,
    preempted: bool,
    load: Option<NodeLoad>,
}

pub(super) async fn send(
    mut client: ControlClient<JobChannel>,
    holder: Holder,
    beat: &Beat,
    unusual: Unusual,
    limit: Duration,
) -> Result<BeatReply, tonic::Status> {
    let request = v1::HeartbeatRequest {
        holder: Some(holder.into()),
        reports: beat.reports.iter().map(|r| v1::BatchReport::from_core(&r.report, r.loss_sum)).collect(),
        plan_ready: beat.plan_ready.0,
        plan_applied: beat.plan_applied.0.0,
        plan_applied_at: beat.plan_applied.1,
        stall: unusual.stall.map(Into::into),
        preempted: unusual.preempted,
        model_distance: beat.model_distance.map(Into::into),
        load: unusual.load.map(Into::into),
        links: beat.links.iter().copied().map(Into::into).collect(),
    };
    let reply = tokio::time::timeout(limit, client.heartbeat(request))
        .await
        .map_err(|_| tonic::Status::deadline_exceeded("heartbeat"))??
        .into_inner();
    let lost = push_marks(reply.lost)?;
    Ok(BeatReply {
        plan: reply.plan.map(Plan::from),
        drain: reply.drain,
        reform: reply.reform,
        fenced: reply.fenced,
        lost,
        finished: reply.finished,
        broken_group: (reply.broken_group != 0).then_some(MembershipVersion(reply.broken_group)),
        checkpoint: (reply.checkpoint != 0).then_some(CheckpointId(reply.checkpoint)),
        rollback: RollbackId(reply.rollback),
        peer_wait: said(reply.peer_wait_ns),
        master_wait: said(reply.master_wait_ns),
    })
}

/// A time on the wire, where 0 says nothing.
fn said(nanoseconds: u64) -> Option<Duration> {
    (nanoseconds != 0).then(|| Duration::from_nanos(nanoseconds))
}

/// Waits until the process has nothing to do any more.
pub(super) async fn over(shared: &Shared) {
    while matches!(shared.session().state(), SessionState::Running | SessionState::Draining) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Sends what was reported since the last heartbeat, and what is reported meanwhile, until there is nothing. The training thread
/// commits batches for as long as its process lives, and the master counts a batch as a step by its report.
pub(super) async fn last_reports(client: ControlClient<JobChannel>, shared: &Shared) {
    while shared.session().state() == SessionState::Finished {
        let _beating = shared.beating.lock().await;
        let beat = shared.session().beat();
        if beat.reports.is_empty() {
            return;
        }
        if send(client.clone(), shared.holder, &beat, Unusual::default(), LAST_REPORTS).await.is_err() {
            return;
        }
    }
}

pub(super) async fn heartbeats(
    client: ControlClient<JobChannel>,
    shared: Arc<Shared>,
    every: Duration,
    limit: Duration,
    stop: CancellationToken,
    on_notice: impl Fn(Notice),
) {
    let mut due = tokio::time::Instant::now();
    let mut meter = LoadMeter::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep_until(due) => {}
            () = shared.nudge.notified() => {}
        }
        // From the moment when it was sent, so that a late one is not made up for.
        due = tokio::time::Instant::now() + every;
        let _beating = shared.beating.lock().await;
        let load = meter.look(shared.clock.now());
        let (beat, unusual) = {
            let mut session = shared.session();
            let stall = session.activity.stall(shared.clock.now());
            (session.beat(), Unusual { stall, preempted: session.preempted, load })
        };
        let outcome = send(client.clone(), shared.holder, &beat, unusual, limit).await;
        let now = shared.clock.now();
        let mut broken = None;
        let state = {
            let mut session = shared.session();
            match outcome {
                Ok(reply) => {
                    broken = reply.broken_group;
                    session.beat_answered(now, reply);
                }
                Err(status) => {
                    tracing::debug!(holder = %shared.holder, %status, "heartbeat failed");
                    session.beat_failed(now, beat);
                }
            }
            session.state()
        };
        if let Some(group) = broken {
            on_notice(Notice::GroupBroken(group));
        }
        match state {
            SessionState::Running | SessionState::Draining | SessionState::Finished => {}
            SessionState::Fenced | SessionState::MasterLost => {
                stop.cancel();
                on_notice(Notice::Stopped(state));
                return;
            }
        }
    }
}
