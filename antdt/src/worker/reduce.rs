//! Training by all-reduce: every worker has the model, and workers combine their gradients or parameters in
//! groups.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_agent::runtime::Agent;
use antdt_agent::{
    Batch, Buffer, DeviceValues, Gradient, GradientSink, MicroBatch, Params, StepStats, TrainError,
};
use antdt_collective::bucket::Buckets;
use antdt_collective::lanes::Lanes;
use antdt_collective::runtime::{
    AbortHandle, Backend, BucketMemory, Communicator, CommunicatorConfig, CopyRole, Listener, ProcessGroup,
    ReducerParts, Transfer,
};
use antdt_collective::schedule::Choice;
use antdt_collective::{Compression, Compressor, Group, Member, ReduceOp};
use antdt_controller::action::ActionValues;
use antdt_core::port::ShardSource;
use antdt_core::{
    Acks, Barrier, Contribution, Holder, Joined, LinkReport, MembershipVersion, ModelDistance, Rank,
    RollbackId, Seed, StepCommit, StepResult,
};
use antdt_job::limits::next_timeout;
use antdt_job::{Call, Peers, Reply, SyncMode};
use antdt_model::{
    Dense, Given, Overlap, Replica, SparseGradient, TableShape, UpdateRule, all_reduce_counted,
};

use super::accumulate::Accumulator;
use super::compute::Compute;
use super::drive::{Combiner, Finished, drive, foreign};
use super::error::WorkerError;
use super::hot::{Heating, OnDevice};
use super::interrupt::Interrupt;
use super::keep::Keep;
use super::lift::{LiftedDense, Lifting};
use super::mean;
use super::offer::Offer;
use super::share::Share;
use super::spread::Spread;
use super::stream::{self, GradientStream};
use super::sums::{Sums, SumsMemory};
use super::weights::{Weights, kept_optimizer, shared_rules, unfit};
use crate::net;
use crate::resume::Taken;

/// What a worker needs to take part in rings.
pub(super) struct Ring<'a> {
    pub(super) agent: &'a Agent,
    pub(super) sync: &'a SyncMode,
    pub(super) listener: &'a Listener,
    pub(super) interrupt: &'a Interrupt,
    /// First limit for one wait for a peer who is about to come.
    pub(super) timeout: Duration,
    /// Limit for one wait for a peer's step, until the master says another.
    pub(super) first_wait: Duration,
    pub(super) algorithm: Choice,
    pub(super) compress: Option<Compression>,
    /// Bytes of gradients that travel together while the backward pass goes on.
    pub(super) bucket_bytes: usize,
    pub(super) rule: &'a UpdateRule,
    pub(super) seed: Seed,
    pub(super) keep: &'a Keep<'a>,
    /// The checkpoint that the job goes on from.
    pub(super) resume: Option<&'a Path>,
    pub(super) heating: Heating<'a>,
    pub(super) lifting: Lifting<'a>,
}

impl Ring<'_> {
    /// The model of a checkpoint, or the one that every job begins with.
    fn model(&self, compute: &mut Compute, checkpoint: Option<&Path>) -> Result<Weights, WorkerError> {
        let layout = compute.layout().clone();
        let dense = compute.trainer().initial_dense(self.seed);
        let replica = Replica::new(&layout, self.rule, self.seed, dense)
            .map_err(|e| WorkerError::Parameters(e.to_string()))?;
        let mut weights = Weights::new(self.sync, replica, self.seed)?;
        if let Some(taken) = Taken::open(checkpoint, &layout, &kept_optimizer(self.sync, self.rule))? {
            let trained =
                taken.restore(layout.dense_len(), |portion, state| weights.restore(portion, state))?;
            weights.set_trained(trained);
        }
        Ok(weights)
    }

    /// Compressors for so many calls, which have sent everything so far.
    fn compressors(&self, calls: usize) -> Vec<Compressor> {
        let form = |form| (0..calls).map(|_| Compressor::new(form)).collect();
        self.compress.map(form).unwrap_or_default()
    }
}

