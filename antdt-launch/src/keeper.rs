//! [`HostKeeper`]: which hosts of a job are started, and which starts have come to nothing. Pure: it is told what happens and the time.
//!
//! A host is there while its program is connected to the job's gate. One that stays away is started again, ever later if the starts are in
//! vain. What starts it, a step of a batch system or a pod of a cluster, says how the start goes: it may wait in a queue for days, and
//! may know that the program has ended before the gate misses it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Pause between two starts of one host, which doubles with each in vain, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// How long a host has to be there for its next start to need no pause: one that fails as soon as it is there must not be started in a
/// tight loop.
const STEADY: Duration = Duration::from_secs(5);

/// How long the keeper waits before it acts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeeperLimits {
    /// How long a host may be away before it is started, if nothing says that its program has ended: it comes back by itself if only its
    /// connection broke.
    pub patience: Duration,
    /// How long a program may run until its host is there.
    pub start: Duration,
    /// How long a host that was there may be away although its program is said to run.
    pub away: Duration,
}

impl Default for KeeperLimits {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(2),
            start: Duration::from_secs(60),
            away: Duration::from_secs(60),
        }
    }
}

/// What is to be done for a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeeperOrder {
    /// Start the program on this host.
    Start(String),
    /// Stop what was started for this host: it has come to nothing in time.
    Stop(String),
}

/// A host of the job.
#[derive(Debug, Default)]
struct Kept {
    /// Since when it is away.
    away: Option<Duration>,
    /// Whether its program is known not to run, so that there is nothing to be patient for.
    is_dead: bool,
    /// Starts since it was there last.
    in_vain: u32,
    /// It is not started before then.
    not_before: Duration,
    /// The start that is under way, or that has brought it.
    start: Option<Start>,
}

#[derive(Debug, Clone, Copy)]
struct Start {
    /// Since when the program runs, as far as is known.
    since: Duration,
    /// Whether the program waits for its turn.
    is_queued: bool,
    /// Since when the host is there.
    there: Option<Duration>,
    is_stopped: bool,
}

impl Start {
    const fn at(now: Duration) -> Self {
        Self { since: now, is_queued: false, there: None, is_stopped: false }
    }
}

/// See the module.
#[derive(Debug)]
pub struct HostKeeper {
    limits: KeeperLimits,
    hosts: BTreeMap<String, Kept>,
}

impl HostKeeper {
    /// Returns a keeper of hosts that come by themselves for the first time.
    pub fn of_guests(limits: KeeperLimits, hosts: impl IntoIterator<Item = String>) -> Self {
        let hosts = hosts.into_iter().map(|name| (name, Kept::default())).collect();
        Self { limits, hosts }
    }

    /// Returns a keeper of hosts none of which comes unless it is started.
    pub fn of_all(limits: KeeperLimits, hosts: impl IntoIterator<Item = String>) -> Self {
        let kept = || Kept { is_dead: true, ..Kept::default() };
        Self { limits, hosts: hosts.into_iter().map(|name| (name, kept())).collect() }
    }

    /// Looks at which hosts are there.
    pub fn look(&mut self, now: Duration, there: &BTreeSet<String>) -> Vec<KeeperOrder> {
        let mut orders = Vec::new();
        for (name, host) in &mut self.hosts {
            if there.contains(name) {
                host.is_there(now);
                continue;
            }
            let away = *host.away.get_or_insert(now);
            match &mut host.start {
                Some(start) if start.is_over(now, away, self.limits) => {
                    start.is_stopped = true;
                    orders.push(KeeperOrder::Stop(name.clone()));
                }
                None if (host.is_dead || now.saturating_sub(away) >= self.limits.patience)
                    && now >= host.not_before =>
                {
                    (host.start, host.is_dead) = (Some(Start::at(now)), false);
                    orders.push(KeeperOrder::Start(name.clone()));
                }
                Some(_) | None => {}
            }
        }
        orders
    }

