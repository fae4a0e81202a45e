//! [`HostPool`]: hosts that join a job by themselves, and the nodes on them. Pure: it is told what happens and the time, and answers
//! with what to do.
//!
//! A host has slots, one for each worker that it takes; parameter servers need none and go round. A node whose host is lost waits
//! until that host is back, or another one has a slot. A host may be away for a while ([`AWAY_LIMIT`]) before its nodes count as ended:
//! a connection that breaks says nothing about them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use antdt_core::{Exit, Holder, NodeId, Role};

use crate::launcher::{LaunchError, LaunchStatus, LauncherEvent, NodeExit, NodeSpec};

/// How long a host may be away before its nodes have ended for the job. They go on meanwhile, for they reach the master by themselves.
pub const AWAY_LIMIT: Duration = Duration::from_secs(10);

/// A host as it introduces itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostIntroduction {
    /// Name of the host, which no other host of the job has.
    pub name: String,
    /// Number of workers that it takes; at least 1.
    pub slots: u32,
    /// Position among the hosts, if its user has given one.
    pub rank: Option<u32>,
    /// Whether the job grows by its slots, however many hosts it has.
    pub adds: bool,
    /// Address at which other hosts reach its nodes.
    pub address: String,
}

/// What a host is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostOrder {
    /// Start this incarnation.
    Launch(Box<NodeSpec>),
    /// End this incarnation: ask it to exit, and kill it after the grace.
    End {
        /// Node and incarnation to end.
        holder: Holder,
        /// Time between the request and the kill.
        grace: Duration,
    },
}

/// What a host says of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostReport {
    /// The incarnation runs.
    Started,
    /// The incarnation has ended, with the last lines that it wrote.
    Gone {
        /// Exit code or signal, if known.
        exit: NodeExit,
        /// The node's last lines of output.
        tail: Vec<String>,
    },
}

/// What the driver is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolEffect {
    /// Send an order to a host.
    Send {
        /// Name of the host.
        host: String,
        /// The order.
        order: HostOrder,
    },
    /// Report an event of the launcher.
    Report(LauncherEvent),
}

#[derive(Debug)]
struct Host {
    slots: u32,
    /// By which hosts are filled: their rank, then their arrival.
    order: (u32, u64),
    adds: bool,
    address: String,
    presence: Presence,
    /// Whether it takes no more nodes.
    is_leaving: bool,
    /// Why its program has ended, if that is known while it still counts as there.
    cause: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    /// It has come, and has not said yet which nodes it has.
    Arriving,
    There,
    /// Since then.
    Away(Duration),
}

#[derive(Debug)]
struct Life {
    /// What to start, while no host has it.
    waiting: Option<Box<NodeSpec>>,
    /// Where it is, once that is decided.
    host: Option<String>,
    /// Whether the caller was told of this host before the start.
    foretold: Option<String>,
    status: LaunchStatus,
    /// An order to end it that its host, which is away, has not got.
    end: Option<Duration>,
    /// Whether its host was told to kill it.
    is_killed: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct HostPool {
    hosts: BTreeMap<String, Host>,
    lives: BTreeMap<Holder, Life>,
    /// Where the last incarnation of a node was.
    last: BTreeMap<NodeId, String>,
    /// Nodes for which a host was named, and which have not been started since.
    reserved: BTreeSet<NodeId>,
    arrivals: u64,
    growth: Option<Growth>,
}

/// How the job grows by hosts that come after it has begun.
#[derive(Debug, Clone, Copy)]
struct Growth {
    /// Hosts that the job takes of itself, at most.
    most: u32,
    /// Most slots that the hosts which count had at any time.
    slots: u32,
}

impl HostPool {
    /// Returns the hosts that are there, with their slots, in the order in which they are filled.
    pub fn hosts(&self) -> Vec<(String, u32)> {
        let mut there: Vec<_> =
            self.hosts.iter().filter(|(_, host)| host.presence == Presence::There).collect();
        there.sort_by_key(|(_, host)| host.order);
        there.into_iter().map(|(name, host)| (name.clone(), host.slots)).collect()
    }

    /// The job begins with the hosts that are there. It grows by those that come, up to so many hosts, and by those that are added to it;
    /// one more is a spare.
    pub fn begin(&mut self, most: u32) {
        let slots = self.counted(most);
        self.growth = Some(Growth { most, slots });
    }

