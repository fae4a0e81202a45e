use antdt_core::{DetRng, Seed};
use proptest::prelude::*;

use super::*;

const PERIOD: Duration = Duration::from_millis(500);
const BYTES: u64 = 8 << 20;
/// Time of the bytes over a healthy link.
const TIME: f64 = 0.04;

/// A group of workers that send to each other every half second.
struct Group {
    watch: LinkWatch,
    now: JobTime,
    /// Standard deviation of the logarithm of a report.
    noise: f64,
    rng: DetRng,
    links: Vec<(u32, u32)>,
    changes: Vec<LinkChange>,
}

impl Group {
    fn of(links: Vec<(u32, u32)>, noise: f64, seed: u64) -> Self {
        let (watch, rng) = (LinkWatch::default(), Seed(seed).rng());
        Self { watch, now: JobTime::ZERO, noise, rng, links, changes: Vec::new() }
    }

    fn ring(workers: u32, noise: f64, seed: u64) -> Self {
        Self::of((0..workers).map(|worker| (worker, (worker + 1) % workers)).collect(), noise, seed)
    }

    /// Every worker reports once. `carries` is the number of bytes over a link, `slow` how many times longer each takes.
    fn beat(&mut self, carries: impl Fn(u32, u32) -> u64, slow: impl Fn(u32, u32) -> f64) {
        self.now = self.now + PERIOD;
        for (from, to) in self.links.clone() {
            let bytes = carries(from, to);
            let healthy = TIME * bytes as f64 / BYTES as f64;
            let seconds = healthy * slow(from, to) * (self.noise * self.rng.normal()).exp();
            let report = LinkReport { to: NodeId::worker(to), bytes, time: Duration::from_secs_f64(seconds) };
            let changes = self.watch.reported(self.now, NodeId::worker(from), false, &report);
            self.changes.extend(changes);
        }
    }

    fn beats(&mut self, beats: u32, slow: impl Fn(u32, u32) -> f64 + Copy) {
        (0..beats).for_each(|_| self.beat(|_, _| BYTES, slow));
    }

    fn slow(&self) -> Vec<(u32, u32)> {
        self.watch.slow().map(|link| (link.from.index, link.to.index)).collect()
    }
}

fn only(of: (u32, u32), slow: f64) -> impl Fn(u32, u32) -> f64 + Copy {
    move |from, to| if (from, to) == of { slow } else { 1.0 }
}

#[test]
fn a_slow_link_is_named_with_its_evidence_and_so_is_its_recovery() {
    let mut group = Group::ring(4, 0.1, 1);
    group.beats(20, |_, _| 1.0);
    assert_eq!((group.slow(), group.changes.len()), (vec![], 0));
    let began = group.now;
    group.beats(6, only((2, 3), 8.0));
    let [LinkChange::Slow(link)] = group.changes[..] else { panic!("{:?}", group.changes) };
    assert_eq!((link.from, link.to), (NodeId::worker(2), NodeId::worker(3)));
    // 330 ms over 50 ms, a tick each; eight healthy reports were 40 ms of 500 ms.
    assert!((4.5..8.5).contains(&link.ratio), "{link:?}");
    assert!((0.2..0.7).contains(&link.share), "{link:?}");
    assert!(link.usual_bytes_per_second > 4.0 * link.bytes_per_second, "{link:?}");
    assert!(link.since >= began && link.since <= began + PERIOD * 2, "{link:?} since {began}");
    group.beats(8, |_, _| 1.0);
    assert_eq!(group.slow(), []);
    assert!(matches!(group.changes[..], [_, LinkChange::Recovered { .. }]), "{:?}", group.changes);
}

#[test]
fn a_link_that_costs_next_to_nothing_is_not_slow() {
    let mut group = Group::ring(4, 0.0, 1);
    // 64 KiB in 0.3 ms, and in 3 ms: 0.5 % of the time.
    (0..20).for_each(|_| group.beat(|_, _| 1 << 16, only((1, 2), 10.0)));
    assert_eq!(group.slow(), []);
}

