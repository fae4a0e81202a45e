//! Transfers between a simulated worker and the servers.

use std::time::Duration;

use antdt_core::{JobTime, NodeId};

use super::life::LifeId;
use super::{BREAK_DELAY, Due, MESSAGE_BYTES, Work, World};
use crate::happening::{Happening, Observer};
use crate::model::Site;

impl<O: Observer> World<O> {
    /// Sends the gradient to all servers, gets the parameters from them, or tells them what counts: one call, with one limit.
    pub(super) fn transfer(&mut self, id: LifeId, work: Work) {
        let (push, word) = (matches!(work, Work::Push), matches!(work, Work::Count));
        let servers = self.setup.servers.max(1);
        let shares: Vec<f64> = (0..servers).map(|server| self.weights.share(server, servers)).collect();
        let life = &mut self.lives[id];
        life.transfer = life.call;
        let life = &self.lives[id];
        let lives = |server: &LifeId| !self.lives[*server].is_dead();
        if life.servers.len() < self.setup.servers as usize || !life.servers.iter().all(lives) {
            return self.break_transfer(id);
        }
        let connected = life.servers.clone();
        let (holder, samples) = (life.holder, if push { life.batch } else { life.piece });
        let node = holder.node;
        let (mut last, mut lost) = (self.now, false);
        for index in 0..servers {
            let server = NodeId::server(index);
            // What a server has to serve is in proportion to what it holds.
            let share = shares[index as usize];
            let bytes = match self.weights.is_equal() {
                true => self.setup.gradient_bytes / u64::from(servers),
                false => (self.setup.gradient_bytes as f64 * share) as u64,
            } + MESSAGE_BYTES;
            let bytes = if word { MESSAGE_BYTES } else { bytes };
            let (there, back) = if push { (bytes, MESSAGE_BYTES) } else { (MESSAGE_BYTES, bytes) };
            let (me, it) = (Site::Node(node), Site::Node(server));
            let network = &mut self.models.network;
            let rng = &mut self.network_rng;
            // TCP sends again what is lost; what it costs is time.
            let mut cross = |at: JobTime, from, to, bytes| {
                let again = (0..16).find_map(|i| {
                    let at = at + Duration::from_millis(200) * i;
                    let arrives = network.message(at, from, to, bytes, rng);
                    lost |= arrives.is_none();
                    arrives
                });
                again.unwrap_or(at + Duration::from_secs(4))
            };
            let arrived = cross(self.now, me, it, there);
            let server = connected[index as usize];
            // One request after the other: the table of a server is one.
            let served = &mut self.lives[server];
            let begin = arrived.max(served.busy_until);
            let time = self.models.compute.time(begin, served.holder, samples.max(1), &mut served.rng);
            let time = match self.weights.is_equal() {
                // The time of an update is counted with its gradient.
                _ if word => Duration::ZERO,
                true => time,
                false => time.mul_f64(share * f64::from(servers)),
            };
            served.busy_until = begin + time;
            served.served.0 += bytes;
            served.served.1 += time;
            let answered = cross(begin + time, it, me, back);
            last = last.max(answered);
        }
        let (limit, call) = (self.now + self.setup.collective_timeout, self.lives[id].call);
        let life = &mut self.lives[id];
        (life.transfer_done, life.transfer_limit) = (last, limit);
        self.queue.push(last.min(limit), Due::Over(id, call, work));
        if lost {
            self.saw(&Happening::Lost(holder));
        }
    }

    /// A server is gone: the call of a worker to all of them breaks, as soon as it can hear of that.
    pub(super) fn break_transfer(&mut self, id: LifeId) {
        let life = &self.lives[id];
        let (call, limit) = (life.call, self.now + self.setup.collective_timeout);
        let heard = life.cut_until.max(self.now).min(limit) + BREAK_DELAY;
        self.queue.push(heard, Due::Over(id, call, Work::Break));
    }

    /// When the transfer of a life is done. What is on its way to or from a host that is cut off is sent again until it gets
    /// through, and a server that stands still answers when it goes on.
    pub(super) fn transferred(&self, id: LifeId) -> JobTime {
        let life = &self.lives[id];
        let servers = life.servers.iter().map(|server| &self.lives[*server]);
        let reached = servers.map(|server| server.cut_until.max(server.paused_until)).max();
        life.transfer_done.max(life.cut_until).max(reached.unwrap_or_default())
    }
}
