//! [`Training`]: carries out the calls of a worker's training loop, with its trainer, its group and its data plane.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use antdt_agent::runtime::Agent;
use antdt_agent::{Batch, Gradient, MicroBatch, Params, StepStats, TrainError};
use antdt_collective::Group;
use antdt_collective::lanes::Lanes;
use antdt_collective::runtime::{Communicator, Listener};
use antdt_controller::action::ActionValues;
use antdt_core::{
    Acks, CheckpointId, Contribution, GroupKind, Joined, ModelDistance, ParamLayout, Rank, Readiness,
    RollbackId, Standing, StepCommit, StepResult,
};
use antdt_job::{Peers, Reply, SyncMode};
use antdt_model::{UpdateRule, norm};

use super::accumulate::{Accumulator, RowValues};
use super::compute::Compute;
use super::error::WorkerError;
use super::interrupt::Interrupt;
use super::keep::Keep;
use super::plane::{
    self, BatchGradient, Devices, GradientPass, GroupStep, ParamValues, PeerGroup, Plane, StepUpdate,
    WorkerSite,
};
use super::share::Share;
use crate::node::NodeEnv;
use crate::resume::Taken;

/// What a worker needs besides its data plane.
pub(super) struct Ground<'a> {
    pub(super) env: &'a NodeEnv,
    pub(super) agent: &'a Agent,
    pub(super) sync: &'a SyncMode,
    pub(super) rule: &'a UpdateRule,
    pub(super) keep: &'a Keep<'a>,
    pub(super) listener: &'a Listener,
    pub(super) interrupt: &'a Arc<Interrupt>,
    pub(super) devices: Devices,
}

impl Ground<'_> {
    pub(super) fn site<'s>(&'s self, compute: &'s mut Compute) -> WorkerSite<'s> {
        WorkerSite {
            env: self.env,
            rule: self.rule,
            trainer: compute.trainer(),
            interrupt: self.interrupt,
            local: self.listener.local_address(),
            devices: self.devices,
            pulse: self.agent.pulse(),
        }
    }
}

/// A step that is combined, to be reported once it is applied.
#[derive(Debug, Clone, Copy)]
struct Prepared {
    /// Number of the step or average.
    number: u64,
    samples: u64,
    of_all: bool,
}

/// See the [module](self).
pub(super) struct Training<'a> {
    ground: &'a Ground<'a>,
    compute: &'a mut Compute,
    peers: PeerGroup<'a>,
    plane: Plane,
    /// Whether the parameters are the job's model: false for a replacement until it took the model from a survivor.
    is_trained: bool,
    /// The newest rollback of the job that the model is of.
    rollback: RollbackId,
    /// The gradient of the batch, or of one of its micro-batches.
    gradient: Gradient,
    /// The gradients of the micro-batches of the batch.
    accumulator: Accumulator,
    /// Rows that the loaded batch touches.
    touched: Vec<u64>,
    /// The dense gradient of the batch travels while it is computed.
    streams: bool,
    /// Samples of all workers since this one applied a step, as far as the master said.
    committed: Option<u64>,
    prepared: Option<Prepared>,
}

impl<'a> Training<'a> {
    /// Begins with the checkpoint at `resume`, if there is one.
    pub(super) fn new(
        ground: &'a Ground<'a>,
        compute: &'a mut Compute,
        peers: PeerGroup<'a>,
        plane: Plane,
        resume: Option<&Path>,
    ) -> Result<Self, WorkerError> {
        let gradient = Gradient::new(compute.layout());
        let mut training = Self {
            ground,
            compute,
            peers,
            plane,
            is_trained: false,
            rollback: RollbackId(0),
            gradient,
            accumulator: Accumulator::new(),
            touched: Vec::new(),
            streams: false,
            committed: None,
            prepared: None,
        };
        if ground.sync.capabilities().workers_have_model() {
            training.resume(resume)?;
        }
        Ok(training)
    }

    /// The data plane, once training is over.
    pub(super) fn into_plane(self) -> Plane {
        self.plane
    }

