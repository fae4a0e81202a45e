//! [`Control`]: what an action can change in this worker.

use antdt_agent::Trainer;
use antdt_controller::action::{self, ActionValues};
use antdt_core::{Capabilities, Holder, InvalidValue};

use super::error::WorkerError;

/// What an action finds in a worker, and what it wants of its gradients.
pub(super) struct Control<'a> {
    holder: Holder,
    mode: Capabilities,
    batch_size: u32,
    even_batch_size: f64,
    trainer: &'a mut dyn Trainer,
    rate_share: Option<f32>,
}

impl<'a> Control<'a> {
    pub(super) const fn new(
        holder: Holder,
        mode: Capabilities,
        batch_size: u32,
        even_batch_size: f64,
        trainer: &'a mut dyn Trainer,
    ) -> Self {
        Self { holder, mode, batch_size, even_batch_size, trainer, rate_share: None }
    }

    /// Carries out the actions of a plan. Returns the share of the learning rate that gradients are to have from now on.
    pub(super) fn begin(mut self, actions: &ActionValues) -> Result<Option<f32>, WorkerError> {
        action::begin(actions, &mut self).map_err(|error| WorkerError::Input(error.to_string()))?;
        Ok(self.rate_share)
    }
}

impl action::Worker for Control<'_> {
    fn holder(&self) -> Holder {
        self.holder
    }

    fn mode(&self) -> Capabilities {
        self.mode
    }

    fn batch_size(&self) -> u32 {
        self.batch_size
    }

    fn even_batch_size(&self) -> f64 {
        self.even_batch_size
    }

    fn set_rate_share(&mut self, share: Option<f32>) {
        self.rate_share = share;
    }

    fn tell_trainer(&mut self, action: &str, value: &str) -> Result<(), InvalidValue> {
        self.trainer.act(action, value).map_err(|error| {
            InvalidValue::new(
                format!("the action {action}"),
                value,
                format!("one that the trainer takes ({error})"),
            )
        })
    }
}
