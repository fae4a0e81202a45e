//! Actions: the changes to a running job that a policy may decide on.
//!
//! An action is one folder with a type that implements [`Action`]: how a decision asks for the action, when
//! the action would break the job, and what a worker or the cluster does when it takes effect. To add one,
//! write the folder and add a line for it to the [registry]; a program adds its own actions to the
//! [`REGISTRY`]. All other code (the dispatcher, joined policies, workers) finds actions through the registry
//! and names none.
//!
//! Some actions have a field in a [`Decision`], because the solver, the head half of a sync mode or the
//! restart saga carries them out. Every other action is a [`ValueAction`]: it has a value for all workers or for one
//! of them, whose text is in [`Decision::actions`], by its [address](address()). The text becomes part of the plan, all workers switch to it at one
//! iteration, and it holds until a later plan has another one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use antdt_core::registry::Named;
use antdt_core::{Capabilities, ClusterView, Holder, InvalidValue, JobTime, NodeId, NodeView};

use crate::budget::RestartBudget;
use crate::policy::{Decision, ProposedAction};
use crate::validate::Refusal;

pub mod adjust_bs;
pub mod adjust_lr;
pub mod backup_workers;
pub mod exclude_host;
pub mod kill_restart;
pub mod local_steps;
pub mod registry;
pub mod repartition;
pub mod value;

pub use adjust_bs::AdjustBs;
pub use backup_workers::BackupWorkers;
pub use exclude_host::ExcludeHost;
pub use kill_restart::KillRestart;
pub use local_steps::AdjustLocalSteps;
pub use registry::REGISTRY;
pub use repartition::Repartition;
pub use value::{Reach, ValueAction};

/// Values of the actions in a decision or plan, as texts by the action's [address](address()).
pub type ActionValues = BTreeMap<String, String>;

/// Returns the address of a value: the name of its action, or `NAME@NODE#INCARNATION` if it is for one incarnation of one worker.
pub fn key(name: &str, target: Option<Holder>) -> String {
    target.map_or_else(|| name.to_owned(), |target| format!("{name}@{target}"))
}

/// Reads the address of a value: the name of its action, and the incarnation that it is for, if it is not for all workers.
pub fn address(key: &str) -> (&str, Option<Holder>) {
    let targeted = key.split_once('@').and_then(|(name, target)| Some((name, target.parse().ok()?)));
    targeted.map_or((key, None), |(name, target)| (name, Some(target)))
}

/// Drops the values for workers that are gone: those without a place in `nodes`, and earlier incarnations of which a later one has a value.
pub(crate) fn prune(values: &mut ActionValues, nodes: &BTreeMap<NodeId, u32>) {
    let newest: BTreeMap<(String, NodeId), Holder> = values
        .keys()
        .filter_map(|key| match address(key) {
            (name, Some(target)) => Some(((name.to_owned(), target.node), target)),
            (_, None) => None,
        })
        .fold(BTreeMap::new(), |mut newest, (place, target)| {
            newest
                .entry(place)
                .and_modify(|known: &mut Holder| *known = target.max(*known))
                .or_insert(target);
            newest
        });
    values.retain(|key, _| match address(key) {
        (_, None) => true,
        (name, Some(target)) => {
            nodes.contains_key(&target.node) && newest.get(&(name.to_owned(), target.node)) == Some(&target)
        }
    });
}

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

    /// Checks that this incarnation of a worker runs.
    ///
    /// # Errors
    /// If the worker does not run, or in another incarnation.
    pub fn runs(&self, target: Holder) -> Result<(), Refusal> {
        let running =
            self.live().find(|worker| worker.id == target.node).ok_or(Refusal::NotRunning { target })?;
        let running = Holder::new(target.node, running.incarnation);
        if running == target { Ok(()) } else { Err(Refusal::OtherLife { target, running }) }
    }
}

/// Interface through which an action changes a worker. The worker's process implements it.
pub trait Worker {
    /// Returns the worker and its incarnation.
    fn holder(&self) -> Holder;

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
/// An action that is one value implements [`ValueAction`] instead.
pub trait Action: fmt::Debug + Send + Sync {
    /// Returns the action's name in reports, decisions and plans, such as `ADJUST_BS`.
    fn name(&self) -> &'static str;

    /// Returns the action's name in the report of a dry run: its [`name`](Self::name) after `WOULD_`.
    fn dry_name(&self) -> &'static str;

    /// Returns a description, in one line, of what the action does.
    fn about(&self) -> &'static str;

    /// Returns whether a decision asks for this action: by default, whether it has a value or a node action of this name.
    fn is_asked(&self, decision: &Decision) -> bool {
        let is_mine = |action: &ProposedAction| action.kind.name() == self.name();
        decision.actions.keys().any(|key| address(key).0 == self.name())
            || decision.node_actions.iter().any(is_mine)
    }

    /// Moves what a decision asks of this action to another decision; by default its values and node actions of this name. If `from` asks for
    /// nothing, `to` stays as it is.
    fn hand_over(&self, from: &mut Decision, to: &mut Decision) {
        to.actions.extend(from.actions.extract_if(.., |key, _| address(key).0 == self.name()));
        to.node_actions.extend(from.node_actions.extract_if(.., |action| action.kind.name() == self.name()));
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

/// Carries out in one worker every action of a plan that is for it, each with its value in the plan.
///
/// # Errors
/// If this program does not know an action, or the worker cannot carry one out.
pub fn begin(values: &ActionValues, worker: &mut dyn Worker) -> Result<(), InvalidValue> {
    for (key, value) in values {
        let (name, target) = address(key);
        let action = known(name)?;
        if target.is_none_or(|target| target == worker.holder()) {
            action.begin(value, worker)?;
        }
    }
    Ok(())
}

/// Carries out all action values of a plan in the cluster.
///
/// # Errors
/// If this program does not know an action, or the cluster cannot carry one out.
pub fn order(values: &ActionValues, cluster: &mut dyn Cluster) -> Result<(), InvalidValue> {
    for (key, value) in values {
        known(address(key).0)?.order(value, cluster)?;
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
    match decision.actions.keys().map(|key| address(key).0).find(|name| REGISTRY.find(name).is_err()) {
        Some(name) => Err(Refusal::UnknownAction { name: name.to_owned() }),
        None => Ok(()),
    }
}
