use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use antdt_core::{Ack, Generation, Held, Holder, JobTime, RequestId, Seed};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

use super::call::{Call, Reply, worker};
use super::invariants::{self, Moment};
use super::model::Model;
use super::pair::Pair;
use super::real::Real;
use crate::spec::{Assignment, Cut, DatasetSpec, Epochs, OnQuarantine, Shuffle};

/// What can happen, chosen by numbers that mean something in every state, so that an event that is left out leaves a
/// history. A life of 0 is the one that may take part: the live one, or the next if that has ended.
#[derive(Debug, Clone)]
enum Happening {
    Register {
        node: u32,
        life: i8,
        held: Vec<Presented>,
    },
    /// A life says what is done and asks for shards, with a request that is fresh (`back` 0), a repetition, or late; in
    /// this generation or an earlier one. If it has to register it does that instead, unless it is forgetful.
    Exchange {
        node: u32,
        life: i8,
        back: u8,
        generations_back: u8,
        forgetful: bool,
        acks: Vec<(Pick, Far)>,
        want: u32,
    },
    /// As that, without acks, for one.
    Fetch {
        node: u32,
        life: i8,
        back: u8,
        generations_back: u8,
    },
    /// The very call that was made last, or one of those before it, once more.
    Again {
        back: u8,
    },
    /// Something is said about leases, most often by a node about its own.
    Say {
        what: What,
        node: u32,
        of: Vec<(Pick, Far)>,
        by: By,
    },
    /// Whoever was called upon to give leases back does.
    Obey,
    Lose {
        node: u32,
        life: i8,
    },
    Freeze {
        until: u64,
    },
    Tick {
        now: u64,
    },
    Thaw,
    Keep,
    /// A cut, with so many samples more in the model than were acknowledged.
    Cut {
        off: i8,
    },
    Restore {
        which: u8,
    },
    /// The service ends without its last records, as many as are at risk at most.
    Restart {
        lost: u8,
        compacted: Option<u16>,
    },
}

#[derive(Debug, Clone, Copy)]
enum What {
    Ack,
    Release,
    Fail,
}

#[derive(Debug, Clone, Copy)]
enum Pick {
    /// One of the node's live leases.
    Live(u8),
    /// Any lease there ever was, of anybody, in any generation.
    Any(u16),
}

#[derive(Debug, Clone, Copy)]
enum Far {
    All,
    /// Some of what is left.
    Part(u64),
    /// Anything up to one beyond the end.
    Wild(u64),
}

#[derive(Debug, Clone, Copy)]
enum By {
    Owner,
    Another(u32),
    /// The owner's node in another life.
    Life(i8),
}

/// A lease that somebody says he holds.
#[derive(Debug, Clone, Copy)]
enum Presented {
    /// One of those that the node had when the last generation ended, with what it had done of it.
    True(u8),
    /// The same, with more or less.
    Off(u8, Far),
    /// Any lease there ever was, of anybody, in any generation.
    Any(u16, Far),
}

fn fars() -> impl Strategy<Value = Far> {
    prop_oneof![
        4 => Just(Far::All),
        4 => any::<u64>().prop_map(Far::Part),
        1 => any::<u64>().prop_map(Far::Wild),
    ]
}

