//! [`Weights`]: the model in a worker, either the same on all workers or one of its own.

use std::borrow::Cow;
use std::sync::Arc;

use antdt_agent::Gradient;
use antdt_collective::runtime::FlatMemory;
use antdt_core::{InvalidValue, ParamPlace, Seed};
use antdt_job::SyncMode;
use antdt_job::mode::OuterStep;
use antdt_model::optimizer::Momentum;
use antdt_model::{
    Dense, Given, HotError, HotReplica, LoadedRows, LocalReplica, Portion, Replica, SparseGradient, Trained,
    UpdateRule,
};

use super::error::WorkerError;
use super::hot::failed;
use super::keep::ModelCopy;
use super::lift;

/// See the [module](self).
pub(super) enum Weights {
    /// The same model as on all other workers; members add up gradients.
    Shared(HotReplica),
    /// A model of this worker's own; members average models.
    Own(LocalReplica),
}

/// How averages change the model, in a mode with an outer optimizer.
fn outer_rule(sync: &SyncMode) -> Option<UpdateRule> {
    let OuterStep { rate, momentum } = sync.outer()?;
    Some(UpdateRule { rate, ..UpdateRule::new(Box::new(Momentum::nesterov(momentum))) })
}

/// The optimizer whose state goes to checkpoints: the one that all workers have in common, or that of the parameter servers.
pub(crate) fn kept_optimizer(sync: &SyncMode, rule: &UpdateRule) -> String {
    outer_rule(sync).map_or_else(|| rule.identity(), |outer| format!("outer {}", outer.identity()))
}

/// The rules of the models that workers share with one that joins.
pub(super) fn shared_rules(sync: &SyncMode, rule: &UpdateRule) -> Vec<UpdateRule> {
    std::iter::once(rule.clone()).chain(outer_rule(sync)).collect()
}

pub(super) fn unfit(error: impl std::fmt::Display) -> WorkerError {
    WorkerError::Parameters(error.to_string())
}

fn lost(error: HotError) -> WorkerError {
    match error {
        error @ (HotError::Memory(_) | HotError::Lost(_)) => failed(error).into(),
        HotError::Flat(error) => lift::failed(error).into(),
        error => unfit(error),
    }
}

impl Weights {
    /// The model that a job begins with, for a sync mode that keeps it in the workers.
    pub(super) fn new(sync: &SyncMode, replica: Replica, seed: Seed) -> Result<Self, WorkerError> {
        Ok(match (sync.capabilities().dense, outer_rule(sync)) {
            (ParamPlace::PerWorker | ParamPlace::Mixed, None) => Self::Own(LocalReplica::new(replica)),
            (ParamPlace::PerWorker | ParamPlace::Mixed, Some(rule)) => {
                Self::Own(LocalReplica::with_outer(replica, &rule, seed).map_err(unfit)?)
            }
            (ParamPlace::Replicas | ParamPlace::Servers, _) => Self::Shared(replica.into()),
        })
    }

    /// Overwrites the parameters that `portion` has and, if `with_state`, the state of the optimizer that all workers have in common.
    pub(super) fn restore(&mut self, portion: &Portion, with_state: bool) -> Result<usize, InvalidValue> {
        match self {
            Self::Shared(replica) => replica.restore(portion, with_state),
            Self::Own(local) => local.restore(portion, with_state),
        }
    }

    /// Takes steps at this share of the learning rate from now on. An outer optimizer's stay as they are.
    pub(super) const fn set_rate_share(&mut self, share: f32) {
        match self {
            Self::Shared(replica) => replica.set_rate_share(share),
            Self::Own(local) => local.set_rate_share(share),
        }
    }

    /// Sets how far the model is trained, after its portions were restored.
    pub(super) const fn set_trained(&mut self, trained: Trained) {
        match self {
            Self::Shared(replica) => replica.set_trained(trained),
            Self::Own(local) => local.set_trained(trained),
        }
    }

    /// Goes on with another model, whose rows are in the host's memory; hot ones will lie where those of this one do.
    pub(super) fn replace(&mut self, other: Self) -> Result<(), WorkerError> {
        match (self, other) {
            (Self::Shared(replica), Self::Shared(other)) => {
                replica.replace(other.into_settled().map_err(lost)?).map_err(lost)?;
            }
            (own, other) => *own = other,
        }
        Ok(())
    }

    /// The flat vector, on the host.
    pub(super) fn dense(&mut self) -> Result<&[f32], WorkerError> {
        match self {
            Self::Shared(replica) => replica.dense().map_err(lost),
            Self::Own(local) => Ok(local.model().dense()),
        }
    }

    /// The memory in which the flat vector lies, if it is on a device: gradients stay there.
    pub(super) fn flat(&self) -> Option<Arc<dyn FlatMemory>> {
        match self {
            Self::Shared(replica) => replica.flat().cloned(),
            Self::Own(_) => None,
        }
    }

    /// Gathers the rows of a batch: on a device, for [`parameters`](Self::parameters), or appended to `into`.
    pub(super) fn load(&mut self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), WorkerError> {
        match self {
            Self::Shared(replica) => replica.load(rows, into).map_err(lost),
            Self::Own(local) => local.model().gather(rows, into).map_err(unfit),
        }
    }

