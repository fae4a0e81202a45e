//! What is around a worker, in a few lines: a shard service, a group of one, servers. It answers every call, says what
//! may go wrong, and checks what the worker acknowledges.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use antdt_agent::BeatReply;
use antdt_core::{
    AckOutcome, Contribution, Epoch, FetchOutcome, Generation, Grant, Incarnation, LeaseId,
    MembershipVersion, NodeId, Plan, PlanVersion, Rank, RollbackId, Seed, ShardKey,
};

use super::*;

pub(super) fn me() -> Holder {
    Holder::new(NodeId::worker(0), Incarnation(0))
}

pub(super) fn plan(version: u64, membership: u64, batch_size: u32) -> Plan {
    let sizes = [(me().node, batch_size)].into_iter().collect();
    Plan::new(PlanVersion(version), MembershipVersion(membership), sizes)
}

/// Pieces of leases, in order, as one batch.
fn joined_up(fragments: Vec<antdt_core::Fragment>) -> Batch {
    let mut batch = Batch::default();
    for fragment in fragments {
        match batch.fragments.last_mut() {
            Some(last) if last.grant.lease == fragment.grant.lease && last.to == fragment.from => {
                last.to = fragment.to;
            }
            _ => batch.fragments.push(fragment),
        }
    }
    batch
}

/// The totals of these control values.
fn sum(all: impl IntoIterator<Item = Lanes>) -> [f64; Lanes::LEN] {
    let mut totals = [0.0; Lanes::LEN];
    for lanes in all {
        totals.iter_mut().zip(lanes.encode()).for_each(|(total, lane)| *total += lane);
    }
    totals
}

/// One worker, and all processes that it talks to.
#[derive(Debug)]
pub(super) struct Outside {
    pub(super) worker: WorkerLoop,
    pub(super) session: AgentSession,
    pub(super) now: JobTime,
    /// What the worker asked for last.
    pub(super) call: Call,
    sync: &'static str,
    /// Shards without a holder.
    pub(super) shards: VecDeque<Grant>,
    /// What was granted under each name.
    leased: BTreeMap<LeaseId, Grant>,
    names: u64,
    /// How much of each shard is in the model, from the front.
    pub(super) committed: BTreeMap<ShardKey, u64>,
    /// How much of each shard the service was told of by acks.
    pub(super) acked: BTreeMap<ShardKey, u64>,
    /// With models of their own: what was trained since the last average.
    advanced: Vec<antdt_core::Fragment>,
    /// The batch that is loaded.
    pub(super) batch: Batch,
    /// Samples of it that were loaded last.
    piece: u64,
    /// The newest group.
    pub(super) membership: u64,
    pub(super) plan: Plan,
    /// The other members of the next group.
    pub(super) peer: Option<Holder>,
    /// That one is the first member.
    pub(super) peer_first: bool,
    /// That one was ordered to leave, too.
    pub(super) peer_leaves: bool,
    /// That one needs the mean of all models next.
    pub(super) peer_keeps: bool,
    /// The gradient of the batch that is loaded comes too late for the step under way, which is taken without it.
    pub(super) late: bool,
    /// Members of the newest group.
    world: u32,
    /// Step that follows.
    next_step: u64,
}

impl Outside {
    /// A worker before its first call; shards of these lengths; batches of `batch_size`.
    pub(super) fn new(sync: &'static str, shards: &[u64], batch_size: u32) -> Self {
        let now = JobTime::ZERO;
        let mut outside = Self {
            worker: WorkerLoop::new(me(), &sync.parse().unwrap(), now),
            session: AgentSession::new(now, Duration::from_secs(10)),
            now,
            call: Call::Join(Standing::default()),
            sync,
            shards: VecDeque::new(),
            leased: BTreeMap::new(),
            names: 0,
            committed: BTreeMap::new(),
            acked: BTreeMap::new(),
            batch: Batch::default(),
            piece: 0,
            advanced: Vec::new(),
            membership: 0,
            plan: plan(1, 1, batch_size),
            peer: None,
            peer_first: false,
            peer_leaves: false,
            peer_keeps: false,
            late: false,
            world: 1,
            next_step: 0,
        };
        let mut start = 0;
        for (index, len) in (0..).zip(shards) {
            let key = ShardKey { epoch: Epoch(0), index };
            let lease = outside.name();
            let seed = Some(Seed(index));
            outside.shards.push_back(Grant { lease, key, start, len: *len, resume_at: 0, seed });
            start += len;
        }
        outside.say(&Reply::Begin);
        outside
    }

