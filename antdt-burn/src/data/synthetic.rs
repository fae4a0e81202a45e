//! Generated clicks of Criteo's shape, with planted weights: the best reachable AUC is known.
//!
//! Source: our design. The shape (13 integers, 26 categories, missing values, frequencies by Zipf's law, a click
//! rate of about a quarter) follows the public Criteo logs.

use std::io::{self, Write};

use antdt_core::{DetRng, SampleRange, Seed};

use super::format::criteo::{CATEGORIES, INTEGERS, SCHEMA};
use super::{Dataset, MISSING, NO_CATEGORY, RowBatch, RowError, Schema};
use crate::scores::Scores;

/// Standard deviation of the planted weight of one category.
const CATEGORY_SCALE: f64 = 0.30;
/// Standard deviation of the planted weight of one integer column, per standard deviation of its logarithm.
const INTEGER_SCALE: f64 = 0.20;
/// Standard deviation of one planted interaction of two categories.
const INTERACTION_SCALE: f64 = 0.40;
/// Logit of a row whose weights are all 0.
const BIAS: f64 = -1.4;
/// Categorical columns that interact, two by two. The narrow ones: an interaction of wide columns has more values
/// than rows to learn them from.
const INTERACTIONS: [(usize, usize); 6] = [(0, 1), (2, 3), (4, 5), (0, 6), (1, 7), (3, 8)];
/// Rank of a planted interaction.
const LATENT: usize = 2;
/// Values of the narrowest and of the widest categorical column; the others lie between, evenly on a log scale.
const CARDINALITIES: (f64, f64) = (4.0, 300.0);

/// A data set of generated clicks: row `i` is a pure function of (seed, `i`), and no row is stored.
///
/// The label is drawn from a logistic model with fixed weights (planted ones) for the row's values and for
/// products of some pairs. No model can rank rows better than by the probabilities of that model; see
/// [`bayes_auc`](Self::bayes_auc).
#[derive(Debug, Clone)]
pub struct Clicks {
    seed: Seed,
    rows: u64,
    integers: Vec<Integer>,
    columns: Vec<Column>,
}

/// An integer column: a log-normal count.
#[derive(Debug, Clone)]
struct Integer {
    log_mean: f64,
    log_deviation: f64,
    missing: f64,
    weight: f64,
}

/// A categorical column, by value.
#[derive(Debug, Clone)]
struct Column {
    missing: f64,
    codes: Vec<u32>,
    weights: Vec<f64>,
    latent: Vec<[f64; LATENT]>,
}

impl Clicks {
    /// Returns the data set of `rows` rows, whose planted weights and values are generated from `seed`.
    pub fn new(seed: Seed, rows: u64) -> Self {
        let mut rng = seed.derive("planted weights").rng();
        // Every third column misses values, as about a third of Criteo's do.
        let missing = |column: usize| if column % 3 == 2 { 0.2 } else { 0.0 };
        let integers = (0..INTEGERS)
            .map(|column| Integer {
                log_mean: 1.0 + 3.0 * rng.unit(),
                log_deviation: 0.5 + rng.unit(),
                missing: missing(column),
                weight: INTEGER_SCALE * rng.normal(),
            })
            .collect();
        let columns =
            (0..CATEGORIES).map(|column| Column::plant(column, missing(column), &mut rng)).collect();
        Self { seed: seed.derive("clicks"), rows, integers, columns }
    }

    /// Returns the planted probability that this row is a click.
    pub fn probability(&self, row: u64) -> f64 {
        self.generate(row, &mut RowBatch::default())
    }

    /// Returns the AUC of ranking these rows by their planted probabilities, which is the best that a model
    /// can reach. `None` unless both labels occur.
    pub fn bayes_auc(&self, rows: SampleRange) -> Option<f64> {
        let mut batch = RowBatch::default();
        #[allow(clippy::cast_possible_truncation, reason = "a probability needs no more than f32")]
        let probabilities: Vec<f32> =
            (rows.start..rows.end).map(|row| self.generate(row, &mut batch) as f32).collect();
        let mut scores = Scores::default();
        scores.extend(&batch.labels, &probabilities);
        scores.auc()
    }

