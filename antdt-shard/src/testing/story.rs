//! Conversion of a history's steps into calls, given what happened before them.

use std::collections::BTreeMap;

use antdt_core::{Ack, Generation, Held, Holder, JobTime, RequestId};

use super::call::{Call, CallReply, worker};
use super::history::{Lease, Offset, Presented, Saying, Speaker, Step};
use super::model::Model;
use crate::spec::DatasetSpec;

/// A history so far, as it should be.
#[derive(Debug, Clone)]
pub(crate) struct Story {
    pub(crate) model: Model,
    /// Whether a restart may come without the last records.
    may_lose_records: bool,
    /// Whether the calls go through a source.
    by_source: bool,
    /// The generation in which each life registered last.
    known: BTreeMap<Holder, Generation>,
    /// The last request of each worker.
    requests: BTreeMap<u32, u64>,
    /// Calls that workers made.
    calls: Vec<Call>,
    /// Leases that their holders were asked to give back.
    recalled: Vec<(Holder, Vec<Ack>)>,
    /// Calls that were made and have not arrived, with the events until they do.
    late: Vec<(u8, Call)>,
}

impl Story {
    pub(crate) fn new(spec: DatasetSpec, may_lose_records: bool, by_source: bool) -> Self {
        Self {
            model: Model::new(spec),
            may_lose_records,
            by_source,
            known: BTreeMap::new(),
            requests: BTreeMap::new(),
            calls: Vec::new(),
            late: Vec::new(),
            recalled: Vec::new(),
        }
    }

    /// The calls that a step makes, those that are due by now first.
    pub(crate) fn take(&mut self, step: &Step) -> Vec<Call> {
        let mut calls = self.due(1);
        calls.extend(match step {
            Step::Late { by, step } => {
                let call = self.call(step);
                match call {
                    // Only messages are late.
                    Some(call) if call.caller().is_some() => {
                        self.late.push((*by, call));
                        None
                    }
                    call => call,
                }
            }
            step => self.call(step),
        });
        if let Step::Resize { workers } = step {
            calls.extend(self.resized(u32::from(*workers)));
        }
        calls
    }

    /// The late calls that arrive after so many events more.
    pub(crate) fn due(&mut self, events: u8) -> Vec<Call> {
        for (by, _) in &mut self.late {
            *by = by.saturating_sub(events);
        }
        let (due, late) = std::mem::take(&mut self.late).into_iter().partition(|(by, _)| *by == 0);
        self.late = late;
        due.into_iter().map(|(_, call): (u8, Call)| call).collect()
    }

    /// The call as it arrives: a source says in which generation its worker registered, and a log that loses nothing has what late
    /// calls wrote just before a restart.
    pub(crate) fn arriving(&self, mut call: Call) -> Call {
        if let Call::Restart { kept, .. } = &mut call
            && !self.may_lose_records
        {
            *kept = self.model.naive.notes().len();
        }
        if !self.by_source {
            return call;
        }
        let known = |holder: &Holder| self.known.get(holder).copied().unwrap_or(Generation(0));
        match &mut call {
            Call::Fetch { holder, generation, .. } | Call::Exchange { holder, generation, .. } => {
                *generation = known(holder);
            }
            Call::Ack { holder, acks } => {
                let (holder, acks) = (*holder, std::mem::take(acks));
                let (generation, request) = (known(&holder), RequestId(0));
                call = Call::Exchange { holder, generation, request, acks, want: 0 };
            }
            Call::Register { .. }
            | Call::Release { .. }
            | Call::Fail { .. }
            | Call::Lost { .. }
            | Call::Freeze { .. }
            | Call::Tick { .. }
            | Call::Thaw
            | Call::Keep
            | Call::Cut { .. }
            | Call::Restore { .. }
            | Call::Restart { .. } => {}
        }
        call
    }

    fn resized(&self, workers: u32) -> Vec<Call> {
        let book = &self.model.book;
        let gone = book.members.iter().filter(|(node, _)| node.index >= workers);
        let lost = gone.map(|(node, live)| Call::Lost { holder: Holder::new(*node, *live) });
        let new =
            (0..workers).map(|index| book.able(index)).filter(|able| !book.members.contains_key(&able.node));
        lost.chain(new.map(|holder| self.registration(holder))).collect()
    }

    /// A registration that presents what is still held.
    fn registration(&self, holder: Holder) -> Call {
        let mine = self.model.book.left.iter().filter(|own| own.holder == holder);
        let held = mine.map(|own| Held { lease: own.grant.lease, key: own.grant.key, offset: own.offset });
        Call::Register { holder, held: held.collect() }
    }

    /// Takes the answer to a call.
    pub(crate) fn heard(&mut self, call: &Call, reply: &CallReply) {
        if let (Call::Register { holder, .. }, CallReply::Registered(Ok(registered))) = (call, reply) {
            self.known.insert(*holder, registered.generation);
        }
        if let Call::Exchange { holder, .. } = call
            && let CallReply::Exchanged(Ok(exchanged)) = reply
            && !exchanged.recalled.is_empty()
        {
            let live = &self.model.book.live;
            let given = |lease: &_| live.get(lease).map(|own| Ack { lease: *lease, offset: own.offset });
            self.recalled.push((*holder, exchanged.recalled.iter().filter_map(given).collect()));
        }
        if call.caller().is_some() {
            self.calls.push(call.clone());
        }
    }

