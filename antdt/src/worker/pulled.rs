//! [`TrainingSession`]: a worker whose training loop belongs to the program.
//!
//! [`run`](super::run) calls a trainer; a loop that belongs to another framework cannot be called. It pulls instead: the next batch, the
//! parameters to compute with, and then it hands the gradient over and steps. Beneath is the same worker, on a thread of its own, so every
//! sync mode, plan, checkpoint and death means what it means in [`run`](super::run).
//!
//! The two threads never compute at the same time: the worker waits while the loop computes, and the loop while the worker combines.
//! Nothing is shared by the process, so one process may hold sessions of several jobs.
//!
//! Cost: two hand-overs between threads for each batch, and a copy of the dense parameters and of the gradient. Values are `f32` in this
//! process's memory.
//!
//! Rejected: the worker on the loop's own thread, left and entered again at each batch. All that a step borrows (the group, the sink of the
//! gradient, the trainer) would have to be owned by the session, for two hand-overs of some microseconds.
//!
//! Source: our design.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use antdt_agent::{GradientSink, Params, StepStats, TrainError, Trainer};
use antdt_core::{Metric, Metrics, ParamLayout, SampleRange, Seed};
use antdt_model::UpdateRule;

use super::WorkerError;
use crate::node::{self, NodeEnv};

/// What a pulled loop trains: the shape of its model and the number of its samples. It must be the same in every process of a job.
#[derive(Debug, Clone)]
pub struct PulledModel {
    /// Layout of the parameters.
    pub layout: ParamLayout,
    /// Number of training samples.
    pub train_samples: u64,
    /// Number of samples held out for evaluation; 0 if there are none.
    pub eval_samples: u64,
    /// Initial dense parameters, `[layout.dense_len()]`: a pure function of the seed.
    pub initial_dense: fn(&ParamLayout, Seed) -> Vec<f32>,
}

impl PulledModel {
    /// Returns a model of this layout that is trained on `samples` samples, holds none out, and begins with zeros.
    pub fn new(layout: ParamLayout, samples: u64) -> Self {
        let zeros = |layout: &ParamLayout, _: Seed| vec![0.0; layout.dense_len()];
        Self { layout, train_samples: samples, eval_samples: 0, initial_dense: zeros }
    }
}

/// A model without a loop: the master asks it for the shape of the parameters and the number of samples.
impl Trainer for PulledModel {
    fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    fn train_samples(&self) -> u64 {
        self.train_samples
    }

    fn eval_samples(&self) -> u64 {
        self.eval_samples
    }

    fn initial_dense(&self, seed: Seed) -> Vec<f32> {
        (self.initial_dense)(&self.layout, seed)
    }

    fn load(&mut self, _: &[u64]) -> Result<&[u64], TrainError> {
        Err(no_loop())
    }

    fn load_eval(&mut self, _: SampleRange) -> Result<&[u64], TrainError> {
        Err(no_loop())
    }

    fn forward_backward(&mut self, _: Params<'_>, _: &mut dyn GradientSink) -> Result<StepStats, TrainError> {
        Err(no_loop())
    }

    fn evaluate(&mut self, _: Params<'_>, _: &mut Metrics) -> Result<(), TrainError> {
        Err(no_loop())
    }
}

fn no_loop() -> TrainError {
    let why = "the model has a loop of its own, which a worker runs with a `TrainingSession`";
    TrainError::Model(why.to_owned())
}

/// Samples that a loop computes next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PulledBatch {
    /// Numbers of the samples.
    pub samples: Vec<u64>,
    /// Pass over the data that each sample belongs to, from 0; empty in an evaluation.
    pub epochs: Vec<u32>,
    /// Samples that follow, as things are, where the program [reads ahead](super::ProgramModel::read_ahead).
    pub upcoming: Vec<u64>,
    /// Whether the samples are held-out ones to [evaluate](TrainingSession::evaluated); otherwise they are training samples, of which a
    /// [gradient](TrainingSession::backward) is due.
    pub is_evaluation: bool,
    /// Actions of a program's own that take effect with this batch: the name and the value of each.
    pub actions: Vec<(String, String)>,
}

/// Parameters to compute a batch with.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PulledParams {
    /// Dense parameters, all groups of the layout one after another, `[layout.dense_len()]`.
    pub dense: Vec<f32>,
    /// Values of the rows that the batch touches, in the order in which the loop named the rows.
    pub rows: Vec<f32>,
}

/// What the worker asks of the loop.
#[derive(Debug)]
enum Ask {
    Load(PulledBatch),
    Compute(PulledParams),
}

