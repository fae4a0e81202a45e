//! [`Disk`]: checkpoints in files. Every change of a file goes through it, so that a test can fill the disk or stop the process
//! at any change.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

use super::storage::{CheckpointWriteError, Content, Sink, Storage, failed};
use crate::manifest::FileEntry;

/// What a file is called until it is durable as a whole.
const UNFINISHED: &str = "part";

/// After so much that was written, the disk is set to work. More: it is idle at first; less: it has more to do beside.
const FLUSH: u64 = 32 << 20;

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(super) struct Disk {
    #[cfg(test)]
    pub(super) fault: std::sync::Arc<super::fault::Fault>,
}

impl Storage for Disk {
    fn write_whole(&self, path: &Path, content: Content<'_>) -> Result<FileEntry, CheckpointWriteError> {
        let unfinished = unfinished(path);
        let written = self.write_unfinished(&unfinished, content);
        let entry = written.inspect_err(|_| self.remove_quietly(&unfinished))?;
        self.rename(&unfinished, path).inspect_err(|_| self.remove_quietly(&unfinished))?;
        self.sync_folder(path.parent().unwrap_or(Path::new(".")))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(FileEntry { name, ..entry })
    }

    fn make_folder(&self, path: &Path) -> Result<(), CheckpointWriteError> {
        let missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
        let missing = path.ancestors().take_while(missing).count();
        self.step("make", path)
            .and_then(|()| fs::create_dir_all(path))
            .map_err(|e| failed("make", path, e))?;
        path.ancestors().skip(1).take(missing).try_for_each(|parent| self.sync_folder(parent))
    }

    fn sync_folder(&self, path: &Path) -> Result<(), CheckpointWriteError> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let opened = self.step("sync", path).and_then(|()| File::open(path));
        opened.and_then(|folder| folder.sync_all()).map_err(|e| failed("sync", path, e))
    }

    fn remove(&self, path: &Path) -> Result<(), CheckpointWriteError> {
        let removed = self.step("remove", path).and_then(|()| fs::remove_file(path));
        gone(removed).map_err(|e| failed("remove", path, e))
    }

    fn remove_folder(&self, path: &Path) -> Result<(), CheckpointWriteError> {
        let removed = self.step("remove", path).and_then(|()| fs::remove_dir_all(path));
        gone(removed).map_err(|e| failed("remove", path, e))
    }

    fn has(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(folder)? {
            // A name that is no text is not ours.
            names.extend(entry?.file_name().into_string().ok());
        }
        Ok(names)
    }

    fn len_bytes(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(File::open(path)?))
    }

    #[cfg(test)]
    fn fault(&self) -> &super::fault::Fault {
        &self.fault
    }
}

impl Disk {
    fn write_unfinished(&self, path: &Path, content: Content<'_>) -> Result<FileEntry, CheckpointWriteError> {
        let created = self.step("create", path).and_then(|()| File::create(path));
        let file = created.map_err(|e| failed("create", path, e))?;
        let entry = thread::scope(|scope| {
            let (dirty, told) = mpsc::sync_channel(1);
            let file = &file;
            let flush = move || told.iter().try_for_each(|()| file.sync_data());
            // Without it the disk only begins when all is copied.
            let flusher =
                thread::Builder::new().name("antdt-flush".to_owned()).spawn_scoped(scope, flush).ok();
            let mut unflushed = 0;
            let mut out = |chunk: &[u8]| {
                self.write(file, path, chunk)?;
                unflushed += chunk.len() as u64;
                // If it is still at work, this waits for the next time.
                if unflushed >= FLUSH && dirty.try_send(()).is_ok() {
                    unflushed = 0;
                }
                Ok(())
            };
            let mut sink = Sink::new(&mut out);
            let written = content(&mut sink);
            let entry = sink.entry(path);
            drop(dirty);
            // An error of the disk is told once, to the first caller that asks.
            let flushed = flusher.map_or(Ok(()), |flusher| flusher.join().expect("it only asks the system"));
            written.and(flushed).map(|()| entry)
        });
        let entry = entry.map_err(|e| failed("write", path, e))?;
        let synced = self.step("sync", path).and_then(|()| file.sync_all());
        synced.map_err(|e| failed("write", path, e)).map(|()| entry)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<(), CheckpointWriteError> {
        let renamed = self.step("rename", to).and_then(|()| fs::rename(from, to));
        renamed.map_err(|e| failed("rename", from, e))
    }

    /// Removes what an attempt left that has failed already: what stays costs room and nothing else.
    fn remove_quietly(&self, path: &Path) {
        let _ = self.remove(path);
    }

    #[cfg(not(test))]
    #[allow(clippy::unused_self, reason = "tests fail here")]
    fn write(&self, mut file: &File, _path: &Path, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    #[cfg(test)]
    fn write(&self, mut file: &File, path: &Path, bytes: &[u8]) -> io::Result<()> {
        self.step("write", path)?;
        self.fault.fill(bytes, |bytes| file.write_all(bytes))
    }

    /// One change of a file begins.
    #[cfg(not(test))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests fail here")]
    fn step(&self, _what: &str, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn step(&self, what: &str, path: &Path) -> io::Result<()> {
        self.fault.step(format!("{what} {}", super::storage::shown(path)))
    }
}

/// Beside the file, so that the renaming stays within its folder.
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(UNFINISHED);
    name.into()
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
