//! [`Replicas`]: every worker has the same parameters, and adds its gradient to every step.

use std::borrow::Cow;
use std::sync::Arc;

use antdt_agent::{GradientSink, MicroBatch};
use antdt_collective::bucket::Buckets;
use antdt_collective::runtime::flat::FlatMemory;
use antdt_collective::runtime::{BucketMemory, ProcessGroup, ReducerParts};
use antdt_collective::{Compression, Compressor};
use antdt_core::{CheckpointId, InvalidValue, ParamLayout, Seed};
use antdt_model::{Dense, DenseSums, HotError, HotReplica, Portion, SparseGradient, Trained, UpdateRule};

use super::stream::{self, GradientStream};
use super::sums::{Sums, SumsMemory};
use super::{
    BatchGradient, DensePlane, GradientPass, GroupStep, Home, JointPlane, ModelCopy, ModelSource,
    ParamValues, PeerGroup, RowsPlane, SharedModel, StepUpdate, TableSums, WorkerSite, unfit,
};
use crate::worker::WorkerError;
use crate::worker::hot::{self, OnDevice};
use crate::worker::lift::{self, LiftedDense};

/// See the [module](self). It may be the home of the whole model, or of one kind of parameters only: then its layout has no others.
pub(super) struct Replicas {
    layout: ParamLayout,
    rule: UpdateRule,
    seed: Seed,
    model: HotReplica,
    /// Rows of the loaded batch, unless they are on a device.
    values: Vec<f32>,
    /// How gradients travel during the backward pass; `None` if they go in one piece after it.
    plan: Option<Buckets>,
    /// The gradient of the batch that is computed or was, if there is a plan.
    stream: Option<GradientStream<Box<dyn ProcessGroup>>>,
    /// Memory of the plan's buckets while there is no stream.
    buckets: BucketMemory,
    /// Memory in which the whole dense gradient is reduced, if there is no plan.
    memory: SumsMemory,
    compress: Option<Compression>,
    /// Of each bucket of the plan, or of the whole dense gradient, with what it has not sent yet; none without
    /// compression.
    compressors: Vec<Compressor>,
    tables: TableSums,
    /// The step that was combined.
    dense_sums: Option<Sums>,
    row_sums: Option<SparseGradient>,
}

fn lost(error: HotError) -> WorkerError {
    match error {
        error @ (HotError::Memory(_) | HotError::Lost(_)) => hot::failed(error).into(),
        HotError::Flat(error) => lift::failed(error).into(),
        error => unfit(error),
    }
}

impl Replicas {
    /// Returns the home of the parameters that `layout`, a part of the model's, has: those that every job begins with.
    pub(super) fn new(site: &WorkerSite<'_>, layout: ParamLayout) -> Result<Self, WorkerError> {
        let (rule, seed) = (site.rule().clone(), site.seed());
        let mut model: HotReplica = site.replica(&layout)?.into();
        if !layout.tables().is_empty() {
            site.heating().heat(&mut model, site.trainer());
        }
        let lifting = site.lifting()?;
        if layout.dense_len() > 0 {
            lifting.lift(&mut model, site.trainer());
        }
        let plan = stream::plan(&layout, site.bucket_bytes(), lifting.is_wanted());
        let mut replicas = Self {
            rule,
            seed,
            model,
            values: Vec::new(),
            plan,
            stream: None,
            buckets: BucketMemory::default(),
            memory: SumsMemory::default(),
            compress: site.spec().compress,
            compressors: Vec::new(),
            tables: TableSums::new(layout.clone()),
            dense_sums: None,
            row_sums: None,
            layout,
        };
        replicas.compressors = replicas.new_compressors();
        Ok(replicas)
    }

    /// Compressors that have sent everything so far.
    fn new_compressors(&self) -> Vec<Compressor> {
        let calls = self.plan.as_ref().map_or(1, |plan| plan.buckets().len());
        let form = |form| (0..calls).map(|_| Compressor::new(form)).collect();
        self.compress.map(form).unwrap_or_default()
    }

