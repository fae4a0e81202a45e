//! [`WorkerCore`]: what all sync modes share of a worker's training loop, and what the worker half of a mode works with.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use antdt_agent::{Batch, Batcher, Meter, MicroBatch, Part, PlanSwitch, Reported};
use antdt_core::{
    Acks, Fragment, Holder, Iteration, JobTime, Joined, MembershipVersion, Phase, PlanVersion, RollbackId,
    Standing,
};

use super::feed::Feed;
use super::{Call, End, PATIENCE, Reply, not_an_answer};
use crate::mode::Turn;

/// What the reply that comes next answers.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum At {
    /// Nothing was asked yet.
    Start,
    Joining,
    Feeding(Then),
    Sleeping,
    Loading,
    /// A call of the mode's own.
    Half,
    /// Training is over.
    Over,
}

/// What to do when the shard service has answered all that was asked of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Then {
    /// Take a batch.
    Take,
    /// Go on without a batch.
    TakeNothing,
    /// The mode goes on.
    Half,
    /// The leases of before a rollback are given back; the worker takes part again.
    Join(Box<Joined>),
    /// The leases are given back.
    Stop(End),
}

/// The part of a worker's training loop that all sync modes share.
///
/// Its methods that return a [`Call`] decide what the worker does next; the mode's worker half returns that
/// call unchanged.
#[derive(Debug, Clone)]
pub struct WorkerCore {
    at: At,
    /// No worker had samples in the last step.
    idle: bool,
    step: u64,
    /// Samples behind the last gradient, and the sum of their losses.
    computed: (u64, f64),
    switch: PlanSwitch,
    meter: Meter,
    feed: Feed,
    /// The batch that is out.
    batch: Batch,
    /// The micro-batch of it that was loaded last.
    micro: MicroBatch,
    /// Samples of the micro-batches that were computed, and the sum of their losses.
    pieces: (u64, f64),
    /// When the gradient was begun that is computed beside other calls; `None` also if the meter was restarted since.
    beside: Option<JobTime>,
    holder: Holder,
    /// The newest rollback of the job that the worker has joined after.
    rollback: RollbackId,
    /// What it says of itself where the model lives on servers: the membership that it was told of last.
    told: MembershipVersion,
}

impl WorkerCore {
    pub(super) fn new(holder: Holder, now: JobTime) -> Self {
        Self {
            at: At::Start,
            idle: false,
            step: 0,
            computed: (0, 0.0),
            switch: PlanSwitch::new(holder.node),
            meter: Meter::new(holder, now),
            feed: Feed::default(),
            batch: Batch::default(),
            micro: MicroBatch::WHOLE,
            pieces: (0, 0.0),
            beside: None,
            holder,
            rollback: RollbackId(0),
            told: MembershipVersion(0),
        }
    }

    /// Returns the worker and incarnation that this loop trains for.
    pub const fn holder(&self) -> Holder {
        self.holder
    }

    /// Returns the number of the step that the worker takes.
    pub const fn steps(&self) -> u64 {
        self.step
    }

    /// Sets the number of the step that the worker takes.
    pub const fn set_step(&mut self, step: u64) {
        self.step = step;
    }

    /// Returns whether every sample of the job is accounted for, according to the shard service's last
    /// answer.
    pub const fn end_of_data(&self) -> bool {
        self.feed.end_of_data()
    }

    pub(super) const fn batch_size(&self) -> u32 {
        self.switch.batch_size()
    }

    pub(super) const fn actions(&self) -> (PlanVersion, Option<&Arc<BTreeMap<String, String>>>) {
        (self.switch.applied(), self.switch.actions())
    }

    pub(super) const fn meter(&self) -> &Meter {
        &self.meter
    }

    pub(super) const fn set_read_ahead(&mut self, batches: u32) {
        self.feed.set_read_ahead(batches);
    }

    pub(super) const fn leases(&self) -> &Batcher {
        self.feed.leases()
    }

    /// Returns the switch that holds the worker's plans.
    pub const fn switch(&mut self) -> &mut PlanSwitch {
        &mut self.switch
    }

    /// Returns the batch that was loaded last.
    pub const fn batch(&self) -> &Batch {
        &self.batch
    }

    /// Returns the number of samples of the last gradient, and the sum of their losses.
    pub const fn computed(&self) -> (u64, f64) {
        self.computed
    }

    /// Sets the number of samples of the last gradient, and the sum of their losses.
    pub const fn set_computed(&mut self, samples: u64, loss_sum: f64) {
        self.computed = (samples, loss_sum);
    }

    /// Records whether no worker had samples in the last step; if so, waiting for a shard delays no other
    /// worker.
    pub const fn set_idle(&mut self, idle: bool) {
        self.idle = idle;
    }

