use antdt_core::{Ack, AckOutcome, FetchOutcome, Generation, Grant, Holder, RequestId};

use super::real::Real;
use crate::ledger::ShardLedger;
use crate::spec::{DatasetSpec, Epochs};
pub(super) use crate::testing::call::worker;
use crate::testing::call::{Call, CallReply};
use crate::testing::invariant::i09_progress::{self, Told};
use crate::testing::invariant::i20_journal_replay::check_every_prefix;
use crate::testing::model::Model;

/// The ledger and the model, given the same events. After every event their answers are compared, and all invariants
/// are checked.
#[derive(Debug, Clone)]
pub(super) struct Pair {
    pub(super) model: Model,
    pub(super) real: Real,
}

impl Pair {
    pub(super) fn new(spec: DatasetSpec) -> Self {
        let real = Real::new(spec.clone());
        Self { model: Model::new(spec), real }
    }

    pub(super) fn say(&mut self, call: &Call) -> CallReply {
        let expected = self.model.say(call);
        self.real.hear(call, &expected, &self.model);
        expected
    }

    pub(super) const fn ledger(&self) -> &ShardLedger {
        self.real.ledger()
    }

    pub(super) const fn generation(&self) -> Generation {
        self.model.book.generation
    }

    /// Every grant there ever was, with its holder.
    pub(super) fn grants(&self) -> &[(Grant, Holder)] {
        &self.model.book.grants
    }

    /// The newest grant.
    pub(super) fn newest(&self) -> Grant {
        self.grants().last().unwrap().0
    }

    pub(super) fn register(&mut self, holder: Holder) -> bool {
        !self.say(&Call::Register { holder, held: Vec::new() }).is_refusal()
    }

    pub(super) fn fetch(&mut self, holder: Holder, request: u64) -> Option<FetchOutcome> {
        let (generation, request) = (self.generation(), RequestId(request));
        self.say(&Call::Fetch { holder, generation, request }).fetched()
    }

    /// One ack, or several in one call.
    pub(super) fn ack(&mut self, holder: Holder, acks: &[Ack]) -> Vec<AckOutcome> {
        self.say(&Call::Ack { holder, acks: acks.to_vec() }).outcomes()
    }

    pub(super) fn release(&mut self, holder: Holder, acks: &[Ack]) -> Vec<AckOutcome> {
        self.say(&Call::Release { holder, acks: acks.to_vec() }).outcomes()
    }

    pub(super) fn fail(&mut self, holder: Holder, ack: Ack) {
        self.say(&Call::Fail { holder, ack });
    }

    pub(super) fn lose(&mut self, holder: Holder) {
        self.say(&Call::Lost { holder });
    }

    /// Sets both back to one of the snapshots kept so far.
    pub(super) fn restore(&mut self, which: usize) {
        self.say(&Call::Restore { which });
    }

    /// The service ends, and begins again without the last `lost` of its records.
    pub(super) fn restart(&mut self, lost: usize) {
        let kept = self.real.log().len() - lost;
        self.say(&Call::Restart { kept, compacted: None });
    }

    /// Lets all workers die and one for each share finish: every history must end this way.
    pub(super) fn drain(&mut self) {
        i09_progress::drain(self).unwrap();
        check_every_prefix(self.ledger().spec(), self.real.log()).unwrap();
    }
}

impl Told for Pair {
    type Error = String;

    fn tell(&mut self, call: Call) -> Result<CallReply, String> {
        Ok(self.say(&call))
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn broken(&self, what: String) -> String {
        what
    }
}

/// A small data set whose every setting a test can change.
pub(super) fn small(num_samples: u64, shard_len: u64) -> DatasetSpec {
    DatasetSpec {
        epochs: Epochs::Finite(1),
        max_data_faults: 2,
        ..DatasetSpec::new("small", num_samples, shard_len)
    }
}
