//! Several policies as one: `nd+backup`, `nd+dd`.
//!
//! Each kind of action is taken by one policy only: the last one in the name among those that [can
//! take](Policy::actions) it. Under `nd+dd`, for example, `dd` sets the batch sizes and `nd` restarts
//! workers. All other actions that a policy asks for are dropped. Policies are asked in the order of the
//! name, and each one sees the job as the policies before it would change it: `backup` judges the batch sizes
//! that `nd` has just chosen. The result is one decision, which is carried out or refused as a whole.
//!
//! Source: our design.

use std::borrow::Cow;
use std::collections::BTreeMap;

use antdt_core::registry::BuildError;
use antdt_core::{ActionOutcome, Capabilities, ClusterView, InvalidValue, JobTime};

use super::{Decision, Policy, REGISTRY, Seat, Split};
use crate::action::{self, AdjustBs};
use crate::apportion::ApportionError;
use crate::budget::RestartBudget;

/// What stands between the names of policies, and between a policy's name and that of a setting of it.
const PLUS: char = '+';
const DOT: char = '.';

/// Builds the policy of this name, or one policy of several names joined by `+`. `settings` are texts by
/// name; in a joined policy each setting begins with the name of its policy, as in `nd.error-rate`. Missing
/// settings have their defaults.
///
/// ```
/// use antdt_controller::policy;
/// assert_eq!(policy::build("nd+backup", &Default::default())?.name(), "nd+backup");
/// # Ok::<(), antdt_core::registry::BuildError>(())
/// ```
///
/// # Errors
/// If there is no such policy or setting, a value is invalid, or one of several policies would have no action
/// left to decide on.
pub fn build(name: &str, settings: &BTreeMap<String, String>) -> Result<Box<dyn Policy>, BuildError> {
    if !name.contains(PLUS) {
        return REGISTRY.build(name, settings);
    }
    let names: Vec<&str> = name.split(PLUS).collect();
    let mut parts = Vec::new();
    for part in &names {
        let own = |(key, text): (&String, &String)| {
            let (of, setting) = key.split_once(DOT)?;
            (of == *part).then(|| (setting.to_owned(), text.clone()))
        };
        parts.push(REGISTRY.build(part, &settings.iter().filter_map(own).collect())?);
    }
    let is_of_one = |key: &&String| key.split_once(DOT).is_some_and(|(of, _)| names.contains(&of));
    if let Some(unknown) = settings.keys().find(|key| !is_of_one(key)) {
        let expected = format!("a setting of one of {}, such as {}{DOT}…", names.join(", "), names[0]);
        return Err(
            InvalidValue::new(format!("[policy.{name}] {unknown}"), &settings[unknown], expected).into()
        );
    }
    Ok(Box::new(Composed::new(parts)?))
}

/// Several policies joined into one; each action belongs to the last policy that decides on it.
///
/// The [module](self) has the rules.
#[derive(Debug, Clone)]
pub struct Composed {
    name: String,
    parts: Vec<Box<dyn Policy>>,
}

impl Composed {
    /// Joins these policies into one.
    ///
    /// # Errors
    /// If the list is empty, a policy occurs twice, or a policy has no action left to decide on, because all
    /// of its actions belong to later policies.
    pub fn new(parts: Vec<Box<dyn Policy>>) -> Result<Self, InvalidValue> {
        let names: Vec<&str> = parts.iter().map(|part| part.name()).collect();
        let name = names.join("+");
        let refused = |expected: String| Err(InvalidValue::new("--policy", &name, expected));
        if parts.is_empty() {
            return refused("at least one policy".to_owned());
        }
        for (at, part) in parts.iter().enumerate() {
            if names[..at].contains(&part.name()) {
                return refused(format!("each policy once; {} is named again", part.name()));
            }
            let later = &parts[at + 1..];
            let is_left = |kind: &&str| !later.iter().any(|other| other.actions().contains(kind));
            if !part.actions().iter().any(is_left) {
                return refused(format!(
                    "something for {0} to decide, which the policies after it leave none; leave {0} out, or name it last",
                    part.name()
                ));
            }
        }
        Ok(Self { name, parts })
    }

