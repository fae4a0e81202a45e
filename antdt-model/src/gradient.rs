//! Gradients of a table: rows and their sums.

/// One over the number of samples: what turns a sum of gradients into a mean. 0 for no samples, which changes nothing.
#[allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "rounded once, the same everywhere"
)]
pub fn mean_scale(samples: u64) -> f32 {
    if samples == 0 { 0.0 } else { (1.0 / samples as f64) as f32 }
}

/// Gradient sums of the rows that a batch touched.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SparseGradient {
    /// The rows, ascending, each once.
    pub rows: Vec<u64>,
    /// `[rows, dim]`.
    pub values: Vec<f32>,
}

impl SparseGradient {
    /// Adds the gradients of several batches, row by row, in the order given: `((p₀ + p₁) + p₂) + …`. The same parts in
    /// the same order give the same bits, so hand them over in order of holder.
    ///
    /// Each part is (rows ascending, `[rows, dim]`). Linear in the rows; at no point is a dense gradient formed.
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
    fn no_samples_scale_to_nothing() {
        assert_eq!(mean_scale(0), 0.0);
        assert_eq!(mean_scale(4), 0.25);
    }
}
