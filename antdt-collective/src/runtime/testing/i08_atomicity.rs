//! I8: a call that fails leaves the caller's data as they were, so that it can be made again without the culprit.

use std::time::Duration;

use antdt_core::{Permutation, Rank, Seed};

use super::barrier::Barrier;
use super::call::{Call, operand, total};
use super::case::thinned;
use super::count::CountTransport;
use super::fault::{Fault, FaultTransport};
use super::members::{AnyTransport, Make, PATIENT, SHORT, at_once, on_all, some_at_once};
use super::watchdog::Watchdog;
use crate::error::CollectiveError;
use crate::outcome::Resolution;
use crate::runtime::communicator::HOSTS_MIN_BYTES;
use crate::runtime::{CommunicatorConfig, ScheduledCommunicator};
use crate::schedule::Choice;

/// A fault: its kind, its victim and its time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Story {
    pub(super) call: Call,
    pub(super) world: u32,
    pub(super) odd: u32,
    pub(super) fault: Fault,
    // Rounds that the odd member still takes part in.
    pub(super) after: u64,
    // Elements.
    pub(super) len: usize,
}

impl Story {
    /// Longest that a call may take.
    pub(super) fn timeout(&self) -> Duration {
        if self.fault == Fault::FallsSilent { SHORT } else { PATIENT }
    }

    fn survivors(&self) -> impl Iterator<Item = u32> {
        let odd = self.odd;
        (0..self.world).filter(move |rank| *rank != odd)
    }
}

/// Stories that are told at the same time.
const AT_ONCE: usize = 32;

/// Tells all stories. Those of silence come by themselves and are spread out: most of their time is spent waiting, and
/// what is heard after a deadline is heard in time where not all deadlines pass at once beside a crowd at work.
pub(super) fn tell_all(stories: &[Story], tell: impl Fn(&Story) + Sync) {
    let (silent, loud): (Vec<Story>, Vec<Story>) =
        stories.iter().partition(|story| story.fault == Fault::FallsSilent);
    some_at_once(&loud, AT_ONCE, Duration::ZERO, &tell);
    some_at_once(&silent, AT_ONCE, SHORT / 16, &tell);
}

/// Elements: few, so that messages are short, and not a multiple of any world size.
const FEW: usize = 61;

/// So many that members of several hosts sum inside these first.
const MANY: usize = HOSTS_MIN_BYTES / size_of::<i64>() + FEW;

/// So many that messages go in several pieces over whatever there is.
const VERY_MANY: usize = (2 << 20) / size_of::<i64>() + FEW;

/// Those that name one algorithm.
const FIXED: [Choice; 6] = [
    Choice::Ring,
    Choice::Direct,
    Choice::HalvingDoubling,
    Choice::RecursiveDoubling,
    Choice::DoubleTree,
    Choice::Gather,
];

/// A fault before each round of each algorithm and of each other collective, at the first and the last member; on a slow
/// machine some of them, of all kinds.
pub(super) fn stories(make: &Make<'_>) -> Vec<Story> {
    let mut stories = Vec::new();
    for choice in FIXED {
        for world in 2..=5 {
            tell_of(&mut stories, make, (Call::AllReduce(choice), FEW), world);
        }
    }
    for call in Call::OTHERS {
        for world in 2..=4 {
            tell_of(&mut stories, make, (call, FEW), world);
        }
        // Other algorithms, and messages in pieces. The first round is that of the lengths, where there are any.
        for (odd, fault) in
            [(0, Fault::Dies), (0, Fault::DiesWithin), (2, Fault::Dies), (2, Fault::DiesWithin)]
        {
            stories.push(Story { call, world: 3, odd, fault, after: 1, len: VERY_MANY });
        }
    }
    // The hosts first, where there are several with several members.
    for world in 3..=5 {
        tell_of(&mut stories, make, (Call::AllReduce(Choice::Auto), MANY), world);
    }
    for world in 2..=4 {
        for (fault, after) in [(Fault::Dies, 0), (Fault::DiesWithin, 0), (Fault::DiesWithin, 1)] {
            let (call, len) = (Call::AllReduce(Choice::Ring), VERY_MANY);
            stories.push(Story { call, world, odd: world - 1, fault, after, len });
        }
    }
    let kept = thinned(stories.len());
    if kept == stories.len() {
        return stories;
    }
    let mixed = Permutation::new(Seed(8), stories.len() as u64);
    (0..kept as u64).map(|place| stories[mixed.at(place) as usize]).collect()
}

fn tell_of(stories: &mut Vec<Story>, make: &Make<'_>, (call, len): (Call, usize), world: u32) {
    for odd in [0, world - 1] {
        let rounds = rounds_of(call, len, make(world).0, odd);
        for after in 0..rounds {
            for fault in Fault::ALL {
                // Silence takes its time: only the beginning, the middle and the end.
                if fault != Fault::FallsSilent || [0, rounds / 2, rounds - 1].contains(&after) {
                    stories.push(Story { call, world, odd, fault, after, len });
                }
            }
        }
    }
}

fn rounds_of(call: Call, len: usize, transports: Vec<AnyTransport>, me: u32) -> u64 {
    let (transports, traffic): (Vec<_>, Vec<_>) = transports.into_iter().map(CountTransport::new).unzip();
    on_all(transports, PATIENT, |me, communicator| {
        call.make(communicator, &mut operand(me, len)).expect("all members make it");
    });
    traffic[me as usize].exchanges()
}