/// Trains until the end of the data, or until the node is drained.
pub(super) fn train<S>(
    ring: &Ring<'_>,
    backend: Box<dyn Backend>,
    source: &S,
    compute: &mut Compute,
) -> Result<(Finished, Weights), WorkerError>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    let layout = compute.layout().clone();
    let mut weights = ring.model(compute, ring.resume)?;
    ring.heating.heat(&mut weights, compute.trainer());
    ring.lifting.lift(&mut weights, compute.trainer());
    let plan = match &weights {
        Weights::Shared(_) => stream::plan(&layout, ring.bucket_bytes, ring.lifting.is_wanted()),
        // Gradients stay in the worker.
        Weights::Own(_) => None,
    };
    let calls = plan.as_ref().map_or(1, |plan| plan.buckets().len());
    let mut reducer = Reducer {
        ring,
        backend,
        compute,
        weights,
        plan,
        stream: None,
        buckets: BucketMemory::default(),
        sums: SumsMemory::default(),
        gradient: Gradient::new(&layout),
        accumulator: Accumulator::new(),
        trained: false,
        rollback: RollbackId(0),
        comm: None,
        abort: None,
        members: Vec::new(),
        all: Arc::default(),
        generation: MembershipVersion(0),
        samples: None,
        broken: Vec::new(),
        timeout: ring.timeout,
        touched: Vec::new(),
        values: Vec::new(),
        prepared: None,
        spread: Spread::default(),
        compressors: ring.compressors(calls),
        overlaps: Vec::new(),
    };
    let finished = drive(ring.agent, ring.sync, source, &mut reducer)?;
    Ok((finished, reducer.weights))
}

/// A step whose result is here but not yet part of the model.
struct Prepared {
    result: Combined,
    samples: u64,
    /// Number of the average, for the report.
    number: u64,
    /// All members of the group of all are in it.
    of_all: bool,
}

/// What was combined.
enum Combined {
    /// The sums of what all members brought.
    Sums(Sums, SparseGradient),
    /// The mean of some members' models.
    Mean(Given),
}

type Comm = Box<dyn ProcessGroup>;

struct Reducer<'a, 'r> {
    ring: &'a Ring<'r>,
    /// Forms the groups.
    backend: Box<dyn Backend>,
    compute: &'a mut Compute,
    weights: Weights,
    /// Whether they are the job's model: false for a replacement until it took the model from a survivor.
    trained: bool,
    /// The newest rollback of the job that the model is of.
    rollback: RollbackId,
    /// The group that this worker is in; not here while it is in the stream.
    comm: Option<Comm>,
    /// Of the group.
    abort: Option<AbortHandle>,
    /// How gradients travel during the backward pass; `None` if they go in one piece after it.
    plan: Option<Buckets>,
    /// The gradient of the batch that is computed or was, if there is a plan.
    stream: Option<GradientStream<Comm>>,
    /// Memory of the plan's buckets while there is no stream.
    buckets: BucketMemory,
    /// Memory in which the whole dense gradient is reduced, if there is no plan.
    sums: SumsMemory,
    /// The gradient of the batch, if there is no plan; of one of its micro-batches in any case.
    gradient: Gradient,
    /// The gradients of the micro-batches of the batch.
    accumulator: Accumulator,
    /// Of the group.
    members: Vec<Holder>,
    /// The group of all workers, of which smaller ones are parts: its members and their addresses.
    all: Arc<[(Holder, String)]>,
    /// Its version.
    generation: MembershipVersion,
    /// Samples of all workers since this one went on with an average, as far as the master said.
    samples: Option<u64>,
    /// Members of the group before, if it broke.
    broken: Vec<Holder>,
    /// Limit for one wait for a peer who is about to come.
    timeout: Duration,
    /// Rows that the loaded batch touches, and their values.
    touched: Vec<u64>,
    values: Vec<f32>,
    prepared: Option<Prepared>,
    spread: Spread,
    /// Of each bucket of the plan, or of the whole dense gradient, with what it has not sent yet; none without
    /// compression.
    compressors: Vec<Compressor>,
    /// Of the rows of each table that the members touch, as seen in this group.
    overlaps: Vec<Overlap>,
}

impl Combiner for Reducer<'_, '_> {
    fn begin_plan(&mut self, actions: &ActionValues, batch_size: u32) -> Result<(), WorkerError> {
        let share = self.compute.control(self.ring.sync.capabilities(), batch_size).begin(actions)?;
        self.weights.set_rate_share(share.unwrap_or(1.0));
        Ok(())
    }

