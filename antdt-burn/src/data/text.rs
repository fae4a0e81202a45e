//! Text as samples for a model of bytes: windows of one length, each byte with the one after it.

use std::num::NonZeroU64;
use std::path::Path;

use antdt_data::{Container, FixedRecords, OpenError, Reader, RecordShape, Splitter, Tail};

use super::example::{ExampleBatch, ExampleShape, Examples};
use super::source::Notify;
use super::stored::Opening;
use super::{DatasetError, RowError, source};

/// Different bytes: the classes of a position.
pub(crate) const BYTES: usize = 256;

/// Windows that are read together, at least: some ten kilobytes of a text.
const BLOCK: NonZeroU64 = NonZeroU64::new(128).expect("not zero");

/// Windows of one or several texts, read by range: sample `i` is the `i`-th window of `context + 1` bytes, which do not
/// overlap. The inputs are all its bytes but the last, and the class of each is the byte that follows it.
#[derive(Debug)]
pub(crate) struct TextWindows {
    windows: Reader<FixedRecords>,
    context: usize,
}

impl TextWindows {
    /// Opens a text, the texts of a folder in the order of their names, or what a URL names, plain or compressed. Bytes after
    /// the last whole window of a text are in no sample. `announce` is called for files that have to be copied first.
    ///
    /// # Errors
    /// If a file cannot be read, is Parquet, or is shorter than a window.
    pub(crate) fn open(
        path: &Path,
        context: usize,
        opening: &Opening<'_>,
        announce: Notify<'_>,
    ) -> Result<Self, DatasetError> {
        let mut sources = Vec::new();
        for found in source::sources(path)? {
            if found.container()? == Container::Parquet {
                return Err(DatasetError::NoText { path: found.path().into() });
            }
            sources.push(found.seekable(opening.cache, &mut |notice| announce(notice))?);
        }
        let window = NonZeroU64::new(context as u64 + 1).expect("one more than a number");
        let shape = RecordShape { record_len_bytes: window, header_len_bytes: 0 };
        let records = FixedRecords::of(sources, shape, Tail::Leave).map_err(|error| match error {
            OpenError::Empty { path } => DatasetError::TooShort { path, context },
            error => error.into(),
        })?;
        Ok(Self { windows: Reader::new(records, BLOCK, opening.budget_bytes), context })
    }
}

/// Appends a window of `context + 1` bytes as a sample.
pub(super) fn push(window: &[u8], batch: &mut ExampleBatch) {
    let Some((_, after)) = window.split_first() else { return };
    batch.inputs.extend(window[..after.len()].iter().map(|byte| f32::from(*byte)));
    batch.classes.extend(after.iter().map(|byte| i32::from(*byte)));
}

impl Examples for TextWindows {
    fn rows(&self) -> u64 {
        self.windows.data().num_samples()
    }

    fn shape(&self) -> ExampleShape {
        ExampleShape { inputs: self.context, positions: self.context, classes: BYTES }
    }

    fn read(&mut self, rows: &[u64], batch: &mut ExampleBatch) -> Result<(), RowError> {
        let done = self.windows.read(rows, |_, window| push(window, batch));
        done.map_err(|error| RowError { row: error.sample(), why: error.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use antdt_data::Cache;

    use super::*;

    fn open(path: &Path, context: usize) -> Result<TextWindows, DatasetError> {
        let cache = Cache::at(path.parent().unwrap().join("cache"));
        TextWindows::open(path, context, &Opening { cache: &cache, budget_bytes: 1 << 20 }, &mut |_| {})
    }

    #[test]
    fn a_sample_is_a_window_and_each_byte_is_followed_by_its_class() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, "to be, or not").unwrap();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(b"to be, or not").unwrap();
        let packed = folder.path().join("a.gz");
        fs::write(&packed, gzip.finish().unwrap()).unwrap();
        for path in [path, packed] {
            let mut data = open(&path, 5).unwrap();
            assert_eq!(data.rows(), 2, "the last byte is in no window");
            let mut batch = ExampleBatch::default();
            data.read(&[1, 0], &mut batch).unwrap();
            let bytes = |text: &str| text.bytes().map(f32::from).collect::<Vec<_>>();
            assert_eq!(batch.inputs, [bytes(" or n"), bytes("to be")].concat());
            assert_eq!(batch.classes, "or noo be,".bytes().map(i32::from).collect::<Vec<_>>());
            assert_eq!(data.read(&[2], &mut batch).unwrap_err().row, 2);
        }
    }

    #[test]
    fn a_file_without_a_window_of_text_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("short.txt");
        fs::write(&path, "brief").unwrap();
        let error = open(&path, 5).unwrap_err().to_string();
        assert!(error.contains("a window of 6 bytes") && error.contains("[workload.gpt] context"), "{error}");
        assert!(open(&path, 4).is_ok());
        fs::write(&path, "PAR1 and more").unwrap();
        let error = open(&path, 4).unwrap_err().to_string();
        assert!(error.contains("Parquet"), "{error}");
    }
}
