//! I11: a weighted mean is the mean over all samples, wherever they lie.

use antdt_core::Seed;
use half::{bf16, f16};
use proptest::prelude::*;

use super::case::for_each;
use super::members::{Make, PATIENT, on_all};
use crate::element::Half;
use crate::runtime::Communicator;
use crate::weighted::{Weighed, WeightedMean};

/// Gradients of single samples.
fn samples(seed: u64, rank: usize, count: u32, len: usize) -> Vec<Vec<f64>> {
    let mut rng = Seed(seed).derive_number(rank as u64).rng();
    (0..count).map(|_| (0..len).map(|_| rng.normal()).collect()).collect()
}

/// What a member holds: the mean over its own samples; nonsense if it has none.
fn mean_of(samples: &[Vec<f64>], len: usize) -> Vec<f32> {
    if samples.is_empty() {
        return vec![f32::NAN; len];
    }
    (0..len).map(|i| (samples.iter().map(|s| s[i]).sum::<f64>() / samples.len() as f64) as f32).collect()
}

/// Checks invariant I11: the weighted mean of means equals the mean over the concatenated batch; multiplying
/// all weights by a power of two changes no bit; a member without samples receives the mean and adds nothing,
/// whatever its data hold. If all weights are 0, all members keep their data and are told so. All members end
/// with the same bits. The mean of a half type is that of the widened values, rounded once.
///
/// # Panics
/// If the invariant is broken.
pub fn i11_weighted(make: &Make<'_>) {
    let some = prop::collection::vec(prop_oneof![1 => Just(0), 3 => 1..20_u32], 1..=8);
    let none = prop::collection::vec(Just(0_u32), 1..=8);
    let batches = prop_oneof![7 => some, 1 => none];
    for_each(48, &(batches, 0..70_usize, any::<u64>()), |(batches, len, seed)| {
        let world = batches.len() as u32;
        let all: Vec<Vec<Vec<f64>>> =
            batches.iter().enumerate().map(|(rank, count)| samples(seed, rank, *count, len)).collect();
        let total: f64 = batches.iter().map(|count| f64::from(*count)).sum();
        let results = on_all(make(world).0, PATIENT, |me, communicator| {
            let before = mean_of(&all[me.0 as usize], len);
            let weight = f64::from(batches[me.0 as usize]);
            rounds_once::<f16>(communicator, &before, weight);
            rounds_once::<bf16>(communicator, &before, weight);
            [1.0, 1024.0].map(|factor| {
                let mut data = before.clone();
                let mean =
                    communicator.weighted_mean(&mut data, weight * factor).expect("all members average");
                if total == 0.0 {
                    assert_eq!(mean, WeightedMean::NoWeight);
                    assert!(data.iter().all(|value| value.is_nan()), "left as it was");
                } else {
                    assert_eq!(mean, WeightedMean::Averaged { total: total * factor });
                }
                data
            })
        });
        if total == 0.0 {
            on_all(make(world).0, PATIENT, |me, communicator| {
                let mut data = [1.5, me.0 as f32];
                let mean = communicator.weighted_mean(&mut data, 0.0).expect("all members average");
                assert_eq!((mean, data), (WeightedMean::NoWeight, [1.5, me.0 as f32]), "left as it was");
            });
            return;
        }
        for [once, scaled] in &results {
            assert_eq!(once, scaled, "all weights times 1024");
            assert_eq!(once, &results[0][0], "the same on all members");
            for (i, value) in once.iter().enumerate() {
                let column = || all.iter().flatten().map(|sample| sample[i]);
                let (mean, scale) =
                    (column().sum::<f64>() / total, column().map(f64::abs).sum::<f64>() / total);
                let bound = f64::from(world + 2) * 2.0 * f64::from(f32::EPSILON) * scale;
                assert!(
                    (f64::from(*value) - mean).abs() <= bound,
                    "element {i}: {value}, not {mean}; {batches:?}"
                );
            }
        }
    });
}

// A mean of halves has the bits of the mean of the wide values, rounded once.
fn rounds_once<H: Half + Weighed>(communicator: &mut impl Communicator, values: &[f32], weight: f64) {
    let mut halves: Vec<H> = values.iter().map(|value| H::narrow(*value)).collect();
    let mut wide: Vec<f32> = halves.iter().map(|half| half.widen()).collect();
    communicator.weighted_mean(&mut halves, weight).expect("all members average");
    communicator.weighted_mean(&mut wide, weight).expect("all members average");
    let rounded: Vec<H> = wide.into_iter().map(H::narrow).collect();
    assert_eq!(bytemuck::cast_slice::<H, u16>(&halves), bytemuck::cast_slice::<H, u16>(&rounded));
}
