//! [`ProgramSession`]: a worker whose training loop and model both belong to the program.
//!
//! A [`TrainingSession`](super::TrainingSession) hands the program parameters and takes its gradient; the parameters and the optimizer are
//! AntDT's. A program with a model and an optimizer of its own, as those that train with PyTorch have, answers what the worker
//! [asks](WorkerAsk): it computes a gradient, takes the step that all workers combined, gives its model to a worker that joins, or takes
//! one. Leases, plans, groups, deaths and acknowledgements are those of every other worker, on a thread of its own.
//!
//! The two threads never compute at the same time, and nothing is shared by the process. Values are `f32` in this process's memory; a
//! gradient is copied twice on the way to the group and twice on the way back.
//!
//! Source: our design.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use antdt_agent::{GradientSink, Params, StepStats, TrainError, Trainer};
use antdt_checkpoint::ModelState;
use antdt_core::{InvalidValue, Metrics, ParamLayout, ParamPlace, SampleRange, Seed};
use antdt_job::SyncMode;
use antdt_model::UpdateRule;

use super::plane::{Plane, Planes, ProgramReplica, WorkerSite};
use super::{PulledBatch, WorkerEnd, WorkerError};
use crate::node::{self, NodeEnv};

/// A model that a program keeps, as far as its worker must know it. It must be the same in every process of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramModel {
    /// Number of parameters that have a gradient.
    pub parameters: usize,
    /// Number of training samples.
    pub train_samples: u64,
    /// Number of [marks](StepShare::marks) that a worker sends with each gradient.
    pub marks: usize,
    /// Number of batches beyond the one that is open whose samples the program begins to read; may differ between processes. The
    /// worker leases them before, and each batch says [what follows](PulledBatch::upcoming).
    pub read_ahead: u32,
}

/// What the worker asks of the program. Each is answered by a method of [`ProgramSession`].
#[derive(Debug)]
pub enum WorkerAsk {
    /// Samples to compute next. Answered by [`loaded`](ProgramSession::loaded) or [`failed`](ProgramSession::failed).
    ///
    /// A batch may come again, after a death that undid its step: the program computes what it is given and keeps no account.
    Batch(PulledBatch),
    /// The gradient of the batch. Answered by [`gradient`](ProgramSession::gradient) or [`failed`](ProgramSession::failed).
    Gradient,
    /// A step to apply to the model. Answered by [`stepped`](ProgramSession::stepped). It need not follow a gradient of this worker, and
    /// not every gradient is followed by one: that of a part of a batch, or one whose group broke, is not.
    Step(CombinedStep),
    /// The model, for a worker that lacks it or for a checkpoint. Answered by [`gave`](ProgramSession::gave).
    Give,
    /// A model to take over. Answered by [`took`](ProgramSession::took).
    Take(ModelState),
}

/// The gradient of a step over all workers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CombinedStep {
    /// Sums over the samples of all workers, `[parameters]`.
    pub sums: Vec<f32>,
    /// What each worker brought, by rank.
    pub shares: Vec<StepShare>,
    /// Share of its learning rate at which the program takes the step, as the plan in force says.
    pub rate_share: f32,
}

impl CombinedStep {
    /// Returns the number of samples behind the step.
    pub fn samples(&self) -> u64 {
        self.shares.iter().map(|share| share.samples).sum()
    }
}

/// What one worker brought to a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepShare {
    /// Number of its samples in the step.
    pub samples: u64,
    /// What its program sent along with the gradient; zeros without one.
    pub marks: Vec<u64>,
}

#[derive(Debug)]
enum Answer {
    Loaded,
    Gradient { sums: Vec<f32>, marks: Vec<u64> },
    Stepped(CombinedStep),
    Gave(ModelState),
    Took,
    Failed(TrainError),
}

/// What [`ProgramSession::wait`] found.
#[derive(Debug)]
pub enum Waited {
    /// The worker asks this.
    Asks(WorkerAsk),
    /// Nothing yet.
    Nothing,
    /// The worker is done.
    Over(WorkerEnd),
}

/// A question that is open, by the answer that it wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Batch,
    Gradient,
    Step,
    Give,
    Take,
}

