//! `antdt logs`: what the nodes of a job have written, and go on to write.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_core::NodeId;
use antdt_launch::OutputStream;
use anyhow::bail;

use super::print;
use crate::cli::Logs;
use crate::master::node_logs::{FOLDER, path};
use crate::remote::RemoteJob;
use crate::report::FILES;
use crate::run_dir;

/// Pause between two looks at the files.
const LOOK: Duration = Duration::from_millis(200);

/// Most that is read of a file at once, bytes.
const PIECE: u64 = 1 << 20;

/// Prints the last lines of each file, and with `--follow` those that come, until the job has ended.
pub(super) fn show(asked: &Logs) -> anyhow::Result<()> {
    let Some(folder) = folder(asked.dir.as_deref())? else {
        let which = asked.dir.as_ref().map_or_else(String::new, |dir| format!("{}: ", dir.display()));
        bail!("{which}no lines of nodes are kept there; name the report folder of a job, or its --log-dir");
    };
    let mut tails = Tails::default();
    let mut text = tails.read(&folder, asked.node, Some(asked.lines))?;
    if text.is_empty() && !asked.follow {
        let who = asked.node.map_or_else(|| "no node".to_owned(), |node| format!("{node} is not there or"));
        bail!("{}: {who} has written a line", folder.display());
    }
    loop {
        print(&text)?;
        if !asked.follow {
            return Ok(());
        }
        // What came before the end of the job is read after it.
        let has_ended = has_ended(&folder);
        text = tails.read(&folder, asked.node, None)?;
        if text.is_empty() && has_ended {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
}

/// The folder with the folders of nodes, of the job that is named or else of the only one that runs.
fn folder(dir: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    let named = match dir {
        Some(dir) => dir.to_owned(),
        None => RemoteJob::only()?,
    };
    let beside = named.parent().unwrap_or(&named).join(FOLDER);
    let candidates = [named.join(FOLDER), named, beside];
    Ok(candidates.into_iter().find(|folder| !nodes(folder).is_empty()))
}

/// The nodes that have a folder in this one.
fn nodes(folder: &Path) -> Vec<NodeId> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut nodes: Vec<NodeId> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    nodes.sort();
    nodes
}

/// Whether the job that writes there has no master any more; of one whose lines are kept elsewhere, that is not known.
fn has_ended(folder: &Path) -> bool {
    let report = folder.parent().unwrap_or(folder);
    let is_of_job = [FILES[0], "run"].iter().any(|name| report.join(name).exists());
    is_of_job && run_dir::read_master(&run_dir::below(report)).is_err()
}

/// How far each file has been read.
#[derive(Debug, Default)]
struct Tails {
    read: BTreeMap<PathBuf, u64>,
}

impl Tails {
    /// The whole lines that have come since the last time, each with its node; of files that are new, the last so many, or all.
    fn read(&mut self, folder: &Path, node: Option<NodeId>, last: Option<usize>) -> io::Result<String> {
        let mut text = String::new();
        let chosen = nodes(folder).into_iter().filter(|other| node.is_none_or(|node| node == *other));
        for node in chosen {
            for stream in [OutputStream::Out, OutputStream::Err] {
                let path = path(folder, node, stream);
                let lines = match self.of_file(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    lines => lines?,
                };
                let skipped = last.map_or(0, |last| lines.lines().count().saturating_sub(last));
                text.extend(lines.lines().skip(skipped).map(|line| format!("[{node}] {line}\n")));
            }
        }
        Ok(text)
    }

    fn of_file(&mut self, path: &Path) -> io::Result<String> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        let read = self.read.entry(path.to_owned()).or_default();
        let mut text = String::new();
        loop {
            // One that has become shorter is another one.
            *read = if *read > length { 0 } else { *read };
            file.seek(SeekFrom::Start(*read))?;
            let mut piece = Vec::new();
            Read::by_ref(&mut file).take(PIECE).read_to_end(&mut piece)?;
            // A line without an end may go on, unless it is longer than what is read at once.
            let whole = match piece.iter().rposition(|byte| *byte == b'\n') {
                Some(end) => end + 1,
                None if piece.len() as u64 == PIECE => piece.len(),
                None => return Ok(text),
            };
            *read += whole as u64;
            text += &String::from_utf8_lossy(&piece[..whole]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn write(folder: &Path, node: &str, name: &str, text: &str) {
        fs::create_dir_all(folder.join(node)).unwrap();
        let path = folder.join(node).join(name);
        let mut file = File::options().create(true).append(true).open(path).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn last_whole_lines_of_each_file_are_read_and_then_those_that_come() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        write(folder, "worker-0", "stdout.log", "a\nb\nc\nhal");
        write(folder, "worker-1", "stderr.log", "x\n");
        let mut tails = Tails::default();
        let read = |tails: &mut Tails, node| tails.read(folder, node, Some(2)).unwrap();
        assert_eq!(read(&mut tails, None), "[worker-0] b\n[worker-0] c\n[worker-1] x\n");
        write(folder, "worker-0", "stdout.log", "f\n");
        write(folder, "worker-2", "stdout.log", "new\n");
        assert_eq!(tails.read(folder, None, None).unwrap(), "[worker-0] half\n[worker-2] new\n");
        assert_eq!(tails.read(folder, None, None).unwrap(), "");
        assert_eq!(read(&mut Tails::default(), Some(NodeId::worker(1))), "[worker-1] x\n");
        let long = "y".repeat(3 << 20) + "\n";
        write(folder, "worker-3", "stdout.log", &long);
        let read = tails.read(folder, Some(NodeId::worker(3)), None).unwrap();
        assert_eq!(read.len(), "[worker-3] ".len() + long.len());
    }

    #[test]
    fn folder_is_found_by_the_report_folder_the_run_directory_or_its_own_name() {
        let report = tempfile::tempdir().unwrap();
        let logs = report.path().join(FOLDER);
        assert_eq!(folder(Some(report.path())).unwrap(), None);
        write(&logs, "worker-0", "stdout.log", "a\n");
        for named in [report.path(), &report.path().join("run"), &logs] {
            assert_eq!(folder(Some(named)).unwrap().as_ref(), Some(&logs), "{}", named.display());
        }
    }
}
