//! Once nothing goes wrong any more the job gets on, with no longer wait than a bound, until it ends; and one in which nothing ever went wrong ends well. Whatever
//! went wrong, a job ends badly only for a reason that was there: a server is gone, a worker ended in a way that starting
//! it again cannot help, or was started as often as it may be, or all those who have the model are gone. And no worker
//! gives up by itself.
//!
//! Source: liveness after the faults stop, as `TigerBeetle`'s simulator has it: our design.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use antdt_core::{Capabilities, Exit, Holder, JobTime, NodeId, Role};
use antdt_job::{Call, End, HeadEffect, HeadEvent, Reply};
use antdt_shard::ledger::Record;

use super::Invariant;
use crate::happening::Happening;
use crate::setup::Setup;

/// The bound if none is given: the longest single wait of a job is half an hour, for a process that never registers; the rest
/// is room for several, and for a batch.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// See the [module](self).
#[derive(Debug)]
pub struct EpochEnds {
    limit: Duration,
    mode: Capabilities,
    max_restarts: u32,
    calm: Option<JobTime>,
    /// When samples were acknowledged last.
    acked: JobTime,
    faults: u64,
    ended: bool,
    /// Lives of each node that were launched.
    lives: BTreeMap<NodeId, u32>,
    /// All-reduce: lives that are in a group or were, and have its model.
    models: BTreeSet<Holder>,
    /// The end of a process that the master heard of last.
    exit: Option<(Holder, Exit)>,
}

impl EpochEnds {
    /// Of this job.
    pub fn new(setup: &Setup) -> Self {
        Self {
            limit: LIMIT,
            mode: setup.sync.capabilities(),
            max_restarts: setup.max_restarts,
            calm: None,
            acked: JobTime::ZERO,
            faults: 0,
            ended: false,
            lives: BTreeMap::new(),
            models: BTreeSet::new(),
            exit: None,
        }
    }

    /// With another bound on the time in which nothing gets on after the last fault.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Whether the job may end with this error.
    fn justified(&self, why: &str) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}, and the job ends with: {why}"));
        if self.faults == 0 {
            return wrong("nothing went wrong");
        }
        if why == "all workers were lost at once, and the model with them" {
            return match self.models.first() {
                Some(holder) => wrong(&format!("{holder} has the model")),
                None if self.mode.needs_servers() => wrong("the servers have the model"),
                None => Ok(()),
            };
        }
        let Some((holder, exit)) = self.exit else { return wrong("no process ended") };
        let lives = self.lives.get(&holder.node).copied().unwrap_or_default();
        if holder.node.role == Role::Server || matches!(exit, Exit::Unretryable { .. }) {
            return Ok(());
        }
        if lives <= self.max_restarts || !why.contains("times already") {
            let max = self.max_restarts;
            return wrong(&format!("{holder} ended ({exit}), of {lives} lives, with {max} restarts allowed"));
        }
        Ok(())
    }
}

