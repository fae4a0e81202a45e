use proptest::prelude::*;

use super::*;

const fn shape(dim: usize, rows: u64) -> TableShape {
    TableShape { dim, rows: Some(rows) }
}

#[test]
fn the_route_with_fewer_bytes_is_taken() {
    // One row of a thousand each, and every row on every rank.
    assert_eq!(cheaper(&[1, 1], shape(16, 1000)), Route::Owners);
    assert_eq!(cheaper(&[1000, 1000], shape(16, 1000)), Route::Dense);
    assert_eq!(cheaper(&[1000, 1000], TableShape { dim: 16, rows: None }), Route::Owners);
    // The middle: (2d + 2·min(2d, R))·72 against 4·R·68, at R = 108: d = 68 costs (136 + 216)·72 < 29376.
    let even = |rows: u64, d: u64| cheaper(&[d, d], shape(16, rows));
    let costs = |rows: u64, d: u64| ((2 * d + 2 * (2 * d).min(rows)) * 72, 4 * rows * 68);
    for rows in [1, 2, 10, 108, 5000] {
        for d in 0..=rows {
            let (owners, dense) = costs(rows, d);
            assert_eq!(even(rows, d) == Route::Owners, owners <= dense, "{d} of {rows}");
        }
    }
    assert_eq!(cheaper(&[0, 0, 0], shape(4, 0)), Route::Owners);
    assert_eq!(cheaper(&[u64::MAX; 4], shape(usize::MAX / 8, u64::MAX)), Route::Owners);
}

#[test]
fn rows_that_do_not_fit_are_refused() {
    assert!(sum_duplicates(&[1, 2], &[1.0; 3], shape(2, 9)).is_err());
    assert!(sum_duplicates(&[1, 9], &[1.0; 4], shape(2, 9)).is_err());
    assert!(sum_duplicates(&[1, u64::MAX], &[1.0; 4], TableShape { dim: 2, rows: None }).is_ok());
    let two = |rows: [u64; 2]| encode(&SparseGradient { rows: rows.to_vec(), values: vec![1.0; 2] });
    assert!(decode(&two([3, 8]), shape(1, 9)).is_ok());
    for rows in [[3, 3], [4, 3], [3, 9]] {
        assert!(matches!(decode(&two(rows), shape(1, 9)), Err(PayloadError::Order { .. })), "{rows:?}");
    }
    assert!(matches!(decode(&[0; 13], shape(1, 9)), Err(PayloadError::Entries { got: 13, entry: 12 })));
    assert!(to_dense(&SparseGradient::default(), TableShape { dim: 2, rows: None }).is_err());
}

proptest! {
    #[test]
    fn rows_survive_summing_splitting_the_wire_and_the_whole_table(
        rows in prop::collection::vec(0_u64..20, 0..40),
        dim in 0_usize..4,
        world in 1_u32..6,
    ) {
        let values: Vec<f32> = (0..rows.len() * dim).map(|i| i as f32 - 7.0).collect();
        let total = sum_duplicates(&rows, &values, shape(dim, 20)).unwrap();
        prop_assert!(total.rows.is_sorted_by(|a, b| a < b));
        for row in 0..20 {
            let mut expected = vec![0.0; dim];
            for (index, _) in rows.iter().enumerate().filter(|(_, other)| **other == row) {
                (0..dim).for_each(|i| expected[i] += values[index * dim + i]);
            }
            match total.rows.binary_search(&row) {
                Ok(index) => prop_assert_eq!(&total.values[index * dim..(index + 1) * dim], &expected),
                Err(_) => prop_assert!(!rows.contains(&row)),
            }
        }
        let parts = split(&total, dim, &PartitionMap::new(world, 0).unwrap());
        for (owner, part) in (0_u64..).zip(&parts) {
            prop_assert!(part.rows.iter().all(|row| row % u64::from(world) == owner));
            prop_assert_eq!(&decode(&encode(part), shape(dim, 20)).unwrap(), part);
        }
        let again = SparseGradient::merge(parts.iter().map(|p| (p.rows.as_slice(), p.values.as_slice())), dim);
        prop_assert_eq!(&again, &total);
        prop_assert_eq!(from_dense(&to_dense(&total, shape(dim, 20)).unwrap(), dim), total);
    }
}
