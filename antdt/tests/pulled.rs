//! Two jobs whose workers are threads of this one process, each with a loop that pulls its batches.

#![allow(clippy::unwrap_used, reason = "a test that panics says where")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use antdt::checkpoint::{Dtype, ModelState, StateTensor, TensorSpec};
use antdt::core::{Holder, NodeId, ParamLayout, Role};
use antdt::job::{DataSpec, JobSpec};
use antdt::launch::{LaunchError, LaunchStatus, Launcher, LauncherEvent, NodeExit, NodeSpec, Outlets};
use antdt::master::{self, Programs, Seams, TrainingData};
use antdt::node::NodeEnv;
use antdt::report::{Outcome, Report};
use antdt::server;
use antdt::worker::program::{Waited, WorkerAsk};
use antdt::worker::{ProgramModel, ProgramSession, PulledModel, TrainingSession, WorkerEnd, WorkerError};
use antdt_rt::CancellationToken;

const SAMPLES: u64 = 6_000;

fn model() -> PulledModel {
    PulledModel::new(ParamLayout::dense(1), SAMPLES)
}

/// Fits `slope * x`, and returns the slope that the worker had at the end.
fn train(env: NodeEnv, slope: f32) -> Result<f32, WorkerError> {
    let rule = env.update_rule("adagrad", 1.0, 0.0)?;
    let mut session = TrainingSession::start(env, model(), rule)?;
    let mut last = f32::NAN;
    while let Some(batch) = session.next_batch()? {
        let squares: f32 = batch.samples.iter().map(|sample| ((sample % 7) as f32).powi(2)).sum();
        let Some(params) = session.parameters()? else { continue };
        last = params.dense[0];
        let error = last - slope;
        session.backward(&[2.0 * error * squares], &[], f64::from(error * error * squares))?;
        session.step()?;
    }
    session.finish()?;
    Ok(last)
}

/// The same with a slope that the program has and changes itself. Each worker begins with another one, and marks what it brings with its number.
fn train_own(env: NodeEnv, slope: f32) -> Result<f32, WorkerError> {
    let number = env.holder.node.index;
    let mut model = number as f32;
    let mut session = ProgramSession::start(
        env,
        ProgramModel { parameters: 1, train_samples: SAMPLES, marks: 1, read_ahead: 0 },
    )?;
    let mut samples = Vec::new();
    loop {
        let ask = match session.wait(Duration::from_secs(60))? {
            Waited::Asks(ask) => ask,
            Waited::Over(end) => {
                assert_eq!(end, WorkerEnd::EndOfData { has_model: true });
                return Ok(model);
            }
            Waited::Nothing => return Err(WorkerError::Loop("the worker asked for nothing".to_owned())),
        };
        match ask {
            WorkerAsk::Batch(batch) => {
                samples = batch.samples;
                session.loaded()?;
            }
            WorkerAsk::Gradient => {
                let squares: f32 = samples.iter().map(|sample| ((sample % 7) as f32).powi(2)).sum();
                let gradient = 2.0 * (model - slope) * squares;
                session.gradient(|sums| sums[0] = gradient, vec![u64::from(number) + 1])?;
            }
            WorkerAsk::Step(step) => {
                for (rank, share) in (1..).zip(&step.shares) {
                    assert!(share.samples == 0 || share.marks == [rank], "{:?}", step.shares);
                }
                model -= 0.02 * step.rate_share * step.sums[0] / step.samples().max(1) as f32;
                session.stepped(step)?;
            }
            WorkerAsk::Give => {
                let tensor = |name: &str, shape: &[u64], bytes| {
                    let spec = TensorSpec { name: name.to_owned(), dtype: Dtype::F32, shape: shape.to_vec() };
                    StateTensor { spec, bytes }
                };
                let slope = tensor("slope", &[1], model.to_ne_bytes().to_vec());
                let tensors = vec![slope, tensor("nothing", &[0], Vec::new())];
                session.gave(ModelState { outline: "slope".to_owned(), tensors })?;
            }
            WorkerAsk::Take(parts) => {
                assert_eq!(parts.outline, "slope");
                model = f32::from_ne_bytes(parts.tensors[0].bytes[..].try_into().unwrap());
                session.took()?;
            }
        }
    }
}

/// What a worker does: it returns the slope that it found.
type Train = fn(NodeEnv, f32) -> Result<f32, WorkerError>;

/// Where the workers of a job leave the slopes that they found.
type Found = Arc<Mutex<BTreeMap<NodeId, f32>>>;

