//! The recording of a job: where it may be written, how it begins and how it ends.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::Path;
use std::time::Duration;

use antdt_core::JobTime;
use antdt_core::trace::{TraceHeader, VERSION};
use antdt_job::{HeadAnswer, HeadConfig, HeadEffect, HeadEvent, HeadSettings};
use antdt_rt::{Packing, Recorder, TraceSink, TraceWriter, open_trace};
use antdt_shard::DatasetSpec;

use super::JobError;
use crate::job::JobSpec;

/// How long the last entries may take to be written after the job is over.
const LAST_ENTRIES: Duration = Duration::from_secs(2);

/// The first bytes of every trace of the present version.
fn beginning() -> String {
    format!("{{\"antdt_trace\":{VERSION},")
}

fn refused(path: &Path, why: impl Into<String>) -> JobError {
    JobError::Record { file: path.to_owned(), why: why.into() }
}

/// The head's part of a recording. What a successor must know is not in it: it follows from the rest, and its size from the number
/// of nodes.
pub(super) struct HeadRecorder(pub(super) Box<dyn Recorder<HeadEvent, HeadAnswer, HeadEffect>>);

impl Recorder<HeadEvent, HeadAnswer, HeadEffect> for HeadRecorder {
    fn event(&mut self, now: JobTime, event: &HeadEvent) {
        self.0.event(now, event);
    }

    fn answer(&mut self, now: JobTime, answer: &HeadAnswer) {
        self.0.answer(now, answer);
    }

    fn deadline(&mut self, now: JobTime) {
        self.0.deadline(now);
    }

    fn effect(&mut self, now: JobTime, effect: &HeadEffect) {
        if !matches!(effect, HeadEffect::Record(_)) {
            self.0.effect(now, effect);
        }
    }
}

/// Opens the file and empties it. A file that is no trace is left alone.
pub(super) fn open(path: &Path) -> Result<File, JobError> {
    let refuse = |why: &str| Err(refused(path, why));
    match path.metadata() {
        Ok(found) if found.is_dir() => return refuse("it is a folder; name a file in it"),
        Ok(found) if !found.is_file() => return refuse("it is not a regular file; name one"),
        Ok(found) if found.len() > 0 => {
            let mut first = vec![0; beginning().len()];
            let read = open_trace(path).and_then(|mut file| file.read_exact(&mut first));
            if read.is_err() || first != beginning().as_bytes() {
                return refuse(
                    "it exists and is no recording, which would be overwritten; name another file",
                );
            }
        }
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return refuse(&format!("{error}; name another file")),
    }
    File::create(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => refused(path, "its folder does not exist; make it, or name another file"),
        _ => refused(path, format!("{error}; name another file")),
    })
}

/// Begins the recording.
pub(super) fn start(
    (to, packing): (Box<dyn TraceSink>, Packing),
    spec: &JobSpec,
    job: &str,
    head: &HeadConfig,
    ledger: Option<&DatasetSpec>,
) -> Result<TraceWriter, JobError> {
    let mut header = TraceHeader::new(concat!("antdt ", env!("CARGO_PKG_VERSION")), job);
    header.settings = spec.texts();
    let file = spec.record.clone().unwrap_or_default();
    let begun = (|| {
        header.machines.insert("head".to_owned(), serde_json::to_value(HeadSettings::from(head))?);
        if let Some(dataset) = ledger {
            header.machines.insert("ledger".to_owned(), serde_json::to_value(dataset)?);
        }
        TraceWriter::start(file.display().to_string(), to, packing, &header)
    })();
    begun.map_err(|error| refused(&file, format!("{error}; free some space, or name another file")))
}

/// Ends the recording.
pub(super) fn finish(trace: TraceWriter) {
    let file = trace.name().to_owned();
    match trace.finish(LAST_ENTRIES) {
        Some(recorded) => {
            let (entries, bytes) = (recorded.end.entries, recorded.bytes);
            tracing::info!(file, entries, dropped = recorded.end.dropped, bytes, "the job was recorded");
        }
        None => {
            tracing::warn!(
                file,
                "the last entries of the recording could not be written; the disk does not answer"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(path: &Path) -> String {
        open(path).expect_err("it is refused").to_string()
    }

    #[test]
    fn a_recording_replaces_nothing_but_a_recording() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace");
        open(&file).unwrap();
        open(&file).expect("an empty file is nobody's");

        std::fs::write(&file, "thesis\n").unwrap();
        assert!(why(&file).contains("is no recording"), "{}", why(&file));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "thesis\n");

        let mut line = Vec::new();
        TraceHeader::new("antdt", "job").write(&mut line).unwrap();
        std::fs::write(&file, line).unwrap();
        open(&file).expect("an earlier recording");
        assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);

        // Compressed it is one too.
        let header = TraceHeader::new("antdt", "job");
        let packed =
            TraceWriter::start("trace", Box::new(File::create(&file).unwrap()), Packing::Gzip, &header)
                .unwrap();
        packed.finish(LAST_ENTRIES).unwrap();
        open(&file).expect("an earlier recording");
    }

    #[test]
    fn a_place_where_no_file_can_be_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        assert!(
            why(&folder.path().join("no/trace"))
                .ends_with("its folder does not exist; make it, or name another file")
        );
        assert!(why(folder.path()).ends_with("it is a folder; name a file in it"));
        assert!(why(Path::new("/dev/null")).ends_with("it is not a regular file; name one"));
    }
}
