//! [`AgentSession`]: the session of one incarnation of a node with the master, with the node's reports and
//! the master's orders.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use antdt_core::{
    BatchReport, CheckpointId, JobTime, LinkReport, MembershipVersion, ModelDistance, NodeId, Phase, Plan,
    PlanVersion, PushMark, RollbackId,
};

use crate::activity::Activity;

/// Reports kept while the master is away; older ones are dropped, for they only feed windows.
const REPORTS_MAX: usize = 4096;

/// Bytes to a peer from which on they are reported; fewer wait for the next heartbeat. 64 KiB: what a single message costs besides its bytes is
/// then not what is measured.
const LINK_BYTES: u64 = 64 << 10;

/// Peers to which bytes are counted, for a bounded heartbeat. Algorithms for many ranks have logarithmically many.
const LINKS_MAX: usize = 32;

/// Batches in a row that are told as part of a checkpoint because the node writes one meanwhile. 40: two short windows of the
/// monitor. A node that writes for longer is slow by it, and the plan has to know.
const WRITING_BATCHES: u32 = 40;

/// State of the session of one incarnation with the master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionState {
    /// The node works normally.
    Running,
    /// The master has ordered the node to finish its batch and leave.
    Draining,
    /// All workers are done; parameter servers exit in this state.
    Finished,
    /// The master has declared the incarnation dead: it must exit without any further effect.
    Fenced,
    /// The master did not answer for longer than the timeout.
    MasterLost,
}

/// A batch's report with the sum of its samples' losses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Reported {
    /// Times and sizes of the batch.
    pub report: BatchReport,
    /// Sum of the losses of the batch's samples.
    pub loss_sum: f64,
}

/// What a node tells the master in one heartbeat.
#[derive(Debug, Clone, PartialEq)]
pub struct Beat {
    /// Reports of the batches since the last heartbeat.
    pub reports: Vec<Reported>,
    /// Version of the newest plan that the node holds.
    pub plan_ready: PlanVersion,
    /// Version of the plan in force on the node, and the step of the node from which on it is in force.
    pub plan_applied: (PlanVersion, u64),
    /// Newest distance between the worker's model and the mean of all models, if one was measured since the
    /// last heartbeat.
    pub model_distance: Option<ModelDistance>,
    /// Bytes that the node sent to each peer since its last report of that peer, and the time that they took.
    /// Peers that got fewer than 64 KiB are left out; their bytes stay for a later heartbeat.
    pub links: Vec<LinkReport>,
}

/// Answer of the master to a heartbeat.
#[derive(Debug, Clone, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BeatReply {
    /// A plan that is newer than the one that the node holds.
    pub plan: Option<Plan>,
    /// Whether the node must finish its batch and leave.
    pub drain: bool,
    /// Whether the worker must join a new group after its next step.
    pub reform: bool,
    /// Whether the node was declared dead and must exit at once.
    pub fenced: bool,
    /// Incarnations that were declared dead, with their newest pushes that count: a server applies their pushes up to
    /// those, and refuses what they push later.
    pub lost: Vec<PushMark>,
    /// Whether all workers are done.
    pub finished: bool,
    /// Version of the group in force, if one of its members died, or a call to other members failed for one.
    pub broken_group: Option<MembershipVersion>,
    /// Checkpoint for which the worker must pause after its current step; `None` if no checkpoint is due.
    #[cfg_attr(feature = "serde", serde(default))]
    pub checkpoint: Option<CheckpointId>,
    /// Newest rollback of the job: a worker that has not joined a group since must join again.
    #[cfg_attr(feature = "serde", serde(default))]
    pub rollback: RollbackId,
    /// Longest wait for another worker within one collective call, as it follows from the present duration of
    /// the job's steps; `None` leaves it as it is.
    #[cfg_attr(feature = "serde", serde(default))]
    pub peer_wait: Option<Duration>,
    /// Time without an answer of the master after which the node exits; `None` leaves it as it is.
    #[cfg_attr(feature = "serde", serde(default))]
    pub master_wait: Option<Duration>,
}

