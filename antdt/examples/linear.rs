//! A trainer of one's own: linear regression on numbers made up on the spot.
//!
//! ```sh
//! cargo build --release -p antdt --bin antdt --example linear
//! target/release/antdt run --nproc-per-node 4 --data synthetic:20000 --global-batch-size 100 \
//!     --straggler worker=1,slow=4 --emulate-speed 2000 -- target/release/examples/linear
//! ```
//!
//! `--data synthetic:N` only tells the ledger how many samples there are; what sample number 17 is, the trainer knows.

use std::process::ExitCode;

use antdt::agent::{GradientSink, Params, StepStats, TrainError, Trainer};
use antdt::core::{Combine, Metric, Metrics, ParamLayout, SampleRange, Seed};
use antdt::node::NodeEnv;

/// What is to be found: y = Σ wᵢ xᵢ, noise aside.
const WEIGHTS: [f32; 4] = [1.0, -2.0, 0.5, 3.0];

struct Linear {
    layout: ParamLayout,
    samples: u64,
    batch: Vec<([f32; 4], f32)>,
}

impl Linear {
    fn sample(number: u64) -> ([f32; 4], f32) {
        let mut rng = Seed(1).derive_number(number).rng();
        #[allow(clippy::cast_possible_truncation, reason = "single precision is what is trained")]
        let x = std::array::from_fn(|_| rng.normal() as f32);
        #[allow(clippy::cast_possible_truncation, reason = "as above")]
        let noise = 0.01 * rng.normal() as f32;
        (x, dot(&x, &WEIGHTS) + noise)
    }
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Trainer for Linear {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn train_samples(&self) -> u64 {
        self.samples
    }

    fn eval_samples(&self) -> u64 {
        100
    }

    fn initial_dense(&self, _seed: Seed) -> Vec<f32> {
        vec![0.0; WEIGHTS.len()]
    }

    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError> {
        self.batch.clear();
        self.batch.extend(samples.iter().map(|number| Self::sample(*number)));
        Ok(&[])
    }

    fn load_eval(&mut self, samples: SampleRange) -> Result<&[u64], TrainError> {
        // Beyond the training samples.
        let held_out: Vec<u64> = (samples.start..samples.end).map(|number| self.samples + number).collect();
        self.load(&held_out)
    }

    fn forward_backward(
        &mut self,
        params: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError> {
        let weights = params.dense.host()?;
        let (mut loss_sum, mut sums) = (0.0, [0.0; WEIGHTS.len()]);
        for (x, y) in &self.batch {
            let error = dot(x, weights) - y;
            loss_sum += f64::from(error * error);
            // Sums over the samples, not means: workers have batches of different sizes.
            sums.iter_mut().zip(x).for_each(|(sum, x)| *sum += 2.0 * error * x);
        }
        sink.all(&self.layout, &sums, &[])?;
        Ok(StepStats { loss_sum, samples: self.batch.len() as u64 })
    }

    fn evaluate(&mut self, params: Params<'_>, metrics: &mut Metrics) -> Result<(), TrainError> {
        let weights = params.dense.host()?;
        for (x, y) in &self.batch {
            let error = f64::from((dot(x, weights) - y).abs());
            metrics.record(Metric::mean(Metric::LOSS, error * error, 1.0).lower_is_better())?;
            metrics.record(Metric::new("worst_error", error, 1.0, Combine::Max).lower_is_better())?;
        }
        Ok(())
    }
}

fn main() -> ExitCode {
    let run = || {
        let env = NodeEnv::from_process()?;
        let layout = ParamLayout::dense(WEIGHTS.len());
        let trainer = Linear { layout, samples: 1 << 40, batch: Vec::new() };
        // Unless the job says otherwise: --optimizer, --learning-rate.
        let rule = env.update_rule("sgd", 0.05, 0.0)?;
        antdt::worker::run(&env, Box::new(trainer), &rule)
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
        }
    }
}
