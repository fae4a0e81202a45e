//! Text forms of settings: durations with units, and near misses of names.

use std::time::Duration;

use crate::error::InvalidValue;

/// Units, from the longest to the shortest, in nanoseconds.
const UNITS: [(&str, u64); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];

/// Reads `5s`, `250ms`, `1.5m`, `2h`. A bare number is refused: nobody remembers whose unit it would be.
///
/// # Errors
/// If there is no unit, an unknown one, or a number that is negative, not finite or too large.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidValue> {
    named_duration("duration", text)
}

/// The same for a setting called `field`.
///
/// # Errors
/// As [`parse_duration`], with the setting's name.
pub fn named_duration(field: impl Into<String>, text: &str) -> Result<Duration, InvalidValue> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = (text[..end].trim(), text[end..].trim());
    let Ok(value) = number.parse::<f64>() else {
        return Err(InvalidValue::new(field, text, "a number with a unit, such as 5s, 250ms or 2m"));
    };
    if unit.is_empty() {
        let expected = format!("a duration with its unit: did you mean {number}s or {number}ms?");
        return Err(InvalidValue::new(field, text, expected));
    }
    let Some((_, ns)) = UNITS.iter().find(|(name, _)| *name == unit) else {
        return Err(InvalidValue::new(field, text, "a number with one of the units h, m, s, ms, us, ns"));
    };
    #[allow(clippy::cast_precision_loss, reason = "units are exact in f64")]
    let seconds = value * (*ns as f64) / 1e9;
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| InvalidValue::new(field, text, "not negative and shorter than 500 years"))
}

/// Writes a duration so that [`parse_duration`] reads the same one.
pub fn format_duration(duration: Duration) -> String {
    let ns = duration.as_nanos();
    if ns == 0 {
        return "0s".to_owned();
    }
    let (unit, size) =
        UNITS.iter().find(|(_, size)| ns.is_multiple_of(u128::from(*size))).expect("1 divides every number");
    format!("{}{unit}", ns / u128::from(*size))
}

/// The word of `known` nearest to `word`, if it could be a slip of the hand: a third of the letters at most.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    known
        .iter()
        .map(|candidate| (edits(word, candidate), *candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Edit distance with transpositions of neighbours (optimal string alignment).
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    rows[0] = (0..=b.len()).collect();
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let change = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + change);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_units_and_read_back_as_written() {
        for (text, ms) in [("5s", 5000), ("250ms", 250), ("2m", 120_000), ("1.5s", 1500), ("1h", 3_600_000)] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_millis(ms));
            assert_eq!(parse_duration(&format_duration(duration)).unwrap(), duration);
        }
        for text in ["", "s", "5", "5 parsecs", "-1s", "nans", "infs", "1e300h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }

    #[test]
    fn a_slip_of_the_hand_is_near_and_another_word_is_not() {
        let known = ["workers", "servers"];
        assert_eq!(nearest("wrokers", &known), Some("workers"));
        assert_eq!(nearest("server", &known), Some("servers"));
        assert_eq!(nearest("epochs", &known), None);
    }
}
