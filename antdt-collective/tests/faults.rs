//! Connections that break, fall silent or lie, at any byte, under every algorithm: every call ends, every failed
//! member names an end of the bad connection, data are all or nothing, and nothing is left behind.
#![allow(clippy::disallowed_methods, reason = "these tests are about I/O, and bounded by the clock")]

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use antdt_collective::frame::Header;
use antdt_collective::outcome::Resolution;
use antdt_collective::runtime::testing::{
    Barrier, Damage, LONGER, SHORT, Strike, Watchdog, Wires, abort_handles, at_once, holder,
    loopback_listener, some_at_once,
};
use antdt_collective::runtime::transport::tcp::{Checksum, TcpConfig};
use antdt_collective::schedule::{Choice, Hierarchical};
use antdt_collective::{
    CollectiveError, Communicator, CommunicatorConfig, Group, Listener, Member, ReduceOp,
    ScheduledCommunicator, TcpTransport,
};
use antdt_core::{MembershipVersion, Rank, Seed};

/// Only one test at a time counts descriptors and threads.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes of a connection before the first frame of a call.
const HELLO: usize = Header::LEN + 24;

/// Between what others decide to say and what a rank hears of it, on the busiest machine.
const LATE: Duration = Duration::from_secs(20);

/// Between the beginnings of the first stories: not all deadlines are to pass at the same moment.
const APART: Duration = Duration::from_millis(50);

/// How an all-reduce is done.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    By(Choice),
    /// As if the first half of the ranks shared one host, and the second half another.
    HostsFirst,
}

const RING: Way = Way::By(Choice::Ring);

const ALL: [Way; 7] = [
    RING,
    Way::By(Choice::Direct),
    Way::By(Choice::HalvingDoubling),
    Way::By(Choice::RecursiveDoubling),
    Way::By(Choice::DoubleTree),
    Way::By(Choice::Gather),
    Way::HostsFirst,
];

impl Way {
    fn add_up(
        self,
        communicator: &mut ScheduledCommunicator<TcpTransport>,
        data: &mut [i64],
    ) -> Result<(), CollectiveError> {
        match self {
            Self::By(choice) => communicator.all_reduce_by(choice, data, ReduceOp::Sum),
            Self::HostsFirst => {
                let world = communicator.group().world();
                let hosts = (0..world).map(|rank| u32::from(rank >= world / 2)).collect();
                communicator.all_reduce_with(&Hierarchical { hosts }, data, ReduceOp::Sum)
            }
        }
    }
}

#[derive(Debug, Clone)]
struct Story {
    way: Way,
    world: u32,
    len: usize,
    timeout: Duration,
    strike: Option<Strike>,
}

/// The outcome of a call, and the data afterwards; of connecting, without data.
type CallResult = (Result<(), CollectiveError>, Vec<i64>);

#[derive(Debug)]
struct Told {
    outcomes: Vec<Vec<CallResult>>,
    struck: bool,
    // Bytes from the lower rank to the higher one, and back, of the struck connection or the first one.
    traffic: [usize; 2],
}

fn operand(rank: u32, len: usize) -> Vec<i64> {
    let mut rng = Seed(21).derive_number(u64::from(rank)).rng();
    (0..len).map(|_| rng.below(1 << 40) as i64).collect()
}

fn total(ranks: impl Iterator<Item = u32>, len: usize) -> Vec<i64> {
    ranks.fold(vec![0; len], |mut total, rank| {
        total.iter_mut().zip(operand(rank, len)).for_each(|(into, value)| *into += value);
        total
    })
}

fn connect(
    listener: &Listener,
    members: Vec<Member>,
    membership: u64,
    me: u32,
    patience: Duration,
) -> Result<TcpTransport, CollectiveError> {
    let group = Group::new(MembershipVersion(membership), members, Rank(me)).expect("a good group");
    // Damage must be noticed although these are connections within one host.
    let config = TcpConfig { checksum: Checksum::Always, ..TcpConfig::default() };
    TcpTransport::connect_with(listener, &group, patience, &abort_handles(1)[0], config)
}