    fn name(&mut self) -> LeaseId {
        self.names += 1;
        LeaseId { generation: Generation(1), sequence: self.names }
    }

    /// Answers the call, a millisecond later.
    pub(super) fn say(&mut self, reply: &Reply) {
        self.note(reply);
        self.now = self.now + Duration::from_millis(1);
        self.call = self.worker.step(self.now, &mut self.session, reply);
        self.check();
    }

    /// The master's answer to a heartbeat.
    pub(super) fn order(&mut self, reply: BeatReply) {
        self.session.beat_answered(self.now, reply);
    }

    /// The order to leave.
    pub(super) fn drain(&mut self) {
        self.order(BeatReply { drain: true, ..BeatReply::default() });
    }

    /// Answers well.
    pub(super) fn goes_well(&mut self) {
        let reply = self.answer();
        self.say(&reply);
    }

    /// Answers well until the worker asks for something of the kind.
    pub(super) fn until(&mut self, stop: impl Fn(&Call) -> bool) {
        for _ in 0..1000 {
            if stop(&self.call) {
                return;
            }
            self.goes_well();
        }
        panic!("never asked, only: {:?}", self.call);
    }

    /// Answers well until it stops.
    pub(super) fn end(&mut self) -> End {
        self.until(|call| matches!(call, Call::Stop(_)));
        let Call::Stop(end) = &self.call else { unreachable!("it stopped") };
        end.clone()
    }

    /// Answers well to the end of the data, when so many samples are in the model.
    #[track_caller]
    pub(super) fn ends_with(&mut self, samples: u64) {
        assert_eq!(self.end(), End::EndOfData { trained: true }, "{}", self.sync);
        assert_eq!(self.trained(), samples, "{}", self.sync);
    }

    /// Answers control values with those of two members, of which this is the other one. Returns the worker's own.
    pub(super) fn agree_with(&mut self, peer: Lanes) -> Lanes {
        let Call::Agree(mine) = self.call else { panic!("{:?}", self.call) };
        self.say(&Reply::Agreed(Lanes::decide(&sum([mine, peer]), 2)));
        mine
    }

    /// What of the shards is in the model.
    pub(super) fn trained(&self) -> u64 {
        self.committed.values().sum()
    }

    /// The answer if all is well.
    pub(super) fn answer(&mut self) -> Reply {
        match &self.call {
            Call::Join(standing) => {
                let joined = self.joined(standing.prepared.is_some());
                Reply::Joined(Box::new(joined))
            }
            Call::Enter(_) => Reply::Entered,
            Call::Register(_) => Reply::Registered(Registered::default()),
            Call::Exchange { acks, want, .. } => {
                let (acks, want) = (acks.len(), *want);
                self.exchanged(acks, want)
            }
            Call::Release(_) | Call::Fail { .. } => Reply::Released,
            Call::Sleep(_) => Reply::Slept,
            Call::Load(_) | Call::LoadPiece(..) => Reply::Loaded,
            Call::Pull => Reply::Pulled,
            Call::Compute => Reply::Computed { samples: self.piece, loss_sum: 0.5 },
            Call::ComputeBeside => Reply::Computing,
            Call::Finish => {
                Reply::ComputedBeside { samples: self.piece, loss_sum: 0.5, took: Duration::from_millis(1) }
            }
            Call::Combine { step, acks, .. } => {
                let contributions = [Contribution { holder: me(), acks: acks.clone() }].into();
                Reply::Combined(StepResult { step: *step, contributions })
            }
            Call::Agree(lanes) => {
                let (leaving, whole) = (self.peer_leaves, self.peer_keeps);
                let peer = Lanes { samples: 0, reform: leaving, leaving, whole, loss_sum: 0.0, ..*lanes };
                let peers = (1..self.world).map(|_| peer);
                Reply::Agreed(Lanes::decide(&sum([*lanes].into_iter().chain(peers)), self.world))
            }
            Call::Apply => Reply::Applied,
            Call::Advance => Reply::Advanced,
            Call::Revert => Reply::Reverted,
            Call::Rest(_) => Reply::Rested,
            Call::Push { .. } => Reply::Pushed,
            Call::ReadyBeside { .. } if self.sync.starts_with("allreduce") => {
                Reply::ComputedBeside { samples: self.piece, loss_sum: 0.5, took: Duration::from_millis(1) }
            }
            Call::Ready { step, readiness } | Call::ReadyBeside { step, readiness } => {
                let pushed = (readiness.samples > 0).then(|| (me(), readiness.acks.clone()));
                Reply::Committed(Box::new(StepCommit {
                    step: *step,
                    contributors: Arc::new(pushed.into_iter().collect()),
                    samples: readiness.samples,
                    apply: Some(readiness.plan),
                    end: readiness.end_of_data && readiness.samples == 0,
                    asked: *step,
                    counted: readiness.samples > 0,
                    everyone: true,
                }))
            }
            Call::Stop(end) => panic!("it stopped: {end:?}"),
        }
    }

