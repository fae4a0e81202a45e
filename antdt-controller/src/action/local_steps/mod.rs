//! The action `LOCAL_STEPS`: sets how many steps each worker takes between two averages.

use antdt_core::LocalSteps;

use super::{Action, Asked};
use crate::policy::Decision;
use crate::validate::Refusal;

/// The action that sets the number of steps between two averages, in a sync mode that [averages
/// models](antdt_core::LocalSteps::Several).
#[derive(Debug, Clone, Copy)]
pub struct AdjustLocalSteps;

impl AdjustLocalSteps {
    /// Name of the action in reports, decisions and plans.
    pub const NAME: &'static str = "LOCAL_STEPS";
}

impl Action for AdjustLocalSteps {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn dry_name(&self) -> &'static str {
        "WOULD_LOCAL_STEPS"
    }

    fn about(&self) -> &'static str {
        "a number of steps that each worker takes between two averages"
    }

    fn is_asked(&self, decision: &Decision) -> bool {
        decision.local_steps.is_some()
    }

    fn hand_over(&self, from: &mut Decision, to: &mut Decision) {
        to.local_steps = from.local_steps.take().or(to.local_steps);
    }

    fn check(&self, asked: &Asked<'_>) -> Result<(), Refusal> {
        let mode = asked.view.mode.local_steps;
        match asked.decision.local_steps {
            Some(steps) if steps == 0 || mode == LocalSteps::One => Err(Refusal::LocalSteps { steps, mode }),
            Some(_) | None => Ok(()),
        }
    }
}