    fn carry_out(&mut self, call: Call) -> Result<Reply, WorkerError> {
        match call {
            Call::Join(standing) => {
                self.leave();
                Ok(Reply::Joined(Box::new(self.ring.agent.join(&standing)?)))
            }
            Call::Enter(joined) => {
                let members: Vec<Holder> = joined.members.iter().map(|(holder, _)| *holder).collect();
                self.timeout = next_timeout(self.timeout, &self.broken, members.iter().copied());
                self.broken.clear();
                self.members = members;
                self.all.clone_from(&joined.members);
                let entered = self.enter(&joined);
                self.unless_broken(entered.map(|()| Reply::Entered))
            }
            Call::Load(batch) => {
                self.follow_steps();
                self.load(&batch, MicroBatch::WHOLE)
            }
            Call::LoadPiece(batch, micro) => {
                self.follow_steps();
                self.load(&batch.piece(micro), micro)
            }
            Call::Compute => {
                let stats = self.compute()?;
                Ok(Reply::Computed { samples: stats.samples, loss_sum: stats.loss_sum })
            }
            Call::ComputeBeside => {
                self.compute_beside()?;
                Ok(Reply::Computing)
            }
            Call::Finish => self.finish_beside(),
            Call::Ready { step, readiness } => {
                let commit = self.ring.agent.ready(step, &readiness)?;
                Ok(self.told(commit))
            }
            Call::ReadyBeside { step, readiness } => {
                let computed = self.compute.is_computed();
                match self.ring.agent.ready_until(step, &readiness, computed)? {
                    ControlFlow::Continue(commit) => Ok(self.told(commit)),
                    ControlFlow::Break(()) => self.finish_beside(),
                }
            }
            Call::Combine { step, samples, acks, peers: Peers::Apart { group, ranks } } => {
                let combined = self.mix_apart(step, group, &ranks, samples, acks);
                self.unless_broken(combined.map(Reply::Combined))
            }
            Call::Combine { step, samples, acks, peers } => {
                let combined = match self.ring.sync.capabilities().mixes() {
                    true => self.mix(step, samples, acks, &peers),
                    false => self.combine(step, samples, acks),
                };
                self.unless_broken(combined.map(Reply::Combined))
            }
            Call::Agree(lanes) => {
                let agreed = self.agree(&lanes);
                self.unless_broken(agreed)
            }
            Call::Apply => {
                let prepared = self.prepared.take();
                let prepared =
                    prepared.ok_or_else(|| WorkerError::Loop("no step was combined to apply".to_owned()))?;
                let distance = match prepared.result {
                    Combined::Sums(Sums::Device(mut memory), rows) => {
                        self.apply_there(&mut memory, &rows, prepared.samples)?;
                        self.buckets = memory;
                        None
                    }
                    Combined::Sums(dense, rows) => {
                        let sums = dense.host().unwrap_or_default();
                        let distance = self.weights.apply(sums, &rows, prepared.samples)?;
                        self.sums.keep(dense);
                        distance
                    }
                    Combined::Mean(mean) => {
                        let says = self.spread.averages(prepared.of_all, prepared.samples);
                        let own = self.weights.own()?;
                        let distance = if says { own.distance(&mean.dense) } else { None };
                        let samples = self.samples.take().unwrap_or(prepared.samples);
                        self.weights.mix(mean, samples)?;
                        distance
                    }
                };
                if let Some(relative) = distance {
                    let average = prepared.number;
                    self.ring.agent.session().averaged(ModelDistance { average, relative });
                }
                Ok(Reply::Applied)
            }
            Call::Revert => {
                self.weights.revert();
                Ok(Reply::Reverted)
            }
            Call::Advance => {
                let samples = self.accumulator.samples();
                self.weights.advance(&mut self.gradient, &mut self.touched, samples)?;
                Ok(Reply::Advanced)
            }
            Call::Rest(checkpoint) => {
                self.ring.keep.rest(checkpoint, |_| self.weights.copy())?;
                Ok(Reply::Rested)
            }
            call => Err(foreign(&call)),
        }
    }
}

impl Reducer<'_, '_> {
    /// The master's answer to a step that is ready.
    fn told(&mut self, commit: Option<StepCommit>) -> Reply {
        let Some(commit) = commit else { return Reply::Broken };
        self.samples = Some(commit.samples);
        Reply::Committed(Box::new(commit))
    }

