//! Training with all-reduce: every worker holds a replica, and every step takes every worker.

use std::net::SocketAddr;
use std::time::Duration;

use antdt_agent::runtime::Agent;
use antdt_agent::{Batch, Meter, Part, PlanSwitch, Reported, SessionState};
use antdt_collective::lanes::Lanes;
use antdt_collective::ps::{Replica, SparseGradient};
use antdt_collective::runtime::{
    Communicator, CommunicatorConfig, History, Listener, MixedTransport, ScheduledCommunicator,
};
use antdt_collective::schedule::Choice;
use antdt_collective::{CollectiveError, Group, Member, ReduceOp};
use antdt_core::port::ShardSource;
use antdt_core::{Holder, Iteration, Joined, OptimizerSpec, Rank, Seed, Standing, StepResult};

use super::blob::Blob;
use super::compute::Compute;
use super::error::WorkerError;
use super::feed::DataFeed;
use super::interrupt::Interrupt;
use super::{Finished, PATIENCE};

/// Longest wait for a peer that becomes longer with every failure.
const TIMEOUT_MOST: Duration = Duration::from_secs(3600);

/// What a worker needs to take part in rings.
pub(super) struct Ring<'a> {
    pub(super) agent: &'a Agent,
    pub(super) listener: &'a Listener,
    pub(super) interrupt: &'a Interrupt,
    /// First limit for one wait for a peer.
    pub(super) timeout: Duration,
    pub(super) algorithm: Choice,
    pub(super) optimizer: OptimizerSpec,
    pub(super) seed: Seed,
}

/// A step whose result is here but not yet part of the model.
struct Prepared {
    result: StepResult,
    dense: Vec<f32>,
    rows: SparseGradient,
    samples: u64,
    batch: Batch,
}

/// How a step ended.
enum Step {
    /// It is part of the model.
    Applied { samples: u64, end: bool, reform: bool },
    /// A peer failed before everybody had the result.
    Failed { error: CollectiveError, prepared: Option<Box<Prepared>>, batch: Option<Batch> },
}

/// Trains until the end of the data, or until the node is drained.
pub(super) fn train<S>(
    ring: &Ring<'_>,
    compute: &mut Compute,
    feed: &mut DataFeed<'_, S>,
) -> Result<Finished<Replica>, WorkerError>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    let agent = ring.agent;
    let layout = compute.layout().clone();
    let dense = compute.trainer().initial_dense(ring.seed);
    let replica = Replica::new(&layout, ring.optimizer, ring.seed, dense)
        .map_err(|e| WorkerError::Parameters(e.to_string()))?;
    let mut worker = Reducer {
        ring,
        compute,
        feed,
        replica,
        trained: false,
        applied: None,
        meter: Meter::new(agent.holder(), agent.clock().now()),
        switch: PlanSwitch::new(agent.holder().node),
        step: 0,
        idle: false,
        timeout: ring.timeout,
        transport: None,
        history: History::default(),
    };
    let drained = worker.run()?;
    let model = (!drained && worker.trained).then_some(worker.replica);
    Ok(Finished { end_of_data: !drained, model })
}

struct Reducer<'a, 'r, 'f, S> {
    ring: &'a Ring<'r>,
    compute: &'a mut Compute,
    feed: &'a mut DataFeed<'f, S>,
    replica: Replica,
    /// Whether the replica is the job's model: false for a replacement until it took the model from a survivor.
    trained: bool,
    applied: Option<StepResult>,
    meter: Meter,
    switch: PlanSwitch,
    step: u64,
    /// Nobody had samples in the last step.
    idle: bool,
    /// Limit for one wait for a peer.
    timeout: Duration,
    /// That of the last group; members that stay keep their connections.
    transport: Option<MixedTransport>,
    /// What was learned in the groups before.
    history: History,
}

