//! Text forms: durations with units, near misses, and the serde glue for types that know none.

use std::time::Duration;

use antdt_core::{InvalidValue, SyncMode};

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

pub(super) fn named_duration(field: impl Into<String>, text: &str) -> Result<Duration, InvalidValue> {
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

pub(super) fn parse_sync_mode(text: &str) -> Result<SyncMode, InvalidValue> {
    const ALL: [SyncMode; 3] = [SyncMode::AllReduce, SyncMode::PsBsp, SyncMode::PsAsp];
    super::choose("--sync", text, &ALL, SyncMode::name)
}

/// [`SyncMode`] by name.
pub(super) mod sync_mode {
    use antdt_core::SyncMode;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(mode: &SyncMode, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(mode.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SyncMode, D::Error> {
        super::parse_sync_mode(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A duration with its unit.
pub(super) mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::format_duration(*duration))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        super::parse_duration(&String::deserialize(from)?).map_err(D::Error::custom)
    }
}

/// A value by its text form.
pub(super) mod displayed {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
        value.to_string().serialize(to)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// An optional value by its text form.
pub(super) mod option {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(value: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(to)
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        Option::<String>::deserialize(from)?.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}

/// A list of values by their text forms.
pub(super) mod list {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<T: Display, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(values.iter().map(ToString::to_string))
    }

    pub(crate) fn deserialize<'de, T, D>(from: D) -> Result<Vec<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        Vec::<String>::deserialize(from)?.iter().map(|text| text.parse().map_err(D::Error::custom)).collect()
    }
}
