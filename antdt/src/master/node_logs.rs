//! Where the lines that nodes write go: to the console, to a file for each node and stream, or to both.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use antdt_core::{Incarnation, NodeId};
use antdt_launch::{OutputLine, OutputStream};

use super::console::Console;
use crate::job::{JobSpec, RanksSpec, StreamsSpec};

/// Folder of the files, below that of the report, for a job that names none.
pub(crate) const FOLDER: &str = "logs";

/// Most bytes of a file that nobody has asked for: a job of weeks does not fill the disk of its checkpoints with lines.
const LIMIT: u64 = 64 << 20;

/// Which lines go where.
#[derive(Debug, Clone, Default)]
struct Routes {
    /// `None` if there are no files.
    folder: Option<PathBuf>,
    /// Most bytes of a file.
    limit: u64,
    /// To a file alone.
    redirected: StreamsSpec,
    /// To a file and to the console.
    teed: StreamsSpec,
    /// The workers on the console; `None` if all are.
    shown: Option<RanksSpec>,
}

impl Routes {
    fn of(spec: &JobSpec) -> Self {
        let chosen = [&spec.redirects, &spec.tee].iter().any(|streams| **streams != StreamsSpec::default());
        let below_report = || spec.report_dir.as_ref().map(|folder| folder.join(FOLDER));
        Self {
            limit: if chosen || spec.log_dir.is_some() { u64::MAX } else { LIMIT },
            folder: spec.log_dir.clone().or_else(below_report),
            redirected: spec.redirects.clone(),
            // Without a word on streams, all lines are kept.
            teed: if chosen { spec.tee.clone() } else { StreamsSpec::All(3) },
            shown: spec.local_ranks_filter.clone(),
        }
    }

    /// The folder for a line of this stream, and whether it is shown too.
    fn of_line(&self, node: NodeId, stream: OutputStream) -> (Option<&Path>, bool) {
        let [redirected, teed] = [&self.redirected, &self.teed].map(|streams| streams.has(node, stream));
        let folder = self.folder.as_deref().filter(|_| redirected || teed);
        let is_hidden = folder.is_some() && redirected && !teed;
        (folder, !is_hidden && self.shown.as_ref().is_none_or(|ranks| ranks.has(node)))
    }
}

/// A file of one node and stream.
#[derive(Debug)]
struct LogFile {
    /// `None` once it could not be written.
    file: Option<File>,
    /// Bytes in it.
    len: u64,
    /// Life of the node that wrote the last line.
    life: Option<Incarnation>,
}

/// The last line of a file that has its limit.
const FULL: &str = "--- the file is full; a job with --log-dir keeps all lines ---\n";

/// See the module. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct NodeLogs {
    routes: Arc<Routes>,
    files: Arc<Mutex<BTreeMap<(NodeId, OutputStream), LogFile>>>,
    console: Console,
}

impl NodeLogs {
    pub(super) fn of(spec: &JobSpec, console: Console) -> Self {
        Self { routes: Arc::new(Routes::of(spec)), files: Arc::default(), console }
    }

    /// Takes a line to where it goes. One that cannot be written to its file is shown.
    pub(super) fn line(&self, line: OutputLine<'_>) {
        let (folder, mut shown) = self.routes.of_line(line.holder.node, line.stream);
        if let Some(folder) = folder {
            shown |= !self.write(folder, line);
        }
        if shown {
            self.console.line(line.stream, line.to_string());
        }
    }

    /// Appends a line to its file; `false` if that cannot be, which is said once.
    fn write(&self, folder: &Path, line: OutputLine<'_>) -> bool {
        let OutputLine { holder, stream, text } = line;
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let path = path(folder, holder.node, stream);
        let warn = |error: io::Error| {
            tracing::warn!("{} cannot be written: {error}; its lines are shown here", path.display());
        };
        let log = files.entry((holder.node, stream)).or_insert_with(|| {
            let file = open(&path).map_err(warn).ok();
            let len = file.as_ref().and_then(|file| file.metadata().ok()).map_or(0, |file| file.len());
            LogFile { file, len, life: None }
        });
        let Some(file) = &mut log.file else { return false };
        if log.len >= self.routes.limit {
            let _ = file.write_all(FULL.as_bytes());
            log.file = None;
            return false;
        }
        // The lines of one life of the node are told from those of the next.
        let begins = (log.life != Some(holder.incarnation)).then(|| format!("--- {holder} ---\n"));
        let lines = format!("{}{text}\n", begins.unwrap_or_default());
        let written = file.write_all(lines.as_bytes());
        log.len += lines.len() as u64;
        log.life = Some(holder.incarnation);
        if let Err(error) = written {
            warn(error);
            log.file = None;
        }
        log.file.is_some()
    }
}