    /// Returns how long a worker without samples may wait for a shard in this step: 0, unless no worker had
    /// samples in the last step.
    pub const fn patience(&self) -> Duration {
        if self.idle { PATIENCE } else { Duration::ZERO }
    }

    // Calls.

    pub(super) const fn take_at(&mut self) -> At {
        std::mem::replace(&mut self.at, At::Over)
    }

    fn ask(&mut self, at: At, call: Call) -> Call {
        self.at = at;
        call
    }

    /// Makes `call` the worker's next call, and passes its reply to the mode.
    pub fn call(&mut self, call: Call) -> Call {
        self.ask(At::Half, call)
    }

    /// Makes `call`, to the shard service, the worker's next call. The mode is told once the shard service
    /// has answered.
    pub fn feed(&mut self, call: Call) -> Call {
        self.ask(At::Feeding(Then::Half), call)
    }

    /// Ends the training of this worker with an error, for the reason `why`.
    pub fn fail(&mut self, why: String) -> Call {
        self.stop(End::Failed(why))
    }

    /// Ends the training of this worker with an error, because the reply does not answer the call `asked`.
    pub fn not_an_answer(&mut self, reply: &Reply, asked: &impl std::fmt::Debug) -> Call {
        self.fail(not_an_answer(reply, asked))
    }

    pub(super) fn stop(&mut self, end: End) -> Call {
        self.ask(At::Over, Call::Stop(end))
    }

    /// Gives all leases back, then ends the training of this worker.
    pub fn over(&mut self, end: End) -> Call {
        match self.feed.release() {
            Some(call) => self.ask(At::Feeding(Then::Stop(end)), call),
            None => self.stop(end),
        }
    }

    /// Asks the master for a place in the group.
    pub fn join(&mut self, standing: Standing) -> Call {
        self.ask(At::Joining, Call::Join(standing))
    }

    // Rollbacks.

    /// Returns the newest rollback of the job after which the worker has joined.
    pub const fn rollback(&self) -> RollbackId {
        self.rollback
    }

    /// Returns whether the job was rolled back since the worker joined. If so, the worker's work since then
    /// is undone, and it must join again.
    pub fn is_undone(&self, turn: &Turn<'_>) -> bool {
        turn.session.rollback() > self.rollback
    }

    /// The job went back to a checkpoint. Nothing of what the worker holds is good any more: its leases go back, and it
    /// registers anew with its next question. Returns the call for that, if there is one.
    pub(super) fn roll_back(&mut self, joined: &Joined) -> Option<Call> {
        self.rollback = joined.rollback;
        self.batch = Batch::default();
        self.micro = MicroBatch::WHOLE;
        self.idle = false;
        self.computed = (0, 0.0);
        self.beside = None;
        let call = self.feed.roll_back()?;
        Some(self.ask(At::Feeding(Then::Join(Box::new(joined.clone()))), call))
    }

    /// In a mode with servers: asks the master to join again, because a server is gone or the step that the
    /// worker waited for is undone. The worker's batch is read again.
    pub fn join_again(&mut self, turn: &Turn<'_>) -> Call {
        self.abort();
        self.restart_meter(turn);
        self.join(Standing { group: self.told, ..Standing::default() })
    }

    /// Takes a batch of the size that the plan in force says. While the worker holds no samples, the shard
    /// service may keep the request open for `patience`. The mode is told when the batch is in memory.
    pub fn take_batch(&mut self, patience: Duration) -> Call {
        let want = u64::from(self.switch.batch_size());
        if want == 0 {
            // There is no batch size yet; it comes with a heartbeat. Until then the loop must not spin.
            let pause = patience.min(PATIENCE);
            return if pause.is_zero() {
                self.load(Batch::default())
            } else {
                self.ask(At::Sleeping, Call::Sleep(pause))
            };
        }
        match self.feed.next(want, patience) {
            Some(call) => self.ask(At::Feeding(Then::Take), call),
            None => self.load_taken(),
        }
    }

    /// Loads an empty batch, without a request to the shard service.
    pub fn take_nothing(&mut self) -> Call {
        self.load(Batch::default())
    }

    /// Returns the call that gives all leases back with their committed offsets, to be passed to
    /// [`feed`](Self::feed); `None` if the worker holds no leases.
    #[must_use]
    pub fn give_back(&mut self) -> Option<Call> {
        self.feed.release()
    }

    /// Returns the number of batches in the shard that was granted last, rounded up.
    pub const fn batches_of_a_shard(&self) -> u64 {
        self.feed.batches_of_a_shard()
    }

    pub(super) fn load_taken(&mut self) -> Call {
        let batch = self.feed.take();
        self.load(batch)
    }

