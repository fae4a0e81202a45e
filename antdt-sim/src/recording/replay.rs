//! Replay of a recording: new state machines get the recorded events, and must answer and act as the recorded
//! ones did.

use std::collections::VecDeque;
use std::fmt;

use antdt_controller::{Policy, policy};
use antdt_core::trace::{EntryKind, TraceEntry};
use antdt_core::{Generation, JobTime, Machine};
use antdt_job::Head;
use antdt_shard::ledger::Effect;
use antdt_shard::{Recovery, ShardLedger};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Recording, RecordingError};

/// Result of a replay in which the state machines did exactly what the recording says.
#[derive(Debug)]
pub struct Replayed {
    /// State of the head when the recording ended.
    pub head: Head,
    /// State of the ledger when the recording ended; `None` if the job had none.
    pub ledger: Option<ShardLedger>,
    /// Number of events and deadlines that were replayed.
    pub events: u64,
    /// Number of answers and effects that were compared, byte for byte.
    pub compared: u64,
    /// Whether the recording was cut off, or stopped before the job was over.
    pub cut_off: bool,
}

/// The first place at which a replayed state machine differs from the recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parting {
    /// Number of the entry, from 1; the header is not counted.
    pub entry: u64,
    /// Time of the entry.
    pub at: JobTime,
    /// Name of the state machine that differs.
    pub machine: String,
    /// The recording's entry at this place; `None` if the replayed machine does something for which the
    /// recording has no entry.
    pub recorded: Option<String>,
    /// Answer or effect of the replayed machine at this place; `None` if it does nothing where the recording
    /// has an entry.
    pub replayed: Option<String>,
}

impl fmt::Display for Parting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, at, machine, recorded, replayed } = self;
        let text = |of: &Option<String>| of.clone().unwrap_or_else(|| "nothing".to_owned());
        writeln!(f, "entry {entry} (line {}) at {at}, the {machine} parts from the recording", entry + 1)?;
        writeln!(f, "  recorded: {}", text(recorded))?;
        write!(f, "  replayed: {}", text(replayed))
    }
}

impl Recording {
    /// Replays the recorded events with new state machines, at the recorded times, and compares every answer
    /// and effect. The policy is built by the name and settings in the header.
    ///
    /// # Errors
    /// [`RecordingError::Parted`] at the first difference. Also if the recording cannot be read, its policy
    /// is not known, or its ledger was set back to a cut, which a recording does not contain.
    pub fn replay(&self) -> Result<Replayed, RecordingError> {
        let head = self.head()?;
        self.replay_with(policy::build(&head.policy, &head.policy_settings)?)
    }

    /// Replays the recording as [`replay`](Self::replay) does, with this policy, which must be in the state
    /// in which the recorded job began.
    ///
    /// # Errors
    /// As [`replay`](Self::replay).
    pub fn replay_with(&self, policy: Box<dyn Policy>) -> Result<Replayed, RecordingError> {
        let refused = |machine, why: &dyn fmt::Display| RecordingError::Machine {
            file: self.path.clone(),
            machine,
            why: why.to_string(),
        };
        let head = Head::new(self.head()?.config(policy)).map_err(|e| refused("head", &e))?;
        let mut head = Player::new(self, "head", head);
        let mut ledger = match self.dataset()? {
            Some(dataset) => {
                let log = Recovery::new(dataset).map_err(|e| refused("ledger", &e))?;
                let ledger = log.clone().finish(Generation(1)).map_err(|e| refused("ledger", &e))?;
                let mut ledger = LedgerPlayer { player: Player::new(self, "ledger", ledger), log };
                // It begins its first generation before any observer looks on.
                while let Some(effect) = ledger.player.machine.poll_effect() {
                    note(&mut ledger.log, &effect);
                }
                Some(ledger)
            }
            None => None,
        };
        let mut entries = self.entries()?;
        while let Some(entry) = entries.next() {
            let (entry, line) = (entry?, entries.line());
            match (entry.machine.as_str(), &mut ledger) {
                ("head", _) => head.take(line, &entry, |_| ())?,
                ("ledger", Some(ledger)) => ledger.take(line, &entry)?,
                (TraceEntry::TRACE, _) => {}
                (machine, _) => {
                    let (file, machine) = (self.path.clone(), machine.to_owned());
                    return Err(RecordingError::UnknownMachine { file, line, machine });
                }
            }
        }
        let cut_off = !entries.is_whole();
        if !cut_off {
            head.finish(entries.line())?;
            ledger.as_ref().map_or(Ok(()), |ledger| ledger.player.finish(entries.line()))?;
        }
        let mut replayed = Replayed {
            head: head.machine,
            ledger: None,
            events: head.events,
            compared: head.compared,
            cut_off,
        };
        if let Some(LedgerPlayer { player: ledger, .. }) = ledger {
            replayed.events += ledger.events;
            replayed.compared += ledger.compared;
            replayed.ledger = Some(ledger.machine);
        }
        Ok(replayed)
    }
}

/// A machine that is told what the recorded one was told.
struct Player<'a, M> {
    recording: &'a Recording,
    name: &'static str,
    machine: M,
    /// What it did that the recording has not shown yet, as it would be written.
    ahead: VecDeque<(EntryKind, String)>,
    now: JobTime,
    events: u64,
    compared: u64,
}

