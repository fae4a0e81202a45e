//! `antdt` with an action of one's own, the policy that decides on it, and the trainer that carries it out; the nodes of a job are processes
//! of this program too: `cargo run -p antdt --example own_action -- run --workload line --policy halfway`
//!
//! The trainer fits the slope 3 of a line. Once half of the samples are trained, the policy `halfway` asks for the action `SLOPE` with the value 5.
//! All workers switch at one iteration, and the model ends at 5. The policy `chief-halfway` asks for it for the chief alone: of three workers
//! with equal batches one fits 5 then, and the model ends at 11/3.
use antdt::JobBuilder;
use antdt::agent::{GradientSink, Params, StepStats, TrainError, Trainer};
use antdt::controller::action::{Reach, ValueAction, Worker};
use antdt::controller::{Decision, budget::RestartBudget, policy};
use antdt::core::{
    ClusterView, Holder, InvalidValue, JobTime, Metrics, ParamLayout, Reason, SampleRange, Seed,
};
use antdt::workload::{Entry, Workload};

const SAMPLES: u64 = 9_999;

/// A new slope to fit.
#[derive(Debug)]
struct Slope;

fn read(value: &str) -> Result<f32, InvalidValue> {
    let slope = value.parse().ok().filter(|slope: &f32| slope.is_finite());
    slope.ok_or_else(|| InvalidValue::new("SLOPE", value, "a finite number"))
}

impl ValueAction for Slope {
    type Value = f32;

    const NAME: &'static str = "SLOPE";
    const DRY_NAME: &'static str = "WOULD_SLOPE";
    const ABOUT: &'static str = "another slope to fit";
    const REACH: Reach = Reach::Any;

    fn read(&self, text: &str) -> Result<f32, InvalidValue> {
        read(text)
    }
    fn begin(&self, slope: f32, worker: &mut dyn Worker) -> Result<(), InvalidValue> {
        worker.tell_trainer("SLOPE", &slope.to_string())
    }
}

fn halfway(_: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
    ask_once(view, |decision| decision.ask::<Slope>(&5.0))
}

fn chief_halfway(_: JobTime, view: &ClusterView, _: &RestartBudget) -> Decision {
    let chief = view.live_workers().find(|worker| worker.chief);
    ask_once(view, |decision| {
        if let Some(chief) = chief {
            decision.ask_worker::<Slope>(Holder::new(chief.id, chief.incarnation), &5.0);
        }
    })
}

fn ask_once(view: &ClusterView, ask: impl FnOnce(&mut Decision)) -> Decision {
    let is_half = view.progress.committed * 2 > view.progress.expected;
    if !is_half || !view.actions.is_empty() {
        return Decision::nothing(Reason::Balanced);
    }
    let reasons = vec![Reason::Other("half of it is done".to_owned())];
    let mut decision = Decision { reasons, ..Decision::default() };
    ask(&mut decision);
    decision
}

struct Line {
    layout: ParamLayout,
    slope: f32,
    batch: Vec<u64>,
}

impl Trainer for Line {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }
    fn train_samples(&self) -> u64 {
        SAMPLES
    }
    fn eval_samples(&self) -> u64 {
        0
    }
    fn initial_dense(&self, _seed: Seed) -> Vec<f32> {
        vec![0.0]
    }
    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError> {
        self.batch = samples.to_vec();
        Ok(&[])
    }
    fn load_eval(&mut self, _samples: SampleRange) -> Result<&[u64], TrainError> {
        self.load(&[])
    }
    fn forward_backward(
        &mut self,
        params: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError> {
        let off = params.dense.host()?[0] - self.slope;
        let square = |sample: &u64| ((sample % 7) as f32).powi(2);
        let squares: f32 = self.batch.iter().map(square).sum();
        sink.all(&self.layout, &[2.0 * off * squares], &[])?;
        Ok(StepStats { loss_sum: f64::from(off * off * squares), samples: self.batch.len() as u64 })
    }
    fn act(&mut self, action: &str, value: &str) -> Result<(), TrainError> {
        self.slope = read(value).map_err(|error| TrainError::Model(format!("{action}: {error}")))?;
        Ok(())
    }
    fn evaluate(&mut self, _params: Params<'_>, _metrics: &mut Metrics) -> Result<(), TrainError> {
        Ok(())
    }
}

fn line() -> Line {
    Line { layout: ParamLayout::dense(1), slope: 3.0, batch: Vec::new() }
}

fn main() -> std::process::ExitCode {
    JobBuilder::new()
        .action(&Slope)
        .policy(policy::Entry::new("halfway", "another slope", |_| {
            Ok(Box::new(policy::FromFn("halfway", halfway)))
        }))
        .policy(policy::Entry::new("chief-halfway", "another slope for the chief", |_| {
            Ok(Box::new(policy::FromFn("chief-halfway", chief_halfway)))
        }))
        .trainer(Entry::new("line", "a line", |_| Ok(Workload::made(line))))
        .main()
}
