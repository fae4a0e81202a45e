//! The training thread of a simulated worker: its loop, and the driver that carries out the calls of the loop in modelled time.

use std::time::Duration;

use antdt_agent::{Batch, MicroBatch};
use antdt_collective::lanes::Lanes;
use antdt_core::{
    Ack, Acks, CheckpointId, Exit, Held, Holder, JobTime, Joined, NodeId, Readiness, RequestId, Standing,
};
use antdt_job::{End, HeadEvent, LoopDriver, Peers, Reply};
use antdt_shard::Event as LedgerEvent;

use super::group::Part;
use super::life::{Life, LifeId, Stage};
use super::{Answered, Due, Work, World};
use crate::happening::{Happening, Observer};

impl<O: Observer> World<O> {
    /// The training thread will get a reply to this call.
    pub(super) fn send_reply(&mut self, at: JobTime, id: LifeId, call: u64, reply: Reply) {
        let reply = Answered(self.replies.insert(reply));
        self.queue.push(at, Due::Reply(id, call, reply));
    }

    /// A reply to a call of the training thread. One to an older call is void.
    pub(super) fn reply(&mut self, id: LifeId, call: u64, reply: Answered) {
        let reply = self.replies.remove(reply.0);
        if self.is_under_way(id, call) {
            self.advance(id, &reply);
        }
    }

    /// What the training thread did by itself is over, unless it broke that off.
    pub(super) fn over(&mut self, id: LifeId, call: u64, work: Work) {
        if !self.is_under_way(id, call) {
            return;
        }
        if matches!(work, Work::Pull | Work::Push | Work::Count) {
            let (limit, done) = (self.lives[id].transfer_limit, self.transferred(id));
            if done > self.now {
                if self.now < limit {
                    self.queue.push(done.min(limit), Due::Over(id, call, work));
                } else {
                    // A server did not answer in time.
                    self.lose_servers(id);
                }
                return;
            }
            // It ended before its answer had got through.
            let servers = &self.lives[id].servers;
            if servers.iter().any(|server| self.lives[*server].died < done) {
                return self.lose_servers(id);
            }
        }
        if matches!(work, Work::Break) && self.setup.servers > 0 {
            return self.lose_servers(id);
        }
        if matches!(work, Work::Beside) {
            // It waits for the master no more.
            self.lives[id].parked = None;
        }
        self.advance(id, &self.result_of(id, work));
    }

    /// A call to the servers breaks: a worker that is let in again connects to them again.
    pub(super) fn lose_servers(&mut self, id: LifeId) {
        self.lives[id].servers.clear();
        self.advance(id, &Reply::Broken);
    }

    /// A worker is let in: it connects to the servers that it is told of, unless it is connected and they are the same.
    pub(super) fn let_in(&mut self, id: LifeId, joined: &Joined) {
        let life = &self.lives[id];
        let is_new = joined.rollback > life.rollback;
        let again = joined.finished || !(is_new || life.servers.is_empty());
        let servers = (0..).zip(joined.servers.iter()).filter(|_| !again);
        let reached = servers.filter_map(|(index, address)| {
            let server = *self.current.get(&NodeId::server(index))?;
            let life = &self.lives[server];
            (!life.is_dead() && life.holder.to_string() == *address).then_some(server)
        });
        let reached: Vec<LifeId> = reached.collect();
        let life = &mut self.lives[id];
        if is_new {
            // Its model is of before.
            (life.rollback, life.trained) = (joined.rollback, false);
        }
        if !again {
            life.servers = reached;
        }
    }

    pub(super) fn result_of(&self, id: LifeId, work: Work) -> Reply {
        match work {
            Work::Begin => Reply::Begin,
            Work::Sleep => Reply::Slept,
            Work::Load => Reply::Loaded,
            Work::Pull => Reply::Pulled,
            Work::Compute => Reply::Computed { samples: self.lives[id].piece, loss_sum: 0.0 },
            Work::Begun => Reply::Computing,
            Work::Beside => {
                let (_, took, samples) = self.lives[id].beside.unwrap_or_default();
                Reply::ComputedBeside { samples, loss_sum: 0.0, took }
            }
            Work::Apply | Work::Count => Reply::Applied,
            Work::Advance => Reply::Advanced,
            Work::Revert => Reply::Reverted,
            Work::Push => Reply::Pushed,
            Work::Break => Reply::Broken,
        }
    }

