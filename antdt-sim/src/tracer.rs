//! [`Tracer`]: records the events, answers and effects of a simulated job's state machines, as `antdt run
//! --record FILE` does for a real job.
//!
//! What is written is a [`Recording`](crate::Recording) like any other: the entries of each machine stand as the loop of
//! production writes them (event, answer, effects), it is replayed entry by entry, and a world can be made of it. Same
//! setup, same models, same seed: same bytes.
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

use antdt_controller::Policy;
use antdt_core::text::format_duration;
use antdt_core::trace::{EntryKind, TraceEnd, TraceEntry, TraceHeader, write_entry};
use antdt_core::{Generation, JobTime};
use antdt_job::{HeadEffect, HeadSettings};
use antdt_shard::Record;
use antdt_shard::ledger::Effect;
use serde::Serialize;

use crate::world::{dataset, head_config};
use crate::{Happening, Observer, Setup, Violation};

/// The name of this crate in the header of a trace, before its version.
const RECORDER: &str = concat!(env!("CARGO_PKG_NAME"), " ");

/// Whether a trace with this header was written by a [`Tracer`]: what is in it has not really happened.
pub(crate) fn is_simulated(header: &TraceHeader) -> bool {
    header.recorder.starts_with(RECORDER)
}

/// An observer that writes a recording of the simulated job.
pub struct Tracer<W> {
    out: W,
    line: Vec<u8>,
    entries: u64,
    last: JobTime,
    /// The master that is recorded has ended, or the ledger was set back: what follows is no part of it.
    over: bool,
    failed: Option<io::Error>,
    /// What the ledger does for the event that it has not answered yet. The world says it before the answer, because it
    /// must be carried out before; a recording has it after, as the machine does.
    ledger_effects: Vec<Effect>,
}

impl<W> fmt::Debug for Tracer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entries, last, over, failed, .. } = self;
        f.debug_struct("Tracer")
            .field("entries", entries)
            .field("last", last)
            .field("over", over)
            .field("failed", failed)
            .finish()
    }
}

impl<W: Write> Tracer<W> {
    /// Writes the header of the recording to `out`. `name` is the name of the job, `policy` its policy.
    ///
    /// # Errors
    /// If the header cannot be written.
    pub fn new(out: W, name: &str, setup: &Setup, policy: Box<dyn Policy>) -> io::Result<Self> {
        let mut header = header(name);
        header.settings = BTreeMap::from([
            ("control-tick".to_owned(), format_duration(setup.control_tick)),
            ("collective-timeout".to_owned(), format_duration(setup.collective_timeout)),
            ("seed".to_owned(), setup.seed.0.to_string()),
        ]);
        let head = HeadSettings::from(&head_config(setup, policy));
        header.machines.insert("head".to_owned(), serde_json::to_value(head)?);
        header.machines.insert("ledger".to_owned(), serde_json::to_value(dataset(setup))?);
        Self::begin(out, &header)
    }

    fn begin(mut out: W, header: &TraceHeader) -> io::Result<Self> {
        let mut line = Vec::new();
        header.write(&mut line)?;
        out.write_all(&line)?;
        let ledger_effects = Vec::new();
        Ok(Self { out, line, entries: 0, last: JobTime::ZERO, over: false, failed: None, ledger_effects })
    }

    /// Writes the last entry, and returns the output.
    ///
    /// # Errors
    /// If any entry could not be written.
    pub fn finish(mut self) -> io::Result<W> {
        if !self.over {
            let end = TraceEnd { entries: self.entries, dropped: 0 };
            self.write(self.last, TraceEntry::TRACE, EntryKind::End, &end);
        }
        self.break_off()
    }

    /// Returns the output without writing a last entry, because the job was not observed to its end.
    ///
    /// # Errors
    /// If any entry could not be written.
    pub fn break_off(self) -> io::Result<W> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(self.out),
        }
    }

    fn write<T: Serialize + ?Sized>(&mut self, at: JobTime, machine: &str, kind: EntryKind, value: &T) {
        if self.failed.is_some() || self.over {
            return;
        }
        self.line.clear();
        let written = write_entry(&mut self.line, at, machine, kind, value)
            .map_err(io::Error::from)
            .and_then(|()| self.out.write_all(&self.line));
        self.failed = written.err();
        self.entries += 1;
        self.last = at;
    }
}

fn header(name: &str) -> TraceHeader {
    TraceHeader::new(RECORDER.to_owned() + env!("CARGO_PKG_VERSION"), name)
}

impl<W: Write> Observer for Tracer<W> {
    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        match what {
            Happening::Head(event, answer) => {
                self.write(at, "head", EntryKind::Event, event);
                self.write(at, "head", EntryKind::Answer, answer);
            }
            Happening::HeadDeadline => self.write(at, "head", EntryKind::Deadline, &()),
            // What a successor must know follows from the rest.
            Happening::Effect(HeadEffect::Record(_)) => {}
            Happening::Effect(effect) => self.write(at, "head", EntryKind::Effect, effect),
            Happening::Ledger(event, answer) => {
                self.write(at, "ledger", EntryKind::Event, event);
                self.write(at, "ledger", EntryKind::Answer, answer);
                for effect in std::mem::take(&mut self.ledger_effects) {
                    self.write(at, "ledger", EntryKind::Effect, &effect);
                }
            }
            // The making of the first ledger is no part of a recording.
            Happening::Record(Record::GenerationStarted { generation: Generation(1) }) => {}
            // A recording does not hold what the ledger goes back to.
            Happening::Record(Record::Restored(_)) => self.over = true,
            Happening::Record(record @ Record::GenerationStarted { .. }) => {
                self.write(at, "ledger", EntryKind::Restart, &());
                self.write(at, "ledger", EntryKind::Effect, &Effect::Record((*record).clone()));
            }
            Happening::Record(record) => self.ledger_effects.push(Effect::Record((*record).clone())),
            Happening::MasterEnded(_) => self.over = true,
            Happening::Wake => self.ledger_effects.push(Effect::Wake),
            Happening::Worker(..)
            | Happening::Beat(..)
            | Happening::Born(_)
            | Happening::Died(_)
            | Happening::Fault(_)
            | Happening::TakenOver
            | Happening::Copied(..)
            | Happening::Cut(_)
            | Happening::Kept(_)
            | Happening::Lost(_)
            | Happening::Overtaken(_)
            | Happening::AllCrashed
            | Happening::Resumed(_)
            | Happening::Calm
            | Happening::Ended(_) => {}
        }
        Ok(())
    }
}
