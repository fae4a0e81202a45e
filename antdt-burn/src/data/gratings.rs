//! [`Gratings`]: generated pictures of stripes, whose direction and width determine the class.
//!
//! Source: our design.

use std::f64::consts::{PI, TAU};

use antdt_core::Seed;

use super::RowError;
use super::example::{ExampleBatch, ExampleShape, Examples};
use super::images::{CLASSES, COLOURS, values};

/// Directions of the stripes; half of the classes have broad stripes, half narrow ones.
const DIRECTIONS: usize = 5;

/// Pixels from one broad stripe to the next, and from one narrow one: three classes of width would need larger pictures.
const PERIODS: [f64; 2] = [8.0, 4.0];

/// How strong the stripes are beside the noise, whose standard deviation is 1: a pixel alone tells nothing, its
/// neighbourhood all.
const CONTRAST: f64 = 1.5;

/// A data set of generated pictures: row `i` is a pure function of (seed, `i`), and no row is stored.
///
/// The position and the colours of the stripes are drawn for each picture, so that the mean picture of a
/// class is grey and a linear model learns nothing.
#[derive(Debug, Clone)]
pub struct Gratings {
    seed: Seed,
    rows: u64,
    side: usize,
}

impl Gratings {
    /// Returns the data set of `rows` pictures of `side` by `side` pixels, generated from `seed`.
    pub fn new(seed: Seed, rows: u64, side: usize) -> Self {
        Self { seed: seed.derive("gratings"), rows, side }
    }
}

impl Examples for Gratings {
    fn rows(&self) -> u64 {
        self.rows
    }

    fn shape(&self) -> ExampleShape {
        ExampleShape { inputs: values(self.side), positions: 1, classes: CLASSES }
    }

    #[allow(clippy::cast_precision_loss, reason = "classes and pixels")]
    fn read(&mut self, rows: &[u64], batch: &mut ExampleBatch) -> Result<(), RowError> {
        for row in rows {
            if *row >= self.rows {
                return Err(RowError::outside(*row, self.rows));
            }
            let mut rng = self.seed.derive_number(*row).rng();
            let class = usize::try_from(rng.below(CLASSES as u64)).expect("one of ten");
            batch.classes.push(i32::try_from(class).expect("one of ten"));
            let direction = PI * (class % DIRECTIONS) as f64 / DIRECTIONS as f64;
            let turns = 1.0 / PERIODS[class / DIRECTIONS];
            let (across, down, phase) = (direction.cos() * turns, direction.sin() * turns, rng.unit());
            for _ in 0..COLOURS {
                // Dark where another colour is bright, now and then.
                let strength = CONTRAST * if rng.unit() < 0.5 { -1.0 } else { 1.0 } * (0.5 + rng.unit());
                for at in 0..self.side * self.side {
                    let (x, y) = ((at % self.side) as f64, (at / self.side) as f64);
                    let value = strength * (TAU * (across * x + down * y + phase)).sin() + rng.normal();
                    #[allow(clippy::cast_possible_truncation, reason = "an input is an f32")]
                    batch.inputs.push(value as f32);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_does_not_depend_on_the_rows_read_before_it() {
        let mut data = Gratings::new(Seed(3), 1000, 8);
        let read = |data: &mut Gratings, rows: &[u64]| {
            let mut batch = ExampleBatch::default();
            data.read(rows, &mut batch).unwrap();
            batch
        };
        let (alone, among) = (read(&mut data, &[500]), read(&mut data, &[999, 0, 500]));
        assert_eq!((alone.classes[0], &alone.inputs[..]), (among.classes[2], &among.inputs[2 * values(8)..]));
        assert_ne!(alone, read(&mut Gratings::new(Seed(4), 1000, 8), &[500]));
        let error = data.read(&[999, 1000], &mut ExampleBatch::default()).unwrap_err();
        assert_eq!(error, RowError::outside(1000, 1000));
    }

    #[test]
    fn all_classes_occur_and_the_mean_picture_of_each_is_grey() {
        let mut data = Gratings::new(Seed(3), 4000, 8);
        let mut batch = ExampleBatch::default();
        data.read(&(0..4000).collect::<Vec<_>>(), &mut batch).unwrap();
        for class in 0..CLASSES {
            let of_class = batch.inputs.chunks(values(8)).zip(&batch.classes);
            let of_class = of_class.filter(|(_, found)| usize::try_from(**found) == Ok(class));
            let (mut mean, mut count) = (vec![0.0; values(8)], 0.0);
            for (picture, _) in of_class {
                count += 1.0;
                mean.iter_mut().zip(picture).for_each(|(mean, value)| *mean += value);
            }
            assert!(count > 300.0, "class {class}: {count}");
            // A pixel's standard deviation is below 1.6, that of its mean over 300 below 0.1.
            let largest = mean.iter().fold(0.0_f32, |largest, value| largest.max((value / count).abs()));
            assert!(largest < 0.45, "class {class}: {largest}");
        }
    }
}