    /// Lets the training loop go on, until it waits for something that takes time.
    pub(super) fn advance(&mut self, id: LifeId, reply: &Reply) {
        let mut at_once = self.step(id, reply);
        while let Some(work) = at_once {
            at_once = self.step(id, &self.result_of(id, work));
        }
    }

    /// Lets the training loop make its next call, if it has one. What that is, if it takes no time.
    pub(super) fn step(&mut self, id: LifeId, reply: &Reply) -> Option<Work> {
        if let Reply::Joined(joined) = reply {
            self.let_in(id, joined);
        }
        let life = &mut self.lives[id];
        match reply {
            Reply::Agreed(verdict) => life.agreed = verdict.samples,
            Reply::Applied => life.samples += std::mem::take(&mut life.agreed),
            _ => {}
        }
        life.call += 1;
        life.attempts = 0;
        life.in_group_call = false;
        let (holder, worker) = (life.holder, life.worker.as_mut()?);
        let call = worker.step(self.now, &mut life.session, reply);
        self.saw(&Happening::Worker(holder, reply, &call));
        call.carry_out(&mut Thread { world: self, id, holder })
    }

    /// How long a worker computes a gradient, from now on.
    pub(super) fn compute_time(&mut self, id: LifeId, samples: u64) -> Duration {
        let life = &mut self.lives[id];
        let time = self.models.compute.time(self.now, life.holder, samples, &mut life.rng);
        life.busy += time;
        let stands = std::mem::take(&mut life.hang);
        if !stands.is_zero() {
            life.hung = (self.now, self.now + stands);
        }
        time + stands
    }

    /// The gradient that is computed beside other calls: what it is, if it is there; else the call ends when it will be.
    pub(super) fn finish_beside(&mut self, id: LifeId) -> Option<Work> {
        let due = self.lives[id].beside.map_or(self.now, |(due, ..)| due);
        if due <= self.now {
            return Some(Work::Beside);
        }
        self.later(id, due.since(self.now), Work::Beside);
        None
    }

    pub(super) fn later(&mut self, id: LifeId, time: Duration, work: Work) {
        let call = self.lives[id].call;
        self.queue.push(self.now + time, Due::Over(id, call, work));
    }

    /// The training loop is over.
    pub(super) fn stop(&mut self, id: LifeId, end: &End) {
        let (end_of_data, trained) = match end {
            End::EndOfData { trained } => (true, *trained),
            End::Drained => (false, false),
            End::Failed(_) => return self.exit(id, Exit::CODE_NEVER),
        };
        let life = &mut self.lives[id];
        life.stage = Stage::Leaving;
        if let Some((group, _)) = life.group.take() {
            self.leave_group(group, None);
        }
        // What was reported last goes first, as `Agent::leave` does.
        self.send_beat(id);
        let life = &mut self.lives[id];
        life.call += 1;
        let (holder, call) = (life.holder, life.call);
        self.send_head(
            id,
            call,
            HeadEvent::Leave { holder, end_of_data, can_evaluate: end_of_data && trained },
        );
    }
}

/// The training thread of one life, which makes a call: carries it out in modelled time. The answer to a call
/// is what it is if it takes no time; otherwise the reply comes later.
#[derive(Debug)]
struct Thread<'w, O> {
    world: &'w mut World<O>,
    id: LifeId,
    holder: Holder,
}

impl<O> Thread<'_, O> {
    fn life(&mut self) -> &mut Life {
        &mut self.world.lives[self.id]
    }
}

impl<O: Observer> Thread<'_, O> {
    /// Asks the head something that it answers when it has decided.
    fn park(&mut self, event: HeadEvent) -> Option<Work> {
        self.world.park(self.id, event);
        None
    }

    /// Asks the shard service, which may keep the question for `wait`.
    fn ask(&mut self, event: LedgerEvent, wait: Duration) -> Option<Work> {
        let call = self.life().call;
        self.world.send_ledger(self.id, call, event, wait);
        None
    }

    /// Exchanges something with all servers.
    fn transfer(&mut self, work: Work) -> Option<Work> {
        self.world.transfer(self.id, work);
        None
    }

    /// Comes to the next operation of its group.
    fn meet(&mut self, part: Part) -> Option<Work> {
        self.world.meet(self.id, part);
        None
    }
}

