//! Samples for the training loop: leases from the shard service, cut into batches.
//!
//! A shard is asked for as late as possible, so that none waits in the hands of a slow worker while others are idle:
//! in the call that acknowledges a batch, if what is left does not fill the next one.

use std::time::Duration;

use antdt_agent::{Batch, Batcher};
use antdt_core::port::WANT_MAX;
use antdt_core::{Ack, AckOutcome, Acks, Exchanged, FetchOutcome, Grant, Held, RequestId};
use smallvec::SmallVec;

use super::{Call, Reply, not_an_answer};

/// Restarts of the service that one exchange outlives. More in so short a time is a service that does not stay.
const RESTARTS_MAX: u32 = 8;

/// What the service was asked for last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Asked {
    #[default]
    Nothing,
    /// To register, for the first time.
    First,
    /// To acknowledge and to grant.
    Exchange,
    /// To register again, presenting the leases held; first those that go on, then those that are done or given up. Then the question
    /// is put again that the service did not answer.
    Again { going_on: u32, question: bool },
    /// To take leases back.
    Return,
    /// To count a fault.
    Fault,
}

/// Leases of one worker. Whatever returns a call goes on with its [`answer`](Self::answer), until no call is left.
#[derive(Debug, Clone, Default)]
pub(super) struct Feed {
    asked: Asked,
    registered: bool,
    end_of_data: bool,
    /// Whether to ask until the next batch is full.
    filling: bool,
    /// Whether the service may keep the question.
    patient: bool,
    /// Shards that the question asks for.
    want: u32,
    /// Restarts of the service since the question was put first.
    restarts: u32,
    /// Requests that were answered with shards.
    granted: u64,
    /// Batches beyond the next one whose samples are leased before.
    read_ahead: u32,
    /// The service gave less than was asked for, or wanted some back: others need what this worker would only read ahead.
    scarce: bool,
    /// Samples of the last batch that was asked for, and of the last shard that was granted.
    batch_len: u64,
    shard_len: u64,
    /// How long the service may keep a question while nothing is held.
    patience: Duration,
    /// What the question acknowledges, and the leases that were finished since the service answered last.
    acks: Acks,
    batcher: Batcher,
    done: SmallVec<[Held; 1]>,
    /// Leases that go back, until the service says that it has them.
    given_up: SmallVec<[Held; 1]>,
}

impl Feed {
    /// Whether every sample of the job is accounted for.
    pub(super) const fn end_of_data(&self) -> bool {
        self.end_of_data
    }

    /// From now on leases are taken for so many batches beyond the next one, as far as there are any.
    pub(super) const fn set_read_ahead(&mut self, batches: u32) {
        self.read_ahead = batches;
    }

    /// The leases held.
    pub(super) const fn leases(&self) -> &Batcher {
        &self.batcher
    }

    /// Batches of the size asked for last in the shard that was granted last, rounded up.
    pub(super) const fn batches_of_a_shard(&self) -> u64 {
        if self.batch_len == 0 { 0 } else { self.shard_len.div_ceil(self.batch_len) }
    }

    /// Prepares the next batch: `want` samples, fewer at the tail, none while there is nothing to take. Then
    /// [`take`](Self::take) it.
    ///
    /// When nothing is held, the service may keep the call for `patience` in case a peer's shard comes back.
    ///
    /// The first time it registers, which ends the leases of the node's earlier lives. Not sooner: until this life has
    /// joined, the survivors may still have to settle what an earlier one did last.
    pub(super) fn next(&mut self, want: u64, patience: Duration) -> Option<Call> {
        (self.batch_len, self.patience, self.filling) = (want, patience, true);
        if self.registered {
            return self.fill();
        }
        self.asked = Asked::First;
        Some(Call::Register(Vec::new()))
    }

    /// Cuts the batch.
    pub(super) fn take(&mut self) -> Batch {
        self.batcher.take(self.batch_len)
    }

    /// The acks that are due when a batch is committed, under the names that its leases have now.
    pub(super) fn acks_of(&self, batch: &Batch) -> Acks {
        let renamed = |ack: Ack| Ack { lease: self.batcher.name_of(ack.lease), ..ack };
        batch.fragments.iter().map(|fragment| renamed(fragment.ack())).collect()
    }