    /// Appends one row and returns its planted probability.
    fn generate(&self, row: u64, batch: &mut RowBatch) -> f64 {
        let mut rng = self.seed.derive_number(row).rng();
        let mut logit = BIAS;
        for column in &self.integers {
            // Both numbers are always drawn, so that a missing value does not shift the columns after it.
            let (present, normal) = (rng.unit() >= column.missing, rng.normal());
            if !present {
                batch.numeric.push(MISSING);
                continue;
            }
            let value = (column.log_mean + column.log_deviation * normal).exp().floor();
            // The weight belongs to the value that is written, not to the draw behind it.
            logit += column.weight * (value.ln_1p() - column.log_mean) / column.log_deviation;
            #[allow(clippy::cast_possible_truncation, reason = "e^(4 + 1.5 * 9) fits, and casts saturate")]
            batch.numeric.push(value as i32);
        }
        let mut picked: [Option<usize>; CATEGORIES] = [None; CATEGORIES];
        for (picked, column) in picked.iter_mut().zip(&self.columns) {
            let (present, value) = (rng.unit() >= column.missing, column.draw(&mut rng));
            if present {
                *picked = Some(value);
                logit += column.weights[value];
            }
            batch.categories.push(picked.map_or(NO_CATEGORY, |value| column.codes[value]));
        }
        for (a, b) in INTERACTIONS {
            if let (Some(x), Some(y)) = (picked[a], picked[b]) {
                let (x, y) = (&self.columns[a].latent[x], &self.columns[b].latent[y]);
                logit += INTERACTION_SCALE * x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
            }
        }
        let probability = 1.0 / (1.0 + (-logit).exp());
        batch.labels.push(f32::from(u8::from(rng.unit() < probability)));
        probability
    }
}

impl Column {
    fn plant(column: usize, missing: f64, rng: &mut DetRng) -> Self {
        let (narrow, wide) = CARDINALITIES;
        #[allow(clippy::cast_precision_loss, reason = "a column number")]
        let position = column as f64 / (CATEGORIES - 1) as f64;
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 4 and 300")]
        let values = (narrow * (wide / narrow).powf(position)).round() as usize;
        // Latent values are scaled so that a product of two has standard deviation 1.
        #[allow(clippy::cast_precision_loss, reason = "a small constant")]
        let scale = (LATENT as f64).powf(-0.25);
        let name = Seed(column as u64);
        Self {
            missing,
            codes: (0..values)
                .map(|value| {
                    #[allow(clippy::cast_possible_truncation, reason = "32 of the 64 bits are the code")]
                    let code = name.derive_number(value as u64).0 as u32;
                    code.max(NO_CATEGORY + 1)
                })
                .collect(),
            weights: (0..values).map(|_| CATEGORY_SCALE * rng.normal()).collect(),
            latent: (0..values).map(|_| std::array::from_fn(|_| scale * rng.normal())).collect(),
        }
    }

    /// Draws a value: the logarithm of its rank is uniform, so frequencies fall as 1 / rank (Zipf's law).
    fn draw(&self, rng: &mut DetRng) -> usize {
        #[allow(clippy::cast_precision_loss, reason = "at most 300")]
        let rank = (self.codes.len() as f64 + 1.0).powf(rng.unit());
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and 301")]
        (rank as usize - 1).min(self.codes.len() - 1)
    }
}

impl Dataset for Clicks {
    fn rows(&self) -> u64 {
        self.rows
    }

    fn schema(&self) -> Schema {
        SCHEMA
    }

    fn read(&mut self, rows: &[u64], batch: &mut RowBatch) -> Result<(), RowError> {
        for row in rows {
            if *row >= self.rows {
                return Err(RowError::outside(*row, self.rows));
            }
            self.generate(*row, batch);
        }
        Ok(())
    }
}