#[test]
fn a_verdict_holds_down_to_nine_tenths_of_its_threshold() {
    let mut group = Group::ring(4, 0.0, 1);
    group.beats(10, only((0, 1), 2.3));
    // (0.092 + 0.01) / (0.04 + 0.01)
    assert_eq!(group.slow(), [(0, 1)]);
    group.beats(10, only((0, 1), 2.1));
    assert_eq!(group.slow(), [(0, 1)], "1.88x");
    group.beats(10, only((0, 1), 1.9));
    assert_eq!(group.slow(), [], "1.72x");
    group.beats(10, only((0, 1), 2.1));
    assert_eq!(group.slow(), [], "1.88x");
}

#[test]
fn of_two_links_the_slower_one_is_named_and_of_two_alike_none() {
    let mut group = Group::ring(2, 0.05, 1);
    group.beats(10, only((1, 0), 6.0));
    assert_eq!(group.slow(), [(1, 0)]);
    let mut group = Group::ring(2, 0.05, 1);
    group.beats(10, |_, _| 6.0);
    assert_eq!(group.slow(), []);
}

#[test]
fn a_slow_card_makes_both_links_of_its_host_slow_and_no_other() {
    let mut group = Group::ring(8, 0.1, 3);
    group.beats(10, |from, to| if from == 5 || to == 5 { 5.0 } else { 1.0 });
    assert_eq!(group.slow(), [(4, 5), (5, 6)]);
}

#[test]
fn messages_of_different_lengths_are_not_held_against_each_other() {
    // Every exchange takes 20 ms besides its bytes: with an eighth of the bytes that is five times the time per byte.
    let links =
        vec![(0, 1), (0, 2), (0, 4), (1, 0), (1, 3), (1, 5), (2, 3), (2, 0), (2, 6), (3, 2), (3, 1), (3, 7)];
    let mut group = Group::of(links, 0.05, 1);
    let carries = |from: u32, to: u32| BYTES / 2 / u64::from(from.abs_diff(to)).pow(2);
    let fixed = |from: u32, to: u32| 1.0 + 0.02 / (TIME * carries(from, to) as f64 / BYTES as f64);
    (0..20).for_each(|_| group.beat(carries, fixed));
    assert_eq!(group.slow(), []);
    (0..10).for_each(|_| group.beat(carries, |from, to| fixed(from, to) * only((1, 5), 8.0)(from, to)));
    assert_eq!(group.slow(), [(1, 5)]);
}

#[test]
fn links_within_a_host_are_not_held_against_those_between_hosts() {
    let mut watch = LinkWatch::default();
    let mut now = JobTime::ZERO;
    for _ in 0..20 {
        now = now + PERIOD;
        for from in 0..8_u32 {
            let (to, within) = ((from + 1) % 8, from % 2 == 0);
            let time = Duration::from_millis(if within { 5 } else { 100 });
            let report = LinkReport { to: NodeId::worker(to), bytes: BYTES, time };
            assert_eq!(watch.reported(now, NodeId::worker(from), within, &report), []);
        }
    }
}

#[test]
fn a_node_that_ended_and_a_link_that_is_not_used_any_more_are_forgotten() {
    let mut group = Group::ring(4, 0.0, 1);
    group.beats(10, only((0, 1), 6.0));
    assert_eq!(group.slow(), [(0, 1)]);
    let gone = LinkChange::Recovered { from: NodeId::worker(0), to: NodeId::worker(1) };
    assert_eq!(group.watch.forget(NodeId::worker(1)), [gone]);
    assert_eq!(group.watch.forget(NodeId::worker(1)), []);
    group.beats(10, only((0, 1), 6.0));
    assert_eq!(group.slow(), [(0, 1)], "after as many reports as at first");
    group.links = vec![(1, 2), (2, 3), (3, 0)];
    group.changes.clear();
    group.beats(70, |_, _| 1.0);
    assert_eq!((group.slow(), &group.changes[..]), (vec![], &[gone][..]));
    assert_eq!(group.watch.links.len(), 3);
}