    /// Takes over a checkpoint, if one is named.
    fn resume(&mut self, checkpoint: Option<&Path>) -> Result<(), WorkerError> {
        let Ground { sync, rule, .. } = *self.ground;
        let (plane, layout) = (&mut self.plane, self.compute.layout());
        if let Some(taken) = Taken::open(checkpoint, layout, &plane::kept_optimizer(sync, rule))? {
            let trained = match taken.state()? {
                Some(mut state) => {
                    plane.each(|home| home.restore_state(std::mem::take(&mut state)))?;
                    taken.trained()
                }
                None => taken
                    .restore(layout.dense_len(), |portion, with_state| plane.restore(portion, with_state))?,
            };
            plane.all(|home| home.set_trained(trained));
        }
        Ok(())
    }

    pub(super) fn join(&mut self, standing: &Standing) -> Result<Reply, WorkerError> {
        self.leave();
        let joined = self.ground.agent.join(standing)?;
        self.plane.each(|home| home.joined(&joined))?;
        Ok(Reply::Joined(Box::new(joined)))
    }

    /// Connects to the group, and takes or gives the model if a member lacks it.
    pub(super) fn enter(&mut self, joined: &Joined) -> Result<Reply, WorkerError> {
        self.peers.set_members(joined);
        let entered = self.enter_group(joined);
        self.unless_broken(entered.map(|()| Reply::Entered))
    }

    fn enter_group(&mut self, joined: &Joined) -> Result<(), WorkerError> {
        self.roll_back(joined)?;
        let (mut comm, abort) = self.peers.connect(joined)?;
        let first = self.plane.begins_apart().then_some(Rank(0));
        if let Some(source) = joined.source.or(first) {
            let has_model =
                if joined.source.is_some() { self.is_trained } else { comm.group().me() == source };
            let holder = self.ground.agent.holder();
            plane::share(&mut self.plane, has_model, &mut comm, source, holder)?;
        }
        // A new member has seen no exchange yet.
        self.plane.all(|home| home.entered());
        // Without a source no member was trained: all start from the seed.
        self.is_trained = true;
        self.peers.keep((comm, abort));
        Ok(())
    }

    /// If the job went back to a checkpoint since the worker was in a group, its model does too, unless a member has it.
    fn roll_back(&mut self, joined: &Joined) -> Result<(), WorkerError> {
        if joined.rollback <= self.rollback {
            return Ok(());
        }
        self.rollback = joined.rollback;
        self.is_trained = false;
        self.prepared = None;
        self.plane.all(|home| home.forget_step());
        if joined.source.is_none() {
            let site = self.ground.site(self.compute);
            self.plane.each(|home| home.restart(&site))?;
            self.resume(joined.checkpoint.as_deref().map(Path::new))?;
        }
        Ok(())
    }

    /// Ends the group for this worker.
    fn leave(&mut self) {
        self.streams = false;
        let Self { plane, peers, .. } = self;
        plane.all(|home| home.leaving(peers));
        peers.leave();
    }

    /// A process that failed or was late breaks the group, or the connection to the servers, and is no error of this worker.
    /// What the next group would fail of as well is.
    fn unless_broken(&mut self, outcome: Result<Reply, WorkerError>) -> Result<Reply, WorkerError> {
        let holder = self.ground.agent.holder();
        match outcome {
            Err(WorkerError::Collective(error)) if !error.is_permanent() => {
                tracing::info!(%holder, %error, "the group broke; forming a new one");
                self.peers.breaks();
                self.leave();
                Ok(Reply::Broken)
            }
            Err(WorkerError::Servers(error)) if plane::is_gone(&error) => {
                tracing::info!(%holder, %error, "a server is gone; asking the master");
                Ok(Reply::Broken)
            }
            outcome => outcome,
        }
    }

