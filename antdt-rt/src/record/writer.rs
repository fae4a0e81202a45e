//! A trace file, written by a thread of its own: the task of a machine leaves its lines in memory and
//! continues.

use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom, Write};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use antdt_core::JobTime;
use antdt_core::trace::{EntryKind, TraceEnd, TraceEntry, TraceHeader, write_entry};
use serde::Serialize;

use super::{Packing, Recorder};

/// Bytes that may wait to be written. More would let a slow disk take more of the job's memory before it is given up;
/// a job of some thousand events a second writes about a megabyte in a second.
const WAITING_MAX: usize = 64 << 20;

/// How often what waits is written. Longer: more is lost when the process is killed; shorter: more small writes. The
/// thread looks by itself, so that recording never pays for waking it.
const WRITE_EVERY: Duration = Duration::from_millis(100);

/// A destination of a trace, such as a file.
pub trait TraceSink: Write + Send {
    /// Truncates the destination to its first `len` bytes; the next write continues there. The trace writer
    /// calls it when a write failed.
    ///
    /// # Errors
    /// If the destination cannot be truncated; the trace may then end in a partial line.
    fn cut(&mut self, len: u64) -> std::io::Result<()>;
}

impl TraceSink for File {
    fn cut(&mut self, len: u64) -> std::io::Result<()> {
        self.set_len(len)?;
        self.seek(SeekFrom::Start(len)).map(|_| ())
    }
}

/// Writes the trace of one job.
///
/// Recording never stops the job: when the disk is full, fails, or is so slow that 64 MiB wait for it, the
/// recording ends there, with one warning in the log. Up to that point the file is complete for every state
/// machine.
#[derive(Debug)]
pub struct TraceWriter {
    /// The file, for the user.
    name: String,
    shared: Arc<Shared>,
    /// Closed when the thread has ended.
    done: Receiver<Recorded>,
}

/// Size of a recording that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recorded {
    /// Last entry of the recording: the number of entries written and of those missing.
    pub end: TraceEnd,
    /// Length of the file in bytes.
    pub bytes: u64,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    closing: Condvar,
    waiting_max: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Whole lines.
    waiting: Vec<u8>,
    /// Entries among what was left here, written or not.
    entries: u64,
    dropped: u64,
    newest: JobTime,
    /// Why nothing is taken any more.
    stopped: Option<String>,
    closing: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // What is behind the lock is valid after every statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TraceWriter {
    /// Writes the header to the file, which must be empty, and starts the thread that writes the trace. Warnings call the
    /// file `name`.
    ///
    /// # Errors
    /// If the header cannot be written.
    pub fn start(
        name: impl Into<String>,
        file: Box<dyn TraceSink>,
        packing: Packing,
        header: &TraceHeader,
    ) -> std::io::Result<Self> {
        Self::start_within(name.into(), file, packing, header, WAITING_MAX)
    }

    fn start_within(
        name: String,
        mut file: Box<dyn TraceSink>,
        packing: Packing,
        header: &TraceHeader,
        waiting_max: usize,
    ) -> std::io::Result<Self> {
        let mut line = Vec::new();
        header.write(&mut line)?;
        packing.pack(&mut line)?;
        file.write_all(&line)?;
        let shared = Arc::new(Shared { state: Mutex::default(), closing: Condvar::new(), waiting_max });
        let (ended, done) = channel();
        let (writing, written, named) = (Arc::clone(&shared), line.len() as u64, name.clone());
        std::thread::Builder::new().name("antdt-record".to_owned()).spawn(move || {
            // Its starter may have gone without waiting.
            let _ = ended.send(write_all(&writing, &named, file, packing, written));
        })?;
        Ok(Self { name, shared, done })
    }

    /// Returns the name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a recorder for the state machine of this name.
    pub fn recorder(&self, machine: &'static str) -> MachineRecorder {
        MachineRecorder { shared: Arc::clone(&self.shared), machine }
    }

    /// Writes all buffered lines and the last entry, and blocks until that is done, at most for `within`.
    /// Returns `None` if the file was not complete by then.
    pub fn finish(self, within: Duration) -> Option<Recorded> {
        self.close();
        self.done.recv_timeout(within).ok()
    }

    fn close(&self) {
        self.shared.lock().closing = true;
        self.shared.closing.notify_all();
    }
}

impl Drop for TraceWriter {
    /// The thread writes what is left, and ends; the caller does not wait for it.
    fn drop(&mut self) {
        self.close();
    }
}

/// A [`Recorder`](super::Recorder) of one state machine, which passes its lines to the thread of the
/// [`TraceWriter`].
#[derive(Debug)]
pub struct MachineRecorder {
    shared: Arc<Shared>,
    machine: &'static str,
}