    /// The start of a host waits for its turn: the limits do not count meanwhile.
    pub fn waits(&mut self, now: Duration, name: &str) {
        if let Some(host) = self.hosts.get_mut(name) {
            host.start.get_or_insert(Start::at(now)).is_queued = true;
        }
    }

    /// The program of a host runs from now on.
    pub fn runs(&mut self, now: Duration, name: &str) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        let start = host.start.get_or_insert(Start::at(now));
        if std::mem::take(&mut start.is_queued) {
            start.since = now;
        }
    }

    /// What was started for a host has ended. `is_dead` says that its program does not run anywhere else either.
    pub fn ended(&mut self, now: Duration, name: &str, is_dead: bool) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        let there = host.start.take().and_then(|start| start.there);
        let was_steady = there.is_some_and(|since| now.saturating_sub(since) >= STEADY);
        let (least, most) = PAUSE;
        let pause = most.min(least * 2_u32.saturating_pow(host.in_vain.min(9)));
        host.not_before = if was_steady { now } else { now + pause };
        host.in_vain += 1;
        host.is_dead = is_dead;
    }
}

impl Kept {
    fn is_there(&mut self, now: Duration) {
        (self.away, self.in_vain, self.is_dead) = (None, 0, false);
        if let Some(start) = &mut self.start {
            start.there.get_or_insert(now);
            start.is_queued = false;
        }
    }
}

