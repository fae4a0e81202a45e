//! The master's process as the job meets it: it ends, and another master goes on with the job from what it has written down.

use std::time::Duration;

use antdt_controller::Policy;
use antdt_core::{Exit, Holder, JobTime, Machine, Role, RollbackId, ServerWeights};
use antdt_job::evaluation::EvaluationEntry;
use antdt_job::head::{HeadRecord, RolledBack};
use antdt_job::{Head, HeadEffect, HeadEvent};
use antdt_monitor::classify;
use antdt_shard::{Event as LedgerEvent, ShardLedger};

use super::checkpoints::{Moment, shard_len};
use super::{Due, Lost, World, head_config};
use crate::Setup;
use crate::happening::{Happening, Observer};

/// How long it takes to set the ledger back.
const RESTORE_DELAY: Duration = Duration::from_millis(10);

/// What is left of a master that ends, and what the job goes back to.
#[derive(Debug)]
pub(super) struct Successor {
    /// What the head said last that its successor must know.
    pub(super) record: HeadRecord,
    /// What the evaluations between epochs found, which lies beside the checkpoints.
    pub(super) evaluations: Vec<EvaluationEntry>,
    /// The job's policy, which has decided nothing.
    policy: Box<dyn Policy>,
    /// The job at its start.
    start: Moment,
    /// The newest rollback that was ordered.
    newest: RollbackId,
    /// When the next master begins; `None` while there is one.
    begins: Option<JobTime>,
    /// When it has written something down, the master ends after so many further effects, for so long.
    doomed: Option<(u32, Duration)>,
    /// Lives whose end has not been heard of by a process that could tell the reason.
    unheard: Vec<Holder>,
}

impl Successor {
    pub(super) fn new(policy: Box<dyn Policy>, ledger: &ShardLedger, setup: &Setup) -> Self {
        Self {
            record: HeadRecord::default(),
            evaluations: Vec::new(),
            policy,
            start: Moment {
                ledger: ledger.snapshot(),
                samples: 0,
                checkpoint: None,
                shard_len: shard_len(setup),
            },
            newest: RollbackId(0),
            begins: None,
            doomed: None,
            unheard: Vec::new(),
        }
    }
}

impl<O: Observer> World<O> {
    /// When the next master begins, if there is none at the moment.
    pub(super) fn next_master(&self) -> Option<JobTime> {
        self.successor.as_deref().and_then(|successor| successor.begins)
    }

    /// The master will end in the midst of what it does.
    pub(super) fn doom_master(&mut self, effects: u32, lasting: Duration) {
        if let Some(successor) = self.successor.as_deref_mut().filter(|successor| successor.begins.is_none())
        {
            successor.doomed = Some((effects, lasting));
        }
    }

    /// Whether the master will end in the midst of what it does.
    pub(super) fn master_is_doomed(&self) -> bool {
        self.successor.as_deref().is_some_and(|successor| successor.doomed.is_some())
    }

    /// The head wants these effects carried out.
    pub(super) fn head_effects(&mut self) {
        // How many more are carried out before the master ends.
        let mut left: Option<(u32, Duration)> = None;
        while let Some(effect) = self.head.poll_effect() {
            let is_record = matches!(effect, HeadEffect::Record(_));
            match &mut left {
                Some((0, _)) => continue,
                Some((left, _)) => *left -= 1,
                None => {}
            }
            self.saw(&Happening::Effect(&effect));
            self.carry_out(effect);
            if is_record && left.is_none() {
                left = self.successor.as_deref().and_then(|successor| successor.doomed);
            }
        }
        if let Some((_, lasting)) = left {
            self.end_master(lasting);
            self.note_calm();
        }
    }