// Two all-reduces through proxies, one of which may misbehave. No member leaves before all have finished.
fn tell(story: &Story) -> Told {
    let Story { way, world, len, timeout, .. } = *story;
    let listeners: Vec<Listener> = (0..world).map(|_| loopback_listener()).collect();
    let wires = Wires::before(&listeners, story.strike.clone());
    let config = CommunicatorConfig { timeout, ..CommunicatorConfig::default() };
    let (ready, done) = (Barrier::of(world as usize), Barrier::of(world as usize));
    let outcomes = at_once(0..world, |me| {
        let (ready, done) = (ready.place(), done.place());
        // A member that cannot connect leaves some that can only wait.
        let patience = timeout.min(Duration::from_secs(2));
        let connected = connect(&listeners[me as usize], wires.members(me), 1, me, patience);
        // A member that fails to connect is told so; what happens to calls is only looked at when all are there.
        ready.wait();
        let began = Instant::now();
        let (outcomes, mut communicator) = match connected {
            Err(error) => (vec![(Err(error), Vec::new())], None),
            Ok(transport) => {
                let mut communicator = ScheduledCommunicator::new(transport, config);
                let calls = [(); 2].map(|()| {
                    let mut data = operand(me, len);
                    (way.add_up(&mut communicator, &mut data), data)
                });
                (Vec::from(calls), Some(communicator))
            }
        };
        // Longer than both deadlines is a hang, whatever else the machine does.
        assert!(began.elapsed() < timeout * 2 + LATE, "rank {me} took {:?}: {story:?}", began.elapsed());
        done.wait_busy(|| {
            if let Some(communicator) = &mut communicator {
                communicator.attend();
            }
        });
        drop(communicator);
        outcomes
    });
    let way = story
        .strike
        .as_ref()
        .map_or((0, 1), |strike| (strike.from.min(strike.to), strike.from.max(strike.to)));
    let traffic = [wires.passed(way.0, way.1).len(), wires.passed(way.1, way.0).len()];
    Told { outcomes, struck: wires.struck(), traffic }
}

// The property of every story; the rank that a member blames wrongly.
fn check(story: &Story, told: &Told) -> Result<(), String> {
    let mut wrong = Ok(());
    let strike = story.strike.as_ref().expect("it has one");
    let mut failed = 0;
    for (rank, calls) in (0..).zip(&told.outcomes) {
        for (result, data) in calls.iter().filter(|(_, data)| !data.is_empty()) {
            let expected = match result {
                Ok(()) => total(0..story.world, story.len),
                Err(_) => operand(rank, story.len),
            };
            assert!(*data == expected, "rank {rank}: neither all nor nothing after {result:?}; {story:?}");
        }
        let Some(error) = calls.iter().find_map(|(result, _)| result.as_ref().err()) else { continue };
        failed += 1;
        let blamed = match strike.damage {
            Damage::Kill(killed) => vec![holder(killed)],
            _ => vec![holder(strike.from), holder(strike.to)],
        };
        let right = error.culprit().is_some_and(|culprit| blamed.contains(&culprit));
        if !right {
            wrong = Err(format!("rank {rank} is told {error}; {story:?}"));
        }
        assert!(calls.last().expect("it called").0.is_err(), "rank {rank} went on after {error}; {story:?}");
    }
    // A byte that is due in a call is missed by a member; the very last ones may be the next call's business.
    assert!(!told.struck || failed > 0, "nobody noticed: {story:?}");
    wrong
}

/// Descriptors and threads of this process.
fn possessions() -> (usize, usize) {
    let count = |folder: &str| std::fs::read_dir(folder).map_or(0, Iterator::count);
    (count("/proc/self/fd"), count("/proc/self/task"))
}

