//! What a sample of rows shows of one column. Pure.

use std::collections::{BTreeMap, HashSet};

use crate::data::format::RowField;

/// Values of a column that are counted one by one, at most.
pub(super) const VALUES_MAX: usize = 20;

/// The values of one column in a sample of rows.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    /// Rows.
    pub(super) rows: u64,
    /// What is counted as a row: [`ROWS`](Self::ROWS), or files.
    pub(super) unit: &'static str,
    /// Rows without a value.
    pub(super) missing: u64,
    /// Values that are numbers.
    pub(super) numbers: u64,
    /// Values that are whole numbers.
    pub(super) whole: u64,
    /// Values that are dates, with or without a time.
    pub(super) dates: u64,
    /// The least and the largest of the numbers.
    pub(super) least: f64,
    pub(super) most: f64,
    /// The mean of the numbers.
    pub(super) mean: f64,
    /// The sum of the squares of their distances from the mean.
    squares: f64,
    /// Whether each number is the one before it and one more.
    pub(super) counts_up: bool,
    /// How often each of the first different values occurs, in lower case, and as one form of a number; one more than
    /// [`VALUES_MAX`] if there are more.
    pub(super) values: BTreeMap<String, u64>,
    /// The first value that is no number.
    pub(super) word: Option<String>,
    /// All different values.
    distinct: HashSet<Vec<u8>>,
    last: f64,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            rows: 0,
            unit: Self::ROWS,
            missing: 0,
            numbers: 0,
            whole: 0,
            dates: 0,
            least: f64::INFINITY,
            most: f64::NEG_INFINITY,
            mean: 0.0,
            squares: 0.0,
            counts_up: true,
            values: BTreeMap::new(),
            word: None,
            distinct: HashSet::new(),
            last: f64::NAN,
        }
    }
}

impl Tally {
    /// The unit of a column of a file.
    pub(super) const ROWS: &str = "rows";

    /// Of a column whose values are looked at once for each of these.
    pub(super) fn of(unit: &'static str) -> Self {
        Self { unit, ..Self::default() }
    }

    /// Of a column that is not read.
    pub(super) fn unread(rows: u64) -> Self {
        Self { rows, missing: rows, ..Self::default() }
    }

    /// Counts the value of the next row.
    pub(super) fn add(&mut self, field: &RowField<'_>) {
        self.rows += 1;
        if field.is_missing() {
            self.missing += 1;
            return;
        }
        let number = field.real();
        // A number that is none is missing.
        let Some(text) = spelt(field) else { return };
        if let Some(number) = number {
            self.numbers += 1;
            self.whole += u64::from(number.fract() == 0.0);
            self.least = self.least.min(number);
            self.most = self.most.max(number);
            // Welford's way, which loses no digits where the mean is far from 0.
            let distance = number - self.mean;
            self.mean += distance / count(self.numbers);
            self.squares += distance * (number - self.mean);
            #[allow(clippy::float_cmp, reason = "whole numbers in a row")]
            let next = self.last.is_nan() || number == self.last + 1.0;
            self.counts_up &= next;
            self.last = number;
        } else {
            self.dates += u64::from(is_date(&text));
            self.word.get_or_insert_with(|| text.clone());
        }
        self.distinct.insert(text.clone().into_bytes());
        if self.values.len() <= VALUES_MAX || self.values.contains_key(&text) {
            *self.values.entry(text).or_default() += 1;
        }
    }

    /// Rows with a value.
    pub(super) const fn present(&self) -> u64 {
        self.rows - self.missing
    }

    /// Standard deviation of the numbers.
    pub(super) fn deviation(&self) -> f64 {
        (self.squares / count(self.numbers.max(1))).sqrt()
    }

    /// All different values, in no order: of words in lower case, and of numbers in one form.
    pub(super) fn all_values(&self) -> impl Iterator<Item = &str> {
        self.distinct.iter().filter_map(|value| std::str::from_utf8(value).ok())
    }

    /// Different values.
    pub(super) fn distinct(&self) -> u64 {
        self.distinct.len() as u64
    }
}

/// A value in the form in which equal ones are the same text: a word in lower case, and a number in one form; `None` if there is none.
pub(super) fn spelt(field: &RowField<'_>) -> Option<String> {
    match (field, field.real()) {
        (_, Some(number)) => Some(number.to_string()),
        (RowField::Text(text), None) => Some(String::from_utf8_lossy(text).trim().to_lowercase()),
        _ => None,
    }
}

#[allow(clippy::cast_precision_loss, reason = "a few thousand rows")]
const fn count(rows: u64) -> f64 {
    rows as f64
}

/// Whether a text begins with a date: three groups of digits, of which the first or the last is a year of four.
fn is_date(text: &str) -> bool {
    let day = text.split(['t', ' ']).next().unwrap_or_default();
    let groups: Vec<&str> = day.split(['-', '/', '.']).collect();
    let digits = |group: &str, most: usize| {
        (1..=most).contains(&group.len()) && group.bytes().all(|byte| byte.is_ascii_digit())
    };
    match groups[..] {
        [year, month, day] if year.len() == 4 => digits(year, 4) && digits(month, 2) && digits(day, 2),
        [day, month, year] => digits(day, 2) && digits(month, 2) && year.len() == 4 && digits(year, 4),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_by_kind() {
        let mut tally = Tally::default();
        for text in ["1", "2.0", "3", "", "NA", " ", "Word", "2024-01-31", "31.1.2024 10:00"] {
            tally.add(&RowField::of_text(text.as_bytes().into()));
        }
        assert_eq!((tally.rows, tally.missing, tally.present()), (9, 3, 6));
        assert_eq!((tally.numbers, tally.whole, tally.dates), (3, 3, 2));
        assert_eq!((tally.least, tally.most, tally.counts_up), (1.0, 3.0, true));
        assert_eq!((tally.word.as_deref(), tally.distinct()), (Some("word"), 6));
    }

    #[test]
    fn many_different_values_take_little_room() {
        let mut tally = Tally::default();
        for number in 0..1000 {
            tally.add(&RowField::Real(f64::from(number) / 7.0));
        }
        assert_eq!((tally.values.len(), tally.distinct()), (VALUES_MAX + 1, 1000));
        assert!(!tally.counts_up);
    }
}
