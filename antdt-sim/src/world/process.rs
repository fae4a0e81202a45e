//! Processes of a simulated job: how they are launched, what goes wrong with them, and how they end.

use antdt_core::{Holder, NodeInfo, Role};
use antdt_job::limits::{CALL_TIMEOUT, MASTER_TIMEOUT};
use antdt_job::{HeadEvent, Registration};
use antdt_monitor::classify;

use super::life::{Life, LifeId, Stage};
use super::places::Places;
use super::{ALL_CRASHED, Due, PROCESS_DELAY, World};
use crate::happening::{Happening, Observer};
use crate::model::{Fault, Host};

impl<O: Observer> World<O> {
    pub(super) fn life_of(&self, holder: Holder) -> Option<LifeId> {
        let id = *self.current.get(&holder.node)?;
        let life = &self.lives[id];
        (life.holder == holder && !life.is_dead()).then_some(id)
    }

    pub(super) fn launch(&mut self, holder: Holder) {
        let life =
            Life::new(holder, self.setup.seed, self.now, self.setup.collective_timeout, MASTER_TIMEOUT);
        if holder.node.role == Role::Worker
            && let Some(host) = self.places.start(holder.node)
        {
            self.models.compute.moved(holder.node, Host::Workers(host));
        }
        let delay = self.models.scheduler.start(self.now, holder, &mut self.scheduler_rng);
        let id = self.lives.push(life);
        self.current.insert(holder.node, id);
        self.queue.push(self.now + PROCESS_DELAY, Due::ToLauncher(Box::new(HeadEvent::Started(holder))));
        if let Some(delay) = delay {
            self.queue.push(self.now + delay.max(PROCESS_DELAY), Due::Start(id));
        }
        self.saw(&Happening::Born(holder));
    }

    pub(super) fn start(&mut self, id: LifeId) {
        let life = &mut self.lives[id];
        if life.is_dead() {
            return;
        }
        life.stage = Stage::Running;
        life.call += 1;
        let (holder, call) = (life.holder, life.call);
        let host = match holder.node.role {
            Role::Worker => self.places.of(holder.node),
            Role::Server => holder.node.index / self.setup.workers_per_host,
        };
        let most = self.models.compute.batch_size_max(holder.node);
        let info = NodeInfo {
            holder,
            host: Places::name(host),
            device: self.models.compute.device(holder.node),
            memory_bytes: None,
            batch_size_min: 1,
            batch_size_max: most.unwrap_or(u32::MAX).min(self.setup.global_batch_size).max(1),
        };
        let registration = Registration { info, data_address: holder.to_string(), process_id: id.0 };
        self.send_head(id, call, HeadEvent::Register(registration));
    }

    /// A process that stands still is killed like any other. The caller that ordered the end of a cut-off process tries again
    /// as often as every caller does.
    pub(super) fn kill(&mut self, id: LifeId) {
        let life = &self.lives[id];
        if self.now < life.cut_until {
            self.queue.push(self.now + CALL_TIMEOUT, Due::Kill(id));
        } else {
            self.queue.push(self.now + PROCESS_DELAY, Due::Dies(id, -1, 9));
        }
    }

    /// Whether the life is dead, or stands still: then `due` is put off until it goes on.
    pub(super) fn put_off(&mut self, id: LifeId, due: Due) -> bool {
        let life = &self.lives[id];
        if !life.is_dead() && self.now < life.paused_until {
            self.queue.push(life.paused_until, due);
            return true;
        }
        life.is_dead()
    }

    pub(super) fn dies(&mut self, id: LifeId, code: i32, signal: i32) {
        if self.lives[id].is_dead() {
            return;
        }
        let life = &mut self.lives[id];
        life.stage = Stage::Dead;
        life.died = self.now;
        life.worker = None;
        life.parked = None;
        let (holder, group) = (life.holder, life.group.take());
        let exit = if signal == 0 { classify(Some(code), None) } else { classify(None, Some(signal)) };
        self.journal.exited(self.now, holder, exit);
        self.saw(&Happening::Died(holder));
        self.kept.retain(|held| held.life != id);
        if let Some((group, _)) = group {
            self.leave_group(group, Some(id));
        }
        self.break_apart(id);
        if holder.node.role == Role::Server {
            for worker in self.lives.ids() {
                let life = &self.lives[worker];
                if !life.is_dead() && life.transfer == life.call && life.servers.contains(&id) {
                    self.break_transfer(worker);
                }
            }
        }
        // The news of it comes from its host.
        let told = self.lives[id].cut_until.max(self.now) + PROCESS_DELAY;
        let exited = HeadEvent::Exited(holder, exit, Vec::new());
        self.queue.push(told, Due::ToLauncher(Box::new(exited)));
    }

