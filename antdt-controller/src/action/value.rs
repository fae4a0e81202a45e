//! [`ValueAction`]: an action that is one typed value, for all workers or for one of them.

use std::fmt;

use antdt_core::{Holder, InvalidValue};

use super::{Action, ActionValues, Asked, Cluster, Worker, address, key};
use crate::policy::Decision;
use crate::validate::Refusal;

/// Workers that a value of an action is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// All workers, or the cluster: one value for the job.
    Job,
    /// One incarnation of one worker: each has a value of its own, or none.
    Worker,
    /// Either.
    Any,
}

/// An action that is one typed value. The value is written as a text once, when a decision [asks](Decision::ask) for it; the text is in the
/// plan, and is read where the action is carried out.
///
/// A type that implements this trait is an [`Action`].
pub trait ValueAction: fmt::Debug + Send + Sync {
    /// Value of the action. Its text is what [`read`](Self::read) reads again.
    type Value: fmt::Display;

    /// Name of the action in reports, decisions and plans, such as `ADJUST_LR`.
    const NAME: &'static str;

    /// Name of the action in the report of a dry run: its [name](Self::NAME) after `WOULD_`.
    const DRY_NAME: &'static str;

    /// What the action does, in one line.
    const ABOUT: &'static str;

    /// Workers that a value is for.
    const REACH: Reach = Reach::Job;

    /// Reads a value.
    ///
    /// # Errors
    /// If the text is no value of this action.
    fn read(&self, text: &str) -> Result<Self::Value, InvalidValue>;

    /// Checks a value of a decision; `target` is the worker that it is for, `None` for all workers. That the target runs is checked before.
    ///
    /// # Errors
    /// If the action would break the job.
    fn check(
        &self,
        _value: &Self::Value,
        _target: Option<Holder>,
        _asked: &Asked<'_>,
    ) -> Result<(), Refusal> {
        Ok(())
    }

    /// Returns what [`Action::precedes_restarts`] does.
    fn precedes_restarts(&self) -> bool {
        false
    }

    /// Carries out a value in a worker that it is for; see [`Action::begin`].
    ///
    /// # Errors
    /// If the worker cannot carry out the value.
    fn begin(&self, _value: Self::Value, _worker: &mut dyn Worker) -> Result<(), InvalidValue> {
        Ok(())
    }

    /// Carries out a value in the cluster; see [`Action::order`].
    ///
    /// # Errors
    /// If this program cannot carry out the value.
    fn order(&self, _value: Self::Value, _cluster: &mut dyn Cluster) -> Result<(), InvalidValue> {
        Ok(())
    }

    /// Returns the text of the value that a plan has of this action; `target` is the worker that it is for, `None` for all workers.
    fn in_force(values: &ActionValues, target: Option<Holder>) -> Option<&str> {
        values.get(&key(Self::NAME, target)).map(String::as_str)
    }
}

impl<A: ValueAction> Action for A {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn dry_name(&self) -> &'static str {
        A::DRY_NAME
    }

    fn about(&self) -> &'static str {
        A::ABOUT
    }

    fn check(&self, asked: &Asked<'_>) -> Result<(), Refusal> {
        for (key, text) in &asked.decision.actions {
            let (name, target) = address(key);
            if name != A::NAME {
                continue;
            }
            match (A::REACH, target) {
                (Reach::Job, Some(target)) => {
                    return Err(Refusal::Reach {
                        name: A::NAME,
                        expected: "all workers",
                        target: Some(target),
                    });
                }
                (Reach::Worker, None) => {
                    return Err(Refusal::Reach { name: A::NAME, expected: "one worker", target: None });
                }
                (Reach::Job | Reach::Any, None) => {}
                (Reach::Worker | Reach::Any, Some(target)) => asked.runs(target)?,
            }
            ValueAction::check(self, &self.read(text)?, target, asked)?;
        }
        Ok(())
    }

    fn precedes_restarts(&self) -> bool {
        ValueAction::precedes_restarts(self)
    }

    fn begin(&self, value: &str, worker: &mut dyn Worker) -> Result<(), InvalidValue> {
        ValueAction::begin(self, self.read(value)?, worker)
    }

    fn order(&self, value: &str, cluster: &mut dyn Cluster) -> Result<(), InvalidValue> {
        ValueAction::order(self, self.read(value)?, cluster)
    }
}

impl Decision {
    /// Asks for this value of an action, for all workers.
    pub fn ask<A: ValueAction>(&mut self, value: &A::Value) {
        self.actions.insert(key(A::NAME, None), value.to_string());
    }

    /// Asks for this value of an action, for one incarnation of one worker.
    pub fn ask_worker<A: ValueAction>(&mut self, target: Holder, value: &A::Value) {
        self.actions.insert(key(A::NAME, Some(target)), value.to_string());
    }
}
