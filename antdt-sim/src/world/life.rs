//! One life of a node: a process, from its launch to its end.

use std::ops::{Index, IndexMut};
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::AgentSession;
use antdt_core::{CheckpointId, DetRng, Generation, Holder, JobTime, MembershipVersion, RollbackId, Seed};
use antdt_job::{HeadEvent, WorkerLoop};

use crate::journal::Usage;

/// Which life, by order of launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LifeId(pub(super) u32);

/// All lives, in order of launch.
#[derive(Debug)]
pub(super) struct Lives(Vec<Life>);

impl Lives {
    pub(super) fn with_capacity(lives: usize) -> Self {
        Self(Vec::with_capacity(lives))
    }

    pub(super) fn push(&mut self, life: Life) -> LifeId {
        self.0.push(life);
        LifeId(u32::try_from(self.0.len() - 1).expect("fewer than 2^32 processes"))
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Life> {
        self.0.iter()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = LifeId> + use<> {
        (0..).map(LifeId).take(self.0.len())
    }
}

impl Index<LifeId> for Lives {
    type Output = Life;

    fn index(&self, id: LifeId) -> &Life {
        &self.0[id.0 as usize]
    }
}

impl IndexMut<LifeId> for Lives {
    fn index_mut(&mut self, id: LifeId) -> &mut Life {
        &mut self.0[id.0 as usize]
    }
}

/// Where a process is in its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// Launched; it reads its data.
    Starting,
    /// Registered or registering.
    Running,
    /// It has left the training loop and says so.
    Leaving,
    /// It has ended.
    Dead,
}

/// A process on the virtual clock, and the machines in it.
#[derive(Debug)]
pub(super) struct Life {
    /// Number of the call that is under way; a reply to an older one is void.
    pub(super) call: u64,
    /// Stands still until then.
    pub(super) paused_until: JobTime,
    /// Cut off from all other processes until then.
    pub(super) cut_until: JobTime,
    /// What it sends to the master arrives twice until then.
    pub(super) doubled_until: JobTime,
    /// When the gradient that is computed beside other calls is there, how long it takes, and of how many samples it is.
    pub(super) beside: Option<(JobTime, Duration, u64)>,
    /// How long its training thread stands still in its next batch.
    pub(super) hang: Duration,
    /// Since when its training thread stands still, and until when.
    pub(super) hung: (JobTime, JobTime),
    /// When the latest of its messages to the master arrives.
    pub(super) newest_arrival: JobTime,
    /// The group that it is in, and its rank there.
    pub(super) group: Option<(MembershipVersion, u32)>,
    pub(super) holder: Holder,
    pub(super) stage: Stage,
    /// Whether it waits for the others of its group.
    pub(super) in_group_call: bool,
    /// Attempts of the call under way that were lost.
    pub(super) attempts: u16,
    pub(super) rng: DetRng,
    /// Time spent on gradients.
    pub(super) busy: Duration,
    /// Samples of the batch that it trains, and of the micro-batch of it that is loaded.
    pub(super) batch: u64,
    pub(super) piece: u64,
    /// Generation of the shard service that it registered in.
    pub(super) generation: Generation,
    /// Limit of one wait for a peer.
    pub(super) timeout: Duration,
    /// Whether it has the job's model.
    pub(super) trained: bool,
    /// Samples in its model, and those of the step that its group has agreed on.
    pub(super) samples: u64,
    pub(super) agreed: u64,
    /// The checkpoint that it takes before it exits, and whether it evaluates the model then.
    pub(super) last: Option<CheckpointId>,
    pub(super) evaluates: bool,
    /// Whether it joins again after that, instead of exiting.
    pub(super) goes_on: bool,
    /// Whether something will look after what is parked.
    pub(super) reask_armed: bool,
    /// `None` for a server.
    pub(super) worker: Option<WorkerLoop>,
    pub(super) session: AgentSession,
    /// The head's event that the training thread waits for the answer of, and since when.
    pub(super) parked: Option<Box<(HeadEvent, JobTime)>>,
    /// The group that it was told to enter, and its rank there.
    pub(super) place: Option<(MembershipVersion, u32)>,
    /// The group of all workers that it came into last.
    pub(super) home: Option<MembershipVersion>,
    /// Members of the group that broke last.
    pub(super) broken: Arc<[Holder]>,
    pub(super) born: JobTime,
    pub(super) died: JobTime,
    /// When the transfer to or from the servers is done that it waits for, as it looked when that began.
    pub(super) transfer_done: JobTime,
    /// How long it waits for that.
    pub(super) transfer_limit: JobTime,
    /// The call in which it transferred last.
    pub(super) transfer: u64,
    /// The servers that it is connected to.
    pub(super) servers: Vec<LifeId>,
    /// The newest rollback that it was let in after.
    pub(super) rollback: RollbackId,
    /// A server serves one request until then.
    pub(super) busy_until: JobTime,
    /// Bytes served and the time it took, since the last report; of a server.
    pub(super) served: (u64, Duration),
    /// Reports made; of a server.
    pub(super) reports: u64,
}

impl Life {
    pub(super) fn new(
        holder: Holder,
        seed: Seed,
        now: JobTime,
        timeout: Duration,
        master_timeout: Duration,
    ) -> Self {
        let label = if holder.node.role == antdt_core::Role::Server { "server" } else { "worker" };
        let own = u64::from(holder.node.index) << 32 | u64::from(holder.incarnation.0);
        Self {
            holder,
            stage: Stage::Starting,
            session: AgentSession::new(now, master_timeout),
            worker: None,
            rng: seed.derive(label).derive_number(own).rng(),
            call: 0,
            parked: None,
            reask_armed: false,
            paused_until: JobTime::ZERO,
            cut_until: JobTime::ZERO,
            doubled_until: JobTime::ZERO,
            beside: None,
            hang: Duration::ZERO,
            hung: (JobTime::ZERO, JobTime::ZERO),
            newest_arrival: JobTime::ZERO,
            generation: Generation::default(),
            group: None,
            place: None,
            home: None,
            in_group_call: false,
            batch: 0,
            piece: 0,
            timeout,
            broken: Arc::default(),
            trained: false,
            samples: 0,
            agreed: 0,
            last: None,
            evaluates: false,
            goes_on: false,
            attempts: 0,
            born: now,
            died: JobTime::NEVER,
            busy: Duration::ZERO,
            transfer_done: JobTime::ZERO,
            transfer_limit: JobTime::ZERO,
            transfer: 0,
            servers: Vec::new(),
            rollback: RollbackId(0),
            busy_until: JobTime::ZERO,
            served: (0, Duration::ZERO),
            reports: 0,
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.stage == Stage::Dead
    }

    /// What became of its time by `now`.
    pub(super) fn usage(&self, now: JobTime) -> Usage {
        let end = self.died.min(now);
        Usage { holder: self.holder, alive: end.since(self.born), busy: self.busy }
    }
}
