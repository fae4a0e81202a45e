//! [`LinkWatch`]: finds connections between nodes that are slower than the others.
//!
//! Nodes say what went to each of their peers, and how long the network took for it ([`LinkReport`]). A link is judged on its time **per
//! byte**, which a slow node does not change: the time in which a sender has nothing to send, or a receiver has no room, is no part of it.
//!
//! A link's ratio is the median of its newest [`WINDOW`] reports over the lower median of all links that carry at most [`BYTES_FACTOR`] times
//! its bytes, itself included. Links that carry less take longer per byte, if anything, because of what every message costs besides its
//! bytes: a ratio to them is never too large. Links within a host are compared with each other, and links between hosts are.
//!
//! | verdict | given | taken back |
//! |---|---|---|
//! | slow | ratio ≥ [`SLOW`], more than noise explains, and the link takes at least [`SHARE`] of its sender's time beyond the usual | ratio or share below [`HYSTERESIS`] times its threshold |
//!
//! With two links the slower one is measured against the faster one. All links that are equally slow are none. What noise explains follows from
//! the differences of neighbouring reports, as for nodes (`chance`); their median is what is taken for noise, so that the change that is to be
//! found adds nothing to it.
//!
//! Tried and rejected: a threshold of 1.3x, as for nodes. Links of one cluster that go through different switches differ by more, and
//! nothing can be done about it.
//!
//! Source: our design.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use antdt_core::{JobTime, LinkReport, NodeId};

use crate::chance::ratio_by_chance;
use crate::stats::lower_median_of;
use crate::window::SampleTime;

/// Reports of a link that it is judged by. 8: at two reports a second a link that becomes slow is found after two or three seconds.
pub const WINDOW: usize = 8;

/// Reports before the first verdict.
const LEAST: usize = 4;

/// Ratio from which on a link is slow.
pub const SLOW: f64 = 2.0;

/// Share of the sender's time that a slow link takes at least beyond the usual: less is not worth a line.
pub const SHARE: f64 = 0.02;

/// Fraction of its thresholds at which a verdict is taken back, as for nodes.
pub const HYSTERESIS: f64 = 0.9;

/// Links that carry more than so many times the bytes of a link are none of its peers.
pub const BYTES_FACTOR: u64 = 2;

/// Links that must be known for a reference, the judged one included.
const PEERS_MIN: usize = 2;

/// Added to the time of every report. 10 ms: the system counts the time of a connection in ticks of 1 to 10 ms, so that a report may be wrong
/// by one; a ratio is then rather too small.
const TICK: Duration = Duration::from_millis(10);

/// A link of which nothing was heard for so many windows, and for [`FORGET`], is none any more.
const FORGET_WINDOWS: u32 = 4;

/// Shortest silence after which a link is forgotten.
const FORGET: Duration = Duration::from_secs(30);

/// A report of a longer time is one of a broken clock.
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);

/// Links of one sender that are watched; further ones are not. 32 is more than any algorithm with logarithmically many peers
/// has, and bounds the memory.
const LINKS_MAX: usize = 32;

/// A median difference of neighbours over the standard deviation of one report, if the noise is normal: 0.6745 times the square root of 2.
const MEDIAN_DIFFERENCE: f64 = 0.953_9;

/// A connection that is slower than the others.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct LinkVerdict {
    /// Node that sends.
    pub from: NodeId,
    /// Node that receives.
    pub to: NodeId,
    /// Time per byte divided by that of the link's peers.
    pub ratio: f64,
    /// Bytes per second while bytes are on their way.
    pub bytes_per_second: f64,
    /// Bytes per second of the link's peers.
    pub usual_bytes_per_second: f64,
    /// Share of the sender's time that the link takes beyond the usual, 0 to 1. What is sent while the sender
    /// computes costs less than that.
    pub share: f64,
    /// Approximate time at which the link became slow.
    pub since: JobTime,
    /// Number of reports that the verdict is based on.
    pub reports: u32,
}

/// A change of the verdict on a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LinkChange {
    /// The link has become slower than its peers.
    Slow(LinkVerdict),
    /// The link is slow no longer, or there is nothing to compare it with any more.
    Recovered {
        /// Node that sends.
        from: NodeId,
        /// Node that receives.
        to: NodeId,
    },
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    began: JobTime,
    at: JobTime,
    bytes: u64,
    time: Duration,
}