/// What the loop answers.
#[derive(Debug)]
enum Answer {
    Loaded(Vec<u64>),
    Failed(TrainError),
    Gradient { params: PulledParams, loss_sum: f64 },
    Metrics(Vec<Metric>),
}

/// The state of the loop's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The worker combines, or waits for the master.
    Idle,
    /// The loop has a batch to read.
    Loading,
    /// The loop has parameters to compute with.
    Computing,
}

/// A worker of a job whose training loop belongs to the caller. See the [module](self).
///
/// For each batch: [`next_batch`](Self::next_batch), [`parameters`](Self::parameters), [`backward`](Self::backward),
/// [`step`](Self::step); after the last one [`finish`](Self::finish). A session that is dropped before its end fails its worker.
#[derive(Debug)]
pub struct TrainingSession {
    /// `None` once the session is over.
    worker: Option<JoinHandle<Result<(), WorkerError>>>,
    asks: Receiver<Ask>,
    answers: Option<Sender<Answer>>,
    stage: Stage,
    batch: PulledBatch,
    /// Whether the loop has not got `batch` yet.
    is_new: bool,
    params: PulledParams,
}

impl TrainingSession {
    /// Begins the worker that the environment of this process describes, and binds the process to the one that launched it. `rule` gives the
    /// optimizer for the job's settings.
    ///
    /// ```no_run
    /// use antdt::core::ParamLayout;
    /// use antdt::worker::{PulledModel, TrainingSession};
    ///
    /// let model = PulledModel::new(ParamLayout::dense(1), 1_000);
    /// let mut session = TrainingSession::from_process(model, |env| env.update_rule("sgd", 0.1, 0.0))?;
    /// while let Some(batch) = session.next_batch()? {
    ///     let count = batch.samples.len() as f32;
    ///     let Some(params) = session.parameters()? else { continue };
    ///     let error = params.dense[0] - 3.0;
    ///     session.backward(&[2.0 * error * count], &[], f64::from(error * error * count))?;
    ///     session.step()?;
    /// }
    /// session.finish()?;
    /// # Ok::<(), antdt::worker::WorkerError>(())
    /// ```
    ///
    /// # Errors
    /// If the process was not started as a worker of a job, or the worker cannot start.
    pub fn from_process(
        model: PulledModel,
        rule: impl FnOnce(&NodeEnv) -> Result<UpdateRule, WorkerError>,
    ) -> Result<Self, WorkerError> {
        let env = NodeEnv::from_process()?;
        node::bind_to_launcher()?;
        let rule = rule(&env)?;
        Self::start(env, model, rule)
    }

    /// Begins the worker whose environment is `env`. `rule` must be the same on every node of the job.
    ///
    /// # Errors
    /// If the worker's thread cannot start. All later errors come from the methods of the session.
    pub fn start(env: NodeEnv, model: PulledModel, rule: UpdateRule) -> Result<Self, WorkerError> {
        let ((ask, asks), (answers, answered)) = (channel(), channel());
        let bridge = Bridge::new(model, ask, answered);
        let name = format!("antdt-{}", env.holder.node);
        let spawned =
            thread::Builder::new().name(name).spawn(move || super::run(&env, Box::new(bridge), &rule));
        let worker = spawned
            .map_err(|error| WorkerError::Loop(format!("the worker's thread cannot start: {error}")))?;
        Ok(Self {
            worker: Some(worker),
            asks,
            answers: Some(answers),
            stage: Stage::Idle,
            batch: PulledBatch::default(),
            is_new: false,
            params: PulledParams::default(),
        })
    }

    /// Waits for the next batch; `None` once the worker is done: no samples are left, or the master ordered it to leave.
    ///
    /// A batch may come again, after a death or a rollback that undid its step: the loop computes what it is given and keeps no account.
    ///
    /// # Errors
    /// If the worker cannot go on, or the loop has not answered for the batch before.
    pub fn next_batch(&mut self) -> Result<Option<&PulledBatch>, WorkerError> {
        if self.stage != Stage::Idle && !self.is_new {
            return Err(out_of_turn("a batch was pulled before the gradient of the one before"));
        }
        if !self.is_new {
            self.wait()?;
        }
        Ok(std::mem::take(&mut self.is_new).then_some(&self.batch))
    }

    /// Reports that the samples of the batch are read and touch no row of a table, and waits for the parameters. Otherwise as
    /// [`parameters_with_rows`](Self::parameters_with_rows).
    ///
    /// # Errors
    /// As [`parameters_with_rows`](Self::parameters_with_rows).
    pub fn parameters(&mut self) -> Result<Option<&PulledParams>, WorkerError> {
        self.parameters_with_rows(&[])
    }

