//! Honest clients, a network that loses, repeats, delays and reorders in both directions, workers that die or are taken
//! for dead, a service that crashes and a job that is set back. What is asked for is what a trainer is promised: the
//! ledger counts no sample that is not in the model, nothing is left out, and a sample is in the model more often than
//! once only if it went in under a lease that ended before its ack, or its ack was lost with the end of the log.
//!
//! A registration is bound to its connection, so it does not outlive the process of the service that it was sent to. All
//! other messages do.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use antdt_core::{
    Ack, AckOutcome, Epoch, Exchanged, FetchOutcome, Generation, Grant, Held, Holder, JobTime, LeaseId,
    RequestId,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

use super::histories::{check_seen, config};
use super::pair::Pair;
use super::real::Real;
use crate::error::{ExchangeError, FetchError};
use crate::spec::{Assignment, DatasetSpec};
use crate::testing::book::{Book, Own};
use crate::testing::call::{Call, CallReply, worker};
use crate::testing::history::specs;
use crate::testing::model::Model;

/// What the trainers are working on.
#[derive(Debug, Clone, Default)]
struct Trained {
    /// How often each sample is in the model.
    times: BTreeMap<(Epoch, u64), u64>,
    /// How often it may be there a second time.
    excused: BTreeMap<(Epoch, u64), u64>,
    /// It was set back so many times.
    line: u64,
}

impl Trained {
    /// Its lease ended before the ledger heard of these samples.
    fn excuse_all(&mut self, client: &Client, reading: &Reading, account: &BTreeSet<(Epoch, u64)>) {
        let begun = reading.grant.resume_at.min(reading.committed);
        let samples =
            if client.line == self.line { reading.samples(begun, reading.committed) } else { vec![] };
        samples.into_iter().filter(|sample| !account.contains(sample)).for_each(|sample| self.excuse(sample));
    }

    fn excuse(&mut self, sample: (Epoch, u64)) {
        *self.excused.entry(sample).or_insert(0) += 1;
    }
}

#[derive(Debug, Clone)]
struct Reading {
    grant: Grant,
    /// Samples below are in the model.
    committed: u64,
    /// A sample of it was handed out.
    begun: bool,
}

impl Reading {
    fn held(&self) -> Held {
        Held { lease: self.grant.lease, key: self.grant.key, offset: self.committed }
    }
    fn samples(&self, from: u64, to: u64) -> Vec<(Epoch, u64)> {
        let order = self.grant.order();
        (from..to).map(|offset| (self.grant.key.epoch, self.grant.sample(order.as_ref(), offset))).collect()
    }
}

/// A worker as it should be: one call at a time, repeated until it is answered; a new number for a question only once
/// the last was answered with shards.
#[derive(Debug, Clone)]
struct Client {
    holder: Holder,
    /// Number of its process: answers to an earlier one find no receiver.
    life: u64,
    generation: Option<Generation>,
    /// Number of the model that it works on.
    line: u64,
    reading: Vec<Reading>,
    /// Done, and not known to be acknowledged.
    done: Vec<Reading>,
    /// Given back, and not known to be so.
    parting: Vec<Reading>,
    request: RequestId,
    /// The call that is not answered, with its number.
    out: Option<(u64, Call)>,
    calls: u64,
    ended: bool,
    stopped: bool,
}

impl Client {
    fn new(holder: Holder, life: u64) -> Self {
        Self {
            holder,
            life,
            generation: None,
            line: 0,
            reading: Vec::new(),
            done: Vec::new(),
            parting: Vec::new(),
            request: RequestId(1),
            out: None,
            calls: 0,
            ended: false,
            stopped: false,
        }
    }

    fn call(&mut self, call: Call) {
        self.calls += 1;
        self.out = Some((self.calls, call));
    }

    fn exchange(&mut self, acks: Vec<Ack>, want: u32) {
        let Some(generation) = self.generation else { return };
        let (holder, request) = (self.holder, self.request);
        let want = if acks.is_empty() { want.max(1) } else { want };
        self.call(Call::Exchange { holder, generation, request, acks, want });
    }

    fn register(&mut self) {
        let held = self.reading.iter().chain(&self.done).map(Reading::held).collect();
        self.call(Call::Register { holder: self.holder, held });
    }