fn happenings() -> impl Strategy<Value = Happening> {
    let node = 0..4_u32;
    let life = prop_oneof![20 => Just(0_i8), 1 => Just(-1), 1 => Just(1)];
    let back = prop_oneof![12 => Just(0_u8), 2 => Just(1), 1 => Just(2)];
    let generations_back = prop_oneof![20 => Just(0_u8), 1 => Just(1)];
    let forgetful = prop_oneof![6 => Just(false), 1 => Just(true)];
    let what = prop_oneof![8 => Just(What::Ack), 3 => Just(What::Release), 2 => Just(What::Fail)];
    let pick = || prop_oneof![8 => any::<u8>().prop_map(Pick::Live), 1 => any::<u16>().prop_map(Pick::Any)];
    let of = prop::collection::vec((pick(), fars()), 1..3);
    let acks = prop::collection::vec((pick(), fars()), 0..4);
    let by = prop_oneof![
        14 => Just(By::Owner),
        1 => (0..4_u32).prop_map(By::Another),
        1 => prop_oneof![Just(-1_i8), Just(1)].prop_map(By::Life),
    ];
    let presented = prop_oneof![
        6 => (0..4_u8).prop_map(Presented::True),
        2 => (0..4_u8, fars()).prop_map(|(which, far)| Presented::Off(which, far)),
        1 => (any::<u16>(), fars()).prop_map(|(which, far)| Presented::Any(which, far)),
    ];
    let held = prop::collection::vec(presented, 0..4);
    let lost = prop_oneof![2 => Just(0_u8), 3 => 1..6_u8];
    let compacted = prop_oneof![2 => Just(None), 1 => any::<u16>().prop_map(Some)];
    prop_oneof![
        3 => (node.clone(), life.clone(), held)
            .prop_map(|(node, life, held)| Happening::Register { node, life, held }),
        24 => (node.clone(), life.clone(), back.clone(), generations_back.clone(), forgetful, acks, 0..5_u32)
            .prop_map(|(node, life, back, generations_back, forgetful, acks, want)| {
                Happening::Exchange { node, life, back, generations_back, forgetful, acks, want }
            }),
        4 => (node.clone(), life.clone(), back, generations_back).prop_map(
            |(node, life, back, generations_back)| Happening::Fetch { node, life, back, generations_back }
        ),
        2 => (0..8_u8).prop_map(|back| Happening::Again { back }),
        9 => (what, node.clone(), of, by).prop_map(|(what, node, of, by)| Happening::Say { what, node, of, by }),
        2 => Just(Happening::Obey),
        2 => (node, life).prop_map(|(node, life)| Happening::Lose { node, life }),
        1 => (0..4_u64).prop_map(|until| Happening::Freeze { until }),
        1 => (0..4_u64).prop_map(|now| Happening::Tick { now }),
        1 => Just(Happening::Thaw),
        1 => Just(Happening::Keep),
        1 => prop_oneof![3 => Just(0_i8), 1 => Just(-1), 1 => Just(1)].prop_map(|off| Happening::Cut { off }),
        1 => any::<u8>().prop_map(|which| Happening::Restore { which }),
        1 => (lost, compacted).prop_map(|(lost, compacted)| Happening::Restart { lost, compacted }),
    ]
}

/// Ends of shards of any lengths.
fn cuts() -> impl Strategy<Value = Cut> {
    let uneven = prop::collection::vec(1..10_u64, 1..8).prop_map(|lengths| {
        let ends = lengths.iter().scan(0, |end, len| {
            *end += len;
            Some(*end)
        });
        Cut::At(ends.collect())
    });
    prop_oneof![2 => (1..12_u64).prop_map(Cut::Every), 2 => (1..3_u64).prop_map(Cut::Every), 1 => uneven]
}

pub(super) fn specs() -> impl Strategy<Value = DatasetSpec> {
    let shuffle = prop_oneof![Just(Shuffle::None), Just(Shuffle::Shards), Just(Shuffle::ShardsAndSamples)];
    let on_quarantine = prop_oneof![
        1 => Just(OnQuarantine::FailJob),
        2 => (0..40_u64).prop_map(|max_samples| OnQuarantine::Continue { max_samples }),
    ];
    let assignment = prop_oneof![
        4 => Just(Assignment::Dynamic),
        1 => (1..5_u32).prop_map(|workers| Assignment::Static { workers }),
    ];
    let settings = (1..4_u32, shuffle, any::<u64>(), 0..3_u32, 1..4_u32, on_quarantine, 1..6_u32, assignment);
    (1..40_u64, cuts(), settings).prop_map(|(samples, cut, settings)| {
        let (epochs, shuffle, seed, epoch_overlap, faults, on_quarantine, leases, assignment) = settings;
        let num_samples = match &cut {
            Cut::Every(_) => samples,
            Cut::At(ends) => *ends.last().unwrap(),
        };
        DatasetSpec {
            cut,
            epochs: Epochs::Finite(epochs),
            shuffle,
            seed: Seed(seed),
            epoch_overlap,
            max_data_faults: faults,
            on_quarantine,
            max_leases_per_holder: leases,
            assignment,
            ..DatasetSpec::new("history", num_samples, 1)
        }
    })
}