    /// The batch is part of the model: acknowledge it.
    pub(super) fn commit(&mut self, batch: &Batch) -> Option<Call> {
        self.acks = self.acks_of(batch);
        let mut finished = self.batcher.commit(batch);
        if !finished.is_empty() {
            self.done.append(&mut finished);
        }
        if self.acks.is_empty() {
            return None;
        }
        self.filling = false;
        let want = if self.end_of_data { 0 } else { self.shards_missing() };
        self.exchange(want, false)
    }

    /// The batch is part of the model and was acknowledged by another process; in vain, if the service was restarted before.
    pub(super) fn settled(&mut self, batch: &Batch) {
        self.done.append(&mut self.batcher.commit(batch));
    }

    /// The batch is not part of the model: its samples come again.
    pub(super) fn abort(&mut self, batch: &Batch) {
        self.batcher.abort(batch);
    }

    /// A sample of the batch cannot be read: its lease counts as a data fault. What was read before it in the same
    /// lease and is committed stays so; the other leases of the batch are read again.
    pub(super) fn fault(&mut self, batch: &Batch, sample: u64, why: String) -> Option<Call> {
        let hit = batch.fragments.iter().find(|fragment| fragment.contains(sample));
        // Its name before the batch is forgotten: it may have been adopted under another one.
        let at = hit.or(batch.fragments.first()).map(|fragment| Held {
            lease: self.batcher.name_of(fragment.grant.lease),
            key: fragment.grant.key,
            offset: fragment.from,
        });
        self.batcher.abort(batch);
        let at = at?;
        self.batcher.revoke(at.lease);
        (self.asked, self.restarts) = (Asked::Fault, 0);
        self.given_up.push(at);
        Some(Call::Fail { at: at.ack(), why })
    }

    /// Gives all leases back.
    pub(super) fn release(&mut self) -> Option<Call> {
        self.filling = false;
        let held = self.batcher.release();
        self.restarts = 0;
        self.give_back(held)
    }

    /// The ledger was set back, and every lease with it. Whatever is held goes back, in case the service granted it after that, and
    /// the worker registers again before it asks for more.
    pub(super) fn roll_back(&mut self) -> Option<Call> {
        (self.registered, self.end_of_data) = (false, false);
        self.done.clear();
        self.acks.clear();
        self.release()
    }

    /// Takes the service's answer to the last call. Returns what to ask it next; nothing when all is done.
    ///
    /// # Errors
    /// If the reply is no answer to the call, or the service does not stay.
    pub(super) fn answer(&mut self, reply: &Reply) -> Result<Option<Call>, String> {
        let asked = std::mem::take(&mut self.asked);
        match (asked, reply) {
            (Asked::First, Reply::Registered(_)) => {
                self.registered = true;
                Ok(self.fill())
            }
            (Asked::Exchange, Reply::Exchanged(exchanged)) => Ok(self.exchanged(exchanged)),
            (Asked::Exchange | Asked::Return | Asked::Fault, Reply::ServiceRestarted)
                if self.restarts < RESTARTS_MAX =>
            {
                self.restarts += 1;
                let mut held = self.batcher.held();
                let going_on = u32::try_from(held.len()).unwrap_or(u32::MAX);
                self.asked = Asked::Again { going_on, question: asked == Asked::Exchange };
                held.extend(self.done.drain(..));
                // What is part of the model of them, the service must hear of before another worker begins them.
                held.extend(self.given_up.drain(..));
                Ok(Some(Call::Register(held)))
            }
            (Asked::Exchange | Asked::Return | Asked::Fault, Reply::ServiceRestarted) => {
                Err(format!("the shard service was restarted {} times during one exchange", RESTARTS_MAX + 1))
            }
            (Asked::Again { going_on, question }, Reply::Registered(registered)) => {
                let going_on = (going_on as usize).min(registered.adopted.len());
                let (going_on, others) = registered.adopted.split_at(going_on);
                self.batcher.adopted(going_on);
                // What was presented says all that the acks say.
                self.acks.clear();
                if question {
                    return Ok(self.question());
                }
                let as_held =
                    |grant: &Grant| Held { lease: grant.lease, key: grant.key, offset: grant.resume_at };
                let given_up = others.iter().flatten().map(as_held).collect();
                Ok(self.give_back(given_up).or_else(|| self.after_return()))
            }
            (Asked::Return | Asked::Fault, Reply::Released) => {
                self.given_up.clear();
                Ok(if asked == Asked::Return { self.after_return() } else { None })
            }
            (asked, reply) => Err(not_an_answer(reply, &asked)),
        }
    }