    /// All leases that it has trained under and not settled.
    fn unsettled(&self) -> impl Iterator<Item = &Reading> {
        self.reading.iter().chain(&self.done).chain(&self.parting)
    }

    /// Trains up to `want` samples, commits them if the model is still the one it works on, and says so.
    fn train(&mut self, want: u64, more: u32, live: &BTreeMap<LeaseId, Own>, model: &mut Trained) {
        let (mut left, mut acks) = (want, Vec::new());
        for reading in &mut self.reading {
            let to = reading.grant.len.min(reading.committed + left);
            left -= to - reading.committed;
            if to == reading.committed {
                continue;
            }
            if self.line == model.line {
                let ended = !live.contains_key(&reading.grant.lease);
                for sample in reading.samples(reading.committed, to) {
                    *model.times.entry(sample).or_insert(0) += 1;
                    if ended {
                        model.excuse(sample);
                    }
                }
            }
            (reading.committed, reading.begun) = (to, true);
            acks.push(Ack { lease: reading.grant.lease, offset: to });
        }
        let (done, reading) = self.reading.drain(..).partition(|r: &Reading| r.committed == r.grant.len);
        (self.done, self.reading) = (done, reading);
        self.exchange(acks, more);
    }

    /// The answer to its call. `None` if it must exit.
    fn hear(&mut self, reply: &CallReply, line: u64, obeys: bool) -> Option<()> {
        let (_, call) = self.out.take().expect("only what was asked is answered");
        self.parting.clear();
        match (&call, reply) {
            (_, CallReply::Registered(Ok(registered))) => {
                self.generation = Some(registered.generation);
                let mut adopted = registered.adopted.iter();
                // One that is done and all the same adopted is one that the answer to an earlier registration gave.
                for mut reading in self.reading.drain(..).chain(self.done.drain(..)).collect::<Vec<_>>() {
                    if let Some(grant) = adopted.next().copied().flatten() {
                        reading.grant.lease = grant.lease;
                        self.reading.push(reading);
                    }
                }
                self.line = line;
                Some(())
            }
            (_, CallReply::Registered(Err(_))) => None,
            (Call::Exchange { acks, .. }, CallReply::Exchanged(Ok(exchanged))) => {
                self.answered(acks, exchanged);
                let recalled: Vec<Ack> = self.recalled(exchanged, obeys);
                if !recalled.is_empty() {
                    let given_up = |r: &Reading| recalled.iter().any(|ack| ack.lease == r.grant.lease);
                    (self.parting, self.reading) = self.reading.drain(..).partition(given_up);
                    self.call(Call::Release { holder: self.holder, acks: recalled });
                }
                Some(())
            }
            (Call::Exchange { .. }, CallReply::Exchanged(Err(ExchangeError::Fetch(error)))) => match error {
                FetchError::WrongGeneration { .. } | FetchError::UnknownHolder { .. } => {
                    self.generation = None;
                    Some(())
                }
                FetchError::Quarantined { .. } => {
                    self.stopped = true;
                    Some(())
                }
                FetchError::Fenced { .. } => None,
                FetchError::OldRequest { .. } => panic!("an honest client was refused: {error}"),
            },
            (Call::Release { .. }, CallReply::Acked(Ok(_)))
            | (Call::Fail { .. }, CallReply::Failed(Ok(_))) => Some(()),
            (call, reply) => panic!("an honest client said {call:?} and was answered {reply:?}"),
        }
    }

    fn answered(&mut self, acks: &[Ack], exchanged: &Exchanged) {
        for (ack, outcome) in acks.iter().zip(&exchanged.outcomes) {
            self.reading.retain(|r| r.grant.lease != ack.lease || *outcome == AckOutcome::Accepted);
        }
        self.done.clear();
        for grant in exchanged.grants() {
            if self.reading.iter().all(|reading| reading.grant.lease != grant.lease) {
                self.reading.push(Reading { grant, committed: grant.resume_at, begun: false });
            }
        }
        if let Some(FetchOutcome::Granted(_)) = exchanged.fetched {
            self.request = self.request.next();
        }
        self.ended |= exchanged.fetched == Some(FetchOutcome::EndOfData);
    }

    fn recalled(&self, exchanged: &Exchanged, obeys: bool) -> Vec<Ack> {
        let given_up = self
            .reading
            .iter()
            .filter(|reading| obeys && !reading.begun && exchanged.recalled.contains(&reading.grant.lease));
        given_up.map(|r| Ack { lease: r.grant.lease, offset: r.committed }).collect()
    }
}