/// Writes rows `0..rows` of [`Clicks`] in Criteo's format. Read back, they are the same rows.
///
/// ```
/// let mut text = Vec::new();
/// antdt_burn::write_tsv(2, antdt_core::Seed(7), &mut text)?;
/// assert_eq!(text.iter().filter(|byte| **byte == b'\t').count(), 2 * 39);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If `out` cannot be written.
pub fn write_tsv(rows: u64, seed: Seed, out: &mut impl Write) -> io::Result<()> {
    let clicks = Clicks::new(seed, rows);
    let (mut batch, mut line) = (RowBatch::default(), Vec::new());
    for row in 0..rows {
        batch.clear();
        clicks.generate(row, &mut batch);
        line.clear();
        write!(line, "{}", batch.labels[0])?;
        for value in &batch.numeric {
            line.push(b'\t');
            if *value != MISSING {
                write!(line, "{value}")?;
            }
        }
        for code in &batch.categories {
            line.push(b'\t');
            if *code != NO_CATEGORY {
                write!(line, "{code:08x}")?;
            }
        }
        line.push(b'\n');
        out.write_all(&line)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_does_not_depend_on_the_rows_read_before_it() {
        let mut clicks = Clicks::new(Seed(3), 1000);
        let (mut alone, mut among) = (RowBatch::default(), RowBatch::default());
        clicks.read(&[500], &mut alone).unwrap();
        clicks.read(&[999, 0, 500], &mut among).unwrap();
        assert_eq!(alone.labels[0], among.labels[2]);
        assert_eq!(alone.numeric[..], among.numeric[2 * INTEGERS..]);
        assert_eq!(alone.categories[..], among.categories[2 * CATEGORIES..]);
        let mut other = RowBatch::default();
        Clicks::new(Seed(4), 1000).read(&[500], &mut other).unwrap();
        assert_ne!(alone, other);
    }

    #[test]
    fn a_row_outside_the_data_set_is_an_error() {
        let error = Clicks::new(Seed(3), 10).read(&[9, 10], &mut RowBatch::default()).unwrap_err();
        assert_eq!(error, RowError::outside(10, 10));
    }

    #[test]
    fn clicks_are_a_quarter_and_the_planted_probabilities_are_calibrated() {
        let rows = 20_000;
        let clicks = Clicks::new(Seed(1), rows);
        let mut batch = RowBatch::default();
        let expected: f64 = (0..rows).map(|row| clicks.generate(row, &mut batch)).sum();
        let found: f64 = batch.labels.iter().map(|label| f64::from(*label)).sum();
        // The standard deviation of the number of clicks is below 0.5 * sqrt(rows) = 71.
        assert!((expected - found).abs() < 300.0, "{found} clicks where {expected} were planted");
        #[allow(clippy::cast_precision_loss, reason = "a count of samples")]
        let rate = found / rows as f64;
        assert!((0.15..0.40).contains(&rate), "click rate {rate}");
        let auc = clicks.bayes_auc(SampleRange { start: 0, end: rows }).unwrap();
        assert!((0.75..0.92).contains(&auc), "best AUC {auc}");
    }

    #[test]
    fn frequencies_fall_with_the_rank() {
        let mut clicks = Clicks::new(Seed(1), 20_000);
        let mut batch = RowBatch::default();
        clicks.read(&(0..20_000).collect::<Vec<_>>(), &mut batch).unwrap();
        let widest = &clicks.columns[CATEGORIES - 1];
        let count = |code: u32| {
            batch.categories.iter().skip(CATEGORIES - 1).step_by(CATEGORIES).filter(|c| **c == code).count()
        };
        let (first, tenth, hundredth) =
            (count(widest.codes[0]), count(widest.codes[9]), count(widest.codes[99]));
        assert!(first > 4 * tenth && tenth > 4 * hundredth, "{first}, {tenth}, {hundredth}");
    }
}
