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

/// No setting is as long: 100 years. Sums of a few of them are times of a job, and moments of any clock.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

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
    // From the end: `1e3s` is a number too.
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = (number.trim(), text[number.len()..].trim());
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
        .ok()
        .filter(|duration| *duration < DURATION_MAX)
        .ok_or_else(|| InvalidValue::new(field, text, "not negative and shorter than 100 years"))
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

/// As much of a text as a message shows, without its line ends and what else would garble a terminal.
pub fn beginning(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut shown: String = text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Where in a text an error is, in one line: its number, what stands there, and the message. `at` are the bytes it is
/// about.
pub fn located(text: &str, at: Option<std::ops::Range<usize>>, message: &str) -> String {
    let message = message.lines().map(str::trim).collect::<Vec<_>>().join(", ");
    let Some(at) = at else { return message };
    let before = &text.as_bytes()[..at.start.min(text.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count();
    let there = text.lines().nth(line).unwrap_or_default().trim();
    let spans_lines = text.get(at).is_some_and(|part| part.trim_end().contains('\n'));
    if spans_lines || there.is_empty() {
        return format!("line {}: {message}", line + 1);
    }
    format!("line {}, `{}`: {message}", line + 1, beginning(there))
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
        for text in ["", "s", "5", "5 parsecs", "-1s", "nans", "infs", "1e300h", "1e19s", "876000h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(parse_duration("1e3 s").unwrap(), Duration::from_secs(1000));
        let refused = |text| parse_duration(text).unwrap_err().to_string();
        assert!(refused("1e19s").ends_with("must be not negative and shorter than 100 years"));
        assert!(refused("5").contains("did you mean 5s or 5ms?"), "{}", refused("5"));
        assert_eq!(format_duration(Duration::ZERO), "0s");
    }

    #[test]
    fn an_error_is_shown_where_it_is_in_one_line() {
        let text = "a = 1\n\n  b = x # so\n";
        assert_eq!(
            located(text, Some(13..14), "no value\nexpected 1"),
            "line 3, `b = x # so`: no value, expected 1"
        );
        assert_eq!(located(text, Some(0..text.len()), "c is missing"), "line 1: c is missing");
        assert_eq!(located(text, None, "c is missing"), "c is missing");
        assert_eq!(located("", Some(0..0), "m"), "line 1: m");
        assert_eq!(located("ä", Some(1..9), "m"), "line 1, `ä`: m");
        assert_eq!(beginning("a\nb\u{1b}c"), "a b c");
        assert_eq!(beginning(&"ä".repeat(61)).chars().count(), 61);
    }

    #[test]
    fn a_slip_of_the_hand_is_near_and_another_word_is_not() {
        let known = ["workers", "servers"];
        assert_eq!(nearest("wrokers", &known), Some("workers"));
        assert_eq!(nearest("server", &known), Some("servers"));
        assert_eq!(nearest("epochs", &known), None);
    }
}