impl<O: Observer> LoopDriver for Thread<'_, O> {
    type Answer = Option<Work>;

    fn join(&mut self, standing: Standing) -> Option<Work> {
        if let Some((group, _)) = self.life().group.take() {
            self.world.leave_group(group, None);
        }
        self.park(HeadEvent::Join { holder: self.holder, standing })
    }

    fn ready(&mut self, step: u64, readiness: Readiness) -> Option<Work> {
        self.park(HeadEvent::Ready { holder: self.holder, step, readiness })
    }

    fn ready_beside(&mut self, step: u64, readiness: Readiness) -> Option<Work> {
        self.finish().or_else(|| self.ready(step, readiness))
    }

    fn rest(&mut self, checkpoint: CheckpointId) -> Option<Work> {
        self.park(HeadEvent::Rest { holder: self.holder, checkpoint })
    }

    fn register(&mut self, held: Vec<Held>) -> Option<Work> {
        self.ask(LedgerEvent::Register { holder: self.holder, held }, Duration::ZERO)
    }

    fn exchange(&mut self, request: RequestId, acks: Acks, want: u32, wait: Duration) -> Option<Work> {
        let (holder, generation) = (self.holder, self.life().generation);
        self.ask(LedgerEvent::Exchange { holder, generation, request, acks, want }, wait)
    }

    fn release(&mut self, acks: Vec<Ack>) -> Option<Work> {
        self.ask(LedgerEvent::Release { holder: self.holder, acks }, Duration::ZERO)
    }

    fn fail(&mut self, at: Ack, _why: String) -> Option<Work> {
        self.ask(LedgerEvent::Fail { holder: self.holder, ack: at }, Duration::ZERO)
    }

    fn sleep(&mut self, time: Duration) -> Option<Work> {
        self.world.later(self.id, time, Work::Sleep);
        None
    }

    fn load(&mut self, batch: Batch, micro: MicroBatch) -> Option<Work> {
        let life = self.life();
        life.batch = batch.len();
        life.piece = if micro == MicroBatch::WHOLE { life.batch } else { batch.piece(micro).len() };
        Some(Work::Load)
    }

    fn pull(&mut self) -> Option<Work> {
        self.transfer(Work::Pull)
    }

    fn compute(&mut self) -> Option<Work> {
        let samples = self.life().piece;
        if samples == 0 {
            return Some(Work::Compute);
        }
        let time = self.world.compute_time(self.id, samples);
        self.world.later(self.id, time, Work::Compute);
        None
    }

    fn compute_beside(&mut self) -> Option<Work> {
        let samples = self.life().piece;
        let time = self.world.compute_time(self.id, samples);
        let due = self.world.now + time;
        self.life().beside = Some((due, time, samples));
        Some(Work::Begun)
    }

    fn finish(&mut self) -> Option<Work> {
        self.world.finish_beside(self.id)
    }

    fn enter(&mut self, joined: Box<Joined>) -> Option<Work> {
        self.world.enter(self.id, &joined);
        None
    }

    fn combine(&mut self, step: u64, _samples: u64, acks: Acks, peers: Peers) -> Option<Work> {
        if let Peers::Apart { group, ranks } = &peers {
            self.world.go_apart(self.id, *group, ranks);
        }
        self.meet(Part::Combine { step, acks, peers })
    }

    fn agree(&mut self, lanes: Lanes) -> Option<Work> {
        self.meet(Part::Agree(lanes))
    }

    fn apply(&mut self) -> Option<Work> {
        if self.world.setup.sync.capabilities().needs_servers() {
            return self.transfer(Work::Count);
        }
        Some(Work::Apply)
    }

    fn push(&mut self, _step: u64, _samples: u64) -> Option<Work> {
        self.transfer(Work::Push)
    }

    /// Takes a small part of the gradient's time, which the compute model counts.
    fn advance(&mut self) -> Option<Work> {
        Some(Work::Advance)
    }

    fn revert(&mut self) -> Option<Work> {
        Some(Work::Revert)
    }

    fn stop(&mut self, end: End) -> Option<Work> {
        self.world.stop(self.id, &end);
        None
    }
}