    pub(super) fn load(&mut self, batch: Batch) -> Call {
        self.micro = MicroBatch { index: 0, count: self.pieces_of(batch.len()) };
        self.batch = batch;
        self.pieces = (0, 0.0);
        self.beside = None;
        self.load_piece()
    }

    fn load_piece(&mut self) -> Call {
        let batch = self.batch.clone();
        let call = if self.micro.count == 1 { Call::Load(batch) } else { Call::LoadPiece(batch, self.micro) };
        self.ask(At::Loading, call)
    }

    /// Micro-batches for so many samples: as the plan says, and at the tail no larger ones.
    fn pieces_of(&self, samples: u64) -> u32 {
        let (full, count) = (u64::from(self.switch.batch_size()), self.switch.micro_batches());
        if count == 1 || samples == 0 {
            return 1;
        }
        let pieces = if samples < full { samples.div_ceil(full.div_ceil(count.into())) } else { samples };
        u32::try_from(pieces).map_or(count, |pieces| pieces.min(count))
    }

    /// What was loaded is computed. The call for the next micro-batch of the batch; after the last, samples and losses of the
    /// whole batch.
    pub(super) fn computed_piece(
        &mut self,
        turn: &Turn<'_>,
        samples: u64,
        loss_sum: f64,
    ) -> Result<Call, (u64, f64)> {
        self.pieces = (self.pieces.0 + samples, self.pieces.1 + loss_sum);
        match self.micro.next() {
            Some(next) => {
                self.micro = next;
                self.enter(turn, Part::DataWait);
                Ok(self.load_piece())
            }
            None => Err(std::mem::replace(&mut self.pieces, (0, 0.0))),
        }
    }

    /// Returns whether the micro-batch that was loaded is the last one of the batch.
    pub const fn is_last_piece(&self) -> bool {
        self.micro.is_last()
    }

    /// Begins to compute the gradient of the last micro-batch while the worker makes further calls. The mode
    /// gets [`Reply::Computed`] for it, as for a gradient that is computed alone.
    pub fn compute_beside(&mut self, turn: &Turn<'_>) -> Call {
        self.meter.enter(turn.now, Part::Compute);
        self.beside = Some(turn.now);
        self.call(Call::ComputeBeside)
    }

    /// The gradient that was begun beside other calls is here, and took so long: the rest of the time until now went to those calls.
    pub(super) fn computed_beside(&mut self, turn: &Turn<'_>, took: Duration) {
        let ended = match self.beside.take() {
            Some(begun) => (begun + took).min(turn.now),
            None => {
                // What broke meanwhile leaves no trace.
                let begun = turn.now - took;
                self.meter.restart(begun);
                self.meter.enter(begun, Part::Compute);
                turn.now
            }
        };
        self.meter.enter(ended, Part::Communicate);
    }

    /// Returns the call that pushes the gradient of the batch to the servers.
    pub fn push(&self) -> Call {
        Call::Push { step: self.step, samples: self.batch.len() }
    }

    pub(super) fn answer(&mut self, then: &Then, reply: &Reply) -> Result<Option<Call>, String> {
        let call = self.feed.answer(reply)?;
        Ok(call.map(|call| self.ask(At::Feeding(then.clone()), call)))
    }

    // Samples.

    /// Commits the batch, which is part of the model now. Returns the call that acknowledges it, to be passed
    /// to [`feed`](Self::feed), if there is one.
    #[must_use]
    pub fn commit(&mut self) -> Option<Call> {
        self.feed.commit(&self.batch)
    }

    /// Commits the samples of several batches. Returns the call that acknowledges them, as
    /// [`commit`](Self::commit) does for one batch.
    #[must_use]
    pub fn commit_batch(&mut self, batch: &Batch) -> Option<Call> {
        self.feed.commit(batch)
    }

    /// Records that the batch is part of the model, and that the master has acknowledged it in the ledger.
    pub fn settled(&mut self) {
        self.feed.settled(&self.batch);
    }

    /// Forgets the batch, with which nothing can happen any more.
    pub fn forget_batch(&mut self) {
        self.batch = Batch::default();
    }

    /// Records that the samples of several batches are part of the model, and that the master has
    /// acknowledged them in the ledger.
    pub fn settled_batch(&mut self, batch: &Batch) {
        self.feed.settled(batch);
    }

    /// Returns the acknowledgements to send when these samples are committed: one for each lease, under the
    /// lease's present id.
    pub fn acks_of(&self, batch: &Batch) -> Acks {
        self.feed.acks_of(batch)
    }

