//! Small colour pictures with a label, in the binary form of CIFAR-10.

use std::num::NonZeroU64;
use std::path::Path;

use antdt_data::{FixedRecords, Reader, RecordShape, Splitter, Tail};

use super::example::{ExampleBatch, ExampleShape, Examples};
use super::source::Notify;
use super::stored::Opening;
use super::{DatasetError, RowError, source};

/// Classes of CIFAR-10, and of the generated pictures.
pub(crate) const CLASSES: usize = 10;

/// Colours of a pixel.
pub(crate) const COLOURS: usize = 3;

/// Pictures that are read together, at least: a fifth of a megabyte.
const BLOCK: NonZeroU64 = NonZeroU64::new(64).expect("not zero");

/// Values of a picture of so many pixels a side.
pub(crate) const fn values(side: usize) -> usize {
    COLOURS * side * side
}

/// Pictures in files, read by range. A record is the class, one byte, then the red, the green and the blue values, each
/// `side` rows of `side` bytes.
///
/// Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009, and the description of its files
/// (recalled).
#[derive(Debug)]
pub(crate) struct ImageRecords {
    records: Reader<FixedRecords>,
    side: usize,
}

impl ImageRecords {
    /// Opens a file, the files of a folder in the order of their names, or what a URL names, plain or compressed.
    /// `announce` is called for files that have to be copied first.
    ///
    /// # Errors
    /// If a file cannot be read, is not of whole records, or begins with none.
    pub(crate) fn open(
        path: &Path,
        side: usize,
        opening: &Opening<'_>,
        announce: Notify<'_>,
    ) -> Result<Self, DatasetError> {
        let mut sources = Vec::new();
        for found in source::sources(path)? {
            let (name, found) =
                (found.path().to_owned(), found.seekable(opening.cache, &mut |notice| announce(notice))?);
            // The first byte tells most files of another form, such as pictures in files of their own.
            let first = found.first(1)?.first().copied().unwrap_or(0);
            if usize::from(first) >= CLASSES {
                return Err(DatasetError::NoImages { path: name, first });
            }
            sources.push(found);
        }
        let record = NonZeroU64::new(values(side) as u64 + 1).expect("one more than a number");
        let shape = RecordShape { record_len_bytes: record, header_len_bytes: 0 };
        let records = FixedRecords::of(sources, shape, Tail::Refuse)?;
        Ok(Self { records: Reader::new(records, BLOCK, opening.budget_bytes), side })
    }
}

impl Examples for ImageRecords {
    fn rows(&self) -> u64 {
        self.records.data().num_samples()
    }

    fn shape(&self) -> ExampleShape {
        ExampleShape { inputs: values(self.side), positions: 1, classes: CLASSES }
    }

    fn read(&mut self, rows: &[u64], batch: &mut ExampleBatch) -> Result<(), RowError> {
        let mut wrong = None;
        let done = self.records.read(rows, |row, record| {
            let Some((class, pixels)) = record.split_first() else { return };
            if usize::from(*class) >= CLASSES {
                let why = format!("class {class}, where the first byte of a picture is 0 to {}", CLASSES - 1);
                wrong.get_or_insert(RowError { row, why });
            }
            batch.classes.push(i32::from(*class));
            batch.inputs.extend(pixels.iter().map(|value| scaled(*value)));
        });
        done.map_err(|error| RowError { row: error.sample(), why: error.to_string() })?;
        wrong.map_or(Ok(()), Err)
    }
}

/// About as a normal draw: photographs have a mean of 0.47 and a standard deviation of 0.25, of 1.
pub(super) fn scaled(value: u8) -> f32 {
    (f32::from(value) - 120.0) / 64.0
}

#[cfg(test)]
mod tests {
    use std::fs;

    use antdt_data::Cache;

    use super::*;

    fn open(path: &Path) -> Result<ImageRecords, DatasetError> {
        let cache = Cache::at(path.parent().unwrap().join("cache"));
        ImageRecords::open(path, 2, &Opening { cache: &cache, budget_bytes: 1 << 20 }, &mut |_| {})
    }

    fn record(class: u8, value: u8) -> Vec<u8> {
        [vec![class], vec![value; 11], vec![184]].concat()
    }

    #[test]
    fn a_record_is_a_class_and_its_picture() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data_batch_1.bin");
        fs::write(&path, [record(3, 120), record(9, 56)].concat()).unwrap();
        let (mut data, mut batch) = (open(&path).unwrap(), ExampleBatch::default());
        data.read(&[1, 0], &mut batch).unwrap();
        assert_eq!((data.rows(), &batch.classes[..]), (2, &[9, 3][..]));
        assert_eq!(batch.inputs, [vec![-1.0; 11], vec![1.0], vec![0.0; 11], vec![1.0]].concat());
        assert_eq!(data.read(&[2], &mut batch).unwrap_err().row, 2);
    }

    #[test]
    fn files_of_another_form_are_refused_and_a_class_that_is_none_is_a_fault_of_its_row() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.bin");
        fs::write(&path, [record(3, 120), record(10, 56)].concat()).unwrap();
        let error = open(&path).unwrap().read(&[0, 1], &mut ExampleBatch::default()).unwrap_err();
        assert_eq!(error.to_string(), "row 1: class 10, where the first byte of a picture is 0 to 9");
        fs::write(&path, [record(3, 120), vec![1]].concat()).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("1 bytes into a record of 13 bytes"), "{error}");
        fs::write(&path, record(b'<', 0)).unwrap();
        let error = open(&path).unwrap_err().to_string();
        assert!(error.contains("begins with the byte 60") && error.contains("CIFAR-10"), "{error}");
    }
}