/// A message to the service: from which client in which life, its number there, and what it says.
#[derive(Debug, Clone)]
struct Asked {
    from: Option<(usize, u64, u64)>,
    call: Call,
}

/// An answer on its way, with the model that the job worked on when it was given.
#[derive(Debug, Clone)]
struct Said {
    to: (usize, u64, u64),
    reply: CallReply,
    line: u64,
}

/// What can happen next; numbers choose among what there is.
#[derive(Debug, Clone)]
enum Step {
    /// A client does the next thing that it should do.
    Act {
        client: u8,
        want: u64,
        more: u32,
        how: u8,
    },
    /// As that, and nothing goes wrong on the way there and back.
    Call {
        client: u8,
        want: u64,
        more: u32,
        how: u8,
        obeys: bool,
    },
    /// A client that has waited long enough says it again.
    Again {
        client: u8,
    },
    /// A message arrives, now or once more.
    Arrive {
        which: u8,
        stays: bool,
    },
    /// An answer arrives.
    Answer {
        which: u8,
        stays: bool,
        obeys: bool,
    },
    LoseMessage {
        which: u8,
    },
    LoseAnswer {
        which: u8,
    },
    Die {
        client: u8,
    },
    /// It is taken for dead, and is not.
    DeclareDead {
        client: u8,
    },
    Crash {
        lost: u8,
        compacted: Option<u16>,
    },
    Freeze {
        until: u64,
    },
    Tick {
        now: u64,
    },
    Keep,
    Cut,
    Restore {
        which: u8,
    },
}

fn steps() -> impl Strategy<Value = Step> {
    let client = 0..4_u8;
    let which = || prop_oneof![3 => Just(0_u8), 1 => any::<u8>()];
    let obeys = || prop_oneof![4 => Just(true), 1 => Just(false)];
    let stays = || prop_oneof![5 => Just(false), 1 => Just(true)];
    let compacted = prop_oneof![2 => Just(None), 1 => any::<u16>().prop_map(Some)];
    prop_oneof![
        10 => (client.clone(), 1..5_u64, 0..4_u32, 0..20_u8)
            .prop_map(|(client, want, more, how)| Step::Act { client, want, more, how }),
        40 => (client.clone(), 1..5_u64, 0..4_u32, 0..20_u8, obeys())
            .prop_map(|(client, want, more, how, obeys)| Step::Call { client, want, more, how, obeys }),
        3 => client.clone().prop_map(|client| Step::Again { client }),
        10 => (which(), stays()).prop_map(|(which, stays)| Step::Arrive { which, stays }),
        10 => (which(), stays(), obeys())
            .prop_map(|(which, stays, obeys)| Step::Answer { which, stays, obeys }),
        2 => which().prop_map(|which| Step::LoseMessage { which }),
        2 => which().prop_map(|which| Step::LoseAnswer { which }),
        1 => client.clone().prop_map(|client| Step::Die { client }),
        1 => client.prop_map(|client| Step::DeclareDead { client }),
        1 => (0..4_u8, compacted).prop_map(|(lost, compacted)| Step::Crash { lost, compacted }),
        1 => (0..4_u64).prop_map(|until| Step::Freeze { until }),
        2 => (0..4_u64).prop_map(|now| Step::Tick { now }),
        1 => Just(Step::Keep),
        2 => Just(Step::Cut),
        1 => any::<u8>().prop_map(|which| Step::Restore { which }),
    ]
}