#[test]
fn the_memory_of_a_sender_is_bounded_and_odd_reports_are_ignored() {
    let mut watch = LinkWatch::default();
    for to in 1..1000 {
        let report = LinkReport { to: NodeId::worker(to), bytes: 1, time: Duration::ZERO };
        watch.reported(JobTime(1), NodeId::worker(0), false, &report);
    }
    assert_eq!(watch.links.len(), LINKS_MAX);
    let mut watch = LinkWatch::default();
    let (to, time) = (NodeId::worker(1), Duration::ZERO);
    for (from, report) in [
        (0, LinkReport { to, bytes: 0, time }),
        (0, LinkReport { to, bytes: 1, time: Duration::MAX }),
        (1, LinkReport { to, bytes: 1, time }),
    ] {
        assert_eq!(watch.reported(JobTime(1), NodeId::worker(from), false, &report), []);
    }
    assert!(watch.links.is_empty());
}

proptest! {
    /// Noise gives no verdict. (At a standard deviation of 0.4 or more it does, once in some ten thousand jobs.)
    #[test]
    fn noise_is_no_slow_link(workers in 2_u32..12, noise in 0.0..0.3, seed: u64) {
        let mut group = Group::ring(workers, noise, seed);
        group.beats(60, |_, _| 1.0);
        prop_assert_eq!(&group.changes, &[]);
    }

    /// All that is slow together is slow for another reason than one link.
    #[test]
    fn links_that_are_all_slow_are_none(workers in 2_u32..12, slow in 1.0..50.0, seed: u64) {
        let mut group = Group::ring(workers, 0.1, seed);
        group.beats(12, |_, _| 1.0);
        group.beats(12, |_, _| slow);
        prop_assert_eq!(&group.changes, &[]);
    }

    /// A slow node sends less often, and so do those that wait for it; the network takes no longer for a byte.
    #[test]
    fn a_slow_node_is_no_slow_link(workers in 2_u32..12, slow in 2_u64..20, seed: u64, alone: bool) {
        let mut group = Group::ring(workers, 0.1, seed);
        group.beats(12, |_, _| 1.0);
        let carries = |from: u32, _: u32| if !alone || from == 0 { BYTES / slow } else { BYTES };
        (0..20).for_each(|_| group.beat(carries, |_, _| 1.0));
        prop_assert_eq!(&group.changes, &[]);
    }

    /// One slow link is found within a window, and no other is called slow. Noise of more than a tenth explains five times
    /// the time per byte now and then, where there are but two links.
    #[test]
    fn a_slow_link_is_found_alone(
        workers in 2_u32..12, noise in 0.0..0.1, slow in 5.0..20.0, at in 0_u32..12, seed: u64,
    ) {
        let mut group = Group::ring(workers, noise, seed);
        group.beats(12, |_, _| 1.0);
        let link = (at % workers, (at + 1) % workers);
        group.beats(u32::try_from(WINDOW).unwrap() + 1, only(link, slow));
        prop_assert_eq!(group.slow(), [link]);
        prop_assert_eq!(group.changes.len(), 1);
    }

    /// Renaming the nodes renames the verdicts.
    #[test]
    fn a_permutation_of_the_nodes_permutes_the_verdicts(seed: u64, shift in 1_u32..8) {
        let of = |shift: u32| {
            let mut group = Group::ring(8, 0.0, seed);
            let unshifted = |node: u32| (node + 8 - shift) % 8;
            group.beats(12, |from, to| only((2, 3), 6.0)(unshifted(from), unshifted(to)));
            group.slow()
        };
        let moved: Vec<(u32, u32)> = of(0).into_iter().map(|(a, b)| ((a + shift) % 8, (b + shift) % 8)).collect();
        prop_assert_eq!(of(shift % 8), moved);
    }
}