    /// Reads a micro-batch, and tells the data plane which rows it touches.
    pub(super) fn load(&mut self, batch: &Batch, micro: MicroBatch) -> Result<Reply, WorkerError> {
        self.peers.follow_steps();
        self.accumulator.begin(micro);
        self.touched.clear();
        match self.compute.load(&batch.piece(micro)) {
            Ok(touched) => self.touched.extend_from_slice(touched),
            Err(TrainError::Data { sample, why }) => {
                tracing::warn!(holder = %self.ground.agent.holder(), sample, why, "sample cannot be read");
                return Ok(Reply::Unreadable { sample, why });
            }
            Err(error) => return Err(error.into()),
        }
        self.plane.rows().load(&self.touched, micro)?;
        Ok(Reply::Loaded)
    }

    /// How many batches beyond the loaded one the trainer begins to read.
    pub(super) fn read_ahead(&mut self) -> u32 {
        self.compute.trainer().read_ahead()
    }

    /// Tells the trainer what follows the batch that is loaded next.
    pub(super) fn upcoming(&mut self, samples: impl Iterator<Item = u64>) {
        self.compute.trainer().upcoming(&samples.collect::<Vec<_>>());
    }

    pub(super) fn pull(&mut self) -> Result<Reply, WorkerError> {
        let pulled = self.plane.each(|home| home.pull());
        self.unless_broken(pulled.map(|()| Reply::Pulled))
    }

    /// Computes the gradient of the loaded micro-batch. That of the last one may travel while it is computed.
    pub(super) fn compute(&mut self) -> Result<Reply, WorkerError> {
        let StepStats { samples, loss_sum, .. } = self.run()?;
        Ok(Reply::Computed { samples, loss_sum })
    }

    fn run(&mut self) -> Result<StepStats, WorkerError> {
        self.accumulator.computed(self.compute.samples());
        let is_last = self.accumulator.micro().is_last();
        self.streams = is_last && self.plane.dense().begin(&mut self.peers)?;
        let flat = self.plane.dense().device().filter(|_| !is_last);
        let Self { compute, plane, accumulator, touched, gradient, .. } = self;
        let layout = compute.layout().clone();
        {
            let (GradientPass { dense, sink }, rows) = plane.pass()?;
            let params = Params { dense: dense.buffer(), rows: rows.buffer() };
            let mut values = RowValues::new(params.rows.len());
            if let Some(sink) = sink.filter(|_| self.streams) {
                let stats = compute.run(params, &mut accumulator.onto(&layout, sink, &mut values))?;
                gradient.dense.clear();
                gradient.rows = values.finish()?;
                accumulator.complete_rows(&layout, touched, &mut gradient.rows);
                return Ok(stats);
            }
            if let Some(flat) = &flat {
                let mut sums = accumulator.on_device(&layout, flat, params.rows.len())?;
                let stats = compute.run(params, &mut sums)?;
                let values = sums.finish()?;
                accumulator.add_rows(&layout, touched, &values);
                return Ok(stats);
            }
            compute.gradient(params, gradient)
        }
        .map_err(WorkerError::from)
        .and_then(|stats| self.computed(is_last).map(|()| stats))
    }

    /// The whole gradient of a micro-batch is here.
    fn computed(&mut self, is_last: bool) -> Result<(), WorkerError> {
        let layout = self.compute.layout();
        if is_last {
            self.accumulator.complete(layout, &mut self.touched, &mut self.gradient)?;
        } else {
            self.accumulator.add(layout, &self.touched, &self.gradient);
        }
        Ok(())
    }

    /// Begins to compute the gradient of the loaded micro-batch, the last one of its batch, while this thread goes on.
    pub(super) fn begin_beside(&mut self) -> Result<Reply, WorkerError> {
        self.accumulator.computed(self.compute.samples());
        // Rows on a device change with the steps that are taken meanwhile.
        let mut values = Vec::new();
        match self.plane.rows().values()? {
            ParamValues::Host(rows) => values.extend_from_slice(rows),
            ParamValues::Device(rows) => rows.read(&mut values)?,
        }
        let gradient = std::mem::replace(&mut self.gradient, Gradient::new(self.compute.layout()));
        self.compute.begin_beside(self.plane.dense().host()?, values, gradient)?;
        Ok(Reply::Computing)
    }