    /// A member that failed or was late breaks the group, and is no error of this worker. What the next group would fail of
    /// as well is.
    fn unless_broken(&mut self, outcome: Result<Reply, WorkerError>) -> Result<Reply, WorkerError> {
        match outcome {
            Err(WorkerError::Collective(error)) if !error.is_permanent() => {
                tracing::info!(holder = %self.ring.agent.holder(), %error, "the group broke; forming a new one");
                self.broken = std::mem::take(&mut self.members);
                self.leave();
                Ok(Reply::Broken)
            }
            outcome => outcome,
        }
    }

    /// Ends the group for this worker.
    fn leave(&mut self) {
        if let Some(stream) = self.stream.take() {
            match stream.cancel("this worker left in the middle of a step") {
                Ok(parts) => self.take_back(parts),
                // The connections are gone with the thread that had them.
                Err(error) => tracing::warn!(%error, "the gradient's thread ended badly"),
            }
        }
        self.tell_transfers();
        if let Some(comm) = self.comm.take() {
            comm.leave();
        }
    }

    fn comm(&mut self) -> Result<&mut Comm, WorkerError> {
        self.comm.as_mut().ok_or_else(no_group)
    }

    /// Connects to the group, and takes or gives the model if somebody lacks it.
    fn enter(&mut self, joined: &Joined) -> Result<(), WorkerError> {
        self.roll_back(joined)?;
        self.generation = joined.membership;
        let version = match self.ring.sync.capabilities().barrier {
            Barrier::Peers => numbered(joined.membership, 0)?,
            Barrier::All | Barrier::AllBut(_) | Barrier::Within(_) | Barrier::Nobody => joined.membership,
        };
        let group = group_of(version, &joined.members, self.ring.agent, self.ring.listener.local_address())?;
        let abort = self.ring.interrupt.enter(joined.membership)?;
        // All come here at once.
        let config = self.config(self.timeout);
        // Steps are agreed on at the master; what the members tell each other of their past is not needed here.
        let (mut comm, _) = self.backend.join(self.ring.listener, &group, config, &abort)?;
        if config.algorithm == Choice::Auto {
            comm.fit()?;
        }
        if let Some(source) = joined.source {
            self.share_model(&mut comm, source)?;
        }
        // Who is new has seen no exchange yet.
        self.overlaps.clear();
        // Without a source nobody was trained: everybody starts from the seed.
        self.trained = true;
        (self.comm, self.abort) = (Some(comm), Some(abort));
        self.follow_steps();
        Ok(())
    }

    /// How long a peer may take for a step, as the steps are now.
    fn step_wait(&self) -> Duration {
        let said = self.ring.agent.session().peer_wait();
        self.timeout.max(said.unwrap_or(self.ring.first_wait))
    }

    /// Has the group wait for its members' steps.
    fn follow_steps(&mut self) {
        self.tell_transfers();
        let wait = self.step_wait();
        if let Some(comm) = &mut self.comm {
            comm.set_timeout(wait);
        }
    }

    /// Tells the session what went to the members of the group since it was told last.
    fn tell_transfers(&mut self) {
        let transfers = self.comm.as_mut().map(|comm| comm.transfers()).unwrap_or_default();
        if transfers.is_empty() {
            return;
        }
        let mut session = self.ring.agent.session();
        for Transfer { to, bytes, time } in transfers {
            if let Some(peer) = self.members.get(to.0 as usize) {
                session.transferred(LinkReport { to: peer.node, bytes, time });
            }
        }
    }

    fn config(&self, timeout: Duration) -> CommunicatorConfig {
        CommunicatorConfig { timeout, algorithm: self.ring.algorithm, ..CommunicatorConfig::default() }
    }

    /// The uniform mean of the models of some members, who meet for it apart from the others.
    fn mix_apart(
        &mut self,
        step: u64,
        number: u64,
        ranks: &[Rank],
        samples: u64,
        acks: Acks,
    ) -> Result<StepResult, WorkerError> {
        self.leave();
        let of = |rank: &Rank| self.all.get(rank.0 as usize).cloned();
        let members: Option<Vec<(Holder, String)>> = ranks.iter().map(of).collect();
        let members = members.ok_or_else(no_group)?;
        self.members = members.iter().map(|(holder, _)| *holder).collect();
        let version = numbered(self.generation, number)?;
        let group = group_of(version, &members, self.ring.agent, self.ring.listener.local_address())?;
        // A death in the group of all wakes those that wait for the dead.
        let abort = self.ring.interrupt.enter(self.generation)?;
        let (comm, _) =
            self.backend.join_few(self.ring.listener, &group, self.config(self.step_wait()), &abort)?;
        (self.comm, self.abort) = (Some(comm), Some(abort));
        let of_all = members.len() == self.all.len();
        let result = self.mix(step, samples, acks, &Peers::All)?;
        if let Some(prepared) = &mut self.prepared {
            (prepared.number, prepared.of_all) = (number, of_all);
        }
        self.leave();
        Ok(result)
    }

