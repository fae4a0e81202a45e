//! [`NoteSink`]: is told everything that happens in a job. One file for each sink.
//!
//! The recorder is told first and at once: checkpoints, `antdt status` and the report read it. All other sinks are told on threads
//! of their own, so that none of them can fail the job, hold it up, or keep a note from another sink. A sink that ships is its file
//! here and its line in [`open`].

mod bus;
mod console;
mod recorder;
mod shown;
mod tensorboard;
mod trace_file;

use std::path::PathBuf;
use std::sync::Arc;

use antdt_core::JobTime;
use antdt_job::Note;

use super::console::Console;
use super::http::Window;
use super::{JobError, PartError};
use crate::job::JobSpec;
use crate::report::{LiveProgress, Outcome};
use console::ConsoleSink;
use shown::ShownSink;
use tensorboard::TensorboardSink;
use trace_file::TraceFileSink;

pub(super) use bus::{Notes, Sinks};
pub(super) use recorder::Recorder;

/// What happens in a job.
#[derive(Debug, Clone)]
pub enum JobNote {
    /// The processes of the job are being started. Comes once more if the job chooses its sync mode (`--sync auto`).
    Started(Box<JobStart>),
    /// What the master's state machine tells: deaths, restarts, actions, plans, batches, checkpoints, evaluations.
    Head(Note),
    /// State of the job, once for every control tick, and once more when the job is over.
    Progress(LiveProgress),
    /// The job is over. This is the last note; a job whose master fails has none.
    Ended(Outcome),
}

/// A job that starts.
#[derive(Debug, Clone)]
pub struct JobStart {
    /// Name of the job.
    pub job: String,
    /// Settings of the job, in the sync mode that it starts in.
    pub spec: JobSpec,
    /// Folder through which other commands reach the job; `None` if it has none.
    pub run_dir: Option<PathBuf>,
    /// URL of the job's live page; `None` if it has none.
    pub page: Option<String>,
    /// Description of the checkpoint or the master that the job goes on from, if it does.
    pub resumed: Option<String>,
}

/// Receives the notes of a job.
///
/// The notes come in the order in which things happen, on a thread of the sink's own. An error or a panic of the sink is logged once,
/// and the sink gets no further notes. A sink that is slower than the job misses notes, which is logged once; the job waits only at
/// its end, for at most two seconds.
pub trait NoteSink: Send {
    /// Returns the name of the sink in messages about it.
    fn name(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    /// Takes a note. `at` is the time since the start of the job.
    ///
    /// # Errors
    /// If the sink can take no further notes.
    fn note(&mut self, at: JobTime, note: &JobNote) -> Result<(), PartError>;
}

/// Callback that opens a sink before the job starts; `None` if the settings ask for none.
pub type SinkFactory = Arc<dyn Fn(&JobSpec) -> Result<Option<Box<dyn NoteSink>>, PartError> + Send + Sync>;

/// Opens the sinks that ship and those of the program.
pub(super) fn open(
    spec: &JobSpec,
    (console, window): (&Console, Option<&Window>),
    of_program: &[SinkFactory],
) -> Result<Sinks, JobError> {
    let mut sinks: Vec<Box<dyn NoteSink>> = vec![Box::new(ConsoleSink::new(spec, console.clone()))];
    sinks.extend(window.map(|window| Box::new(ShownSink(window.board())) as Box<dyn NoteSink>));
    if let Some(folder) = &spec.tensorboard {
        sinks.push(Box::new(TensorboardSink::open(folder)?));
    }
    if let Some(file) = &spec.trace_file {
        sinks.push(Box::new(TraceFileSink::open(file)?));
    }
    for open in of_program {
        sinks.extend(open(spec).map_err(|source| JobError::of_part("sink", source))?);
    }
    Ok(Sinks::new(sinks))
}
