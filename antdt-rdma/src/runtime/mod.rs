//! A transport between processes whose hosts have RDMA adapters.
//!
//! All members are connected over TCP, by which they tell each other how their adapters are reached, that a process has
//! ended, and why one gave up. Messages go over reliable queue pairs, one for each pair of members.
//!
//! Every member keeps slots for each other one, registered once for a group. A sender writes a header and a part of the
//! message into the next slot, one-sided, with an immediate that tells the receiver's adapter to complete a receive. The
//! receiver takes slots in order, and says in a control message when half of them are free (`verbs::Window`,
//! `verbs::Owed`). So many writes are under way at once as there are slots. A short message goes inline, with the work
//! request.
//!
//! A long message whose place lies in a [region](Transport::region) of the receiver is not copied there: with the first
//! slot that it takes, the receiver tells the sender the place, and from then on the sender writes the rest where it
//! belongs. The pieces that were under way meanwhile arrive in slots. A sender reads from a region of its own as well; its
//! call returns when the adapter is done with it. When a call fails, the queue pairs are given up before it returns: from
//! then on no adapter touches the caller's memory.
//!
//! A waiting member polls for some microseconds, then sleeps until its adapter has an event or a connection has. An adapter
//! repeats what is not acknowledged for at most half of the time that a call has (`verbs::Retries`), and then breaks the
//! connection: if the peer's process is gone, the call fails with `PeerClosed`, and otherwise the peer is named as late.
//!
//! Queue pairs are connected by what the members tell each other over TCP. The connection manager of the RDMA stack, librdmacm,
//! does it where it is asked to ([`RdmaSetup`], `rdma-cm` in the registry): it asks the kernels of both hosts, which costs some
//! messages for each pair, and finds the ways that only it knows. Each member takes calls at the IP address of its adapter; the
//! number that goes with it is told over TCP, as is the queue pair from which a call may come.
//!
//! Three layers keep unsafe code small: `sys` are the libraries' declarations, `result` turns what they return into errors,
//! `safe` are owned objects.
//!
//! Rejected: queue pairs that librdmacm makes, because it would bind them to a device context of its own, in which regions
//! that were handed out are not registered; a shared receive queue, whose credits would be shared by all peers; reading by the
//! receiver (RDMA READ), which costs a round trip more, and of which adapters do few at a time.

#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "this is the I/O half of the crate")]

mod adapter;
mod config;
mod fabric;
mod link;
mod manager;
mod plane;
mod result;
mod safe;
mod sys;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use antdt_collective::runtime::Region;
use antdt_collective::runtime::transport::tcp::Ended;
use antdt_collective::runtime::transport::{
    Exchange, Incoming, Listener, Outgoing, Sink, TcpTransport, Transport,
};
use antdt_collective::schedule::CostModel;
use antdt_collective::{AbortHandle, CollectiveError, Group};
use antdt_core::Rank;

use self::adapter::Adapter;
pub use self::config::{RdmaConfig, RdmaSetup};
pub use self::fabric::ENTRIES;
use self::link::{Link, Memory, Part};
use self::manager::{Ends, Manager};
use self::plane::{Plane, Regions, Round, Trouble, failed};
pub use self::result::{VerbsError, WorkStatus};
use self::safe::{Access, CompletionQueue, Limits, MemoryRegion, Path, ProtectionDomain, QueuePair};
use crate::verbs::{AdapterOffer, Control, Endpoint, Mtu, Retries, Shape};

/// A [`Transport`] for members on hosts with RDMA adapters. If a member has no adapter, the group
/// communicates over TCP.
#[derive(Debug)]
pub struct RdmaTransport {
    // In this order: what was sent has arrived before the peers find the connections closed, and what they still send
    // then finds a queue pair.
    plane: Option<Plane>,
    tcp: TcpTransport,
    _pairs: Vec<Arc<QueuePair>>,
    config: RdmaConfig,
    failed: Option<CollectiveError>,
}

impl RdmaTransport {
    /// Returns the name of the adapter that this host would use.
    ///
    /// # Errors
    /// If this host has no usable adapter; the error says why.
    pub fn adapter(config: &RdmaConfig) -> Result<String, VerbsError> {
        Adapter::choose(config.device.as_deref()).map(|adapter| adapter.device.name().to_owned())
    }

