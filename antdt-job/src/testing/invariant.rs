//! What a sync mode promises.

use std::fmt;

antdt_core::promises! {
    /// An invariant that every sync mode must keep. `Display` gives its name.
    pub enum Invariant {
        /// Every call is one that the mode's capabilities allow.
        Capabilities = "capabilities",
        /// Members of a group make the same call at the same time, for the same step.
        OneOperation = "one_operation",
        /// All workers that apply a step apply the same contributions, after the step before it.
        SameModel = "same_model",
        /// No sample is in the model twice. Exception: in a mode that acknowledges pushes, the last batch of a
        /// worker that died between its push and its acknowledgement.
        OnceInModel = "once_in_model",
        /// Every acknowledged sample is in the model.
        AckedIsInModel = "acked_is_in_model",
        /// The contribution of a dead incarnation is settled before its leases go back to the ledger.
        SettledFirst = "settled_first",
        /// The batch sizes of a plan add up to the global batch, if the mode's capabilities say so.
        GlobalBatch = "global_batch",
        /// No worker ends its training because of a reply that it did not expect.
        NeverConfused = "never_confused",
        /// No worker says that the data has ended while samples are left.
        NoEarlyEnd = "no_early_end",
        /// After a fault the survivors go on: once no more faults happen, the job ends.
        SurvivorsGoOn = "survivors_go_on",
        /// At the end every sample is acknowledged, and in the model.
        NothingLost = "nothing_lost",
        /// The model of a checkpoint holds exactly the acknowledged samples. Exception: the push of a worker that
        /// died before it could acknowledge the push.
        ExactCheckpoint = "exact_checkpoint",
        /// After a rollback, model and ledger are those of the checkpoint; neither contains samples trained under
        /// an earlier lease.
        ExactRollback = "exact_rollback",
        /// No worker gets further ahead of a slower one than the mode's capabilities allow.
        BoundedLead = "bounded_lead",
        /// Members that average their models do not change the mean of all models.
        MeanKept = "mean_kept",
        /// An incarnation is launched once, and the numbers of memberships, plans, rollbacks and checkpoints
        /// never decrease, even across masters.
        NumbersGrow = "numbers_grow",
    }

    /// A set of [`Invariant`]s to check against histories.
    pub struct Invariants;
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
