//! Writes down what the machines of a simulated job are told and do, as `antdt run --record FILE` does of a real one.
//!
//! What is written reads as a [`Recording`](crate::Recording) does. It cannot be replayed as one: what the ledger writes
//! down stands before the event that it follows from. Same setup, same models, same seed: same bytes.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

use antdt_controller::Policy;
use antdt_core::JobTime;
use antdt_core::text::format_duration;
use antdt_core::trace::{End, Entry, Header, Kind, write_entry};
use antdt_job::HeadSettings;
use serde::Serialize;

use crate::world::{dataset, head_config};
use crate::{Happening, Observer, Setup, Violation};

/// An observer that writes a trace.
pub struct Tracer<W> {
    out: W,
    line: Vec<u8>,
    entries: u64,
    last: JobTime,
    failed: Option<io::Error>,
    /// What the ledger writes down before it is asked anything is the making of it, and no part of a recording.
    ledger_asked: bool,
}

impl<W> fmt::Debug for Tracer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entries, last, failed, .. } = self;
        f.debug_struct("Tracer")
            .field("entries", entries)
            .field("last", last)
            .field("failed", failed)
            .finish()
    }
}

/// As the ledger's effects are written.
#[derive(Serialize)]
enum LedgerEffect<'a> {
    Record(&'a antdt_shard::Record),
}

impl<W: Write> Tracer<W> {
    /// Writes the header. `name` is that of the job, `policy` what decides in it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn new(mut out: W, name: &str, setup: &Setup, policy: Box<dyn Policy>) -> io::Result<Self> {
        let mut header = Header::new(concat!("antdt-sim ", env!("CARGO_PKG_VERSION")), name);
        header.settings = BTreeMap::from([
            ("control-tick".to_owned(), format_duration(setup.control_tick)),
            ("collective-timeout".to_owned(), format_duration(setup.collective_timeout)),
            ("seed".to_owned(), setup.seed.0.to_string()),
        ]);
        let head = HeadSettings::from(&head_config(setup, policy));
        header.machines.insert("head".to_owned(), serde_json::to_value(head)?);
        header.machines.insert("ledger".to_owned(), serde_json::to_value(dataset(setup))?);
        let mut line = Vec::new();
        header.write(&mut line)?;
        out.write_all(&line)?;
        Ok(Self { out, line, entries: 0, last: JobTime::ZERO, failed: None, ledger_asked: false })
    }

    /// Writes the last entry, and what is still in memory.
    ///
    /// # Errors
    /// If anything could not be written.
    pub fn finish(mut self) -> io::Result<()> {
        let end = End { entries: self.entries, dropped: 0 };
        self.write(self.last, Entry::TRACE, Kind::End, &end);
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    fn write<T: Serialize + ?Sized>(&mut self, at: JobTime, machine: &str, kind: Kind, value: &T) {
        if self.failed.is_some() {
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

impl<W: Write> Observer for Tracer<W> {
    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        match what {
            Happening::Head(event, answer) => {
                self.write(at, "head", Kind::Event, event);
                self.write(at, "head", Kind::Answer, answer);
            }
            Happening::HeadDeadline => self.write(at, "head", Kind::Deadline, &()),
            Happening::Effect(effect) => self.write(at, "head", Kind::Effect, effect),
            Happening::Ledger(event, answer) => {
                self.ledger_asked = true;
                self.write(at, "ledger", Kind::Event, event);
                self.write(at, "ledger", Kind::Answer, answer);
            }
            Happening::Record(record) if self.ledger_asked => {
                self.write(at, "ledger", Kind::Effect, &LedgerEffect::Record(record));
            }
            Happening::Record(_)
            | Happening::Worker(..)
            | Happening::Beat(..)
            | Happening::Born(_)
            | Happening::Died(_)
            | Happening::Fault(_)
            | Happening::Calm
            | Happening::Ended(_) => {}
        }
        Ok(())
    }
}
