//! Hierarchical all-reduce: the ranks of a host sum among themselves first, so that their data cross the
//! network once.
//!
//! The buffer is cut into one region per host. Inside a host the ranks sum all regions, each rank its even part of each
//! region. Host by host, those parts then go to the host that owns the region, whose ranks each hold an even part of it
//! and fold in what comes. The totals go back the same way: to a part of each rank of every other host, and from there
//! round the host. While the parts of one region travel between two hosts, the next region is summed inside both.
//!
//! With `N` hosts of `L` ranks, `α`, `B` inside a host and `αₑ`, `Bₑ` of a host's link: the hosts' part takes
//! `2(N-1)αₑ + 2(N-1)/N·S/Bₑ`, the part inside `(2N+1)α + 2(L-1)/L·S/B + (L-1)/L·Sγ`, and all but its first two and
//! last rounds run beside the hosts' part. Parts beyond [`SEGMENT_LEN`] are summed in several rounds each. A link carries
//! `2(N-1)/N·S` each way, the fewest bytes possible, whatever the sizes of the hosts, spread evenly over the host's ranks.
//! In hosts of equal size each rank talks to one rank per other host, and sends `2(N-1)/(NL)·S` across. One rank forms
//! each total, so all ranks have the same bits.
//!
//! Worth it where links between hosts are slower than memory. With a link that is fast enough, the ring does with fewer
//! rounds of fewer messages; on one host this is [`Direct`](super::Direct).
//!
//! Rejected: one leader per host, whose peers idle while it carries `L` times the bytes; the same shards on all hosts,
//! which hosts of different sizes do not have; owners that all have the same length, since the link of a host with few
//! ranks would take nearly all bytes one way and then the other; all hosts in one round, as many senders into one
//! link stand in each other's way and `N-1` parts would have to be kept before they are folded.
//!
//! Source: the hierarchical all-reduce of our specification for even hosts; regions and their parts are our design.

use antdt_core::Rank;

use super::{Algorithm, Schedule, Span, Step, push, split_even};

/// Elements of a part that are summed in one round: 1 MiB of `f32`, of which a host of `L` ranks keeps `L-1`
/// until they are folded. Far longer segments would not stay in the cache until then; each shorter one costs
/// a round.
pub const SEGMENT_LEN: usize = 256 << 10;

/// All-reduce in three phases: inside hosts, between hosts, and inside hosts again. For groups with several
/// ranks on each host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchical {
    /// The host of each rank, as any number: ranks with the same number share a host.
    pub hosts: Vec<u32>,
}

impl Hierarchical {
    /// Number of the algorithm in the headers of frames.
    pub const CODE: u8 = 16;
}

