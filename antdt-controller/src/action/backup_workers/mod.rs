//! The action `BACKUP_WORKERS`: sets how many workers a step need not wait for.

use super::{Action, Asked};
use crate::policy::Decision;
use crate::validate::Refusal;

/// The action that sets the number of workers that a step need not wait for, in a sync mode that [takes
/// backups](antdt_core::Capabilities::takes_backups). All workers switch at one step. From then on the
/// master's [coordinator](crate::StepCoordinator) commits steps without them, or its [gate](crate::StepGate) lets an all-reduce begin
/// without their gradients.
#[doc(alias = "BACKUP_WORKERS")]
#[derive(Debug, Clone, Copy)]
pub struct BackupWorkers;

impl BackupWorkers {
    /// Name of the action in reports, decisions and plans.
    pub const NAME: &'static str = "BACKUP_WORKERS";
}

impl Action for BackupWorkers {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn dry_name(&self) -> &'static str {
        "WOULD_BACKUP_WORKERS"
    }

    fn about(&self) -> &'static str {
        "a number of workers that a step need not wait for"
    }

    fn is_asked(&self, decision: &Decision) -> bool {
        decision.backups.is_some()
    }

    fn hand_over(&self, from: &mut Decision, to: &mut Decision) {
        to.backups = from.backups.take().or(to.backups);
    }

    fn check(&self, asked: &Asked<'_>) -> Result<(), Refusal> {
        let Some(backups) = asked.decision.backups else { return Ok(()) };
        if !asked.view.mode.takes_backups() {
            return Err(Refusal::Backups { backups });
        }
        let workers = asked.live().count();
        if backups as usize >= workers.max(1) {
            return Err(Refusal::TooManyBackups { backups, workers });
        }
        Ok(())
    }
}
