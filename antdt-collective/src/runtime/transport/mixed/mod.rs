//! A transport between processes: over shared memory inside a host, over TCP between hosts.
//!
//! All members are connected over TCP. A member that shares a host with others hands them its memory, and from then
//! on messages between them go there ([`region`](Transport::region) hands out memory from which they need not be copied);
//! the connection stays for what must be known when the memory is silent: that a process has ended, and why one gave up.
//!
//! One thread drives both. While it waits for members of both kinds it cannot sleep on both at once, so it sleeps on the
//! connections, for short times.

mod fabric;

use std::time::{Duration, Instant};

use antdt_core::Rank;
pub(in crate::runtime::transport) use fabric::{AUTO, SHM};
use rustix::event::{PollFd, PollFlags};

use super::shm::{Card, Counter, Gathering, Host, Idle, Local, Next, Round, SHOWN_MAX, Waiting};
use super::tcp::{Ended, Flow, Listener, TcpTransport};
use super::{
    Exchange, Incoming, Loan, Merge, Outgoing, Transfer, Transport, gather_by_exchange, trade_by_exchange,
};
use crate::error::CollectiveError;
use crate::group::Group;
use crate::runtime::abort::AbortHandle;
use crate::runtime::region::Region;
use crate::runtime::wait::wait;
use crate::schedule::CostModel;

/// How long to sleep on the connections while messages in memory are awaited as well. As long as a wake-up takes; who
/// waits for both kinds wakes that often for nothing.
const SLICE: Duration = Duration::from_micros(50);

/// How often a member that waits for others' memory looks at the connections.
const TICK: Duration = Duration::from_millis(5);

/// Settings that decide which members share memory.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MixedConfig {
    /// Name of a part of this host that shares no memory with its other parts: a NUMA node, or a simulated
    /// host in a test. Default: none, the whole host shares memory.
    pub part: String,
    /// Whether a group on more than one host is refused. By default it is not, and members on different hosts
    /// communicate over TCP.
    pub one_host: bool,
}

/// A [`Transport`] for members that are processes on one or several hosts: shared memory inside a host, TCP
/// between hosts.
#[derive(Debug)]
pub struct MixedTransport {
    // In this order: members that still wait for this one find its connections closed when they are woken.
    tcp: TcpTransport,
    local: Local,
    // By rank.
    hosts: Vec<u32>,
    all_local: bool,
    config: MixedConfig,
    abort: AbortHandle,
    failed: Option<CollectiveError>,
}