    /// Begins to reduce a gradient in the buckets of the plan. Returns `false` if there is no plan, or no other member: a worker that
    /// is alone has nothing to send, but its gradient may be on a device.
    fn begin_stream(&mut self, peers: &mut PeerGroup<'_>) -> Result<bool, WorkerError> {
        let flat = self.model.flat().cloned();
        let Some(plan) = &self.plan else { return Ok(false) };
        if peers.world() < 2 && (flat.is_none() || peers.world() == 0) {
            return Ok(false);
        }
        let Some((communicator, abort)) = peers.lend() else { return Ok(false) };
        let compressors = std::mem::take(&mut self.compressors);
        let memory = match &flat {
            Some(flat) => stream::on_device(std::mem::take(&mut self.buckets), plan, &**flat)?,
            None => std::mem::take(&mut self.buckets),
        };
        let parts = ReducerParts { communicator, compressors, memory };
        self.stream = Some(GradientStream::begin(parts, plan, abort, flat)?);
        Ok(true)
    }

    /// A stream is over.
    fn take_back(&mut self, peers: &mut PeerGroup<'_>, parts: ReducerParts<Box<dyn ProcessGroup>>) {
        peers.take_back(parts.communicator);
        (self.compressors, self.buckets) = (parts.compressors, parts.memory);
    }

    /// Waits for the sums of the gradient that travels.
    fn end_stream(
        &mut self,
        peers: &mut PeerGroup<'_>,
        stream: GradientStream<Box<dyn ProcessGroup>>,
    ) -> Result<(), WorkerError> {
        let streamed = stream.finish(&self.layout, peers.step_wait())?;
        self.take_back(peers, streamed.parts);
        self.dense_sums = Some(match streamed.sums? {
            Some(dense) => dense.into(),
            None => Sums::Device(std::mem::take(&mut self.buckets)),
        });
        Ok(())
    }

    /// Takes memory back that the step before had, if it was not applied.
    fn recycle(&mut self) {
        self.row_sums = None;
        match self.dense_sums.take() {
            Some(Sums::Device(memory)) => self.buckets = memory,
            Some(sums) => self.memory.keep(sums),
            None => {}
        }
    }

    /// Calls `with` with the sums that were combined, where they lie.
    fn with_sums<T>(
        &mut self,
        with: impl FnOnce(&mut HotReplica, DenseSums<'_>, &SparseGradient) -> Result<T, HotError>,
    ) -> Result<T, WorkerError> {
        let none = SparseGradient::default();
        let rows = self.row_sums.as_ref().unwrap_or(&none);
        match &mut self.dense_sums {
            Some(Sums::Device(memory)) => {
                let places = self.plan.as_ref().and_then(|plan| memory.places(plan));
                // Every group has parameters.
                let places: Option<Vec<u64>> = places.and_then(|places| {
                    places.into_iter().map(|place| place.map(|place| place.address)).collect()
                });
                let places = places
                    .ok_or_else(|| WorkerError::Loop("sums are in no bucket of the plan".to_owned()))?;
                with(&mut self.model, DenseSums::Device(&places), rows).map_err(lost)
            }
            Some(sums) => {
                with(&mut self.model, DenseSums::Host(sums.host().unwrap_or_default()), rows).map_err(lost)
            }
            // A home of rows only.
            None if self.layout.dense_len() == 0 && self.row_sums.is_some() => {
                with(&mut self.model, DenseSums::Host(&[]), rows).map_err(lost)
            }
            None => Err(WorkerError::Loop("no step was combined to apply".to_owned())),
        }
    }
}

impl Home for Replicas {
    fn begin_plan(&mut self, rate_share: Option<f32>) {
        self.model.set_rate_share(rate_share.unwrap_or(1.0));
    }

    fn entered(&mut self) {
        self.tables.enter();
    }

    fn leaving(&mut self, peers: &mut PeerGroup<'_>) {
        if let Some(stream) = self.stream.take() {
            match stream.cancel("this worker left in the middle of a step") {
                Ok(parts) => self.take_back(peers, parts),
                // The connections are gone with the thread that had them.
                Err(error) => tracing::warn!(%error, "the gradient's thread ended badly"),
            }
        }
    }

    fn restart(&mut self, site: &WorkerSite<'_>) -> Result<(), WorkerError> {
        self.model.replace(site.replica(&self.layout)?).map_err(lost)?;
        self.compressors = self.new_compressors();
        Ok(())
    }

    fn forget_step(&mut self) {
        self.recycle();
    }