impl Start {
    /// Whether the host has been away for too long since then.
    fn is_over(&self, now: Duration, away: Duration, limits: KeeperLimits) -> bool {
        let limit = if self.there.is_some() { limits.away } else { limits.start };
        !self.is_queued && !self.is_stopped && now.saturating_sub(self.since.max(away)) >= limit
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits() -> KeeperLimits {
        KeeperLimits::default()
    }

    fn start(name: &str) -> Vec<KeeperOrder> {
        vec![KeeperOrder::Start(name.to_owned())]
    }

    fn stop(name: &str) -> Vec<KeeperOrder> {
        vec![KeeperOrder::Stop(name.to_owned())]
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn host_that_stays_away_is_started_and_one_that_comes_back_is_not() {
        let patience = limits().patience;
        let mut keeper = HostKeeper::of_guests(limits(), set(&["a", "b"]));
        assert_eq!(keeper.look(SECOND, &set(&["a", "b"])), []);
        assert_eq!(keeper.look(2 * SECOND, &set(&["a"])), []);
        assert_eq!(keeper.look(3 * SECOND, &set(&["a", "b"])), []);
        assert_eq!(keeper.look(4 * SECOND, &set(&["a"])), []);
        assert_eq!(keeper.look(4 * SECOND + patience, &set(&["a"])), start("b"));
        assert_eq!(keeper.look(5 * SECOND + patience, &set(&["a"])), [], "one at a time");
        assert_eq!(keeper.look(6 * SECOND + patience, &set(&["a", "b"])), []);
    }

    #[test]
    fn starts_in_vain_follow_each_other_ever_later_and_one_that_hangs_is_stopped() {
        let (mut keeper, patience) = (HostKeeper::of_guests(limits(), set(&["a"])), limits().patience);
        let (mut now, mut pauses) = (Duration::ZERO, Vec::new());
        let mut ended = now;
        for _ in 0..8 {
            while keeper.look(now, &set(&[])).is_empty() {
                now += SECOND;
            }
            pauses.push((now - ended).as_secs());
            ended = now + SECOND;
            keeper.ended(ended, "a", false);
            now = ended;
        }
        assert_eq!(pauses, [2, 2, 4, 8, 16, 32, 60, 60]);
        while keeper.look(now, &set(&[])).is_empty() {
            now += SECOND;
        }
        assert_eq!(keeper.look(now + limits().start, &set(&[])), stop("a"));
        assert_eq!(keeper.look(now + limits().start + SECOND, &set(&[])), [], "it is told once");
        // Once it was there, it is helped at once again.
        now += limits().start + SECOND;
        keeper.look(now, &set(&["a"]));
        keeper.ended(now, "a", false);
        now += patience;
        assert_eq!(keeper.look(now, &set(&[])), []);
        assert_eq!(keeper.look(now + patience, &set(&[])), start("a"));
    }

    #[test]
    fn host_whose_program_is_known_to_have_ended_is_started_at_once_unless_it_fails_as_soon_as_it_is_there() {
        let mut keeper = HostKeeper::of_all(limits(), set(&["a"]));
        assert_eq!(keeper.look(Duration::ZERO, &set(&[])), start("a"), "nobody else starts it");
        keeper.look(SECOND, &set(&["a"]));
        let ended = SECOND + STEADY;
        keeper.ended(ended, "a", true);
        assert_eq!(keeper.look(ended, &set(&[])), start("a"));
        keeper.look(ended, &set(&["a"]));
        keeper.ended(ended + SECOND, "a", true);
        assert_eq!(keeper.look(ended + SECOND, &set(&[])), []);
        assert_eq!(keeper.look(ended + SECOND + PAUSE.0, &set(&[])), start("a"));
    }

    #[test]
    fn start_that_waits_in_a_queue_has_no_limit_until_it_runs() {
        let mut keeper = HostKeeper::of_all(limits(), set(&["a"]));
        assert_eq!(keeper.look(Duration::ZERO, &set(&[])), start("a"));
        keeper.waits(SECOND, "a");
        let day = 86_400 * SECOND;
        assert_eq!(keeper.look(day, &set(&[])), []);
        keeper.runs(day, "a");
        keeper.runs(day + SECOND, "a");
        assert_eq!(keeper.look(day + limits().start, &set(&[])), stop("a"));
    }

    #[test]
    fn host_that_was_there_for_long_may_lose_its_connection_for_a_while() {
        let limits = KeeperLimits { away: 9 * SECOND, ..limits() };
        let mut keeper = HostKeeper::of_all(limits, set(&["a"]));
        keeper.look(Duration::ZERO, &set(&[]));
        let hour = 3_600 * SECOND;
        keeper.look(hour, &set(&["a"]));
        assert_eq!(keeper.look(2 * hour, &set(&[])), []);
        assert_eq!(keeper.look(2 * hour + 8 * SECOND, &set(&[])), []);
        assert_eq!(keeper.look(2 * hour + limits.away, &set(&[])), stop("a"));
        // What another master has started is as good as what this one has.
        let mut next = HostKeeper::of_all(limits, set(&["a"]));
        next.runs(Duration::ZERO, "a");
        assert_eq!(next.look(SECOND, &set(&[])), []);
    }

    proptest! {
        /// In whatever order things happen, a host has one start at a time, and after it was away for long enough it has one.
        #[test]
        fn host_has_one_start_at_a_time_and_is_never_forgotten(
            steps in proptest::collection::vec((0_u8..6, 0_u32..4), 1..80),
        ) {
            let mut keeper = HostKeeper::of_all(limits(), set(&["a"]));
            let (mut now, mut runs) = (Duration::ZERO, false);
            for (step, pause) in steps {
                now += pause * SECOND;
                match step {
                    0 => keeper.waits(now, "a"),
                    1 => keeper.runs(now, "a"),
                    2 | 3 => {
                        keeper.ended(now, "a", step == 2);
                        runs = false;
                    }
                    _ => {}
                }
                runs |= step < 2;
                let there = if step == 4 { set(&["a"]) } else { set(&[]) };
                for order in keeper.look(now, &there) {
                    match order {
                        KeeperOrder::Start(_) => prop_assert!(!std::mem::replace(&mut runs, true)),
                        KeeperOrder::Stop(_) => prop_assert!(runs),
                    }
                }
            }
            if runs {
                keeper.ended(now, "a", false);
            }
            let later = now + PAUSE.1 + limits().patience;
            keeper.look(now, &set(&[]));
            let orders = [now + limits().patience, later].map(|now| keeper.look(now, &set(&[])));
            prop_assert!(orders.concat().contains(&KeeperOrder::Start("a".to_owned())) || keeper.hosts["a"].start.is_some());
        }
    }
}
