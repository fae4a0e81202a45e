//! Dropout whose choice is a function of the seed, the pass over the data and the sample, whichever worker trains it.
//!
//! A layer's values are set to 0 with a probability, and the others grow so that their mean stays. What is dropped from a sample does
//! not depend on the batch that it is in: several workers train what one would, and a job that goes on from a checkpoint trains on.
//!
//! Cost: 32 random bits for each value, drawn on the host.
//!
//! Source: Srivastava et al., "Dropout: A Simple Way to Prevent Neural Networks from Overfitting", 2014 (recalled); the key is our
//! design.

use antdt_core::Seed;
use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};

/// Largest share: beyond, hardly anything is left to train with.
const MAX: f32 = 0.95;

/// What the setting `dropout` of a model must be.
pub(crate) const EXPECTED: &str = "a share of at least 0 and at most 0.95, such as 0.1";

/// Returns whether a model can leave out this share.
pub(crate) fn fits(share: f32) -> bool {
    (0.0..=MAX).contains(&share)
}

/// Computes for each sample of a batch the number from which its choices are drawn. Samples without an epoch are of the first one.
pub(crate) fn draws(seed: Seed, samples: &[u64], epochs: &[u32], draws: &mut Vec<u64>) {
    let seed = seed.derive("dropout");
    let epochs = epochs.iter().copied().chain(std::iter::repeat(0));
    let draw = |(sample, epoch): (&u64, u32)| seed.derive_number(epoch.into()).derive_number(*sample).0;
    draws.clear();
    draws.extend(samples.iter().zip(epochs).map(draw));
}

/// The dropout of one pass through a model: which values of a layer are set to 0.
#[derive(Debug, Clone, Default)]
pub struct Dropout {
    /// For each sample, the number from which its choices are drawn; empty in an evaluation, which leaves nothing out.
    draws: Vec<u64>,
    /// Layers that came so far.
    layers: u64,
}

impl Dropout {
    /// Of a training step with these [`draws`].
    pub(crate) fn of_training(draws: &[u64]) -> Self {
        Self { draws: draws.to_vec(), layers: 0 }
    }

    /// Returns the dropout of an evaluation, which leaves out nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Leaves a share of the values of the next layer out: `[samples * positions, width]` to the same.
    pub(crate) fn apply<B: Backend>(&mut self, layer: Tensor<B, 2>, share: f32) -> Tensor<B, 2> {
        if share == 0.0 || self.draws.is_empty() {
            return layer;
        }
        let [rows, width] = layer.dims();
        let each = rows * width / self.draws.len();
        let mut mask = Vec::with_capacity(rows * width);
        for draw in &self.draws {
            choose(Seed(*draw).derive_number(self.layers), share, each, &mut mask);
        }
        self.layers += 1;
        let mask = Tensor::from_data(TensorData::new(mask, [rows, width]), &layer.device());
        layer * mask
    }
}

/// Appends a factor for each of so many values: 0 for those that are left out.
fn choose(seed: Seed, share: f32, count: usize, factors: &mut Vec<f32>) {
    let kept = 1.0 / (1.0 - share);
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of 2^32")]
    let below = (f64::from(share) * 4_294_967_296.0) as u64;
    let mut rng = seed.rng();
    let end = factors.len() + count;
    while factors.len() < end {
        let bits = rng.next_u64();
        for half in [bits >> 32, bits & 0xffff_ffff] {
            if factors.len() < end {
                factors.push(if half < below { 0.0 } else { kept });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use burn_flex::Flex;

    use super::*;

    fn masks(draws: &[u64], share: f32, width: usize) -> Vec<Vec<f32>> {
        let mut dropout = Dropout::of_training(draws);
        let ones = || Tensor::<Flex, 2>::ones([draws.len(), width], &Default::default());
        (0..2).map(|_| crate::flat::values(dropout.apply(ones(), share)).unwrap()).collect()
    }

    #[test]
    fn dropped_units_of_a_sample_depend_on_seed_epoch_and_sample_and_not_on_its_batch() {
        let key = |seed, samples: &[u64], epochs: &[u32]| {
            let mut out = vec![9];
            draws(Seed(seed), samples, epochs, &mut out);
            out
        };
        let all = key(1, &[3, 4, 5], &[0, 0, 1]);
        assert_eq!(all, [key(1, &[3], &[0]), key(1, &[4, 5], &[0, 1])].concat());
        assert_eq!(key(1, &[3], &[]), key(1, &[3], &[0]));
        for other in [key(2, &[3], &[0]), key(1, &[3], &[1]), key(1, &[4], &[0])] {
            assert_ne!(other, key(1, &[3], &[0]));
        }
        let whole = masks(&all, 0.5, 40);
        let alone = masks(&all[1..2], 0.5, 40);
        assert_eq!(whole[0][40..80], alone[0]);
        assert_eq!(whole[1][40..80], alone[1]);
        assert_ne!(alone[0], alone[1], "layers differ");
    }

    #[test]
    fn a_share_of_the_values_is_left_out_and_their_mean_stays() {
        let draws: Vec<u64> = (0..100).collect();
        for share in [0.1_f32, 0.5, 0.95] {
            let mask = masks(&draws, share, 101).swap_remove(0);
            #[allow(clippy::cast_precision_loss, reason = "ten thousand values")]
            let count = mask.len() as f32;
            #[allow(clippy::cast_precision_loss, reason = "ten thousand values")]
            let dropped = mask.iter().filter(|factor| **factor == 0.0).count() as f32 / count;
            let mean = mask.iter().sum::<f32>() / count;
            // Five standard errors.
            let error = 5.0 * (share * (1.0 - share) / count).sqrt();
            assert!((dropped - share).abs() < error, "{share}: {dropped}");
            assert!((mean - 1.0).abs() < error / (1.0 - share), "{share}: {mean}");
        }
        assert_eq!(masks(&draws, 0.0, 3)[0], [1.0; 300]);
    }

    #[test]
    fn an_evaluation_leaves_nothing_out() {
        let ones = Tensor::<Flex, 2>::ones([4, 8], &Default::default());
        assert_eq!(crate::flat::values(Dropout::none().apply(ones, 0.9)).unwrap(), [1.0; 32]);
    }
}