    pub(super) fn exit(&mut self, id: LifeId, code: i32) {
        self.dies(id, code, 0);
    }

    pub(super) fn fault(&mut self, fault: Fault) {
        let next = self.models.faults.next(&mut self.fault_rng);
        match next {
            Some((at, next)) => self.queue.push(at.max(self.now), Due::Fault(Box::new(next))),
            None => self.faults_over = true,
        }
        self.saw(&Happening::Fault(fault));
        match fault {
            Fault::Crash(node)
            | Fault::Exit(node, _)
            | Fault::Preempt(node, _)
            | Fault::Hang(node, _)
            | Fault::Duplicate(node, _)
            | Fault::Pause(node, _)
            | Fault::Cut(node, _) => {
                let alive = self.current.get(&node).filter(|id| !self.lives[**id].is_dead());
                if let Some(id) = alive.copied() {
                    self.hit(id, fault);
                }
            }
            // There is no process that could stand still, and the service is started again with the next master.
            Fault::PauseMaster(_) | Fault::RestartLedger if self.next_master().is_some() => {}
            Fault::PauseMaster(lasting) => {
                self.master_paused_until = self.master_paused_until.max(self.now + lasting);
            }
            Fault::RestartLedger => {
                self.restart_ledger();
                self.let_askers_go();
            }
            Fault::RestartMaster(lasting, None) => self.end_master(lasting),
            Fault::RestartMaster(lasting, Some(effects)) => self.doom_master(effects, lasting),
            Fault::ScaleServers(servers) => {
                self.happen(Due::ToLauncher(Box::new(HeadEvent::ScaleServers { servers })));
            }
            Fault::CrashAll(events) => self.doomed = Some(events),
        }
        self.note_calm();
    }

    /// A fault hits a process.
    fn hit(&mut self, id: LifeId, fault: Fault) {
        let now = self.now;
        let life = &mut self.lives[id];
        match fault {
            Fault::Crash(_) => self.dies(id, -1, 9),
            Fault::Exit(_, code) => self.dies(id, code, 0),
            Fault::Preempt(_, grace) => {
                life.session.preempted = true;
                self.queue.push(now + grace, Due::Dies(id, -1, 9));
            }
            Fault::Hang(_, lasting) => life.hang = life.hang.max(lasting),
            Fault::Duplicate(_, lasting) => life.doubled_until = life.doubled_until.max(now + lasting),
            Fault::Pause(_, lasting) => life.paused_until = life.paused_until.max(now + lasting),
            Fault::Cut(_, lasting) => {
                life.cut_until = life.cut_until.max(now + lasting);
                if let Some((group, _)) = life.group {
                    // Its peers hear nothing any more; they find out when they wait for it.
                    self.draw_fates(group);
                }
            }
            Fault::PauseMaster(_)
            | Fault::RestartLedger
            | Fault::RestartMaster(..)
            | Fault::ScaleServers(_)
            | Fault::CrashAll(_) => unreachable!("no fault of a process"),
        }
    }

    /// Ends the job after an event if all processes end here.
    pub(super) fn crash_all(&mut self) {
        match &mut self.doomed {
            Some(0) if self.ended.is_none() => {
                self.ended = Some(Err(ALL_CRASHED.to_owned()));
                self.saw(&Happening::AllCrashed);
            }
            Some(left) => *left = left.saturating_sub(1),
            None => {}
        }
    }

    /// Says so once no fault happens any more.
    pub(super) fn note_calm(&mut self) {
        if self.faults_over && !self.master_is_doomed() {
            self.saw(&Happening::Calm);
        }
    }
}