    /// If the job went back to a checkpoint since the worker was in a group, its model does too, unless a member has it.
    fn roll_back(&mut self, joined: &Joined) -> Result<(), WorkerError> {
        if joined.rollback <= self.rollback {
            return Ok(());
        }
        self.rollback = joined.rollback;
        self.trained = false;
        self.prepared = None;
        if joined.source.is_none() {
            let model = self.ring.model(self.compute, joined.checkpoint.as_deref().map(Path::new))?;
            self.weights.replace(model)?;
            self.compressors = self.ring.compressors(self.compressors.len());
        }
        Ok(())
    }

    /// Takes the model, or gives it, if a member lacks it. It is that of `source`; all members that have the same one send a share.
    fn share_model(&mut self, comm: &mut Comm, source: Rank) -> Result<(), WorkerError> {
        let mut lacking = [u8::from(!self.trained)];
        comm.all_reduce(&mut lacking, ReduceOp::Max)?;
        if lacking[0] == 0 {
            return Ok(());
        }
        let began = Instant::now();
        if self.trained {
            let models = self.weights.shared()?;
            let outlines: Vec<Vec<u8>> = models.iter().map(|model| model.outline()).collect();
            let offer = Offer::of(&models, &outlines).to_bytes();
            // Where each member goes on with a model of its own, only that of the source is asked for.
            let gives = comm.all_gather_v(&offer)?.get(source.0 as usize) == Some(&offer);
            let mut give = |bytes| comm.copy(if gives { CopyRole::Gives(bytes) } else { CopyRole::Neither });
            for (model, outline) in models.iter().zip(&outlines) {
                give(outline)?;
                for array in model.arrays().into_iter().filter(|array| !array.is_empty()) {
                    give(array)?;
                }
            }
            return Ok(());
        }
        let offers = comm.all_gather_v(&[])?;
        let of_source = offers.get(source.0 as usize);
        let offer = of_source.and_then(|offer| Offer::read(offer));
        let offer = offer.ok_or_else(|| unfit(format!("rank {source} has no model to share")))?;
        let givers = offers.iter().filter(|offer| Some(*offer) == of_source).count();
        let rules = shared_rules(self.ring.sync, self.ring.rule);
        if offer.outlines.len() != rules.len() {
            return Err(unfit(format!(
                "{} models are shared, {} are needed",
                offer.outlines.len(),
                rules.len()
            )));
        }
        let (mut models, mut bytes) = (Vec::new(), 0);
        for (rule, len) in rules.into_iter().zip(offer.outlines) {
            let mut outline = vec![0; usize::try_from(len).map_err(unfit)?];
            comm.copy(CopyRole::Takes(&mut outline))?;
            let read = Replica::from_outline(&outline, self.compute.layout(), &rule, self.ring.seed);
            let mut model = read.map_err(unfit)?;
            bytes += outline.len();
            // Straight to where it is needed: the pages are there when the last byte is, and the model is not in memory twice.
            for array in model.arrays_mut().into_iter().filter(|array| !array.is_empty()) {
                bytes += array.len();
                comm.copy(CopyRole::Takes(array))?;
            }
            models.push(model);
        }
        self.weights.take_shared(models)?;
        let seconds = began.elapsed().as_secs_f64();
        tracing::debug!(holder = %self.ring.agent.holder(), bytes, givers, seconds, "the model is here");
        Ok(())
    }

    /// Reads a micro-batch, and the rows of the replica that it needs.
    fn load(&mut self, batch: &Batch, micro: MicroBatch) -> Result<Reply, WorkerError> {
        self.accumulator.begin(micro);
        self.touched.clear();
        match self.compute.load(batch) {
            Ok(touched) => self.touched.extend_from_slice(touched),
            Err(TrainError::Data { sample, why }) => {
                tracing::warn!(holder = %self.ring.agent.holder(), sample, why, "sample cannot be read");
                return Ok(Reply::Unreadable { sample, why });
            }
            Err(error) => return Err(error.into()),
        }
        self.values.clear();
        self.weights.load(&self.touched, &mut self.values)?;
        Ok(Reply::Loaded)
    }

