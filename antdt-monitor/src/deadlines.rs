//! Every deadline of a job, derived from how long its steps take and from the interval of its heartbeats.
//!
//! The monitor, which gets the heartbeats of all nodes, finds most faults. All others wait longer than the
//! monitor does, so that they are told of a fault instead of guessing:
//!
//! ```text
//! heartbeat < late < lost      a node is not heard of
//!      step < stalled < hung   a worker does not get on
//!       lost, hung < peer      a worker waits for another one
//!             peer < master    a node goes on without a master
//! ```
//!
//! Each deadline is computed from the one below it, so that they are in this order for steps of any length. A
//! job of short steps has the shortest ones, which allow for pauses of a shared machine; with longer steps
//! they grow in proportion. Before the first step the duration of steps is unknown, and the deadlines are
//! those of long steps; but a node without a master exits as early as with short steps, because no work is
//! lost yet.
//!
//! A limit that the user sets is not changed. [`Deadlines::faults`] returns the pairs that are then in the
//! wrong order.

use std::fmt;
use std::time::Duration;

use crate::config::MonitorConfig;

/// Shortest wait for another worker: a shared machine may hold one up for seconds, and to break a group up costs a step.
const PEER_LEAST: Duration = Duration::from_secs(30);

/// Shortest time that a node goes on without a master: for a person, or a process in waiting, to start another one.
const MASTER_LEAST: Duration = Duration::from_secs(60);

/// Longest waits that nodes themselves observe. `None` lets the wait follow the duration of the job's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WaitConfig {
    /// Longest wait for another worker within one collective call.
    #[cfg_attr(feature = "serde", serde(default))]
    pub peer: Option<Duration>,
    /// Time without an answer of the master after which a node exits.
    #[cfg_attr(feature = "serde", serde(default))]
    pub master: Option<Duration>,
}

/// The deadlines of a job, derived from its settings and the usual duration of its steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// Usual duration of a step; `None` before the first.
    pub step: Option<Duration>,
    /// Interval at which a node sends heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a node counts as late.
    pub late: Duration,
    /// Silence after which a node counts as lost and is replaced.
    pub lost: Duration,
    /// Time without progress after which a worker is reported as stalled.
    pub stalled: Duration,
    /// Time without progress after which a worker counts as hung and is replaced.
    pub hung: Duration,
    /// Longest wait for another worker within one collective call.
    pub peer: Duration,
    /// Time without an answer of the master after which a node exits.
    pub master: Duration,
}

impl Deadlines {
    /// Derives all deadlines from the settings. `step` is the usual duration of the slowest worker's steps;
    /// `None` before the first one.
    pub fn derive(config: &MonitorConfig, step: Option<Duration>) -> Self {
        let heartbeat = config.liveness.interval;
        let (late, lost) = config.liveness.limits(step.unwrap_or(Duration::MAX));
        let (stalled, hung) = config.hang.limits(step);
        // The news of what the monitor found takes a heartbeat; the margin is what a silent node is given.
        let longer = |found: Duration| found.saturating_add(lost).saturating_add(heartbeat);
        let peer = config.wait.peer.unwrap_or_else(|| PEER_LEAST.max(longer(hung.max(lost))));
        let master = config.wait.master.unwrap_or_else(|| match step {
            Some(_) => MASTER_LEAST.max(longer(peer)),
            None => MASTER_LEAST.max(longer(lost)),
        });
        Self { step, heartbeat, late, lost, stalled, hung, peer, master }
    }

    /// Returns all deadlines with their names, from `heartbeat` to `master`.
    pub const fn list(&self) -> [Deadline; 7] {
        [
            Deadline { name: "heartbeat", limit: self.heartbeat, what: "interval of a node's heartbeats" },
            Deadline { name: "late", limit: self.late, what: "silence after which a node is noted" },
            Deadline {
                name: "lost",
                limit: self.lost,
                what: "silence after which a node is ended and replaced",
            },
            Deadline {
                name: "stalled",
                limit: self.stalled,
                what: "time without progress after which a worker is noted",
            },
            Deadline {
                name: "hung",
                limit: self.hung,
                what: "time without progress after which a worker is ended and replaced",
            },
            Deadline {
                name: "peer",
                limit: self.peer,
                what: "longest wait for another worker in one collective call",
            },
            Deadline {
                name: "master",
                limit: self.master,
                what: "time without a master after which a node exits",
            },
        ]
    }