impl Sample {
    fn pace(&self) -> SampleTime {
        SampleTime::of(self.time + TICK, self.bytes).unwrap_or_default()
    }
}

#[derive(Debug)]
struct Link {
    /// Whether both ends are on one host.
    within: bool,
    last: JobTime,
    samples: VecDeque<Sample>,
    slow: Option<LinkVerdict>,
}

impl Link {
    fn pace(&self) -> SampleTime {
        lower_median_of(WINDOW, self.samples.iter().map(Sample::pace)).unwrap_or_default()
    }

    fn bytes(&self) -> u64 {
        lower_median_of(WINDOW, self.samples.iter().map(|it| it.bytes)).unwrap_or_default()
    }

    /// Time that the reports are about.
    fn window(&self) -> Duration {
        let ends = self.samples.front().zip(self.samples.back());
        ends.map_or(Duration::ZERO, |(first, last)| last.at.since(first.began))
    }

    /// Logarithms of the changes from one report to the next, without their signs.
    fn changes(&self) -> impl Iterator<Item = f64> {
        let pairs = self.samples.iter().zip(self.samples.iter().skip(1));
        pairs.map(|(one, next)| ratio(next.pace(), one.pace()).ln().abs())
    }

    /// Share of the sender's time that the link takes beyond this time per byte.
    fn share(&self, usual: SampleTime) -> f64 {
        let beyond = |it: &Sample| {
            let usual = usual.0 as f64 * it.bytes as f64 * 1e-12;
            ((it.time + TICK).as_secs_f64() - usual).max(0.0)
        };
        let window = self.window().as_secs_f64();
        if window > 0.0 { self.samples.iter().map(beyond).sum::<f64>() / window } else { 0.0 }
    }

    /// Since when every report has shown at least this ratio.
    fn since(&self, usual: SampleTime) -> JobTime {
        let slow = self.samples.iter().rev().take_while(|it| ratio(it.pace(), usual) >= SLOW);
        slow.last().map_or(self.last, |it| it.began)
    }
}

fn ratio(of: SampleTime, over: SampleTime) -> f64 {
    of.0 as f64 / over.0.max(1) as f64
}

fn per_second(pace: SampleTime) -> f64 {
    1e12 / pace.0.max(1) as f64
}

/// What is compared of a link.
#[derive(Debug, Clone, Copy)]
struct Known {
    key: (NodeId, NodeId),
    bytes: u64,
    pace: SampleTime,
}

/// Judges the directed connections between nodes from reports of what went over them. It takes no action itself.
///
/// Memory is bounded per node: [`WINDOW`] reports for each of at most 32 peers.
#[derive(Debug, Default)]
pub struct LinkWatch {
    links: BTreeMap<(NodeId, NodeId), Link>,
    /// Reports since the last verdict.
    fresh: usize,
}

impl LinkWatch {
    /// Records what went from a node to one of its peers, and returns the changes of verdicts. `within` tells
    /// whether both are on one host. Verdicts are given once for as many reports as there are links.
    pub fn reported(
        &mut self,
        now: JobTime,
        from: NodeId,
        within: bool,
        report: &LinkReport,
    ) -> Vec<LinkChange> {
        if report.bytes == 0 || report.time > TIME_MAX || report.to == from {
            return Vec::new();
        }
        let key = (from, report.to);
        let Some(link) = self.links.get_mut(&key) else {
            // The first report has the connection's beginning in it, whose time is unknown.
            if self.of(from).count() < LINKS_MAX {
                let link = Link { within, last: now, samples: VecDeque::new(), slow: None };
                self.links.insert(key, link);
            }
            return Vec::new();
        };
        if link.samples.len() == WINDOW {
            link.samples.pop_front();
        }
        let (bytes, time) = (report.bytes, report.time);
        link.samples.push_back(Sample { began: link.last, at: now, bytes, time });
        (link.within, link.last) = (within, now);
        self.fresh += 1;
        if self.fresh < self.links.len() {
            return Vec::new();
        }
        self.fresh = 0;
        self.judge(now)
    }

    /// Forgets the links of a node that has ended, and returns those that were slow.
    pub fn forget(&mut self, node: NodeId) -> Vec<LinkChange> {
        self.drop_where(|(from, to), _| *from == node || *to == node)
    }