/// A message that must reach the training thread even while it is blocked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notice {
    /// The session ended, though the training thread did not end it: the node was fenced, or the master was lost.
    Stopped(SessionState),
    /// A member of this group died, or left it because a call failed: the training thread must not wait for it.
    GroupBroken(MembershipVersion),
}

/// The agent's side of its session with the master, as a state machine without I/O. A driver sends its
/// heartbeats and passes the answers back.
#[derive(Debug, Clone)]
pub struct AgentSession {
    state: SessionState,
    reform: bool,
    plan_ready: PlanVersion,
    plan_applied: (PlanVersion, u64),
    plan: Option<Plan>,
    reports: VecDeque<Reported>,
    model_distance: Option<ModelDistance>,
    /// Parts of checkpoints that the node writes beside its training.
    writing: u32,
    /// One was written at some time since the last report.
    wrote: bool,
    /// Batches in a row that were told as part of a checkpoint.
    beside: u32,
    /// Bytes to each peer that were not reported yet, and their time.
    links: BTreeMap<NodeId, (u64, Duration)>,
    lost: Vec<PushMark>,
    /// The newest checkpoint that was ordered and was not taken out, and the newest that was.
    checkpoint: Option<CheckpointId>,
    rested: CheckpointId,
    rollback: RollbackId,
    /// Activity of the training thread, as the thread itself reports it.
    pub activity: Activity,
    /// Whether the platform has told the process to leave, by SIGTERM.
    pub preempted: bool,
    answered: JobTime,
    peer_wait: Option<Duration>,
    master_wait: Duration,
}

impl AgentSession {
    /// Returns a session that was registered at `now`. The master counts as lost after `master_wait` without
    /// an answer, or after the time that a reply to a heartbeat has set instead.
    pub fn new(now: JobTime, master_wait: Duration) -> Self {
        Self {
            state: SessionState::Running,
            reports: VecDeque::new(),
            model_distance: None,
            writing: 0,
            wrote: false,
            beside: 0,
            links: BTreeMap::new(),
            plan_ready: PlanVersion(0),
            plan_applied: (PlanVersion(0), 0),
            plan: None,
            reform: false,
            lost: Vec::new(),
            checkpoint: None,
            rested: CheckpointId(0),
            rollback: RollbackId(0),
            activity: Activity::default(),
            preempted: false,
            answered: now,
            peer_wait: None,
            master_wait,
        }
    }

    /// Returns the state of the session.
    pub const fn state(&self) -> SessionState {
        self.state
    }

    /// Returns whether the worker must join a new group after the next step.
    pub const fn reform(&self) -> bool {
        self.reform
    }

    /// Returns the newest rollback of the job that the master has announced.
    pub const fn rollback(&self) -> RollbackId {
        self.rollback
    }

    /// Removes and returns the incarnations that the master named as dead since the last call, with their newest pushes
    /// that count; a server must refuse their later pushes.
    pub fn take_lost(&mut self) -> Vec<PushMark> {
        std::mem::take(&mut self.lost)
    }

    /// Returns the longest wait for another worker within one collective call; `None` if the master has set
    /// none.
    pub const fn peer_wait(&self) -> Option<Duration> {
        self.peer_wait
    }

    /// Returns the time without an answer after which the master counts as lost.
    pub const fn master_wait(&self) -> Duration {
        self.master_wait
    }

    /// Removes and returns the newest plan that has arrived since the last call.
    pub fn take_plan(&mut self) -> Option<Plan> {
        self.plan.take()
    }

