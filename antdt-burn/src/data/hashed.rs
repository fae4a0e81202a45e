//! Rows of columns as samples of numbers: every value of a column sets one of a fixed number of inputs, by hash.
//!
//! Source: Weinberger et al., "Feature hashing for large scale multitask learning", 2009 (recalled); differs: without
//! signs, since the columns are few.

use super::example::{ExampleBatch, ExampleShape, Examples};
use super::{Dataset, LabelKind, RowBatch, RowError};
use crate::features::FeatureMap;

/// Rows of columns whose label is a class, as samples of numbers.
#[derive(Debug)]
pub(crate) struct HashedRows {
    data: Box<dyn Dataset>,
    features: usize,
    classes: usize,
    map: FeatureMap,
    rows: RowBatch,
    ids: Vec<u64>,
}

impl HashedRows {
    /// The rows of `data`, hashed into `features` inputs; `None` if their labels are no classes.
    pub(crate) fn new(data: Box<dyn Dataset>, features: usize) -> Option<Self> {
        let classes = match data.label_kind() {
            LabelKind::Binary => 2,
            LabelKind::Classes(count) => count,
            LabelKind::Number { .. } => return None,
        };
        // Wide, so that the rest by the number of inputs is even.
        let map = FeatureMap::new(data.schema(), 1 << 40);
        Some(Self { data, features, classes, map, rows: RowBatch::default(), ids: Vec::new() })
    }
}

impl Examples for HashedRows {
    fn rows(&self) -> u64 {
        self.data.rows()
    }

    fn shape(&self) -> ExampleShape {
        ExampleShape { inputs: self.features, positions: 1, classes: self.classes }
    }

    fn content_checksum(&self) -> Option<u32> {
        self.data.content_checksum()
    }

    fn read(&mut self, rows: &[u64], batch: &mut ExampleBatch) -> Result<(), RowError> {
        self.rows.clear();
        self.data.read(rows, &mut self.rows)?;
        self.map.table_rows(&self.rows, &mut self.ids);
        let mut begin = batch.inputs.len();
        batch.inputs.resize(begin + rows.len() * self.features, 0.0);
        for ids in self.ids.chunks(self.map.fields()) {
            for id in ids {
                let input = usize::try_from(id % self.features as u64).expect("below the number of inputs");
                batch.inputs[begin + input] += 1.0;
            }
            begin += self.features;
        }
        #[allow(clippy::cast_possible_truncation, reason = "a label is the number of a class")]
        batch.classes.extend(self.rows.labels.iter().map(|label| *label as i32));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::Seed;

    use super::*;
    use crate::data::synthetic::Clicks;

    #[test]
    fn a_sample_has_one_for_each_column_and_equal_rows_are_equal_samples() {
        let mut data = HashedRows::new(Box::new(Clicks::new(Seed(3), 50)), 100).unwrap();
        let mut batch = ExampleBatch::default();
        data.read(&[7, 8, 7], &mut batch).unwrap();
        assert_eq!((batch.inputs.len(), batch.classes.len()), (300, 3));
        for sample in batch.inputs.chunks(100) {
            assert!((sample.iter().sum::<f32>() - 39.0).abs() < 1e-6);
        }
        assert_eq!(batch.inputs[..100], batch.inputs[200..]);
        assert_ne!(batch.inputs[..100], batch.inputs[100..200]);
        assert_eq!(data.read(&[50], &mut batch).unwrap_err().row, 50);
    }
}
