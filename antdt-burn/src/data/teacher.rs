//! [`Teacher`]: generated samples of numbers, whose classes follow from a fixed rule, with noise in the
//! labels.
//!
//! Source: our design.

use antdt_core::Seed;

use super::RowError;
use super::example::{ExampleBatch, ExampleShape, Examples};

/// Number of classes.
pub const CLASSES: usize = 10;

/// Clusters of each class: a class is no single blob.
const CLUSTERS_PER_CLASS: usize = 2;

/// Standard deviation of a cluster's centre in each of 256 dimensions, where that of a sample around it is 1. Two centres
/// are then 6.8 apart, and one sample in 150 lies nearer to the centre of another class.
const CENTRE_SCALE: f64 = 0.3;

/// Share of the samples whose label is replaced by a random class.
pub const LABEL_NOISE: f64 = 0.1;

/// A data set of generated samples: row `i` is a pure function of (seed, `i`), and no row is stored.
///
/// A sample is a normal draw around the centre of one of twenty clusters, two for each of ten classes. One sample in ten
/// has a random label, so no model is right more often than in 91 % of the samples.
#[derive(Debug, Clone)]
pub struct Teacher {
    seed: Seed,
    rows: u64,
    features: usize,
    /// `[clusters, features]`; cluster `c` is of class `c % CLASSES`.
    centres: Vec<f32>,
}

impl Teacher {
    /// Returns a data set of `rows` samples with `features` values each. `seed` determines the centres of the
    /// clusters and the samples around them.
    pub fn new(seed: Seed, rows: u64, features: usize) -> Self {
        let mut rng = seed.derive("centres").rng();
        // Centres of any dimension are as far apart as those of 256.
        #[allow(clippy::cast_precision_loss, reason = "at most 65,536")]
        let scale = CENTRE_SCALE * (256.0 / features as f64).sqrt();
        #[allow(clippy::cast_possible_truncation, reason = "an input is an f32")]
        let centres =
            (0..CLASSES * CLUSTERS_PER_CLASS * features).map(|_| (scale * rng.normal()) as f32).collect();
        Self { seed: seed.derive("vectors"), rows, features, centres }
    }
}

impl Examples for Teacher {
    fn rows(&self) -> u64 {
        self.rows
    }

    fn shape(&self) -> ExampleShape {
        ExampleShape { inputs: self.features, positions: 1, classes: CLASSES }
    }

    fn read(&mut self, rows: &[u64], batch: &mut ExampleBatch) -> Result<(), RowError> {
        for row in rows {
            if *row >= self.rows {
                return Err(RowError::outside(*row, self.rows));
            }
            let mut rng = self.seed.derive_number(*row).rng();
            let cluster = below(&mut rng, CLASSES * CLUSTERS_PER_CLASS);
            // Both are always drawn, so that the values do not depend on the label.
            let (is_noise, other) = (rng.unit() < LABEL_NOISE, below(&mut rng, CLASSES));
            let class = if is_noise { other } else { cluster % CLASSES };
            batch.classes.push(i32::try_from(class).expect("one of ten"));
            #[allow(clippy::cast_possible_truncation, reason = "an input is an f32")]
            batch.inputs.extend(
                self.centres[cluster * self.features..][..self.features]
                    .iter()
                    .map(|centre| centre + rng.normal() as f32),
            );
        }
        Ok(())
    }
}

fn below(rng: &mut antdt_core::DetRng, bound: usize) -> usize {
    usize::try_from(rng.below(bound as u64)).expect("below the bound")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(data: &mut Teacher, rows: &[u64]) -> ExampleBatch {
        let mut batch = ExampleBatch::default();
        data.read(rows, &mut batch).unwrap();
        batch
    }

    #[test]
    fn a_row_does_not_depend_on_the_rows_read_before_it() {
        let mut data = Teacher::new(Seed(3), 1000, 20);
        let (alone, among) = (read(&mut data, &[500]), read(&mut data.clone(), &[999, 0, 500]));
        assert_eq!((alone.classes[0], &alone.inputs[..]), (among.classes[2], &among.inputs[40..]));
        assert_ne!(alone, read(&mut Teacher::new(Seed(4), 1000, 20), &[500]));
        let error = data.read(&[999, 1000], &mut ExampleBatch::default()).unwrap_err();
        assert_eq!(error, RowError::outside(1000, 1000));
    }

    #[test]
    fn the_nearest_centre_tells_the_class_but_for_the_noise() {
        for features in [64, 256] {
            let mut data = Teacher::new(Seed(1), 4000, features);
            let batch = read(&mut data, &(0..4000).collect::<Vec<_>>());
            let right = batch.inputs.chunks(features).zip(&batch.classes).filter(|(sample, class)| {
                let distance = |centre: &[f32]| -> f32 {
                    sample.iter().zip(centre).map(|(x, c)| (x - c) * (x - c)).sum()
                };
                let centres = data.centres.chunks(features).map(distance).enumerate();
                let nearest = centres.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap().0;
                i32::try_from(nearest % CLASSES).unwrap() == **class
            });
            let share = right.count() as f64 / 4000.0;
            // 0.91 less the samples that lie nearer to another class; the standard deviation is 0.005.
            assert!((0.85..0.93).contains(&share), "{features}: {share}");
        }
    }
}