/// A worker of a job whose loop and model belong to the caller. See the [module](self).
///
/// A session that is dropped before its end fails its worker.
#[derive(Debug)]
pub struct ProgramSession {
    /// `None` once it was waited for.
    worker: Option<JoinHandle<Result<WorkerEnd, WorkerError>>>,
    asks: Receiver<WorkerAsk>,
    answers: Sender<Answer>,
    open: Option<Open>,
    model: ProgramModel,
    /// Memory of the gradient of the step before.
    spare: Vec<f32>,
    ended: Option<WorkerEnd>,
}

impl ProgramSession {
    /// Begins the worker that the environment of this process describes, and binds the process to the one that launched it.
    ///
    /// # Errors
    /// If the process was not started as a worker of a job, the job's sync mode has no replicas in its workers, or the worker cannot start.
    pub fn from_process(model: ProgramModel) -> Result<Self, WorkerError> {
        let env = NodeEnv::from_process()?;
        node::bind_to_launcher()?;
        Self::start(env, model)
    }

    /// Begins the worker whose environment is `env`.
    ///
    /// # Errors
    /// If the job's sync mode has no replicas in its workers, or the worker's thread cannot start. All later errors come from the methods of
    /// the session.
    pub fn start(env: NodeEnv, model: ProgramModel) -> Result<Self, WorkerError> {
        check_mode(&env.spec.sync)?;
        let ((ask, asks), (answers, answered)) = (channel(), channel());
        let line = Line(Arc::new(Mutex::new(Ends { asks: ask, answered, marks: vec![0; model.marks] })));
        let layout = ParamLayout::dense(model.parameters);
        let trainer = ProgramTrainer {
            line: line.clone(),
            layout,
            model,
            samples: 0,
            epochs: Vec::new(),
            upcoming: Vec::new(),
        };
        let mut planes = Planes::default();
        planes.set_usual(move |site: &WorkerSite<'_>| {
            Ok(Plane::joint(ProgramReplica::new(line.clone(), model.parameters, site.pulse().clone())))
        });
        // The program's optimizer takes the steps.
        let rule = UpdateRule::named("sgd", 0.0).map_err(|error| WorkerError::Loop(error.to_string()))?;
        let worker = move || super::run_to(&env, Box::new(trainer), &rule, &planes);
        let spawned = thread::Builder::new().name("antdt-worker".to_owned()).spawn(worker);
        let worker = spawned
            .map_err(|error| WorkerError::Loop(format!("the worker's thread cannot start: {error}")))?;
        let (open, spare, ended) = (None, Vec::new(), None);
        Ok(Self { worker: Some(worker), asks, answers, open, model, spare, ended })
    }

    /// Waits until the worker asks for something or is done, but no longer than `limit`.
    ///
    /// # Errors
    /// If the worker failed, or waits for an answer itself.
    pub fn wait(&mut self, limit: Duration) -> Result<Waited, WorkerError> {
        if let Some(open) = self.open {
            return Err(out_of_turn(&format!("the worker waits for the answer to {open:?}")));
        }
        let ask = match self.asks.recv_timeout(limit) {
            Ok(ask) => ask,
            Err(RecvTimeoutError::Timeout) => return Ok(Waited::Nothing),
            // The worker has let go of its side.
            Err(RecvTimeoutError::Disconnected) => return self.join().map(Waited::Over),
        };
        self.open = Some(match &ask {
            WorkerAsk::Batch(_) => Open::Batch,
            WorkerAsk::Gradient => Open::Gradient,
            WorkerAsk::Step(_) => Open::Step,
            WorkerAsk::Give => Open::Give,
            WorkerAsk::Take(_) => Open::Take,
        });
        Ok(Waited::Asks(ask))
    }

    /// The samples of the batch are read.
    ///
    /// # Errors
    /// If no batch is open.
    pub fn loaded(&mut self) -> Result<(), WorkerError> {
        self.answer(&[Open::Batch], Answer::Loaded)
    }

    /// The gradient of the batch: sums over its samples, not means, which `fill` writes to `[parameters]` zeros; and the marks that all
    /// workers learn of with the step.
    ///
    /// # Errors
    /// If no gradient is open, or there are not as many marks as the model says.
    pub fn gradient(&mut self, fill: impl FnOnce(&mut [f32]), marks: Vec<u64>) -> Result<(), WorkerError> {
        if marks.len() != self.model.marks {
            let (given, wanted) = (marks.len(), self.model.marks);
            return Err(out_of_turn(&format!("{given} marks were given where the model has {wanted}")));
        }
        let mut sums = std::mem::take(&mut self.spare);
        sums.clear();
        sums.resize(self.model.parameters, 0.0);
        fill(&mut sums);
        self.answer(&[Open::Gradient], Answer::Gradient { sums, marks })
    }

    /// The step is in the model. Its memory is used again.
    ///
    /// # Errors
    /// If no step is open.
    pub fn stepped(&mut self, step: CombinedStep) -> Result<(), WorkerError> {
        self.answer(&[Open::Step], Answer::Stepped(step))
    }

    /// The model, for a worker that lacks it or for a checkpoint. Workers with equal models give equal states.
    ///
    /// # Errors
    /// If no model was asked for.
    pub fn gave(&mut self, model: ModelState) -> Result<(), WorkerError> {
        self.answer(&[Open::Give], Answer::Gave(model))
    }

    /// The model of another worker, or of a checkpoint, is taken over.
    ///
    /// # Errors
    /// If there is none to take.
    pub fn took(&mut self) -> Result<(), WorkerError> {
        self.answer(&[Open::Take], Answer::Took)
    }

    /// What was asked for cannot be done. The shard of a sample that cannot be [read](TrainError::Data) is tried again, and given up after
    /// some faults; any other error ends the worker.
    ///
    /// # Errors
    /// If nothing is open.
    pub fn failed(&mut self, error: TrainError) -> Result<(), WorkerError> {
        let any = [Open::Batch, Open::Gradient, Open::Step, Open::Give, Open::Take];
        self.answer(&any, Answer::Failed(error))
    }

    fn answer(&mut self, to: &[Open], answer: Answer) -> Result<(), WorkerError> {
        match self.open {
            Some(open) if to.contains(&open) => {
                self.open = None;
                // If the worker is gone, the next wait reports its error.
                let _ = self.answers.send(answer);
                Ok(())
            }
            Some(open) => Err(out_of_turn(&format!("the worker waits for the answer to {open:?}"))),
            None => Err(out_of_turn("the worker asks for nothing")),
        }
    }

    fn join(&mut self) -> Result<WorkerEnd, WorkerError> {
        let Some(worker) = self.worker.take() else {
            return self.ended.ok_or_else(|| out_of_turn("the worker failed"));
        };
        let panicked = |_| WorkerError::Loop("the worker's thread panicked".to_owned());
        let ended = worker.join().map_err(panicked)??;
        self.ended = Some(ended);
        Ok(ended)
    }
}