    /// Returns whether the worker must pause for a checkpoint that it has not [taken](Self::take_checkpoint)
    /// yet.
    pub const fn is_checkpoint_due(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Returns the checkpoint for which the worker must pause. Each checkpoint is returned once, however
    /// often the master orders it.
    pub fn take_checkpoint(&mut self) -> Option<CheckpointId> {
        let checkpoint = self.checkpoint.take()?;
        self.rested = checkpoint;
        Some(checkpoint)
    }

    /// Records that the node begins to write a part of a checkpoint beside its training.
    pub const fn writing_begins(&mut self) {
        self.writing += 1;
        self.wrote = true;
    }

    /// Records that a part which [was begun](Self::writing_begins) is written, or given up.
    pub const fn writing_ends(&mut self) {
        self.writing = self.writing.saturating_sub(1);
    }

    /// Queues a report for the next heartbeat. A batch beside which the node wrote a checkpoint is told as
    /// [`Phase::Checkpoint`], as long as that does not become its usual state.
    pub fn report(&mut self, mut report: Reported) {
        let wrote = std::mem::replace(&mut self.wrote, self.writing > 0);
        if !wrote {
            self.beside = 0;
        } else if report.report.phase == Phase::Train
            && report.report.samples > 0
            && self.beside < WRITING_BATCHES
        {
            self.beside += 1;
            report.report.phase = Phase::Checkpoint;
        }
        if self.reports.len() == REPORTS_MAX {
            self.reports.pop_front();
        }
        self.reports.push_back(report);
    }

    /// Records how far the worker's model was from the mean when all models were averaged. The next heartbeat
    /// carries the newest distance.
    pub const fn averaged(&mut self, distance: ModelDistance) {
        self.model_distance = Some(distance);
    }

    /// Records bytes that were sent to a peer, and the time that they took. A heartbeat carries the sums of a
    /// peer once they reach 64 KiB.
    pub fn transferred(&mut self, report: LinkReport) {
        let LinkReport { to, bytes, time } = report;
        if self.links.len() < LINKS_MAX || self.links.contains_key(&to) {
            let sum = self.links.entry(to).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(time));
        }
    }

    /// Records the version of the plan that the node holds, and the version in force in the node's step `at`.
    /// A new version counts as in force from step `at` on.
    pub fn plans(&mut self, ready: PlanVersion, applied: PlanVersion, at: u64) {
        self.plan_ready = ready;
        if applied != self.plan_applied.0 {
            self.plan_applied = (applied, at);
        }
    }

    /// Records that the worker has joined the new group that the master asked for.
    pub fn regrouped(&mut self) {
        self.reform = false;
        // Others may be its peers now.
        self.links.clear();
    }

    /// Returns the next heartbeat to send. The reports leave the session; [`beat_failed`](Self::beat_failed)
    /// puts them back.
    pub fn beat(&mut self) -> Beat {
        // As many are likely to follow.
        self.beat_with(Vec::with_capacity(self.reports.len()))
    }

    /// Does the same as [`beat`](Self::beat), and stores later reports in the memory of `spare`: for a driver
    /// of thousands of sessions.
    pub fn beat_with(&mut self, mut spare: Vec<Reported>) -> Beat {
        spare.clear();
        let much = self.links.iter_mut().filter(|(_, sum)| sum.0 >= LINK_BYTES);
        let links = much.map(|(to, sum)| {
            let (bytes, time) = std::mem::take(sum);
            LinkReport { to: *to, bytes, time }
        });
        Beat {
            links: links.collect(),
            reports: std::mem::replace(&mut self.reports, spare.into()).into(),
            plan_ready: self.plan_ready,
            plan_applied: self.plan_applied,
            model_distance: self.model_distance.take(),
        }
    }

    /// Applies the master's answer to a heartbeat, which arrived at `now`.
    pub fn beat_answered(&mut self, now: JobTime, reply: BeatReply) {
        self.answered = now;
        if let Some(plan) = reply.plan {
            self.plan = Some(plan);
        }
        self.reform |= reply.reform;
        self.rollback = self.rollback.max(reply.rollback);
        self.lost.extend(reply.lost);
        self.peer_wait = reply.peer_wait.or(self.peer_wait);
        self.master_wait = reply.master_wait.unwrap_or(self.master_wait);
        // No order any more: the others have given it up.
        self.checkpoint = reply.checkpoint.filter(|checkpoint| *checkpoint > self.rested);
        self.state = match self.state {
            SessionState::Fenced | SessionState::MasterLost => self.state,
            SessionState::Running | SessionState::Draining | SessionState::Finished => {
                if reply.fenced {
                    SessionState::Fenced
                } else if reply.finished {
                    SessionState::Finished
                } else if reply.drain {
                    SessionState::Draining
                } else {
                    self.state
                }
            }
        };
    }

