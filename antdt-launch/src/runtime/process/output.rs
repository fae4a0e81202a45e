//! The output of a child, line by line.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use antdt_core::Holder;
use rustix::fs::{FallocateFlags, SeekFrom};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::sync::watch;

use crate::launcher::{LineSink, OutputLine, OutputStream};

/// Lines of output kept for the message about a failure.
pub(super) const TAIL_LINES: usize = 50;

/// Bytes of a line that are held before they are passed on: bounds the memory of a child that never ends a line.
pub(super) const LINE_BYTES: usize = 8 * 1024;

/// Cuts one output into lines and passes them on.
pub(super) struct Lines {
    holder: Holder,
    stream: OutputStream,
    sink: LineSink,
    tail: Arc<Mutex<VecDeque<String>>>,
    held: Vec<u8>,
}

impl Lines {
    pub(super) fn new(
        holder: Holder,
        stream: OutputStream,
        sink: LineSink,
        tail: Arc<Mutex<VecDeque<String>>>,
    ) -> Self {
        Self { holder, stream, sink, tail, held: Vec::new() }
    }

    fn take(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.held.extend_from_slice(piece);
            if self.held.last() == Some(&b'\n') {
                self.held.pop();
                self.emit();
            } else if self.held.len() >= LINE_BYTES {
                self.emit();
            }
        }
    }

    fn emit(&mut self) {
        let bytes = std::mem::take(&mut self.held);
        let text = String::from_utf8_lossy(bytes.strip_suffix(b"\r").unwrap_or(&bytes));
        (self.sink)(OutputLine { holder: self.holder, stream: self.stream, text: &text });
        let mut tail = self.tail.lock().unwrap_or_else(PoisonError::into_inner);
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(text.into_owned());
    }

    /// The last line, if it was not ended.
    fn finish(mut self) {
        if !self.held.is_empty() {
            self.emit();
        }
    }
}

/// Passes on the lines of a pipe until it ends.
pub(super) async fn forward(mut output: impl AsyncRead + Unpin, mut lines: Lines) {
    let mut chunk = vec![0; LINE_BYTES];
    // An output that cannot be read any more has ended.
    while let Ok(count @ 1..) = output.read(&mut chunk).await {
        lines.take(&chunk[..count]);
    }
    lines.finish();
}

/// The output of a process that may outlive this one: files, because a pipe breaks with its reader.
#[derive(Debug, Clone)]
pub(super) struct OutputFiles {
    out: PathBuf,
    err: PathBuf,
}

impl OutputFiles {
    pub(super) fn of(folder: &Path, holder: Holder) -> Self {
        let name = format!("{}.{}", holder.node, holder.incarnation);
        Self { out: folder.join(format!("{name}.out")), err: folder.join(format!("{name}.err")) }
    }

    /// Makes both files, for a process to write to.
    pub(super) fn create(&self) -> io::Result<(File, File)> {
        let create = |path| OpenOptions::new().create(true).append(true).mode(0o600).open(path);
        Ok((create(&self.out)?, create(&self.err)?))
    }

    /// Opens both for reading, at the first byte that was not [passed on](follow).
    pub(super) fn open(&self) -> [(OutputStream, io::Result<File>); 2] {
        let open = |path| {
            let file = OpenOptions::new().read(true).write(true).open(path)?;
            // Without any data there is no such place.
            let from = rustix::fs::seek(&file, SeekFrom::Data(0))
                .or_else(|_| rustix::fs::seek(&file, SeekFrom::End(0)));
            from.map(|_| file).map_err(io::Error::from)
        };
        [(OutputStream::Out, open(&self.out)), (OutputStream::Err, open(&self.err))]
    }

    pub(super) fn remove(&self) {
        for path in [&self.out, &self.err] {
            // Another process that removed it before wanted the same.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// How often a file is looked at for new lines.
const LOOK: Duration = Duration::from_millis(20);

/// Passes on what is written to a file, until `ended` says that no process writes any more. What was passed on takes no room on the
/// disk any more, except its last block, where the file system can do that.
pub(super) async fn follow(mut file: File, mut lines: Lines, mut ended: watch::Receiver<bool>) {
    let mut chunk = vec![0; LINE_BYTES];
    loop {
        // Asked before the file is read: what is there then is all.
        let last = *ended.borrow_and_update();
        match file.read(&mut chunk) {
            Ok(0) | Err(_) if last => break,
            Ok(0) | Err(_) => {
                let _ = tokio::time::timeout(LOOK, ended.changed()).await;
            }
            Ok(count) => {
                lines.take(&chunk[..count]);
                if let Ok(at) = file.stream_position() {
                    // It is about room only.
                    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                    let _ = rustix::fs::fallocate(&file, how, 0, at);
                }
                // A process that writes without end does not keep others from their turn.
                tokio::task::yield_now().await;
            }
        }
    }
    lines.finish();
}