impl<'a, M> Player<'a, M>
where
    M: Machine,
    M::Event: DeserializeOwned,
    M::Answer: Serialize,
    M::Effect: Serialize,
{
    const fn new(recording: &'a Recording, name: &'static str, machine: M) -> Self {
        let now = JobTime::ZERO;
        Self { recording, name, machine, ahead: VecDeque::new(), now, events: 0, compared: 0 }
    }

    /// Tells the machine what the entry says, or compares what it did. `sees` is shown every effect of the machine.
    fn take(
        &mut self,
        line: u64,
        entry: &TraceEntry,
        sees: impl FnMut(&M::Effect),
    ) -> Result<(), RecordingError> {
        match entry.kind {
            EntryKind::Event => {
                self.nothing_ahead(line, entry)?;
                let event = entry.read().map_err(|e| self.recording.value_error(line, entry, e))?;
                let answer = self.machine.handle(entry.at, event);
                self.push(line, entry, EntryKind::Answer, &answer)?;
            }
            EntryKind::Deadline => {
                self.nothing_ahead(line, entry)?;
                if self.machine.deadline().is_none_or(|due| due > entry.at) {
                    return Err(self.parted(line, Some(entry), None));
                }
                self.machine.on_deadline(entry.at);
            }
            // Of a machine that keeps no log.
            EntryKind::Restart => return Err(self.parted(line, Some(entry), None)),
            EntryKind::Answer | EntryKind::Effect | EntryKind::End => {
                let ahead = self.ahead.pop_front();
                let same = |(kind, value): &(EntryKind, String)| {
                    (*kind, value.as_str(), self.now) == (entry.kind, entry.value.get(), entry.at)
                };
                if !ahead.as_ref().is_some_and(same) {
                    return Err(self.parted(line, Some(entry), ahead));
                }
                self.compared += 1;
                return Ok(());
            }
        }
        self.drain(line, entry, sees)
    }

    /// Waits for the recording to show what the machine has just done.
    fn drain(
        &mut self,
        line: u64,
        entry: &TraceEntry,
        mut sees: impl FnMut(&M::Effect),
    ) -> Result<(), RecordingError> {
        self.events += 1;
        self.now = entry.at;
        while let Some(effect) = self.machine.poll_effect() {
            sees(&effect);
            self.push(line, entry, EntryKind::Effect, &effect)?;
        }
        Ok(())
    }

    fn push<T: Serialize>(
        &mut self,
        line: u64,
        entry: &TraceEntry,
        kind: EntryKind,
        value: &T,
    ) -> Result<(), RecordingError> {
        let text = serde_json::to_string(value).map_err(|e| self.recording.value_error(line, entry, e))?;
        self.ahead.push_back((kind, text));
        Ok(())
    }

    /// The recorded machine did nothing more before it was told the next thing.
    fn nothing_ahead(&mut self, line: u64, entry: &TraceEntry) -> Result<(), RecordingError> {
        match self.ahead.pop_front() {
            Some(ahead) => Err(self.parted(line, Some(entry), Some(ahead))),
            None => Ok(()),
        }
    }

    /// The recording ends at `line`, and is whole.
    fn finish(&self, line: u64) -> Result<(), RecordingError> {
        match self.ahead.front() {
            Some(ahead) => Err(self.parted(line, None, Some(ahead.clone()))),
            None => Ok(()),
        }
    }

    fn parted(
        &self,
        line: u64,
        entry: Option<&TraceEntry>,
        ahead: Option<(EntryKind, String)>,
    ) -> RecordingError {
        let text = |at: JobTime, kind: EntryKind, value: &str| match kind {
            EntryKind::Deadline | EntryKind::Restart => format!("{} at {} ns", kind.name(), at.0),
            _ => format!("{} at {} ns: {value}", kind.name(), at.0),
        };
        let parting = Parting {
            entry: line - 1,
            at: entry.map_or(self.now, |entry| entry.at),
            machine: self.name.to_owned(),
            recorded: entry.map(|entry| text(entry.at, entry.kind, entry.value.get())),
            replayed: ahead.map(|(kind, value)| text(self.now, kind, &value)),
        };
        RecordingError::Parted { file: self.recording.path.clone(), parting: Box::new(parting) }
    }
}

/// A ledger, and what is in its log.
struct LedgerPlayer<'a> {
    player: Player<'a, ShardLedger>,
    log: Recovery,
}

impl LedgerPlayer<'_> {
    fn take(&mut self, line: u64, entry: &TraceEntry) -> Result<(), RecordingError> {
        let Self { player, log } = self;
        if entry.kind == EntryKind::Restart {
            player.nothing_ahead(line, entry)?;
            let generation = player.machine.generation().next();
            let again = log.clone().finish(generation);
            player.machine = again.expect("what the ledger wrote down folds, and the generation is new");
            return player.drain(line, entry, |effect| note(log, effect));
        }
        player.take(line, entry, |effect| note(log, effect))
    }
}

/// Adds what the ledger writes down to its log.
fn note(log: &mut Recovery, effect: &Effect) {
    if let Effect::Record(record) = effect {
        log.apply(record).expect("the ledger wrote it");
    }
}