    /// Reports that the samples of the batch are read and which rows of the layout's tables they touch (ascending, each once), and waits
    /// for the parameters; `None` if the batch is not to be computed after all, because a group broke or a server is gone.
    ///
    /// # Errors
    /// If the worker cannot go on, or no batch was pulled.
    pub fn parameters_with_rows(&mut self, rows: &[u64]) -> Result<Option<&PulledParams>, WorkerError> {
        self.must_be(Stage::Loading, "parameters were asked for without a batch")?;
        self.answer(Answer::Loaded(rows.to_vec()));
        self.wait()?;
        Ok((self.stage == Stage::Computing).then_some(&self.params))
    }

    /// Reports that the batch cannot be read or computed. The shard of a sample that cannot be [read](TrainError::Data) is tried again, and
    /// given up after some faults; any other error ends the worker.
    ///
    /// # Errors
    /// If no batch was pulled.
    pub fn failed(&mut self, error: TrainError) -> Result<(), WorkerError> {
        if self.stage == Stage::Idle || self.is_new {
            return Err(out_of_turn("an error was reported without a batch"));
        }
        self.answer(Answer::Failed(error));
        Ok(())
    }

    /// Hands over the gradient of the batch: sums over its samples, not means. `dense` is `[layout.dense_len()]`, `rows` the values of the
    /// touched rows, `loss_sum` the sum of the samples' losses. What does not fit the model is reported by the next call.
    ///
    /// # Errors
    /// If no parameters were asked for, or the batch is one to evaluate.
    pub fn backward(&mut self, dense: &[f32], rows: &[f32], loss_sum: f64) -> Result<(), WorkerError> {
        self.must_be(Stage::Computing, "a gradient was handed over without parameters to compute it with")?;
        if self.batch.is_evaluation {
            return Err(out_of_turn("a gradient was handed over for samples that are only evaluated"));
        }
        // The memory of the parameters travels back with the gradient in it.
        let mut params = std::mem::take(&mut self.params);
        params.dense.clear();
        params.dense.extend_from_slice(dense);
        params.rows.clear();
        params.rows.extend_from_slice(rows);
        self.answer(Answer::Gradient { params, loss_sum });
        Ok(())
    }

    /// Hands over the metrics of a batch to evaluate, each with the number of its samples as its weight.
    ///
    /// # Errors
    /// If no parameters were asked for, or the batch is one to train.
    pub fn evaluated(&mut self, metrics: Vec<Metric>) -> Result<(), WorkerError> {
        self.must_be(Stage::Computing, "metrics were handed over without parameters to compute them with")?;
        if !self.batch.is_evaluation {
            return Err(out_of_turn("metrics were handed over for samples that are trained"));
        }
        self.answer(Answer::Metrics(metrics));
        Ok(())
    }

    /// Waits until the worker has combined and applied the gradient, as far as its sync mode does so before the next batch.
    ///
    /// # Errors
    /// If the worker cannot go on, or the gradient of the batch was not handed over.
    pub fn step(&mut self) -> Result<(), WorkerError> {
        self.must_be(Stage::Idle, "a step was taken before its gradient was handed over")?;
        self.wait()
    }

    /// Waits for the end of the worker, which is the end of its job's data.
    ///
    /// # Errors
    /// If the worker failed, or is not done: it then ends as one that failed.
    pub fn finish(mut self) -> Result<(), WorkerError> {
        self.answers = None;
        self.join()
    }

    /// Waits until the worker asks for something, or is done.
    fn wait(&mut self) -> Result<(), WorkerError> {
        match self.asks.recv() {
            Ok(Ask::Load(batch)) => {
                (self.batch, self.is_new, self.stage) = (batch, true, Stage::Loading);
                Ok(())
            }
            Ok(Ask::Compute(params)) => {
                (self.params, self.stage) = (params, Stage::Computing);
                Ok(())
            }
            // The worker has let go of its side.
            Err(_) => {
                self.stage = Stage::Idle;
                self.join()
            }
        }
    }

    fn answer(&mut self, answer: Answer) {
        self.stage = Stage::Idle;
        // If the worker is gone, the next wait reports its error.
        let _ = self.answers.as_ref().map(|answers| answers.send(answer));
    }

    fn must_be(&self, stage: Stage, otherwise: &str) -> Result<(), WorkerError> {
        if self.stage == stage && !self.is_new { Ok(()) } else { Err(out_of_turn(otherwise)) }
    }

