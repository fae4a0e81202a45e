//! Averages over ranks with unequal batches: every rank counts with its number of samples, not once.
//!
//! The mean over all samples is `Σ bᵢ gᵢ / Σ bᵢ`. A plain mean of per-rank means is biased as soon as batches differ,
//! which is what batch-size adjustment makes them do. The weight is summed with the values and divided out once, at
//! the end. A rank with weight 0 adds exact zeros, whatever its buffer holds, and still gets the result.

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

/// Multiplies the values by `weight`; with a weight of 0 they become exact zeros, even where a value is NaN.
pub fn weigh(values: &mut [f32], weight: f64) {
    if weight == 0.0 {
        return values.fill(0.0);
    }
    for value in values {
        #[allow(clippy::cast_possible_truncation, reason = "the product is rounded once, from f64")]
        let product = (f64::from(*value) * weight) as f32;
        *value = product;
    }
}

/// Divides summed values by the summed weight, which must not be 0.
pub fn unweigh(sums: &mut [f32], total: f64) {
    for sum in sums {
        #[allow(clippy::cast_possible_truncation, reason = "the quotient is rounded once, from f64")]
        let mean = (f64::from(*sum) / total) as f32;
        *sum = mean;
    }
}