    /// Waits for that gradient.
    pub(super) fn finish_beside(&mut self) -> Result<Reply, WorkerError> {
        let (gradient, stats, took) = self.compute.finish_beside()?;
        self.gradient = gradient;
        self.computed(true)?;
        Ok(Reply::ComputedBeside { samples: stats.samples, loss_sum: stats.loss_sum, took })
    }

    /// Combines a step with the other members. All ranks that name the same members see the same bits.
    pub(super) fn combine(
        &mut self,
        step: u64,
        samples: u64,
        acks: Acks,
        peers: &Peers,
    ) -> Result<Reply, WorkerError> {
        let combined = match peers {
            Peers::Apart { group, ranks } => self.combine_apart(step, samples, acks, (*group, ranks)),
            peers => self.combine_here(step, samples, acks, peers),
        };
        self.unless_broken(combined.map(Reply::Combined))
    }

    /// The same with some members, who meet for it apart from the others.
    fn combine_apart(
        &mut self,
        step: u64,
        samples: u64,
        acks: Acks,
        (number, ranks): (u64, &[Rank]),
    ) -> Result<StepResult, WorkerError> {
        self.leave();
        let of_all = self.peers.form_part(number, ranks)?;
        let result = self.combine_here(step, samples, acks, &Peers::All)?;
        self.prepared = self.prepared.map(|prepared| Prepared { number, of_all, ..prepared });
        self.leave();
        Ok(result)
    }

    fn combine_here(
        &mut self,
        number: u64,
        samples: u64,
        acks: Acks,
        with: &Peers,
    ) -> Result<StepResult, WorkerError> {
        let Self { plane, peers, gradient, touched, .. } = self;
        let step = GroupStep { number, samples, streamed: std::mem::take(&mut self.streams), peers: with };
        let mut brought =
            BatchGradient { dense: &mut gradient.dense, rows: touched, values: &mut gradient.rows };
        plane.dense().reduce(peers, &step, &mut brought)?;
        let announced = plane.rows().announce(&step, &mut brought)?;
        let comm = peers.group()?;
        let count = announced.len();
        let shares = comm.all_gather_v(&Share { samples, rows: announced, acks }.encode())?;
        let decode = |bytes: &Vec<u8>| Share::decode(bytes, count);
        let mut shares: Vec<Share> = shares.iter().map(decode).collect::<Result<_, _>>()?;
        let announced: Vec<Vec<u64>> =
            shares.iter_mut().map(|share| std::mem::take(&mut share.rows)).collect();
        plane.rows().exchange(peers, &step, &announced)?;
        let samples = shares.iter().map(|share| share.samples).sum();
        let group = peers.group()?.group();
        let world = group.world();
        self.prepared = Some(Prepared { number, samples, of_all: with.count(world) == world });
        Ok(StepResult { step: number, contributions: contributions(group, shares) })
    }

    pub(super) fn agree(&mut self, lanes: &Lanes) -> Result<Reply, WorkerError> {
        let agreed = self.peers.agree(lanes);
        self.unless_broken(agreed.map(Reply::Agreed))
    }

    pub(super) fn apply(&mut self) -> Result<Reply, WorkerError> {
        let prepared = self.prepared.take();
        let (samples, of_all) =
            prepared.map_or((0, false), |Prepared { samples, of_all, .. }| (samples, of_all));
        let norm = self.norm_of_step(samples)?;
        let update = StepUpdate { samples, committed: self.committed.take(), of_all, norm };
        let mut distance = None;
        let applied = self.plane.each(|home| {
            distance = distance.or(home.apply(&update)?);
            Ok::<_, WorkerError>(())
        });
        if let (Some(relative), Some(Prepared { number: average, .. })) = (distance, prepared) {
            self.ground.agent.session().averaged(ModelDistance { average, relative });
        }
        self.unless_broken(applied.map(|()| Reply::Applied))
    }

