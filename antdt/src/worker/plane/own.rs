//! [`Own`]: every worker trains a model of its own, and averages it with others.

use std::borrow::Cow;

use antdt_agent::MicroBatch;
use antdt_core::{CheckpointId, InvalidValue, ParamLayout, Seed};
use antdt_job::SyncMode;
use antdt_job::mode::OuterStep;
use antdt_model::optimizer::Momentum;
use antdt_model::{LocalReplica, Portion, Trained, UpdateRule};

use super::{
    BatchGradient, DensePlane, GradientPass, GroupStep, Home, JointPlane, ModelCopy, ModelSource,
    ParamValues, PeerGroup, RowsPlane, SharedModel, StepUpdate, WorkerSite, unfit,
};
use crate::worker::WorkerError;

/// How models of workers are averaged.
pub(super) trait Averaging {
    /// Called before members know of each other's samples.
    fn reduce(&mut self, own: &LocalReplica, peers: &mut PeerGroup<'_>) -> Result<(), WorkerError>;

    /// What the others must know of the rows.
    fn announce(&mut self) -> Vec<u64>;

    /// Called when members know of each other's samples.
    fn exchange(
        &mut self,
        own: &LocalReplica,
        peers: &mut PeerGroup<'_>,
        step: &GroupStep<'_>,
        announced: &[Vec<u64>],
    ) -> Result<(), WorkerError>;

    /// The average becomes the worker's own model. Returns how far that was from it, if that is of interest.
    fn apply(&mut self, own: &mut LocalReplica, update: &StepUpdate) -> Result<Option<f64>, WorkerError>;

    /// Another group was formed.
    fn entered(&mut self) {}

    /// Forgets all training.
    fn restart(&mut self) {}

    /// Drops an average that was made.
    fn forget(&mut self);
}

/// See the [module](self).
pub(super) struct Own<A> {
    layout: ParamLayout,
    rule: UpdateRule,
    /// How averages change the model, in a mode with an outer optimizer.
    outer: Option<UpdateRule>,
    seed: Seed,
    local: LocalReplica,
    /// Rows of the loaded batch.
    values: Vec<f32>,
    averaging: A,
}

/// How averages change the model, in a mode with an outer optimizer.
fn outer_rule(sync: &SyncMode) -> Option<UpdateRule> {
    let OuterStep { rate, momentum } = sync.outer()?;
    Some(UpdateRule { rate, ..UpdateRule::new(Box::new(Momentum::nesterov(momentum))) })
}

/// The optimizer whose state goes to checkpoints: the one that all workers have in common, or that of the parameter servers.
pub(in crate::worker) fn kept_optimizer(sync: &SyncMode, rule: &UpdateRule) -> String {
    outer_rule(sync).map_or_else(|| rule.identity(), |outer| format!("outer {}", outer.identity()))
}

impl<A: Averaging> Own<A> {
    /// Returns the home of the parameters that `layout`, a part of the model's, has: those that every job begins with.
    pub(super) fn new(site: &WorkerSite<'_>, layout: ParamLayout, averaging: A) -> Result<Self, WorkerError> {
        let outer = outer_rule(site.sync());
        let why = format!("with --sync {} each worker has a model of its own", site.sync());
        if !layout.tables().is_empty() {
            site.heating().decline(&why, site.trainer());
        }
        if layout.dense_len() > 0 {
            site.lifting()?.decline(&why, site.trainer());
        }
        Ok(Self {
            local: local(site, &layout, outer.as_ref())?,
            rule: site.rule().clone(),
            outer,
            seed: site.seed(),
            values: Vec::new(),
            averaging,
            layout,
        })
    }
}

fn local(
    site: &WorkerSite<'_>,
    layout: &ParamLayout,
    outer: Option<&UpdateRule>,
) -> Result<LocalReplica, WorkerError> {
    let replica = site.replica(layout)?;
    match outer {
        None => Ok(LocalReplica::new(replica)),
        Some(rule) => LocalReplica::with_outer(replica, rule, site.seed()).map_err(unfit),
    }
}

impl<A: Averaging> Home for Own<A> {
    fn begin_plan(&mut self, rate_share: Option<f32>) {
        // An outer optimizer's steps stay as they are.
        self.local.set_rate_share(rate_share.unwrap_or(1.0));
    }