    /// The policy that this action belongs to.
    fn owner(&self, action: &str) -> Option<usize> {
        self.parts.iter().rposition(|part| part.actions().contains(&action))
    }
}

/// Takes out of a decision what these actions are asked for.
fn taken(decision: &mut Decision, is_own: impl Fn(&str) -> bool) -> Decision {
    let mut own = Decision::default();
    for action in action::REGISTRY.entries().into_iter().filter(|action| is_own(action.name())) {
        action.hand_over(decision, &mut own);
    }
    own
}

/// The job as it would be with these batch sizes and backups.
fn with(view: &mut ClusterView, decision: &Decision) {
    if let Some(sizes) = &decision.batch_sizes {
        for worker in &mut view.workers {
            worker.batch_size = sizes.get(&worker.id).copied().unwrap_or(worker.batch_size);
            worker.micro_batches = decision.accumulation.get(&worker.id).copied().unwrap_or(1);
        }
    }
    if let Some(backups) = decision.backups.filter(|_| view.mode.takes_backups()) {
        view.mode = view.mode.with_backups(backups);
    }
}

impl Policy for Composed {
    fn name(&self) -> &str {
        &self.name
    }

    /// If all of them are idle.
    fn idle_in(&self, mode: Capabilities) -> Option<String> {
        let reasons: Option<Vec<String>> = self.parts.iter().map(|part| part.idle_in(mode)).collect();
        Some(reasons?.join("; "))
    }

    fn decide(&mut self, now: JobTime, view: &ClusterView, budget: &RestartBudget) -> Decision {
        let owners: BTreeMap<&str, usize> = action::REGISTRY
            .names()
            .into_iter()
            .filter_map(|action| Some((action, self.owner(action)?)))
            .collect();
        let mut view = Cow::Borrowed(view);
        let mut whole = Decision::default();
        let (mut idle, mut planned) = (Vec::new(), 0);
        for (at, part) in self.parts.iter_mut().enumerate() {
            let mut decided = part.decide(now, &view, budget);
            let acted = decided.acts();
            let mut own = taken(&mut decided, |action| owners.get(action) == Some(&at));
            if !own.acts() {
                // What it would have done is not what is not done.
                idle.extend(decided.reasons.into_iter().filter(|_| !acted));
                continue;
            }
            let plans = own.plans();
            planned += usize::from(plans);
            // What two plans do together was forecast by neither.
            whole.forecast =
                decided.forecast.filter(|_| plans && planned == 1).or(whole.forecast.filter(|_| !plans));
            if plans {
                with(view.to_mut(), &own);
            }
            for action in action::REGISTRY.entries() {
                action.hand_over(&mut own, &mut whole);
            }
            whole.reasons.extend(decided.reasons);
        }
        if !whole.acts() {
            whole.reasons.extend(idle);
        }
        whole
    }

    /// As the policy splits that batch sizes belong to.
    fn split(&self, total: u32, seats: &[Seat]) -> Result<Split, ApportionError> {
        match self.owner(AdjustBs::NAME) {
            Some(owner) => self.parts[owner].split(total, seats),
            None => super::split_by(None, total, seats),
        }
    }

    fn on_outcome(&mut self, now: JobTime, outcome: &ActionOutcome) {
        self.parts.iter_mut().for_each(|part| part.on_outcome(now, outcome));
    }

    fn settings(&self) -> BTreeMap<String, String> {
        let of = |part: &dyn Policy| {
            let name = part.name().to_owned();
            part.settings().into_iter().map(move |(key, text)| (format!("{name}{DOT}{key}"), text))
        };
        self.parts.iter().flat_map(|part| of(&**part)).collect()
    }

    fn clone_box(&self) -> Box<dyn Policy> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests;