    /// Slots of the hosts for which the job has workers.
    fn counted(&self, most: u32) -> u32 {
        let mut there: Vec<&Host> =
            self.hosts.values().filter(|host| host.presence != Presence::Arriving).collect();
        there.sort_by_key(|host| host.order);
        let counts = |(at, host): &(usize, &Host)| host.adds || u32::try_from(*at).is_ok_and(|at| at < most);
        there.into_iter().enumerate().filter(counts).map(|(_, host)| host.slots).sum()
    }

    /// Room that the job has not had before.
    fn grow(&mut self) -> Option<PoolEffect> {
        let growth = self.growth?;
        let slots = self.counted(growth.most);
        let workers = slots.checked_sub(growth.slots).filter(|more| *more > 0)?;
        self.growth = Some(Growth { slots, ..growth });
        Some(PoolEffect::Report(LauncherEvent::Room { workers }))
    }

    /// A host has come, for the first time or again. It gets nodes once it has said which it has ([`recall`](Self::recall)).
    ///
    /// # Errors
    /// Why it is refused.
    pub fn join(&mut self, host: HostIntroduction) -> Result<(), String> {
        let HostIntroduction { name, slots, rank, adds, address } = host;
        let known = self.hosts.get(&name);
        let is_away = |host: &Host| matches!(host.presence, Presence::Away(_));
        if known.is_some_and(|known| !is_away(known)) {
            return Err(format!(
                "another host is called {name}; give each a name of its own, by its host name or --host-name"
            ));
        }
        let twin = self
            .hosts
            .iter()
            .find(|(_, other)| rank.is_some_and(|rank| other.order.0 == rank) && !is_away(other));
        if let (Some(rank), Some((twin, _))) = (rank, twin) {
            return Err(format!("host {twin} has --node-rank {rank} already; give each host its own"));
        }
        let arrival = known.map_or(self.arrivals, |known| known.order.1);
        self.arrivals += u64::from(known.is_none());
        let order = (rank.unwrap_or(u32::MAX), arrival);
        self.hosts.insert(
            name,
            Host {
                slots,
                order,
                adds,
                address,
                presence: Presence::Arriving,
                is_leaving: false,
                cause: None,
            },
        );
        Ok(())
    }

    /// The connection to a host is lost. Its nodes go on, but those that were to be killed: whoever had them killed has not heard of
    /// them either, and nobody waits for the word of a host that is away.
    pub fn lose(&mut self, now: Duration, name: &str) -> Vec<PoolEffect> {
        let Some(host) = self.hosts.get_mut(name) else { return Vec::new() };
        host.presence = match host.presence {
            Presence::Away(since) => Presence::Away(since),
            Presence::Arriving | Presence::There => Presence::Away(now),
        };
        if let Some(why) = host.cause.take() {
            return self.bury(name, &why);
        }
        let killed: Vec<Holder> =
            self.on(name).into_iter().filter(|holder| self.lives[holder].is_killed).collect();
        let why = format!("host {name} is away, which was to kill it");
        killed.into_iter().flat_map(|holder| self.gone(holder, &why)).collect()
    }

    /// What has started the program of a host knows that it has ended, and why. So have its nodes, for the same reason, as soon as the
    /// host is away.
    pub fn explain(&mut self, name: &str, why: &str) -> Vec<PoolEffect> {
        let Some(host) = self.hosts.get_mut(name) else { return Vec::new() };
        match host.presence {
            Presence::Away(_) => self.bury(name, why),
            Presence::Arriving | Presence::There => {
                host.cause = Some(why.to_owned());
                Vec::new()
            }
        }
    }

    /// All nodes of a host have ended for this reason.
    fn bury(&mut self, name: &str, why: &str) -> Vec<PoolEffect> {
        let why = format!("host {name}: {why}");
        let gone: Vec<PoolEffect> =
            self.on(name).into_iter().flat_map(|holder| self.gone(holder, &why)).collect();
        gone.into_iter().chain(self.fill()).collect()
    }

    /// A host takes no more nodes, and goes once those that it has have ended.
    pub fn leave(&mut self, name: &str) {
        if let Some(host) = self.hosts.get_mut(name) {
            host.is_leaving = true;
        }
    }

