//! Who is silent: heartbeats on time, late, or lost.

use std::collections::BTreeMap;
use std::time::Duration;

use antdt_core::{Holder, InvalidValue, JobTime};

/// When a silent node counts as late and as lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LivenessConfig {
    /// How often a node is asked to be heard of. 5 s: a lost message is repaired within that time.
    pub interval: Duration,
    /// Silence after which a node is late. 15 s: two heartbeats may be lost.
    pub late_after: Duration,
    /// Silence after which a node is lost and fenced. 30 s: longer than a garbage collection or a stalled disk; a
    /// process that really died is noticed through its exit, at once.
    pub lost_after: Duration,
}

impl LivenessConfig {
    /// Checks that the three are in order.
    ///
    /// # Errors
    /// The first value that is not above the one before it.
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
        Ok(())
    }
}

impl Default for LivenessConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(5),
            late_after: Duration::from_secs(15),
            lost_after: Duration::from_secs(30),
        }
    }
}

/// Whether a node is being heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Liveness {
    /// Heard of within `late_after`.
    OnTime,
    /// Silent for `late_after`.
    Late,
    /// Silent for `lost_after`. Final: a life that is heard of again later is a zombie and stays lost.
    Lost,
}

#[derive(Debug, Clone, Copy)]
struct Pulse {
    last: JobTime,
    state: Liveness,
}

/// Remembers when each life was last heard of.
#[derive(Debug, Clone)]
pub struct LivenessTracker {
    config: LivenessConfig,
    pulses: BTreeMap<Holder, Pulse>,
}

impl LivenessTracker {
    /// Watches nobody yet.
    pub const fn new(config: LivenessConfig) -> Self {
        Self { config, pulses: BTreeMap::new() }
    }

    /// Starts watching a life.
    pub fn watch(&mut self, now: JobTime, holder: Holder) {
        self.pulses.insert(holder, Pulse { last: now, state: Liveness::OnTime });
    }

    /// Stops watching a life.
    pub fn forget(&mut self, holder: Holder) {
        self.pulses.remove(&holder);
    }

    /// A life was heard of. Returns the state it has now; `None` if it is not watched.
    pub fn heard(&mut self, now: JobTime, holder: Holder) -> Option<Liveness> {
        let pulse = self.pulses.get_mut(&holder)?;
        if pulse.state != Liveness::Lost {
            *pulse = Pulse { last: now.max(pulse.last), state: Liveness::OnTime };
        }
        Some(pulse.state)
    }

    /// The state of a life at the last check; `None` if it is not watched.
    pub fn state(&self, holder: Holder) -> Option<Liveness> {
        self.pulses.get(&holder).map(|pulse| pulse.state)
    }

    /// When [`check`](Self::check) can next find something.
    pub fn deadline(&self) -> Option<JobTime> {
        self.pulses
            .values()
            .filter_map(|pulse| match pulse.state {
                Liveness::OnTime => Some(pulse.last + self.config.late_after),
                Liveness::Late => Some(pulse.last + self.config.lost_after),
                Liveness::Lost => None,
            })
            .min()
    }

    /// Says who became late or lost, in the order of their ids; each change once.
    pub fn check(&mut self, now: JobTime) -> Vec<(Holder, Liveness)> {
        let mut changes = Vec::new();
        for (holder, pulse) in &mut self.pulses {
            let silence = now.since(pulse.last);
            let state = if silence >= self.config.lost_after {
                Liveness::Lost
            } else if silence >= self.config.late_after {
                Liveness::Late
            } else {
                Liveness::OnTime
            };
            // Only `heard` makes a node better.
            if state > pulse.state {
                pulse.state = state;
                changes.push((*holder, state));
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests;