impl Invariant for EpochEnds {
    fn name(&self) -> &'static str {
        "epoch_ends"
    }

    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Fault(_) => self.faults += 1,
            Happening::Effect(HeadEffect::Kill(holder)) => {
                // Whoever is killed was silent or slow, which messages that are lost can bring about.
                self.faults += 1;
                self.models.remove(holder);
            }
            Happening::Effect(HeadEffect::Launch(holder)) => *self.lives.entry(holder.node).or_default() += 1,
            // Who is given up has it for nobody.
            Happening::Died(holder) | Happening::Effect(HeadEffect::LedgerLost(holder)) => {
                self.models.remove(holder);
            }
            Happening::Head(HeadEvent::Exited(holder, exit, _), _) => self.exit = Some((*holder, *exit)),
            Happening::Worker(holder, reply, call) => {
                if matches!(reply, Reply::Entered) && self.mode.forms_groups() {
                    self.models.insert(*holder);
                }
                if let Call::Stop(end) = call {
                    self.models.remove(holder);
                    if let End::Failed(why) = end {
                        return Err(format!("{holder} gives up: {why}"));
                    }
                }
            }
            Happening::Record(Record::Acked { .. }) => self.acked = at,
            Happening::Calm => {
                self.calm.get_or_insert(at);
            }
            Happening::Ended(result) => {
                self.ended = true;
                if let Err(why) = result {
                    self.justified(why)?;
                }
            }
            _ => {}
        }
        match self.calm {
            Some(calm) if !self.ended && at.since(calm.max(self.acked)) > self.limit => {
                let (limit, acked) = (self.limit, self.acked);
                Err(format!(
                    "nothing has gone wrong since {calm}, nothing was acknowledged since {acked}, and after {limit:?} the \
                     job has not ended"
                ))
            }
            _ => Ok(()),
        }
    }

    fn finish(&mut self, at: JobTime) -> Result<(), String> {
        match self.calm {
            Some(calm) if !self.ended => Err(format!(
                "nothing has gone wrong since {calm}; nothing happens after {at}, and the job has not ended"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use antdt_job::HeadAnswer;

    use super::super::testing::{History, IDLE, holder, life};
    use super::*;
    use crate::model::Fault;

    const LOST: &str = "all workers were lost at once, and the model with them";

    fn history() -> History<EpochEnds> {
        History::new(
            EpochEnds::new(&Setup { max_restarts: 1, ..Setup::default() }).within(Duration::from_secs(60)),
        )
    }

    /// A worker was launched and crashed, and the master heard of it.
    fn crashed(history: &mut History<EpochEnds>, incarnation: u32, exit: Exit) {
        let life = life(0, incarnation);
        history.effect(&HeadEffect::Launch(life)).saw(&Happening::Fault(Fault::Crash(life.node)));
        history.saw(&Happening::Died(life)).head(&HeadEvent::Exited(life, exit, vec![]), &HeadAnswer::Noted);
    }

    #[test]
    fn after_the_faults_the_job_ends() {
        let crash = Happening::Fault(Fault::Crash(NodeId::worker(0)));
        history()
            .saw(&crash)
            .at(10)
            .saw(&Happening::Calm)
            .at(70)
            .ended(Err(LOST.to_owned()))
            .finish()
            .holds();
        history()
            .saw(&Happening::Calm)
            .at(61)
            .saw(&Happening::Born(holder(0)))
            .fails("the job has not ended");
        // A long job is none that hangs.
        let mut long = history();
        long.saw(&Happening::Calm);
        for minute in 1..=100 {
            long.at(60 * minute).recorded_ack(0, minute);
        }
        long.at(6000 + 61).saw(&Happening::Born(holder(0))).fails("nothing was acknowledged since 6000.000s");
        history().saw(&Happening::Calm).at(5).finish().fails("nothing happens after 5.000s");
        history().saw(&Happening::Calm).ended(Err("broken".to_owned())).fails("nothing went wrong");
    }

    #[test]
    fn a_job_ends_badly_only_for_a_reason_that_was_there() {
        let killed = Exit::Killed { signal: 9 };
        let often = "worker-0 ended: killed by signal 9; it was restarted 1 times already (--max-restarts)";
        let mut once = history();
        crashed(&mut once, 0, killed);
        once.ended(Err(often.to_owned())).fails("of 1 lives, with 1 restarts allowed");
        let mut twice = history();
        crashed(&mut twice, 0, killed);
        crashed(&mut twice, 1, killed);
        twice.ended(Err(often.to_owned())).holds();
        let mut never = history();
        crashed(&mut never, 0, Exit::Unretryable { code: 78 });
        never.ended(Err("worker-0 ended: exit code 78".to_owned())).holds();
        let mut other = history();
        crashed(&mut other, 0, killed);
        other.ended(Err("no batch sizes fit 3 workers".to_owned())).fails("no batch sizes fit");
    }

    #[test]
    fn the_model_is_not_lost_while_somebody_has_it() {
        let mut history = history();
        history.worker(holder(1), &Reply::Entered, &IDLE);
        crashed(&mut history, 0, Exit::Killed { signal: 9 });
        history.ended(Err(LOST.to_owned())).fails("worker-1#0 has the model");
    }

    #[test]
    fn a_worker_does_not_give_up() {
        let gives_up = Call::Stop(End::Failed("the reply Slept came".to_owned()));
        history()
            .saw(&Happening::Fault(Fault::RestartLedger))
            .worker(holder(0), &Reply::Slept, &gives_up)
            .fails("worker-0#0 gives up");
    }
}
