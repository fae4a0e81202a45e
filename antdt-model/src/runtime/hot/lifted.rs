//! [`Lifted`]: the flat vector of a model in the memory of a GPU, where its gradients are.

use std::sync::Arc;

use antdt_collective::runtime::flat::{FlatError, FlatMemory};
use antdt_core::GroupKind;

use super::HotError;
use crate::gradient::{mean_scale, square_sum};
use crate::optimizer::UpdateStep;
use crate::replica::Replica;

/// See the [module](self). Each call is given the model that it was made for, whose own vector is behind between two refreshes.
#[derive(Debug)]
pub(super) struct Lifted {
    memory: Arc<dyn FlatMemory>,
    /// Whether the model's own values, and what the optimizer keeps of them, are behind.
    values_behind: bool,
    state_behind: bool,
}

impl Lifted {
    /// The vector of the model lies in the memory from now on.
    pub(super) fn new(memory: Arc<dyn FlatMemory>, replica: &mut Replica) -> Result<Self, HotError> {
        let mut lifted = Self { memory, values_behind: false, state_behind: false };
        lifted.write(replica)?;
        Ok(lifted)
    }

    pub(super) const fn memory(&self) -> &Arc<dyn FlatMemory> {
        &self.memory
    }

    /// Takes over the model's own vector.
    pub(super) fn write(&mut self, replica: &mut Replica) -> Result<(), HotError> {
        let params = replica.dense_params();
        self.memory.write(params.values(), params.state())?;
        (self.values_behind, self.state_behind) = (false, false);
        Ok(())
    }

    /// Brings the model's own values up to date.
    pub(super) fn refresh_values(&mut self, replica: &mut Replica) -> Result<(), HotError> {
        if self.values_behind {
            self.memory.read(replica.dense_params().values_mut())?;
            self.values_behind = false;
        }
        Ok(())
    }

    /// Brings the model's own vector up to date.
    pub(super) fn refresh(&mut self, replica: &mut Replica) -> Result<(), HotError> {
        self.refresh_values(replica)?;
        if self.state_behind {
            self.memory.read_state(replica.dense_params().state_mut())?;
            self.state_behind = false;
        }
        Ok(())
    }

    /// Checks that there are sums for all groups of the model.
    pub(super) fn check(&self, replica: &Replica, sums: &[u64]) -> Result<(), HotError> {
        let (got, due) = (sums.len(), replica.layout().groups().len());
        if got == due { Ok(()) } else { Err(FlatError::Length { got, due }.into()) }
    }

    /// Returns the sum of the squares of a gradient whose sums of each group, which were checked, lie in this memory, and those of rows on
    /// the host: its root is the [`norm`](crate::norm) of them. No sum goes to the host for it.
    pub(super) fn square_sum(&self, replica: &Replica, sums: &[u64], rows: &[f32]) -> Result<f64, HotError> {
        let mut total = 0.0;
        for ((place, group), sums) in replica.layout().ranges().zip(sums) {
            if group.kind == GroupKind::Trainable {
                total += self.memory.square_sum(*sums, place.len())?;
            }
        }
        Ok(total + square_sum(rows))
    }

    /// Takes the step with the sums of each group, which were checked.
    pub(super) fn apply(
        &mut self,
        replica: &Replica,
        sums: &[u64],
        step: UpdateStep,
        samples: u64,
    ) -> Result<(), HotError> {
        let optimizer = replica.optimizer();
        let of = |step| optimizer.row_step(step).ok_or_else(|| HotError::Optimizer(optimizer.name()));
        let (decayed, exempt) = (of(step)?, of(UpdateStep { decay: 0.0, ..step })?);
        (self.values_behind, self.state_behind) = (true, true);
        for ((place, group), sums) in replica.layout().ranges().zip(sums) {
            let sums = *sums;
            match (group.kind, group.decays) {
                // As on the host, what decays is never subnormal.
                (GroupKind::Trainable, true) => {
                    self.memory.step(place, sums, &decayed, f32::MIN_POSITIVE)?;
                }
                (GroupKind::Trainable, false) => self.memory.step(place, sums, &exempt, 0.0)?,
                (GroupKind::State, _) => self.memory.set(place, sums, mean_scale(samples))?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
