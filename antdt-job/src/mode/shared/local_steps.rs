//! [`LocalSteps`]: a round is some steps of the worker's own model.

use antdt_agent::{Batch, Part};
use antdt_core::port::ACKS_MAX;

use crate::mode::Turn;
use crate::mode::shared::member::Round;
use crate::worker::{Call, Reply, WorkerCore};

/// Leases that the samples of a round are of, at most: all are acknowledged in one call, which the next batch may add to.
const LEASES_MAX: usize = ACKS_MAX / 2;

/// Some steps of the worker's own model.
#[derive(Debug, Clone)]
pub(crate) struct LocalSteps {
    /// Steps of a round, unless a plan says otherwise.
    steps: u32,
    taken: u32,
    /// Samples of the steps that were taken, and the sum of their losses.
    batches: Batch,
    loss_sum: f64,
}

impl LocalSteps {
    /// Most steps of a round: beyond, a slip of the hand is likelier than a wish.
    pub(crate) const MOST: u32 = 1_000_000;

    /// Reads a number of steps.
    pub(crate) fn read(text: &str) -> Option<u32> {
        text.parse().ok().filter(|steps| (1..=Self::MOST).contains(steps))
    }

    pub(crate) fn new(steps: u32) -> Self {
        Self { steps, taken: 0, batches: Batch::default(), loss_sum: 0.0 }
    }

    fn is_over(&self, core: &mut WorkerCore) -> bool {
        let steps = core.switch().local_steps().unwrap_or(self.steps);
        self.taken >= steps || self.batches.fragments.len() >= LEASES_MAX
    }
}

impl Round for LocalSteps {
    fn begin(&mut self, core: &mut WorkerCore, _turn: &mut Turn<'_>) -> Option<Call> {
        // A round that a broken group left open goes on.
        if self.is_over(core) { None } else { Some(core.take_batch(core.patience())) }
    }

    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Option<Call> {
        if core.batch().is_empty() {
            // There are no samples now: the others need not wait for them.
            core.set_computed(0, 0.0);
            return None;
        }
        core.enter(turn, Part::Compute);
        Some(core.call(Call::Compute))
    }

    fn before_combining(&mut self, core: &mut WorkerCore) -> Option<Call> {
        // The shard service was restarted and gave a lease of this round to another worker, which trains its samples again.
        // What this worker made of them must not get into an average.
        if core.holds(&self.batches) { None } else { Some(core.call(Call::Revert)) }
    }

    fn ends_before_fault(&mut self, core: &mut WorkerCore) -> bool {
        // A lease that goes back says how far it is done; samples that wait for an average are not.
        let ends = !self.batches.is_empty();
        if ends {
            core.abort();
            core.set_computed(0, 0.0);
        }
        ends
    }

    fn answered(
        &mut self,
        core: &mut WorkerCore,
        turn: &mut Turn<'_>,
        reply: &Reply,
    ) -> Result<Option<Call>, ()> {
        match reply {
            Reply::Computed { samples, loss_sum } => {
                core.set_computed(*samples, *loss_sum);
                Ok(Some(core.call(Call::Advance)))
            }
            Reply::Advanced => {
                self.taken += 1;
                core.collect(&mut self.batches);
                self.loss_sum += core.computed().1;
                if self.is_over(core) {
                    // The last step is reported with the average that follows it.
                    return Ok(None);
                }
                core.report_computed(turn);
                Ok(Some(core.take_batch(core.patience())))
            }
            Reply::Reverted => {
                core.abort_batch(&std::mem::take(&mut self.batches));
                core.restart_meter(turn);
                self.committed();
                Ok(Some(core.take_batch(core.patience())))
            }
            _ => Err(()),
        }
    }

    fn batch<'a>(&'a self, _core: &'a WorkerCore) -> &'a Batch {
        &self.batches
    }

    fn loss_sum(&self, _core: &WorkerCore) -> f64 {
        self.loss_sum
    }

    fn aborted(&mut self, core: &mut WorkerCore) {
        // The steps are in the worker's own model, and stay there for the next average.
        core.set_computed(0, 0.0);
    }

    fn committed(&mut self) {
        *self = Self::new(self.steps);
    }
}
