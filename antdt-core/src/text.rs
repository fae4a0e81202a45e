//! Text forms of settings: durations with units, and the nearest known name to a misspelt one.

use std::time::Duration;

use crate::error::InvalidValue;

/// No setting is as long: 100 years. Sums of a few of them are times of a job, and moments of any clock.
const DURATION_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// Parses a duration: `5s`, `250ms`, `1.5m`, `1m30s`, `2h`; the units are those of `humantime`. A bare number
/// is refused, because its unit is easily forgotten.
///
/// # Errors
/// If there is no unit, an unknown one, or a number that is negative or too large.
pub fn parse_duration(text: &str) -> Result<Duration, InvalidValue> {
    named_duration("duration", text)
}

/// Parses a duration as [`parse_duration`] does, for a setting called `field`, which the error names.
///
/// # Errors
/// As [`parse_duration`].
pub fn named_duration(field: impl Into<String>, text: &str) -> Result<Duration, InvalidValue> {
    use humantime::DurationError as Error;
    let number = text.trim();
    let is_bare = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.');
    let expected = match humantime::parse_duration(text) {
        // A zero needs no unit there; here every number does.
        Ok(duration) if duration < DURATION_MAX && !is_bare => return Ok(duration),
        _ if is_bare => format!("a duration with its unit: did you mean {number}s or {number}ms?"),
        Ok(_) | Err(Error::NumberOverflow) => "whole nanoseconds and shorter than 100 years".to_owned(),
        Err(Error::UnknownUnit { .. }) => "a number with one of the units h, m, s, ms, us, ns".to_owned(),
        Err(Error::InvalidCharacter(_) | Error::NumberExpected(_) | Error::Empty) => {
            "a number with a unit, such as 5s, 250ms or 1m30s".to_owned()
        }
    };
    Err(InvalidValue::new(field, text, expected))
}

/// Formats a duration so that [`parse_duration`] returns the same one, without spaces: `1m30s`.
pub fn format_duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

/// Returns the beginning of a text for use in a message, shortened and without line ends and other control
/// characters.
pub fn beginning(text: &str) -> String {
    const SHOWN: usize = 60;
    let mut shown: String = text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns one line that locates an error in a text: line number, content of the line, and the message. `at`
/// is the range of bytes that the error is about.
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

/// Returns the word of `known` that is most similar to `word`, if at most a third of the letters differ.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let limit = (word.chars().count() / 3).max(1);
    known
        .iter()
        .map(|candidate| (strsim::osa_distance(word, candidate), *candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_units_and_read_back_as_written() {
        for (text, ms) in [
            ("5s", 5000),
            ("250ms", 250),
            ("2m", 120_000),
            ("1.5s", 1500),
            ("1m30s", 90_000),
            (" 1m 30 s", 90_000),
            ("1h", 3_600_000),
        ] {
            let duration = parse_duration(text).unwrap();
            assert_eq!(duration, Duration::from_millis(ms));
            assert_eq!(parse_duration(&format_duration(duration)).unwrap(), duration);
        }
        for text in [
            "",
            "s",
            "5",
            "5 parsecs",
            "-1s",
            "nans",
            "infs",
            "1e300h",
            "10000000000000000000s",
            "876000h",
            "0",
            "0.5ns",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
        assert_eq!(format_duration(Duration::from_millis(90_500)), "1m30s500ms");
        let refused = |text| parse_duration(text).unwrap_err().to_string();
        assert!(refused("876000h").ends_with("must be whole nanoseconds and shorter than 100 years"));
        assert!(refused("5 parsecs").contains("one of the units"), "{}", refused("5 parsecs"));
        assert!(refused("-1s").contains("a number with a unit"), "{}", refused("-1s"));
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