    /// What goes back is back: what was it that the worker wanted?
    fn after_return(&mut self) -> Option<Call> {
        if self.filling { self.fill() } else { None }
    }

    /// Asks for shards until the next batch is full.
    fn fill(&mut self) -> Option<Call> {
        let unread = self.batcher.unread();
        if self.end_of_data || unread >= self.batch_len {
            return None;
        }
        self.acks.clear();
        self.exchange(self.shards_missing(), unread == 0)
    }

    /// Shards that the next batch needs, and those that are read ahead, as far as their length is known and as many as one call may ask for. Near the end
    /// there may be fewer.
    fn shards_missing(&self) -> u32 {
        let ahead = if self.scarce { 0 } else { u64::from(self.read_ahead) };
        let due = self.batch_len.saturating_mul(ahead + 1);
        let samples = due.saturating_sub(self.batcher.unread());
        if self.shard_len == 0 {
            // One says how long they are. A worker that asked for as many as its samples would hold shards that others wait for.
            return u32::from(samples > 0);
        }
        let shards = u32::try_from(samples.div_ceil(self.shard_len));
        shards.map_or(WANT_MAX, |shards| shards.min(WANT_MAX))
    }

    /// Acknowledges and asks.
    fn exchange(&mut self, want: u32, patient: bool) -> Option<Call> {
        (self.want, self.patient, self.restarts) = (want, patient, 0);
        self.question()
    }

    /// The question, unless nothing is left of it.
    fn question(&mut self) -> Option<Call> {
        if self.acks.is_empty() && self.want == 0 {
            return None;
        }
        self.asked = Asked::Exchange;
        Some(Call::Exchange {
            request: RequestId(self.granted + 1),
            acks: Acks::from_slice(&self.acks),
            want: self.want,
            wait: if self.patient { self.patience } else { Duration::ZERO },
        })
    }

    /// Takes in what was granted, and returns what others could begin at once.
    fn exchanged(&mut self, exchanged: &Exchanged) -> Option<Call> {
        // It is the service that was told of them.
        self.done.clear();
        // Only now: a late copy of a question that was answered with "wait" may be granted, and asking it again is how
        // one hears of that.
        self.granted += u64::from(matches!(exchanged.fetched, Some(FetchOutcome::Granted(_))));
        let mut granted = 0;
        for grant in exchanged.grants() {
            granted += 1;
            self.shard_len = grant.len;
            self.batcher.granted(grant);
        }
        self.scarce = granted < self.want || !exchanged.recalled.is_empty();
        self.end_of_data |= exchanged.fetched == Some(FetchOutcome::EndOfData);
        for (ack, outcome) in self.acks.iter().zip(&exchanged.outcomes) {
            match outcome {
                AckOutcome::Accepted => {}
                AckOutcome::StaleLease => self.batcher.revoke(ack.lease),
            }
        }
        self.filling &= !matches!(exchanged.fetched, Some(FetchOutcome::Wait { .. } | FetchOutcome::AtLimit));
        let given_up = self.batcher.recall(&exchanged.recalled);
        // Asking again at once would get the same shard, and with it the same wish to have it back, for ever: those that
        // could begin it may be waiting for this very batch.
        self.filling &= given_up.is_empty();
        self.give_back(given_up).or_else(|| self.after_return())
    }

    fn give_back(&mut self, leases: Vec<Held>) -> Option<Call> {
        if leases.is_empty() {
            return None;
        }
        self.asked = Asked::Return;
        let acks = leases.iter().map(Held::ack).collect();
        self.given_up = leases.into();
        Some(Call::Release(acks))
    }
}
