//! Carries out the effects of the training loop until it stops.

use antdt_agent::Meter;
use antdt_agent::runtime::Agent;
use antdt_controller::action::ActionValues;
use antdt_core::port::{SeamError, ShardSource};
use antdt_core::{Ack, AckOutcome, Exchanged, Holder, PlanVersion, Retry};
use antdt_job::{Call, End, Reply, SyncMode, WorkerLoop};

use super::error::WorkerError;

/// Where gradients are combined: among replicas, or on servers.
pub(super) trait Combiner {
    /// Carries out a call that is neither to the shard service nor to the clock.
    fn carry_out(&mut self, call: Call) -> Result<Reply, WorkerError>;

    /// A plan takes effect with the next batch: carries out its further actions. `batch_size` is this worker's in the plan.
    fn begin_plan(&mut self, actions: &ActionValues, batch_size: u32) -> Result<(), WorkerError>;
}

/// The call belongs to another way of combining gradients.
pub(super) fn foreign(call: &Call) -> WorkerError {
    WorkerError::Loop(format!("{call:?} was asked of the wrong kind of worker"))
}

/// How training ended.
#[derive(Debug, Clone)]
pub(super) struct Finished {
    /// It saw the end of the data; otherwise it was drained.
    pub(super) end_of_data: bool,
    /// It has the trained model to evaluate.
    pub(super) has_model: bool,
    /// Measures what the worker does after training.
    pub(super) meter: Meter,
}

/// Trains until the end of the data, or until the node is drained.
pub(super) fn drive<S>(
    agent: &Agent,
    sync: &SyncMode,
    source: &S,
    combiner: &mut impl Combiner,
) -> Result<Finished, WorkerError>
where
    S: ShardSource,
    WorkerError: From<S::Error>,
{
    let clock = agent.clock();
    let mut worker = WorkerLoop::new(agent.holder(), sync, clock.now());
    let mut reply = Reply::Begin;
    // Why the last call was answered with a restart of the service.
    let mut restarted: Option<S::Error> = None;
    let mut begun = PlanVersion(0);
    loop {
        let call = worker.step(clock.now(), &mut agent.session(), &reply);
        if matches!(call, Call::Join(_)) {
            // It may go on with another model, or with other servers, which know of no plan.
            begun = PlanVersion(0);
        }
        let (plan, actions) = worker.actions();
        if plan > begun && call.loads().is_some() {
            combiner
                .begin_plan(actions.map_or(&ActionValues::new(), |actions| actions), worker.batch_size())?;
            begun = plan;
        }
        let cause = restarted.take();
        reply = match call {
            Call::Stop(End::EndOfData { trained }) => {
                let meter = worker.meter().clone();
                return Ok(Finished { end_of_data: true, has_model: trained, meter });
            }
            Call::Stop(End::Drained) => {
                let meter = worker.meter().clone();
                return Ok(Finished { end_of_data: false, has_model: false, meter });
            }
            Call::Stop(End::Failed(why)) => {
                return Err(cause.map_or(WorkerError::Loop(why), WorkerError::from));
            }
            Call::Sleep(pause) => {
                std::thread::sleep(pause);
                Reply::Slept
            }
            call => match ask(agent, source, &call) {
                Some(Err(error)) if error.retry() == Retry::Register => {
                    tracing::warn!(holder = %agent.holder(), %error, "the leases must be presented again");
                    restarted = Some(error);
                    Reply::ServiceRestarted
                }
                Some(answer) => answer?,
                None => combiner.carry_out(call)?,
            },
        };
    }
}

/// Asks the shard service, if the call is to it.
fn ask<S: ShardSource>(agent: &Agent, source: &S, call: &Call) -> Option<Result<Reply, S::Error>> {
    let holder = agent.holder();
    Some(match call {
        Call::Register(held) => agent.block_on(source.register(holder, held)).map(Reply::Registered),
        Call::Exchange { request, acks, want, wait } => {
            let exchanged = agent.block_on(source.exchange(holder, *request, acks, *want, *wait));
            exchanged.map(|exchanged| {
                warn_of_stale(holder, acks, &exchanged);
                Reply::Exchanged(exchanged)
            })
        }
        Call::Release(acks) => {
            agent.block_on(source.release(holder, acks)).map(|outcomes| Reply::returned(&outcomes))
        }
        Call::Fail { at, why } => {
            agent.block_on(source.fail(holder, *at, why)).map(|outcome| Reply::returned(&[outcome]))
        }
        _ => return None,
    })
}

fn warn_of_stale(holder: Holder, acks: &[Ack], exchanged: &Exchanged) {
    for (ack, outcome) in acks.iter().zip(&exchanged.outcomes) {
        if *outcome == AckOutcome::StaleLease {
            tracing::warn!(%holder, lease = %ack.lease, "lease ended without us");
        }
    }
}