impl<S> Reducer<'_, '_, '_, S>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    /// Returns whether it left because it was drained.
    fn run(&mut self) -> Result<bool, WorkerError> {
        let mut prepared: Option<Box<Prepared>> = None;
        // Members of the group that broke last.
        let mut broken = Vec::new();
        loop {
            let joined = self.ring.agent.join(&Standing {
                applied: self.applied.clone(),
                prepared: prepared.as_ref().map(|p| p.result.clone()),
            })?;
            if joined.finished {
                return Ok(false);
            }
            if let Some(prepared) = prepared.take() {
                if joined.commit_prepared && prepared.result.step + 1 == joined.next_step {
                    self.apply(*prepared)?;
                } else {
                    self.feed.abort(&prepared.batch);
                }
            }
            self.step = joined.next_step;
            let members: Vec<Holder> = joined.members.iter().map(|(holder, _)| *holder).collect();
            self.timeout = next_timeout(self.timeout, &broken, &members);
            broken.clear();
            match self.run_group(&joined)? {
                GroupEnd::EndOfData => return Ok(false),
                GroupEnd::Drained => return Ok(true),
                GroupEnd::Reform => {}
                GroupEnd::Broken(left) => (prepared, broken) = (left, members),
            }
        }
    }

    /// Takes steps in one group until it must be formed anew.
    fn run_group(&mut self, joined: &Joined) -> Result<GroupEnd, WorkerError> {
        let mut comm = match self.enter(joined) {
            Ok(comm) => comm,
            Err(WorkerError::Collective(error)) => {
                tracing::info!(holder = %self.ring.agent.holder(), %error, "the group broke while it was formed");
                return Ok(GroupEnd::Broken(None));
            }
            Err(error) => return Err(error),
        };
        self.switch.regroup(joined.membership, joined.plan.clone());
        self.ring.agent.session().plans(self.switch.ready(), self.switch.applied(), self.step);
        let end = self.take_steps(&mut comm);
        let (transport, history) = comm.leave();
        (self.transport, self.history) = (Some(transport), history);
        end
    }

    fn take_steps(
        &mut self,
        comm: &mut ScheduledCommunicator<MixedTransport>,
    ) -> Result<GroupEnd, WorkerError> {
        loop {
            if let Some(plan) = self.ring.agent.session().take_plan() {
                self.switch.offer(plan);
            }
            let draining = self.ring.agent.session().state() == SessionState::Draining;
            match self.take_step(comm, draining)? {
                Step::Applied { end: true, .. } => return Ok(GroupEnd::EndOfData),
                Step::Applied { reform, samples, .. } => {
                    self.idle = samples == 0;
                    if reform && draining {
                        return Ok(GroupEnd::Drained);
                    }
                    if reform {
                        return Ok(GroupEnd::Reform);
                    }
                }
                Step::Failed { error, prepared, batch } => {
                    let holder = self.ring.agent.holder();
                    tracing::info!(%holder, step = self.step, %error, "step failed; forming a new group");
                    if let Some(batch) = batch {
                        self.feed.abort(&batch);
                    }
                    self.meter.restart(self.ring.agent.clock().now());
                    // A draining worker meets the others too: they may have its part of the step and commit it.
                    return Ok(GroupEnd::Broken(prepared));
                }
            }
        }
    }

    /// Connects to the group, and takes or gives the model if somebody lacks it.
    fn enter(&mut self, joined: &Joined) -> Result<ScheduledCommunicator<MixedTransport>, WorkerError> {
        let group = group_of(joined, self.ring.agent)?;
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
        let Some(source) = joined.source else {
            // Nobody was trained: everybody starts from the seed.
            self.trained = true;
            return Ok(comm);
        };
        let mut lacking = [u8::from(!self.trained)];
        comm.all_reduce(&mut lacking, ReduceOp::Max)?;
        if lacking[0] > 0 {
            let mut model = if group.me() == source { self.replica.export() } else { Vec::new() };
            comm.broadcast(source, &mut model)?;
            if !self.trained {
                let layout = self.compute.layout().clone();
                self.replica = Replica::import(&model, &layout, self.ring.optimizer, self.ring.seed)
                    .map_err(|e| WorkerError::Parameters(e.to_string()))?;
                self.trained = true;
                // It has the model after this step, but no part in it.
                self.applied = Some(StepResult { step: joined.next_step - 1, contributions: Vec::new() });
            }
        }
        Ok(comm)
    }

    fn take_step(
        &mut self,
        comm: &mut ScheduledCommunicator<MixedTransport>,
        draining: bool,
    ) -> Result<Step, WorkerError> {
        let clock = self.ring.agent.clock();
        // When nobody had samples the step is only a question of patience.
        let patience = if self.idle { PATIENCE } else { Duration::ZERO };
        let mut batch = self.feed.next(u64::from(self.switch.batch_size()), patience)?;
        let mut rows = Vec::new();
        match self.compute.load(&batch) {
            Ok(touched) => rows.extend_from_slice(touched),
            Err(error) => {
                self.feed.fault(&batch, &error)?;
                batch = Batch::default();
            }
        }
        let mut values = Vec::new();
        self.replica.gather(&rows, &mut values).map_err(|e| WorkerError::Parameters(e.to_string()))?;
        self.meter.enter(clock.now(), Part::Compute);
        let (gradient, stats) = self.compute.gradient(&batch, self.replica.dense(), &values)?;
        self.meter.enter(clock.now(), Part::Communicate);

        let mut dense = std::mem::take(&mut gradient.dense);
        let row_sums = std::mem::take(&mut gradient.rows);
        let blob = Blob { samples: batch.len() as u64, acks: batch.acks(), rows, row_sums };
        let dim = self.compute.layout().table.map_or(0, |table| table.dim);
        let gathered =
            comm.all_reduce(&mut dense, ReduceOp::Sum).and_then(|()| comm.all_gather_v(&blob.encode()));
        let blobs = match gathered {
            Ok(blobs) => blobs,
            Err(error) => return Ok(Step::Failed { error, prepared: None, batch: Some(batch) }),
        };
        let prepared = Box::new(self.prepare(comm, &blobs, dense, batch, dim)?);

        let reform = draining || self.ring.agent.session().reform();
        let lanes = Lanes {
            samples: stats.samples,
            end_of_data: self.feed.end_of_data(),
            plan_ready: self.switch.ready(),
            reform,
            loss_sum: stats.loss_sum,
        };
        let mut totals = lanes.encode();
        if let Err(error) = comm.all_reduce(&mut totals, ReduceOp::Sum) {
            return Ok(Step::Failed { error, prepared: Some(prepared), batch: None });
        }
        // Everybody contributed to the lanes, so everybody has the result.
        let verdict = Lanes::decide(&totals, comm.group().world());
        let plan = self.switch.applied();
        self.apply(*prepared)?;
        let report = self.meter.finish(clock.now(), Iteration(self.step), plan, stats.samples);
        let mut session = self.ring.agent.session();
        session.report(Reported { report, loss_sum: stats.loss_sum });
        self.step += 1;
        if let Some(version) = verdict.plan_agreed {
            self.switch.agreed(version);
        }
        session.plans(self.switch.ready(), self.switch.applied(), self.step);
        drop(session);
        let end = verdict.end_of_data && verdict.samples == 0;
        Ok(Step::Applied { samples: verdict.samples, end, reform: verdict.reform })
    }

    /// Puts together what every rank contributed. All ranks see the same blobs in the same order, so all replicas
    /// stay equal bit for bit.
    fn prepare(
        &self,
        comm: &ScheduledCommunicator<MixedTransport>,
        blobs: &[Vec<u8>],
        dense: Vec<f32>,
        batch: Batch,
        dim: usize,
    ) -> Result<Prepared, WorkerError> {
        let blobs: Vec<Blob> =
            blobs.iter().map(|bytes| Blob::decode(bytes, dim)).collect::<Result<_, _>>()?;
        let rows = SparseGradient::merge(blobs.iter().map(|b| (&b.rows[..], &b.row_sums[..])), dim);
        let contributions = blobs
            .iter()
            .enumerate()
            .map(|(rank, blob)| {
                let rank = Rank(u32::try_from(rank).expect("a group is smaller than 2^32"));
                antdt_core::Contribution { holder: comm.group().holder(rank), acks: blob.acks.clone() }
            })
            .collect();
        let samples = blobs.iter().map(|blob| blob.samples).sum();
        Ok(Prepared { result: StepResult { step: self.step, contributions }, dense, rows, samples, batch })
    }

    /// Makes a prepared step part of the model and acknowledges its samples.
    fn apply(&mut self, prepared: Prepared) -> Result<(), WorkerError> {
        self.replica
            .apply(&prepared.dense, &prepared.rows, prepared.samples)
            .map_err(|e| WorkerError::Parameters(e.to_string()))?;
        self.applied = Some(prepared.result);
        self.feed.commit(&prepared.batch)
    }
}

