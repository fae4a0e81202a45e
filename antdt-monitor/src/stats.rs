//! The lower median, on which all judgements of pace rest.

/// Returns the lower median: of an even count, the smaller of the two values in the middle. `None` if there
/// are no values.
///
/// Why the lower one: it is a value that really occurred, it needs no division (so integer times stay exact),
/// and as a reference it takes the side of the fast nodes: of two nodes the slower one is measured against
/// the faster one, of four nodes with two slow ones both are found.
///
/// Expected cost O(n). The order of `values` is changed.
///
/// ```
/// use antdt_monitor::stats::lower_median;
/// assert_eq!(lower_median(&mut [4, 1, 1]), Some(1));
/// assert_eq!(lower_median(&mut [4, 1]), Some(1));
/// assert_eq!(lower_median::<u64>(&mut []), None);
/// ```
pub fn lower_median<T: Ord + Copy>(values: &mut [T]) -> Option<T> {
    if values.is_empty() {
        return None;
    }
    let middle = (values.len() - 1) / 2;
    Some(*values.select_nth_unstable(middle).1)
}

/// Values that fit on the stack: the largest short window by default.
const FEW: usize = 80;

/// Returns the [`lower_median`] of `count` values or fewer, without allocating for up to 80.
pub fn lower_median_of<T: Ord + Copy + Default>(count: usize, values: impl Iterator<Item = T>) -> Option<T> {
    if count > FEW {
        return lower_median(&mut values.take(count).collect::<Vec<T>>());
    }
    let mut few = [T::default(); FEW];
    let mut taken = 0;
    for value in values.take(count) {
        few[taken] = value;
        taken += 1;
    }
    lower_median(&mut few[..taken])
}