    /// Computes the gradient of the loaded micro-batch. With a plan, that of the batch travels while the last of them is
    /// computed.
    fn compute(&mut self) -> Result<StepStats, WorkerError> {
        let flat = self.weights.flat();
        let lifted = flat.clone().map(LiftedDense);
        let (dense, loaded) = self.weights.parameters();
        let loaded = loaded.map(OnDevice::new);
        let rows = match &loaded {
            Some(rows) => Buffer::Device(rows),
            None => Buffer::Host(&self.values),
        };
        let dense = match (dense, &lifted) {
            (Dense::Host(dense), _) => Buffer::Host(dense),
            (Dense::Device(_), Some(lifted)) => Buffer::Device(lifted),
            (Dense::Device(_), None) => {
                return Err(WorkerError::Loop("parameters without memory".to_owned()));
            }
        };
        let params = Params { dense, rows };
        self.accumulator.computed(self.compute.samples());
        if let (Some(flat), false) = (&flat, self.accumulator.micro().is_last()) {
            let layout = self.compute.layout().clone();
            let mut sums = self.accumulator.on_device(&layout, flat, rows.len())?;
            let stats = self.compute.run(params, &mut sums)?;
            let rows = sums.finish()?;
            self.accumulator.add_rows(&layout, &self.touched, &rows);
            return Ok(stats);
        }
        if !self.accumulator.micro().is_last() {
            let stats = self.compute.gradient(params, &mut self.gradient)?;
            self.accumulator.add(self.compute.layout(), &self.touched, &self.gradient);
            return Ok(stats);
        }
        // A worker that is alone has nothing to send, but its gradient may be on a device.
        let streams = |comm: &mut Comm| flat.is_some() || comm.group().world() > 1;
        let comm = self.comm.take_if(|comm| self.plan.is_some() && streams(comm));
        let (Some(plan), Some(abort), Some(comm)) = (&self.plan, &self.abort, comm) else {
            let stats = self.compute.gradient(params, &mut self.gradient)?;
            self.accumulator.complete(self.compute.layout(), &mut self.touched, &mut self.gradient)?;
            return Ok(stats);
        };
        let compressors = std::mem::take(&mut self.compressors);
        let memory = match &flat {
            Some(flat) => stream::on_device(std::mem::take(&mut self.buckets), plan, &**flat)?,
            None => std::mem::take(&mut self.buckets),
        };
        let parts = ReducerParts { communicator: comm, compressors, memory };
        let stream = GradientStream::begin(parts, plan, abort.clone(), rows.len(), flat)?;
        let stream = self.stream.insert(stream);
        let layout = self.compute.layout().clone();
        let mut sums = self.accumulator.onto(&layout, stream);
        Ok(self.compute.run(params, &mut sums)?)
    }

    /// A stream is over.
    fn take_back(&mut self, parts: ReducerParts<Comm>) {
        self.comm = Some(parts.communicator);
        (self.compressors, self.buckets) = (parts.compressors, parts.memory);
    }

    /// Begins to compute the gradient of the loaded micro-batch, the last one of its batch, while this thread goes on.
    fn compute_beside(&mut self) -> Result<(), WorkerError> {
        self.accumulator.computed(self.compute.samples());
        // Rows on a device change with the steps that are taken meanwhile.
        if let (_, Some(rows)) = self.weights.parameters() {
            OnDevice::new(rows).read(&mut self.values)?;
        }
        let gradient = std::mem::replace(&mut self.gradient, Gradient::new(self.compute.layout()));
        self.compute.begin_beside(self.weights.dense()?, std::mem::take(&mut self.values), gradient)
    }

    /// Waits for that gradient.
    fn finish_beside(&mut self) -> Result<Reply, WorkerError> {
        let (gradient, stats, took) = self.compute.finish_beside()?;
        self.gradient = gradient;
        self.accumulator.complete(self.compute.layout(), &mut self.touched, &mut self.gradient)?;
        Ok(Reply::ComputedBeside { samples: stats.samples, loss_sum: stats.loss_sum, took })
    }

