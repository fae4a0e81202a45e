//! The invariants of a simulated job, which must hold after every event; one file each.
//!
//! An invariant relies only on the events that it observes: it keeps its own record of what the state
//! machines say and do. [`all`] returns the invariants of a job; a property test may use a single one.
//!
//! | invariant | in words |
//! |---|---|
//! | [`shards_partition`] | a shard is in one place, leased to one life at most |
//! | [`done_is_final`] | what is acknowledged stays acknowledged |
//! | [`stale_life_is_fenced`] | the dead change nothing |
//! | [`samples_accounted`] | acknowledged, waiting, leased and given up samples add up |
//! | [`samples_covered`] | every sample is acknowledged once before a job ends well |
//! | [`no_early_end`] | the end of the data is not announced early |
//! | [`batch_size_conserved`] | the batches of a step add up to the global batch |
//! | [`bounds_respected`] | no batch is smaller or larger than a worker can take |
//! | [`restart_budget_held`] | no more restarts than allowed |
//! | [`no_flapping`] | a restarted node is left alone for a while |
//! | [`plan_applies_at_one_iteration`] | all switch to a plan at one step, or none |
//! | [`restart_never_hits_the_replacement`] | a kill hits the incarnation that it was meant for |
//! | [`replay_equals_live`] | the ledger is the fold of its records |
//! | [`committed_once`] | the model contains exactly what is acknowledged |
//! | [`policy_is_total`] | every tick is decided |
//! | [`one_collective_order`] | a group's members make the same calls in the same order |
//! | [`groups_disjoint`] | groups that average at the same time share no worker |
//! | [`group_order_total`] | groups that share workers run in one order at all of them |
//! | [`group_counts_for_all`] | an average is taken over by all members of its group, or by none |
//! | [`epoch_ends`] | without faults the job ends (liveness) |
//! | [`requests_are_served`] | every waiting request is answered (liveness) |

use std::fmt;

use antdt_core::{Barrier, InvalidValue, JobTime};

use crate::happening::{Happening, Observer};
use crate::setup::Setup;
use crate::world::dataset;

pub mod batch_size_conserved;
pub mod bounds_respected;
mod committed;
pub mod committed_once;
pub mod done_is_final;
pub mod epoch_ends;
pub mod group_counts_for_all;
pub mod group_order_total;
mod group_word;
pub mod groups_disjoint;
mod holding;
mod leases;
pub mod no_early_end;
pub mod no_flapping;
pub mod one_collective_order;
pub mod plan_applies_at_one_iteration;
pub mod policy_is_total;
pub mod replay_equals_live;
pub mod requests_are_served;
pub mod restart_budget_held;
pub mod restart_never_hits_the_replacement;
pub mod samples_accounted;
pub mod samples_covered;
mod seats;
pub mod shards_partition;
pub mod stale_life_is_fenced;
#[cfg(test)]
mod testing;
pub mod trained;

pub use self::batch_size_conserved::BatchSizeConserved;
pub use self::bounds_respected::BoundsRespected;
pub use self::committed::Committed;
pub use self::committed_once::CommittedOnce;
pub use self::done_is_final::DoneIsFinal;
pub use self::epoch_ends::EpochEnds;
pub use self::group_counts_for_all::GroupCountsForAll;
pub use self::group_order_total::GroupOrderTotal;
pub use self::groups_disjoint::GroupsDisjoint;
pub use self::no_early_end::NoEarlyEnd;
pub use self::no_flapping::NoFlapping;
pub use self::one_collective_order::OneCollectiveOrder;
pub use self::plan_applies_at_one_iteration::PlanAppliesAtOneIteration;
pub use self::policy_is_total::PolicyIsTotal;
pub use self::replay_equals_live::ReplayEqualsLive;
pub use self::requests_are_served::RequestsAreServed;
pub use self::restart_budget_held::RestartBudgetHeld;
pub use self::restart_never_hits_the_replacement::RestartNeverHitsTheReplacement;
pub use self::samples_accounted::SamplesAccounted;
pub use self::samples_covered::SamplesCovered;
pub use self::shards_partition::ShardsPartition;
pub use self::stale_life_is_fenced::StaleLifeIsFenced;

