//! Generated text: sentences of a small invented language.
//!
//! Source: our design.

use antdt_core::{DetRng, Permutation, Seed};

use super::RowError;
use super::example::{ExampleBatch, ExampleShape, Examples};
use super::text::{self, BYTES};

/// Words of the language.
const WORDS: usize = 64;

/// The chance of each of the words that may follow a word. Falling, so that there is a best guess, and one that is worth
/// more than the others.
const FOLLOWERS: [f64; 4] = [0.5, 0.25, 0.15, 0.1];

/// The chance that a word ends its sentence.
const END_OF_SENTENCE: f64 = 0.1;

/// A data set of generated windows of text: row `i` is a pure function of (seed, `i`), and no row is stored.
///
/// The language has 64 words of two to seven letters. Four words may follow each word, with fixed chances, after a space or,
/// one time in ten, after the end of a sentence. A model first learns which letters are frequent, then the words, then which
/// word follows which.
#[derive(Debug, Clone)]
pub struct Prose {
    seed: Seed,
    rows: u64,
    context: usize,
    words: Vec<Vec<u8>>,
    /// For each place in [`FOLLOWERS`], the word that follows each word. Permutations, so that all words are equally frequent.
    next: Vec<Permutation>,
}

impl Prose {
    /// Returns the data set of `rows` windows of `context + 1` bytes, whose language and values are generated
    /// from `seed`.
    pub fn new(seed: Seed, rows: u64, context: usize) -> Self {
        let mut rng = seed.derive("words").rng();
        let mut words: Vec<Vec<u8>> = Vec::new();
        while words.len() < WORDS {
            let word: Vec<u8> = (0..2 + rng.below(6)).map(|at| letter(&mut rng, at)).collect();
            if !words.contains(&word) {
                words.push(word);
            }
        }
        let next = (0..FOLLOWERS.len() as u64)
            .map(|place| Permutation::new(seed.derive("grammar").derive_number(place), WORDS as u64));
        Self { next: next.collect(), seed: seed.derive("prose"), rows, context, words }
    }

    /// Returns the lowest perplexity per byte that a model can reach: that of a model which knows all words,
    /// and how often each word follows each other.
    #[allow(clippy::cast_precision_loss, reason = "a few hundred")]
    pub fn perplexity_floor(&self) -> f64 {
        // Two followers may be one word: its chances add up.
        let word_nats = (0..WORDS as u64).map(|word| {
            let mut chances = vec![0.0; WORDS];
            for (next, chance) in self.next.iter().zip(FOLLOWERS) {
                chances[index(next.at(word))] += chance;
            }
            entropy(&chances)
        });
        let nats = word_nats.sum::<f64>() / WORDS as f64 + entropy(&[END_OF_SENTENCE, 1.0 - END_OF_SENTENCE]);
        let letters: usize = self.words.iter().map(Vec::len).sum();
        // A space or a line break follows each word, and a full stop goes before the break.
        let bytes = letters as f64 / WORDS as f64 + 1.0 + END_OF_SENTENCE;
        (nats / bytes).exp()
    }

    /// A row's window of text.
    fn window(&self, row: u64) -> Vec<u8> {
        let mut rng = self.seed.derive_number(row).rng();
        let mut word = rng.below(WORDS as u64);
        // As if cut from a longer text: a window may begin within a word.
        let skipped = index(rng.below(8));
        let mut text = Vec::new();
        while text.len() <= skipped + self.context {
            text.extend_from_slice(&self.words[index(word)]);
            text.extend_from_slice(if rng.unit() < END_OF_SENTENCE { b".\n" } else { b" " });
            let mut chance = rng.unit();
            let place = FOLLOWERS.iter().position(|share| {
                chance -= share;
                chance < 0.0
            });
            // Sums of shares may fall short of 1 by a rounding error.
            word = self.next[place.unwrap_or(FOLLOWERS.len() - 1)].at(word);
        }
        text[skipped..=skipped + self.context].to_vec()
    }
}

/// Vowels and consonants take turns, so that words look like words.
fn letter(rng: &mut DetRng, at: u64) -> u8 {
    let letters: &[u8] = if at.is_multiple_of(2) { b"bcdfghklmnprstvw" } else { b"aeiou" };
    letters[index(rng.below(letters.len() as u64))]
}

fn index(number: u64) -> usize {
    usize::try_from(number).expect("below the number of words")
}

/// Entropy of a distribution, in nats.
fn entropy(chances: &[f64]) -> f64 {
    chances.iter().filter(|chance| **chance > 0.0).map(|chance| -chance * chance.ln()).sum()
}

impl Examples for Prose {
    fn rows(&self) -> u64 {
        self.rows
    }

    fn shape(&self) -> ExampleShape {
        ExampleShape { inputs: self.context, positions: self.context, classes: BYTES }
    }

    fn read(&mut self, rows: &[u64], batch: &mut ExampleBatch) -> Result<(), RowError> {
        for row in rows {
            if *row >= self.rows {
                return Err(RowError::outside(*row, self.rows));
            }
            text::push(&self.window(*row), batch);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_row_does_not_depend_on_the_rows_read_before_it() {
        let mut data = Prose::new(Seed(3), 100, 12);
        let read = |data: &mut Prose, rows: &[u64]| {
            let mut batch = ExampleBatch::default();
            data.read(rows, &mut batch).unwrap();
            batch
        };
        let (alone, among) = (read(&mut data, &[50]), read(&mut data, &[99, 0, 50]));
        assert_eq!((&alone.inputs[..], &alone.classes[..]), (&among.inputs[24..], &among.classes[24..]));
        assert_ne!(alone, read(&mut Prose::new(Seed(4), 100, 12), &[50]));
        let error = data.read(&[99, 100], &mut ExampleBatch::default()).unwrap_err();
        assert_eq!(error, RowError::outside(100, 100));
    }

    #[test]
    fn the_language_has_its_words_and_each_is_followed_as_the_floor_says() {
        let data = Prose::new(Seed(1), 1, 400_000);
        let text = String::from_utf8(data.window(0)).unwrap();
        let words: Vec<&str> = text.split_ascii_whitespace().map(|word| word.trim_end_matches('.')).collect();
        let words = &words[1..words.len() - 1];
        let (mut pairs, mut firsts) = (BTreeMap::new(), BTreeMap::new());
        for pair in words.windows(2) {
            *pairs.entry((pair[0], pair[1])).or_insert(0.0) += 1.0;
            *firsts.entry(pair[0]).or_insert(0.0) += 1.0;
        }
        assert_eq!(firsts.len(), WORDS);
        // The entropy of a word given the one before it, and that of what ends it, as counted.
        let total: f64 = firsts.values().sum();
        let mut nats: f64 =
            pairs.iter().map(|((first, _), count)| -count * f64::ln(count / firsts[first])).sum();
        let stops = text.bytes().filter(|byte| *byte == b'.').count() as f64;
        nats += total * entropy(&[stops / total, 1.0 - stops / total]);
        let counted = (nats / text.len() as f64).exp();
        let floor = data.perplexity_floor();
        assert!((counted - floor).abs() < 0.01, "{counted}, by the formula {floor}");
    }
}
