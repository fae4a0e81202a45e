//! The command with a sync mode of a program's own that has a data plane of its own, in one file (`every_second.rs`) and one line
//! (`.mode(…)`). The model counts: row `n` of its table grows by one for each time that sample `n` is in the model, so that a test sees
//! apart from the ledger that each one is:
//! `cargo run -p antdt --features cli --example own_mode -- run --sync every-second --workload rows --optimizer sums --report-dir report`

use std::collections::BTreeMap;

use antdt::JobBuilder;
use antdt::agent::{Buffer, GradientSink, Params, StepStats, TrainError, Trainer};
use antdt::core::{Metrics, ParamGroup, ParamLayout, SampleRange, Seed, TableSpec};
use antdt::model::optimizer::{self, Defaults, Optimizer, Update, UpdateStep};
use antdt::workload::{self, Workload};

mod every_second;

/// Samples of the data set, and rows of the table.
const SAMPLES: u64 = 1_200;

/// Adds the sums of gradients to the parameters, whatever the rate and the size of the batch.
#[derive(Debug)]
struct Sums;

impl Optimizer for Sums {
    fn name(&self) -> &'static str {
        "sums"
    }
    fn settings(&self) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn defaults(&self) -> Defaults {
        Defaults { rate: 1.0, decay: 0.0 }
    }
    fn state_per_value(&self) -> usize {
        0
    }
    fn begin(&self, _: UpdateStep) -> Update<'_> {
        Box::new(|values, _, sums| values.iter_mut().zip(sums).for_each(|(value, sum)| *value += sum))
    }
}

/// Counts the samples of each row, and all of them in its dense parameter.
struct Counting {
    layout: ParamLayout,
    /// Rows of the batch, ascending, and how often each is in it: at the end of an epoch a sample may be twice.
    rows: Vec<u64>,
    counts: Vec<f32>,
}

impl Counting {
    fn new() -> Self {
        let layout = ParamLayout::new(
            vec![ParamGroup::trainable("all", 1)],
            vec![TableSpec::new("rows", SAMPLES, 1, 0.0)],
        );
        Self { layout: layout.expect("a small layout"), rows: Vec::new(), counts: Vec::new() }
    }
}

impl Trainer for Counting {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn train_samples(&self) -> u64 {
        SAMPLES
    }

    fn eval_samples(&self) -> u64 {
        SAMPLES
    }

    fn initial_dense(&self, _: Seed) -> Vec<f32> {
        vec![0.0]
    }

    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let alike: Vec<&[u64]> = sorted.chunk_by(|one, other| one == other).collect();
        self.rows = alike.iter().map(|samples| samples[0]).collect();
        self.counts = alike.iter().map(|samples| samples.len() as f32).collect();
        Ok(&self.rows)
    }

    fn load_eval(&mut self, samples: SampleRange) -> Result<&[u64], TrainError> {
        let all: Vec<u64> = (samples.start..samples.end).collect();
        self.load(&all)
    }

    fn forward_backward(
        &mut self,
        _: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError> {
        let total: f32 = self.counts.iter().sum();
        sink.group(0, Buffer::Host(&[total]))?;
        sink.rows(Buffer::Host(&self.counts))?;
        Ok(StepStats { loss_sum: f64::from(total), samples: total as u64 })
    }

    fn evaluate(&mut self, _: Params<'_>, _: &mut Metrics) -> Result<(), TrainError> {
        Ok(())
    }
}

fn main() -> std::process::ExitCode {
    JobBuilder::new()
        .mode(every_second::parts())
        .optimizer(optimizer::Entry::new("sums", "adds what it is given", |_| Ok(Box::new(Sums))))
        .trainer(workload::Entry::new("rows", "counts its samples", |_| Ok(Workload::made(Counting::new))))
        .main()
}