/// A property that every history of a simulated job must have. It sees everything that happens, in order, and
/// keeps the state that it needs.
pub trait Invariant: fmt::Debug + Send {
    /// Returns the name of the invariant, such as `done_is_final`.
    fn name(&self) -> &'static str;

    /// Called when `what` has happened at the virtual time `at`.
    ///
    /// # Errors
    /// A description of the violation, with ids and amounts.
    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), String>;

    /// Checks at the end of the simulation that everything that had to happen has happened.
    ///
    /// # Errors
    /// A description of what should have happened by then.
    fn finish(&mut self, _at: JobTime) -> Result<(), String> {
        Ok(())
    }
}

/// Returns all invariants of a job, including those of groups if its master forms groups of workers.
///
/// # Errors
/// If no ledger can be made with the settings of the data set.
pub fn all(setup: &Setup) -> Result<Vec<Box<dyn Invariant>>, InvalidValue> {
    let spec = &dataset(setup);
    let replay = ReplayEqualsLive::new(spec)
        .map_err(|error| InvalidValue::new("samples", setup.samples, error.to_string()))?;
    let mut all: Vec<Box<dyn Invariant>> = vec![
        Box::new(ShardsPartition::new(spec)),
        Box::new(DoneIsFinal::new(spec)),
        Box::new(StaleLifeIsFenced::default()),
        Box::new(SamplesAccounted::new(spec)),
        Box::new(SamplesCovered::new(spec)),
        Box::new(NoEarlyEnd::new(spec)),
        Box::new(BatchSizeConserved::new(setup)),
        Box::new(BoundsRespected::default()),
        Box::new(RestartBudgetHeld::new(setup)),
        Box::new(NoFlapping::default()),
        Box::new(PlanAppliesAtOneIteration::new(setup)),
        Box::new(RestartNeverHitsTheReplacement::new(setup)),
        Box::new(replay),
        Box::new(CommittedOnce::new(setup, spec)),
        Box::new(PolicyIsTotal),
        Box::new(OneCollectiveOrder::default()),
        Box::new(EpochEnds::new(setup)),
        Box::new(RequestsAreServed::default()),
    ];
    if setup.sync.capabilities().barrier == Barrier::Peers {
        all.push(Box::new(GroupsDisjoint::default()));
        all.push(Box::new(GroupOrderTotal::default()));
        all.push(Box::new(GroupCountsForAll::default()));
    }
    Ok(all)
}

/// Several invariants that are checked together.
#[derive(Debug)]
pub struct Checkers {
    invariants: Vec<Box<dyn Invariant>>,
    /// When something happened last.
    now: JobTime,
}

impl Checkers {
    /// Returns a checker of these invariants.
    pub const fn new(invariants: Vec<Box<dyn Invariant>>) -> Self {
        Self { invariants, now: JobTime::ZERO }
    }

    /// Checks at the end of the simulation that everything that had to happen has happened.
    ///
    /// # Errors
    /// The first invariant that is violated.
    pub fn finish(&mut self) -> Result<(), Violation> {
        let at = self.now;
        self.invariants.iter_mut().try_for_each(|invariant| {
            let invariant = &mut **invariant;
            invariant.finish(at).map_err(|what| Violation { invariant: invariant.name(), at, what })
        })
    }
}

impl Observer for Checkers {
    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        self.now = at;
        self.invariants.iter_mut().try_for_each(|invariant| {
            let invariant = &mut **invariant;
            invariant.saw(at, what).map_err(|what| Violation { invariant: invariant.name(), at, what })
        })
    }
}

/// Report that a simulated job violated an invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{invariant} does not hold at {at}: {what}")]
pub struct Violation {
    /// Name of the violated invariant.
    pub invariant: &'static str,
    /// Virtual time of the violation.
    pub at: JobTime,
    /// Description of the violation.
    pub what: String,
}