    /// Connects with all other members of the group; every member calls this with the same list.
    ///
    /// # Errors
    /// As [`TcpTransport::connect`]; also if the adapters cannot be connected.
    pub fn connect(
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Self, CollectiveError> {
        Self::connect_with(listener, group, timeout, abort, RdmaConfig::default())
    }

    /// Connects as [`connect`](Self::connect) does, with other settings than the default ones.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); also if a member has no adapter and `config` refuses to go on without.
    pub fn connect_with(
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
        config: RdmaConfig,
    ) -> Result<Self, CollectiveError> {
        let deadline = Instant::now() + timeout;
        let tcp = TcpTransport::connect(listener, group, timeout, abort)?;
        Self::join(tcp, deadline, abort, config, None)
    }

    /// Returns the transport of a newer membership. Members that stay keep their TCP connections and their
    /// regions, and make new queue pairs.
    ///
    /// # Errors
    /// As [`connect`](Self::connect); also if the membership is not newer.
    pub fn regroup(
        self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Self, CollectiveError> {
        let deadline = Instant::now() + timeout;
        let Self { plane, tcp, _pairs: pairs, config, .. } = self;
        let regions = plane.as_ref().map(|plane| plane.regions.clone());
        // What was sent in the last call may still be awaited by a peer that then comes here.
        drop(plane);
        let tcp = tcp.regroup(listener, group, timeout, abort)?;
        drop(pairs);
        Self::join(tcp, deadline, abort, config, regions)
    }

    /// Returns whether messages go over RDMA adapters; `false` if they go over TCP because a member has no
    /// adapter.
    pub const fn is_rdma(&self) -> bool {
        self.plane.is_some()
    }

    fn join(
        mut tcp: TcpTransport,
        deadline: Instant,
        abort: &AbortHandle,
        config: RdmaConfig,
        regions: Option<Regions>,
    ) -> Result<Self, CollectiveError> {
        let plane = if tcp.group().world() == 1 {
            None
        } else {
            connect(&mut tcp, deadline, abort, &config, regions).map_err(|error| tcp.fail(error))?
        };
        let pairs = plane.as_ref().map_or_else(Vec::new, Plane::pairs);
        Ok(Self { plane, tcp, _pairs: pairs, config, failed: None })
    }

    fn run(
        tcp: &mut TcpTransport,
        plane: &mut Plane,
        spin: Duration,
        call: &Exchange,
        round: &mut Round<'_, '_>,
    ) -> Result<(), Trouble> {
        tcp.begin_beside(call);
        let (mut idle_since, mut armed) = (None, false);
        loop {
            if let Some(error) = plane.abort.error() {
                return Err(error.into());
            }
            let moved = plane.advance(call, round)?;
            if plane.is_done(round) {
                return Ok(());
            }
            if moved {
                idle_since = None;
                continue;
            }
            let now = Instant::now();
            if now.saturating_duration_since(*idle_since.get_or_insert(now)) < spin {
                std::thread::yield_now();
                continue;
            }
            if !armed {
                // What came before the event was asked for is found in one more pass.
                let asked = plane.completions.arm();
                asked.map_err(|error| failed("asking for an event", &error))?;
                armed = true;
                continue;
            }
            let Some(until) = plane.look(call, round, |rank| tcp.is_closed(rank))? else { continue };
            let events = plane.completions.descriptor();
            tcp.sleep_beside(call, until, events).map_err(Trouble::Ended)?;
            armed = !plane.completions.hear();
        }
    }

    // The error of a call that ended; the others learn why.
    fn conclude(
        tcp: &mut TcpTransport,
        plane: &mut Plane,
        call: &Exchange,
        round: &Round<'_, '_>,
        trouble: Trouble,
    ) -> CollectiveError {
        let ended = match trouble {
            Trouble::Ended(ended) => tcp.settle(call, ended, plane.late(call, round, None)),
            Trouble::Gone(rank) => tcp.settle(call, Ended::Gone(rank), plane.late(call, round, Some(rank))),
            Trouble::Broken(rank) => {
                let link = plane.links[rank.0 as usize].as_ref().expect("a link that broke");
                let status = link.broken.expect("as above");
                let late = plane.late(call, round, Some(rank));
                match tcp.hears_why(rank) {
                    Some(ended) => tcp.settle(call, ended, late),
                    None if status.is_silence() || status.is_not_ready() => Ended::Silent(late),
                    None => Ended::Failed(CollectiveError::Corrupt {
                        peer: link.peer,
                        what: format!("its adapter ended the connection: {status}"),
                    }),
                }
            }
        };
        let error = tcp.conclude_beside(call, ended);
        plane.give_up();
        error
    }
}

impl Transport for RdmaTransport {
    fn group(&self) -> &Group {
        self.tcp.group()
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        let Some(plane) = &mut self.plane else { return self.tcp.exchange(call, sends, receives) };
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let mut round = Round::new(plane, call, sends, receives);
        let result = Self::run(&mut self.tcp, plane, self.config.spin, call, &mut round);
        result.map_err(|trouble| {
            let error = Self::conclude(&mut self.tcp, plane, call, &round, trouble);
            self.failed.insert(error).clone()
        })
    }

    fn cost(&self) -> CostModel {
        if self.plane.is_some() { CostModel::ADAPTER } else { self.tcp.cost() }
    }

    fn region(&mut self, len_bytes: usize) -> Result<Region, CollectiveError> {
        match &mut self.plane {
            Some(plane) => plane.regions.make(len_bytes).map_err(|error| failed("allocating memory", &error)),
            None => self.tcp.region(len_bytes),
        }
    }

    fn owns(&self, region: &Region) -> bool {
        self.plane.as_ref().is_none_or(|plane| plane.regions.home(region).is_some())
    }

    fn check(&mut self) {
        // An adapter says by itself what did not arrive.
        if self.plane.is_none() {
            self.tcp.check();
        }
    }

    fn attend(&mut self) {
        self.tcp.attend();
        if let (None, Some(error)) = (&self.failed, self.tcp.failure()) {
            self.failed = Some(error.clone());
            if let Some(plane) = &mut self.plane {
                plane.give_up();
            }
        }
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        let error = self.tcp.fail(error);
        if let Some(plane) = &mut self.plane {
            plane.give_up();
        }
        self.failed.get_or_insert(error).clone()
    }
}

// Connects the members' adapters; `None` if one has none and the group goes on without.
fn connect(
    tcp: &mut TcpTransport,
    deadline: Instant,
    abort: &AbortHandle,
    config: &RdmaConfig,
    regions: Option<Regions>,
) -> Result<Option<Plane>, CollectiveError> {
    let group = tcp.group().clone();
    let mut call = Exchange::meeting(&group, deadline);
    let managed = config.setup == RdmaSetup::Manager;
    // Calls are taken before any member hears where.
    let chosen = Adapter::choose(config.device.as_deref()).and_then(|adapter| {
        let manager = if managed { Some(Manager::listen(&adapter, group.world())?) } else { None };
        Ok((adapter, manager))
    });
    let offer = match &chosen {
        Ok((adapter, _)) => offer(adapter, config, group.world()),
        Err(error) => AdapterOffer::Nothing(error.to_string()),
    };
    let offers = swap_offers(tcp, &call, &offer)?;
    // All members see this in the same cards.
    let (shape, mtus) = match agree(&group, &offers) {
        Ok(agreed) => agreed,
        Err(why) if config.fallback => {
            // All members know the same; one of them says it.
            static SAID: Once = Once::new();
            if group.me() == Rank(0) {
                SAID.call_once(|| tracing::warn!(%why, "no RDMA: this job communicates over TCP"));
            }
            return Ok(None);
        }
        Err(why) => return Err(CollectiveError::Invalid { what: why }),
    };
    let (adapter, manager) = chosen.expect("this member offered an adapter");
    let patience = config.patience.unwrap_or_else(|| deadline.saturating_duration_since(call.started));
    let retry = Retries::within(patience);
    let (made, regions) = Made::new(&group, &adapter, shape, regions)
        .map_err(|error| failed(&format!("preparing {}", adapter.device.name()), &error))?;
    call.tag.round = 1;
    let service = manager.as_ref().map_or(0, |manager| manager.service);
    let endpoints = made.swap(tcp, &call, &adapter, shape, service)?;
    let mtu_with = |rank: Rank| adapter.port.mtu.of_path(mtus[rank.0 as usize]);
    let connections = if let Some(manager) = &manager {
        let ends = made.pairs.iter().zip(&endpoints).map(|(pair, remote)| Ends {
            rank: pair.rank,
            pair: &pair.pair,
            remote: *remote,
            mtu: mtu_with(pair.rank),
        });
        let ends: Vec<Ends<'_>> = ends.collect();
        manager.connect(tcp, &call, abort, &adapter, &ends, retry)?
    } else {
        for (pair, remote) in made.pairs.iter().zip(&endpoints) {
            let mtu = mtu_with(pair.rank);
            let path = Path { from: adapter.address, to: *remote, mtu, packet: pair.packet };
            let connected = pair.pair.connect(&path.way(), retry);
            let with = || format!("connecting with {}", group.holder(pair.rank));
            connected.map_err(|error| failed(&with(), &error))?;
        }
        Vec::new()
    };
    let links = made.links(&group, &adapter, shape, endpoints);
    // No member begins before all are connected, or know that one is not.
    call.tag.round = 2;
    tcp.all_gather(&call, &mut vec![0; group.world() as usize])?;
    tracing::debug!(device = adapter.device.name(), ?shape, managed, "connected over RDMA");
    Ok(Some(Plane::new(links, regions, made.completions, connections, abort.clone())))
}

fn offer(Adapter { device, port, .. }: &Adapter, config: &RdmaConfig, world: u32) -> AdapterOffer {
    let shape = config.shape.unwrap_or_else(|| Shape::of_group(world));
    let shape = shape.within(world - 1, device.queue_depth_max(), device.completions_max());
    let managed = config.setup == RdmaSetup::Manager;
    AdapterOffer::Adapter { ethernet: port.ethernet, mtu: port.mtu, shape, managed }
}

// Tells the others what this member offers, and hears the same of all, by rank.
fn swap_offers(
    tcp: &mut TcpTransport,
    call: &Exchange,
    offer: &AdapterOffer,
) -> Result<Vec<AdapterOffer>, CollectiveError> {
    let group = tcp.group().clone();
    let mut cards = vec![0; AdapterOffer::LEN * group.world() as usize];
    let mine = group.me().0 as usize * AdapterOffer::LEN;
    cards[mine..mine + AdapterOffer::LEN].copy_from_slice(&offer.encode());
    tcp.all_gather(call, &mut cards)?;
    let offers = (0..).map(Rank).zip(cards.as_chunks::<{ AdapterOffer::LEN }>().0).map(|(rank, card)| {
        let what = "its card; start all processes from one build".to_owned();
        AdapterOffer::decode(card).ok_or_else(|| CollectiveError::Corrupt { peer: group.holder(rank), what })
    });
    offers.collect()
}

// What all use, and each member's longest packet; or why there is no RDMA in this group.
fn agree(group: &Group, offers: &[AdapterOffer]) -> Result<(Shape, Vec<Mtu>), String> {
    let mut agreed: Option<((bool, bool), Shape)> = None;
    let mut mtus = Vec::with_capacity(offers.len());
    for (rank, offer) in (0..).map(Rank).zip(offers) {
        let peer = group.holder(rank);
        match offer {
            AdapterOffer::Nothing(why) => return Err(format!("{peer}: {why}")),
            AdapterOffer::Adapter { ethernet, mtu, shape, managed } => {
                let (theirs, least) = *agreed.get_or_insert(((*ethernet, *managed), *shape));
                let first = group.holder(Rank(0));
                if theirs.0 != *ethernet {
                    return Err(format!("{peer} and {first} have adapters of different networks"));
                }
                if theirs.1 != *managed {
                    let (with, without) = if *managed { (peer, first) } else { (first, peer) };
                    return Err(format!(
                        "{with} connects by librdmacm and {without} does not; choose one transport for all"
                    ));
                }
                agreed = Some((theirs, least.least(*shape)));
                mtus.push(*mtu);
            }
        }
    }
    let (_, shape) = agreed.ok_or("the group is empty")?;
    Ok((shape, mtus))
}

/// Queue pairs that are ready to be connected, and the memory of their links.
struct Made {
    pairs: Vec<MadePair>,
    completions: Arc<CompletionQueue>,
    landing: Arc<MemoryRegion>,
    staging: Arc<MemoryRegion>,
    messages: Arc<MemoryRegion>,
}

struct MadePair {
    rank: Rank,
    index: usize,
    pair: Arc<QueuePair>,
    packet: u32,
}

impl Made {
    // Receives are posted: a peer may send as soon as it is connected.
    fn new(
        group: &Group,
        adapter: &Adapter,
        shape: Shape,
        regions: Option<Regions>,
    ) -> Result<(Self, Regions), VerbsError> {
        let same = |regions: &Regions| regions.domain.device().name() == adapter.device.name();
        let regions = match regions.filter(same) {
            Some(regions) => regions,
            None => Regions::new(ProtectionDomain::new(&adapter.device)?),
        };
        let domain = &regions.domain;
        let peers = group.world() - 1;
        let (sends, receives) = (shape.sends(), shape.receives());
        let completions = CompletionQueue::new(domain.device(), peers * (sends + receives))?;
        let slots = usize::try_from(shape.len_bytes()).expect("a shape fits into memory") * peers as usize;
        let landing = MemoryRegion::new(domain, slots, Access::Remote)?;
        let staging = MemoryRegion::new(domain, slots, Access::Local)?;
        let buffers = peers as usize * receives as usize * Control::LEN;
        let messages = MemoryRegion::new(domain, buffers, Access::Local)?;
        let mut made = Self { pairs: Vec::new(), completions, landing, staging, messages };
        let limits = Limits { sends, receives, inline: adapter.inline_bytes };
        let others = (0..group.world()).map(Rank).filter(|rank| *rank != group.me());
        for (index, rank) in others.enumerate() {
            let pair = QueuePair::new(domain, &made.completions, limits, adapter.port.number)?;
            let memory = made.memory(index, shape);
            for receive in 0..receives {
                Link::post_receive(&pair, &memory.messages, rank, receive)?;
            }
            // Packets of a queue pair that had this number before must not fit in.
            let packet = first_packet(group, rank, pair.number());
            made.pairs.push(MadePair { rank, index, pair: Arc::new(pair), packet });
        }
        Ok((made, regions))
    }

    fn memory(&self, index: usize, shape: Shape) -> Memory {
        let part = |region: &Arc<MemoryRegion>, len: usize| Part { region: region.clone(), at: index * len };
        let slots = usize::try_from(shape.len_bytes()).expect("a shape fits into memory");
        Memory {
            landing: part(&self.landing, slots),
            staging: part(&self.staging, slots),
            messages: part(&self.messages, shape.receives() as usize * Control::LEN),
        }
    }

    // The links with the others, by rank, whose queue pairs end at these `endpoints`.
    fn links(
        &self,
        group: &Group,
        adapter: &Adapter,
        shape: Shape,
        endpoints: Vec<Endpoint>,
    ) -> Vec<Option<Link>> {
        let mut links: Vec<Option<Link>> = (0..group.world()).map(|_| None).collect();
        for (pair, remote) in self.pairs.iter().zip(endpoints) {
            let peer = (pair.rank, group.holder(pair.rank));
            let memory = self.memory(pair.index, shape);
            let link = Link::new(peer, pair.pair.clone(), memory, shape, adapter.inline_bytes, remote);
            links[pair.rank.0 as usize] = Some(link);
        }
        links
    }

    // Tells each peer how it reaches its queue pair, and hears the same, in the order of `pairs`.
    fn swap(
        &self,
        tcp: &mut TcpTransport,
        call: &Exchange,
        adapter: &Adapter,
        shape: Shape,
        service: u16,
    ) -> Result<Vec<Endpoint>, CollectiveError> {
        let mine: Vec<(Rank, [u8; Endpoint::LEN])> = self
            .pairs
            .iter()
            .map(|pair| {
                let endpoint = Endpoint {
                    queue_pair: pair.pair.number(),
                    packet: pair.packet,
                    gid: adapter.address.gid,
                    lid: adapter.address.lid,
                    service,
                    slots: self.landing.address(self.memory(pair.index, shape).landing.at),
                    key: self.landing.remote_key(),
                };
                (pair.rank, endpoint.encode())
            })
            .collect();
        let mut theirs = vec![[0; Endpoint::LEN]; mine.len()];
        let sends: Vec<Outgoing<'_>> = mine.iter().map(|(to, bytes)| Outgoing { to: *to, bytes }).collect();
        let mut receives: Vec<Incoming<'_>> = self
            .pairs
            .iter()
            .zip(&mut theirs)
            .map(|(pair, place)| Incoming { from: pair.rank, sink: Sink::Place(place) })
            .collect();
        tcp.exchange(call, &sends, &mut receives)?;
        let group = tcp.group();
        let decoded = self.pairs.iter().zip(&theirs).map(|(pair, bytes)| {
            let what = "its end of a connection".to_owned();
            let corrupt = || CollectiveError::Corrupt { peer: group.holder(pair.rank), what };
            Endpoint::decode(bytes).ok_or_else(corrupt)
        });
        decoded.collect()
    }
}

// Differs from one membership and pair to the next; 24 bits.
fn first_packet(group: &Group, rank: Rank, number: u32) -> u32 {
    let mixed = antdt_core::Seed(group.membership().0)
        .derive_number(u64::from(rank.0))
        .derive_number(u64::from(number));
    (mixed.0 >> 40) as u32
}

#[cfg(test)]
mod tests;
