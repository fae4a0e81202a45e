//! Clients, a service and a network, and everything that can happen next.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use antdt_shard::{Answer, DatasetSpec, Event};
use stateright::{Model, Property};

use super::client::{Call, Client};
use super::service::{Flaw, Service};
use super::witness::Broken;

/// How often each fault may happen, and how many of all kinds in one history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Faults {
    pub(crate) of_all: u8,
    /// Answers that never arrive.
    pub(crate) losses: u8,
    /// Messages that arrive twice, the second time whenever.
    pub(crate) repeats: u8,
    /// Workers that die, or are declared dead and are not.
    pub(crate) deaths: u8,
    /// Crashes of the service.
    pub(crate) crashes: u8,
    /// Restores of a snapshot that was taken before.
    pub(crate) restores: u8,
    /// Leases that are given back.
    pub(crate) releases: u8,
    /// Shards that cannot be read.
    pub(crate) unreadable: u8,
}

impl Faults {
    /// Each kind at most once.
    pub(crate) const fn once(of_all: u8) -> Self {
        Self { of_all, losses: 1, repeats: 1, deaths: 1, crashes: 1, restores: 1, releases: 1, unreadable: 1 }
    }

    fn left(&self, kind: u8) -> bool {
        self.of_all.min(kind) > 0
    }

    /// What is left after a call, whatever its fate.
    fn after(mut self, call: Call) -> Self {
        match call {
            Call::Release(_) => self.one_less(|left| &mut left.releases),
            Call::Fail(_) => self.one_less(|left| &mut left.unreadable),
            Call::Register | Call::Fetch | Call::Ack(_) => {}
        }
        self
    }

    fn fates(&self) -> Vec<Fate> {
        let mut fates = vec![Fate::Answered];
        fates.extend(self.left(self.losses).then_some(Fate::Unheard));
        fates.extend(self.left(self.repeats).then_some(Fate::Repeated));
        fates.extend(self.left(self.deaths).then_some(Fate::Survives));
        fates
    }

    fn one_less(&mut self, kind: fn(&mut Self) -> &mut u8) {
        *kind(self) -= 1;
        self.of_all -= 1;
    }
}

/// What becomes of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It arrives, and its answer does.
    Answered,
    /// It arrives, and its answer does not.
    Unheard,
    /// It is answered, and a copy arrives later.
    Repeated,
    /// The client dies, and it arrives later.
    Survives,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A client makes a call.
    Call(usize, Call, Fate),
    /// A client has waited for its answer long enough.
    CallAgain(usize, Fate),
    /// A message that was late arrives.
    Arrive(usize),
    Die(usize),
    /// The master takes a worker for dead that is not.
    DeclareDead(usize),
    Crash {
        lost: usize,
    },
    Keep,
    SetBack,
}

#[derive(Clone)]
pub(crate) struct State {
    service: Arc<Service>,
    clients: Vec<Client>,
    /// Messages that are late, in the order of what they say, so that equal states are equal.
    network: Vec<(String, Event)>,
    left: Faults,
    broken: Option<Broken>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("broken", &self.broken.map(Broken::name))
            .field("service", &self.service)
            .field("clients", &self.clients)
            .field("network", &self.network)
            .field("left", &self.left)
            .finish()
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.service.print().hash(hasher);
        format!("{:?}", self.clients).hash(hasher);
        for (said, _) in &self.network {
            said.hash(hasher);
        }
        self.left.hash(hasher);
        self.broken.hash(hasher);
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.service.print() == other.service.print()
            && self.clients == other.clients
            && self.network == other.network
            && self.left == other.left
            && self.broken == other.broken
    }
}

/// The property that is asked of each state, not of each step.
pub(crate) const FAIR: &str = "without further faults everybody comes to the end";

pub(crate) struct ProtocolWorld {
    spec: DatasetSpec,
    clients: u32,
    faults: Faults,
    flaw: Option<Flaw>,
}

impl ProtocolWorld {
    pub(crate) fn new(spec: DatasetSpec, clients: u32, faults: Faults) -> Self {
        Self { spec, clients, faults, flaw: None }
    }

    pub(crate) fn with(self, flaw: Flaw) -> Self {
        Self { flaw: Some(flaw), ..self }
    }
}

