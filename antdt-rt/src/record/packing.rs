//! Trace files, plain or compressed by gzip.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::Path;

use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;

/// The first bytes of what gzip wrote. No trace, no table and no TOML begins so.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Compression of a trace file. Gzip at its fastest level shrinks a trace to about a twelfth, at some 150
/// MB/s.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packing {
    /// Without compression.
    Plain,
    /// Compressed with gzip.
    Gzip,
}

impl Packing {
    /// Returns the compression that a file name asks for: [`Gzip`](Self::Gzip) if it ends in `.gz`, otherwise
    /// [`Plain`](Self::Plain).
    pub fn of(path: &Path) -> Self {
        let gzip = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz"));
        if gzip { Self::Gzip } else { Self::Plain }
    }

    /// These lines as they are appended to a file: compressed, a member of their own, so that whatever follows can be cut off.
    pub(super) fn pack(self, lines: &mut Vec<u8>) -> io::Result<()> {
        if self == Self::Gzip && !lines.is_empty() {
            let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
            packed.write_all(lines)?;
            *lines = packed.finish()?;
        }
        Ok(())
    }
}

/// A file that is written from front to back, plain or compressed.
#[derive(Debug)]
pub struct PackedFile(Writer);

#[derive(Debug)]
enum Writer {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
}

impl PackedFile {
    /// Returns a writer to an empty file, in the form `packing`.
    pub fn new(file: File, packing: Packing) -> Self {
        let out = BufWriter::new(file);
        Self(match packing {
            Packing::Plain => Writer::Plain(out),
            Packing::Gzip => Writer::Gzip(GzEncoder::new(out, Compression::fast())),
        })
    }

    /// Writes all buffered bytes and ends the compressed stream.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(self) -> io::Result<()> {
        match self.0 {
            Writer::Plain(mut out) => out.flush(),
            Writer::Gzip(out) => out.finish()?.flush(),
        }
    }
}

impl Write for PackedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.0 {
            Writer::Plain(out) => out.write(bytes),
            Writer::Gzip(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.0 {
            Writer::Plain(out) => out.flush(),
            // A block of its own for what has come so far would make the file longer.
            Writer::Gzip(_) => Ok(()),
        }
    }
}

/// Opens a trace for reading. A file that gzip compressed is decompressed, whatever its name.
///
/// # Errors
/// If the file cannot be opened, or its first bytes cannot be read.
pub fn open_trace(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let mut file = BufReader::new(File::open(path)?);
    Ok(if file.fill_buf()?.starts_with(&GZIP) {
        Box::new(BufReader::new(MultiGzDecoder::new(file)))
    } else {
        Box::new(file)
    })
}
