//! What went wrong in random worlds, and how they ended: a suite that never sees something has not tested it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use antdt_core::{Holder, JobTime};
use antdt_job::HeadEffect;

use crate::Violation;
use crate::happening::{Happening, Observer};
use crate::invariant::epoch_ends::JobEnding;
use crate::model::Fault;

/// Kind of a fault that the chaos suite injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The process of a node ends at once; see [`Fault::Crash`].
    Crash,
    /// The process of a node ends with an exit code; see [`Fault::Exit`].
    Exit,
    /// The platform takes a process back; see [`Fault::Preempt`].
    Preempt,
    /// The training thread of a worker hangs; see [`Fault::Hang`].
    Hang,
    /// A process stops for a while; see [`Fault::Pause`].
    Pause,
    /// The master stops for a while; see [`Fault::PauseMaster`].
    PauseMaster,
    /// A node is cut off from the network; see [`Fault::Cut`].
    Cut,
    /// Messages of a node arrive twice; see [`Fault::Duplicate`].
    Duplicate,
    /// The shard service restarts; see [`Fault::RestartLedger`].
    RestartLedger,
    /// Another master takes over; see [`Fault::RestartMaster`].
    RestartMaster,
    /// The number of servers changes; see [`Fault::ScaleServers`].
    ScaleServers,
    /// A message is lost.
    Lost,
    /// A message arrives before an earlier one of the same node.
    Overtaken,
}

impl FaultKind {
    /// All kinds of faults.
    pub const ALL: [Self; 13] = [
        Self::Crash,
        Self::Exit,
        Self::Preempt,
        Self::Hang,
        Self::Pause,
        Self::PauseMaster,
        Self::Cut,
        Self::Duplicate,
        Self::RestartLedger,
        Self::RestartMaster,
        Self::ScaleServers,
        Self::Lost,
        Self::Overtaken,
    ];

    /// The kind of a fault; `None` if it ends the world.
    const fn of(fault: &Fault) -> Option<Self> {
        Some(match *fault {
            // The suite of jobs that are resumed draws it, in each of them.
            Fault::CrashAll(_) => return None,
            Fault::Crash(_) => Self::Crash,
            Fault::Exit(..) => Self::Exit,
            Fault::Preempt(..) => Self::Preempt,
            Fault::Hang(..) => Self::Hang,
            Fault::Duplicate(..) => Self::Duplicate,
            Fault::Pause(..) => Self::Pause,
            Fault::PauseMaster(_) => Self::PauseMaster,
            Fault::Cut(..) => Self::Cut,
            Fault::RestartLedger => Self::RestartLedger,
            Fault::RestartMaster(..) => Self::RestartMaster,
            Fault::ScaleServers(_) => Self::ScaleServers,
        })
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Crash => "crash",
            Self::Exit => "exit",
            Self::Preempt => "preemption",
            Self::Hang => "hang",
            Self::Duplicate => "duplicated messages",
            Self::Overtaken => "overtaken message",
            Self::Pause => "pause",
            Self::PauseMaster => "pause of the master",
            Self::Cut => "cut",
            Self::RestartLedger => "restart of the service",
            Self::RestartMaster => "restart of the master",
            Self::ScaleServers => "change of the servers",
            Self::Lost => "lost message",
        })
    }
}

/// Counts over simulated jobs: for each kind of fault, the jobs in which such a fault hit something; for each
/// way to end, the jobs that ended in this way.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    worlds: u64,
    faults: BTreeMap<FaultKind, u64>,
    endings: BTreeMap<JobEnding, u64>,
}

impl Tally {
    /// Of one world, by what was seen in it and how it ended.
    pub(super) fn of(seen: &Seen, result: &Result<(), String>) -> Self {
        Self {
            worlds: 1,
            faults: seen.kinds.iter().map(|kind| (*kind, 1)).collect(),
            endings: JobEnding::of(result).into_iter().map(|ending| (ending, 1)).collect(),
        }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.worlds += other.worlds;
        for (kind, count) in &other.faults {
            *self.faults.entry(*kind).or_default() += count;
        }
        for (ending, count) in &other.endings {
            *self.endings.entry(*ending).or_default() += count;
        }
    }