    fn entered(&mut self) {
        self.averaging.entered();
    }

    fn restart(&mut self, site: &WorkerSite<'_>) -> Result<(), WorkerError> {
        self.local = local(site, &self.layout, self.outer.as_ref())?;
        self.averaging.restart();
        Ok(())
    }

    fn forget_step(&mut self) {
        self.averaging.forget();
    }

    fn restore(&mut self, portion: &Portion, with_state: bool) -> Result<usize, InvalidValue> {
        self.local.restore(portion, with_state)
    }

    fn set_trained(&mut self, trained: Trained) {
        self.local.set_trained(trained);
    }

    fn give(&mut self) -> Result<Vec<Box<dyn SharedModel + '_>>, WorkerError> {
        let (base, outer) = self.local.shared();
        let base: Box<dyn SharedModel + '_> = Box::new(Cow::Owned(base));
        let outer = outer.map(|outer| Box::new(Cow::Borrowed(outer)) as Box<dyn SharedModel + '_>);
        Ok(std::iter::once(base).chain(outer).collect())
    }

    fn take(&mut self, from: &mut ModelSource<'_>) -> Result<(), WorkerError> {
        let model = from.replica(&self.layout, &self.rule, self.seed)?;
        let outer = match &self.outer {
            Some(rule) => Some(from.replica(&self.layout, rule, self.seed)?),
            None => None,
        };
        self.local = LocalReplica::of_shared(model, outer);
        Ok(())
    }

    fn apply(&mut self, update: &StepUpdate) -> Result<Option<f64>, WorkerError> {
        self.averaging.apply(&mut self.local, update)
    }

    fn advance(
        &mut self,
        gradient: &mut BatchGradient<'_>,
        samples: u64,
        norm: Option<f64>,
    ) -> Result<(), WorkerError> {
        let rows = gradient.take_rows();
        self.local.advance_part(gradient.dense, &rows, samples, norm).map_err(unfit)
    }

    fn revert(&mut self) {
        self.local.revert();
    }

    fn copy(&mut self, _: CheckpointId) -> Result<ModelCopy, WorkerError> {
        let trained = self.local.model().trained();
        Ok(ModelCopy { trained, numbers: Some(self.local.portion().into()) })
    }
}

impl<A: Averaging> DensePlane for Own<A> {
    fn pass(&mut self) -> Result<GradientPass<'_>, WorkerError> {
        Ok(self.pass_with_rows()?.0)
    }

    fn host(&mut self) -> Result<&[f32], WorkerError> {
        Ok(self.local.model().dense())
    }

    fn reduce(
        &mut self,
        peers: &mut PeerGroup<'_>,
        _: &GroupStep<'_>,
        _: &mut BatchGradient<'_>,
    ) -> Result<(), WorkerError> {
        self.averaging.reduce(&self.local, peers)
    }
}

impl<A: Averaging> RowsPlane for Own<A> {
    fn load(&mut self, rows: &[u64], _: MicroBatch) -> Result<(), WorkerError> {
        self.values.clear();
        self.local.model().gather(rows, &mut self.values).map_err(unfit)
    }

    fn values(&mut self) -> Result<ParamValues<'_>, WorkerError> {
        Ok(ParamValues::Host(&self.values))
    }

    fn announce(&mut self, _: &GroupStep<'_>, _: &mut BatchGradient<'_>) -> Result<Vec<u64>, WorkerError> {
        Ok(self.averaging.announce())
    }

    fn exchange(
        &mut self,
        peers: &mut PeerGroup<'_>,
        step: &GroupStep<'_>,
        announced: &[Vec<u64>],
    ) -> Result<(), WorkerError> {
        self.averaging.exchange(&self.local, peers, step, announced)
    }

    fn gather(&mut self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), WorkerError> {
        self.local.model().gather(rows, into).map_err(unfit)
    }
}

impl<A: Averaging> JointPlane for Own<A> {
    fn pass_with_rows(&mut self) -> Result<(GradientPass<'_>, ParamValues<'_>), WorkerError> {
        let dense = ParamValues::Host(self.local.model().dense());
        Ok((GradientPass { dense, sink: None }, ParamValues::Host(&self.values)))
    }
}
