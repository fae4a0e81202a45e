//! Checks that every control tick is answered, that every action has a reason, and that no decision of a
//! policy that ships is refused.
//!
//! Source: our design. The dispatcher refuses a decision that would break the job.

use antdt_core::JobTime;
use antdt_job::{HeadAnswer, HeadEffect, HeadEvent, Note};

use super::Invariant;
use crate::happening::Happening;

/// Checks that every control tick gets a decision with a reason; see the [module](self).
#[derive(Debug, Default)]
pub struct PolicyIsTotal;

impl Invariant for PolicyIsTotal {
    fn name(&self) -> &'static str {
        "policy_is_total"
    }

    fn saw(&mut self, _at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Head(HeadEvent::Tick(_), answer) if !matches!(answer, HeadAnswer::Seen(_)) => {
                Err(format!("a tick is answered with {answer:?}"))
            }
            Happening::Effect(HeadEffect::Note { note: Note::Action { kind, target, reason }, .. }) => {
                if reason.is_empty() {
                    return Err(format!("{kind} of {target} has no reason"));
                }
                if *kind == "REFUSED" { Err(format!("a decision is refused: {reason}")) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_job::Seen;

    use super::super::testing::{History, action};
    use super::*;

    #[test]
    fn a_decision_is_made_and_stands() {
        let mut history = History::new(PolicyIsTotal);
        history.head(&HeadEvent::Tick(None), &HeadAnswer::Seen(Seen::default()));
        history.effect(&action(1, "ADJUST_BS", "all")).holds();
        history.effect(&action(1, "REFUSED", "all")).fails("a decision is refused");
        History::new(PolicyIsTotal)
            .head(&HeadEvent::Tick(None), &HeadAnswer::Noted)
            .fails("a tick is answered with Noted");
    }
}
