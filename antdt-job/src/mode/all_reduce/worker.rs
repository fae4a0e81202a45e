//! The worker's half: a round is the gradient of one batch.
//!
//! While no worker is a backup, the gradient is computed and then combined. With backups it is computed beside the training thread, which
//! waits at the master's [gate](antdt_controller::StepGate) meanwhile. When the step begins without the gradient, the member goes into the
//! all-reduce with nothing: it stays in the group, and its model gets the step. Its gradient is then of an older model, and is dropped when it
//! is there; the samples are taken again for the step that is open by then. It goes into all steps until then in the same way.

use antdt_agent::{Batch, Part};
use antdt_core::{Acks, PlanVersion, Readiness};

use crate::mode::Turn;
use crate::mode::shared::RETRIES;
use crate::mode::shared::member::Round;
use crate::worker::{Call, Reply, WorkerCore};

/// A gradient that is computed beside other calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// It is for the open step.
    Fresh,
    /// It is for the open step, and the gate waits for it.
    Awaited,
    /// It is of an older model, and its samples are to be taken again.
    Stale,
    /// The same, and the step that it was for may never have been taken: its group broke.
    Void,
}

/// The gradient of one batch.
#[derive(Debug, Clone)]
pub(super) struct Gradient {
    /// Workers that a step need not wait for, unless the plan in force says how many.
    backups: u32,
    beside: Option<Beside>,
    /// The step that it was begun for, and the plan in force.
    begun: (u64, PlanVersion),
    /// The batch that was loaded last is neither in the model nor given up.
    is_out: bool,
    /// Its gradient goes into the step.
    brings: bool,
    /// What it brings otherwise.
    nothing: Batch,
    /// Times in a row that its gradient came too late.
    late: u32,
    /// Steps that it takes without samples, after it gave some back.
    sits_out: u64,
}

impl Gradient {
    /// The round of a mode whose steps wait for all workers but `backups` of them.
    pub(super) fn new(backups: u32) -> Self {
        Self {
            backups,
            beside: None,
            begun: (0, PlanVersion(0)),
            is_out: false,
            brings: false,
            nothing: Batch::default(),
            late: 0,
            sits_out: 0,
        }
    }

    /// Whether steps begin at the master's gate.
    fn is_gated(&self, core: &mut WorkerCore) -> bool {
        core.switch().backups().unwrap_or(self.backups) > 0
    }

    /// Asks the gate, with so many samples and with their acknowledgements if their gradient is there.
    fn readiness(core: &mut WorkerCore, samples: u64, acks: Acks) -> Readiness {
        // All members of a step have the same plan in force, which says how many backups there are.
        let (end_of_data, plan) = (core.end_of_data(), core.switch().applied());
        Readiness { samples, end_of_data, plan, acks: acks.into_vec() }
    }

    fn ask(core: &mut WorkerCore, turn: &Turn<'_>) -> Call {
        core.enter(turn, Part::BarrierWait);
        let (samples, acks) = (core.batch().len(), core.acks_of(core.batch()));
        let readiness = Self::readiness(core, samples, acks);
        core.call(Call::Ready { step: core.steps(), readiness })
    }

    fn ask_beside(core: &mut WorkerCore) -> Call {
        let samples = core.batch().len().max(1);
        let readiness = Self::readiness(core, samples, Acks::new());
        core.call(Call::ReadyBeside { step: core.steps(), readiness })
    }

    /// Gives the batch up; a gradient that is still computed becomes `late`.
    fn give_up(&mut self, core: &mut WorkerCore, late: Beside) {
        if std::mem::take(&mut self.is_out) {
            core.abort();
        }
        if let Some(beside) = &mut self.beside {
            *beside = late;
            // It is reported when it is there.
            core.set_computed(0, 0.0);
        }
        self.brings = false;
    }