    /// A new group.
    pub(super) fn joined(&mut self, commit_prepared: bool) -> Joined {
        self.membership += 1;
        self.plan.membership = MembershipVersion(self.membership);
        let mut members: Vec<_> =
            [me()].into_iter().chain(self.peer).map(|member| (member, "127.0.0.1:1".to_owned())).collect();
        if self.peer_first {
            members.reverse();
        }
        self.world = u32::try_from(members.len()).unwrap();
        Joined {
            membership: MembershipVersion(self.membership),
            members: members.into(),
            commit_prepared,
            source: (self.next_step > 0).then_some(Rank(0)),
            next_step: self.next_step + u64::from(commit_prepared),
            plan: self.plan.clone(),
            last_commit: None,
            pushes: Arc::default(),
            rollback: RollbackId(0),
            checkpoint: None,
            servers: [].into(),
            finished: false,
        }
    }

    fn grant(&mut self) -> Option<Grant> {
        let grant = self.shards.pop_front()?;
        self.leased.insert(grant.lease, grant);
        Some(grant)
    }

    fn exchanged(&mut self, acks: usize, want: u32) -> Reply {
        let fetched = (want > 0).then(|| self.grant().map_or(FetchOutcome::EndOfData, FetchOutcome::Granted));
        let more = (1..want).map_while(|_| self.grant()).collect();
        Reply::Exchanged(Exchanged {
            outcomes: vec![AckOutcome::Accepted; acks].into(),
            fetched,
            more,
            recalled: vec![],
        })
    }

    /// The answer to a restart: every lease that is presented and not done goes on under a new name, but for the
    /// `lost` first ones.
    pub(super) fn adopt(&mut self, lost: usize) -> Reply {
        let Call::Register(held) = self.call.clone() else { panic!("{:?}", self.call) };
        let mut adopted = Vec::new();
        for (at, held) in held.iter().enumerate() {
            let before = self.leased.remove(&held.lease).expect("it holds only what was granted");
            let resume_at = self.committed.get(&held.key).copied().unwrap_or(before.resume_at);
            let after = Grant { lease: self.name(), resume_at, ..before };
            if resume_at == before.len {
                adopted.push(None);
            } else if at < lost {
                self.shards.push_back(after);
                adopted.push(None);
            } else {
                self.leased.insert(after.lease, after);
                adopted.push(Some(after));
            }
        }
        Reply::Registered(Registered { generation: Generation(2), adopted })
    }

    /// Answers a registration as [`adopt`](Self::adopt) does.
    pub(super) fn adopts(&mut self, lost: usize) {
        let reply = self.adopt(lost);
        self.say(&reply);
    }

    /// The service is started again, and adopts all leases but the `lost` first ones.
    pub(super) fn restart_service(&mut self, lost: usize) {
        self.say(&Reply::ServiceRestarted);
        self.adopts(lost);
    }