/// Starts each node as a thread.
struct Threads {
    outlets: Outlets,
    lives: Arc<Mutex<BTreeMap<Holder, LaunchStatus>>>,
    train: Train,
    slope: f32,
    found: Found,
}

impl Launcher for Threads {
    fn place(&mut self, _: NodeId) -> Option<String> {
        Some("this-process".to_owned())
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        let env: BTreeMap<String, String> = spec.env.iter().cloned().collect();
        let env = NodeEnv::read(|name| env.get(name).cloned(), &spec.file).unwrap();
        let (holder, train, slope) = (spec.holder, self.train, self.slope);
        let (events, lives, found) =
            (Arc::clone(&self.outlets.events), Arc::clone(&self.lives), Arc::clone(&self.found));
        lives.lock().unwrap().insert(holder, LaunchStatus::Running);
        std::thread::spawn(move || {
            events(LauncherEvent::Started { holder });
            let ended = match holder.node.role {
                Role::Worker => train(env, slope).map(|slope| {
                    found.lock().unwrap().insert(holder.node, slope);
                }),
                Role::Server => env
                    .update_rule("adagrad", 1.0, 0.0)
                    .and_then(|rule| server::run(&env, &ParamLayout::dense(1), &rule)),
            };
            let code = ended.map_or_else(|error| error.exit_code(), |()| 0);
            let exit = NodeExit { code: Some(code), signal: None };
            lives.lock().unwrap().insert(holder, LaunchStatus::Gone(exit));
            events(LauncherEvent::Gone { holder, exit, tail: Vec::new() });
        });
        Ok(())
    }

    fn end(&mut self, holder: Holder, _: Duration) -> bool {
        // A thread cannot be killed; a node that is fenced ends by itself.
        self.status(holder) == Some(LaunchStatus::Running)
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.lives.lock().unwrap().get(&holder).copied()
    }
}

async fn run(train: Train, sync: &str, servers: u32, slope: f32) -> (Report, Found) {
    run_on(DataSpec::Synthetic { rows: SAMPLES }, train, sync, servers, slope).await
}

async fn run_on(data: DataSpec, train: Train, sync: &str, servers: u32, slope: f32) -> (Report, Found) {
    let found = Found::default();
    let slopes = Arc::clone(&found);
    let seams = Seams {
        launcher: Some(Arc::new(move |outlets| {
            Box::new(Threads { outlets, lives: Arc::default(), train, slope, found: Arc::clone(&slopes) })
        })),
        ..Seams::default()
    };
    let folder = tempfile::tempdir().unwrap();
    let spec = JobSpec {
        workers: 2,
        servers,
        sync: sync.parse().unwrap(),
        program: matches!(data, DataSpec::Samples(_)).then(|| vec!["none".to_owned()]),
        data: Some(data),
        global_batch_size: 40,
        policy: "none".to_owned(),
        run_dir: Some(folder.path().join("run")),
        quiet: true,
        ..JobSpec::default()
    };
    // The nodes are threads: no program is started.
    let none = || (PathBuf::from("none"), Vec::new());
    let programs = Programs {
        worker: none(),
        server: none(),
        env: Vec::new(),
        layout: Some(ParamLayout::dense(1)),
        foreign: false,
    };
    let data = Some(TrainingData::of(SAMPLES));
    (master::run(&spec, data, &programs, seams, CancellationToken::new()).await.unwrap(), found)
}

#[test]
fn two_jobs_in_one_process_train_their_own_models_exactly() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let both = async { tokio::join!(run(train, "allreduce", 0, 3.0), run(train, "ps-bsp", 1, -5.0)) };
    let (first, second) = runtime.block_on(both);
    for ((report, found), slope) in [(first, 3.0), (second, -5.0)] {
        assert_eq!(report.outcome, Outcome::Completed);
        assert!(report.samples.is_exact() && report.samples.committed == SAMPLES, "{:?}", report.samples);
        let found = found.lock().unwrap();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.values().all(|found| (found - slope).abs() < 0.01), "{slope}: {found:?}");
    }
}

#[test]
fn workers_with_models_of_their_own_begin_with_the_first_ones_and_take_the_same_steps() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (report, found) =
        runtime.block_on(run_on(DataSpec::Samples(SAMPLES), train_own, "allreduce", 0, 3.0));
    assert_eq!(report.outcome, Outcome::Completed);
    assert!(report.samples.is_exact() && report.samples.committed == SAMPLES, "{:?}", report.samples);
    let found: Vec<f32> = found.lock().unwrap().values().copied().collect();
    assert!(found.len() == 2 && found[0] == found[1] && (found[0] - 3.0).abs() < 0.01, "{found:?}");
}