    /// The sums over all members of the dense gradient, and what this worker brings for rows.
    fn dense_sums(&mut self, samples: u64) -> Result<(Sums, SparseGradient), WorkerError> {
        if let Some(stream) = self.stream.take() {
            let streamed = stream.finish(self.compute.layout(), self.step_wait())?;
            self.take_back(streamed.parts);
            let (dense, rows) = streamed.sums?;
            let is_there = dense.is_none();
            (self.gradient.dense, self.gradient.rows) = (dense.unwrap_or_default(), rows);
            let (touched, rows) = (&mut self.touched, &mut self.gradient.rows);
            self.accumulator.complete_rows(self.compute.layout(), touched, rows);
            let (dense, rows) = self.weights.contribution(&mut self.gradient, &mut self.touched);
            let sums =
                if is_there { Sums::Device(std::mem::take(&mut self.buckets)) } else { Sums::from(dense) };
            return Ok((sums, rows));
        }
        let (dense, rows) = match &self.weights {
            // Its own may still be computed, and is not for this step.
            Weights::Shared(_) if samples == 0 => {
                (vec![0.0; self.compute.layout().dense_len()], SparseGradient::default())
            }
            weights => weights.contribution(&mut self.gradient, &mut self.touched),
        };
        if let Some(sums) = self.stream_whole(&dense)? {
            return Ok((sums, rows));
        }
        let Self { comm, compressors, sums, .. } = self;
        let comm = comm.as_mut().ok_or_else(no_group)?;
        // A worker that is alone has those of all buckets, and needs none.
        let compressor = match &mut compressors[..] {
            [compressor] => Some(compressor),
            _ => None,
        };
        Ok((sums.reduce(comm, compressor, dense)?, rows))
    }

    /// The sums over all members of a gradient that is computed, in the buckets of the plan: the others' may travel while they compute, and
    /// compressors keep what they have not sent of each bucket. `None` if there is no plan, or no other member.
    fn stream_whole(&mut self, dense: &[f32]) -> Result<Option<Sums>, WorkerError> {
        let flat = self.weights.flat();
        let streams = |comm: &mut Comm| flat.is_some() || comm.group().world() > 1;
        let comm = self.comm.take_if(|comm| self.plan.is_some() && streams(comm));
        let (Some(plan), Some(abort), Some(comm)) = (&self.plan, &self.abort, comm) else { return Ok(None) };
        let compressors = std::mem::take(&mut self.compressors);
        let memory = match &flat {
            Some(flat) => stream::on_device(std::mem::take(&mut self.buckets), plan, &**flat)?,
            None => std::mem::take(&mut self.buckets),
        };
        let parts = ReducerParts { communicator: comm, compressors, memory };
        let mut stream = GradientStream::begin(parts, plan, abort.clone(), 0, flat)?;
        let wait = self.step_wait();
        let layout = self.compute.layout();
        stream.all(layout, dense, &[])?;
        let streamed = stream.finish(layout, wait)?;
        self.take_back(streamed.parts);
        let (dense, _) = streamed.sums?;
        Ok(Some(match dense {
            Some(dense) => dense.into(),
            None => Sums::Device(std::mem::take(&mut self.buckets)),
        }))
    }

    /// The sums that lie in these buckets on the device become part of the model.
    fn apply_there(
        &mut self,
        memory: &mut BucketMemory,
        rows: &SparseGradient,
        samples: u64,
    ) -> Result<(), WorkerError> {
        let places = self.plan.as_ref().and_then(|plan| memory.places(plan));
        // Every group has parameters.
        let places: Option<Vec<u64>> = places
            .and_then(|places| places.into_iter().map(|place| place.map(|place| place.address)).collect());
        let places =
            places.ok_or_else(|| WorkerError::Loop("sums are in no bucket of the plan".to_owned()))?;
        self.weights.apply_lifted(&places, rows, samples)
    }

