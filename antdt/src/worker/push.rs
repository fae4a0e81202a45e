//! Training with parameter servers: pull, compute, push; in step with all others, or at the worker's own pace.

use std::time::Duration;

use antdt_agent::runtime::Agent;
use antdt_agent::{Batch, Meter, Part, PlanSwitch, Reported, SessionState};
use antdt_collective::ps::StepCommit as ServerCommit;
use antdt_collective::runtime::PsClient;
use antdt_core::port::ShardSource;
use antdt_core::{Iteration, Readiness, Seed, Standing, StepCommit};

use super::compute::Compute;
use super::error::WorkerError;
use super::feed::DataFeed;
use super::{Finished, PATIENCE};

/// The parameters as they were pulled.
#[derive(Debug, Default)]
struct Pulled {
    dense: Vec<f32>,
    rows: Vec<f32>,
}

/// What servers must know before they answer a pull: the newest step that changes the parameters.
fn token(commit: &StepCommit) -> ServerCommit {
    ServerCommit {
        step: Iteration(commit.step),
        contributors: commit.contributors.keys().copied().collect(),
        samples: commit.samples,
    }
}

/// The servers, and the commit that they must have seen.
pub(super) struct Servers {
    client: PsClient,
    commit: Option<ServerCommit>,
}

impl Servers {
    /// Pulls the dense parameters and these rows.
    pub(super) fn pull(
        &mut self,
        rows: &[u64],
        dense: &mut [f32],
        values: &mut Vec<f32>,
    ) -> Result<(), WorkerError> {
        self.client.pull(self.commit.as_ref(), rows, dense, values).map_err(Into::into)
    }
}

/// Trains until the end of the data or until the node is drained. `in_step` is BSP, otherwise ASP.
pub(super) fn train<S>(
    agent: &Agent,
    mut client: PsClient,
    compute: &mut Compute,
    feed: &mut DataFeed<'_, S>,
    seed: Seed,
    in_step: bool,
) -> Result<Finished<Servers>, WorkerError>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    let dense = compute.trainer().initial_dense(seed);
    // The first worker's values win; all are equal.
    client.init_dense(&dense)?;
    let joined = agent.join(&Standing::default())?;
    let mut worker = Pusher {
        agent,
        servers: Servers { client, commit: joined.last_commit.as_ref().map(token) },
        pulled: Pulled { dense, rows: Vec::new() },
        compute,
        feed,
        meter: Meter::new(agent.holder(), agent.clock().now()),
        switch: PlanSwitch::new(agent.holder().node),
        step: joined.next_step,
        idle: false,
    };
    worker.switch.offer(joined.plan);
    worker.switch.apply_now();
    worker.note_plans();
    let drained = if joined.finished {
        false
    } else if in_step {
        worker.run_in_step()?
    } else {
        worker.run_alone()?
    };
    Ok(Finished { end_of_data: !drained, model: (!drained).then_some(worker.servers) })
}

struct Pusher<'a, 'b, S> {
    agent: &'a Agent,
    servers: Servers,
    pulled: Pulled,
    compute: &'a mut Compute,
    feed: &'a mut DataFeed<'b, S>,
    meter: Meter,
    switch: PlanSwitch,
    step: u64,
    /// There was nothing to do in the last step.
    idle: bool,
}

impl<S> Pusher<'_, '_, S>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    /// Takes steps together with all others. Returns whether it left because it was drained.
    fn run_in_step(&mut self) -> Result<bool, WorkerError> {
        loop {
            if self.agent.session().state() == SessionState::Draining {
                return Ok(true);
            }
            self.offer_plan();
            let patience = if self.idle { PATIENCE } else { Duration::ZERO };
            let (batch, loss_sum) = self.compute_and_push(patience)?;
            self.meter.enter(self.agent.clock().now(), Part::BarrierWait);
            let commit = self.agent.ready(
                self.step,
                &Readiness {
                    samples: batch.len() as u64,
                    end_of_data: self.feed.end_of_data(),
                    plan: self.switch.ready(),
                    acks: batch.acks(),
                },
            )?;
            if !batch.is_empty() {
                if !commit.contributors.contains_key(&self.agent.holder()) {
                    let why = format!("step {} was committed without this worker's push", commit.step);
                    return Err(WorkerError::Parameters(why));
                }
                // The master acknowledged the samples when it committed the step.
                self.feed.settled(&batch);
            }
            if commit.samples > 0 {
                self.servers.commit = Some(token(&commit));
            }
            self.idle = commit.samples == 0;
            self.report(&batch, loss_sum);
            self.step = commit.step + 1;
            if let Some(version) = commit.apply {
                self.switch.agreed(version);
            }
            self.note_plans();
            if commit.end {
                return Ok(false);
            }
        }
    }

    /// Takes steps at its own pace. Returns whether it left because it was drained.
    fn run_alone(&mut self) -> Result<bool, WorkerError> {
        // With nobody to keep in step with, an idle worker can wait longer for a peer's shard.
        let patience = Duration::from_secs(1);
        loop {
            if self.agent.session().state() == SessionState::Draining {
                return Ok(true);
            }
            self.offer_plan();
            self.switch.apply_now();
            let (batch, loss_sum) = self.compute_and_push(patience)?;
            if batch.is_empty() {
                if self.feed.end_of_data() {
                    return Ok(false);
                }
                continue;
            }
            // The servers have applied it.
            self.feed.commit(&batch)?;
            self.report(&batch, loss_sum);
            self.step += 1;
            self.note_plans();
        }
    }

    /// One batch up to its push. The batch is empty if there is nothing to do now.
    fn compute_and_push(&mut self, patience: Duration) -> Result<(Batch, f64), WorkerError> {
        let clock = self.agent.clock();
        let batch = self.feed.next(u64::from(self.switch.batch_size()), patience)?;
        let mut rows = Vec::new();
        match self.compute.load(&batch) {
            Ok(touched) => rows.extend_from_slice(touched),
            Err(error) => {
                self.feed.fault(&batch, &error)?;
                return Ok((Batch::default(), 0.0));
            }
        }
        if batch.is_empty() {
            return Ok((batch, 0.0));
        }
        self.meter.enter(clock.now(), Part::Communicate);
        self.servers.pull(&rows, &mut self.pulled.dense, &mut self.pulled.rows)?;
        self.meter.enter(clock.now(), Part::Compute);
        let (gradient, stats) = self.compute.gradient(&batch, &self.pulled.dense, &self.pulled.rows)?;
        self.meter.enter(clock.now(), Part::Communicate);
        let samples = batch.len() as u64;
        self.servers.client.push(Iteration(self.step), samples, &gradient.dense, &rows, &gradient.rows)?;
        Ok((batch, stats.loss_sum))
    }

    fn offer_plan(&mut self) {
        if let Some(plan) = self.agent.session().take_plan() {
            self.switch.offer(plan);
        }
    }

    fn note_plans(&self) {
        self.agent.session().plans(self.switch.ready(), self.switch.applied(), self.step);
    }

    fn report(&mut self, batch: &Batch, loss_sum: f64) {
        let samples = batch.len() as u64;
        let now = self.agent.clock().now();
        let report = self.meter.finish(now, Iteration(self.step), self.switch.applied(), samples);
        self.agent.session().report(Reported { report, loss_sum });
    }
}