    /// The step begins, with the gradient of this worker or without it.
    fn told(&mut self, core: &mut WorkerCore, counted: bool) -> Option<Call> {
        if counted && self.beside == Some(Beside::Fresh) {
            // An old copy of a message of this worker has promised it.
            self.beside = Some(Beside::Awaited);
            return Some(core.call(Call::Finish));
        }
        self.brings = counted && self.beside.is_none();
        if !self.brings {
            self.late += u32::from(self.is_out && !core.batch().is_empty());
            let late = if self.beside == Some(Beside::Void) { Beside::Void } else { Beside::Stale };
            self.give_up(core, late);
        }
        None
    }
}

impl Round for Gradient {
    fn begin(&mut self, core: &mut WorkerCore, _turn: &mut Turn<'_>) -> Option<Call> {
        self.brings = false;
        if self.late > RETRIES {
            self.late = 0;
            // Until another worker has asked for a shard, it gets none: it would be given the same one again.
            self.sits_out = core.batches_of_a_shard() + 1;
            if let Some(call) = core.give_back() {
                return Some(core.feed(call));
            }
        }
        if self.beside.is_some() {
            // Where every member is waited for, so is what this one computes for an older step. And so it is under a new plan: the plan
            // may change how the model takes a step, in all replicas alike, and begins with the batch that is loaded under it.
            let goes_on = self.is_gated(core) && self.begun.1 == core.switch().applied();
            return Some(if goes_on { Self::ask_beside(core) } else { core.call(Call::Finish) });
        }
        if self.sits_out > 0 {
            self.sits_out -= 1;
            return Some(core.take_nothing());
        }
        Some(core.take_batch(core.patience()))
    }

    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Option<Call> {
        self.is_out = true;
        if self.is_gated(core) {
            if core.batch().is_empty() {
                core.set_computed(0, 0.0);
                return Some(Self::ask(core, turn));
            }
            if core.is_last_piece() {
                self.beside = Some(Beside::Fresh);
                self.begun = (core.steps(), core.switch().applied());
                return Some(core.compute_beside(turn));
            }
        }
        core.enter(turn, Part::Compute);
        Some(core.call(Call::Compute))
    }

    fn ends_before_fault(&mut self, _core: &mut WorkerCore) -> bool {
        false
    }

    fn answered(
        &mut self,
        core: &mut WorkerCore,
        turn: &mut Turn<'_>,
        reply: &Reply,
    ) -> Result<Option<Call>, ()> {
        match (reply, self.beside) {
            (Reply::Computing, Some(_)) => Ok(Some(Self::ask_beside(core))),
            (Reply::Computed { samples, loss_sum }, beside) => {
                core.set_computed(*samples, *loss_sum);
                self.beside = None;
                match beside {
                    None | Some(Beside::Awaited) => self.brings = true,
                    Some(Beside::Fresh) => return Ok(Some(Self::ask(core, turn))),
                    Some(late @ (Beside::Stale | Beside::Void)) => {
                        if late == Beside::Stale {
                            core.report_of(turn, self.begun, *samples);
                        } else {
                            core.restart_meter(turn);
                        }
                        core.set_computed(0, 0.0);
                        return Ok(self.begin(core, turn));
                    }
                }
                Ok(None)
            }
            (Reply::Committed(passage), _) => Ok(self.told(core, passage.counted)),
            _ => Err(()),
        }
    }

    fn batch<'a>(&'a self, core: &'a WorkerCore) -> &'a Batch {
        if self.brings { core.batch() } else { &self.nothing }
    }

    fn loss_sum(&self, core: &WorkerCore) -> f64 {
        if self.brings { core.computed().1 } else { 0.0 }
    }

    fn aborted(&mut self, core: &mut WorkerCore) {
        self.give_up(core, Beside::Void);
    }

    fn committed(&mut self) {
        if std::mem::take(&mut self.brings) {
            (self.is_out, self.late) = (false, 0);
        }
    }

    fn rolled_back(&mut self) {
        *self = Self::new(self.backups);
    }
}