    /// The norm of the gradient in the step, where it takes both homes to know it.
    fn norm_of_step(&mut self, samples: u64) -> Result<Option<f64>, WorkerError> {
        if self.plane.is_joint() || self.ground.rule.clip_norm.is_none() || samples == 0 {
            return Ok(None);
        }
        let mut squares = 0.0;
        self.plane.each(|home| {
            squares += home.square_sum()?;
            Ok::<_, WorkerError>(())
        })?;
        Ok(Some(squares.sqrt()))
    }

    pub(super) fn advance(&mut self) -> Result<Reply, WorkerError> {
        let samples = self.accumulator.samples();
        let Self { plane, gradient, touched, compute, .. } = self;
        let brought = BatchGradient { dense: &mut gradient.dense, rows: touched, values: &mut gradient.rows };
        let clips = self.ground.rule.clip_norm.is_some();
        plane.advance(brought, samples, |brought| clips.then(|| norm_of(brought, compute.layout())))?;
        Ok(Reply::Advanced)
    }

    pub(super) fn revert(&mut self) -> Reply {
        self.plane.all(|home| home.revert());
        Reply::Reverted
    }

    pub(super) fn push(&mut self, step: u64, samples: u64) -> Result<Reply, WorkerError> {
        let Self { plane, gradient, touched, .. } = self;
        let mut brought =
            BatchGradient { dense: &mut gradient.dense, rows: touched, values: &mut gradient.rows };
        let pushed = plane.each(|home| home.push(step, samples, &mut brought));
        self.unless_broken(pushed.map(|()| Reply::Pushed))
    }

    pub(super) fn ready(&mut self, step: u64, readiness: &Readiness) -> Result<Reply, WorkerError> {
        let commit = self.ground.agent.ready(step, readiness)?;
        Ok(self.told(commit))
    }

    pub(super) fn ready_beside(&mut self, step: u64, readiness: &Readiness) -> Result<Reply, WorkerError> {
        let computed = self.compute.is_computed();
        match self.ground.agent.ready_until(step, readiness, computed)? {
            ControlFlow::Continue(commit) => Ok(self.told(commit)),
            ControlFlow::Break(()) => self.finish_beside(),
        }
    }

    /// The master's answer to a step that is ready.
    fn told(&mut self, commit: Option<StepCommit>) -> Reply {
        let Some(commit) = commit else { return Reply::Broken };
        self.committed = Some(commit.samples);
        self.plane.all(|home| home.committed(&commit));
        Reply::Committed(Box::new(commit))
    }

    pub(super) fn rest(&mut self, checkpoint: CheckpointId) -> Result<Reply, WorkerError> {
        let plane = &mut self.plane;
        let copied = self.ground.keep.rest(checkpoint, |pushes| {
            plane.each(|home| home.count(pushes))?;
            plane.copy(checkpoint)
        });
        // Whether servers that are gone took it, the master knows.
        match copied {
            Err(WorkerError::Servers(error)) if plane::is_gone(&error) => {
                self.unless_broken(Err(error.into())).map(|_| Reply::Rested)
            }
            copied => copied.map(|()| Reply::Rested),
        }
    }

    /// A plan takes effect with the next batch: carries out its further actions. `batch_size` is this worker's in the plan.
    pub(super) fn begin_plan(&mut self, actions: &ActionValues, batch_size: u32) -> Result<(), WorkerError> {
        let share = self.compute.control(self.ground.sync.capabilities(), batch_size).begin(actions)?;
        self.plane.all(|home| home.begin_plan(share));
        Ok(())
    }
}

/// The norm of the gradient of a batch.
fn norm_of(gradient: &BatchGradient<'_>, layout: &ParamLayout) -> f64 {
    let trainable = layout.ranges().filter(|(_, group)| group.kind == GroupKind::Trainable);
    let parts = trainable.map(|(place, _)| &gradient.dense[place]).chain([&gradient.values[..]]);
    norm(parts)
}

/// What each member brought, by rank.
fn contributions(group: &Group, shares: Vec<Share>) -> Arc<[Contribution]> {
    let of =
        |(share, rank): (Share, u32)| Contribution { holder: group.holder(Rank(rank)), acks: share.acks };
    shares.into_iter().zip(0..).map(of).collect()
}
