//! Gradients: means, norms, and sparse gradients of tables.

use antdt_core::{GroupKind, ParamLayout, TableRows};

/// Returns one over the number of samples, which turns a sum of gradients into a mean; 0 for no samples.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "rounded once, the same everywhere"
)]
pub fn mean_scale(samples: u64) -> f32 {
    if samples == 0 { 0.0 } else { (1.0 / samples as f64) as f32 }
}

/// Strands that lie beside each other: every so many-th value belongs to the same one. So the additions of one need not wait for
/// those of another, and neighbouring threads of a GPU read neighbouring values.
const LANES: usize = 16;

/// Values of a strand.
const STRAND: usize = 512;

/// Returns the Euclidean norm of a gradient that is given in parts. The same parts in the same order give the
/// same bits, on the host and on a GPU.
pub fn norm<'a>(parts: impl IntoIterator<Item = &'a [f32]>) -> f64 {
    norm_of(parts.into_iter().map(square_sum))
}

/// Returns the norm of a gradient by the [sums of squares](square_sum) of its parts.
pub(crate) fn norm_of(squares: impl IntoIterator<Item = f64>) -> f64 {
    squares.into_iter().fold(0.0, |sum, squares| sum + squares).sqrt()
}

/// Returns the sum of the squares of values, added up in an order that the kernel of `antdt_collective::runtime::flat` has
/// as well: first the values of each strand, then the strands.
pub(crate) fn square_sum(values: &[f32]) -> f64 {
    let mut sum = 0.0_f64;
    for block in values.chunks(LANES * STRAND) {
        let mut lanes = [0.0_f64; LANES];
        let add = |(lane, value): (&mut f64, &f32)| *lane += f64::from(*value) * f64::from(*value);
        let (rounds, rest) = block.as_chunks::<LANES>();
        for values in rounds {
            lanes.iter_mut().zip(values).for_each(add);
        }
        lanes.iter_mut().zip(rest).for_each(add);
        lanes.iter().for_each(|lane| sum += lane);
    }
    sum
}

/// Returns the factor that shortens a gradient of norm `norm` to `limit`; 1 if it is not longer.
#[allow(clippy::cast_possible_truncation, reason = "rounded once a step, the same everywhere")]
pub fn clip_factor(limit: f32, norm: f64) -> f32 {
    if norm > f64::from(limit) { (f64::from(limit) / norm) as f32 } else { 1.0 }
}

/// Clips sums of gradients over `samples`, of dense parameters and of rows, so that the norm of their mean is
/// at most `limit`. State groups have no gradient and stay unchanged.
pub fn clip(limit: f32, samples: u64, layout: &ParamLayout, sums: [&mut [f32]; 2]) {
    let [dense, rows] = sums;
    let trainable = || layout.ranges().filter(|(_, group)| group.kind == GroupKind::Trainable);
    let parts = trainable().map(|(range, _)| &dense[range]).chain([&*rows]);
    let factor = clip_factor(limit, norm(parts) * f64::from(mean_scale(samples)));
    if factor < 1.0 {
        for (range, _) in trainable() {
            dense[range].iter_mut().for_each(|sum| *sum *= factor);
        }
        rows.iter_mut().for_each(|sum| *sum *= factor);
    }
}

/// Sums of the gradients of the table rows that a batch touched, of one table or of all.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SparseGradient {
    /// Indices of the rows, ascending, each once. Where the gradient is of all tables these are the layout's
    /// joint rows.
    pub rows: Vec<u64>,
    /// Gradients of the rows, `[rows, dim]`.
    pub values: Vec<f32>,
}

