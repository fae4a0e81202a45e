//! Actions: the changes to a running job that a policy may decide on.
//!
//! An action is one folder with a type that implements [`Action`]: how a decision asks for the action, when
//! the action would break the job, and what a worker or the cluster does when it takes effect. To add one,
//! write the folder and add a line for it to the [registry]; a program adds its own actions to the
//! [`REGISTRY`]. All other code (the dispatcher, joined policies, workers) finds actions through the registry
//! and names none.
//!
//! Some actions have a field in a [`Decision`], because the solver, the head half of a sync mode or the
//! restart saga carries them out. Every other action has a text in [`Decision::actions`], by its name. The
//! text becomes part of the plan, all workers switch to it at one iteration, and it holds until a later plan
//! has another one.

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
pub mod repartition;

pub use adjust_bs::AdjustBs;
pub use backup_workers::BackupWorkers;
pub use exclude_host::ExcludeHost;
pub use kill_restart::KillRestart;
pub use local_steps::AdjustLocalSteps;
pub use registry::REGISTRY;
pub use repartition::Repartition;

/// Values of the actions in a decision or plan, as texts by the action's name.
pub type ActionValues = BTreeMap<String, String>;

/// A decision of a policy, with the state of the job that an [`Action`] checks it against.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Time at which the policy made the decision.
    pub now: JobTime,
    /// Decision of the policy.
    pub decision: &'a Decision,
    /// View of the job that the policy decided on.
    pub view: &'a ClusterView,
    /// Budget of restarts, with what is spent so far.
    pub budget: &'a RestartBudget,
}

impl<'a> Asked<'a> {
    /// Returns the live workers in the view.
    pub fn live(&self) -> impl Iterator<Item = &'a NodeView> {
        self.view.live_workers()
    }
}

/// Interface through which an action changes a worker. The worker's process implements it.
pub trait Worker {
    /// Returns the capabilities of the job's sync mode.
    fn mode(&self) -> Capabilities;

    /// Returns this worker's batch size in the plan that takes effect, in samples.
    fn batch_size(&self) -> u32;

    /// Returns the global batch size divided by the number of workers that the job was started with, in
    /// samples.
    fn even_batch_size(&self) -> f64;

    /// Sets the share of the learning rate at which this worker's gradients change the model from now on;
    /// `None` leaves it to the sync mode. Where servers apply each worker's push by itself, they apply a push
    /// with a share as the mean over its own samples.
    fn set_rate_share(&mut self, share: Option<f32>);

    /// Hands an action and its value to the trainer, for actions that the user's own trainer carries out.
    ///
    /// # Errors
    /// If the trainer refuses the action or the value.
    fn tell_trainer(&mut self, action: &str, value: &str) -> Result<(), InvalidValue>;
}

/// Interface through which an action changes the cluster that runs the job. The part of the master that
/// starts processes implements it.
pub trait Cluster {
    /// Makes the launcher start workers on hosts other than these from now on. The set replaces that of the
    /// call before; workers that run stay where they are.
    fn avoid(&mut self, hosts: &BTreeSet<String>);
}

/// A kind of action that a policy may decide on.
///
/// An action that is a text value in a [`Decision`] has to implement only the names, [`about`](Self::about)
/// and [`check`](Self::check).
pub trait Action: fmt::Debug + Send + Sync {
    /// Returns the action's name in reports, decisions and plans, such as `ADJUST_BS`.
    fn name(&self) -> &'static str;

    /// Returns the action's name in the report of a dry run: its [`name`](Self::name) after `WOULD_`.
    fn dry_name(&self) -> &'static str;

    /// Returns a description, in one line, of what the action does.
    fn about(&self) -> &'static str;

    /// Returns whether a decision asks for this action.
    fn is_asked(&self, decision: &Decision) -> bool {
        decision.actions.contains_key(self.name())
    }

    /// Moves what a decision asks of this action to another decision. If `from` asks for nothing, `to` stays
    /// as it is.
    fn hand_over(&self, from: &mut Decision, to: &mut Decision) {
        if let Some(value) = from.actions.remove(self.name()) {
            to.actions.insert(self.name().to_owned(), value);
        }
    }

    /// Checks a decision that asks for this action; it may ask for other actions too.
    ///
    /// # Errors
    /// If the action would break the job.
    fn check(&self, asked: &Asked<'_>) -> Result<(), Refusal>;

    /// Returns whether a new value of this action must be in force before nodes are restarted, because it
    /// says where they run. The dispatcher then drops the restarts of the same decision, and the policy
    /// decides on them anew.
    fn precedes_restarts(&self) -> bool {
        false
    }

    /// Carries out a value of this action in a worker, before the worker's first batch under a plan that has
    /// the value. The worker calls it again with every later plan and whenever it joins a group, so a
    /// repetition must change nothing.
    ///
    /// # Errors
    /// If the worker cannot carry out the value.
    fn begin(&self, _value: &str, _worker: &mut dyn Worker) -> Result<(), InvalidValue> {
        Ok(())
    }

    /// Carries out a value of this action in the cluster, once all workers have switched to a plan with a new
    /// value. The master calls it again with later plans, so a repetition must change nothing.
    ///
    /// # Errors
    /// If this program cannot carry out the value.
    fn order(&self, _value: &str, _cluster: &mut dyn Cluster) -> Result<(), InvalidValue> {
        Ok(())
    }
}

impl Named for &'static dyn Action {
    fn name(&self) -> &'static str {
        Action::name(*self)
    }
}

/// Carries out in one worker every action that a plan names, each with its value in the plan.
///
/// # Errors
/// If this program does not know an action, or the worker cannot carry one out.
pub fn begin(values: &ActionValues, worker: &mut dyn Worker) -> Result<(), InvalidValue> {
    for (name, value) in values {
        known(name)?.begin(value, worker)?;
    }
    Ok(())
}

/// Carries out all action values of a plan in the cluster.
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

/// Checks a policy's decision against the view that the policy decided on, by the [`check`](Action::check) of
/// every action that it asks for.
///
/// # Errors
/// The first refusal.
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
