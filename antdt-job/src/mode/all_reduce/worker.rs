//! The worker's half: a round is the gradient of one batch.

use antdt_agent::{Batch, Part};

use crate::mode::Turn;
use crate::mode::shared::member::Round;
use crate::worker::{Call, Reply, WorkerCore};

/// The gradient of one batch.
#[derive(Debug, Clone)]
pub(super) struct Gradient;

impl Round for Gradient {
    fn begin(&mut self, core: &mut WorkerCore, _turn: &mut Turn<'_>) -> Option<Call> {
        Some(core.take_batch(core.patience()))
    }

    fn loaded(&mut self, core: &mut WorkerCore, turn: &mut Turn<'_>) -> Option<Call> {
        core.enter(turn, Part::Compute);
        Some(core.call(Call::Compute))
    }

    fn ends_before_fault(&mut self, _core: &mut WorkerCore) -> bool {
        false
    }

    fn answered(
        &mut self,
        core: &mut WorkerCore,
        _turn: &mut Turn<'_>,
        reply: &Reply,
    ) -> Result<Option<Call>, ()> {
        let Reply::Computed { samples, loss_sum } = reply else { return Err(()) };
        core.set_computed(*samples, *loss_sum);
        Ok(None)
    }

    fn batch<'a>(&'a self, core: &'a WorkerCore) -> &'a Batch {
        core.batch()
    }

    fn loss_sum(&self, core: &WorkerCore) -> f64 {
        core.computed().1
    }

    fn aborted(&mut self, core: &mut WorkerCore) {
        core.abort();
    }

    fn committed(&mut self) {}
}
