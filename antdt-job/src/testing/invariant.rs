//! What a sync mode promises.

use std::collections::BTreeSet;
use std::fmt;

/// An invariant that every sync mode must keep. `Display` gives its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Invariant {
    /// Every call is one that the mode's capabilities allow.
    Capabilities,
    /// Members of a group make the same call at the same time, for the same step.
    OneOperation,
    /// All workers that apply a step apply the same contributions, after the step before it.
    SameModel,
    /// No sample is in the model twice. Exception: in a mode that acknowledges pushes, the last batch of a
    /// worker that died between its push and its acknowledgement.
    OnceInModel,
    /// Every acknowledged sample is in the model.
    AckedIsInModel,
    /// The contribution of a dead incarnation is settled before its leases go back to the ledger.
    SettledFirst,
    /// The batch sizes of a plan add up to the global batch, if the mode's capabilities say so.
    GlobalBatch,
    /// No worker ends its training because of a reply that it did not expect.
    NeverConfused,
    /// No worker says that the data has ended while samples are left.
    NoEarlyEnd,
    /// After a fault the survivors go on: once no more faults happen, the job ends.
    SurvivorsGoOn,
    /// At the end every sample is acknowledged, and in the model.
    NothingLost,
    /// The model of a checkpoint holds exactly the acknowledged samples. Exception: the push of a worker that
    /// died before it could acknowledge the push.
    ExactCheckpoint,
    /// After a rollback, model and ledger are those of the checkpoint; neither contains samples trained under
    /// an earlier lease.
    ExactRollback,
    /// No worker gets further ahead of a slower one than the mode's capabilities allow.
    BoundedLead,
    /// Members that average their models do not change the mean of all models.
    MeanKept,
    /// An incarnation is launched once, and the numbers of memberships, plans, rollbacks and checkpoints
    /// never decrease, even across masters.
    NumbersGrow,
}

impl Invariant {
    /// All invariants, in order.
    pub const ALL: [Self; 16] = [
        Self::Capabilities,
        Self::OneOperation,
        Self::SameModel,
        Self::OnceInModel,
        Self::AckedIsInModel,
        Self::SettledFirst,
        Self::GlobalBatch,
        Self::NeverConfused,
        Self::NoEarlyEnd,
        Self::SurvivorsGoOn,
        Self::NothingLost,
        Self::ExactCheckpoint,
        Self::ExactRollback,
        Self::BoundedLead,
        Self::MeanKept,
        Self::NumbersGrow,
    ];

    /// Returns the name of the invariant.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Capabilities => "capabilities",
            Self::OneOperation => "one_operation",
            Self::SameModel => "same_model",
            Self::OnceInModel => "once_in_model",
            Self::AckedIsInModel => "acked_is_in_model",
            Self::SettledFirst => "settled_first",
            Self::GlobalBatch => "global_batch",
            Self::NeverConfused => "never_confused",
            Self::NoEarlyEnd => "no_early_end",
            Self::SurvivorsGoOn => "survivors_go_on",
            Self::NothingLost => "nothing_lost",
            Self::ExactCheckpoint => "exact_checkpoint",
            Self::ExactRollback => "exact_rollback",
            Self::BoundedLead => "bounded_lead",
            Self::MeanKept => "mean_kept",
            Self::NumbersGrow => "numbers_grow",
        }
    }

    /// Returns the invariant as a sentence.
    pub const fn promise(self) -> &'static str {
        match self {
            Self::Capabilities => "every call is one that the mode's capabilities allow",
            Self::OneOperation => "members of a group make the same call, for the same step",
            Self::SameModel => "whoever applies a step applies the same contributions, after the same step",
            Self::OnceInModel => "no sample is in the model twice",
            Self::AckedIsInModel => "what is acknowledged is in the model",
            Self::SettledFirst => "what a dead life has contributed is settled before its leases go back",
            Self::GlobalBatch => "batch sizes add up to the global batch, if the capabilities say so",
            Self::NeverConfused => "no worker stops for good because a reply confused it",
            Self::NoEarlyEnd => "no worker says that the data has ended while samples are left",
            Self::SurvivorsGoOn => "when nothing goes wrong any more, the job ends",
            Self::NothingLost => "at the end every sample is acknowledged, and in the model",
            Self::ExactCheckpoint => "a checkpoint has in its model what is acknowledged, and nothing else",
            Self::ExactRollback => {
                "after a rollback, nothing counts that was trained under a lease of before"
            }
            Self::BoundedLead => "no worker gets further ahead of a slower one than the capabilities say",
            Self::MeanKept => "members that average their models leave the mean of all models as it is",
            Self::NumbersGrow => "a life is launched once, and no number goes back, also across masters",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of [`Invariant`]s to check against histories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invariants(BTreeSet<Invariant>);

impl Invariants {
    /// Returns the set of all invariants.
    pub fn all() -> Self {
        Self(Invariant::ALL.into())
    }

    /// Returns the set of these invariants.
    pub fn only(invariants: impl IntoIterator<Item = Invariant>) -> Self {
        Self(invariants.into_iter().collect())
    }

    /// Returns the set without this invariant.
    #[must_use]
    pub fn without(mut self, invariant: Invariant) -> Self {
        self.0.remove(&invariant);
        self
    }

    /// Returns whether the set contains this invariant.
    pub fn holds_to(&self, invariant: Invariant) -> bool {
        self.0.contains(&invariant)
    }
}