    fn restore(&mut self, portion: &Portion, with_state: bool) -> Result<usize, InvalidValue> {
        self.model.restore(portion, with_state)
    }

    fn set_trained(&mut self, trained: Trained) {
        self.model.set_trained(trained);
    }

    fn give(&mut self) -> Result<Vec<Box<dyn SharedModel + '_>>, WorkerError> {
        let model = self.model.settle().map_err(lost)?;
        Ok(vec![Box::new(Cow::Borrowed(model))])
    }

    fn take(&mut self, from: &mut ModelSource<'_>) -> Result<(), WorkerError> {
        let model = from.replica(&self.layout, &self.rule, self.seed)?;
        self.model.replace(model).map_err(lost)
    }

    fn square_sum(&mut self) -> Result<f64, WorkerError> {
        self.with_sums(|model, dense, rows| model.square_sum(dense, rows))
    }

    fn apply(&mut self, update: &StepUpdate) -> Result<Option<f64>, WorkerError> {
        let StepUpdate { samples, norm, .. } = *update;
        self.with_sums(|model, dense, rows| model.apply_part(dense, rows, samples, norm))?;
        self.recycle();
        Ok(None)
    }

    fn advance(
        &mut self,
        gradient: &mut BatchGradient<'_>,
        samples: u64,
        norm: Option<f64>,
    ) -> Result<(), WorkerError> {
        let rows = gradient.take_rows();
        self.model.apply_part(DenseSums::Host(gradient.dense), &rows, samples, norm).map_err(lost)
    }

    fn copy(&mut self, _: CheckpointId) -> Result<ModelCopy, WorkerError> {
        let replica = self.model.settle().map_err(lost)?;
        Ok(ModelCopy { trained: replica.trained(), numbers: Some(replica.portion().into()) })
    }
}

impl DensePlane for Replicas {
    fn begin(&mut self, peers: &mut PeerGroup<'_>) -> Result<bool, WorkerError> {
        self.begin_stream(peers)
    }

    fn device(&self) -> Option<Arc<dyn FlatMemory>> {
        self.model.flat().cloned()
    }

    fn pass(&mut self) -> Result<GradientPass<'_>, WorkerError> {
        Ok(self.pass_with_rows()?.0)
    }

    fn host(&mut self) -> Result<&[f32], WorkerError> {
        self.model.dense().map_err(lost)
    }

    fn reduce(
        &mut self,
        peers: &mut PeerGroup<'_>,
        step: &GroupStep<'_>,
        gradient: &mut BatchGradient<'_>,
    ) -> Result<(), WorkerError> {
        self.recycle();
        if let Some(stream) = self.stream.take() {
            return self.end_stream(peers, stream);
        }
        let dense = step.take_dense(gradient, self.layout.dense_len());
        // A gradient that is computed goes in the buckets of the plan, too: the others' may travel while they compute, and compressors
        // keep what they have not sent of each bucket.
        if self.begin_stream(peers)?
            && let Some(mut stream) = self.stream.take()
        {
            stream.all(&self.layout, &dense, &[])?;
            return self.end_stream(peers, stream);
        }
        // A worker that is alone has the compressors of all buckets, and needs none.
        let compressor = match &mut self.compressors[..] {
            [compressor] => Some(compressor),
            _ => None,
        };
        self.dense_sums = Some(self.memory.reduce(peers.group()?, compressor, dense)?);
        Ok(())
    }
}

impl RowsPlane for Replicas {
    fn load(&mut self, rows: &[u64], _: MicroBatch) -> Result<(), WorkerError> {
        self.values.clear();
        self.model.load(rows, &mut self.values).map_err(lost)
    }

    fn values(&mut self) -> Result<ParamValues<'_>, WorkerError> {
        Ok(self.pass_with_rows()?.1)
    }

    fn announce(
        &mut self,
        step: &GroupStep<'_>,
        gradient: &mut BatchGradient<'_>,
    ) -> Result<Vec<u64>, WorkerError> {
        let rows = if step.has_gradient() { gradient.take_rows() } else { SparseGradient::default() };
        Ok(self.tables.announce(rows))
    }

    fn exchange(
        &mut self,
        peers: &mut PeerGroup<'_>,
        _: &GroupStep<'_>,
        announced: &[Vec<u64>],
    ) -> Result<(), WorkerError> {
        self.row_sums = Some(self.tables.exchange(peers.group()?, announced)?);
        Ok(())
    }

    fn gather(&mut self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), WorkerError> {
        self.model.gather(rows, into).map_err(lost)
    }
}

