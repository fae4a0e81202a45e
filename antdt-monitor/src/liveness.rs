//! Detection of silent nodes: heartbeats on time, late, or lost.

use std::time::Duration;

use antdt_core::{Holder, Incarnation, InvalidValue, JobTime, NodeId, NodeMap};

/// When a silent node counts as late and as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LivenessConfig {
    /// Interval at which a node sends heartbeats. Default 5 s: a lost message is repeated within that time.
    #[cfg_attr(feature = "serde", serde(with = "antdt_core::time::nanoseconds"))]
    pub interval: Duration,
    /// Silence after which a node is late. Default 15 s: two heartbeats may be lost.
    #[cfg_attr(feature = "serde", serde(with = "antdt_core::time::nanoseconds"))]
    pub late_after: Duration,
    /// Silence after which a node is lost and fenced. Default 30 s: longer than a garbage collection or a
    /// stalled disk. The monitor notices the death of a process at once, by its exit.
    #[cfg_attr(feature = "serde", serde(with = "antdt_core::time::nanoseconds"))]
    pub lost_after: Duration,
    /// Lower bound of `lost_after` where steps are short: a node is then lost after 12 steps of silence, but
    /// not before this time and not later than `lost_after`. `None` keeps `lost_after` whatever the steps.
    #[cfg_attr(feature = "serde", serde(default))]
    pub lost_after_least: Option<Duration>,
}

/// A node that is silent for so many steps is lost, within the limits: a job of long steps loses little while it waits, and a
/// restart costs it more.
const SILENT_STEPS: u32 = 12;

/// A node is not lost before it was silent for so long beyond a heartbeat, however short the steps are: pauses of a second are usual.
const LEAST: Duration = Duration::from_millis(1250);

/// A node that is silent for so long is lost, however long the steps are.
const MOST: Duration = Duration::from_secs(10);

impl LivenessConfig {
    /// Returns limits for nodes that send a heartbeat every `interval`: a node is lost after a silence of
    /// `interval + limit`, and late after half of that silence.
    pub fn of(interval: Duration, limit: Duration) -> Self {
        let (late_after, lost_after) = (limit / 2 + interval / 2, limit + interval);
        Self { interval, late_after, lost_after, lost_after_least: None }
    }

    /// Returns limits that follow the workers' steps: a node is lost after 12 steps of silence, but not
    /// before `least` and not later than `limit`, both counted beyond the interval.
    pub fn following_steps(interval: Duration, least: Duration, limit: Duration) -> Self {
        Self { lost_after_least: Some(least + interval), ..Self::of(interval, limit) }
    }

    /// Returns limits for nodes that send a heartbeat every `interval`, derived from it and from the workers' steps.
    pub fn of_heartbeat(interval: Duration) -> Self {
        let (least, most) = (LEAST.max(interval.saturating_mul(2)), MOST.max(interval.saturating_mul(3)));
        Self::following_steps(interval, least, most)
    }

    /// When a node is late and when it is lost, while a step takes so long.
    pub(crate) fn limits(&self, step: Duration) -> (Duration, Duration) {
        let Some(least) = self.lost_after_least else {
            return (self.late_after, self.lost_after);
        };
        let lost = step.saturating_mul(SILENT_STEPS).saturating_add(self.interval).max(least);
        if lost >= self.lost_after {
            return (self.late_after, self.lost_after);
        }
        (lost / 2, lost)
    }

    /// Checks that `interval`, `late_after` and `lost_after` ascend.
    ///
    /// # Errors
    /// The first value that is not above the value before it.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        let seconds = |time: Duration| format!("{} s", time.as_secs_f64());
        if self.interval.is_zero() {
            return Err(InvalidValue::new("liveness.interval", "0 s", "above 0"));
        }
        if self.late_after <= self.interval {
            let expected = format!("above the interval of {}", seconds(self.interval));
            return Err(InvalidValue::new("liveness.late_after", seconds(self.late_after), expected));
        }
        if self.lost_after <= self.late_after {
            let expected = format!("above late_after, {}", seconds(self.late_after));
            return Err(InvalidValue::new("liveness.lost_after", seconds(self.lost_after), expected));
        }
        if let Some(least) = self.lost_after_least.filter(|least| *least / 2 <= self.interval) {
            let expected = format!("above twice the interval of {}", seconds(self.interval));
            return Err(InvalidValue::new("liveness.lost_after_least", seconds(least), expected));
        }
        Ok(())
    }
}

impl Default for LivenessConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            late_after: Duration::from_secs(15),
            lost_after: Duration::from_secs(30),
            lost_after_least: None,
        }
    }
}

/// Whether a node's heartbeats arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Liveness {
    /// The last heartbeat is younger than `late_after`.
    OnTime,
    /// The node has been silent for `late_after`.
    Late,
    /// The node has been silent for `lost_after`. Final: an incarnation stays lost even if a later heartbeat
    /// of it arrives.
    Lost,
}

#[derive(Debug, Clone, Copy)]
struct Pulse {
    last: JobTime,
    incarnation: Incarnation,
    state: Liveness,
    /// Node whose last heartbeat came just before, among nodes of the same state.
    before: Option<NodeId>,
    /// Node whose last heartbeat came just after, among nodes of the same state.
    after: Option<NodeId>,
}

/// Both ends of the chain of nodes of one state, in the order in which they were last heard of.
#[derive(Debug, Clone, Copy, Default)]
struct Chain {
    first: Option<NodeId>,
    last: Option<NodeId>,
}

