//! Training in groups: the model lives in the workers, which combine what they compute by all-reduce.

use std::net::SocketAddr;
use std::time::Duration;

use antdt_agent::runtime::Agent;
use antdt_agent::{Batch, TrainError};
use antdt_collective::lanes::Lanes;
use antdt_collective::runtime::{
    Communicator, CommunicatorConfig, History, Listener, MixedTransport, ScheduledCommunicator,
};
use antdt_collective::schedule::Choice;
use antdt_collective::{Group, Member, ReduceOp};
use antdt_core::port::ShardSource;
use antdt_core::{Acks, Contribution, Holder, Joined, OptimizerSpec, Rank, Seed, StepResult};
use antdt_job::limits::next_timeout;
use antdt_job::{Call, Reply, SyncMode};
use antdt_model::{Replica, SparseGradient};

use super::blob::Blob;
use super::compute::Compute;
use super::drive::{Combiner, Finished, drive, foreign};
use super::error::WorkerError;
use super::interrupt::Interrupt;
use super::weights::Weights;
use crate::net;

/// What a worker needs to take part in rings.
pub(super) struct Ring<'a> {
    pub(super) agent: &'a Agent,
    pub(super) sync: &'a SyncMode,
    pub(super) listener: &'a Listener,
    pub(super) interrupt: &'a Interrupt,
    /// First limit for one wait for a peer.
    pub(super) timeout: Duration,
    pub(super) algorithm: Choice,
    pub(super) optimizer: OptimizerSpec,
    pub(super) seed: Seed,
}

/// Trains until the end of the data, or until the node is drained.
pub(super) fn train<S>(
    ring: &Ring<'_>,
    source: &S,
    compute: &mut Compute,
) -> Result<(Finished, Replica), WorkerError>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    let layout = compute.layout().clone();
    let dense = compute.trainer().initial_dense(ring.seed);
    let replica = Replica::new(&layout, ring.optimizer, ring.seed, dense)
        .map_err(|e| WorkerError::Parameters(e.to_string()))?;
    let mut reducer = Reducer {
        ring,
        compute,
        weights: Weights::new(ring.sync.capabilities().model, replica),
        trained: false,
        comm: None,
        members: Vec::new(),
        broken: Vec::new(),
        timeout: ring.timeout,
        transport: None,
        history: History::default(),
        touched: Vec::new(),
        values: Vec::new(),
        prepared: None,
    };
    let finished = drive(ring.agent, ring.sync, source, &mut reducer)?;
    Ok((finished, reducer.weights.into_model()))
}

/// A step whose result is here but not yet part of the model.
struct Prepared {
    dense: Vec<f32>,
    rows: SparseGradient,
    samples: u64,
}

struct Reducer<'a, 'r> {
    ring: &'a Ring<'r>,
    compute: &'a mut Compute,
    weights: Weights,
    /// Whether they are the job's model: false for a replacement until it took the model from a survivor.
    trained: bool,
    comm: Option<ScheduledCommunicator<MixedTransport>>,
    /// Of the group.
    members: Vec<Holder>,
    /// Members of the group before, if it broke.
    broken: Vec<Holder>,
    /// Limit for one wait for a peer.
    timeout: Duration,
    /// That of the last group; members that stay keep their connections.
    transport: Option<MixedTransport>,
    /// What was learned in the groups before.
    history: History,
    /// Rows that the loaded batch touches, and their values.
    touched: Vec<u64>,
    values: Vec<f32>,
    prepared: Option<Prepared>,
}

impl Combiner for Reducer<'_, '_> {
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
                let entered = self.enter(&joined);
                self.unless_broken(entered.map(|()| Reply::Entered))
            }
            Call::Load(batch) => self.load(&batch),
            Call::Compute => {
                let stats = self.compute.run(self.weights.model().dense(), &self.values)?;
                Ok(Reply::Computed { samples: stats.samples, loss_sum: stats.loss_sum })
            }
            Call::Combine { step, samples, acks } => {
                let combined = self.combine(step, samples, acks);
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
                self.weights.apply(&prepared.dense, &prepared.rows, prepared.samples)?;
                Ok(Reply::Applied)
            }
            Call::Revert => {
                self.weights.revert();
                Ok(Reply::Reverted)
            }
            Call::Advance => {
                let samples = self.compute.samples();
                self.weights.advance(self.compute.gradient(), &mut self.touched, samples)?;
                Ok(Reply::Advanced)
            }
            call => Err(foreign(&call)),
        }
    }
}

