//! Actions: what a policy may decide on.
//!
//! An action is one folder with a type that implements [`Action`]: how a decision asks for it, when it would break the job, and what
//! a worker, or the cluster, does when it takes effect. To add one: write the folder, and add a line for it to the [registry]; a program adds its own
//! to the [`REGISTRY`]. Nobody else names an action: the dispatcher, joined policies and workers go through the registry.
//!
//! The actions that ship before any other have a field of their own in a [`Decision`], because the solver, the head half of a sync mode or
//! the restart saga carries them out. Every other one is a [value](Decision::actions) by its name, a text. It
//! goes into the plan, and all workers switch to it at one iteration; it holds until a plan says another value.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use antdt_core::registry::Named;
use antdt_core::{Capabilities, ClusterView, InvalidValue, JobTime, NodeView};

use crate::budget::RestartBudget;
use crate::policy::Decision;
use crate::validate::Refusal;

pub mod adjust_bs;
pub mod adjust_lr;
pub mod backup_workers;
pub mod exclude_host;
pub mod kill_restart;
pub mod local_steps;
pub mod registry;

pub use adjust_bs::AdjustBs;
pub use backup_workers::BackupWorkers;
pub use exclude_host::ExcludeHost;
pub use kill_restart::KillRestart;
pub use local_steps::AdjustLocalSteps;
pub use registry::REGISTRY;

/// ActionValues of actions, as texts by the action's name.
pub type ActionValues = BTreeMap<String, String>;

/// A decision, and what it is checked against.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// When it was made.
    pub now: JobTime,
    /// What the policy decided.
    pub decision: &'a Decision,
    /// The job that the policy saw.
    pub view: &'a ClusterView,
    /// The restarts that are left.
    pub budget: &'a RestartBudget,
}

impl<'a> Asked<'a> {
    /// The running workers.
    pub fn live(&self) -> impl Iterator<Item = &'a NodeView> {
        self.view.live_workers()
    }
}

/// What an action can change in a worker. The worker's process implements it.
pub trait Worker {
    /// What the sync mode asks of everyone.
    fn mode(&self) -> Capabilities;

    /// Samples of this worker's batch in the plan that takes effect.
    fn batch_size(&self) -> u32;

    /// Samples of a worker's batch if all that the job was started with had the same.
    fn even_batch_size(&self) -> f64;

    /// Sets the share of the learning rate at which this worker's gradients change the model from now on; `None` leaves it to the sync mode.
    /// Where each worker's push takes effect by itself, a gradient with a share counts as a mean of its own samples.
    fn set_rate_share(&mut self, share: Option<f32>);

    /// Hands an action to the trainer, which may be of the user's own.
    ///
    /// # Errors
    /// If the trainer does not take it.
    fn tell_trainer(&mut self, action: &str, value: &str) -> Result<(), InvalidValue>;
}

/// What an action can change in the cluster that runs the job. Who starts the job's processes implements it.
pub trait Cluster {
    /// Has workers that are started from now on run on other hosts than these, and on any host but these.
    fn avoid(&mut self, hosts: &BTreeSet<String>);
}

/// A kind of action that a policy may decide on.
///
/// Only names and the check have to be written for an action that is a value in a decision.
pub trait Action: fmt::Debug + Send + Sync {
    /// Its name in reports, decisions and plans, such as `ADJUST_BS`.
    fn name(&self) -> &'static str;

    /// Its name in the report of a dry run: `WOULD_` and the name.
    fn dry_name(&self) -> &'static str;

    /// What it does, in one line.
    fn about(&self) -> &'static str;

    /// Whether a decision asks for it.
    fn is_asked(&self, decision: &Decision) -> bool {
        decision.actions.contains_key(self.name())
    }

    /// Moves what a decision asks of it to another decision. What is not asked leaves the other one as it is.
    fn hand_over(&self, from: &mut Decision, to: &mut Decision) {
        if let Some(value) = from.actions.remove(self.name()) {
            to.actions.insert(self.name().to_owned(), value);
        }
    }

    /// Checks a decision that asks for it, which may ask for others too.
    ///
    /// # Errors
    /// If it would break the job.
    fn check(&self, asked: &Asked<'_>) -> Result<(), Refusal>;

    /// Whether restarts that are decided together with a new value of it wait until that is in force, and are decided anew then: because it says
    /// where they run.
    fn precedes_restarts(&self) -> bool {
        false
    }

    /// Carries it out in a worker, before the first batch under a plan that has a value for it. Called again with every later plan and when a
    /// worker joins a group anew, so it must not matter how often.
    ///
    /// # Errors
    /// If the worker cannot.
    fn begin(&self, _value: &str, _worker: &mut dyn Worker) -> Result<(), InvalidValue> {
        Ok(())
    }

    /// Carries it out in the cluster, once all workers have switched to a plan that has another value for it than the plan before. Called again
    /// with later plans, so it must not matter how often.
    ///
    /// # Errors
    /// If this program cannot.
    fn order(&self, _value: &str, _cluster: &mut dyn Cluster) -> Result<(), InvalidValue> {
        Ok(())
    }
}

impl Named for &'static dyn Action {
    fn name(&self) -> &'static str {
        Action::name(*self)
    }
}

/// Carries out the values of a plan in a worker.
///
/// # Errors
/// If this program does not know an action, or the worker cannot carry one out.
pub fn begin(values: &ActionValues, worker: &mut dyn Worker) -> Result<(), InvalidValue> {
    for (name, value) in values {
        known(name)?.begin(value, worker)?;
    }
    Ok(())
}

/// Carries out the values of a plan in the cluster.
///
/// # Errors
/// If this program does not know an action, or the cluster cannot carry one out.
pub fn order(values: &ActionValues, cluster: &mut dyn Cluster) -> Result<(), InvalidValue> {
    for (name, value) in values {
        known(name)?.order(value, cluster)?;
    }
    Ok(())
}

fn known(name: &str) -> Result<&'static dyn Action, InvalidValue> {
    REGISTRY.find(name).map_err(|unknown| {
        InvalidValue::new("an action of the plan", name, format!("known to all processes ({unknown})"))
    })
}

/// Checks a decision against the view it was made from.
///
/// # Errors
/// The first thing that is wrong.
pub fn validate(
    now: JobTime,
    decision: &Decision,
    view: &ClusterView,
    budget: &RestartBudget,
) -> Result<(), Refusal> {
    let asked = Asked { now, decision, view, budget };
    for action in REGISTRY.entries() {
        if action.is_asked(decision) {
            action.check(&asked)?;
        }
    }
    match decision.actions.keys().find(|name| REGISTRY.find(name).is_err()) {
        Some(name) => Err(Refusal::UnknownAction { name: name.clone() }),
        None => Ok(()),
    }
}