// Tells and checks all of them, several at a time, and looks at what is left behind. How many were struck.
fn tell_all(stories: &[Story], at_a_time: usize) -> usize {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::over("faults at any byte");
    let before = possessions();
    let struck = some_at_once(stories, at_a_time, APART, |story| {
        let silent = story.strike.as_ref().is_some_and(|strike| strike.damage == Damage::Pause);
        let timeouts = if silent { LONGER.to_vec() } else { vec![story.timeout] };
        let mut wrong = String::new();
        for timeout in timeouts {
            let told = tell(&Story { timeout, ..story.clone() });
            match check(story, &told) {
                Ok(()) => return told.struck,
                Err(why) => wrong = why,
            }
        }
        panic!("{wrong}");
    });
    // Threads of this process's test runner may come meanwhile, never these tests' own. The system still lists a thread
    // for a moment after it was joined.
    let until = Instant::now() + LATE;
    let mut after = possessions();
    while after.1 > before.1 + 1 && Instant::now() < until {
        std::thread::yield_now();
        after = possessions();
    }
    assert!(after.0 <= before.0, "descriptors: {before:?} before, {after:?} afterwards");
    assert!(after.1 <= before.1 + 1, "threads: {before:?} before, {after:?} afterwards");
    struck.into_iter().filter(|struck| *struck).count()
}

const PATIENT: Duration = Duration::from_secs(30);

/// Longer than the watchdog lets a test run.
const NEVER: Duration = Duration::from_secs(7200);

// The length of a run without a fault, in bytes of each direction.
fn traffic(way: Way, world: u32, len: usize, pair: (u32, u32)) -> [usize; 2] {
    let strike = Strike { from: pair.0, to: pair.1, at: usize::MAX, damage: Damage::Cut };
    let story = Story { way, world, len, timeout: PATIENT, strike: Some(strike) };
    let told = tell(&story);
    assert!(told.outcomes.iter().flatten().all(|(result, _)| result.is_ok()), "{told:?}");
    told.traffic
}

fn stories(
    way: Way,
    (world, len): (u32, usize),
    pair: (u32, u32),
    bytes: impl Fn(usize) -> Vec<usize>,
    damages: &[(Damage, Duration)],
) -> Vec<Story> {
    let ways = [(pair.0, pair.1), (pair.1, pair.0)].into_iter().zip(traffic(way, world, len, pair));
    let mut stories = Vec::new();
    for ((from, to), sent) in ways {
        for at in bytes(sent) {
            for (damage, timeout) in damages {
                let strike = Some(Strike { from, to, at, damage: damage.clone() });
                stories.push(Story { way, world, len, timeout: *timeout, strike });
            }
        }
    }
    stories
}

#[test]
fn a_connection_that_ends_or_lies_at_any_byte_between_two_members_is_noticed() {
    let damages = [(Damage::Cut, PATIENT), (Damage::HalfClose, PATIENT), (Damage::Flip, PATIENT)];
    let mut all = Vec::new();
    for way in [RING, Way::By(Choice::RecursiveDoubling), Way::By(Choice::Gather)] {
        // All of the greeting too, once.
        let first = if way == RING { 0 } else { HELLO };
        all.extend(stories(way, (2, 3), (0, 1), |sent| (first..sent).collect(), &damages));
    }
    let count = all.len();
    let struck = tell_all(&all, 16);
    assert!(struck * 10 > count * 9, "{struck} of {count}");
}

// The borders of all frames of a run, and some bytes within.
fn interesting(sent: usize, seed: u64) -> Vec<usize> {
    let mut rng = Seed(seed).rng();
    let borders =
        [HELLO, HELLO + Header::LEN].into_iter().flat_map(|border| [border - 1, border, border + 1]);
    let within = (0..4).map(|_| HELLO + rng.below((sent - HELLO).max(1) as u64) as usize);
    borders.chain(within).chain([sent - 1]).filter(|at| (HELLO..sent).contains(at)).collect()
}