enum GroupEnd {
    EndOfData,
    Drained,
    /// Somebody wants to come in or to leave.
    Reform,
    /// A member failed or was late; the step that may be left to commit.
    Broken(Option<Box<Prepared>>),
}

/// How long to wait for a peer in the next group, `members`, after `broken` broke. If it is the same one, nobody died:
/// somebody is slower than the limit, and the step would fail for ever without a longer one. Who hangs for good is
/// found by the master, which hears nothing from it.
fn next_timeout(timeout: Duration, broken: &[Holder], members: &[Holder]) -> Duration {
    if broken == members { timeout.saturating_mul(4).min(TIMEOUT_MOST.max(timeout)) } else { timeout }
}

fn group_of(joined: &Joined, agent: &Agent) -> Result<Group, WorkerError> {
    let me = joined.members.iter().position(|(holder, _)| *holder == agent.holder());
    let me = me.ok_or_else(|| WorkerError::Input(format!("the new group has no {}", agent.holder())))?;
    let members = joined
        .members
        .iter()
        .map(|(holder, address)| {
            let address: SocketAddr = address
                .parse()
                .map_err(|_| WorkerError::Input(format!("{holder} has the data address `{address}`")))?;
            Ok(Member { holder: *holder, address })
        })
        .collect::<Result<_, WorkerError>>()?;
    let me = Rank(u32::try_from(me).expect("a group is smaller than 2^32"));
    Group::new(joined.membership, members, me).map_err(|e| WorkerError::Input(e.to_string()))
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId};

    use super::*;

    #[test]
    fn a_group_that_breaks_though_nobody_died_waits_longer_the_next_time() {
        let worker = |index, life| Holder::new(NodeId::worker(index), Incarnation(life));
        let group = [worker(0, 0), worker(1, 0)];
        let second = Duration::from_secs(1);
        assert_eq!(next_timeout(second, &[], &group), second, "nothing broke");
        assert_eq!(next_timeout(second, &group, &group), second * 4);
        assert_eq!(next_timeout(second, &group, &[worker(0, 0), worker(1, 1)]), second, "one died");
        assert_eq!(next_timeout(second, &group, &group[..1]), second, "one is missing");
        assert_eq!(next_timeout(TIMEOUT_MOST, &group, &group), TIMEOUT_MOST);
        assert_eq!(next_timeout(TIMEOUT_MOST * 2, &group, &group), TIMEOUT_MOST * 2, "the user's own");
    }
}