/// The outcome of a call, and the data afterwards.
pub(super) type CallResult = (Result<(), CollectiveError>, Vec<i64>);

/// Two calls while the story happens; each member's outcomes. No member leaves before all have finished.
pub(super) fn tell(story: &Story, transports: Vec<AnyTransport>, timeout: Duration) -> Vec<[CallResult; 2]> {
    let config = CommunicatorConfig { timeout, ..CommunicatorConfig::default() };
    let done = Barrier::of(story.world as usize);
    at_once((0..).map(Rank).zip(transports), |(rank, transport)| {
        let done = done.place();
        let after = if rank.0 == story.odd { story.after } else { u64::MAX };
        let transport = FaultTransport::new(transport, story.fault, after);
        let mut communicator = ScheduledCommunicator::new(transport, config);
        let outcomes = [(); 2].map(|()| {
            let mut data = operand(rank, story.len);
            let result = story.call.make(&mut communicator, &mut data);
            (result, data)
        });
        done.wait();
        outcomes
    })
}

/// Checks invariant I8: a call that fails leaves the data of its member as they were, and one that succeeds
/// leaves the result over all members, never a mixture. When the survivors then reduce among themselves, they
/// get exactly the result over the survivors. In unanimous all-reduces the survivors moreover agree, once
/// they have met again, that the call counts everywhere or nowhere.
///
/// # Panics
/// If the invariant is broken.
pub fn i08_atomicity(make: &Make<'_>) {
    let _watchdog = Watchdog::over("I8");
    tell_all(&stories(make), |story| {
        all_or_nothing(story, make);
        if matches!(story.call, Call::AllReduce(_)) {
            everywhere_or_nowhere(story, make);
        }
    });
}

fn all_or_nothing(story: &Story, make: &Make<'_>) {
    let calls = tell(story, make(story.world).0, story.timeout());
    let all: Vec<u32> = (0..story.world).collect();
    for (rank, calls) in (0..).zip(&calls) {
        for (result, data) in calls {
            let expected = match result {
                Ok(()) => story.call.outcome(rank as usize, &all, story.len),
                Err(_) => operand(Rank(rank), story.len),
            };
            assert!(*data == expected, "rank {rank} after {result:?}: {story:?}");
        }
    }
    let survivors: Vec<u32> = story.survivors().collect();
    on_all(make(story.world - 1).0, PATIENT, |me, communicator| {
        let place = me.0 as usize;
        let (_, mut data) = calls[survivors[place] as usize][1].clone();
        story.call.make(communicator, &mut data).expect("only survivors are left");
        assert_eq!(
            data,
            story.call.outcome(place, &survivors, story.len),
            "rank {me} of the rest: {story:?}"
        );
    });
}

// One unanimous all-reduce, in which the odd member may still take part in the votes; then the survivors meet again.
fn everywhere_or_nowhere(story: &Story, make: &Make<'_>) {
    let timeout = story.timeout();
    let config = CommunicatorConfig { timeout, unanimous: true, ..CommunicatorConfig::default() };
    let done = Barrier::of(story.world as usize);
    let first = at_once((0..).map(Rank).zip(make(story.world).0), |(rank, transport)| {
        let done = done.place();
        // One round later than the story says, so that the round of the votes has its turn as well.
        let after = if rank.0 == story.odd { story.after + 1 } else { u64::MAX };
        let transport = FaultTransport::new(transport, story.fault, after);
        let mut communicator = ScheduledCommunicator::new(transport, config);
        let mut data = operand(rank, story.len);
        let result = story.call.make(&mut communicator, &mut data);
        if result.is_err() {
            assert!(data == operand(rank, story.len), "rank {rank} after {result:?}: {story:?}");
        } else if rank.0 != story.odd {
            // A member that took it over finds out with the next call that the odd member is gone.
            let later = story.call.make(&mut communicator, &mut operand(rank, story.len));
            assert!(later.is_err(), "rank {rank}: {story:?}");
        }
        done.wait();
        let (_, history) = communicator.leave();
        (rank.0 != story.odd).then_some((data, history))
    });
    let survivors = first.into_iter().flatten();
    let config = CommunicatorConfig { timeout: PATIENT, ..config };
    let met = at_once(survivors.zip(make(story.world - 1).0), |((mut data, history), transport)| {
        let (mut communicator, resolution) =
            ScheduledCommunicator::join(transport, config, history).expect("only survivors are left");
        if resolution == Resolution::Committed {
            communicator.adopt(&mut data).expect("the result was made");
        }
        let stands = data.clone();
        // Either way the next call works on what they now have in common.
        story.call.make(&mut communicator, &mut data).expect("only survivors are left");
        (stands, data)
    });
    let whole = total(0..story.world, story.len);
    let counts = met.iter().filter(|(stands, _)| *stands == whole).count();
    assert!(counts == 0 || counts == met.len(), "{counts} of {} took the result over: {story:?}", met.len());
    for ((stands, after), rank) in met.iter().zip(story.survivors()) {
        if counts == 0 {
            assert!(*stands == operand(Rank(rank), story.len), "rank {rank}: {story:?}");
            assert!(*after == total(story.survivors(), story.len), "rank {rank}: {story:?}");
        } else {
            let times = i64::from(story.world - 1);
            assert!(
                after.iter().zip(&whole).all(|(after, once)| *after == once * times),
                "rank {rank}: {story:?}"
            );
        }
    }
}