impl SparseGradient {
    /// Splits a gradient of all tables, by joint rows, into one gradient per table, by the table's own rows.
    pub fn into_tables(self, layout: &ParamLayout) -> Vec<Self> {
        let parts = layout.by_table(&self.rows);
        if parts.len() == 1 {
            return vec![self];
        }
        let own = |part: TableRows<'_>| Self {
            rows: self.rows[part.rows].iter().map(|row| row - part.first).collect(),
            values: self.values[part.values].to_vec(),
        };
        parts.into_iter().map(own).collect()
    }

    /// Joins gradients of single tables, in the order of the tables, into one gradient of all tables. In each of `tables` the rows are
    /// numbered within the table; in the result they are the joint rows of [`ParamLayout`].
    ///
    /// # Panics
    /// If there are more gradients than tables.
    pub fn from_tables(mut tables: Vec<Self>, layout: &ParamLayout) -> Self {
        if tables.len() == 1 {
            return tables.swap_remove(0);
        }
        let mut total = Self::default();
        for (number, table) in tables.into_iter().enumerate() {
            let first = layout.first_row(number);
            total.rows.extend(table.rows.iter().map(|row| first + row));
            total.values.extend_from_slice(&table.values);
        }
        total
    }

    /// Adds the gradients of several batches, row by row, in the order given: `((p₀ + p₁) + p₂) + …`. The
    /// same parts in the same order give the same bits, so pass them in order of worker.
    ///
    /// Each part is (rows ascending, `[rows, dim]`). The cost is linear in the rows; no dense gradient is
    /// formed.
    ///
    /// # Panics
    /// If a part has fewer values than its rows need.
    pub fn merge<'a>(parts: impl IntoIterator<Item = (&'a [u64], &'a [f32])>, dim: usize) -> Self {
        let mut parts: Vec<(&[u64], &[f32])> = parts.into_iter().collect();
        let most: usize = parts.iter().map(|(rows, _)| rows.len()).sum();
        let mut total = Self { rows: Vec::with_capacity(most), values: Vec::with_capacity(most * dim) };
        while let Some(row) = parts.iter().filter_map(|(rows, _)| rows.first()).min().copied() {
            let start = total.values.len();
            for (rows, values) in &mut parts {
                if rows.first() != Some(&row) {
                    continue;
                }
                let (head, tail) = values.split_at(dim);
                if total.values.len() == start {
                    total.values.extend_from_slice(head);
                } else {
                    total.values[start..].iter_mut().zip(head).for_each(|(sum, value)| *sum += value);
                }
                (*rows, *values) = (&rows[1..], tail);
            }
            total.rows.push(row);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use antdt_core::{ParamGroup, TableSpec};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn merging_adds_row_by_row(parts in prop::collection::vec(prop::collection::btree_map(0_u64..12, -4_i16..4, 0..8), 0..5)) {
            let parts: Vec<(Vec<u64>, Vec<f32>)> = parts
                .iter()
                .map(|part| {
                    let values = part.values().flat_map(|v| [f32::from(*v), f32::from(-v)]).collect();
                    (part.keys().copied().collect(), values)
                })
                .collect();
            let mut expected: BTreeMap<u64, f32> = BTreeMap::new();
            for (rows, values) in &parts {
                for (row, value) in rows.iter().zip(values.chunks(2)) {
                    *expected.entry(*row).or_default() += value[0];
                }
            }
            let merged = SparseGradient::merge(parts.iter().map(|(r, v)| (r.as_slice(), v.as_slice())), 2);
            prop_assert_eq!(&merged.rows, &expected.keys().copied().collect::<Vec<_>>());
            let expected: Vec<f32> = expected.values().flat_map(|v| [*v, -v]).collect();
            prop_assert_eq!(merged.values, expected);
        }
    }

    #[test]
    fn a_norm_is_that_of_all_parts_together() {
        let values: Vec<f32> = (1..=20_u8).map(f32::from).collect();
        // 1² + … + 20² = 2870.
        for at in [0, 3, 8, 17, 20] {
            let (one, other) = values.split_at(at);
            assert!((norm([one, other]) - 2870_f64.sqrt()).abs() < 1e-12, "{at}");
        }
        // Squares that are too large for single precision.
        let large = norm([&[3e30_f32][..], &[-4e30]]);
        assert!((large / 5e30 - 1.0).abs() < 1e-6, "{large}");
        assert_eq!([clip_factor(2.0, 1.0), clip_factor(2.0, 2.0), clip_factor(2.0, 8.0)], [1.0, 1.0, 0.25]);
    }

    #[test]
    fn sums_are_shortened_until_their_mean_is_as_long_as_the_limit() {
        let groups = vec![ParamGroup::trainable("w", 1), ParamGroup::state("mean", 1)];
        let layout = ParamLayout::new(groups, Vec::new()).unwrap();
        // A mean of length 5 over 2 samples.
        for (limit, expected) in [(1.0, [1.2, 1.6]), (2.5, [3.0, 4.0]), (5.0, [6.0, 8.0]), (9.0, [6.0, 8.0])]
        {
            // Statistics have no gradient.
            let (mut dense, mut rows) = ([6.0_f32, 99.0], [0.0, 8.0_f32]);
            clip(limit, 2, &layout, [&mut dense, &mut rows]);
            assert_eq!([dense[0], rows[1]], expected, "{limit}");
            assert_eq!(dense[1], 99.0);
        }
    }

    #[test]
    fn a_gradient_of_all_tables_is_dealt_to_them_and_comes_back() {
        let table = |name: &str, rows, dim| TableSpec::new(name, rows, dim, 0.0);
        let layout = ParamLayout::new(vec![], vec![table("a", 4, 1), table("b", 3, 2)]).unwrap();
        let joint = SparseGradient { rows: vec![1, 3, 4, 6], values: vec![1.0, 2.0, 3.0, 3.5, 4.0, 4.5] };
        let tables = joint.clone().into_tables(&layout);
        let [a, b] = &tables[..] else { panic!("two tables") };
        assert_eq!((&a.rows[..], &a.values[..]), (&[1, 3][..], &[1.0, 2.0][..]));
        assert_eq!((&b.rows[..], &b.values[..]), (&[0, 2][..], &[3.0, 3.5, 4.0, 4.5][..]));
        assert_eq!(SparseGradient::from_tables(tables, &layout), joint);
        let none = ParamLayout::dense(1);
        let empty = SparseGradient::default().into_tables(&none);
        assert_eq!(SparseGradient::from_tables(empty, &none), SparseGradient::default());
    }

    #[test]
    fn no_samples_scale_to_nothing() {
        assert_eq!(mean_scale(0), 0.0);
        assert_eq!(mean_scale(4), 0.25);
    }
}
