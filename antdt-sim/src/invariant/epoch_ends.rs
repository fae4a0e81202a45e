//! Checks that once no fault happens any more, the job makes progress within a bound until it ends; and that
//! a job without faults ends well. A process ends only because of what happened to its own incarnation: a
//! fault that ends it, an order of the policy or of the master, or silence between it and the processes that
//! it waits for. The master does not order the end of an incarnation with which nothing was wrong. So a job
//! ends badly only for a reason that existed, and in one of the ways of [`JobEnding`]. No worker gives up by
//! itself.
//!
//! Source: liveness after the faults stop, as `TigerBeetle`'s simulator has it: our design.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use antdt_core::{Capabilities, Exit, Holder, JobTime, NodeId, Role};
use antdt_job::limits::MASTER_TIMEOUT;
use antdt_job::{Call, End, EventKind, HeadEffect, HeadEvent, Note, Reply};
use antdt_monitor::classify;
use antdt_shard::ledger::Record;

use super::Invariant;
use crate::happening::Happening;
use crate::model::Fault;
use crate::setup::Setup;

/// The bound if none is given: the longest single wait of a job is half an hour, for a process that never registers; the rest
/// is room for several, and for a batch.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// How a simulated job can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum JobEnding {
    /// Every sample is committed.
    Completed,
    /// A server ended, and its part of the model with it; or the worker ended that was to write the last
    /// checkpoint, and the whole model with it.
    ServerLost,
    /// All workers that had the model ended at once.
    ModelLost,
    /// A worker ended with an exit code that starting it again cannot help.
    Unretryable,
    /// A worker ended once more than the number of restarts allows.
    RestartsExhausted,
}

impl JobEnding {
    /// All ways in which a job can end.
    pub const ALL: [Self; 5] =
        [Self::Completed, Self::ServerLost, Self::ModelLost, Self::Unretryable, Self::RestartsExhausted];

    /// Returns the ending that a job's result describes; `None` if it is none of those that a job may have.
    pub fn of(result: &Result<(), String>) -> Option<Self> {
        let Err(why) = result else { return Some(Self::Completed) };
        let all = [
            ("all workers were lost at once, and the model with them", Self::ModelLost),
            ("and the parameters it held with it", Self::ServerLost),
            ("times already (--max-restarts)", Self::RestartsExhausted),
            (" ended: exit code ", Self::Unretryable),
        ];
        all.into_iter().find_map(|(text, ending)| why.contains(text).then_some(ending))
    }
}

impl fmt::Display for JobEnding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Completed => "completed",
            Self::ServerLost => "a server lost",
            Self::ModelLost => "the model lost",
            Self::Unretryable => "a worker failed for good",
            Self::RestartsExhausted => "restarts exhausted",
        })
    }
}

/// What happened to a life that may end it.
#[derive(Debug, Default)]
struct Harm {
    dead: bool,
    registered: bool,
    /// A fault killed it.
    crashed: bool,
    /// A fault ended it with this code.
    code: Option<i32>,
    /// Its training thread stands still, or did.
    hung: bool,
    /// It stood still or was cut off, the master did, or a message of theirs was lost: each may take the other for dead.
    silent: bool,
    /// The policy or the master ordered its end.
    ordered: bool,
    /// Its training was over, or it was drained.
    done: bool,
    /// The master has heard of its end.
    told: bool,
    /// It ended when there was no master: the next one does not know how.
    unseen: bool,
}

/// Checks that jobs end, and only for a reason; see the [module](self).
#[derive(Debug)]
pub struct EpochEnds {
    limit: Duration,
    mode: Capabilities,
    max_restarts: u32,
    calm: Option<JobTime>,
    /// When samples were acknowledged last.
    acked: JobTime,
    /// Whether anything went wrong yet.
    faulty: bool,
    ended: bool,
    /// Every life that was launched.
    harms: BTreeMap<Holder, Harm>,
    /// The newest life of each node.
    current: BTreeMap<NodeId, Holder>,
    /// Until when the master stands still, or there is none.
    away_until: JobTime,
    /// Until when there is none.
    none_until: JobTime,
    /// All-reduce: lives that are in a group or were, and have its model.
    models: BTreeSet<Holder>,
    /// The end of a process that the master heard of last.
    exit: Option<(Holder, Exit)>,
}