impl JointPlane for Replicas {
    fn pass_with_rows(&mut self) -> Result<(GradientPass<'_>, ParamValues<'_>), WorkerError> {
        let (dense, loaded) = self.model.parameters();
        let rows = match loaded {
            Some(loaded) => ParamValues::Device(Box::new(OnDevice::new(loaded))),
            None => ParamValues::Host(&self.values),
        };
        let dense = match dense {
            Dense::Host(dense) => ParamValues::Host(dense),
            Dense::Device(flat) => ParamValues::Device(Box::new(LiftedDense(Arc::clone(flat)))),
        };
        let sink = self.stream.as_mut().map(|stream| stream as &mut dyn GradientSink);
        Ok((GradientPass { dense, sink }, rows))
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::TableSpec;
    use antdt_model::Replica;

    use super::super::CopiedNumbers;
    use super::*;

    fn replicas(layout: &ParamLayout, rule: &UpdateRule) -> Replicas {
        let dense = (0..layout.dense_len()).map(|at| at as f32).collect();
        let model = Replica::new(layout, rule, Seed(5), dense).unwrap().into();
        Replicas {
            layout: layout.clone(),
            rule: rule.clone(),
            seed: Seed(5),
            model,
            values: Vec::new(),
            plan: None,
            stream: None,
            buckets: BucketMemory::default(),
            memory: SumsMemory::default(),
            compress: None,
            compressors: Vec::new(),
            tables: TableSums::new(layout.clone()),
            dense_sums: None,
            row_sums: None,
        }
    }

    fn portion(home: &mut dyn Home) -> Portion {
        match home.copy(CheckpointId(1)).unwrap().numbers.unwrap() {
            CopiedNumbers::Portion(portion) => portion,
            CopiedNumbers::State(state) => panic!("{state:?} is no portion"),
        }
    }

    #[test]
    fn two_homes_of_a_model_take_the_steps_that_one_home_takes() {
        let tables = vec![TableSpec::new("rows", 6, 2, 0.5)];
        let groups = ParamLayout::dense(3).groups().to_vec();
        let [whole, dense, rows] =
            [(groups.clone(), tables.clone()), (groups, Vec::new()), (Vec::new(), tables)]
                .map(|(groups, tables)| ParamLayout::new(groups, tables).unwrap());
        for clip_norm in [None, Some(0.5)] {
            let rule = UpdateRule { clip_norm, ..UpdateRule::named("adagrad", 0.1).unwrap() };
            let [mut joint, mut of_dense, mut of_rows] =
                [&whole, &dense, &rows].map(|layout| replicas(layout, &rule));
            for step in 1_u8..4 {
                let at = |index: u8| f32::from(index * step) - 4.0;
                let sums = vec![at(1), at(2), at(3)];
                let touched = SparseGradient {
                    rows: vec![u64::from(step), 5],
                    values: vec![at(4), at(5), at(6), at(7)],
                };
                joint.dense_sums = Some(sums.clone().into());
                joint.row_sums = Some(touched.clone());
                of_dense.dense_sums = Some(sums.into());
                of_rows.row_sums = Some(touched);
                let update = StepUpdate { samples: 7, ..StepUpdate::default() };
                joint.apply(&update).unwrap();
                let norm = (of_dense.square_sum().unwrap() + of_rows.square_sum().unwrap()).sqrt();
                let update = StepUpdate { norm: clip_norm.map(|_| norm), ..update };
                of_dense.apply(&update).unwrap();
                of_rows.apply(&update).unwrap();
            }
            let (whole, dense, rows) = (portion(&mut joint), portion(&mut of_dense), portion(&mut of_rows));
            assert_eq!(whole, Portion { tables: rows.tables, ..dense }, "{clip_norm:?}");
            let nothing = joint.apply(&StepUpdate::default()).unwrap_err().to_string();
            assert!(nothing.contains("no step was combined"), "{nothing}");
        }
    }
}