fn out_of_turn(what: &str) -> WorkerError {
    WorkerError::Loop(format!("{what}; a session is waited for, and each question is answered once"))
}

/// The program's optimizer takes a step where the gradients of all workers are.
fn check_mode(sync: &SyncMode) -> Result<(), WorkerError> {
    let mode = sync.capabilities();
    if mode.dense == ParamPlace::Replicas && mode.backups() == 0 {
        return Ok(());
    }
    let expected = "the default, in which every worker has the model and takes every step";
    Err(WorkerError::Input(InvalidValue::new("--sync", sync, expected).to_string()))
}

/// The worker's ends of what it asks and is answered.
struct Ends {
    asks: Sender<WorkerAsk>,
    answered: Receiver<Answer>,
    /// Those of the newest gradient.
    marks: Vec<u64>,
}

/// What the worker's trainer and its data plane ask the program through. They are on one thread.
#[derive(Clone)]
pub(super) struct Line(Arc<Mutex<Ends>>);

impl Line {
    fn ends(&self) -> MutexGuard<'_, Ends> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ask(&self, ask: WorkerAsk) -> Result<Answer, TrainError> {
        let gone = || TrainError::Model("the program's training loop ended before its job".to_owned());
        let ends = self.ends();
        ends.asks.send(ask).map_err(|_| gone())?;
        match ends.answered.recv().map_err(|_| gone())? {
            Answer::Failed(error) => Err(error),
            answer => Ok(answer),
        }
    }

    /// Takes the marks of the newest gradient, or of none.
    pub(super) fn marks(&self) -> Vec<u64> {
        let marks = &mut self.ends().marks;
        let none = vec![0; marks.len()];
        std::mem::replace(marks, none)
    }

    /// Has the program take a step. Returns the step's memory.
    pub(super) fn step(&self, step: CombinedStep) -> Result<CombinedStep, TrainError> {
        match self.ask(WorkerAsk::Step(step))? {
            Answer::Stepped(step) => Ok(step),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn give(&self) -> Result<ModelState, TrainError> {
        match self.ask(WorkerAsk::Give)? {
            Answer::Gave(model) => Ok(model),
            _ => Err(unexpected()),
        }
    }

    pub(super) fn take(&self, model: ModelState) -> Result<(), TrainError> {
        match self.ask(WorkerAsk::Take(model))? {
            Answer::Took => Ok(()),
            _ => Err(unexpected()),
        }
    }
}

/// The session lets through only the answer that was asked for.
fn unexpected() -> TrainError {
    TrainError::Model("the program's training loop answered out of turn".to_owned())
}

/// The trainer of the worker's thread: it asks the program for everything.
struct ProgramTrainer {
    line: Line,
    layout: ParamLayout,
    model: ProgramModel,
    /// Number of samples of the batch.
    samples: u64,
    epochs: Vec<u32>,
    upcoming: Vec<u64>,
}

impl Trainer for ProgramTrainer {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn train_samples(&self) -> u64 {
        self.model.train_samples
    }

    fn eval_samples(&self) -> u64 {
        0
    }

    fn initial_dense(&self, _: Seed) -> Vec<f32> {
        Vec::new()
    }

    fn of_epochs(&mut self, epochs: &[u32]) {
        self.epochs = epochs.to_vec();
    }

    fn read_ahead(&self) -> u32 {
        self.model.read_ahead
    }

    fn upcoming(&mut self, samples: &[u64]) {
        self.upcoming = samples.to_vec();
    }

    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError> {
        self.samples = samples.len() as u64;
        let (epochs, upcoming) = (std::mem::take(&mut self.epochs), std::mem::take(&mut self.upcoming));
        let batch = PulledBatch { samples: samples.to_vec(), epochs, upcoming, ..PulledBatch::default() };
        match self.line.ask(WorkerAsk::Batch(batch))? {
            Answer::Loaded => Ok(&[]),
            _ => Err(unexpected()),
        }
    }

    fn load_eval(&mut self, _: SampleRange) -> Result<&[u64], TrainError> {
        Err(unexpected())
    }

    fn forward_backward(
        &mut self,
        _: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError> {
        match self.line.ask(WorkerAsk::Gradient)? {
            Answer::Gradient { sums, marks } => {
                self.line.ends().marks = marks;
                sink.all(&self.layout, &sums, &[])?;
                // What the loss is, the program knows.
                Ok(StepStats { loss_sum: 0.0, samples: self.samples })
            }
            _ => Err(unexpected()),
        }
    }

    fn evaluate(&mut self, _: Params<'_>, _: &mut Metrics) -> Result<(), TrainError> {
        Err(unexpected())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_has_the_model_elsewhere_or_leaves_workers_out_of_steps_is_refused() {
        let check = |mode: &str| check_mode(&mode.parse().unwrap()).map_err(|error| error.to_string());
        assert_eq!(check("allreduce"), Ok(()));
        for mode in ["allreduce=1", "ps-bsp", "local-sgd=4", "d-psgd"] {
            let refused = check(mode).unwrap_err();
            assert!(refused.starts_with(&format!("--sync = {mode}")), "{refused}");
            assert!(
                refused.contains("must be the default, in which every worker has the model"),
                "{refused}"
            );
        }
    }
}
