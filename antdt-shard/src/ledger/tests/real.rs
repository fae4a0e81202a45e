use super::inside;
use crate::ledger::{Record, ShardLedger};
use crate::spec::DatasetSpec;
use crate::testing::Invariants;
use crate::testing::call::{Call, CallReply};
use crate::testing::model::Model;
use crate::testing::subject::{Ram, Served};
use crate::testing::trial::Trial;

/// A ledger as it is, with its log in memory.
type Plain = Served<ShardLedger, fn(ShardLedger) -> ShardLedger, Ram>;

/// The ledger that is tested, with its log. After every event all invariants are checked, and what only this crate sees.
#[derive(Debug, Clone)]
pub(super) struct Real {
    trial: Trial<Plain>,
    /// As it was before the last call.
    before: ShardLedger,
}

impl Real {
    pub(super) fn new(spec: DatasetSpec) -> Self {
        let make: fn(ShardLedger) -> ShardLedger = |ledger| ledger;
        let served = Served::new(spec, make, Ram).unwrap();
        let before = served.ledger.clone();
        Self { trial: Trial::new(served, Invariants::all()).unwrap(), before }
    }

    /// The model was told already, and answered so.
    pub(super) fn hear(&mut self, call: &Call, expected: &CallReply, model: &Model) -> CallReply {
        use crate::testing::subject::Subject;

        self.before = self.ledger().clone();
        let reply = self.trial.subject.say(call);
        let reply = reply.unwrap_or_else(|breach| panic!("{call:?}: {}: {}", breach.invariant, breach.what));
        if let Err(breach) = self.trial.check(call, expected, &reply, model) {
            panic!("{call:?}: {}: {}", breach.invariant, breach.what);
        }
        inside::check(call, &reply, model, &self.before, self.ledger());
        reply
    }

    pub(super) const fn ledger(&self) -> &ShardLedger {
        &self.trial.subject.ledger
    }

    pub(super) fn log(&self) -> &[Record] {
        &self.trial.subject.log
    }

    /// Whether the last call woke waiting workers.
    pub(super) const fn woke(&self) -> bool {
        self.trial.subject.woke
    }

    /// Number of times that a waiting worker was woken.
    pub(super) const fn wakes(&self) -> u64 {
        self.trial.subject.wakes
    }
}