impl EpochEnds {
    /// Returns the invariant for a job with this setup.
    pub fn new(setup: &Setup) -> Self {
        Self {
            limit: LIMIT,
            mode: setup.sync.capabilities(),
            max_restarts: setup.max_restarts,
            calm: None,
            acked: JobTime::ZERO,
            faulty: false,
            ended: false,
            harms: BTreeMap::new(),
            current: BTreeMap::new(),
            away_until: JobTime::ZERO,
            none_until: JobTime::ZERO,
            models: BTreeSet::new(),
            exit: None,
        }
    }

    /// Returns the invariant with another bound on the time that a job may be without progress after the last
    /// fault.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    fn harm(&mut self, holder: Holder) -> &mut Harm {
        self.harms.entry(holder).or_default()
    }

    /// The life of a node that runs.
    fn running(&mut self, node: NodeId) -> Option<&mut Harm> {
        let holder = self.current.get(&node)?;
        self.harms.get_mut(holder).filter(|harm| !harm.dead)
    }

    fn fault(&mut self, at: JobTime, fault: Fault) {
        self.faulty |= !matches!(fault, Fault::CrashAll(_));
        match fault {
            Fault::Crash(node) => self.running(node).into_iter().for_each(|harm| harm.crashed = true),
            // It leaves on order, and may not have left when its platform ends it.
            Fault::Preempt(node, _) => self.running(node).into_iter().for_each(|harm| {
                (harm.ordered, harm.crashed) = (true, true);
            }),
            Fault::Hang(node, _) => self.running(node).into_iter().for_each(|harm| harm.hung = true),
            Fault::Exit(node, code) => {
                self.running(node).into_iter().for_each(|harm| harm.code = Some(code));
            }
            Fault::Pause(node, _) | Fault::Cut(node, _) => {
                self.running(node).into_iter().for_each(|harm| harm.silent = true);
            }
            Fault::PauseMaster(lasting) => {
                self.away_until = self.away_until.max(at + lasting);
                self.harms.values_mut().for_each(|harm| harm.silent = true);
            }
            // Every client finds the service again, and a call made twice counts once. The master may end later.
            // Of the end of all processes the master cannot hear. Servers that hand over end by an order.
            Fault::RestartLedger
            | Fault::Duplicate(..)
            | Fault::RestartMaster(..)
            | Fault::ScaleServers(_)
            | Fault::CrashAll(_) => {}
        }
    }

    /// The master ends, and there is none until then.
    fn master_ended(&mut self, at: JobTime, until: JobTime) {
        (self.away_until, self.none_until) = (self.away_until.max(until), until);
        // Nodes that wait for longer than that give it up.
        let long = until.since(at) * 2 >= MASTER_TIMEOUT;
        self.harms.values_mut().for_each(|harm| {
            harm.silent |= long;
            harm.unseen |= harm.dead && !harm.told;
        });
    }

    /// The master wants this life to end.
    fn kill(&mut self, holder: Holder) -> Result<(), String> {
        let harm = self.harm(holder);
        // One that never registers is not waited for without end.
        let reason = harm.dead || harm.silent || harm.hung || harm.ordered || !harm.registered;
        harm.ordered = true;
        self.models.remove(&holder);
        if reason || self.lost_a_server(holder) {
            Ok(())
        } else {
            Err(format!("{holder} is killed, and nothing was wrong with it"))
        }
    }

    /// Whether a worker may have to do with a server that does not answer.
    fn lost_a_server(&self, holder: Holder) -> bool {
        let mut servers = self.harms.iter().filter(|(holder, _)| holder.node.role == Role::Server);
        holder.node.role == Role::Worker
            && self.mode.needs_servers()
            && servers.any(|(_, harm)| harm.dead || harm.silent)
    }

    /// The job goes back: servers, whose parameters are too new, are started again, and so are workers that have seen the end of the
    /// data. If that is because another master goes on, also workers with the model, and those that it does not know to be there.
    fn goes_back(&mut self, taken_over: bool) {
        let groups = self.mode.forms_groups();
        for (holder, harm) in &mut self.harms {
            let unknown = !harm.registered || groups;
            harm.ordered |= holder.node.role == Role::Server || harm.done || (taken_over && unknown);
        }
        self.models.clear();
    }

    /// The master hears of the end of a life.
    fn told_of_end(&mut self, holder: Holder, exit: Exit) -> Result<(), String> {
        self.exit = Some((holder, exit));
        self.harm(holder).told = true;
        if self.is_matched(holder, exit) {
            Ok(())
        } else {
            Err(format!("{holder} ended ({exit}), and nothing happened to it that ends it so"))
        }
    }

    fn worker(&mut self, holder: Holder, reply: &Reply, call: &Call) -> Result<(), String> {
        if matches!(reply, Reply::Entered) && self.mode.forms_groups() {
            self.models.insert(holder);
        }
        if let Call::Stop(end) = call {
            self.models.remove(&holder);
            self.harm(holder).done = true;
            if let End::Failed(why) = end {
                return Err(format!("{holder} gives up: {why}"));
            }
        }
        Ok(())
    }

    /// Whether the end of a life is one that what happened to it can bring about.
    fn is_matched(&self, holder: Holder, exit: Exit) -> bool {
        let Some(harm) = self.harms.get(&holder) else { return false };
        if harm.code.is_some_and(|code| classify(Some(code), None) == exit) {
            return true;
        }
        let worker = holder.node.role == Role::Worker;
        match exit {
            _ if exit == classify(None, None) => harm.unseen,
            Exit::Killed { .. } => harm.crashed || harm.ordered,
            Exit::Retryable { code: Exit::CODE_RETRY } => {
                harm.silent || harm.ordered || self.lost_a_server(holder)
            }
            Exit::Finished => worker && harm.done,
            Exit::Retryable { .. }
            | Exit::Unretryable { .. }
            | Exit::OutOfMemory
            | Exit::Silent
            | Exit::NotStarted => false,
        }
    }

    /// Whether the job may end so.
    fn justified(&self, result: &Result<(), String>) -> Result<(), String> {
        let Err(why) = result else { return Ok(()) };
        let wrong = |what: &str| Err(format!("{what}, and the job ends with: {why}"));
        if !self.faulty {
            return wrong("nothing went wrong");
        }
        let Some(ending) = JobEnding::of(result) else { return wrong("it is no way in which a job may end") };
        if ending == JobEnding::ModelLost {
            return match self.models.first() {
                Some(holder) => wrong(&format!("{holder} has the model")),
                None if self.mode.needs_servers() => wrong("the servers have the model"),
                None => Ok(()),
            };
        }
        // That it ended for a reason was seen when the master heard of it.
        let Some((holder, exit)) = self.exit else { return wrong("no process ended") };
        let lives = self.harms.keys().filter(|life| life.node == holder.node).count();
        let fits = match ending {
            JobEnding::ServerLost => {
                holder.node.role == Role::Server || self.harms.get(&holder).is_some_and(|harm| harm.done)
            }
            JobEnding::Unretryable => matches!(exit, Exit::Unretryable { .. }),
            JobEnding::RestartsExhausted => lives > self.max_restarts as usize,
            JobEnding::Completed | JobEnding::ModelLost => false,
        };
        let max = self.max_restarts;
        if fits {
            Ok(())
        } else {
            wrong(&format!("{holder} ended ({exit}), of {lives} lives, with {max} restarts allowed"))
        }
    }
}

