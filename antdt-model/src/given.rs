//! [`Given`]: a whole model as numbers, which a worker sends to the workers that average with it.
//!
//! Where each worker averages with a few others, models differ everywhere: the flat vector and every row that any gradient has ever
//! changed travel, not what changed since the last average. A row that a worker never changed is as it started, in all workers
//! alike, and does not travel.
//!
//! Where many average, each takes care of one part of the model: it is given that part of all models and gives their mean of it to
//! all. A member then sends and receives `2(n-1)/n` of a model instead of `n-1` models. A part is a stretch of the flat
//! vector, and of the rows every `n`th, so that no part has all the rows that are used most.

use std::ops::Range;

use antdt_core::ParamLayout;

use crate::gradient::SparseGradient;

/// The whole model of a worker as numbers, or a part of it, for the workers that average with it. See the
/// [module](self).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Given {
    /// Values of the flat vector, `[dense_len]`.
    pub dense: Vec<f32>,
    /// Rows that a gradient has ever changed, with their values.
    pub rows: SparseGradient,
}

impl Given {
    /// Encodes the model as bytes for [`decode`](Self::decode): the number of rows, the rows, the flat
    /// vector, the rows' values.
    pub fn encode(&self) -> Vec<u8> {
        let Self { dense, rows: SparseGradient { rows, values } } = self;
        let mut bytes = Vec::with_capacity(8 * (1 + rows.len()) + 4 * (dense.len() + values.len()));
        bytes.extend_from_slice(&(rows.len() as u64).to_le_bytes());
        bytes.extend_from_slice(bytemuck::cast_slice(rows));
        bytes.extend_from_slice(bytemuck::cast_slice(dense));
        bytes.extend_from_slice(bytemuck::cast_slice(values));
        bytes
    }

    /// Divides the model into `parts` parts, whose numbers of flat values differ by at most one; 0 counts as
    /// 1.
    pub fn cut(&self, layout: &ParamLayout, parts: usize) -> Vec<Self> {
        let parts = parts.max(1);
        let dense = |part| self.dense[stretch(self.dense.len(), part, parts)].to_vec();
        let mut cut: Vec<Self> =
            (0..parts).map(|part| Self { dense: dense(part), rows: SparseGradient::default() }).collect();
        for (row, values) in layout.by_row(&self.rows.rows, &self.rows.values) {
            let rows = &mut cut[part_of(row, parts)].rows;
            rows.rows.push(row);
            rows.values.extend_from_slice(values);
        }
        cut
    }

    /// Joins the parts of a model, given in the order in which [`cut`](Self::cut) returns them.
    pub fn join(parts: &[Self], layout: &ParamLayout) -> Self {
        let mut by_row: Vec<(u64, &[f32])> = Vec::new();
        for part in parts {
            by_row.extend(layout.by_row(&part.rows.rows, &part.rows.values));
        }
        by_row.sort_unstable_by_key(|(row, _)| *row);
        let mut rows = SparseGradient::default();
        for (row, values) in by_row {
            rows.rows.push(row);
            rows.values.extend_from_slice(values);
        }
        Self { dense: parts.iter().flat_map(|part| &part.dense).copied().collect(), rows }
    }

    /// Decodes a model of this layout; `None` if the bytes are not one.
    pub fn decode(bytes: &[u8], layout: &ParamLayout) -> Option<Self> {
        Self::decode_part(bytes, layout, 0, 1)
    }

    /// Decodes part number `part` of `parts` of a model of this layout; `None` if the bytes are not one.
    pub fn decode_part(bytes: &[u8], layout: &ParamLayout, part: usize, parts: usize) -> Option<Self> {
        let parts = parts.max(1);
        let (count, rest) = bytes.split_first_chunk::<8>()?;
        let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
        let (rows, rest) = rest.split_at_checked(count.checked_mul(8)?)?;
        let rows: Vec<u64> = bytemuck::pod_collect_to_vec(rows);
        let in_order =
            rows.is_sorted_by(|a, b| a < b) && rows.last().is_none_or(|last| *last < layout.rows());
        let is_here = rows.iter().all(|row| part_of(*row, parts) == part);
        let dense_len = stretch(layout.dense_len(), part, parts).len();
        let (dense, values) = rest.split_at_checked(dense_len * 4)?;
        if !in_order || !is_here || values.len() != layout.rows_len(&rows) * 4 {
            return None;
        }
        let [dense, values] = [dense, values].map(bytemuck::pod_collect_to_vec);
        Some(Self { dense, rows: SparseGradient { rows, values } })
    }
}

/// The values, of `len`, that are in a part.
fn stretch(len: usize, part: usize, parts: usize) -> Range<usize> {
    let at = |part: usize| len / parts * part + part.min(len % parts);
    at(part)..at(part + 1)
}

/// Part that a row is in.
fn part_of(row: u64, parts: usize) -> usize {
    usize::try_from(row % parts as u64).expect("below the number of parts")
}

#[cfg(test)]
mod tests {
    use antdt_core::TableSpec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_are_of_one_size_and_make_up_the_model(
            dense in proptest::collection::vec(-1.0_f32..1.0, 1..20),
            rows in proptest::collection::btree_set(0_u64..7, 0..7),
            parts in 1_usize..9,
        ) {
            let layout = ParamLayout::dense(dense.len())
                .with_table(TableSpec::new("narrow", 4, 1, 0.5)).unwrap()
                .with_table(TableSpec::new("wide", 3, 2, 0.5)).unwrap();
            let rows: Vec<u64> = rows.into_iter().collect();
            let values = (0..layout.rows_len(&rows)).map(|value| value as f32).collect();
            let given = Given { dense, rows: SparseGradient { rows, values } };
            let cut = given.cut(&layout, parts);
            prop_assert_eq!(cut.len(), parts);
            let lens = cut.iter().map(|part| part.dense.len());
            prop_assert!(lens.clone().max().unwrap() - lens.min().unwrap() <= 1);
            for (part, of_it) in cut.iter().enumerate() {
                let bytes = of_it.encode();
                prop_assert_eq!(Given::decode_part(&bytes, &layout, part, parts), Some(of_it.clone()));
                let other = (part + 1) % parts;
                if other != part && !of_it.rows.rows.is_empty() {
                    prop_assert_eq!(Given::decode_part(&bytes, &layout, other, parts), None);
                }
            }
            prop_assert_eq!(Given::join(&cut, &layout), given);
        }
    }

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