impl MachineRecorder {
    fn write<T: Serialize>(&self, now: JobTime, kind: EntryKind, value: &T) {
        let mut state = self.shared.lock();
        if state.stopped.is_some() {
            state.dropped += 1;
            return;
        }
        let before = state.waiting.len();
        let mut why = write_entry(&mut state.waiting, now, self.machine, kind, value)
            .err()
            .map(|error| format!("an entry of the {} cannot be written: {error}", self.machine));
        if why.is_none() && state.waiting.len() > self.shared.waiting_max {
            // From here on no entry is taken: every machine's entries are whole up to a place.
            state.waiting.truncate(before);
            why = Some(format!("the disk is slower than the job: {before} bytes wait for it"));
        }
        if why.is_some() {
            state.dropped += 1;
            state.stopped = why;
        } else {
            state.entries += 1;
            state.newest = state.newest.max(now);
        }
    }
}

impl<Event, Answer, Effect> Recorder<Event, Answer, Effect> for MachineRecorder
where
    Event: Serialize,
    Answer: Serialize,
    Effect: Serialize,
{
    fn event(&mut self, now: JobTime, event: &Event) {
        self.write(now, EntryKind::Event, event);
    }
    fn answer(&mut self, now: JobTime, answer: &Answer) {
        self.write(now, EntryKind::Answer, answer);
    }
    fn deadline(&mut self, now: JobTime) {
        self.write(now, EntryKind::Deadline, &());
    }
    fn effect(&mut self, now: JobTime, effect: &Effect) {
        self.write(now, EntryKind::Effect, effect);
    }
}

/// The thread. `bytes` are in the file already.
fn write_all(
    shared: &Shared,
    name: &str,
    mut file: Box<dyn TraceSink>,
    packing: Packing,
    mut bytes: u64,
) -> Recorded {
    let mut taken = Vec::new();
    let (mut in_file, mut warned) = (0, false);
    loop {
        let state = shared.lock();
        let waited = shared.closing.wait_timeout_while(state, WRITE_EVERY, |state| !state.closing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut taken, &mut state.waiting);
        let (last, mut why) = (state.closing, state.stopped.clone());
        if last {
            // What comes now comes too late.
            state.stopped.get_or_insert_with(String::new);
        }
        drop(state);

        let written = write_lines(&mut *file, packing, &mut taken);
        let error = written.error;
        in_file += written.entries;
        bytes += written.bytes;
        taken.clear();
        if let Some(error) = error {
            let mut state = shared.lock();
            // It would follow a gap.
            state.waiting.clear();
            why = Some(state.stopped.get_or_insert_with(|| error.to_string()).clone());
            drop(state);
            // The piece of a line, if there is one, must not be taken for the beginning of the next.
            let _ = file.cut(bytes);
        }
        if let Some(why) = why
            && !std::mem::replace(&mut warned, true)
        {
            tracing::warn!(file = name, why, "the recording ends here; the job goes on");
        }
        if last {
            let state = shared.lock();
            // Some of those that were taken may not have got into the file.
            let end = TraceEnd { entries: in_file, dropped: state.dropped + (state.entries - in_file) };
            let newest = state.newest;
            drop(state);
            let mut line = Vec::new();
            if write_entry(&mut line, newest, TraceEntry::TRACE, EntryKind::End, &end).is_ok() {
                bytes += write_lines(&mut *file, packing, &mut line).bytes;
            }
            return Recorded { end, bytes };
        }
    }
}

/// What got into the file.
struct Written {
    entries: u64,
    /// Of whole lines; compressed, of whole members.
    bytes: u64,
    /// Error that ended the recording early.
    error: Option<std::io::Error>,
}

/// Writes whole lines. What is in `lines` afterwards is of no use.
fn write_lines(file: &mut dyn TraceSink, packing: Packing, lines: &mut Vec<u8>) -> Written {
    let entries = |lines: &[u8]| lines.iter().filter(|byte| **byte == b'\n').count() as u64;
    let all = entries(lines);
    if let Err(error) = packing.pack(lines) {
        return Written { entries: 0, bytes: 0, error: Some(error) };
    }
    let mut done = 0;
    while done < lines.len() {
        let error = match file.write(&lines[done..]) {
            Ok(0) => ErrorKind::WriteZero.into(),
            Ok(more) => {
                done += more;
                continue;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => error,
        };
        let whole = match packing {
            Packing::Plain => lines[..done].iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
            // A piece of a member is of no use.
            Packing::Gzip => 0,
        };
        return Written { entries: entries(&lines[..whole]), bytes: whole as u64, error: Some(error) };
    }
    Written { entries: all, bytes: done as u64, error: None }
}

#[cfg(test)]
mod tests;