impl Reducer<'_, '_> {
    /// A member that failed or was late breaks the group, and is no error of this worker.
    fn unless_broken(&mut self, outcome: Result<Reply, WorkerError>) -> Result<Reply, WorkerError> {
        match outcome {
            Err(WorkerError::Collective(error)) => {
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
        if let Some(comm) = self.comm.take() {
            let (transport, history) = comm.leave();
            (self.transport, self.history) = (Some(transport), history);
        }
    }

    fn comm(&mut self) -> Result<&mut ScheduledCommunicator<MixedTransport>, WorkerError> {
        self.comm.as_mut().ok_or_else(|| WorkerError::Loop("the worker is in no group".to_owned()))
    }

    /// Connects to the group, and takes or gives the model if somebody lacks it.
    fn enter(&mut self, joined: &Joined) -> Result<(), WorkerError> {
        let group = group_of(joined, self.ring.agent, self.ring.listener.local_address())?;
        let abort = self.ring.interrupt.enter(joined.membership)?;
        let listener = self.ring.listener;
        let transport = match self.transport.take() {
            Some(last) => last.regroup(listener, &group, self.timeout, &abort)?,
            None => MixedTransport::connect(listener, &group, self.timeout, &abort)?,
        };
        let config = CommunicatorConfig {
            timeout: self.timeout,
            algorithm: self.ring.algorithm,
            ..CommunicatorConfig::default()
        };
        let history = std::mem::take(&mut self.history);
        // Steps are agreed on at the master; what the members tell each other of their past is not needed here.
        let (mut comm, _) = ScheduledCommunicator::join(transport, config, history).map_err(|broken| {
            self.history = broken.history;
            broken.error
        })?;
        if config.algorithm == Choice::Auto {
            comm.fit()?;
        }
        if let Some(source) = joined.source {
            self.share_model(&mut comm, source)?;
        }
        // Without a source nobody was trained: everybody starts from the seed.
        self.trained = true;
        self.comm = Some(comm);
        Ok(())
    }

    /// Takes the model from `source`, or gives it, if a member lacks it.
    fn share_model(
        &mut self,
        comm: &mut ScheduledCommunicator<MixedTransport>,
        source: Rank,
    ) -> Result<(), WorkerError> {
        let mut lacking = [u8::from(!self.trained)];
        comm.all_reduce(&mut lacking, ReduceOp::Max)?;
        if lacking[0] == 0 {
            return Ok(());
        }
        let mut model = if comm.group().me() == source { self.weights.export() } else { Vec::new() };
        comm.broadcast(source, &mut model)?;
        if !self.trained {
            let layout = self.compute.layout().clone();
            self.weights.import(&model, &layout, self.ring.optimizer, self.ring.seed)?;
        }
        Ok(())
    }

    /// Reads a batch, and the rows of the replica that it needs.
    fn load(&mut self, batch: &Batch) -> Result<Reply, WorkerError> {
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
        self.weights
            .model()
            .gather(&self.touched, &mut self.values)
            .map_err(|e| WorkerError::Parameters(e.to_string()))?;
        Ok(Reply::Loaded)
    }

    /// Adds up what all members bring. All ranks see the same blobs in the same order, so all replicas stay equal bit for
    /// bit.
    fn combine(&mut self, step: u64, samples: u64, acks: Acks) -> Result<StepResult, WorkerError> {
        let dim = self.compute.layout().table.map_or(0, |table| table.dim);
        let (mut dense, SparseGradient { rows, values }) =
            self.weights.contribution(self.compute.gradient(), &mut self.touched);
        let blob = Blob { samples, acks, rows, row_sums: values };
        let comm = self.comm()?;
        comm.all_reduce(&mut dense, ReduceOp::Sum)?;
        let blobs = comm.all_gather_v(&blob.encode())?;
        let mut blobs: Vec<Blob> =
            blobs.iter().map(|bytes| Blob::decode(bytes, dim)).collect::<Result<_, _>>()?;
        let rows = SparseGradient::merge(blobs.iter().map(|b| (&b.rows[..], &b.row_sums[..])), dim);
        let samples = blobs.iter().map(|blob| blob.samples).sum();
        let group = comm.group();
        let contributions = blobs
            .iter_mut()
            .zip(0..)
            .map(|(blob, rank)| {
                let acks = std::mem::take(&mut blob.acks);
                Contribution { holder: group.holder(Rank(rank)), acks }
            })
            .collect();
        self.prepared = Some(Prepared { dense, rows, samples });
        Ok(StepResult { step, contributions })
    }

    /// Adds up everybody's control values.
    fn agree(&mut self, lanes: &Lanes) -> Result<Reply, WorkerError> {
        let comm = self.comm()?;
        let mut totals = lanes.encode();
        comm.all_reduce(&mut totals, ReduceOp::Sum)?;
        Ok(Reply::Agreed(Lanes::decide(&totals, comm.group().world())))
    }
}

fn group_of(joined: &Joined, agent: &Agent, local: SocketAddr) -> Result<Group, WorkerError> {
    let me = joined.members.iter().position(|(holder, _)| *holder == agent.holder());
    let me = me.ok_or_else(|| WorkerError::Input(format!("the new group has no {}", agent.holder())))?;
    let members = joined
        .members
        .iter()
        .map(|(holder, address)| {
            let address = net::resolve(address, local.ip()).map_err(|error| {
                WorkerError::Address(format!("{holder} has the data address `{address}`: {error}"))
            })?;
            Ok(Member { holder: *holder, address })
        })
        .collect::<Result<_, WorkerError>>()?;
    let me = Rank(u32::try_from(me).expect("a group is smaller than 2^32"));
    Group::new(joined.membership, members, me).map_err(|e| WorkerError::Input(e.to_string()))
}
