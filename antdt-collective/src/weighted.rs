//! Averages over ranks with unequal batches: every rank counts with its number of samples, not once.
//!
//! The mean over all samples is `Σ bᵢ gᵢ / Σ bᵢ`. A plain mean of per-rank means is biased as soon as batches differ,
//! which is what batch-size adjustment makes them do. The weight is summed with the values and divided out once, at
//! the end. A rank with weight 0 adds exact zeros, whatever its buffer holds, and still gets the result.
//!
//! The mean of a half type has the bits of the `f32` mean of the widened values, rounded once: products and sums are
//! `f32`. Sums of halves would lose most of a long sum, and overflow where the mean does not.

use half::{bf16, f16};

use crate::element::{Element, Half};

/// Result of a weighted mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WeightedMean {
    /// The buffer holds the mean.
    Averaged {
        /// Sum of all members' weights.
        total: f64,
    },
    /// The weights of all ranks were 0, so the buffer keeps its values.
    NoWeight,
}

/// A float, of which there are weighted means. Sealed, as [`Element`] is.
pub trait Weighed: Element {
    /// Type of the products and of their sum: `f32` for half types, for others the type itself.
    type Sum: Element;

    /// Returns the value times `weight`, which is not 0, rounded once.
    #[must_use]
    fn weighed(self, weight: f64) -> Self::Sum;

    /// Returns the mean: `sum` divided by the sum of the weights, `total`.
    #[must_use]
    fn mean(sum: Self::Sum, total: f64) -> Self;

    /// Replaces values by their mean: weighs them, has `reduce` add up those of all members, and divides the sums.
    /// Takes memory for the sums only where they are of another type.
    ///
    /// # Errors
    /// What `reduce` returns; the content of `values` is undefined then.
    fn average<X>(
        values: &mut [Self],
        weight: f64,
        total: f64,
        reduce: impl FnOnce(&mut [Self::Sum]) -> Result<(), X>,
    ) -> Result<(), X>;
}

macro_rules! weighed {
    ($($type:ident),*) => {
        $(
            #[allow(
                clippy::cast_possible_truncation,
                clippy::useless_conversion,
                clippy::unnecessary_cast,
                reason = "what is computed as f64 is rounded once"
            )]
            impl Weighed for $type {
                type Sum = Self;

                #[inline(always)]
                fn weighed(self, weight: f64) -> Self {
                    (f64::from(self) * weight) as Self
                }

                #[inline(always)]
                fn mean(sum: Self, total: f64) -> Self {
                    (f64::from(sum) / total) as Self
                }

                fn average<X>(
                    values: &mut [Self],
                    weight: f64,
                    total: f64,
                    reduce: impl FnOnce(&mut [Self]) -> Result<(), X>,
                ) -> Result<(), X> {
                    for value in &mut *values {
                        *value = share(*value, weight);
                    }
                    reduce(values)?;
                    for value in values {
                        *value = Self::mean(*value, total);
                    }
                    Ok(())
                }
            }
        )*
    };
}

macro_rules! weighed_half {
    ($($type:ident),*) => {
        $(
            impl Weighed for $type {
                type Sum = f32;

                #[inline(always)]
                fn weighed(self, weight: f64) -> f32 {
                    Half::widen(self).weighed(weight)
                }

                #[inline(always)]
                fn mean(sum: f32, total: f64) -> Self {
                    Half::narrow(f32::mean(sum, total))
                }

                fn average<X>(
                    values: &mut [Self],
                    weight: f64,
                    total: f64,
                    reduce: impl FnOnce(&mut [f32]) -> Result<(), X>,
                ) -> Result<(), X> {
                    let mut sums = vec![0.0; values.len()];
                    weigh(values, weight, &mut sums);
                    reduce(&mut sums)?;
                    unweigh(&sums, total, values);
                    Ok(())
                }
            }
        )*
    };
}

weighed!(f32, f64);
weighed_half!(f16, bf16);

// What a member adds to the sum.
#[inline(always)]
fn share<E: Weighed>(value: E, weight: f64) -> E::Sum {
    // Even where the value is a NaN.
    if weight == 0.0 { E::Sum::default() } else { value.weighed(weight) }
}

/// Multiplies the values by `weight`; with a weight of 0 the products are exact zeros, even where a value is NaN.
///
/// # Panics
/// If the slices differ in length.
pub fn weigh<E: Weighed>(values: &[E], weight: f64, into: &mut [E::Sum]) {
    assert_eq!(values.len(), into.len(), "as many products as values");
    for (product, value) in into.iter_mut().zip(values) {
        *product = share(*value, weight);
    }
}