#[derive(Clone)]
struct Story {
    model: Model,
    trained: Trained,
    /// The models that belong to what the ledger keeps.
    kept: Vec<Trained>,
    clients: Vec<Client>,
    lives: u64,
    messages: Vec<Asked>,
    answers: Vec<Said>,
    /// What the ledger was told last, and its answer.
    last: Option<(Call, CallReply)>,
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
        // With a static assignment there is one for each share.
        let clients = match model.book.spec.assignment {
            Assignment::Dynamic => 3,
            Assignment::Static { workers } => workers,
        };
        let clients: Vec<Client> = (0..clients).map(|index| Client::new(worker(index, 0), 0)).collect();
        Self {
            model,
            trained: Trained::default(),
            kept: Vec::new(),
            clients,
            lives: 0,
            messages: Vec::new(),
            answers: Vec::new(),
            last: None,
        }
    }

    fn take(&mut self, step: &Step) {
        self.last = None;
        let at = |seconds| JobTime::from_duration(std::time::Duration::from_secs(seconds));
        let clients = self.clients.len();
        match step {
            Step::Act { client, want, more, how } => {
                let client = usize::from(*client) % clients;
                self.act(client, *want, *more, *how);
                self.send(client);
            }
            Step::Call { client, want, more, how, obeys } => {
                let client = usize::from(*client) % clients;
                self.act(client, *want, *more, *how);
                if let Some(call) = self.call_of(client) {
                    self.arrive(call);
                    let said = self.answers.pop().expect("it was just given");
                    self.answer(&said, *obeys);
                }
            }
            Step::Again { client } => self.send(usize::from(*client) % clients),
            Step::Arrive { which, stays } => {
                let Some(which) = usize::from(*which).checked_rem(self.messages.len()) else { return };
                let asked = if *stays { self.messages[which].clone() } else { self.messages.remove(which) };
                self.arrive(asked);
            }
            Step::Answer { which, stays, obeys } => {
                let Some(which) = usize::from(*which).checked_rem(self.answers.len()) else { return };
                let said = if *stays { self.answers[which].clone() } else { self.answers.remove(which) };
                self.answer(&said, *obeys);
            }
            Step::LoseMessage { which } => {
                if let Some(which) = usize::from(*which).checked_rem(self.messages.len()) {
                    // The news of a death is sent until it is heard.
                    if self.messages[which].from.is_some() {
                        self.messages.remove(which);
                    }
                }
            }
            Step::LoseAnswer { which } => {
                if let Some(which) = usize::from(*which).checked_rem(self.answers.len()) {
                    self.answers.remove(which);
                }
            }
            Step::Die { client } => self.die(usize::from(*client) % clients),
            Step::DeclareDead { client } => {
                let holder = self.clients[usize::from(*client) % clients].holder;
                self.messages.push(Asked { from: None, call: Call::Lost { holder } });
            }
            Step::Crash { lost, compacted } => {
                let written = self.model.naive.notes().len();
                let kept = written.saturating_sub(usize::from(*lost)).max(self.model.kept_least());
                let compacted = compacted.map(|at| usize::from(at) % (kept + 1));
                self.say(Call::Restart { kept, compacted });
            }
            Step::Freeze { until } => self.say(Call::Freeze { until: at(*until) }),
            Step::Tick { now } => self.say(Call::Tick { now: at(*now) }),
            Step::Keep => self.say(Call::Keep),
            Step::Cut => self.say(Call::Cut { committed: self.trained.times.len() as u64 }),
            Step::Restore { which } => {
                if let Some(which) = usize::from(*which).checked_rem(self.kept.len()) {
                    self.say(Call::Restore { which });
                }
            }
        }
    }

    /// The ledger is told something.
    fn say(&mut self, call: Call) {
        let before = self.model.book.account.samples.clone();
        let live: Vec<LeaseId> = self.model.book.live.keys().copied().collect();
        let reply = self.model.say(&call);
        match &call {
            Call::Keep => self.kept.push(self.trained.clone()),
            Call::Cut { .. } if !reply.is_refusal() => {
                let in_model: BTreeSet<_> = self.trained.times.keys().copied().collect();
                assert_eq!(self.model.book.account.samples, in_model, "a cut that is none");
                self.kept.push(self.trained.clone());
            }
            Call::Restart { .. } => {
                // Connections end with the process.
                self.messages.retain(|asked| !matches!(asked.call, Call::Register { .. }));
                for sample in before.difference(&self.model.book.account.samples) {
                    self.trained.excuse(*sample);
                }
            }
            Call::Restore { which } => {
                let line = self.trained.line + 1;
                self.trained = Trained { line, ..self.kept[*which].clone() };
                // What was in the model and not acknowledged comes again.
                let in_model: Vec<_> = self.trained.times.keys().copied().collect();
                for sample in in_model {
                    if !self.model.book.account.samples.contains(&sample) {
                        self.trained.excuse(sample);
                    }
                }
            }
            _ => {}
        }
        let Book { live: still, account, .. } = &self.model.book;
        let ended = |lease: &LeaseId| live.contains(lease) && !still.contains_key(lease);
        for client in &self.clients {
            for reading in client.unsettled().filter(|reading| ended(&reading.grant.lease)) {
                self.trained.excuse_all(client, reading, &account.samples);
            }
        }
        self.last = Some((call, reply));
    }

    fn act(&mut self, at: usize, want: u64, more: u32, how: u8) {
        let client = &mut self.clients[at];
        if client.out.is_some() || client.stopped {
            return;
        }
        if client.generation.is_none() {
            client.register();
            return;
        }
        match (client.reading.first().cloned(), how) {
            (None, _) if client.ended => {}
            (None, _) => client.exchange(Vec::new(), more),
            // It has enough, and asks for more all the same.
            (Some(_), 0 | 1) => client.exchange(Vec::new(), more),
            (Some(front), 2) if front.committed < front.grant.len => {
                client.parting = vec![client.reading.remove(0)];
                let ack = Ack { lease: front.grant.lease, offset: front.committed };
                client.call(Call::Fail { holder: client.holder, ack });
            }
            (Some(_), 3) => {
                client.parting = std::mem::take(&mut client.reading);
                let ack = |r: &Reading| Ack { lease: r.grant.lease, offset: r.committed };
                let acks = client.parting.iter().map(ack).collect();
                client.call(Call::Release { holder: client.holder, acks });
            }
            (Some(_), _) => client.train(
                want,
                if client.ended { 0 } else { more },
                &self.model.book.live,
                &mut self.trained,
            ),
        }
    }

    fn send(&mut self, at: usize) {
        self.messages.extend(self.call_of(at));
    }

    /// The call that a client waits for the answer to.
    fn call_of(&self, at: usize) -> Option<Asked> {
        let client = &self.clients[at];
        let (number, call) = client.out.as_ref()?;
        Some(Asked { from: Some((at, client.life, *number)), call: call.clone() })
    }

    fn arrive(&mut self, asked: Asked) {
        self.say(asked.call);
        if let (Some(to), Some((_, reply))) = (asked.from, &self.last) {
            self.answers.push(Said { to, reply: reply.clone(), line: self.trained.line });
        }
    }

    fn answer(&mut self, said: &Said, obeys: bool) {
        let (at, life, number) = said.to;
        let client = &mut self.clients[at];
        if client.life != life || client.out.as_ref().is_none_or(|(out, _)| *out != number) {
            return; // No client waits for it any more.
        }
        if client.hear(&said.reply, said.line, obeys).is_none() {
            self.die(at);
        } else {
            self.send(at);
        }
    }

    /// The process ends, its place is started again, and the ledger hears so sooner or later.
    fn die(&mut self, at: usize) {
        self.lives += 1;
        let client = &mut self.clients[at];
        for reading in client.unsettled() {
            self.trained.excuse_all(client, reading, &self.model.book.account.samples);
        }
        let holder = client.holder;
        let next =
            self.model.book.lost.get(&holder.node).copied().unwrap_or_default().max(holder.incarnation);
        *client = Client::new(Holder { incarnation: next.next(), ..holder }, self.lives);
        self.messages.push(Asked { from: None, call: Call::Lost { holder } });
    }

    fn count(&self, seen: &mut BTreeMap<&'static str, u64>) {
        for (what, times) in &self.model.book.seen {
            *seen.entry(what).or_insert(0) += times;
        }
        let repeated = self.trained.times.values().filter(|times| **times > 1).count();
        *seen.entry("trained twice").or_insert(0) += repeated as u64;
        *seen.entry("trained").or_insert(0) += self.trained.times.len() as u64;
    }

    /// What holds at every moment.
    fn check(&self) {
        let account = &self.model.book.account.samples;
        let phantom = account.iter().find(|sample| !self.trained.times.contains_key(sample));
        assert_eq!(phantom, None, "is counted, and not in the model");
        for (sample, times) in &self.trained.times {
            let excused = self.trained.excused.get(sample).copied().unwrap_or(0);
            // What is in flight and may still be lost is not excused yet, and in the model once.
            assert!(*times <= 1 + excused, "{sample:?} is in the model {times} times, {excused} excused");
        }
    }
}