    /// Adds the batch that was loaded last to `batches`.
    pub fn collect(&self, batches: &mut Batch) {
        for fragment in &self.batch.fragments {
            let lease = self.feed.leases().name_of(fragment.grant.lease);
            let same = |known: &&mut Fragment| {
                known.to == fragment.from && self.feed.leases().name_of(known.grant.lease) == lease
            };
            match batches.fragments.iter_mut().find(same) {
                Some(known) => known.to = fragment.to,
                None => batches.fragments.push(*fragment),
            }
        }
    }

    /// Returns whether the worker still holds the leases of all these samples. A restart of the shard service
    /// may end some.
    pub fn holds(&self, batch: &Batch) -> bool {
        let leases = self.feed.leases();
        batch.fragments.iter().all(|fragment| leases.holds(leases.name_of(fragment.grant.lease)))
    }

    /// Aborts the batch, which is not part of the model: its samples are read again.
    pub fn abort(&mut self) {
        self.feed.abort(&self.batch);
    }

    /// Aborts the samples of several batches. The batch that was loaded last is aborted before them.
    pub fn abort_batch(&mut self, batch: &Batch) {
        self.feed.abort(batch);
    }

    /// The lease of a sample that cannot be read goes back, as a data fault.
    pub(super) fn fault(&mut self, sample: u64, why: String) -> Call {
        match self.feed.fault(&self.batch, sample, why) {
            Some(call) => self.ask(At::Feeding(Then::TakeNothing), call),
            None => self.fail(format!("sample {sample} cannot be read, but no sample was asked for")),
        }
    }

    // Plans and reports.

    /// In a mode with servers: continues at the step and with the plan that the master's answer names.
    pub fn enter_with_servers(&mut self, turn: &mut Turn<'_>, joined: &Joined) {
        self.step = joined.next_step;
        self.enter_servers(turn, joined);
    }

    /// In a mode with servers without common steps: continues with the plan that the master's answer names. The worker numbers its
    /// own steps, and each number stands for one push of its life: one that it gave up is never taken for the next.
    pub fn enter_at_own_pace(&mut self, turn: &mut Turn<'_>, joined: &Joined) {
        self.step += u64::from(self.told.0 > 0);
        self.enter_servers(turn, joined);
    }

    fn enter_servers(&mut self, turn: &mut Turn<'_>, joined: &Joined) {
        turn.session.regrouped();
        self.told = joined.membership;
        self.switch.offer(joined.plan.clone());
        self.switch.apply_now();
        self.note_plans(turn);
    }

    /// Takes the newest plan of the session, if one has arrived, as the plan to switch to.
    pub fn offer_plan(&mut self, turn: &mut Turn<'_>) {
        if let Some(plan) = turn.session.take_plan() {
            self.switch.offer(plan);
        }
    }

    /// Records in the session which plans the worker holds and has in force.
    pub fn note_plans(&self, turn: &mut Turn<'_>) {
        turn.session.plans(self.switch.ready(), self.switch.applied(), self.step);
    }

    /// Assigns the time from now on to this part of a batch's time. While a gradient is computed
    /// [beside](Self::compute_beside) other calls, all time is the gradient's.
    pub fn enter(&mut self, turn: &Turn<'_>, part: Part) {
        if self.beside.is_none() {
            self.meter.enter(turn.now, part);
        }
    }

    /// Returns whether a gradient is computed beside other calls, whose time goes to the report of its batch.
    pub const fn computes_beside(&self) -> bool {
        self.beside.is_some()
    }

    /// Discards the time that has passed since the worker's last report.
    pub fn restart_meter(&mut self, turn: &Turn<'_>) {
        self.beside = None;
        self.meter.restart(turn.now);
    }

    /// Reports the time since the worker's meter was [restarted](Self::restart_meter) as that of a checkpoint, for which the
    /// worker stood still.
    pub fn rested(&mut self, turn: &mut Turn<'_>) {
        self.beside = None;
        let report = self.meter.finish_activity(turn.now, Phase::Checkpoint);
        turn.session.report(Reported { report, loss_sum: 0.0 });
    }

    /// Reports the time since the worker's last report as the time of a batch with this many samples.
    pub fn report(&mut self, turn: &mut Turn<'_>, samples: u64) {
        self.report_of(turn, (self.step, self.switch.applied()), samples);
    }

    /// Reports the same as the time of a batch for another step, which was taken without it, and under that step's plan.
    pub fn report_of(&mut self, turn: &mut Turn<'_>, (step, plan): (u64, PlanVersion), samples: u64) {
        let at = Iteration(step);
        let report = self.meter.finish(turn.now, at, plan, samples, self.micro.count);
        turn.session.report(Reported { report, loss_sum: self.computed.1 });
    }

    /// Reports the time since the worker's last report as the time of a batch with the samples that were
    /// computed.
    pub fn report_computed(&mut self, turn: &mut Turn<'_>) {
        self.report(turn, self.computed.0);
    }
}
