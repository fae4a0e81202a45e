//! A worker as the service sees it: one call at a time, repeated until it is answered.

use antdt_core::{
    Ack, AckOutcome, FetchOutcome, Generation, Grant, Held, Holder, Incarnation, NodeId, RequestId,
};
use antdt_shard::{Answer, Event, ExchangeError, FetchError};

/// What a client may do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Register,
    Fetch,
    /// Samples below this offset of its lease are trained.
    Ack(u64),
    /// It gives its lease back, trained up to here.
    Release(u64),
    /// It cannot read beyond here.
    Fail(u64),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Client {
    pub(crate) holder: Holder,
    generation: Option<Generation>,
    request: RequestId,
    /// At most one, for the worlds are small; with what is trained of it.
    lease: Option<(Grant, u64)>,
    /// The call that is not answered.
    pub(crate) calling: Option<Event>,
    /// It was told that there is no more.
    pub(crate) ended: bool,
}

impl Client {
    pub(crate) fn new(index: u32) -> Self {
        Self::life(Holder::new(NodeId::worker(index), Incarnation(0)))
    }

    fn life(holder: Holder) -> Self {
        let request = RequestId(0);
        Self { holder, generation: None, request, lease: None, calling: None, ended: false }
    }

    /// The process ends and forgets, and the launcher starts the place again. A place that is down is one whose next
    /// life has not said anything yet.
    pub(crate) fn die(&mut self) {
        *self = Self::life(Holder::new(self.holder.node, self.holder.incarnation.next()));
    }

    /// What it may do now.
    pub(crate) fn calls(&self, releases: bool, faults: bool) -> Vec<Call> {
        if self.ended || self.calling.is_some() {
            return Vec::new();
        }
        let Some(_) = self.generation else { return vec![Call::Register] };
        let Some((grant, offset)) = &self.lease else { return vec![Call::Fetch] };
        let mut calls: Vec<Call> = (offset + 1..=grant.len).map(Call::Ack).collect();
        if releases {
            calls.extend((*offset..grant.len).map(Call::Release));
        }
        if faults {
            calls.extend((*offset..grant.len).map(Call::Fail));
        }
        calls
    }

    /// Whether it has ever made a call.
    pub(crate) fn has_begun(&self) -> bool {
        self.generation.is_some() || self.calling.is_some() || self.holder.incarnation.0 > 0
    }

    /// Makes a call. It is said again until it is answered.
    pub(crate) fn call(&mut self, call: Call) {
        self.calling = self.event(call);
    }

    fn event(&mut self, call: Call) -> Option<Event> {
        let holder = self.holder;
        let exchange = |generation, request: RequestId, acks, want| {
            Some(Event::Exchange { holder, generation, request: request.next(), acks, want })
        };
        let Some((grant, trained)) = &mut self.lease else {
            return match call {
                Call::Register => Some(Event::Register { holder, held: Vec::new() }),
                _ => exchange(self.generation?, self.request, Vec::new().into(), 1),
            };
        };
        let ack = |offset| Ack { lease: grant.lease, offset };
        match call {
            Call::Register => {
                let held = Held { lease: grant.lease, key: grant.key, offset: *trained };
                Some(Event::Register { holder, held: vec![held] })
            }
            Call::Fetch => None,
            Call::Ack(offset) => {
                *trained = offset;
                // What is at its end is acknowledged together with the next fetch.
                let want = u32::from(offset == grant.len);
                exchange(self.generation?, self.request, vec![ack(offset)].into(), want)
            }
            Call::Release(offset) => Some(Event::Release { holder, acks: vec![ack(offset)] }),
            Call::Fail(offset) => Some(Event::Fail { holder, ack: ack(offset) }),
        }
    }

    /// The answer to its call. `false` if no service that is sound gives it.
    pub(crate) fn hear(&mut self, event: &Event, answer: &Answer) -> bool {
        self.calling = None;
        match (event, answer) {
            (_, Answer::Register(Ok(registered))) => {
                self.generation = Some(registered.generation);
                let adopted = registered.adopted.first().copied().flatten();
                self.lease = adopted.map(|grant| (grant, grant.resume_at));
            }
            (Event::Exchange { request, .. }, Answer::Exchange(Ok(exchanged))) => {
                match exchanged.outcomes[..] {
                    [AckOutcome::StaleLease] => self.lease = None,
                    _ => self.lease = self.lease.filter(|(grant, offset)| *offset < grant.len),
                }
                match exchanged.fetched {
                    Some(FetchOutcome::Granted(grant)) => {
                        self.request = *request;
                        self.lease = Some((grant, grant.resume_at));
                    }
                    Some(FetchOutcome::EndOfData) => self.ended = true,
                    // It asks again, under the same number.
                    Some(FetchOutcome::Wait { .. }) | None => {}
                    Some(FetchOutcome::AtLimit) => return false,
                }
            }
            (_, Answer::Exchange(Err(ExchangeError::Fetch(error)))) => match error {
                // What it holds it presents when it registers.
                FetchError::WrongGeneration { .. } | FetchError::UnknownHolder { .. } => {
                    self.generation = None;
                }
                FetchError::Fenced { .. } => self.die(),
                _ => return false,
            },
            (_, Answer::Register(Err(_))) => self.die(),
            (Event::Release { .. }, Answer::Ack(Ok(_))) | (Event::Fail { .. }, Answer::Fail(Ok(_))) => {
                self.lease = None;
            }
            _ => return false,
        }
        true
    }
}