struct Stories;

impl ReferenceStateMachine for Stories {
    type State = Story;
    type Transition = Step;

    fn init_state() -> BoxedStrategy<Story> {
        specs().prop_map(Story::new).boxed()
    }

    fn transitions(_: &Story) -> BoxedStrategy<Step> {
        steps().boxed()
    }

    fn apply(mut story: Story, step: &Step) -> Story {
        story.take(step);
        story
    }
}

thread_local! {
    static SEEN: RefCell<BTreeMap<&'static str, u64>> = const { RefCell::new(BTreeMap::new()) };
}

struct Told;

impl StateMachineTest for Told {
    type SystemUnderTest = Real;
    type Reference = Stories;

    fn init_test(story: &Story) -> Real {
        Real::new(story.model.book.spec.clone())
    }

    fn apply(mut real: Real, story: &Story, _: Step) -> Real {
        hear(story, &mut real);
        real
    }

    /// Nothing goes wrong any more, and late messages never arrive: every client comes to the end.
    fn teardown(mut real: Real, mut story: Story) {
        SEEN.with_borrow_mut(|seen| story.count(seen));
        story.messages.retain(|asked| asked.from.is_none());
        while let Some(asked) = story.messages.pop() {
            story.arrive(asked);
            hear(&story, &mut real);
        }
        story.answers.clear();
        story.say(Call::Thaw);
        hear(&story, &mut real);
        let shards = story.model.book.places.len() as u64;
        let most = 20 + 4 * shards * story.clients.len() as u64;
        let mut rounds = 0;
        let over = |story: &Story| {
            let left = |client: &Client| client.ended || client.stopped;
            story.model.has_failed() || story.model.naive.is_finished() && story.clients.iter().all(left)
        };
        while !over(&story) {
            rounds += 1;
            assert!(rounds <= most, "the history does not end: {:?}", story.clients);
            for at in 0..story.clients.len() {
                let Client { ended, stopped, out, reading, .. } = &story.clients[at];
                let gone = (*stopped || *ended && reading.is_empty()) && out.is_none();
                // A client that left before a crash or a restore made work is started again.
                if gone && !story.model.naive.is_finished() && !story.model.has_failed() {
                    story.die(at);
                    let lost = story.messages.pop().expect("somebody died");
                    story.arrive(lost);
                    hear(&story, &mut real);
                }
                story.take(&Step::Call { client: at as u8, want: 99, more: 1, how: u8::MAX, obeys: true });
                hear(&story, &mut real);
                // A life that was fenced ended with the answer.
                while let Some(asked) = story.messages.pop() {
                    if asked.from.is_none() {
                        story.arrive(asked);
                        hear(&story, &mut real);
                    }
                }
            }
        }
        if !story.model.has_failed() {
            let book = &story.model.book;
            let done =
                book.account.samples.len() as u64 + book.account.given_up(&book.spec).values().sum::<u64>();
            assert_eq!(done, book.spec.num_samples * u64::from(book.spec.epoch_limit()));
        }
        Pair { model: story.model, real }.drain();
    }
}