    /// Returns the number of jobs in which a fault of this kind hit something.
    pub fn with(&self, kind: FaultKind) -> u64 {
        self.faults.get(&kind).copied().unwrap_or_default()
    }

    /// Returns the number of jobs that ended in this way.
    pub fn ended(&self, ending: JobEnding) -> u64 {
        self.endings.get(&ending).copied().unwrap_or_default()
    }

    /// Returns the names of the kinds of faults that hit no job, and of those among `endings` with which no job ended.
    pub fn missing(&self, endings: &[JobEnding]) -> Vec<String> {
        let kinds =
            FaultKind::ALL.into_iter().filter(|kind| self.with(*kind) == 0).map(|kind| kind.to_string());
        let endings = endings.iter().filter(|ending| self.ended(**ending) == 0).map(JobEnding::to_string);
        kinds.chain(endings).collect()
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endings: Vec<String> = JobEnding::ALL
            .into_iter()
            .filter(|ending| self.ended(*ending) > 0)
            .map(|ending| format!("{ending} {}", self.ended(ending)))
            .collect();
        let faults: Vec<String> =
            FaultKind::ALL.into_iter().map(|kind| format!("{kind} {}", self.with(kind))).collect();
        write!(f, "{} worlds; ended: {}; with: {}", self.worlds, endings.join(", "), faults.join(", "))
    }
}

/// Looks on at one world.
#[derive(Debug, Default)]
pub(super) struct Seen {
    kinds: BTreeSet<FaultKind>,
    /// Lives that run.
    alive: BTreeSet<Holder>,
}

impl Observer for Seen {
    fn saw(&mut self, _: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        match what {
            Happening::Born(holder) => drop(self.alive.insert(*holder)),
            Happening::Died(holder) => drop(self.alive.remove(holder)),
            Happening::Lost(_) => drop(self.kinds.insert(FaultKind::Lost)),
            Happening::Overtaken(_) => drop(self.kinds.insert(FaultKind::Overtaken)),
            // It may happen later, or not at all.
            Happening::Fault(Fault::RestartMaster(..) | Fault::ScaleServers(_)) => {}
            Happening::Effect(HeadEffect::Servers(_)) => drop(self.kinds.insert(FaultKind::ScaleServers)),
            Happening::MasterEnded(_) => drop(self.kinds.insert(FaultKind::RestartMaster)),
            Happening::Fault(fault) => {
                // One that finds no node is none.
                let hits = |node| self.alive.iter().any(|holder| holder.node == node);
                self.kinds.extend(FaultKind::of(fault).filter(|_| fault.node().is_none_or(hits)));
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId};

    use super::*;

    #[test]
    fn kinds_that_never_occur_are_named() {
        let worker = Holder::new(NodeId::worker(0), Incarnation(0));
        let mut seen = Seen::default();
        let crash = Happening::Fault(Fault::Crash(worker.node));
        let mut saw = |what: &Happening<'_>| seen.saw(JobTime::ZERO, what).unwrap();
        // Before it runs and after it has ended it hits no node.
        saw(&crash);
        saw(&Happening::Born(worker));
        saw(&Happening::Fault(Fault::RestartLedger));
        saw(&Happening::Died(worker));
        saw(&crash);
        let mut tally = Tally::of(&seen, &Ok(()));
        assert_eq!((tally.with(FaultKind::Crash), tally.with(FaultKind::RestartLedger)), (0, 1));
        assert!(tally.missing(&[JobEnding::Completed]).contains(&"crash".to_owned()));
        assert_eq!(tally.missing(&JobEnding::ALL).len(), 12 + 4);

        let mut hit = Seen::default();
        for what in [Happening::Born(worker), crash] {
            hit.saw(JobTime::ZERO, &what).unwrap();
        }
        tally
            .add(&Tally::of(&hit, &Err("all workers were lost at once, and the model with them".to_owned())));
        assert_eq!((tally.with(FaultKind::Crash), tally.ended(JobEnding::ModelLost)), (1, 1));
        assert_eq!(tally.missing(&JobEnding::ALL).len(), 11 + 3);
        assert!(
            tally.to_string().starts_with("2 worlds; ended: completed 1, the model lost 1; with: crash 1,")
        );
    }
}