fn of_all_algorithms(damages: &[(Damage, Duration)], seed: u64) -> Vec<Story> {
    let mut all = Vec::new();
    for way in ALL {
        for (world, pair) in [(3, (0, 1)), (3, (1, 2)), (4, (0, 2)), (5, (0, 4))] {
            all.extend(stories(
                way,
                (world, 61),
                pair,
                |sent| {
                    if sent > HELLO { interesting(sent, seed + u64::from(world)) } else { Vec::new() }
                },
                damages,
            ));
        }
    }
    all
}

#[test]
fn a_connection_that_ends_or_lies_in_a_larger_group_is_noticed_by_all() {
    let damages = [(Damage::Cut, PATIENT), (Damage::HalfClose, PATIENT), (Damage::Flip, PATIENT)];
    let all = of_all_algorithms(&damages, 31);
    let count = all.len();
    let struck = tell_all(&all, 8);
    assert!(struck * 10 > count * 8, "{struck} of {count}");
}

#[test]
fn ranks_notice_a_connection_reset_on_one_side_before_any_deadline() {
    // The sender's messages were acknowledged and do not arrive, and only the sender can know. A rank that waits for them until its
    // deadline hangs here.
    let mut all = of_all_algorithms(&[(Damage::Reset, NEVER)], 34);
    // No third rank can tell the receiver.
    let bytes = |sent: usize| if sent > HELLO { interesting(sent, 35) } else { Vec::new() };
    all.extend(stories(Way::By(Choice::Direct), (2, 61), (0, 1), bytes, &[(Damage::Reset, SHORT)]));
    let count = all.len();
    let struck = tell_all(&all, 8);
    assert!(struck * 10 > count * 8, "{struck} of {count}");
}

#[test]
fn a_connection_that_falls_silent_ends_every_call_at_the_deadline() {
    let all = of_all_algorithms(&[(Damage::Pause, SHORT)], 32);
    let all: Vec<Story> = all.into_iter().step_by(3).collect();
    let count = all.len();
    let struck = tell_all(&all, 24);
    assert!(struck * 10 > count * 8, "{struck} of {count}");
}

