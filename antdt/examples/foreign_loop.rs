//! A training loop that `antdt` does not own: it pulls batches, computes gradients by its own means, and steps. The master and the servers of
//! the job are processes of this program too: `cargo run -p antdt --example foreign_loop -- run --workload line`
use std::process::ExitCode;

use antdt::JobBuilder;
use antdt::core::ParamLayout;
use antdt::worker::{PulledModel, TrainingSession, WorkerError};
use antdt::workload::{Entry, Workload};

fn model() -> PulledModel {
    PulledModel::new(ParamLayout::dense(1), 9_999)
}

fn train() -> Result<(), WorkerError> {
    let mut session = TrainingSession::from_process(model(), |env| env.update_rule("adagrad", 0.02, 0.0))?;
    while let Some(batch) = session.next_batch()? {
        let squares: f32 = batch.samples.iter().map(|sample| ((sample % 7) as f32).powi(2)).sum();
        let Some(params) = session.parameters()? else { continue };
        let error = params.dense[0] - 3.0;
        session.backward(&[2.0 * error * squares], &[], f64::from(error * error * squares))?;
        session.step()?;
    }
    session.finish()
}

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() != Some("worker") {
        return JobBuilder::new().trainer(Entry::new("line", "3 x", |_| Ok(Workload::made(model)))).main();
    }
    match train() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code() as u8)
        }
    }
}