impl MixedTransport {
    /// Connects with all other members of the group; every member calls this with the same list.
    ///
    /// # Errors
    /// As [`TcpTransport::connect`]; also if members on one host cannot share memory.
    pub fn connect(
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Self, CollectiveError> {
        Self::connect_with(listener, group, timeout, abort, MixedConfig::default())
    }

    /// Connects as [`connect`](Self::connect) does, with other settings than the default ones.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); also if the group is on several hosts and `config` refuses that.
    pub fn connect_with(
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
        config: MixedConfig,
    ) -> Result<Self, CollectiveError> {
        let deadline = Instant::now() + timeout;
        let tcp = TcpTransport::connect(listener, group, timeout, abort)?;
        Self::share(tcp, deadline, abort, config)
    }

    /// Returns the transport of a newer membership. Members that stay keep their TCP connections, and share
    /// new memory.
    ///
    /// # Errors
    /// As [`TcpTransport::regroup`].
    pub fn regroup(
        self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Self, CollectiveError> {
        let deadline = Instant::now() + timeout;
        let tcp = self.tcp.regroup(listener, group, timeout, abort)?;
        Self::share(tcp, deadline, abort, self.config)
    }

    fn share(
        mut tcp: TcpTransport,
        deadline: Instant,
        abort: &AbortHandle,
        config: MixedConfig,
    ) -> Result<Self, CollectiveError> {
        let group = tcp.group().clone();
        let counter = Counter::open(Host::this(&config.part)).map_err(|error| tcp.fail(error))?;
        let mut call = Exchange::meeting(&group, deadline);
        let mut cards = vec![0; Card::LEN * group.world() as usize];
        let mine = group.me().0 as usize * Card::LEN;
        cards[mine..mine + Card::LEN].copy_from_slice(&counter.card().encode());
        tcp.all_gather(&call, &mut cards)?;
        let cards: Vec<Card> = cards.as_chunks().0.iter().map(Card::decode).collect();
        let hosts = hosts(&cards);
        let other = (0..).map(Rank).zip(&hosts).find(|(_, host)| **host != hosts[group.me().0 as usize]);
        if let Some((rank, _)) = other.filter(|_| config.one_host) {
            // All members see this in the same cards.
            return Err(CollectiveError::OtherHost { peer: group.holder(rank) });
        }
        let mut local = Local::new(&group, abort).map_err(|error| tcp.fail(error))?;
        let swapped = swap(&mut tcp, &mut local, &call, &counter, &cards, abort);
        swapped.map_err(|ended| tcp.conclude(&call, ended, &[]))?;
        // No member begins before all have what they need, or know that one has not.
        call.tag.round = 1;
        tcp.all_gather(&call, &mut vec![0; group.world() as usize])?;
        let all_local = hosts.iter().all(|host| *host == 0);
        Ok(Self { tcp, local, hosts, all_local, config, abort: abort.clone(), failed: None })
    }

    fn run(
        &mut self,
        call: &Exchange,
        round: &mut Round<'_, '_>,
        flows: &mut [Flow<'_, '_>],
    ) -> Result<(), Ended> {
        self.tcp.begin(call, flows);
        let mut idle = self.local.idle();
        let result = self.drive(call, round, flows, &mut idle);
        self.local.awake(&mut idle);
        result
    }

    fn drive(
        &mut self,
        call: &Exchange,
        round: &mut Round<'_, '_>,
        flows: &mut [Flow<'_, '_>],
        idle: &mut Idle,
    ) -> Result<(), Ended> {
        let mut waited = false;
        loop {
            if let Some(error) = self.abort.error() {
                return Err(Ended::Failed(error));
            }
            let mut moved = self.local.advance(call, round)?;
            if !flows.is_empty() {
                moved |= self.tcp.pass(call, flows, Instant::now(), waited)?;
            }
            let flowing = !flows.iter().all(Flow::is_done);
            if round.is_done() && !flowing {
                return Ok(());
            }
            if moved {
                self.local.moved(idle);
                continue;
            }
            let Next::Sleep(heard) = self.local.next(idle) else {
                self.tcp.look_again(flows);
                continue;
            };
            waited = true;
            let now = Instant::now();
            let until = if flowing { self.tcp.patience(call, flows, now)? } else { now };
            if round.is_done() {
                self.tcp.sleep(call, until, flows)?;
            } else {
                self.tcp.sleep(call, until.min(now + SLICE), flows)?;
                let quiet = self.local.look(call, round, |rank| self.tcp.is_closed(rank))?;
                if quiet && !flowing {
                    self.local.sleep(call, heard);
                }
            }
            self.local.awake(idle);
        }
    }

    fn gather(
        &mut self,
        call: &Exchange,
        gathering: &mut Gathering,
        blocks: &mut [u8],
        idle: &mut Idle,
    ) -> Result<(), Ended> {
        loop {
            let moved = self.local.gather(call, gathering, blocks)?;
            if gathering.is_done() {
                return Ok(());
            }
            if moved {
                self.local.moved(idle);
                continue;
            }
            let Next::Sleep(heard) = self.local.next(idle) else { continue };
            if let Some(error) = self.abort.error() {
                return Err(Ended::Failed(error));
            }
            self.tcp.sleep(call, Instant::now(), &mut [])?;
            if self.local.look(call, gathering, |rank| self.tcp.is_closed(rank))? {
                self.local.sleep(call, heard);
            }
            self.local.awake(idle);
        }
    }

    // What the connections' transport has noticed between calls ends the group.
    fn follow(&mut self) {
        if let (None, Some(error)) = (&self.failed, self.tcp.failure()) {
            self.failed = Some(error.clone());
            self.local.give_up();
        }
    }

    // The error of a call that ended; the others learn why.
    fn conclude(
        &mut self,
        call: &Exchange,
        ended: Ended,
        late: Option<(Rank, usize)>,
        flows: &[Flow<'_, '_>],
    ) -> CollectiveError {
        let late = match late {
            Some((rank, missing)) => self.local.timeout(call, rank, missing),
            None => self.tcp.late(call, flows, None),
        };
        let ended = self.tcp.settle(call, ended, late);
        let error = self.tcp.conclude(call, ended, flows);
        self.local.give_up();
        self.failed.insert(error).clone()
    }
}

impl Transport for MixedTransport {
    fn group(&self) -> &Group {
        self.tcp.group()
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let local = &self.local;
        let near = sends.iter().filter(|send| local.is_linked(send.to));
        let far: Vec<&Outgoing<'_>> = sends.iter().filter(|send| !local.is_linked(send.to)).collect();
        let (coming_near, coming_far): (Vec<_>, Vec<_>) =
            receives.iter_mut().partition(|receive| local.is_linked(receive.from));
        let mut round = Round::new(self.hosts.len(), call, near, coming_near.into_iter());
        let mut flows = TcpTransport::flows(call.tag, far.into_iter(), coming_far.into_iter());
        let result = self.run(call, &mut round, &mut flows);
        result.map_err(|ended| {
            let late = round.late(&self.local);
            self.conclude(call, ended, late, &flows)
        })
    }

    fn trade(
        &mut self,
        call: &Exchange,
        loans: &mut [Loan<'_>],
        merge: &mut dyn Merge,
    ) -> Result<(), CollectiveError> {
        if !self.all_local {
            return trade_by_exchange(self, call, loans, merge);
        }
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let (world, me) = (self.hosts.len(), self.tcp.group().me());
        let Some(mut round) = Round::trading((world, me), call, loans, &self.local, merge) else {
            let what = "a loan of memory that is not shared; lend regions of this transport".to_owned();
            return Err(self.fail(CollectiveError::Invalid { what }));
        };
        let result = self.run(call, &mut round, &mut []);
        result.map_err(|ended| {
            let late = round.late(&self.local);
            self.conclude(call, ended, late, &[])
        })
    }

    fn all_gather(&mut self, call: &Exchange, blocks: &mut [u8]) -> Result<(), CollectiveError> {
        let world = self.hosts.len();
        let block = blocks.len() / world;
        if block == 0 || world == 1 {
            return Ok(());
        }
        if block > SHOWN_MAX || !self.all_local {
            return gather_by_exchange(self, call, blocks);
        }
        if let Some(error) = self.failed.clone() {
            return Err(error);
        }
        if let Some(error) = self.abort.error() {
            return Err(self.fail(error));
        }
        self.tcp.begin(call, &[]);
        let me = self.tcp.group().me().0 as usize;
        let mut gathering = Gathering::new(&mut self.local, call, me, block, blocks);
        let mut idle = self.local.idle();
        let result = self.gather(call, &mut gathering, blocks, &mut idle);
        self.local.awake(&mut idle);
        result.map_err(|ended| {
            let late = gathering.late(&self.local);
            self.conclude(call, ended, late, &[])
        })
    }

    fn hosts(&self) -> Option<&[u32]> {
        let distinct = self.hosts.iter().max().map_or(0, |last| *last as usize + 1);
        (distinct > 1 && distinct < self.hosts.len()).then_some(&self.hosts)
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        let mut transfers = self.tcp.transfers();
        transfers.retain(|it| !self.local.is_linked(it.to));
        transfers
    }

    fn cost(&self) -> CostModel {
        if self.all_local { CostModel::SHARED } else { self.tcp.cost() }
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        self.local.region(len_bytes)
    }

    fn lends(&self) -> bool {
        self.all_local
    }

    fn owns(&self, region: &Region) -> bool {
        self.local.owns(region)
    }

    fn check(&mut self) {
        // Members that share memory look at it themselves, and no message goes over their connections.
        if !self.all_local {
            self.tcp.check();
            self.follow();
        }
    }

    fn attend(&mut self) {
        self.tcp.attend();
        self.follow();
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        let error = self.tcp.fail(error);
        self.local.give_up();
        self.failed.get_or_insert(error).clone()
    }
}

// Numbers the hosts in the order of their first ranks.
fn hosts(cards: &[Card]) -> Vec<u32> {
    let mut hosts: Vec<u32> = Vec::with_capacity(cards.len());
    let mut count = 0;
    for (rank, card) in cards.iter().enumerate() {
        let known = cards[..rank].iter().position(|other| other.host.is_shared_with(&card.host));
        hosts.push(known.map_or(count, |other| hosts[other]));
        count += u32::from(known.is_none());
    }
    hosts
}

// Hands this member's memory to all on its host, and links with theirs.
fn swap(
    tcp: &mut TcpTransport,
    local: &mut Local,
    call: &Exchange,
    counter: &Counter,
    cards: &[Card],
    abort: &AbortHandle,
) -> Result<(), Ended> {
    let group = tcp.group().clone();
    let me = group.me();
    let failed = |e: std::io::Error| Ended::Failed(CollectiveError::io("handing over memory", &e));
    let ranks = (0..).map(Rank).zip(cards).filter(|(rank, _)| *rank != me);
    let shared = ranks.filter(|(_, card)| card.host.is_shared_with(&counter.card().host));
    let mut unsent: Vec<(Rank, &Card)> = shared.collect();
    let mut missing: Vec<Rank> = unsent.iter().map(|(rank, _)| *rank).collect();
    loop {
        if let Some(error) = abort.error() {
            return Err(Ended::Failed(error));
        }
        // Those whose end was seen in the last look: what they had sent before is here by now.
        let gone = missing.iter().copied().find(|rank| tcp.is_closed(*rank));
        let mut error = None;
        unsent.retain(|(rank, card)| match counter.send(local.descriptor(), me, card) {
            Ok(sent) => !sent,
            Err(e) => {
                // Its socket goes with the process.
                let refused = e.kind() == std::io::ErrorKind::ConnectionRefused;
                error = Some(if refused { Ended::Gone(*rank) } else { failed(e) });
                true
            }
        });
        while let Some((rank, file)) = counter.receive().map_err(failed)? {
            if let Some(index) = missing.iter().position(|other| *other == rank) {
                missing.swap_remove(index);
                local.link(&group, rank, file)?;
            }
        }
        if let Some(ended) = error {
            return Err(ended);
        }
        if missing.is_empty() && unsent.is_empty() {
            return Ok(());
        }
        if let Some(rank) = gone.filter(|rank| missing.contains(rank)) {
            return Err(Ended::Gone(rank));
        }
        let now = Instant::now();
        if now >= call.deadline {
            let late = missing.first().copied().or_else(|| unsent.first().map(|(rank, _)| *rank));
            let peer = group.holder(late.unwrap_or(me));
            let waited = call.started.elapsed();
            return Err(Ended::Silent(CollectiveError::Timeout { peer, at: call.tag, waited, missing: 0 }));
        }
        tcp.sleep(call, now, &mut [])?;
        let mut fds = [PollFd::from_borrowed_fd(abort.descriptor(), PollFlags::IN), counter.poll_fd()];
        // A full socket says nothing when it is no longer full.
        let until = if unsent.is_empty() { TICK } else { SLICE };
        wait(&mut fds, call.deadline.min(now + until)).map_err(failed)?;
    }
}

#[cfg(test)]
mod tests;
