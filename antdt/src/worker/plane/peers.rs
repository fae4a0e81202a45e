//! [`PeerGroup`]: the workers with which this one combines what it computes, and its connections to them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::runtime::Agent;
use antdt_collective::lanes::{Lanes, Verdict};
use antdt_collective::runtime::{
    AbortHandle, Backend, Communicator, CommunicatorConfig, Listener, ProcessGroup, Transfer,
};
use antdt_collective::schedule::Choice;
use antdt_collective::{Group, Member, ReduceOp};
use antdt_core::{Barrier, Holder, Joined, LinkReport, MembershipVersion, Rank};
use antdt_job::SyncMode;
use antdt_job::limits::next_timeout;

use crate::job::JobSpec;
use crate::net;
use crate::worker::WorkerError;
use crate::worker::interrupt::Interrupt;

/// The group of workers that a worker is in, of which a data plane asks for collective operations. A worker is in one group at
/// a time; the group that all workers form, or a smaller one for one average.
pub struct PeerGroup<'a> {
    agent: &'a Agent,
    listener: &'a Listener,
    interrupt: &'a Interrupt,
    /// Forms the groups; `None` in a job whose workers form none.
    backend: Option<Box<dyn Backend>>,
    algorithm: Choice,
    /// Smaller groups of members of the group of all take steps, each under a number of its own.
    has_parts: bool,
    /// Limit for one wait for a peer that is about to come.
    timeout: Duration,
    /// Limit for one wait for a peer's step, until the master says another.
    first_wait: Duration,
    /// Not here outside of groups, and while it is [lent](Self::lend).
    comm: Option<Box<dyn ProcessGroup>>,
    /// Of the group.
    abort: Option<AbortHandle>,
    members: Vec<Holder>,
    /// The group of all workers: its members and their addresses.
    all: Arc<[(Holder, String)]>,
    /// Its version.
    generation: MembershipVersion,
    /// Members of the group before, if it broke.
    broken: Vec<Holder>,
}

impl std::fmt::Debug for PeerGroup<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PeerGroup").field("members", &self.members).finish_non_exhaustive()
    }
}

impl<'a> PeerGroup<'a> {
    pub(in crate::worker) fn new(
        agent: &'a Agent,
        listener: &'a Listener,
        interrupt: &'a Interrupt,
        backend: Option<Box<dyn Backend>>,
        (spec, sync): (&JobSpec, &SyncMode),
    ) -> Self {
        Self {
            agent,
            listener,
            interrupt,
            backend,
            algorithm: spec.algorithm,
            has_parts: match sync.capabilities().barrier {
                Barrier::Peers => true,
                Barrier::All | Barrier::AllBut(_) | Barrier::Within(_) | Barrier::Nobody => false,
            },
            timeout: spec.meeting_wait(),
            first_wait: spec.deadlines(None).peer,
            comm: None,
            abort: None,
            members: Vec::new(),
            all: Arc::default(),
            generation: MembershipVersion(0),
            broken: Vec::new(),
        }
    }

    /// Returns the group, for collective operations. All members must call the same ones in the same order.
    ///
    /// # Errors
    /// If the worker is in no group, or the group is [lent](Self::lend).
    pub fn group(&mut self) -> Result<&mut Box<dyn ProcessGroup>, WorkerError> {
        self.comm.as_mut().ok_or_else(no_group)
    }

    /// Returns the number of members; 0 outside of groups, and while the group is [lent](Self::lend).
    pub fn world(&self) -> u32 {
        self.comm.as_ref().map_or(0, |comm| comm.group().world())
    }

    /// Hands the group over to another thread, with the handle that ends its waits. It must come back by
    /// [`take_back`](Self::take_back) before the worker leaves the group. `None` outside of groups.
    pub fn lend(&mut self) -> Option<(Box<dyn ProcessGroup>, AbortHandle)> {
        let abort = self.abort.clone()?;
        Some((self.comm.take()?, abort))
    }

    /// Takes the group back that was [lent](Self::lend).
    pub fn take_back(&mut self, group: Box<dyn ProcessGroup>) {
        self.comm = Some(group);
    }

    /// Returns how long a peer may take for a step, as the steps are now.
    pub fn step_wait(&self) -> Duration {
        let said = self.agent.session().peer_wait();
        self.timeout.max(said.unwrap_or(self.first_wait))
    }

    pub(in crate::worker) fn set_members(&mut self, joined: &Joined) {
        let members: Vec<Holder> = joined.members.iter().map(|(holder, _)| *holder).collect();
        self.timeout = next_timeout(self.timeout, &self.broken, members.iter().copied());
        self.broken.clear();
        self.members = members;
        self.all.clone_from(&joined.members);
    }