#[test]
fn a_member_that_dies_at_any_byte_is_named_and_the_others_go_on_with_exact_values() {
    let mut all = Vec::new();
    for way in ALL {
        for (world, pair) in [(2, (0, 1)), (3, (1, 2)), (4, (0, 3))] {
            let damages = [(Damage::Kill(pair.0), PATIENT), (Damage::Kill(pair.1), PATIENT)];
            let bytes = |sent: usize| if sent > HELLO { interesting(sent, 33) } else { Vec::new() };
            all.extend(stories(way, (world, 61), pair, bytes, &damages));
        }
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::over("deaths at any byte");
    let before = possessions();
    for batch in all.chunks(8) {
        at_once(batch, die_and_go_on);
    }
    assert!(possessions().0 <= before.0, "descriptors: {before:?} before, {:?} afterwards", possessions());
}

fn names(result: &Result<(), CollectiveError>, rank: u32) -> bool {
    result.as_ref().err().is_some_and(|error| error.culprit() == Some(holder(rank)))
}

// One unanimous call, in which a member dies; the others meet again over new connections, agree on whether the call
// counts, and make another one.
fn die_and_go_on(story: &Story) {
    let Story { way, world, len, timeout, .. } = *story;
    let Some(Strike { damage: Damage::Kill(dead), .. }) = story.strike else { return };
    let listeners: Vec<Listener> = (0..world).map(|_| loopback_listener()).collect();
    let wires = Wires::before(&listeners, story.strike.clone());
    let config = CommunicatorConfig { timeout, unanimous: true, ..CommunicatorConfig::default() };
    let (ready, done) = (Barrier::of(world as usize), Barrier::of(world as usize));
    let survivors: Vec<u32> = (0..world).filter(|rank| *rank != dead).collect();
    let outcomes = at_once(0..world, |me| {
        let (ready, done) = (ready.place(), done.place());
        let listener = &listeners[me as usize];
        let transport = connect(listener, wires.members(me), 1, me, timeout).expect("nobody has died yet");
        ready.wait();
        let mut communicator = ScheduledCommunicator::new(transport, config);
        let mut data = operand(me, len);
        let mut result = way.add_up(&mut communicator, &mut data);
        let expected = if result.is_ok() { total(0..world, len) } else { operand(me, len) };
        assert!(data == expected, "rank {me}: neither all nor nothing after {result:?}; {story:?}");
        if result.is_ok() {
            result = way.add_up(&mut communicator, &mut operand(me, len));
        }
        done.wait();
        if me == dead {
            return None;
        }
        assert!(names(&result, dead) || !wires.struck(), "rank {me} is told {result:?}; {story:?}");
        let (old, history) = communicator.leave();
        drop(old);
        let members = survivors
            .iter()
            .map(|rank| Member { holder: holder(*rank), address: listeners[*rank as usize].local_address() });
        let rank = survivors.iter().position(|survivor| *survivor == me).expect("it survived") as u32;
        let transport = connect(listener, members.collect(), 2, rank, timeout).expect("the others are there");
        let (mut communicator, resolution) =
            ScheduledCommunicator::join(transport, config, history).expect("the others are there");
        if resolution == Resolution::Committed {
            let mut again = data.clone();
            if communicator.adopt(&mut again).is_ok() && data == operand(me, len) {
                data = again;
            }
        }
        let stands = data.clone();
        way.add_up(&mut communicator, &mut data).expect("only survivors are left");
        Some((stands, data))
    });
    let stand: Vec<_> = outcomes.into_iter().flatten().collect();
    let counted = stand.iter().filter(|(stands, _)| *stands == total(0..world, len)).count();
    assert!(counted == 0 || counted == stand.len(), "{counted} of {} took it over; {story:?}", stand.len());
    let expected = if counted == 0 {
        total(survivors.iter().copied(), len)
    } else {
        total(0..world, len).into_iter().map(|value| value * i64::from(world - 1)).collect()
    };
    assert!(stand.iter().all(|(_, after)| *after == expected), "{story:?}");
}

#[test]
fn recorded_frames_of_a_dead_group_change_nothing_wherever_they_come_in() {
    for way in ALL {
        let world = 3;
        // What was said in membership 1, all of it.
        let old = Story { way, world, len: 61, timeout: PATIENT, strike: None };
        let listeners: Vec<Listener> = (0..world).map(|_| loopback_listener()).collect();
        let wires = Wires::before(&listeners, None);
        let calls = |wires: &Wires, membership: u64, listeners: &[Listener]| {
            at_once(0..world, |me| {
                let transport = connect(&listeners[me as usize], wires.members(me), membership, me, PATIENT);
                let config = CommunicatorConfig { timeout: PATIENT, ..CommunicatorConfig::default() };
                let mut communicator = ScheduledCommunicator::new(transport.expect("all are there"), config);
                // Other numbers than in the newer group.
                let factor = i64::try_from(membership).expect("small");
                let mut data: Vec<i64> = operand(me, old.len).into_iter().map(|x| x * factor).collect();
                way.add_up(&mut communicator, &mut data).expect("nothing is wrong");
                assert!(
                    data.iter().zip(total(0..world, old.len)).all(|(x, sum)| *x == sum * factor),
                    "{way:?}"
                );
                communicator.barrier().expect("nothing is wrong");
            });
        };
        calls(&wires, 1, &listeners);
        for (from, to) in [(0, 1), (1, 2), (2, 0)] {
            let frames = wires.passed(from, to).split_off(HELLO);
            let listeners: Vec<Listener> = (0..world).map(|_| loopback_listener()).collect();
            let strike = Strike { from, to, at: HELLO, damage: Damage::Insert(frames) };
            let wires = Wires::before(&listeners, Some(strike));
            calls(&wires, 2, &listeners);
            assert!(wires.struck(), "{way:?}: nothing went from {from} to {to}");
        }
    }
}
