//! A job whose trained model is the count of what was trained: parameter `n` grows by one for each time that sample `n` is in
//! the model. The tests run it to count apart from the ledger:
//! `cargo run -p antdt --example counting -- run --workload counting --optimizer sums --report-dir report`
use std::collections::BTreeMap;
use std::process::ExitCode;

use antdt::JobBuilder;
use antdt::agent::PerSample;
use antdt::core::registry::Setting;
use antdt::core::{ParamLayout, Role};
use antdt::model::optimizer::{Defaults, Entry, Optimizer, Update, UpdateStep};
use antdt::node::NodeEnv;
use antdt::worker::{PulledModel, TrainingSession, WorkerError};
use antdt::workload::{self, Workload};

/// Samples of the data set. The model has as many parameters, or more: `[workload.counting] parameters` in a job file.
const SAMPLES: usize = 1_200;

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

fn count(sample: u64, _: &[f32], gradient: &mut [f32]) -> f32 {
    gradient[sample as usize] += 1.0;
    1.0
}

/// The same count by a loop that pulls its batches: `--workload pulled`.
fn pull(env: NodeEnv) -> Result<(), WorkerError> {
    let rule = env.update_rule("sums", 1.0, 0.0)?;
    let mut session = TrainingSession::start(env, pulled(), rule)?;
    let mut gradient = vec![0.0; SAMPLES];
    while let Some(batch) = session.next_batch()? {
        gradient.fill(0.0);
        batch.samples.iter().for_each(|sample| gradient[*sample as usize] += 1.0);
        let samples = batch.samples.len();
        if session.parameters()?.is_some() {
            session.backward(&gradient, &[], samples as f64)?;
            session.step()?;
        }
    }
    session.finish()
}

fn pulled() -> PulledModel {
    PulledModel::new(ParamLayout::dense(SAMPLES), SAMPLES as u64)
}

pub(crate) fn main() -> ExitCode {
    let builder = JobBuilder::new()
        .optimizer(Entry::new("sums", "adds what it is given", |_| Ok(Box::new(Sums))))
        .trainer(workload::Entry::new("pulled", "counts its samples in a loop of its own", |_| {
            Ok(Workload::made(pulled))
        }))
        .trainer(workload::Entry {
            name: "counting",
            about: "counts its samples",
            settings: || {
                vec![Setting::new("parameters", SAMPLES, "of the model; what no sample has stays 0")]
            },
            build: |settings| {
                let parameters = settings.value("parameters", SAMPLES, "a number")?;
                if parameters < SAMPLES {
                    return Err(settings.refuse("parameters", parameters, "one for each sample at least"));
                }
                Ok(Workload::made(move || PerSample::new(SAMPLES as u64, parameters, count)))
            },
        });
    match NodeEnv::from_process() {
        Ok(env) if env.spec.workload == "pulled" && env.holder.node.role == Role::Worker => match pull(env) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::from(error.exit_code() as u8)
            }
        },
        Ok(_) | Err(_) => builder.main(),
    }
}