/// A history so far, as it should be.
#[derive(Clone)]
struct Story {
    model: Model,
    requests: [u64; 4],
    /// Calls that workers made.
    calls: Vec<Call>,
    /// Leases that their holders were asked to give back.
    recalled: Vec<(Holder, Vec<Ack>)>,
    /// What happened last, and the answer; nothing, if there was nothing to talk about.
    last: Option<(Call, Reply)>,
}

/// All that a reader of a failure needs: the rest follows from what happens.
impl fmt::Debug for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.model.book.spec.fmt(f)
    }
}

impl Story {
    fn new(spec: DatasetSpec) -> Self {
        let model = Model::new(spec);
        Self { model, requests: [0; 4], calls: Vec::new(), recalled: Vec::new(), last: None }
    }

    fn take(&mut self, happening: &Happening) {
        self.last = self.call(happening).map(|call| {
            let reply = self.model.say(&call);
            self.heard(&call, &reply);
            (call, reply)
        });
    }

    fn heard(&mut self, call: &Call, reply: &Reply) {
        if let Call::Exchange { holder, .. } = call
            && let Reply::Exchanged(Ok(exchanged)) = reply
            && !exchanged.recalled.is_empty()
        {
            let given = |lease: &_| Ack { lease: *lease, offset: self.model.book.live[lease].offset };
            self.recalled.push((*holder, exchanged.recalled.iter().map(given).collect()));
        }
        if call.caller().is_some() {
            self.calls.push(call.clone());
        }
    }

    fn life_of(&self, node: u32, life: i8) -> Holder {
        let able = i64::from(self.model.book.able(node).incarnation.0) + i64::from(life);
        worker(node, u32::try_from(able.max(0)).unwrap())
    }

    fn question(&mut self, node: u32, back: u8, generations_back: u8) -> (Generation, RequestId) {
        let last = &mut self.requests[node as usize];
        *last += u64::from(back == 0);
        let request = last.saturating_sub(u64::from(back.saturating_sub(1)));
        let generation = self.model.book.generation.0.saturating_sub(u64::from(generations_back));
        (Generation(generation), RequestId(request))
    }