    /// A host that has come says which nodes it has, and what became of them. Those that it does not name never began there, or ended
    /// with the program that had them.
    pub fn recall(&mut self, name: &str, known: &BTreeMap<Holder, HostReport>) -> Vec<PoolEffect> {
        let Some(host) = self.hosts.get_mut(name) else { return Vec::new() };
        host.presence = Presence::There;
        let mut effects = Vec::new();
        let here = self.on(name);
        // For the job they have ended.
        let left = known
            .iter()
            .filter(|(holder, report)| matches!(report, HostReport::Started) && !here.contains(holder));
        effects.extend(left.map(|(holder, _)| PoolEffect::Send {
            host: name.to_owned(),
            order: HostOrder::End { holder: *holder, grace: Duration::ZERO },
        }));
        for holder in here {
            match known.get(&holder) {
                Some(report) => effects.extend(self.report(name, holder, report.clone())),
                None => effects.extend(self.gone(holder, &format!("host {name} does not have it any more"))),
            }
            let pending_end = self.lives.get_mut(&holder).and_then(|life| life.end.take());
            effects.extend(pending_end.map(|grace| PoolEffect::Send {
                host: name.to_owned(),
                order: HostOrder::End { holder, grace },
            }));
        }
        effects.extend(self.fill());
        effects.extend(self.grow());
        effects
    }

    /// A host says something of a node.
    pub fn report(&mut self, name: &str, holder: Holder, report: HostReport) -> Vec<PoolEffect> {
        let Some(life) = self.lives.get_mut(&holder) else { return Vec::new() };
        if life.host.as_deref() != Some(name) || matches!(life.status, LaunchStatus::Gone(_)) {
            return Vec::new();
        }
        match report {
            HostReport::Started if life.status == LaunchStatus::Running => Vec::new(),
            HostReport::Started => {
                life.status = LaunchStatus::Running;
                vec![PoolEffect::Report(LauncherEvent::Started { holder })]
            }
            HostReport::Gone { exit, tail } => {
                life.status = LaunchStatus::Gone(exit);
                let gone = PoolEffect::Report(LauncherEvent::Gone { holder, exit, tail });
                std::iter::once(gone).chain(self.fill()).collect()
            }
        }
    }

    /// Time has passed: nodes of a host that is away for too long have ended.
    pub fn tick(&mut self, now: Duration) -> Vec<PoolEffect> {
        let is_lost = |host: &Host| match host.presence {
            Presence::Away(since) => now.saturating_sub(since) >= AWAY_LIMIT,
            Presence::Arriving | Presence::There => false,
        };
        let lost: Vec<String> =
            self.hosts.iter().filter(|(_, host)| is_lost(host)).map(|(name, _)| name.clone()).collect();
        let mut effects = Vec::new();
        for name in lost {
            self.hosts.remove(&name);
            let why = format!("host {name} is lost: it was away for {} s", AWAY_LIMIT.as_secs());
            for holder in self.on(&name) {
                effects.extend(self.gone(holder, &why));
            }
        }
        effects.extend(self.fill());
        effects
    }

    /// Names the host of the next incarnation of a node, and keeps its slot; `None` if none has one.
    pub fn place(&mut self, node: NodeId) -> Option<String> {
        let host = self.choose(node)?;
        self.last.insert(node, host.clone());
        self.reserved.insert(node);
        Some(host)
    }

    /// Starts an incarnation, as soon as a host has a slot.
    ///
    /// # Errors
    /// If it was started before.
    pub fn launch(&mut self, spec: &NodeSpec) -> Result<Vec<PoolEffect>, LaunchError> {
        let holder = spec.holder;
        if self.lives.contains_key(&holder) {
            return Err(LaunchError::Launched { holder });
        }
        let foretold =
            self.reserved.remove(&holder.node).then(|| self.last.get(&holder.node).cloned()).flatten();
        let waiting = Some(Box::new(spec.clone()));
        let life = Life {
            waiting,
            host: None,
            foretold,
            status: LaunchStatus::Pending,
            end: None,
            is_killed: false,
        };
        self.lives.insert(holder, life);
        Ok(self.fill())
    }

    /// Ends an incarnation; `false` if it is not there.
    pub fn end(&mut self, holder: Holder, grace: Duration) -> (bool, Vec<PoolEffect>) {
        let Some(life) = self.lives.get_mut(&holder) else { return (false, Vec::new()) };
        if matches!(life.status, LaunchStatus::Gone(_)) {
            return (false, Vec::new());
        }
        let Some(host) = life.host.clone() else {
            return (true, self.gone(holder, "it was ended before a host had a slot for it"));
        };
        life.is_killed |= grace.is_zero();
        match self.hosts.get(&host).map(|host| host.presence) {
            Some(Presence::There) => {}
            Some(Presence::Away(_)) if grace.is_zero() => {
                return (true, self.gone(holder, &format!("host {host} is away, which is to kill it")));
            }
            Some(Presence::Arriving | Presence::Away(_)) | None => {
                life.end = Some(life.end.map_or(grace, |known| known.min(grace)));
                return (true, Vec::new());
            }
        }
        (true, vec![PoolEffect::Send { host, order: HostOrder::End { holder, grace } }])
    }