    /// Ends the master's process. The workers and servers that are connected to it notice.
    pub(super) fn end_master(&mut self, lasting: Duration) {
        let Some(successor) = self.successor.as_deref_mut().filter(|successor| successor.begins.is_none())
        else {
            return;
        };
        let begins = self.now + lasting;
        (successor.begins, successor.doomed) = (Some(begins), None);
        self.queue.push(begins, Due::TakeOver);
        self.saw(&Happening::MasterEnded(begins));
        self.master_paused_until = JobTime::ZERO;
        self.deadline = JobTime::NEVER;
        self.checkpoints.forget();
        self.let_askers_go();
        for id in self.lives.ids() {
            let life = &self.lives[id];
            let parked = life.parked.as_deref().filter(|_| !life.is_dead());
            if let Some((event, _)) = parked {
                let (event, call) = (event.clone(), life.call);
                self.lost(id, call, Lost::Head(event));
            }
        }
    }

    /// The launcher's news of a process reaches the master, or what the user asks; without a master, the next one learns of the
    /// end, not of its reason, and the user is told that there is none.
    pub(super) fn news(&mut self, event: HeadEvent) {
        match self.successor.as_deref_mut().filter(|successor| successor.begins.is_some()) {
            Some(successor) => {
                if let HeadEvent::Exited(holder, ..) = event {
                    successor.unheard.push(holder);
                }
            }
            None => {
                self.ask_head(event);
            }
        }
    }

    /// Another master goes on with the job. Nothing is left of the one before but what it has written down.
    pub(super) fn take_over(&mut self) {
        let Some(successor) = self.successor.as_deref_mut() else { return };
        successor.begins = None;
        let unheard = std::mem::take(&mut successor.unheard);
        // As in `antdt`: the job has those servers that were written down, whatever it began with.
        let servers = successor.record.nodes.iter().filter(|node| node.holder.node.role == Role::Server);
        let present = servers.filter(|node| !node.retired).count();
        if let Some(servers) = u32::try_from(present).ok().filter(|servers| *servers > 0) {
            self.setup.servers = servers;
        }
        let mut config = head_config(&self.setup, successor.policy.clone_box());
        if let Some(schedule) = &mut config.evaluations {
            schedule.earlier.clone_from(&successor.evaluations);
        }
        self.head = Head::resume(config, &successor.record).expect("the settings of the job");
        // The servers that it starts hold equal shares.
        self.weights = ServerWeights::default();
        self.restart_ledger();
        self.saw(&Happening::TakenOver);
        self.ask_head(HeadEvent::Begin);
        for holder in unheard {
            let unknown: Exit = classify(None, None);
            self.ask_head(HeadEvent::Exited(holder, unknown, Vec::new()));
        }
        self.arm_deadline();
    }

    /// The head wants the job to go back.
    pub(super) fn roll_back(&mut self, rollback: RollbackId) {
        if let Some(successor) = self.successor.as_deref_mut() {
            successor.newest = rollback;
            self.queue.push(self.now + RESTORE_DELAY, Due::Restore(rollback));
        }
    }

    /// The job goes back to its newest checkpoint, or to its start, unless a newer order says so, or the master that ordered it has ended.
    pub(super) fn restore(&mut self, rollback: RollbackId) {
        let ordered = |successor: &&Successor| successor.newest == rollback && successor.begins.is_none();
        let Some(successor) = self.successor.as_deref().filter(ordered) else { return };
        let Moment { ledger, samples, checkpoint, .. } =
            self.checkpoints.newest.clone().unwrap_or_else(|| successor.start.clone());
        let (snapshot, generation) = (Box::new(ledger), self.ledger.generation().next());
        let before = self.ledger.counts();
        self.ask_ledger(LedgerEvent::Restore { snapshot, generation });
        self.checkpoints.set_back(samples);
        let counts = self.ledger.counts();
        let again = before.acked.saturating_sub(counts.acked);
        let (place, name) = match checkpoint {
            Some(checkpoint) => (Some(checkpoint.to_string().into()), format!("checkpoint {checkpoint}")),
            None => (None, "the start of the job".to_owned()),
        };
        let text = format!("went back to {name}: {again} samples are trained again");
        let outcome = Ok(RolledBack { checkpoint: place, counts, text });
        self.ask_head(HeadEvent::RolledBack { rollback, outcome });
    }
}