/// Divides summed products by the summed weight, which must not be 0.
///
/// # Panics
/// If the slices differ in length.
pub fn unweigh<E: Weighed>(sums: &[E::Sum], total: f64, into: &mut [E]) {
    assert_eq!(sums.len(), into.len(), "as many means as sums");
    for (mean, sum) in into.iter_mut().zip(sums) {
        *mean = E::mean(*sum, total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Of all members' values with their weights, in order of rank.
    fn mean_of<E: Weighed>(members: &[(f32, f64)], of: fn(f32) -> E) -> E {
        let total = members.iter().map(|(_, weight)| weight).sum();
        let mut sum = E::Sum::default();
        let mut mean = [E::default()];
        for (at, (value, weight)) in members.iter().enumerate() {
            let mut product = [E::Sum::default()];
            weigh(&[of(*value)], *weight, &mut product);
            sum = if at == 0 { product[0] } else { sum.sum(product[0]) };
        }
        unweigh(&[sum], total, &mut mean);
        mean[0]
    }

    #[test]
    fn a_mean_of_halves_is_that_of_wide_values_rounded_once() {
        // 2048 and 1 have no sum among the values of f16, 256 and 1 none among those of bf16.
        let (half, brain) = (f16::from_f32, bf16::from_f32);
        assert_eq!(mean_of(&[(2048.0, 1.0), (1.0, 1.0), (1.0, 1.0), (2.0, 1.0)], half), half(513.0));
        assert_eq!(mean_of(&[(256.0, 1.0), (1.0, 1.0), (1.0, 1.0), (2.0, 1.0)], brain), brain(65.0));
        // Nor has a sum that is too large for the type of its operands.
        assert_eq!(mean_of(&[(65504.0, 7.0), (65504.0, 1.0)], half), f16::MAX);
        // Ties go to the even neighbour: 2049 lies between 2048 and 2050, 2051 between 2050 and 2052.
        assert_eq!(mean_of(&[(2048.0, 1.0), (2050.0, 1.0)], half), half(2048.0));
        assert_eq!(mean_of(&[(2050.0, 1.0), (2052.0, 1.0)], half), half(2052.0));
    }

    #[test]
    fn the_ends_of_the_range_stay_unchanged() {
        let half = f16::from_f32;
        // 2^-24 is the smallest subnormal; half of it goes to the even neighbour, 0, and three quarters to itself.
        let least = 2_f32.powi(-24);
        assert_eq!(mean_of(&[(least, 1.0), (0.0, 1.0)], half).to_bits(), 0);
        assert_eq!(mean_of(&[(least, 3.0), (0.0, 1.0)], half).to_bits(), 1);
        assert_eq!(mean_of(&[(-0.0, 1.0), (-0.0, 2.0)], half).to_bits(), 0x8000);
        assert_eq!(mean_of(&[(f32::INFINITY, 1.0), (1.0, 2.0)], half), f16::INFINITY);
        let nan = mean_of(&[(f32::INFINITY, 1.0), (f32::NEG_INFINITY, 1.0)], half);
        assert_eq!(nan.to_bits(), f16::NAN.to_bits());
        // The products are too large for f32.
        assert_eq!(mean_of(&[(3e38, 10.0), (3e38, 10.0)], bf16::from_f32), bf16::INFINITY);
        assert_eq!(mean_of(&[(3e38, 10.0), (3e38, 10.0)], f64::from), f64::from(3e38_f32));
    }

    #[test]
    fn a_member_of_weight_zero_adds_nothing_whichever_values_it_holds() {
        for value in [f32::NAN, f32::INFINITY, -1.0] {
            assert_eq!(mean_of(&[(value, 0.0), (1.5, 4.0)], f16::from_f32), f16::from_f32(1.5));
            assert_eq!(mean_of(&[(1.5, 4.0), (value, 0.0)], f64::from), 1.5);
        }
    }

    #[test]
    fn an_average_in_place_is_the_same_as_one_of_parts() {
        fn check<E: Weighed>(values: [E; 3]) {
            let (mut sums, mut expected, mut made) = ([E::Sum::default(); 3], values, values);
            weigh(&values, 3.0, &mut sums);
            unweigh(&sums, 7.0, &mut expected);
            E::average(&mut made, 3.0, 7.0, |_| Ok::<(), ()>(())).unwrap();
            assert_eq!(made, expected);
            assert_eq!(E::average(&mut made, 1.0, 1.0, |_| Err("no")), Err("no"));
        }
        check([1.0_f32, -0.3, 1e-40]);
        check([1.0_f64, -0.3, 1e-310]);
        check([1.0, -0.3, 1e-7].map(f16::from_f32));
        check([1.0, -0.3, 1e-40].map(bf16::from_f32));
    }
}
