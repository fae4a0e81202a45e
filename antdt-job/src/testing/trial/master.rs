//! The master of a trial, and what it orders.

use std::sync::Arc;
use std::time::Duration;

use antdt_agent::{BeatReply, SessionState};
use antdt_core::{CheckpointId, DeviceClass, Holder, Joined, Machine, NodeInfo, Role, Stall, Work};

use super::life::{Life, Stage};
use super::{Breach, MOMENT, Moment, SERVICE_RESTARTS_MAX, Trial, config};
use crate::head::{Head, HeadAnswer, HeadEffect, HeadEvent, HeadRecord, Registration, RolledBack};
use crate::testing::invariant::Invariant;
use crate::worker::{Call, Reply};

impl Trial<'_> {
    pub(super) fn tell(&mut self, event: HeadEvent) -> Result<HeadAnswer, Breach> {
        self.wait(MOMENT)?;
        let answer = self.head.handle(self.now, event);
        self.obey()?;
        Ok(answer)
    }

    /// The master dies, and another one takes over. Nothing of it is left but the record; callers ask again.
    pub(super) fn restart_master(&mut self, written: bool) -> Result<(), Breach> {
        let config = config(&self.mode, &self.job, &self.wish);
        self.head = Head::resume(config, &self.record).expect("the record is of this job");
        self.has_forgotten = true;
        if self.service_restarts < SERVICE_RESTARTS_MAX {
            self.service_restarts += 1;
            self.service.restart();
        }
        if written {
            // Their manifests were written just before.
            self.newest = self.newest.max(self.written.iter().map(|(checkpoint, _)| *checkpoint).max());
        }
        self.written.clear();
        self.to_restore = false;
        self.tell(HeadEvent::Begin)?;
        for holder in self.lives.keys().copied().collect::<Vec<_>>() {
            let Some(life) = self.lives.get_mut(&holder) else { continue };
            let waits = life.stage == Stage::Training && life.coming.is_none() && life.keeps.is_none();
            let call = life.call.clone().filter(|_| waits);
            if let Some(
                call @ (Call::Join(_) | Call::Ready { .. } | Call::ReadyBeside { .. } | Call::Rest(_)),
            ) = call
            {
                self.begin(holder, call)?;
            }
        }
        Ok(())
    }

    pub(super) fn wait(&mut self, time: Duration) -> Result<(), Breach> {
        let until = self.now + time;
        while let Some(due) = self.head.deadline().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            self.head.on_deadline(self.now);
            self.obey()?;
        }
        self.now = until;
        Ok(())
    }

    pub(super) fn obey(&mut self) -> Result<(), Breach> {
        while let Some(effect) = self.head.poll_effect() {
            match effect {
                HeadEffect::Launch(holder) => {
                    let is_new = self.launched.insert(holder);
                    self.holds(Invariant::NumbersGrow, is_new, || format!("{holder} is launched twice"))?;
                    self.launch(holder);
                }
                HeadEffect::Record(record) => {
                    let numbers =
                        |of: &HeadRecord| [of.membership.0, of.plan.0, of.rollback.0, of.checkpoint.0];
                    let (before, after) = (numbers(&self.record), numbers(&record));
                    let grow = before.iter().zip(&after).all(|(before, after)| before <= after);
                    self.holds(Invariant::NumbersGrow, grow, || {
                        format!(
                            "numbers of membership, plan, rollback and checkpoint: {before:?}, then {after:?}"
                        )
                    })?;
                    self.record = *record;
                }
                HeadEffect::Kill(holder) if self.servers.remove(&holder) => {
                    self.written.clear();
                    self.news.push(holder);
                }
                HeadEffect::Kill(holder) if self.lives.contains_key(&holder) => {
                    self.die(holder, 0);
                    self.news.push(holder);
                }
                HeadEffect::Servers(_) | HeadEffect::Weights(_) => {
                    let none = self.servers.is_empty();
                    self.holds(Invariant::NumbersGrow, none, || {
                        "the number of servers or their weights change while some are up".to_owned()
                    })?;
                }
                // A trial's job is evaluated at its end only, and has one mode.
                HeadEffect::Epochs(_) | HeadEffect::GoOn(_) => unreachable!("it asks for neither"),
                HeadEffect::Kill(_) | HeadEffect::Order(_) | HeadEffect::Note { .. } => {}
                HeadEffect::Settle(contribution) => {
                    let holder = contribution.holder;
                    self.holds(Invariant::SettledFirst, !self.released.contains(&holder), || {
                        format!("{holder} was settled after its leases went back: {contribution:?}")
                    })?;
                    self.service.settle(&contribution.acks);
                }
                HeadEffect::LedgerLost(holder) => {
                    self.released.insert(holder);
                    self.service.lost(holder);
                }
                HeadEffect::Joined(holder, joined) => self.joined(holder, joined)?,
                HeadEffect::Committed(holder, commit) => {
                    // Of the dead, too: all of them are in the step.
                    for contributor in commit.contributors.keys() {
                        // Where workers take steps of their own, each counts them itself.
                        if self.capabilities.mixes()
                            && let Some((step, of)) =
                                self.ready.keys().copied().find(|(_, of)| of == contributor)
                            && let Some(made) = self.ready.remove(&(step, of))
                        {
                            self.learn(*contributor, &made)?;
                        }
                        if let Some(pushed) = self.ready.remove(&(commit.step, *contributor)) {
                            if self.capabilities.steps_in_common() {
                                self.learn(*contributor, &pushed)?;
                            } else {
                                self.counted.entry(*contributor).or_default().extend(pushed);
                            }
                        }
                    }
                    if let Some(life) = self.lives.get_mut(&holder)
                        && matches!(
                            life.call,
                            Some(Call::Ready { step, .. } | Call::ReadyBeside { step, .. }) if step == commit.asked
                        )
                    {
                        life.coming = Some(Reply::Committed(commit).into());
                    }
                }
                HeadEffect::Undone(holder) => {
                    self.ready.retain(|(_, of), _| *of != holder || !self.capabilities.mixes());
                    if let Some(life) = self.lives.get_mut(&holder)
                        && matches!(life.call, Some(Call::Ready { .. } | Call::ReadyBeside { .. }))
                    {
                        life.coming = Some(Reply::Broken.into());
                    }
                }
                HeadEffect::RollBack(rollback) => {
                    self.rollback = rollback;
                    self.has_forgotten = true;
                    self.to_restore = true;
                    self.overtaken.clear();
                }
                HeadEffect::Rested { holder, checkpoint, keep, pushes } => {
                    self.count(&pushes)?;
                    if let Some(life) = self.lives.get_mut(&holder)
                        && life.call == Some(Call::Rest(checkpoint))
                    {
                        if keep {
                            life.keeps = Some((checkpoint, 0));
                        } else {
                            life.coming = Some(Reply::Rested.into());
                        }
                    }
                }
                HeadEffect::End(outcome) => self.end = Some(outcome),
            }
        }
        Ok(())
    }

    pub(super) fn launch(&mut self, holder: Holder) {
        if holder.node.role == Role::Server {
            self.servers.insert(holder);
            self.news.push(holder);
            return;
        }
        let life = Life::new(holder, &self.mode, self.now);
        self.lives.insert(holder, life);
    }

    pub(super) fn register(&mut self, holder: Holder) -> Result<HeadAnswer, Breach> {
        let info = NodeInfo {
            holder,
            host: format!("host-{}", holder.node.index / 2),
            device: DeviceClass::default(),
            memory_bytes: None,
            batch_size_min: 1,
            batch_size_max: self.global_batch_size,
        };
        let data_address = format!("127.0.0.1:{}", 1000 + holder.node.index);
        self.tell(HeadEvent::Register(Registration { info, data_address, process_id: 1 }))
    }

    /// All heartbeats, news of deaths, and a question to the policy.
    pub(super) fn beat(&mut self) -> Result<(), Breach> {
        for holder in std::mem::take(&mut self.news) {
            if self.servers.contains(&holder) {
                self.register(holder)?;
            } else {
                self.ended(holder, false)?;
            }
        }
        for holder in self.servers.clone() {
            let (plan_ready, plan_applied) = Default::default();
            self.tell(HeadEvent::heartbeat(holder, Vec::new(), plan_ready, plan_applied))?;
        }
        for holder in self.lives.keys().copied().collect::<Vec<_>>() {
            let Some(life) = self.lives.get_mut(&holder).filter(|life| life.stage != Stage::Starting) else {
                continue;
            };
            if life.hangs {
                let stall = Stall { work: Work::Training, lasts: Duration::MAX };
                self.tell(HeadEvent::Stalled { holder, stall })?;
            }
            let Some(life) = self.lives.get_mut(&holder) else { continue };
            let beat = life.session.beat();
            let reports = beat.reports.into_iter().map(|r| (r.report, r.loss_sum)).collect();
            let (plan_ready, plan_applied) = (beat.plan_ready, beat.plan_applied);
            let answer = self.tell(HeadEvent::heartbeat(holder, reports, plan_ready, plan_applied))?;
            let Some(life) = self.lives.get_mut(&holder) else { continue };
            let reply = match answer {
                HeadAnswer::Beat(reply) => *reply,
                _ => BeatReply { fenced: true, ..BeatReply::default() },
            };
            let of_all = life.group.map(|(version, _)| version);
            let broken = reply.broken_group.filter(|version| of_all == Some(*version));
            life.session.beat_answered(self.now, reply);
            let over = matches!(life.session.state(), SessionState::Fenced | SessionState::MasterLost);
            if over {
                self.die(holder, 0);
                self.news.push(holder);
            } else if broken.is_some() {
                self.break_off(holder);
            }
        }
        for (checkpoint, _) in std::mem::take(&mut self.written) {
            if !matches!(self.tell(HeadEvent::Stored { checkpoint })?, HeadAnswer::Noted) {
                continue;
            }
            self.newest = self.newest.max(Some(checkpoint));
            self.tell(HeadEvent::Kept { checkpoint, outcome: Ok("here".to_owned()) })?;
        }
        if std::mem::take(&mut self.to_restore) {
            let to = self.restore();
            let rollback = self.rollback;
            self.tell(HeadEvent::RolledBack { rollback, outcome: Ok(to) })?;
        }
        let counts = self.service.counts();
        self.tell(HeadEvent::Tick(Some(counts))).map(|_| ())
    }

    pub(super) fn moment(&self) -> Moment {
        Moment { in_model: self.in_model.clone(), progress: self.service.progress() }
    }

    /// Model and ledger go back to the newest checkpoint, or to the start.
    pub(super) fn restore(&mut self) -> RolledBack {
        let moment = self.moments[&self.newest.unwrap_or(CheckpointId(0))].clone();
        self.valid_from = self.service.set_back(&moment.progress);
        self.in_model = moment.in_model;
        self.counted.clear();
        self.steps.clear();
        self.ready.clear();
        self.written.clear();
        RolledBack {
            checkpoint: self.newest.map(|checkpoint| checkpoint.to_string().into()),
            counts: self.service.counts(),
            text: "back".to_owned(),
        }
    }

    /// Whether a worker can reach all servers that it has connections to.
    pub(super) fn reaches_servers(&self, holder: Holder) -> bool {
        !self.capabilities.needs_servers()
            || self
                .lives
                .get(&holder)
                .is_some_and(|life| !life.connected.is_empty() && life.connected == self.servers)
    }

    pub(super) fn joined(&mut self, holder: Holder, joined: Arc<Joined>) -> Result<(), Breach> {
        let sizes: u32 = joined.plan.batch_sizes.values().sum();
        let fits = joined.finished
            || joined.plan.batch_sizes.is_empty()
            || !self.capabilities.sums_to_global_batch()
            || sizes == self.global_batch_size;
        self.holds(Invariant::GlobalBatch, fits, || {
            format!(
                "{holder} is told batch sizes of {sizes} in all, where {} is the global batch",
                self.global_batch_size
            )
        })?;
        self.count(&joined.pushes)?;
        if let Some(life) = self.lives.get_mut(&holder)
            && matches!(life.call, Some(Call::Join(_)))
        {
            // All start from the seed.
            life.trained |= !joined.finished && joined.next_step == 0;
            life.coming = Some(Reply::Joined(Box::new(Arc::unwrap_or_clone(joined))).into());
        }
        Ok(())
    }
}