impl Model for ProtocolWorld {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let service = Service::start(&self.spec, self.flaw, self.faults.crashes > 0);
        vec![State {
            service: Arc::new(service),
            clients: (0..self.clients).map(Client::new).collect(),
            network: Vec::new(),
            left: self.faults,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_some() {
            return;
        }
        let left = &state.left;
        // Clients differ in nothing but their number, so they begin in its order.
        let begun = state.clients.iter().take_while(|client| client.has_begun()).count();
        for (at, client) in state.clients.iter().enumerate().take(begun + 1) {
            for call in client.calls(left.left(left.releases), left.left(left.unreadable)) {
                let fates = left.after(call).fates();
                steps.extend(fates.into_iter().map(|fate| Step::Call(at, call, fate)));
            }
            if client.calling.is_some() {
                steps.extend(left.fates().into_iter().map(|fate| Step::CallAgain(at, fate)));
            }
            if left.left(left.deaths) {
                steps.extend([Step::Die(at), Step::DeclareDead(at)]);
            }
        }
        for at in 0..state.network.len() {
            // If the same message is there twice it does not matter which.
            if at == 0 || state.network[at].0 != state.network[at - 1].0 {
                steps.push(Step::Arrive(at));
            }
        }
        if let Some(at_risk) = state.service.at_risk().filter(|_| left.left(left.crashes)) {
            steps.extend((0..=at_risk).map(|lost| Step::Crash { lost }));
        }
        steps.extend(left.left(left.restores).then_some(Step::Keep));
        steps.extend(state.service.has_snapshot().then_some(Step::SetBack));
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut next = last.clone();
        next.broken = next.take(step).err();
        if !next.left.left(next.left.crashes) && next.service.at_risk().is_some() {
            Arc::make_mut(&mut next.service).forget_journal();
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        macro_rules! never {
            ($($at:literal)*) => {
                vec![$(Property::always(Broken::ALL[$at].name(), |_: &ProtocolWorld, s: &State| {
                    s.broken != Some(Broken::ALL[$at])
                })),*]
            };
        }
        let mut properties = never![0 1 2 3 4 5 6 7 8 9 10 11];
        properties.push(Property::always(FAIR, |_, s: &State| s.broken.is_some() || s.comes_to_an_end()));
        properties.push(Property::sometimes("everybody comes to the end", |_, s: &State| {
            s.service.is_finished() && s.clients.iter().all(|client| client.ended)
        }));
        properties
    }
}

impl State {
    fn take(&mut self, step: Step) -> Result<(), Broken> {
        match step {
            Step::Call(at, call, fate) => {
                self.left = self.left.after(call);
                self.clients[at].call(call);
                self.meet(at, fate)
            }
            Step::CallAgain(at, fate) => self.meet(at, fate),
            Step::Arrive(at) => {
                let (_, event) = self.network.remove(at);
                self.arrive(&event).map(drop)
            }
            Step::Die(at) => {
                self.die(at);
                Ok(())
            }
            Step::DeclareDead(at) => {
                self.left.one_less(|left| &mut left.deaths);
                let holder = self.clients[at].holder;
                self.send(Event::WorkerLost { holder });
                Ok(())
            }
            Step::Crash { lost } => {
                self.left.one_less(|left| &mut left.crashes);
                Arc::make_mut(&mut self.service).crash(lost)
            }
            Step::Keep => {
                self.left.one_less(|left| &mut left.restores);
                Arc::make_mut(&mut self.service).keep();
                Ok(())
            }
            Step::SetBack => Arc::make_mut(&mut self.service).set_back(),
        }
    }

    /// The call of a client meets its fate.
    fn meet(&mut self, at: usize, fate: Fate) -> Result<(), Broken> {
        let event = self.clients[at].calling.clone().expect("only a call has a fate");
        match fate {
            Fate::Answered => {}
            Fate::Unheard => {
                self.left.one_less(|left| &mut left.losses);
                return self.arrive(&event).map(drop);
            }
            Fate::Repeated => {
                self.left.one_less(|left| &mut left.repeats);
                self.send(event.clone());
            }
            Fate::Survives => {
                self.send(event);
                self.die(at);
                return Ok(());
            }
        }
        let answer = self.arrive(&event)?;
        let client = &mut self.clients[at];
        let sound = client.hear(&event, &answer) || self.service.witness.truth.is_fenced(client.holder);
        if sound { Ok(()) } else { Err(Broken::LiveRefused) }
    }

    fn die(&mut self, at: usize) {
        self.left.one_less(|left| &mut left.deaths);
        let holder = self.clients[at].holder;
        self.clients[at].die();
        self.send(Event::WorkerLost { holder });
    }

    fn send(&mut self, event: Event) {
        let message = (format!("{event:?}"), event);
        let at = self.network.partition_point(|(said, _)| *said < message.0);
        self.network.insert(at, message);
    }

    fn arrive(&mut self, event: &Event) -> Result<Answer, Broken> {
        Arc::make_mut(&mut self.service).handle(event)
    }

    /// Whether every client comes to the end, with nothing broken, if nothing goes wrong any more and what is late never
    /// arrives.
    fn comes_to_an_end(&self) -> bool {
        let mut state = self.clone();
        state.service = Arc::new(self.service.bare());
        for _ in 0..64 {
            for at in 0..state.clients.len() {
                let client = &mut state.clients[at];
                // A place whose process left before a crash or restore made work is started again.
                if client.ended && !state.service.is_finished() {
                    client.die();
                }
                if client.calling.is_none()
                    && let Some(call) = client.calls(false, false).last()
                {
                    client.call(*call);
                }
                if client.calling.is_some() && state.meet(at, Fate::Answered).is_err() {
                    return false;
                }
            }
            if state.clients.iter().all(|client| client.ended) && state.service.is_finished() {
                return true;
            }
        }
        false
    }
}