    /// Connects to the group of all workers. The group is the worker's own once it is [kept](Self::keep).
    pub(in crate::worker) fn connect(
        &mut self,
        joined: &Joined,
    ) -> Result<(Box<dyn ProcessGroup>, AbortHandle), WorkerError> {
        self.generation = joined.membership;
        let version = if self.has_parts { numbered(joined.membership, 0)? } else { joined.membership };
        let group = self.group_of(version, &joined.members)?;
        let abort = self.interrupt.enter(joined.membership)?;
        // All come here at once.
        let config = self.config(self.timeout);
        let backend = self.backend.as_mut().ok_or_else(no_group)?;
        // Steps are agreed on at the master; what the members tell each other of their past is not needed here.
        let (mut comm, _) = backend.join(self.listener, &group, config, &abort)?;
        if config.algorithm == Choice::Auto {
            comm.fit()?;
        }
        Ok((comm, abort))
    }

    /// Goes on with a group that all members have entered.
    pub(in crate::worker) fn keep(&mut self, (comm, abort): (Box<dyn ProcessGroup>, AbortHandle)) {
        (self.comm, self.abort) = (Some(comm), Some(abort));
        self.follow_steps();
    }

    /// Forms group `number`, of the members of the group of all that have these ranks. Returns whether these are all.
    pub(in crate::worker) fn form_part(&mut self, number: u64, ranks: &[Rank]) -> Result<bool, WorkerError> {
        let of = |rank: &Rank| self.all.get(rank.0 as usize).cloned();
        let members: Option<Vec<(Holder, String)>> = ranks.iter().map(of).collect();
        let members = members.ok_or_else(no_group)?;
        self.members = members.iter().map(|(holder, _)| *holder).collect();
        let group = self.group_of(numbered(self.generation, number)?, &members)?;
        // A death in the group of all wakes those that wait for the dead.
        let abort = self.interrupt.enter(self.generation)?;
        let config = self.config(self.step_wait());
        let backend = self.backend.as_mut().ok_or_else(no_group)?;
        let (comm, _) = backend.join_few(self.listener, &group, config, &abort)?;
        (self.comm, self.abort) = (Some(comm), Some(abort));
        Ok(members.len() == self.all.len())
    }

    /// Has the group wait for its members' steps.
    pub(in crate::worker) fn follow_steps(&mut self) {
        self.tell_transfers();
        let wait = self.step_wait();
        if let Some(comm) = &mut self.comm {
            comm.set_timeout(wait);
        }
    }

    /// Adds up the control values of all members.
    pub(in crate::worker) fn agree(&mut self, lanes: &Lanes) -> Result<Verdict, WorkerError> {
        let comm = self.group()?;
        let mut totals = lanes.encode();
        comm.all_reduce(&mut totals, ReduceOp::Sum)?;
        Ok(Lanes::decide(&totals, comm.group().world()))
    }

    /// Ends the group for this worker.
    pub(in crate::worker) fn leave(&mut self) {
        self.tell_transfers();
        if let Some(comm) = self.comm.take() {
            comm.leave();
        }
    }

    /// A member failed or was late.
    pub(in crate::worker) fn breaks(&mut self) {
        self.broken = std::mem::take(&mut self.members);
    }

    /// Tells the session what went to the members of the group since it was told last.
    fn tell_transfers(&mut self) {
        let transfers = self.comm.as_mut().map(|comm| comm.transfers()).unwrap_or_default();
        if transfers.is_empty() {
            return;
        }
        let mut session = self.agent.session();
        for Transfer { to, bytes, time } in transfers {
            if let Some(peer) = self.members.get(to.0 as usize) {
                session.transferred(LinkReport { to: peer.node, bytes, time });
            }
        }
    }

    fn config(&self, timeout: Duration) -> CommunicatorConfig {
        CommunicatorConfig { timeout, algorithm: self.algorithm, ..CommunicatorConfig::default() }
    }

    fn group_of(
        &self,
        version: MembershipVersion,
        members: &[(Holder, String)],
    ) -> Result<Group, WorkerError> {
        let (own, local): (Holder, SocketAddr) = (self.agent.holder(), self.listener.local_address());
        let me = members.iter().position(|(holder, _)| *holder == own);
        let me = me.ok_or_else(|| WorkerError::Input(format!("the new group has no {own}")))?;
        let members = members
            .iter()
            .map(|(holder, address)| {
                let address = net::resolve(address, local.ip()).map_err(|error| {
                    WorkerError::Address(format!("{holder} has the data address `{address}`: {error}"))
                })?;
                Ok(Member { holder: *holder, address })
            })
            .collect::<Result<_, WorkerError>>()?;
        let me = Rank(u32::try_from(me).expect("a group is smaller than 2^32"));
        Group::new(version, members, me).map_err(|e| WorkerError::Input(e.to_string()))
    }
}

fn no_group() -> WorkerError {
    WorkerError::Loop("the worker is in no group".to_owned())
}

/// The version of group `number` among the members of a group of all, which is number 0. Versions grow from one group that a
/// worker is in to the next.
fn numbered(generation: MembershipVersion, number: u64) -> Result<MembershipVersion, WorkerError> {
    const NUMBERS: u32 = 40;
    if number >> NUMBERS > 0 || generation.0 >> (64 - NUMBERS) > 0 {
        return Err(WorkerError::Loop(format!("group {number} of generation {generation} is one too many")));
    }
    Ok(MembershipVersion(generation.0 << NUMBERS | number))
}