    /// The flat vector to compute with, where it lies, and the rows of the batch that was loaded, if they are on a device.
    pub(super) fn parameters(&mut self) -> (Dense<'_>, Option<LoadedRows<'_>>) {
        match self {
            Self::Shared(replica) => replica.parameters(),
            Self::Own(local) => (Dense::Host(local.model().dense()), None),
        }
    }

    /// Appends rows to `into`, wherever they lie.
    pub(super) fn gather(&mut self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), WorkerError> {
        match self {
            Self::Shared(replica) => replica.gather(rows, into).map_err(lost),
            Self::Own(local) => local.model().gather(rows, into).map_err(unfit),
        }
    }

    /// The model that all agree on, for a checkpoint.
    pub(super) fn copy(&mut self) -> Result<ModelCopy, WorkerError> {
        let (trained, portion) = match self {
            Self::Shared(replica) => {
                let replica = replica.settle().map_err(lost)?;
                (replica.trained(), replica.portion())
            }
            Self::Own(local) => (local.model().trained(), local.portion()),
        };
        Ok(ModelCopy { trained, portion: Some(portion) })
    }

    /// The models that all agree on, for a worker that joins: that of the [`shared_rules`].
    pub(super) fn shared(&mut self) -> Result<Vec<Cow<'_, Replica>>, WorkerError> {
        Ok(match self {
            Self::Shared(replica) => vec![Cow::Borrowed(replica.settle().map_err(lost)?)],
            Self::Own(local) => {
                let (base, outer) = local.shared();
                std::iter::once(Cow::Owned(base)).chain(outer.map(Cow::Borrowed)).collect()
            }
        })
    }

    /// Takes over what another worker shared.
    pub(super) fn take_shared(&mut self, models: Vec<Replica>) -> Result<(), WorkerError> {
        let mut models = models.into_iter();
        match (self, models.next()) {
            (_, None) => {}
            (Self::Shared(replica), Some(model)) => replica.replace(model).map_err(lost)?,
            (Self::Own(local), Some(model)) => *local = LocalReplica::of_shared(model, models.next()),
        }
        Ok(())
    }

    /// A step of this worker alone, with the gradient of the rows that its batch touched.
    pub(super) fn advance(
        &mut self,
        gradient: &mut Gradient,
        touched: &mut Vec<u64>,
        samples: u64,
    ) -> Result<(), WorkerError> {
        match self {
            Self::Shared(_) => {
                Err(WorkerError::Loop("a step alone was asked of a worker that shares its model".to_owned()))
            }
            Self::Own(local) => {
                let rows = SparseGradient {
                    rows: std::mem::take(touched),
                    values: std::mem::take(&mut gradient.rows),
                };
                local.advance(&gradient.dense, &rows, samples).map_err(unfit)
            }
        }
    }

    /// Undoes the steps of this worker alone.
    pub(super) fn revert(&mut self) {
        match self {
            Self::Shared(_) => {}
            Self::Own(local) => local.revert(),
        }
    }

    /// The model of this worker's own, for those that average with it.
    ///
    /// # Errors
    /// If all workers have the same one.
    pub(super) fn own(&self) -> Result<&LocalReplica, WorkerError> {
        match self {
            Self::Shared(_) => Err(WorkerError::Loop(
                "an average with a few was asked of a worker that shares its model".to_owned(),
            )),
            Self::Own(local) => Ok(local),
        }
    }

    /// A mean of models becomes this worker's own one.
    pub(super) fn mix(&mut self, mean: Given, samples: u64) -> Result<(), WorkerError> {
        match self {
            Self::Shared(_) => self.own().map(|_| ()),
            Self::Own(local) => local.mix(mean, samples).map_err(unfit),
        }
    }

    /// What this worker brings to the others: sums of gradients, or how far its model went, weighted by its samples.
    pub(super) fn contribution(
        &self,
        gradient: &mut Gradient,
        touched: &mut Vec<u64>,
    ) -> (Vec<f32>, SparseGradient) {
        match self {
            Self::Shared(_) => {
                let rows = SparseGradient {
                    rows: std::mem::take(touched),
                    values: std::mem::take(&mut gradient.rows),
                };
                (std::mem::take(&mut gradient.dense), rows)
            }
            Self::Own(local) => local.drift(),
        }
    }

    /// The same where the sums of the dense groups lie on the device, at these addresses.
    pub(super) fn apply_lifted(
        &mut self,
        dense: &[u64],
        rows: &SparseGradient,
        samples: u64,
    ) -> Result<(), WorkerError> {
        match self {
            Self::Shared(replica) => replica.apply_lifted(dense, rows, samples).map_err(lost),
            Self::Own(_) => {
                Err(WorkerError::Loop("sums on a device for a model of a worker's own".to_owned()))
            }
        }
    }

    /// What all members brought becomes part of the model. Returns how far this worker's own model was from the average, if one was made.
    pub(super) fn apply(
        &mut self,
        dense: &[f32],
        rows: &SparseGradient,
        samples: u64,
    ) -> Result<Option<f64>, WorkerError> {
        match self {
            Self::Shared(replica) => replica.apply(dense, rows, samples).map(|()| None).map_err(lost),
            Self::Own(local) => local.average(dense, rows, samples).map_err(unfit),
        }
    }
}
