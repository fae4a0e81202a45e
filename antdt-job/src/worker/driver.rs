//! [`LoopDriver`]: the world in which the calls of a training loop are carried out.
//!
//! What a [`Call`] means is written here and nowhere else. [`Call::carry_out`] names, for each call, the one
//! method of the driver that carries it out. A driver is a worker's process, a simulated worker whose calls
//! take modelled time, or a worker of a test whose calls take none.
//!
//! Source: our design.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::{Batch, MicroBatch};
use antdt_collective::lanes::Lanes;
use antdt_core::{Ack, Acks, CheckpointId, Held, Joined, PlanVersion, Readiness, RequestId, Standing};

use super::{Call, End, Peers};

/// Carries out the calls of one training loop, one at a time. Each method is the meaning of one call; the
/// documentation of the [`Call`] says what the driver must do and which [`Reply`](super::Reply) answers it.
///
/// A driver whose calls block returns the reply. A driver whose calls take modelled time schedules the reply
/// and returns only what is known at once.
pub trait LoopDriver {
    /// What is known when the call has been made: the reply or an error, or nothing yet.
    type Answer;

    /// Carries out [`Call::Join`].
    fn join(&mut self, standing: Standing) -> Self::Answer;

    /// Carries out [`Call::Ready`].
    fn ready(&mut self, step: u64, readiness: Readiness) -> Self::Answer;

    /// Carries out [`Call::ReadyBeside`]: [`finish`](Self::finish) if the gradient is computed, otherwise
    /// [`ready`](Self::ready) until it is.
    fn ready_beside(&mut self, step: u64, readiness: Readiness) -> Self::Answer;

    /// Carries out [`Call::Rest`].
    fn rest(&mut self, checkpoint: CheckpointId) -> Self::Answer;

    /// Carries out [`Call::Register`].
    fn register(&mut self, held: Vec<Held>) -> Self::Answer;

    /// Carries out [`Call::Exchange`].
    fn exchange(&mut self, request: RequestId, acks: Acks, want: u32, wait: Duration) -> Self::Answer;

    /// Carries out [`Call::Release`].
    fn release(&mut self, acks: Vec<Ack>) -> Self::Answer;

    /// Carries out [`Call::Fail`].
    fn fail(&mut self, at: Ack, why: String) -> Self::Answer;

    /// Carries out [`Call::Sleep`].
    fn sleep(&mut self, time: Duration) -> Self::Answer;

    /// Carries out [`Call::Load`] and [`Call::LoadPiece`]: reads the samples of `batch.piece(micro)`, which
    /// are all samples of the batch if `micro` is [`MicroBatch::WHOLE`]. If the loop
    /// [begins a plan](super::WorkerLoop::begins_plan) with the call, the plan's actions come first.
    fn load(&mut self, batch: Batch, micro: MicroBatch) -> Self::Answer;

    /// Carries out [`Call::Pull`].
    fn pull(&mut self) -> Self::Answer;

    /// Carries out [`Call::Compute`].
    fn compute(&mut self) -> Self::Answer;

    /// Carries out [`Call::ComputeBeside`].
    fn compute_beside(&mut self) -> Self::Answer;

    /// Carries out [`Call::Finish`].
    fn finish(&mut self) -> Self::Answer;

    /// Carries out [`Call::Enter`].
    fn enter(&mut self, joined: Box<Joined>) -> Self::Answer;

    /// Carries out [`Call::Combine`].
    fn combine(&mut self, step: u64, samples: u64, acks: Acks, peers: Peers) -> Self::Answer;

    /// Carries out [`Call::Agree`].
    fn agree(&mut self, lanes: Lanes) -> Self::Answer;

    /// Carries out [`Call::Apply`].
    fn apply(&mut self) -> Self::Answer;

    /// Carries out [`Call::Push`].
    fn push(&mut self, step: u64, samples: u64) -> Self::Answer;

    /// Carries out [`Call::Advance`].
    fn advance(&mut self) -> Self::Answer;

    /// Carries out [`Call::Revert`].
    fn revert(&mut self) -> Self::Answer;

    /// Carries out [`Call::Stop`]. The loop takes no reply to it.
    fn stop(&mut self, end: End) -> Self::Answer;
}

impl Call {
    /// Has the driver carry out this call.
    pub fn carry_out<D: LoopDriver + ?Sized>(self, driver: &mut D) -> D::Answer {
        match self {
            Self::Join(standing) => driver.join(standing),
            Self::Enter(joined) => driver.enter(joined),
            Self::Register(held) => driver.register(held),
            Self::Exchange { request, acks, want, wait } => driver.exchange(request, acks, want, wait),
            Self::Release(acks) => driver.release(acks),
            Self::Fail { at, why } => driver.fail(at, why),
            Self::Sleep(time) => driver.sleep(time),
            Self::Load(batch) => driver.load(batch, MicroBatch::WHOLE),
            Self::LoadPiece(batch, micro) => driver.load(batch, micro),
            Self::Pull => driver.pull(),
            Self::Compute => driver.compute(),
            Self::ComputeBeside => driver.compute_beside(),
            Self::Finish => driver.finish(),
            Self::Combine { step, samples, acks, peers } => driver.combine(step, samples, acks, peers),
            Self::Agree(lanes) => driver.agree(lanes),
            Self::Apply => driver.apply(),
            Self::Push { step, samples } => driver.push(step, samples),
            Self::Ready { step, readiness } => driver.ready(step, readiness),
            Self::ReadyBeside { step, readiness } => driver.ready_beside(step, readiness),
            Self::Advance => driver.advance(),
            Self::Revert => driver.revert(),
            Self::Rest(checkpoint) => driver.rest(checkpoint),
            Self::Stop(end) => driver.stop(end),
        }
    }
}

/// A plan whose actions the driver carries out before it loads the first batch under the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanBegin {
    /// Version of the plan.
    pub version: PlanVersion,
    /// The plan's values of other actions by the action's name; `None` if it has none.
    pub actions: Option<Arc<BTreeMap<String, String>>>,
    /// Number of samples in this worker's batches under the plan.
    pub batch_size: u32,
}