    fn life_of(&self, node: u32, life: i8) -> Holder {
        let able = i64::from(self.model.book.able(node).incarnation.0) + i64::from(life);
        worker(node, u32::try_from(able.max(0)).unwrap_or(u32::MAX))
    }

    fn question(&mut self, node: u32, back: u8, generations_back: u8) -> (Generation, RequestId) {
        let last = self.requests.entry(node).or_default();
        *last += u64::from(back == 0);
        let request = last.saturating_sub(u64::from(back.saturating_sub(1)));
        let generation = self.model.book.generation.0.saturating_sub(u64::from(generations_back));
        (Generation(generation), RequestId(request))
    }

    fn call(&mut self, step: &Step) -> Option<Call> {
        let book = &self.model.book;
        let at = |seconds| JobTime::from_duration(std::time::Duration::from_secs(seconds));
        Some(match step {
            Step::Register { node, life, held } => {
                let held = held.iter().filter_map(|presented| self.presented(*node, *presented)).collect();
                Call::Register { holder: self.life_of(*node, *life), held }
            }
            Step::Exchange { node, life, back, generations_back, forgetful, acks, want } => {
                let holder = self.life_of(*node, *life);
                if !forgetful && book.members.get(&holder.node) != Some(&holder.incarnation) {
                    return Some(self.registration(holder));
                }
                let acks = self.acks(*node, acks).into_iter().map(|(ack, _)| ack).collect();
                let (generation, request) = self.question(*node, *back, *generations_back);
                Call::Exchange { holder, generation, request, acks, want: *want }
            }
            Step::Fetch { node, life, back, generations_back } => {
                let holder = self.life_of(*node, *life);
                let (generation, request) = self.question(*node, *back, *generations_back);
                Call::Fetch { holder, generation, request }
            }
            Step::Again { back } => {
                let at = self.calls.len().checked_sub(1 + usize::from(*back))?;
                self.calls[at].clone()
            }
            Step::Say { what, node, of, by } => return self.said(*what, *node, of, *by),
            Step::Obey => {
                let (holder, acks) = self.recalled.pop().filter(|(_, acks)| !acks.is_empty())?;
                Call::Release { holder, acks }
            }
            Step::Lose { node, life } => Call::Lost { holder: self.life_of(*node, *life) },
            Step::Freeze { until } => Call::Freeze { until: at(*until) },
            Step::Tick { now } => Call::Tick { now: at(*now) },
            Step::Thaw => Call::Thaw,
            Step::Keep => Call::Keep,
            Step::Cut { off } => {
                let acked = book.account.samples.len() as u64;
                Call::Cut { committed: acked.saturating_add_signed(i64::from(*off)) }
            }
            Step::Restore { which } => Call::Restore { which: usize::from(*which).checked_rem(book.kept())? },
            Step::Restart { lost, compacted } => {
                let written = self.model.naive.notes().len();
                let kept = written.saturating_sub(usize::from(*lost)).max(self.model.kept_least());
                Call::Restart { kept, compacted: compacted.map(|at| usize::from(at) % (kept + 1)) }
            }
            Step::Late { step, .. } => return self.call(step),
            Step::Resize { .. } => return None,
        })
    }

    fn far(far: Offset, from: u64, len: u64) -> u64 {
        match far {
            Offset::All => len,
            Offset::Part(any) => from + any % (len - from).max(1),
            Offset::Wild(any) => any % (len + 2),
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

    fn acks(&self, node: u32, of: &[(Lease, Offset)]) -> Vec<(Ack, Holder)> {
        let book = &self.model.book;
        let ack = |(pick, far): &(Lease, Offset)| {
            let (grant, holder, from) = match pick {
                Lease::Live(any) => {
                    let mine = book.live.values().filter(|own| own.holder.node.index == node);
                    let mine: Vec<_> = mine.collect();
                    let own = mine[usize::from(*any).checked_rem(mine.len())?];
                    (own.grant, own.holder, own.offset)
                }
                Lease::Any(any) => {
                    let (grant, holder) = book.grants[usize::from(*any).checked_rem(book.grants.len())?];
                    (grant, holder, grant.resume_at)
                }
            };
            Some((Ack { lease: grant.lease, offset: Self::far(*far, from, grant.len) }, holder))
        };
        of.iter().filter_map(ack).collect()
    }

    fn said(&self, what: Saying, node: u32, of: &[(Lease, Offset)], by: Speaker) -> Option<Call> {
        let picked = self.acks(node, of);
        if picked.is_empty() && matches!(by, Speaker::Owner) {
            return None; // An empty call is for the few that have nothing to say.
        }
        let owner = picked.first().map_or(worker(node, 0), |(_, owner)| *owner);
        let holder = match by {
            Speaker::Owner => owner,
            Speaker::Another(other) => self.model.book.able(other),
            Speaker::Life(life) => {
                let other = i64::from(owner.incarnation.0) + i64::from(life);
                worker(owner.node.index, u32::try_from(other.max(0)).unwrap_or(u32::MAX))
            }
        };
        let acks: Vec<Ack> = picked.iter().map(|(ack, _)| *ack).collect();
        Some(match what {
            Saying::Ack => Call::Ack { holder, acks },
            Saying::Release => Call::Release { holder, acks },
            Saying::Fail => Call::Fail { holder, ack: *acks.first()? },
        })
    }
}
