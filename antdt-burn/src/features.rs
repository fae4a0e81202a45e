//! Mapping of a row's columns to rows of the embedding table.
//!
//! Every column is one field. A numeric value is first assigned to a bucket and then treated as a category,
//! so that the model can learn any shape of its effect. A field owns `rows_per_field` consecutive rows of the
//! table; a value is assigned to one of them by hash.

use crate::data::{RowBatch, Schema};

/// Rule by which the values of a numeric column are divided into buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bucketing {
    /// Each value has a bucket of its own.
    Exact,
    /// Value `x` above 2 has the bucket `floor(ln(x)²)`; each smaller value has a bucket of its own. Buckets
    /// are fine for small counts and ever coarser for large ones.
    ///
    /// Source: the winning entry of the Kaggle display advertising challenge on Criteo's data, 2014
    /// (recalled).
    LogSquared,
}

impl Bucketing {
    /// Returns the bucket of a value. [`MISSING`](crate::data::MISSING) has a bucket of its own.
    pub fn of(self, value: i32) -> i32 {
        match self {
            Self::LogSquared if value > 2 => {
                let log = f64::from(value).ln();
                // ln(i32::MAX)² is 462; the offset keeps clear of the values up to 2.
                #[allow(clippy::cast_possible_truncation, reason = "between 1 and 462")]
                let bucket = (log * log).floor() as i32;
                bucket + 2
            }
            _ => value,
        }
    }
}

/// Maps the values of a row to rows of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FeatureMap {
    schema: Schema,
    rows_per_field: u64,
}

impl FeatureMap {
    pub(crate) const fn new(schema: Schema, rows_per_field: u64) -> Self {
        Self { schema, rows_per_field }
    }

    pub(crate) const fn fields(&self) -> usize {
        self.schema.fields()
    }

    /// Replaces `ids` with the table rows of the batch, `[samples, fields]`: numeric columns first.
    pub(crate) fn table_rows(&self, batch: &RowBatch, ids: &mut Vec<u64>) {
        let (numeric, categorical) = (self.schema.numeric.len(), self.schema.categorical);
        ids.clear();
        ids.reserve(batch.labels.len() * self.fields());
        for sample in 0..batch.labels.len() {
            let values = &batch.numeric[sample * numeric..][..numeric];
            for (field, (value, bucket)) in values.iter().zip(self.schema.numeric).enumerate() {
                ids.push(self.table_row(field, bucket.of(*value).cast_unsigned()));
            }
            let codes = &batch.categories[sample * categorical..][..categorical];
            for (field, code) in codes.iter().enumerate() {
                ids.push(self.table_row(numeric + field, *code));
            }
        }
    }

    fn table_row(&self, field: usize, value: u32) -> u64 {
        let field = field as u64;
        // The finaliser of MurmurHash3; the field is mixed in, so that fields do not share their collisions.
        let mut hash = u64::from(value) | (field << 32);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        hash ^= hash >> 33;
        field * self.rows_per_field + hash % self.rows_per_field
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::MISSING;

    #[test]
    fn buckets_grow_with_the_value_and_keep_small_values_apart() {
        let buckets: Vec<i32> = [-5, 0, 1, 2, 3, 4, 10, 100, 1000, i32::MAX]
            .into_iter()
            .map(|value| Bucketing::LogSquared.of(value))
            .collect();
        assert_eq!(buckets, [-5, 0, 1, 2, 3, 3, 7, 23, 49, 463]);
        assert_eq!(Bucketing::LogSquared.of(MISSING), MISSING);
        assert_eq!(Bucketing::Exact.of(77), 77);
    }

    #[test]
    fn each_field_has_its_own_rows() {
        let schema = Schema { numeric: &[Bucketing::Exact, Bucketing::LogSquared], categorical: 1 };
        let map = FeatureMap::new(schema, 100);
        let batch =
            RowBatch { labels: vec![0.0, 1.0], numeric: vec![7, 7, 8, MISSING], categories: vec![7, 0] };
        let mut ids = vec![99];
        map.table_rows(&batch, &mut ids);
        assert_eq!(ids.len(), 6);
        for (at, id) in ids.iter().enumerate() {
            let field = at as u64 % 3;
            assert!((field * 100..(field + 1) * 100).contains(id), "{id} is no row of field {field}");
        }
        assert_ne!(ids[0], ids[3], "7 and 8 are different values");
    }
}