    /// Returns the state of an incarnation.
    pub fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.lives.get(&holder).map(|life| life.status)
    }

    /// Forgets all nodes; hosts stay.
    pub fn clear(&mut self) {
        self.lives.clear();
        self.last.clear();
        self.reserved.clear();
    }

    /// Gives nodes that wait to hosts with room, in the order of the nodes.
    fn fill(&mut self) -> Vec<PoolEffect> {
        let waiting: Vec<Holder> =
            self.lives.iter().filter(|(_, life)| life.waiting.is_some()).map(|(holder, _)| *holder).collect();
        let mut effects = Vec::new();
        for holder in waiting {
            let Some(host) = self.choose(holder.node) else { continue };
            self.last.insert(holder.node, host.clone());
            let Some(life) = self.lives.get_mut(&holder) else { continue };
            let Some(mut spec) = life.waiting.take() else { continue };
            life.host = Some(host.clone());
            if life.foretold.as_ref() != Some(&host) {
                effects.push(PoolEffect::Report(LauncherEvent::Placed { holder, host: host.clone() }));
            }
            let first = self.last.get(&NodeId::worker(0)).and_then(|name| self.hosts.get(name));
            if let Some(first) = first {
                spec.set_first(&first.address);
            }
            effects.push(PoolEffect::Send { host, order: HostOrder::Launch(spec) });
        }
        effects
    }

    /// The host of a node's next incarnation: where it was before, or the first one with a slot; for a server the one with the fewest.
    fn choose(&self, node: NodeId) -> Option<String> {
        let stays = |host: &Host| host.presence == Presence::There && !host.is_leaving;
        let is_there = |name: &&String| self.hosts.get(*name).is_some_and(stays);
        let is_free =
            |name: &&String| node.role == Role::Server || self.used(name, node) < self.hosts[*name].slots;
        if let Some(before) = self.last.get(&node).filter(is_there).filter(is_free) {
            return Some(before.clone());
        }
        let mut there: Vec<(&String, &Host)> =
            self.hosts.iter().filter(|(name, _)| is_there(name) && is_free(name)).collect();
        there.sort_by_key(|(name, host)| {
            let servers = if node.role == Role::Server { self.servers(name) } else { 0 };
            (servers, host.order)
        });
        there.first().map(|(name, _)| (*name).clone())
    }

    /// Slots of a host that workers other than this one have, by running, waiting to or being promised.
    fn used(&self, host: &str, except: NodeId) -> u32 {
        let live = self.lives.iter().filter(|(_, life)| {
            life.host.as_deref() == Some(host) && !matches!(life.status, LaunchStatus::Gone(_))
        });
        let mut workers: BTreeSet<NodeId> = live.map(|(holder, _)| holder.node).collect();
        let promised = |node: &&NodeId| self.last.get(node).is_some_and(|name| name == host);
        workers.extend(self.reserved.iter().filter(promised));
        workers.retain(|node| node.role == Role::Worker && *node != except);
        u32::try_from(workers.len()).unwrap_or(u32::MAX)
    }

    fn servers(&self, host: &str) -> usize {
        self.last.iter().filter(|(node, name)| node.role == Role::Server && *name == host).count()
    }

    /// The nodes on a host that have not ended.
    fn on(&self, host: &str) -> Vec<Holder> {
        let here =
            |life: &Life| life.host.as_deref() == Some(host) && !matches!(life.status, LaunchStatus::Gone(_));
        self.lives.iter().filter(|(_, life)| here(life)).map(|(holder, _)| *holder).collect()
    }

    /// A node has ended, or will never run, by what the host does not say.
    fn gone(&mut self, holder: Holder, why: &str) -> Vec<PoolEffect> {
        let Some(life) = self.lives.get_mut(&holder) else { return Vec::new() };
        let exit = NodeExit::default();
        (life.status, life.waiting) = (LaunchStatus::Gone(exit), None);
        let tail = vec![format!("{}{why}", Exit::CAUSE)];
        vec![PoolEffect::Report(LauncherEvent::Gone { holder, exit, tail })]
    }
}

#[cfg(test)]
mod tests;