fn hear(story: &Story, real: &mut Real) {
    if let Some((call, expected)) = &story.last {
        real.hear(call, expected, &story.model);
    }
    story.check();
}

/// What 1,000 histories must have seen; about half of what they do.
const LEAST: [(&str, u64); 23] = [
    ("granted", 4_000),
    ("granted again", 250),
    ("adopted", 150),
    ("counted at adoption", 200),
    ("not adopted", 700),
    ("several at once", 600),
    ("recalled", 100),
    ("resumed", 300),
    ("wait", 4_000),
    ("at limit", 400),
    ("end of data", 400),
    ("stale", 300),
    ("completed", 3_000),
    ("released", 400),
    ("failed", 250),
    ("fenced", 1_000),
    ("frozen", 500),
    ("cut", 800),
    ("restored", 400),
    ("restarted", 500),
    ("restarted without the end of its log", 300),
    ("trained", 6_000),
    ("trained twice", 300),
];

#[test]
fn under_any_order_of_messages_the_model_has_the_samples_that_the_ledger_counts() {
    let config = config(1_024);
    let mut runner = TestRunner::new(config.clone());
    let histories = Stories::sequential_strategy(1..300);
    let result = runner.run(&histories, |(story, steps, seen)| {
        Told::test_sequential(config.clone(), story, steps, seen);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    SEEN.with_borrow(|seen| check_seen(seen, config.cases, &LEAST));
}