impl Invariant for EpochEnds {
    fn name(&self) -> &'static str {
        "epoch_ends"
    }

    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), String> {
        match what {
            Happening::Fault(fault) => self.fault(at, *fault),
            Happening::Lost(holder) => {
                self.faulty = true;
                self.harm(*holder).silent = true;
            }
            Happening::Born(holder) => {
                self.current.insert(holder.node, *holder);
                self.harm(*holder).silent |= at < self.away_until;
            }
            Happening::Effect(HeadEffect::Kill(holder)) => self.kill(*holder)?,
            Happening::Effect(HeadEffect::Note {
                note: Note::Action { kind: "KILL_RESTART", target, .. },
                ..
            }) => {
                let mut current = self.current.values().copied();
                if let Some(holder) = current.find(|holder| holder.node.to_string() == *target) {
                    self.harm(holder).ordered = true;
                }
            }
            // A life that was given up has it for no other.
            Happening::Effect(HeadEffect::LedgerLost(holder)) => {
                self.models.remove(holder);
            }
            Happening::Died(holder) => {
                self.models.remove(holder);
                let unseen = at < self.none_until;
                let harm = self.harm(*holder);
                harm.dead = true;
                harm.unseen |= unseen;
            }
            Happening::AllCrashed => self.ended = true,
            Happening::MasterEnded(until) => self.master_ended(at, *until),
            Happening::TakenOver => self.goes_back(true),
            Happening::Effect(HeadEffect::Note {
                note: Note::Event { node: None, kind: EventKind::Rollback, .. },
                ..
            }) => self.goes_back(false),
            Happening::Head(HeadEvent::Register(registration), _) => {
                self.harm(registration.info.holder).registered = true;
            }
            Happening::Head(HeadEvent::Exited(holder, exit, _), _) => {
                self.told_of_end(*holder, *exit)?;
            }
            Happening::Worker(holder, reply, call) => self.worker(*holder, reply, call)?,
            Happening::Record(Record::Acked { .. }) => self.acked = at,
            Happening::Calm => {
                self.calm.get_or_insert(at);
            }
            Happening::Ended(result) => {
                self.ended = true;
                self.justified(result)?;
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
    use antdt_core::Incarnation;
    use antdt_job::HeadAnswer;

    use super::super::testing::{History, IDLE, action, holder, life, registered};
    use super::*;

    const LOST: &str = "all workers were lost at once, and the model with them";

    fn history() -> History<EpochEnds> {
        History::new(
            EpochEnds::new(&Setup { max_restarts: 1, ..Setup::default() }).within(Duration::from_secs(60)),
        )
    }

    const KILLED: Exit = Exit::Killed { signal: 9 };
    const NEVER: Exit = Exit::Unretryable { code: Exit::CODE_NEVER };
    const RETRY: Exit = Exit::Retryable { code: Exit::CODE_RETRY };

    /// The master hears that a life ended.
    fn exited(history: &mut History<EpochEnds>, life: Holder, exit: Exit) {
        history.saw(&Happening::Died(life)).head(&HeadEvent::Exited(life, exit, vec![]), &HeadAnswer::Noted);
    }

    /// A worker begins to run and is crashed, and the master hears of it.
    fn crashed(history: &mut History<EpochEnds>, incarnation: u32) {
        let life = life(0, incarnation);
        history.saw(&Happening::Born(life)).saw(&Happening::Fault(Fault::Crash(life.node)));
        exited(history, life, KILLED);
    }

    /// Every end of a life of the first worker, after this has happened to it.
    fn ends_after(what: &[Happening<'_>], exit: Exit) -> History<EpochEnds> {
        let mut history = history();
        history.saw(&Happening::Born(holder(0)));
        for what in what {
            history.saw(what);
        }
        exited(&mut history, holder(0), exit);
        history
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
    fn a_process_ends_only_by_its_own_faults() {
        let (node, time) = (NodeId::worker(0), Duration::from_secs(1));
        let fault = Happening::Fault;
        for (what, exit) in [
            (fault(Fault::Crash(node)), KILLED),
            (fault(Fault::Exit(node, Exit::CODE_NEVER)), NEVER),
            (fault(Fault::Exit(node, Exit::CODE_RETRY)), RETRY),
            (fault(Fault::Exit(node, 137)), KILLED),
            (fault(Fault::Pause(node, time)), RETRY),
            (fault(Fault::Cut(node, time)), RETRY),
            (fault(Fault::PauseMaster(time)), RETRY),
            (Happening::Lost(holder(0)), RETRY),
        ] {
            ends_after(&[what], exit).holds();
        }
        // The same ends, by faults of another kind, of other nodes, and by none.
        for (what, exit) in [
            (fault(Fault::Crash(NodeId::worker(1))), KILLED),
            (fault(Fault::Pause(node, time)), KILLED),
            (fault(Fault::Crash(node)), NEVER),
            (fault(Fault::Exit(node, 1)), NEVER),
            (fault(Fault::Exit(NodeId::worker(1), Exit::CODE_NEVER)), NEVER),
            (fault(Fault::RestartLedger), RETRY),
            (Happening::Lost(holder(1)), RETRY),
            (Happening::Calm, Exit::Finished),
        ] {
            ends_after(&[what], exit).fails("nothing happened to it that ends it so");
        }
    }

    #[test]
    fn a_fault_of_a_life_is_no_reason_for_the_next_one() {
        let mut history = history();
        crashed(&mut history, 0);
        history.saw(&Happening::Born(life(0, 1)));
        exited(&mut history, life(0, 1), KILLED);
        history.fails("worker-0#1 ended");
    }

    #[test]
    fn a_server_is_given_up_by_the_workers_that_wait_for_it_and_ends_only_by_a_fault() {
        let setup = Setup { sync: "ps-asp".parse().unwrap(), servers: 1, ..Setup::default() };
        let server = Holder::new(NodeId::server(0), Incarnation(0));
        let begun = || {
            let mut history = History::new(EpochEnds::new(&setup));
            history.saw(&Happening::Born(server)).saw(&Happening::Born(holder(0)));
            history
        };
        let mut cut = begun();
        cut.saw(&Happening::Fault(Fault::Cut(server.node, Duration::from_secs(9))));
        exited(&mut cut, holder(0), RETRY);
        cut.holds();
        let mut healthy = begun();
        exited(&mut healthy, holder(0), RETRY);
        healthy.fails("worker-0#0 ended (exit code 75)");
        let gone = "server-0 ended (killed by signal 9), and the parameters it held with it";
        let mut crashed = begun();
        crashed.saw(&Happening::Fault(Fault::Crash(server.node)));
        exited(&mut crashed, server, KILLED);
        crashed.ended(Err(gone.to_owned())).holds();
        let mut left = begun();
        exited(&mut left, server, Exit::Finished);
        left.fails("server-0#0 ended (finished)");
    }

    #[test]
    fn no_healthy_node_is_killed() {
        let kill = HeadEffect::Kill(holder(0));
        let begun = || {
            let mut history = history();
            let (event, answer) = registered(holder(0), 1, 256);
            history.saw(&Happening::Born(holder(0))).head(&event, &answer);
            history
        };
        begun().effect(&kill).fails("worker-0#0 is killed, and nothing was wrong with it");
        let mut silent = begun();
        silent.saw(&Happening::Lost(holder(0))).effect(&kill);
        exited(&mut silent, holder(0), KILLED);
        silent.holds();
        let mut slow = begun();
        slow.effect(&action(0, "KILL_RESTART", "worker-0")).effect(&kill);
        exited(&mut slow, holder(0), KILLED);
        slow.holds();
        history().saw(&Happening::Born(holder(0))).effect(&kill).holds();
    }

    #[test]
    fn another_master_ends_no_worker_whose_model_is_on_servers_and_knows_no_end_that_it_could_have_seen() {
        let setup =
            Setup { sync: "ps-asp".parse().unwrap(), servers: 1, goes_back: true, ..Setup::default() };
        let begun = |lasting: u64| {
            let mut history = History::new(EpochEnds::new(&setup));
            let (event, answer) = registered(holder(0), 1, 256);
            history.saw(&Happening::Born(holder(0))).head(&event, &answer);
            history.saw(&Happening::MasterEnded(JobTime::ZERO + Duration::from_secs(lasting)));
            history
        };
        let kill = HeadEffect::Kill(holder(0));
        begun(5).at(5).saw(&Happening::TakenOver).effect(&kill).fails("nothing was wrong with it");
        // It gives a master up that does not come back.
        begun(50).at(50).saw(&Happening::TakenOver).effect(&kill).holds();
        let unknown = classify(None, None);
        let mut dead = begun(5);
        dead.at(4).saw(&Happening::Died(holder(0))).at(5).saw(&Happening::TakenOver);
        exited(&mut dead, holder(0), unknown);
        dead.holds();
        let mut late = begun(5);
        late.at(5).saw(&Happening::TakenOver).at(6).saw(&Happening::Died(holder(0)));
        exited(&mut late, holder(0), unknown);
        late.fails("nothing happened to it that ends it so");
    }

    #[test]
    fn a_job_ends_badly_only_for_a_reason_that_was_there() {
        let often = "worker-0 ended: killed by signal 9; it was restarted 1 times already (--max-restarts)";
        let mut once = history();
        crashed(&mut once, 0);
        once.ended(Err(often.to_owned())).fails("of 1 lives, with 1 restarts allowed");
        let mut twice = history();
        crashed(&mut twice, 0);
        crashed(&mut twice, 1);
        twice.ended(Err(often.to_owned())).holds();
        let never = Fault::Exit(NodeId::worker(0), Exit::CODE_NEVER);
        let mut never = ends_after(&[Happening::Fault(never)], NEVER);
        never.ended(Err("worker-0 ended: exit code 78".to_owned())).holds();
        let mut other = history();
        crashed(&mut other, 0);
        other.ended(Err("no batch sizes fit 3 workers".to_owned())).fails("no batch sizes fit");
    }

    #[test]
    fn every_ending_is_known_by_its_words() {
        let of = |why: &str| JobEnding::of(&Err(why.to_owned()));
        assert_eq!(JobEnding::of(&Ok(())), Some(JobEnding::Completed));
        assert_eq!(of(LOST), Some(JobEnding::ModelLost));
        assert_eq!(of("worker-0 ended: exit code 78; it said: no such file"), Some(JobEnding::Unretryable));
        let often = "worker-0 ended: exit code 75; it was restarted 3 times already (--max-restarts)";
        assert_eq!(of(often), Some(JobEnding::RestartsExhausted));
        assert_eq!(of("the job is not over after 100 s"), None);
    }

    #[test]
    fn the_model_is_not_lost_while_a_worker_has_it() {
        let mut history = history();
        history.worker(holder(1), &Reply::Entered, &IDLE);
        crashed(&mut history, 0);
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