impl Algorithm for Hierarchical {
    fn name(&self) -> &'static str {
        "hierarchical"
    }

    fn code(&self) -> u8 {
        Self::CODE
    }

    /// # Panics
    /// If `hosts` has not one entry per rank.
    fn schedule(&self, me: Rank, world: u32, len: usize) -> Schedule {
        assert_eq!(self.hosts.len(), world as usize, "one host per rank");
        let layout = Layout::new(&self.hosts, len);
        let count = layout.members.len();
        let home = layout.numbers.partition_point(|number| *number < self.hosts[me.0 as usize]);
        let owned = layout.part(home, home, me);
        // The same number on all ranks, after the longest part there is; where no host has two ranks nothing is kept.
        let smallest = layout.members.iter().map(Vec::len).min().unwrap_or(1);
        let longest = if count < world as usize { layout.regions[0].len.div_ceil(smallest) } else { 0 };
        let segments = longest.div_ceil(SEGMENT_LEN).max(1);
        let mut rounds = Vec::with_capacity((count + 1) * segments + count);

        // The own region is summed first, so that what comes from other hosts finds it complete; then those that leave.
        for k in 0..if count > 1 { count + 1 } else { 1 } {
            let mut round = Vec::new();
            if k < count {
                let region = (home + k) % count;
                let mine = layout.part(region, home, me);
                for (peer, span) in layout.parts(region, home).filter(|(peer, _)| *peer != me) {
                    push(&mut round, Step::Send { to: peer, span });
                    push(&mut round, Step::RecvReduce { from: peer, span: mine });
                }
            }
            if k > 1 {
                let (to, from) = ((home + k - 1) % count, (home + count + 1 - k) % count);
                let mine = layout.part(to, home, me);
                for (peer, theirs) in layout.parts(to, to) {
                    push(&mut round, Step::Send { to: peer, span: common(mine, theirs) });
                }
                for (peer, theirs) in layout.parts(home, from) {
                    push(&mut round, Step::RecvReduce { from: peer, span: common(owned, theirs) });
                }
            }
            rounds.extend((0..segments).map(|index| segment(&round, index, segments)));
        }

        // The own region's totals go round the host while they leave for the first other one.
        for k in 0..count {
            let mut round = Vec::new();
            let region = (home + count - k) % count;
            let mine = layout.part(region, home, me);
            for (peer, span) in layout.parts(region, home).filter(|(peer, _)| *peer != me) {
                push(&mut round, Step::Send { to: peer, span: mine });
                push(&mut round, Step::RecvCopy { from: peer, span });
            }
            if k + 1 < count {
                let (to, from) = ((home + k + 1) % count, (home + count - k - 1) % count);
                let mine = layout.part(from, home, me);
                for (peer, theirs) in layout.parts(home, to) {
                    push(&mut round, Step::Send { to: peer, span: common(owned, theirs) });
                }
                for (peer, theirs) in layout.parts(from, from) {
                    push(&mut round, Step::RecvCopy { from: peer, span: common(mine, theirs) });
                }
            }
            rounds.push(round);
        }
        Schedule { rounds }
    }
}

// The place of each rank, and how the buffer is cut.
struct Layout {
    // The numbers of the hosts, ascending; below, a host is called by its place here.
    numbers: Vec<u32>,
    // The ranks of each host, ascending.
    members: Vec<Vec<Rank>>,
    // The part of the buffer whose totals a host forms.
    regions: Vec<Span>,
}

impl Layout {
    fn new(hosts: &[u32], len: usize) -> Self {
        let mut numbers = hosts.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let on = |number: u32| (0..).zip(hosts).filter(move |(_, host)| **host == number);
        let members =
            numbers.iter().map(|number| on(*number).map(|(rank, _)| Rank(rank)).collect()).collect();
        let regions = split_even(len, numbers.len());
        Self { numbers, members, regions }
    }

    // What each member of `host` sums, or hands round, of `region`.
    fn parts(&self, region: usize, host: usize) -> impl Iterator<Item = (Rank, Span)> {
        let Span { start, len } = self.regions[region];
        let parts = split_even(len, self.members[host].len()).into_iter();
        let members = self.members[host].iter().copied();
        members.zip(parts.map(move |part| Span { start: start + part.start, len: part.len }))
    }

    fn part(&self, region: usize, host: usize, member: Rank) -> Span {
        let mut parts = self.parts(region, host);
        parts.find(|(rank, _)| *rank == member).expect("each rank is asked for on its own host").1
    }
}

// One of the pieces of a round. Both ends of a message cut it alike.
fn segment(round: &[Step], index: usize, segments: usize) -> Vec<Step> {
    let mut piece = Vec::with_capacity(round.len());
    for step in round {
        let mut step = *step;
        let (Step::Send { span, .. }
        | Step::RecvCopy { span, .. }
        | Step::RecvReduce { span, .. }
        | Step::RecvReduceLeft { span, .. }) = &mut step;
        let cut = split_even(span.len, segments)[index];
        *span = Span { start: span.start + cut.start, len: cut.len };
        push(&mut piece, step);
    }
    piece
}

// Empty if there is nothing in common.
fn common(one: Span, other: Span) -> Span {
    let start = one.start.max(other.start);
    let end = (one.start + one.len).min(other.start + other.len);
    Span { start, len: end.saturating_sub(start) }
}
