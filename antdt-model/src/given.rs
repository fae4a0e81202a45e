//! [`Given`]: a whole model as numbers, for the workers that average with its owner.
//!
//! Where each worker averages with a few others, models differ everywhere: the flat vector and every row that any gradient has ever
//! changed travel, not what changed since the last average. A row that a worker never changed is as it started, in all workers
//! alike, and does not travel.

use antdt_core::ParamLayout;

use crate::gradient::SparseGradient;

/// See the [module](self).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Given {
    /// The flat vector, `[dense_len]`.
    pub dense: Vec<f32>,
    /// The rows that were ever changed, and their values.
    pub rows: SparseGradient,
}

impl Given {
    /// As bytes, for [`decode`](Self::decode): the number of rows, the rows, the flat vector, the rows' values.
    pub fn encode(&self) -> Vec<u8> {
        let Self { dense, rows: SparseGradient { rows, values } } = self;
        let mut bytes = Vec::with_capacity(8 * (1 + rows.len()) + 4 * (dense.len() + values.len()));
        bytes.extend_from_slice(&(rows.len() as u64).to_le_bytes());
        bytes.extend_from_slice(bytemuck::cast_slice(rows));
        bytes.extend_from_slice(bytemuck::cast_slice(dense));
        bytes.extend_from_slice(bytemuck::cast_slice(values));
        bytes
    }

    /// Reads a model of this layout; `None` if it is none.
    pub fn decode(bytes: &[u8], layout: &ParamLayout) -> Option<Self> {
        let (count, rest) = bytes.split_first_chunk::<8>()?;
        let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
        let (rows, rest) = rest.split_at_checked(count.checked_mul(8)?)?;
        let rows: Vec<u64> = bytemuck::pod_collect_to_vec(rows);
        let in_order =
            rows.is_sorted_by(|a, b| a < b) && rows.last().is_none_or(|last| *last < layout.rows());
        let (dense, values) = rest.split_at_checked(layout.dense_len() * 4)?;
        if !in_order || values.len() != layout.rows_len(&rows) * 4 {
            return None;
        }
        let [dense, values] = [dense, values].map(bytemuck::pod_collect_to_vec);
        Some(Self { dense, rows: SparseGradient { rows, values } })
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::TableSpec;

    use super::*;

    fn layout() -> ParamLayout {
        let tables = ParamLayout::dense(2).with_table(TableSpec::new("narrow", 4, 1, 0.5)).unwrap();
        tables.with_table(TableSpec::new("wide", 3, 2, 0.5)).unwrap()
    }

    #[test]
    fn a_model_reads_back_and_anything_else_is_refused() {
        let rows = SparseGradient { rows: vec![1, 3, 6], values: vec![1.0, 2.0, 3.0, 4.0] };
        let given = Given { dense: vec![-1.0, 0.5], rows };
        let bytes = given.encode();
        assert_eq!(Given::decode(&bytes, &layout()), Some(given.clone()));
        for len in 0..bytes.len() {
            assert_eq!(Given::decode(&bytes[..len], &layout()), None, "{len}");
        }
        assert_eq!(Given::decode(&[&bytes[..], &[0; 4]].concat(), &layout()), None);
        for rows in [[3, 1, 6], [1, 1, 6], [1, 3, 7], [1, 3, u64::MAX]] {
            let rows = SparseGradient { rows: rows.to_vec(), ..given.rows.clone() };
            assert_eq!(Given::decode(&Given { rows, ..given.clone() }.encode(), &layout()), None);
        }
        let huge = [&u64::MAX.to_le_bytes()[..], &bytes[8..]].concat();
        assert_eq!(Given::decode(&huge, &layout()), None);
    }
}