    fn join(&mut self) -> Result<(), WorkerError> {
        let Some(worker) = self.worker.take() else { return Ok(()) };
        let panicked = |_| WorkerError::Loop("the worker's thread panicked".to_owned());
        worker.join().map_err(panicked)?
    }
}

fn out_of_turn(what: &str) -> WorkerError {
    WorkerError::Loop(format!(
        "{what}; each batch takes `next_batch`, `parameters`, `backward` or `evaluated`, and `step`"
    ))
}

/// The trainer of the worker's thread: it asks the loop for everything.
struct Bridge {
    model: PulledModel,
    ask: Sender<Ask>,
    answered: Receiver<Answer>,
    epochs: Vec<u32>,
    actions: Vec<(String, String)>,
    rows: Vec<u64>,
    /// Number of samples of the batch.
    samples: u64,
    /// Memory of the parameters of the batch before.
    spare: PulledParams,
}

impl Bridge {
    fn new(model: PulledModel, ask: Sender<Ask>, answered: Receiver<Answer>) -> Self {
        let (epochs, actions, rows, spare) = Default::default();
        Self { model, ask, answered, epochs, actions, rows, samples: 0, spare }
    }

    fn ask(&self, ask: Ask) -> Result<Answer, TrainError> {
        let gone = || TrainError::Model("the program's training loop ended before its job".to_owned());
        self.ask.send(ask).map_err(|_| gone())?;
        self.answered.recv().map_err(|_| gone())
    }

    fn read(&mut self, batch: PulledBatch) -> Result<&[u64], TrainError> {
        self.samples = batch.samples.len() as u64;
        match self.ask(Ask::Load(batch))? {
            Answer::Loaded(rows) => {
                self.rows = rows;
                Ok(&self.rows)
            }
            Answer::Failed(error) => Err(error),
            Answer::Gradient { .. } | Answer::Metrics(_) => Err(unexpected()),
        }
    }

    fn compute(&mut self, params: Params<'_>) -> Result<Answer, TrainError> {
        let mut copy = std::mem::take(&mut self.spare);
        copy.dense.clear();
        copy.dense.extend_from_slice(params.dense.host()?);
        copy.rows.clear();
        copy.rows.extend_from_slice(params.rows.host()?);
        self.ask(Ask::Compute(copy))
    }
}

/// The session lets through only the answer that was asked for.
fn unexpected() -> TrainError {
    TrainError::Model("the program's training loop answered out of turn".to_owned())
}

impl Trainer for Bridge {
    fn layout(&self) -> &ParamLayout {
        &self.model.layout
    }

    fn train_samples(&self) -> u64 {
        self.model.train_samples
    }

    fn eval_samples(&self) -> u64 {
        self.model.eval_samples
    }

    fn initial_dense(&self, seed: Seed) -> Vec<f32> {
        self.model.initial_dense(seed)
    }

    fn of_epochs(&mut self, epochs: &[u32]) {
        self.epochs = epochs.to_vec();
    }

    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError> {
        let (epochs, actions) = (std::mem::take(&mut self.epochs), std::mem::take(&mut self.actions));
        self.read(PulledBatch { samples: samples.to_vec(), epochs, actions, ..PulledBatch::default() })
    }

    fn load_eval(&mut self, samples: SampleRange) -> Result<&[u64], TrainError> {
        let samples = (samples.start..samples.end).collect();
        self.read(PulledBatch { samples, is_evaluation: true, ..PulledBatch::default() })
    }

    fn forward_backward(
        &mut self,
        params: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError> {
        let (gradient, loss_sum) = match self.compute(params)? {
            Answer::Gradient { params, loss_sum } => (params, loss_sum),
            Answer::Failed(error) => return Err(error),
            Answer::Loaded(_) | Answer::Metrics(_) => return Err(unexpected()),
        };
        sink.all(&self.model.layout, &gradient.dense, &gradient.rows)?;
        self.spare = gradient;
        Ok(StepStats { loss_sum, samples: self.samples })
    }

    fn act(&mut self, action: &str, value: &str) -> Result<(), TrainError> {
        self.actions.push((action.to_owned(), value.to_owned()));
        Ok(())
    }

    fn evaluate(&mut self, params: Params<'_>, metrics: &mut Metrics) -> Result<(), TrainError> {
        match self.compute(params)? {
            Answer::Metrics(values) => values.into_iter().try_for_each(|metric| Ok(metrics.record(metric)?)),
            Answer::Failed(error) => Err(error),
            Answer::Loaded(_) | Answer::Gradient { .. } => Err(unexpected()),
        }
    }
}
