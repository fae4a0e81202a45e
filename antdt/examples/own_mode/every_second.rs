//! A sync mode of a program's own with a data plane of its own: workers take each step together, as in `allreduce`, but the rows of
//! tables change in every second step only, with the gradients of two steps at once.
//!
//! The dense parameters have the home that ships. The rows have one of their own: it adds up what all members bring to a step, so
//! that all have the same sums, and carries them to the next step. They are part of what a worker that joins takes over, and of each
//! checkpoint, so no sample is lost with a worker.

use std::borrow::Cow;
use std::collections::BTreeMap;

use antdt::agent::MicroBatch;
use antdt::core::{Capabilities, CheckpointId, InvalidValue, ParamLayout, ParamPlace, Seed};
use antdt::model::{Given, Portion, Replica, SparseGradient, Trained, UpdateRule};
use antdt::worker::WorkerError;
use antdt::worker::plane::{
    BatchGradient, GroupStep, Home, ModeParts, ModelCopy, ModelSource, ParamValues, PeerGroup, Plane,
    RowsPlane, SharedModel, StepUpdate, TableSums, WorkerSite, dense_home,
};
use antdt_job::SyncMode;
use antdt_job::mode::{Entry, HeadHalf, Mode, WorkerHalf};

/// The mode's line for [`JobBuilder::mode`](antdt::JobBuilder::mode).
pub(crate) fn parts() -> ModeParts {
    ModeParts::new(ENTRY, plane)
}

/// The data plane of a worker.
fn plane(site: &WorkerSite<'_>) -> Result<Plane, WorkerError> {
    Ok(Plane::apart(dense_home(ParamPlace::Replicas, site)?, Box::new(EverySecondRows::new(site)?)))
}

const ENTRY: Entry =
    Entry::new("every-second", "all-reduce; rows of tables change in every second step", |_| {
        Ok(SyncMode::new(EverySecond))
    });

/// When workers step and wait for each other is decided as in `allreduce`.
#[derive(Debug)]
struct EverySecond;

fn all_reduce() -> SyncMode {
    "allreduce".parse().expect("a mode that ships")
}

impl Mode for EverySecond {
    fn name(&self) -> &'static str {
        ENTRY.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::REPLICAS_IN_STEP
    }

    fn head(&self) -> Box<dyn HeadHalf> {
        all_reduce().head()
    }

    fn worker(&self) -> Box<dyn WorkerHalf> {
        all_reduce().worker()
    }
}

/// Sums of gradients that are not applied yet, the same on all members.
#[derive(Debug, Clone, Default)]
struct Carried {
    rows: BTreeMap<u64, Vec<f32>>,
    samples: u64,
}

impl Carried {
    fn add(&mut self, layout: &ParamLayout, sums: &SparseGradient, samples: u64) {
        for (row, values) in layout.by_row(&sums.rows, &sums.values) {
            let total = self.rows.entry(row).or_insert_with(|| vec![0.0; values.len()]);
            total.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        self.samples += samples;
    }

    fn gradient(&self) -> SparseGradient {
        let values = self.rows.values().flatten().copied().collect();
        SparseGradient { rows: self.rows.keys().copied().collect(), values }
    }

    fn apply_to(&mut self, table: &mut Replica) -> Result<(), WorkerError> {
        let Self { samples, .. } = *self;
        table.apply(&[], &self.gradient(), samples).map_err(unfit)?;
        *self = Self::default();
        Ok(())
    }
}

impl SharedModel for Carried {
    fn outline(&self) -> Vec<u8> {
        let sums = Given { dense: Vec::new(), rows: self.gradient() };
        [&self.samples.to_le_bytes()[..], &sums.encode()].concat()
    }