    fn call(&mut self, happening: &Happening) -> Option<Call> {
        let book = &self.model.book;
        let at = |seconds| JobTime::from_duration(std::time::Duration::from_secs(seconds));
        Some(match happening {
            Happening::Register { node, life, held } => {
                let held = held.iter().filter_map(|presented| self.presented(*node, *presented)).collect();
                Call::Register { holder: self.life_of(*node, *life), held }
            }
            Happening::Exchange { node, life, back, generations_back, forgetful, acks, want } => {
                let holder = self.life_of(*node, *life);
                if !forgetful && book.members.get(&holder.node) != Some(&holder.incarnation) {
                    let mine = book.left.iter().filter(|own| own.holder == holder);
                    let held = mine.map(|own| Held {
                        lease: own.grant.lease,
                        key: own.grant.key,
                        offset: own.offset,
                    });
                    return Some(Call::Register { holder, held: held.collect() });
                }
                let acks = self.acks(*node, acks).into_iter().map(|(ack, _)| ack).collect();
                let (generation, request) = self.question(*node, *back, *generations_back);
                Call::Exchange { holder, generation, request, acks, want: *want }
            }
            Happening::Fetch { node, life, back, generations_back } => {
                let holder = self.life_of(*node, *life);
                let (generation, request) = self.question(*node, *back, *generations_back);
                Call::Fetch { holder, generation, request }
            }
            Happening::Again { back } => {
                let at = self.calls.len().checked_sub(1 + usize::from(*back))?;
                self.calls[at].clone()
            }
            Happening::Say { what, node, of, by } => return self.said(*what, *node, of, *by),
            Happening::Obey => {
                let (holder, acks) = self.recalled.pop()?;
                Call::Release { holder, acks }
            }
            Happening::Lose { node, life } => Call::Lost { holder: self.life_of(*node, *life) },
            Happening::Freeze { until } => Call::Freeze { until: at(*until) },
            Happening::Tick { now } => Call::Tick { now: at(*now) },
            Happening::Thaw => Call::Thaw,
            Happening::Keep => Call::Keep,
            Happening::Cut { off } => {
                let acked = book.account.samples.len() as u64;
                Call::Cut { committed: acked.saturating_add_signed(i64::from(*off)) }
            }
            Happening::Restore { which } => {
                Call::Restore { which: usize::from(*which).checked_rem(book.kept())? }
            }
            Happening::Restart { lost, compacted } => {
                let written = self.model.naive.notes().len();
                let kept = written.saturating_sub(usize::from(*lost)).max(self.model.kept_least());
                Call::Restart { kept, compacted: compacted.map(|at| usize::from(at) % (kept + 1)) }
            }
        })
    }

    fn far(far: Far, from: u64, len: u64) -> u64 {
        match far {
            Far::All => len,
            Far::Part(any) => from + any % (len - from).max(1),
            Far::Wild(any) => any % (len + 2),
        }
    }

    fn presented(&self, node: u32, presented: Presented) -> Option<Held> {
        let book = &self.model.book;
        let mine = |which: u8| {
            let mine: Vec<_> = book.left.iter().filter(|own| own.holder.node.index == node).collect();
            Some(*mine[usize::from(which).checked_rem(mine.len())?])
        };
        let (grant, offset) = match presented {
            Presented::True(which) => mine(which).map(|own| (own.grant, own.offset))?,
            Presented::Off(which, far) => {
                let own = mine(which)?;
                (own.grant, Self::far(far, own.offset, own.grant.len))
            }
            Presented::Any(any, far) => {
                let (grant, _) = book.grants[usize::from(any).checked_rem(book.grants.len())?];
                (grant, Self::far(far, book.account.offset(grant.key), grant.len))
            }
        };
        Some(Held { lease: grant.lease, key: grant.key, offset })
    }

    fn acks(&self, node: u32, of: &[(Pick, Far)]) -> Vec<(Ack, Holder)> {
        let book = &self.model.book;
        let ack = |(pick, far): &(Pick, Far)| {
            let (grant, holder, from) = match pick {
                Pick::Live(any) => {
                    let mine = book.live.values().filter(|own| own.holder.node.index == node);
                    let mine: Vec<_> = mine.collect();
                    let own = mine[usize::from(*any).checked_rem(mine.len())?];
                    (own.grant, own.holder, own.offset)
                }
                Pick::Any(any) => {
                    let (grant, holder) = book.grants[usize::from(*any).checked_rem(book.grants.len())?];
                    (grant, holder, grant.resume_at)
                }
            };
            Some((Ack { lease: grant.lease, offset: Self::far(*far, from, grant.len) }, holder))
        };
        of.iter().filter_map(ack).collect()
    }

    fn said(&self, what: What, node: u32, of: &[(Pick, Far)], by: By) -> Option<Call> {
        let picked = self.acks(node, of);
        if picked.is_empty() && matches!(by, By::Owner) {
            return None; // An empty call is for the few who have nothing to say.
        }
        let owner = picked.first().map_or(worker(node, 0), |(_, owner)| *owner);
        let holder = match by {
            By::Owner => owner,
            By::Another(other) => self.model.book.able(other),
            By::Life(life) => {
                let other = i64::from(owner.incarnation.0) + i64::from(life);
                worker(owner.node.index, u32::try_from(other.max(0)).unwrap())
            }
        };
        let acks: Vec<Ack> = picked.iter().map(|(ack, _)| *ack).collect();
        Some(match what {
            What::Ack => Call::Ack { holder, acks },
            What::Release => Call::Release { holder, acks },
            What::Fail => Call::Fail { holder, ack: *acks.first()? },
        })
    }
}