    /// Adds up what all members bring. All ranks see the same sums, so all replicas stay equal bit for bit.
    fn combine(&mut self, step: u64, samples: u64, acks: Acks) -> Result<StepResult, WorkerError> {
        let (dense, rows) = self.dense_sums(samples)?;
        let Self { comm, overlaps, compute, .. } = self;
        let (comm, layout) = (comm.as_mut().ok_or_else(no_group)?, compute.layout());
        let mut tables = rows.into_tables(layout);
        let touched = tables.iter().map(|table| table.rows.len() as u64).collect();
        let shares = comm.all_gather_v(&Share { samples, rows: touched, acks }.encode())?;
        let count = tables.len();
        let decode = |bytes: &Vec<u8>| Share::decode(bytes, count);
        let shares: Vec<Share> = shares.iter().map(decode).collect::<Result<_, _>>()?;
        overlaps.resize_with(tables.len(), Overlap::default);
        for (number, (table, overlap)) in tables.iter_mut().zip(overlaps.iter_mut()).enumerate() {
            let spec = &layout.tables()[number];
            let shape = TableShape { dim: spec.dim, rows: Some(spec.rows) };
            let counts: Vec<u64> = shares.iter().map(|share| share.rows[number]).collect();
            *table = all_reduce_counted(comm, table, &counts, shape, overlap)?;
        }
        let rows = SparseGradient::from_tables(tables, layout);
        let samples = shares.iter().map(|share| share.samples).sum();
        self.prepared =
            Some(Prepared { result: Combined::Sums(dense, rows), samples, number: step, of_all: true });
        Ok(StepResult { step, contributions: contributions(comm.group(), shares) })
    }

    /// The uniform mean of the models of `peers`, beside the model. Peers that name the same members get the same bits.
    fn mix(&mut self, step: u64, samples: u64, acks: Acks, peers: &Peers) -> Result<StepResult, WorkerError> {
        let Self { comm, compute, weights, .. } = self;
        let (comm, layout, own) = (comm.as_mut().ok_or_else(no_group)?, compute.layout(), weights.own()?);
        let rows = vec![0; layout.tables().len()];
        let shares = comm.all_gather_v(&Share { samples, rows, acks }.encode())?;
        let decode = |bytes: &Vec<u8>| Share::decode(bytes, layout.tables().len());
        let shares: Vec<Share> = shares.iter().map(decode).collect::<Result<_, _>>()?;
        let world = comm.group().world();
        let mean = mean::uniform(comm.as_mut(), own, layout, peers)?;
        let samples = shares.iter().map(|share| share.samples).sum();
        let of_all = peers.count(world) == world;
        self.prepared = Some(Prepared { result: Combined::Mean(mean), samples, number: step, of_all });
        Ok(StepResult { step, contributions: contributions(comm.group(), shares) })
    }

    /// Adds up everybody's control values.
    fn agree(&mut self, lanes: &Lanes) -> Result<Reply, WorkerError> {
        let comm = self.comm()?;
        let mut totals = lanes.encode();
        comm.all_reduce(&mut totals, ReduceOp::Sum)?;
        Ok(Reply::Agreed(Lanes::decide(&totals, comm.group().world())))
    }
}

/// What each member brought, by rank.
fn contributions(group: &Group, shares: Vec<Share>) -> Arc<[Contribution]> {
    let of =
        |(share, rank): (Share, u32)| Contribution { holder: group.holder(Rank(rank)), acks: share.acks };
    shares.into_iter().zip(0..).map(of).collect()
}

fn no_group() -> WorkerError {
    WorkerError::Loop("the worker is in no group".to_owned())
}

/// The version of group `number` among the members of a group of all, which is number 0. Versions grow from one group that a
/// worker is in to the next.
fn numbered(generation: MembershipVersion, number: u64) -> Result<MembershipVersion, WorkerError> {
    const NUMBERS: u32 = 40;
    if number >> NUMBERS > 0 || generation.0 >> (64 - NUMBERS) > 0 {
        return Err(WorkerError::Loop(format!("group {number} of generation {generation} is one too many")));
    }
    Ok(MembershipVersion(generation.0 << NUMBERS | number))
}

fn group_of(
    version: MembershipVersion,
    members: &[(Holder, String)],
    agent: &Agent,
    local: SocketAddr,
) -> Result<Group, WorkerError> {
    let me = members.iter().position(|(holder, _)| *holder == agent.holder());
    let me = me.ok_or_else(|| WorkerError::Input(format!("the new group has no {}", agent.holder())))?;
    let members = members
        .iter()
        .map(|(holder, address)| {
            let address = net::resolve(address, local.ip()).map_err(|error| {
                WorkerError::Address(format!("{holder} has the data address `{address}`: {error}"))
            })?;
            Ok(Member { holder: *holder, address })
        })
        .collect::<Result<_, WorkerError>>()?;
    let me = Rank(u32::try_from(me).expect("a group is smaller than 2^32"));
    Group::new(version, members, me).map_err(|e| WorkerError::Input(e.to_string()))
}