    /// Takes back a heartbeat that the master did not answer; its reports go out with the next one.
    pub fn beat_failed(&mut self, now: JobTime, beat: Beat) {
        self.model_distance = self.model_distance.or(beat.model_distance);
        beat.links.into_iter().for_each(|report| self.transferred(report));
        for report in beat.reports.into_iter().rev().take(REPORTS_MAX - self.reports.len()) {
            self.reports.push_front(report);
        }
        let over = matches!(self.state, SessionState::Running | SessionState::Draining);
        if over && now.since(self.answered) >= self.master_wait {
            self.state = SessionState::MasterLost;
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Holder, Incarnation, Iteration};

    use super::*;

    fn reported(sequence: u64) -> Reported {
        let report = BatchReport {
            holder: Holder::new(NodeId::worker(0), Incarnation(0)),
            sequence,
            iteration: Iteration(0),
            plan: PlanVersion(0),
            phase: Phase::Train,
            samples: 1,
            micro_batches: 1,
            data_wait: Duration::ZERO,
            compute: Duration::ZERO,
            communicate: Duration::ZERO,
            barrier_wait: Duration::ZERO,
        };
        Reported { report, loss_sum: 0.0 }
    }

    fn session() -> AgentSession {
        AgentSession::new(JobTime::ZERO, Duration::from_secs(10))
    }

    #[test]
    fn batches_beside_which_a_checkpoint_is_written_are_told_as_such_for_a_while() {
        let mut session = session();
        let phases = |session: &mut AgentSession, batches: u32| {
            (0..batches).for_each(|_| session.report(reported(0)));
            let beside = |r: &Reported| r.report.phase == Phase::Checkpoint;
            session.beat().reports.iter().map(beside).collect::<Vec<_>>()
        };
        assert_eq!(phases(&mut session, 2), [false, false]);
        session.writing_begins();
        session.writing_begins();
        session.writing_ends();
        assert_eq!(phases(&mut session, 2), [true, true]);
        session.writing_ends();
        assert_eq!(phases(&mut session, 3), [true, false, false], "it was being written during the first");
        session.writing_begins();
        session.writing_ends();
        assert_eq!(phases(&mut session, 2), [true, false], "written between two reports");
        session.writing_begins();
        let forever = phases(&mut session, WRITING_BATCHES + 3);
        assert_eq!(forever.iter().filter(|beside| **beside).count(), WRITING_BATCHES as usize);
        assert!(!forever[WRITING_BATCHES as usize], "a node that always writes is judged");
        session.writing_ends();
        assert_eq!(phases(&mut session, 2), [false, false]);
        session.writing_begins();
        assert_eq!(phases(&mut session, 1), [true], "the next one counts anew");
        let empty = Reported { report: BatchReport { samples: 0, ..reported(0).report }, loss_sum: 0.0 };
        session.report(empty);
        assert_eq!(session.beat().reports[0].report.phase, Phase::Train, "an empty batch is no work");
    }

    fn sequences(beat: &Beat) -> Vec<u64> {
        beat.reports.iter().map(|r| r.report.sequence).collect()
    }

    #[test]
    fn a_plan_is_in_force_since_the_first_step_that_was_under_it() {
        let mut session = session();
        for (applied, step) in [(1, 4), (1, 5), (2, 6), (2, 7)] {
            session.plans(PlanVersion(applied), PlanVersion(applied), step);
        }
        assert_eq!(session.beat().plan_applied, (PlanVersion(2), 6));
    }

    #[test]
    fn reports_of_a_failed_beat_are_said_again_in_order() {
        let mut session = session();
        session.report(reported(1));
        session.report(reported(2));
        let beat = session.beat();
        session.report(reported(3));
        session.beat_failed(JobTime(1), beat);
        assert_eq!(sequences(&session.beat()), [1, 2, 3]);
        assert_eq!(session.beat().reports, []);
    }

    #[test]
    fn bytes_to_a_peer_are_reported_once_and_only_when_they_are_many() {
        let mut session = session();
        let (to, second) = (NodeId::worker(1), Duration::from_secs(1));
        let half = LinkReport { to, bytes: LINK_BYTES / 2, time: second };
        session.transferred(half);
        assert_eq!(session.beat().links, []);
        session.transferred(half);
        let whole = LinkReport { to, bytes: LINK_BYTES, time: 2 * second };
        let beat = session.beat();
        assert_eq!((&beat.links[..], &session.beat().links[..]), (&[whole][..], &[][..]));
        session.transferred(half);
        session.beat_failed(JobTime(1), beat);
        let sum = LinkReport { to, bytes: LINK_BYTES * 3 / 2, time: 3 * second };
        assert_eq!(session.beat().links, [sum], "one that was lost is in the next");
        (0..1000).for_each(|peer| session.transferred(LinkReport { to: NodeId::worker(peer), ..whole }));
        assert_eq!(session.beat().links.len(), LINKS_MAX);
        session.transferred(whole);
        session.regrouped();
        assert_eq!(session.beat().links, [], "its peers may be others now");
    }

    #[test]
    fn a_beat_takes_all_reports_along_and_none_of_an_earlier_one() {
        let mut session = session();
        session.report(reported(1));
        let before = session.beat();
        session.report(reported(2));
        assert_eq!(session.reports, [reported(2)]);
        assert_eq!(sequences(&session.beat_with(before.reports)), [2]);
        assert_eq!(session.reports, []);
        assert_eq!(session.beat().reports, []);
    }

    #[test]
    fn the_master_says_how_long_it_may_be_away_and_another_worker_late() {
        let mut session = session();
        assert_eq!(session.peer_wait(), None);
        let secs = Duration::from_secs;
        let (peer_wait, master_wait) = (Some(secs(90)), Some(secs(100)));
        session.beat_answered(JobTime(1), BeatReply { peer_wait, master_wait, ..Default::default() });
        session.beat_answered(JobTime(2), BeatReply::default());
        assert_eq!(session.peer_wait(), peer_wait, "a reply that says nothing changes nothing");
        let beat = session.beat();
        session.beat_failed(JobTime(2) + secs(99), beat.clone());
        assert_eq!(session.state(), SessionState::Running);
        session.beat_failed(JobTime(2) + secs(100), beat);
        assert_eq!(session.state(), SessionState::MasterLost);
    }

    #[test]
    fn a_master_that_stays_away_is_given_up_after_the_timeout_and_not_before() {
        let mut session = session();
        for (at, state) in [(9, SessionState::Running), (10, SessionState::MasterLost)] {
            let beat = session.beat();
            session.beat_failed(JobTime::ZERO + Duration::from_secs(at), beat);
            assert_eq!(session.state(), state);
        }
        let mut session = self::session();
        session.beat_answered(JobTime::ZERO + Duration::from_secs(9), BeatReply::default());
        let beat = session.beat();
        session.beat_failed(JobTime::ZERO + Duration::from_secs(18), beat);
        assert_eq!(session.state(), SessionState::Running);
    }

    #[test]
    fn a_fence_is_final_and_outranks_everything() {
        let mut session = session();
        session.beat_answered(JobTime(1), BeatReply { drain: true, ..Default::default() });
        assert_eq!(session.state(), SessionState::Draining);
        session.beat_answered(JobTime(2), BeatReply::default());
        assert_eq!(session.state(), SessionState::Draining, "an order is not taken back by silence");
        session.beat_answered(JobTime(3), BeatReply { fenced: true, drain: true, ..Default::default() });
        session.beat_answered(JobTime(4), BeatReply { finished: true, ..Default::default() });
        assert_eq!(session.state(), SessionState::Fenced);
    }

    #[test]
    fn reports_are_bounded() {
        let mut session = session();
        for sequence in 0..10_000 {
            session.report(reported(sequence));
        }
        let beat = session.beat();
        assert_eq!(beat.reports.len(), REPORTS_MAX);
        assert_eq!(beat.reports[0].report.sequence, 10_000 - REPORTS_MAX as u64);
        for sequence in 0..10 {
            session.report(reported(20_000 + sequence));
        }
        session.beat_failed(JobTime(1), beat);
        assert_eq!(session.beat().reports.len(), REPORTS_MAX);
    }

    #[test]
    fn the_order_to_meet_stands_until_it_was_followed() {
        let mut session = session();
        session.beat_answered(JobTime(1), BeatReply { reform: true, ..Default::default() });
        session.beat_answered(JobTime(2), BeatReply::default());
        assert!(session.reform());
        session.regrouped();
        assert!(!session.reform());
    }
}
