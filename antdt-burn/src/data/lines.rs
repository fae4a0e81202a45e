//! Lines of files, plain or compressed, one at a time.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::OpenError;

/// Longest line accepted, in bytes. A Criteo row is below 400; what is longer than this is no text of rows, and must
/// not fill the memory.
const LINE_LIMIT: u64 = 64 << 10;

/// First bytes of a gzip file (RFC 1952).
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// The lines of a text file, plain or gzip, one at a time in constant memory.
pub(super) struct Lines {
    path: PathBuf,
    reader: Box<dyn BufRead>,
    buffer: Vec<u8>,
    line: u64,
}

impl Lines {
    /// Opens the file; whether it is compressed shows in its first bytes, not in its name.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => OpenError::NotFound { path: path.into() },
            _ => OpenError::Read { path: path.into(), source },
        };
        let mut file = BufReader::with_capacity(256 << 10, File::open(path).map_err(failed)?);
        let compressed = file.fill_buf().map_err(failed)?.starts_with(&GZIP_MAGIC);
        let reader: Box<dyn BufRead> =
            if compressed { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(file) };
        Ok(Self { path: path.into(), reader, buffer: Vec::new(), line: 0 })
    }

    /// The next line that is not blank, without its end, and its number from 1; `None` at the end of the file.
    pub(super) fn next_row(&mut self) -> Result<Option<(u64, &[u8])>, OpenError> {
        loop {
            self.buffer.clear();
            self.line += 1;
            let read = (&mut self.reader)
                .take(LINE_LIMIT + 1)
                .read_until(b'\n', &mut self.buffer)
                .map_err(|source| OpenError::Read { path: self.path.clone(), source })?;
            if read == 0 {
                return Ok(None);
            }
            if read as u64 > LINE_LIMIT {
                return Err(OpenError::LineTooLong {
                    path: self.path.clone(),
                    line: self.line,
                    limit: LINE_LIMIT,
                });
            }
            while self.buffer.last().is_some_and(|byte| [b'\n', b'\r'].contains(byte)) {
                self.buffer.pop();
            }
            // A row of Criteo with every column missing still has its tabs and its label.
            if !self.buffer.iter().all(|byte| *byte == b' ') {
                return Ok(Some((self.line, &self.buffer)));
            }
        }
    }
}