    /// What a reply means for the service and for the model.
    fn note(&mut self, reply: &Reply) {
        match (&self.call, reply) {
            // Another worker may have the rest.
            (Call::Release(acks), Reply::Released) => {
                acks.clone().iter().for_each(|ack| self.take_back(*ack));
            }
            (Call::Fail { at, .. }, Reply::Released) => self.take_back(*at),
            (Call::Exchange { acks, .. }, Reply::Exchanged(exchanged)) => {
                for (ack, outcome) in acks.iter().zip(&exchanged.outcomes) {
                    if *outcome == AckOutcome::Accepted {
                        self.acked.insert(self.leased[&ack.lease].key, ack.offset);
                    } else {
                        self.leased.remove(&ack.lease);
                    }
                }
            }
            _ => {}
        }
        if matches!(reply, Reply::Advanced) {
            self.advanced.append(&mut self.batch.fragments.to_vec());
        }
        if matches!(reply, Reply::Reverted) {
            self.advanced.clear();
        }
        let in_model = match (reply, self.sync) {
            (Reply::Applied, "ps-asp") => false,
            (Reply::Applied, _) => true,
            // Only which gradients the step begins with.
            (Reply::Committed(_), sync) if sync.starts_with("allreduce") => false,
            (Reply::Committed(commit), _) => commit.contributors.contains_key(&me()),
            _ => false,
        };
        if !in_model {
            return;
        }
        self.next_step += 1;
        if std::mem::take(&mut self.late) {
            return;
        }
        let averages = self.averages();
        let trained =
            if averages { std::mem::take(&mut self.advanced) } else { self.batch.fragments.to_vec() };
        for fragment in &trained {
            let committed = self.committed.entry(fragment.grant.key).or_insert(0);
            assert_eq!(*committed, fragment.from, "a sample was left out, or is in the model twice");
            *committed = fragment.to;
        }
    }

    fn averages(&self) -> bool {
        self.sync.parse::<SyncMode>().unwrap().capabilities().averages_models()
    }

    fn take_back(&mut self, ack: Ack) {
        // A lease that ended without the worker, or in a restart, cannot be given.
        let Some(before) = self.leased.remove(&ack.lease) else { return };
        let lease = self.name();
        self.shards.push_back(Grant { lease, resume_at: ack.offset, ..before });
    }

    /// Nothing is said to be done that is not in the model.
    fn check(&mut self) {
        match &self.call {
            Call::Load(batch) => {
                self.piece = batch.len();
                self.batch = batch.clone();
            }
            // The pieces that were loaded are the batch; a piece that was left out shows when they are combined.
            Call::LoadPiece(batch, micro) => {
                let piece = batch.piece(*micro);
                self.piece = piece.len();
                let mut fragments = if micro.is_first() { Vec::new() } else { self.batch.fragments.to_vec() };
                fragments.extend(piece.fragments);
                self.batch = joined_up(fragments);
            }
            Call::Combine { samples, acks, .. } if self.averages() => {
                assert_eq!(*samples, self.advanced.iter().map(antdt_core::Fragment::len).sum::<u64>());
                let done: BTreeMap<_, _> =
                    acks.iter().map(|ack| (self.leased[&ack.lease].key, ack.offset)).collect();
                let advanced: BTreeMap<_, _> =
                    self.advanced.iter().map(|fragment| (fragment.grant.key, fragment.to)).collect();
                assert_eq!((done, acks.len()), (advanced.clone(), advanced.len()));
            }
            Call::Combine { samples: 0, acks, .. } if self.late => assert_eq!(acks.len(), 0),
            Call::Combine { samples, acks, .. } => {
                assert_eq!((*samples, acks), (self.batch.len(), &self.batch.acks()));
            }
            Call::Ready { readiness, .. } => {
                assert_eq!(
                    (readiness.samples, &readiness.acks[..]),
                    (self.batch.len(), &self.batch.acks()[..])
                );
            }
            Call::Register(held) => {
                for held in held {
                    assert_eq!(held.offset, self.committed(held.key), "presented {held:?}");
                }
            }
            Call::Exchange { acks, .. } => acks.iter().for_each(|ack| self.is_committed(ack, "acknowledged")),
            Call::Release(acks) => acks.iter().for_each(|ack| self.is_committed(ack, "given back at")),
            Call::Fail { at, .. } => self.is_committed(at, "cannot be read at"),
            Call::Stop(End::EndOfData { .. } | End::Drained) => {
                assert_eq!(self.worker.leases().leases(), 0, "leases are left behind");
            }
            _ => {}
        }
    }

    fn is_committed(&self, ack: &Ack, what: &str) {
        let grant = self.leased.get(&ack.lease).expect("a lease of its own");
        assert_eq!(ack.offset, self.committed(grant.key), "{what} {ack:?}");
    }

    fn committed(&self, key: ShardKey) -> u64 {
        self.committed.get(&key).copied().unwrap_or(0)
    }

    /// Leases that the service knows of.
    pub(super) fn leases(&self) -> Vec<LeaseId> {
        self.leased.keys().copied().collect()
    }
}