    fn arrays(&self) -> Vec<&[u8]> {
        Vec::new()
    }
}

fn unfit(error: impl std::fmt::Display) -> WorkerError {
    WorkerError::Parameters(error.to_string())
}

/// The home of the rows.
struct EverySecondRows {
    layout: ParamLayout,
    rule: UpdateRule,
    seed: Seed,
    table: Replica,
    /// Rows of the loaded batch.
    values: Vec<f32>,
    sums: TableSums,
    /// The sums of the step that was combined, and its number.
    combined: Option<(u64, SparseGradient)>,
    carried: Carried,
}

impl EverySecondRows {
    fn new(site: &WorkerSite<'_>) -> Result<Self, WorkerError> {
        let layout = site.rows_layout();
        Ok(Self {
            rule: site.rule().clone(),
            seed: site.seed(),
            table: site.replica(&layout)?,
            values: Vec::new(),
            sums: TableSums::new(layout.clone()),
            combined: None,
            carried: Carried::default(),
            layout,
        })
    }
}

impl Home for EverySecondRows {
    fn begin_plan(&mut self, rate_share: Option<f32>) {
        self.table.set_rate_share(rate_share.unwrap_or(1.0));
    }

    fn entered(&mut self) {
        self.sums.enter();
    }

    fn restart(&mut self, site: &WorkerSite<'_>) -> Result<(), WorkerError> {
        (self.table, self.carried) = (site.replica(&self.layout)?, Carried::default());
        Ok(())
    }

    fn forget_step(&mut self) {
        self.combined = None;
    }

    fn restore(&mut self, portion: &Portion, with_state: bool) -> Result<usize, InvalidValue> {
        self.table.restore(portion, with_state)
    }

    fn set_trained(&mut self, trained: Trained) {
        self.table.set_trained(trained);
    }

    fn give(&mut self) -> Result<Vec<Box<dyn SharedModel + '_>>, WorkerError> {
        Ok(vec![Box::new(Cow::Borrowed(&self.table)), Box::new(self.carried.clone())])
    }

    fn take(&mut self, from: &mut ModelSource<'_>) -> Result<(), WorkerError> {
        self.table = from.replica(&self.layout, &self.rule, self.seed)?;
        let bytes = from.outline()?;
        let (samples, sums) =
            bytes.split_first_chunk::<8>().ok_or_else(|| unfit("carried sums are cut off"))?;
        let sums = Given::decode(sums, &self.layout).ok_or_else(|| unfit("carried sums are damaged"))?;
        self.carried = Carried::default();
        self.carried.add(&self.layout, &sums.rows, u64::from_le_bytes(*samples));
        Ok(())
    }

    fn apply(&mut self, update: &StepUpdate) -> Result<Option<f64>, WorkerError> {
        let combined = self.combined.take();
        let (number, sums) = combined.ok_or_else(|| unfit("no step was combined to apply"))?;
        self.carried.add(&self.layout, &sums, update.samples);
        if number % 2 == 1 {
            self.carried.apply_to(&mut self.table)?;
        }
        Ok(None)
    }

    fn copy(&mut self, _: CheckpointId) -> Result<ModelCopy, WorkerError> {
        // What is carried is in the checkpoint a step early.
        let mut table = self.table.clone();
        self.carried.clone().apply_to(&mut table)?;
        Ok(ModelCopy { trained: table.trained(), numbers: Some(table.portion().into()) })
    }
}

impl RowsPlane for EverySecondRows {
    fn load(&mut self, rows: &[u64], _: MicroBatch) -> Result<(), WorkerError> {
        self.values.clear();
        self.table.gather(rows, &mut self.values).map_err(unfit)
    }

    fn values(&mut self) -> Result<ParamValues<'_>, WorkerError> {
        Ok(ParamValues::Host(&self.values))
    }

    fn announce(
        &mut self,
        step: &GroupStep<'_>,
        gradient: &mut BatchGradient<'_>,
    ) -> Result<Vec<u64>, WorkerError> {
        let mine = if step.has_gradient() { gradient.take_rows() } else { SparseGradient::default() };
        Ok(self.sums.announce(mine))
    }

    fn exchange(
        &mut self,
        peers: &mut PeerGroup<'_>,
        step: &GroupStep<'_>,
        announced: &[Vec<u64>],
    ) -> Result<(), WorkerError> {
        self.combined = Some((step.number, self.sums.exchange(peers.group()?, announced)?));
        Ok(())
    }

    /// For an evaluation, which comes after the last step.
    fn gather(&mut self, rows: &[u64], into: &mut Vec<f32>) -> Result<(), WorkerError> {
        self.carried.apply_to(&mut self.table)?;
        self.table.gather(rows, into).map_err(unfit)
    }
}
