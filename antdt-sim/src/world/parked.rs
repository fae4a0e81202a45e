//! Calls of a simulated worker that the master answers when it has decided.

use antdt_core::{CheckpointId, Holder, JobTime};
use antdt_job::limits::PARK_MAX;
use antdt_job::{HeadEvent, Reply};

use super::life::LifeId;
use super::{Due, MESSAGE_BYTES, World};
use crate::happening::Observer;

impl<O: Observer> World<O> {
    /// Asks the head something that it answers when it has decided.
    pub(super) fn park(&mut self, id: LifeId, event: HeadEvent) {
        let (now, life) = (self.now, &mut self.lives[id]);
        life.parked = Some(Box::new((event.clone(), now)));
        let call = life.call;
        if !life.reask_armed {
            life.reask_armed = true;
            self.queue.push(now + PARK_MAX, Due::Reask(id));
        }
        self.send_head(id, call, event);
    }

    /// A parked call is given up after a while and made again, as middle boxes demand.
    pub(super) fn reask(&mut self, id: LifeId) {
        let now = self.now;
        let life = &mut self.lives[id];
        life.reask_armed = false;
        if life.is_dead() {
            return;
        }
        let Some((event, since)) = life.parked.as_deref_mut() else { return };
        let due = *since + PARK_MAX;
        life.reask_armed = true;
        if due > now {
            self.queue.push(due, Due::Reask(id));
            return;
        }
        *since = now;
        let (event, call) = (event.clone(), life.call);
        self.queue.push(now + PARK_MAX, Due::Reask(id));
        if now >= life.paused_until {
            self.send_head(id, call, event);
        }
    }

    /// Answers a parked call, if the life still waits for it: of a commit, that of this step.
    pub(super) fn unpark(&mut self, holder: Holder, step: Option<u64>, reply: impl FnOnce() -> Reply) {
        if let Some((id, at)) = self.let_go(holder, step) {
            let call = self.lives[id].call;
            self.send_reply(at, id, call, reply());
        }
    }

    /// A worker that stands still is told to have the copies made for a checkpoint.
    pub(super) fn keep(&mut self, holder: Holder, checkpoint: CheckpointId) {
        if let Some((id, at)) = self.let_go(holder, None) {
            self.copy_model(id, at, checkpoint);
        }
    }

    /// A call is no longer parked: of which life, and when the answer arrives.
    pub(super) fn let_go(&mut self, holder: Holder, step: Option<u64>) -> Option<(LifeId, JobTime)> {
        let id = self.life_of(holder)?;
        let waits = match (self.lives[id].parked.as_deref(), step) {
            (Some((HeadEvent::Join { .. } | HeadEvent::Rest { .. }, _)), None) => true,
            (Some((HeadEvent::Ready { step: waits, .. }, _)), Some(step)) => *waits == step,
            _ => false,
        };
        if !waits {
            return None;
        }
        // Lost on its way back: it asks again when it has waited long enough.
        let at = self.travel(id, MESSAGE_BYTES, false)?;
        self.lives[id].parked = None;
        Some((id, at))
    }
}