struct Stories;

impl ReferenceStateMachine for Stories {
    type State = Story;
    type Transition = Happening;

    fn init_state() -> BoxedStrategy<Story> {
        specs().prop_map(Story::new).boxed()
    }

    fn transitions(_: &Story) -> BoxedStrategy<Happening> {
        happenings().boxed()
    }

    fn apply(mut story: Story, happening: &Happening) -> Story {
        story.take(happening);
        story
    }
}

thread_local! {
    /// What happened how often, in all histories of a test.
    static SEEN: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// The ledger, told what the story tells.
struct Told;

impl StateMachineTest for Told {
    type SystemUnderTest = Real;
    type Reference = Stories;

    fn init_test(story: &Story) -> Real {
        Real::new(story.model.book.spec.clone(), story.model.book.generation)
    }

    fn apply(mut real: Real, story: &Story, _: Happening) -> Real {
        if let Some((call, expected)) = &story.last {
            let reply = real.say(call);
            invariants::check(&Moment { call, expected, reply: &reply, model: &story.model, real: &real });
        }
        real
    }

    fn teardown(real: Real, story: Story) {
        SEEN.with_borrow_mut(|seen| {
            for (what, times) in &story.model.book.seen {
                *seen.entry(what).or_insert(0) += times;
            }
            *seen.entry("woken").or_insert(0) += real.wakes;
        });
        Pair { model: story.model, real }.drain();
    }
}

/// As many cases as `PROPTEST_CASES` says, for each `of_256` of its default of 256.
pub(super) fn config(of_256: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    ProptestConfig {
        cases: default.cases * of_256 / 256,
        max_shrink_iters: default.max_shrink_iters.min(4_000),
        failure_persistence: None,
        ..default
    }
}

/// Histories in which nothing happens prove nothing: `least` is for 1,000 of them.
pub(super) fn check_seen(seen: &BTreeMap<&'static str, u64>, cases: u32, least: &[(&str, u64)]) {
    for (what, least) in least {
        let times = seen.get(what).copied().unwrap_or(0);
        assert!(times * 1_000 >= least * u64::from(cases), "too little happened: {what} in {seen:?}");
    }
}

/// What 1,000 histories must have seen; about half of what they do.
const LEAST: [(&str, u64); 27] = [
    ("granted", 3_000),
    ("granted again", 500),
    ("adopted", 400),
    ("adopted again", 100),
    ("counted at adoption", 30),
    ("not adopted", 1_000),
    ("several at once", 500),
    ("recalled", 40),
    ("resumed", 300),
    ("wait", 2_000),
    ("woken", 1_000),
    ("at limit", 400),
    ("end of data", 500),
    ("stopped by quarantine", 100),
    ("refused question", 2_000),
    ("accepted", 4_000),
    ("stale", 2_000),
    ("refused ack", 2_000),
    ("completed", 1_500),
    ("released", 150),
    ("failed", 100),
    ("fenced", 1_500),
    ("frozen", 700),
    ("cut", 400),
    ("restored", 500),
    ("restarted", 700),
    ("restarted without the end of its log", 300),
];

#[test]
fn every_history_keeps_every_sample_and_counts_none_twice() {
    let config = config(1_024);
    let mut runner = TestRunner::new(config.clone());
    let histories = Stories::sequential_strategy(1..200);
    let result = runner.run(&histories, |(story, happenings, seen)| {
        Told::test_sequential(config.clone(), story, happenings, seen);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    SEEN.with_borrow(|seen| check_seen(seen, config.cases, &LEAST));
}