    /// Returns the pairs of deadlines of which the first must be shorter than the second. Once the duration
    /// of steps is known, a node's wait for the master must also exceed its wait for another worker.
    pub fn order(&self) -> Vec<(Deadline, Deadline)> {
        let [heartbeat, late, lost, stalled, hung, peer, master] = self.list();
        let mut order = vec![
            (heartbeat, late),
            (late, lost),
            (stalled, hung),
            (lost, peer),
            (hung, peer),
            (lost, master),
        ];
        if let Some(step) = self.step {
            let step = Deadline { name: "step", limit: step, what: "usual duration of a step" };
            order.insert(2, (step, stalled));
            order.push((peer, master));
        }
        order
    }

    /// Returns the pairs of deadlines of which the first must be shorter than the second but is not, because of limits that the user
    /// has set.
    pub fn faults(&self) -> Vec<(Deadline, Deadline)> {
        self.order().into_iter().filter(|(below, above)| below.limit >= above.limit).collect()
    }
}

/// A deadline of a job, with its name and meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// Name of the deadline in one word, such as `lost`.
    pub name: &'static str,
    /// Length of the deadline.
    pub limit: Duration,
    /// Description of what the deadline limits, for reports.
    pub what: &'static str,
}

impl fmt::Display for Deadline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.name, self.limit)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hang::HangConfig;
    use crate::liveness::LivenessConfig;

    fn config(heartbeat: Duration) -> MonitorConfig {
        MonitorConfig { liveness: LivenessConfig::of_heartbeat(heartbeat), ..MonitorConfig::default() }
    }

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    proptest! {
        /// Steps from a microsecond to a day, heartbeats from a millisecond to an hour, hang limits from the least one on.
        #[test]
        fn the_deadlines_are_in_order_for_steps_of_any_length(
            step in prop_oneof![Just(None), (0.0..11.0_f64).prop_map(|tens| Some(Duration::from_secs_f64(10_f64.powf(tens - 6.0))))],
            heartbeat in 1..3_600_000_u64,
            hang in 1_000..604_800_000_u64,
        ) {
            let config = MonitorConfig { hang: HangConfig { limit: ms(hang) }, ..config(ms(heartbeat)) };
            config.validate().unwrap();
            let deadlines = Deadlines::derive(&config, step);
            prop_assert_eq!(deadlines.faults(), vec![], "{:?}", deadlines);
            // Longer steps have no shorter deadline.
            let longer = Deadlines::derive(&config, step.map(|step| step + step / 8));
            for (now, then) in deadlines.list().iter().zip(longer.list()) {
                prop_assert!(now.limit <= then.limit, "{now} and {then}");
            }
        }
    }

    #[test]
    fn short_steps_have_the_shortest_deadlines_and_long_ones_grow_with_the_steps() {
        let at = |step| {
            let Deadlines { late, lost, stalled, hung, peer, master, .. } =
                Deadlines::derive(&config(ms(500)), step);
            [late, lost, stalled, hung, peer, master].map(|limit| limit.as_millis())
        };
        assert_eq!(at(Some(ms(10))), [875, 1_750, 1_200, 3_000, 30_000, 60_000]);
        assert_eq!(at(Some(ms(100))), at(Some(ms(10))));
        assert_eq!(at(Some(ms(1_000))), [5_250, 10_500, 3_000, 12_000, 30_000, 60_000]);
        assert_eq!(at(Some(ms(10_000))), [5_250, 10_500, 30_000, 120_000, 131_000, 142_000]);
        assert_eq!(at(Some(ms(600_000))), [5_250, 10_500, 1_800_000, 7_200_000, 7_211_000, 7_222_000]);
        assert_eq!(at(None), [5_250, 10_500, 480_000, 1_200_000, 1_211_000, 60_000], "before the first step");
    }

    #[test]
    fn a_limit_of_the_users_is_taken_and_said_to_be_out_of_order() {
        let wait = WaitConfig { peer: Some(ms(2_000)), master: None };
        let deadlines = Deadlines::derive(&MonitorConfig { wait, ..config(ms(500)) }, Some(ms(100)));
        assert_eq!(deadlines.peer, ms(2_000));
        let faults: Vec<_> = deadlines.faults().iter().map(|(a, b)| (a.name, b.name)).collect();
        assert_eq!(faults, [("hung", "peer")]);
    }
}