/// Records the last heartbeat of each node, for one incarnation of each, and finds the nodes that became late
/// or lost.
///
/// Nodes of one state have the same time limit, so that the node with the oldest heartbeat is due first. The
/// tracker keeps nodes in that order, and answers every question in O(1).
#[derive(Debug, Clone)]
pub struct LivenessTracker {
    config: LivenessConfig,
    late_after: Duration,
    lost_after: Duration,
    /// The newest moment it was told of: the order rests on time that does not go back.
    newest: JobTime,
    pulses: NodeMap<Pulse>,
    on_time: Chain,
    late: Chain,
}

impl LivenessTracker {
    /// Returns a tracker that watches no node yet.
    pub const fn new(config: LivenessConfig) -> Self {
        let nobody = Chain { first: None, last: None };
        let LivenessConfig { late_after, lost_after, .. } = config;
        let newest = JobTime::ZERO;
        Self { config, late_after, lost_after, newest, pulses: NodeMap::new(), on_time: nobody, late: nobody }
    }

    /// Sets the present duration of the workers' steps, which the limits may follow.
    pub fn follow(&mut self, step: Duration) {
        (self.late_after, self.lost_after) = self.config.limits(step);
    }

    /// Starts watching an incarnation at `now`, in place of an earlier one of its node.
    pub fn watch(&mut self, now: JobTime, holder: Holder) {
        self.newest = self.newest.max(now);
        self.unchain(holder.node);
        let pulse = Pulse {
            last: self.newest,
            incarnation: holder.incarnation,
            state: Liveness::OnTime,
            before: None,
            after: None,
        };
        self.pulses.insert(holder.node, pulse);
        self.chain(holder.node);
    }

    /// Stops watching an incarnation.
    pub fn forget(&mut self, holder: Holder) {
        if self.state(holder).is_some() {
            self.unchain(holder.node);
            self.pulses.remove(holder.node);
        }
    }

    /// Records a heartbeat at `now`. Returns the new state of the incarnation; `None` if it is not watched.
    pub fn heard(&mut self, now: JobTime, holder: Holder) -> Option<Liveness> {
        self.newest = self.newest.max(now);
        let pulse = self.pulses.get(holder.node).filter(|pulse| pulse.incarnation == holder.incarnation)?;
        let again = pulse.last == self.newest && pulse.state == Liveness::OnTime;
        if pulse.state == Liveness::Lost || again {
            return Some(pulse.state);
        }
        self.unchain(holder.node);
        let pulse = &mut self.pulses[holder.node];
        (pulse.last, pulse.state) = (self.newest, Liveness::OnTime);
        self.chain(holder.node);
        Some(Liveness::OnTime)
    }

    /// Returns the incarnation's state at the last check; `None` if it is not watched.
    pub fn state(&self, holder: Holder) -> Option<Liveness> {
        let pulse = self.pulses.get(holder.node)?;
        (pulse.incarnation == holder.incarnation).then_some(pulse.state)
    }

    /// Returns the earliest time at which [`check`](Self::check) can find a change.
    pub fn deadline(&self) -> Option<JobTime> {
        let due = |chain: Chain, patience| chain.first.map(|node| self.pulses[node].last + patience);
        let late = due(self.on_time, self.late_after);
        let lost = due(self.late, self.lost_after);
        late.into_iter().chain(lost).min()
    }

    /// Returns the nodes that became late or lost, in the order of their ids; each change once.
    pub fn check(&mut self, now: JobTime) -> Vec<(Holder, Liveness)> {
        // Only `heard` makes a node better.
        let mut changes = self.overdue(self.late, now, self.lost_after, Liveness::Lost);
        changes.extend(self.overdue(self.on_time, now, self.lost_after, Liveness::Lost));
        changes.extend(self.overdue(self.on_time, now, self.late_after, Liveness::Late));
        changes.sort_unstable();
        changes
    }

    /// Moves those of a chain that were silent for so long, oldest first, to another state.
    fn overdue(
        &mut self,
        chain: Chain,
        now: JobTime,
        silence: Duration,
        to: Liveness,
    ) -> Vec<(Holder, Liveness)> {
        let mut moved = Vec::new();
        let mut next = chain.first;
        while let Some(node) = next {
            let Pulse { last, incarnation, after, .. } = self.pulses[node];
            if now.since(last) < silence {
                break;
            }
            self.unchain(node);
            self.pulses[node].state = to;
            self.chain(node);
            moved.push((Holder::new(node, incarnation), to));
            next = after;
        }
        moved
    }

    /// Puts a node at the end of the chain of its state: none there has a later heartbeat.
    fn chain(&mut self, node: NodeId) {
        let state = self.pulses[node].state;
        let Some(chain) = self.chain_of(state) else { return };
        let before = chain.last.replace(node);
        match before {
            Some(before) => self.pulses[before].after = Some(node),
            None => chain.first = Some(node),
        }
        let pulse = &mut self.pulses[node];
        (pulse.before, pulse.after) = (before, None);
    }

    /// Takes a node out of the chain of its state.
    fn unchain(&mut self, node: NodeId) {
        let Some(Pulse { state, before, after, .. }) = self.pulses.get(node).copied() else { return };
        let Some(chain) = self.chain_of(state) else { return };
        match (before, after) {
            (None, None) => (chain.first, chain.last) = (None, None),
            (None, Some(_)) => chain.first = after,
            (Some(_), None) => chain.last = before,
            (Some(_), Some(_)) => {}
        }
        if let Some(before) = before {
            self.pulses[before].after = after;
        }
        if let Some(after) = after {
            self.pulses[after].before = before;
        }
    }

    /// Lost nodes are in no chain.
    const fn chain_of(&mut self, state: Liveness) -> Option<&mut Chain> {
        match state {
            Liveness::OnTime => Some(&mut self.on_time),
            Liveness::Late => Some(&mut self.late),
            Liveness::Lost => None,
        }
    }
}

#[cfg(test)]
mod tests;