/// `DIR/worker-0/stdout.log`
pub(crate) fn path(folder: &Path, node: NodeId, stream: OutputStream) -> PathBuf {
    let name = match stream {
        OutputStream::Out => "stdout.log",
        OutputStream::Err => "stderr.log",
    };
    folder.join(node.to_string()).join(name)
}

/// Opens a file to append to.
fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    File::options().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use antdt_core::Holder;

    use super::*;

    fn routes(settings: &[(&str, &str)]) -> Routes {
        let mut spec = JobSpec { report_dir: Some("report".into()), ..JobSpec::default() };
        for (name, text) in settings {
            spec.set(name, text).unwrap();
        }
        Routes::of(&spec)
    }

    #[test]
    fn line_goes_where_its_stream_is_sent() {
        const OUT: OutputStream = OutputStream::Out;
        const ERR: OutputStream = OutputStream::Err;
        let (logs, named) = (Some(Path::new("report/logs")), Some(Path::new("mine")));
        let worker = NodeId::worker(1);
        for (settings, stream, expected) in [
            (&[][..], OUT, (logs, true)),
            (&[("log-dir", "mine")], OUT, (named, true)),
            (&[("redirects", "3")], ERR, (logs, false)),
            (&[("redirects", "2")], OUT, (None, true)),
            (&[("redirects", "3"), ("tee", "2")], ERR, (logs, true)),
            (&[("redirects", "3"), ("tee", "2")], OUT, (logs, false)),
            (&[("redirects", "0:3"), ("log-dir", "mine")], OUT, (None, true)),
            (&[("local-ranks-filter", "0")], OUT, (logs, false)),
            (&[("local-ranks-filter", "1"), ("tee", "1")], OUT, (logs, true)),
        ] {
            assert_eq!(routes(settings).of_line(worker, stream), expected, "{settings:?} {stream:?}");
        }
        // Without a folder to write to, nothing is hidden.
        let nowhere = Routes { redirected: StreamsSpec::All(3), ..Routes::default() };
        assert_eq!(nowhere.of_line(worker, OUT), (None, true));
    }

    #[test]
    fn file_has_the_lines_of_all_lives_in_order_and_one_that_cannot_be_written_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let mut spec = JobSpec::default();
        spec.set("log-dir", folder.path().to_str().unwrap()).unwrap();
        let logs = NodeLogs::of(&spec, Console::start(true));
        let write = |life, text| {
            let holder = Holder::new(NodeId::worker(0), Incarnation(life));
            logs.write(folder.path(), OutputLine { holder, stream: OutputStream::Err, text })
        };
        assert!(write(0, "a") && write(0, "b") && write(1, "c"));
        let text = fs::read_to_string(folder.path().join("worker-0/stderr.log")).unwrap();
        assert_eq!(text, "--- worker-0#0 ---\na\nb\n--- worker-0#1 ---\nc\n");
        let server = Holder::new(NodeId::server(0), Incarnation(0));
        fs::write(folder.path().join("server-0"), "no folder").unwrap();
        let line = OutputLine { holder: server, stream: OutputStream::Out, text: "x" };
        assert!(!logs.write(folder.path(), line) && !logs.write(folder.path(), line));
    }

    #[test]
    fn file_that_nobody_has_asked_for_ends_at_its_limit_also_in_a_job_that_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("worker-0/stdout.log");
        let holder = Holder::new(NodeId::worker(0), Incarnation(0));
        let line = OutputLine { holder, stream: OutputStream::Out, text: "0123456789" };
        for _ in 0..2 {
            let spec = JobSpec { report_dir: Some(folder.path().to_owned()), ..JobSpec::default() };
            let routes = Routes { limit: 40, ..Routes::of(&spec) };
            let mut logs = NodeLogs::of(&spec, Console::start(true));
            logs.routes = Arc::new(routes);
            while logs.write(folder.path(), line) {}
        }
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(text, format!("--- worker-0#0 ---\n0123456789\n0123456789\n{FULL}{FULL}"));
    }
}