    /// Returns the slow links, ordered by their nodes.
    pub fn slow(&self) -> impl Iterator<Item = &LinkVerdict> {
        self.links.values().filter_map(|link| link.slow.as_ref())
    }

    fn of(&self, from: NodeId) -> impl Iterator<Item = &Link> {
        let of =
            self.links.range((from, NodeId::worker(0))..).take_while(move |((node, _), _)| *node == from);
        of.map(|(_, link)| link)
    }

    fn drop_where(&mut self, mut gone: impl FnMut(&(NodeId, NodeId), &Link) -> bool) -> Vec<LinkChange> {
        let mut changes = Vec::new();
        self.links.retain(|key, link| {
            let goes = gone(key, link);
            if goes && link.slow.is_some() {
                changes.push(LinkChange::Recovered { from: key.0, to: key.1 });
            }
            !goes
        });
        changes
    }

    fn judge(&mut self, now: JobTime) -> Vec<LinkChange> {
        let mut changes = self.drop_where(|_, link| {
            now.since(link.last) > FORGET.max(link.window().saturating_mul(FORGET_WINDOWS))
        });
        for within in [false, true] {
            self.judge_among(within, &mut changes);
        }
        changes
    }

    /// Judges the links within hosts, or those between hosts.
    fn judge_among(&mut self, within: bool, changes: &mut Vec<LinkChange>) {
        let all = self.links.iter().filter(|(_, link)| link.within == within && link.samples.len() >= LEAST);
        let of = |(key, link): (&(NodeId, NodeId), &Link)| Known {
            key: *key,
            bytes: link.bytes(),
            pace: link.pace(),
        };
        let mut known: Vec<Known> = all.map(of).collect();
        let (noise, differences) = self.noise(&known);
        known.sort_unstable_by_key(|it| (it.bytes, it.key));
        // Times per byte of the links that carry no more than `BYTES_FACTOR` times as much, in order.
        let (mut peers, mut taken): (Vec<SampleTime>, usize) = (Vec::new(), 0);
        for Known { key, bytes, pace } in &known {
            while let Some(next) =
                known.get(taken).filter(|next| next.bytes <= bytes.saturating_mul(BYTES_FACTOR))
            {
                peers.insert(peers.partition_point(|it| *it < next.pace), next.pace);
                taken += 1;
            }
            let usual = peers[(peers.len() - 1) / 2];
            let Some(link) = self.links.get_mut(key) else { continue };
            let reports = u32::try_from(link.samples.len()).unwrap_or(u32::MAX);
            let (ratio, share) = (ratio(*pace, usual), link.share(usual));
            let ease = if link.slow.is_some() { HYSTERESIS } else { 1.0 };
            let by_chance = ratio_by_chance(noise, differences, reports, peers.len());
            let explained = link.slow.is_none() && ratio <= by_chance;
            let is_slow =
                peers.len() >= PEERS_MIN && ratio >= SLOW * ease && share >= SHARE * ease && !explained;
            let before = link.slow;
            link.slow = is_slow.then(|| LinkVerdict {
                from: key.0,
                to: key.1,
                ratio,
                bytes_per_second: per_second(*pace),
                usual_bytes_per_second: per_second(usual),
                share,
                since: before.map_or_else(|| link.since(usual), |before| before.since),
                reports,
            });
            match (before, link.slow) {
                (None, Some(slow)) => changes.push(LinkChange::Slow(slow)),
                (Some(_), None) => changes.push(LinkChange::Recovered { from: key.0, to: key.1 }),
                (None, None) | (Some(_), Some(_)) => {}
            }
        }
    }

    /// Standard deviation of the logarithm of one report, and the number of differences that it is known from.
    fn noise(&self, known: &[Known]) -> (f64, f64) {
        let of = |it: &Known| self.links.get(&it.key).map(Link::changes);
        let mut changes: Vec<f64> = known.iter().filter_map(of).flatten().collect();
        if changes.is_empty() {
            return (0.0, 0.0);
        }
        let middle = changes.len() / 2;
        let median = *changes.select_nth_unstable_by(middle, f64::total_cmp).1;
        (median / MEDIAN_DIFFERENCE, changes.len() as f64)
    }
}

#[cfg(test)]
mod tests;
