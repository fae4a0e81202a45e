//! The label of a table: which of its values are 1. Pure.
//!
//! The rule for two values: of numbers the larger one is 1; of words those that say yes (`yes`, `true`, `y`, `t`, `on`, `positive`,
//! `pos`); of other words the later one in the alphabet. A condition, as in `rating>=4` or `species=setosa`, makes two classes of any
//! column.

use super::ColumnError;
use super::tally::{Tally, VALUES_MAX};
use crate::data::format::RowField;

/// Words that say no and yes.
const PAIRS: [(&str, &str); 7] = [
    ("no", "yes"),
    ("false", "true"),
    ("n", "y"),
    ("f", "t"),
    ("off", "on"),
    ("negative", "positive"),
    ("neg", "pos"),
];

/// A condition of a label on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Test {
    AtLeast,
    Above,
    Is,
}

/// What makes a row a 1.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Label {
    /// Numbers: one is 0, the other 1.
    Numbers { zero: f64, one: f64 },
    /// Words, in lower case: one is 0, the other 1.
    Words { zero: String, one: String },
    /// A number of at least this is 1.
    AtLeast(f64),
    /// A number above this is 1.
    Above(f64),
    /// This value, in lower case, is 1, and all others 0.
    Is(String),
}

/// Splits what `--label` says into the name of a column and a condition; `is_name` says whether a text is a column's name.
pub(super) fn asked(
    text: &str,
    is_name: impl Fn(&str) -> bool,
) -> Result<(&str, Option<Label>), ColumnError> {
    if is_name(text) {
        return Ok((text, None));
    }
    let tests = [(">=", Test::AtLeast), (">", Test::Above), ("=", Test::Is)];
    let Some((at, sign, test)) = tests.iter().find_map(|(sign, test)| Some((text.find(sign)?, sign, *test)))
    else {
        return Ok((text, None));
    };
    let (name, value) = (text[..at].trim(), text[at + sign.len()..].trim());
    let number = || value.parse::<f64>().ok().filter(|value| value.is_finite());
    let label = match test {
        Test::Is if !value.is_empty() => Some(Label::Is(value.to_lowercase())),
        Test::Is => None,
        Test::AtLeast => number().map(Label::AtLeast),
        Test::Above => number().map(Label::Above),
    };
    label.map_or_else(
        || Err(ColumnError::Condition { text: text.to_owned() }),
        |label| Ok((name, Some(label))),
    )
}

impl Label {
    /// The rule for a column with these values.
    pub(super) fn infer(name: &str, tally: &Tally) -> Result<Self, ColumnError> {
        let refused = |what: String| Err(ColumnError::Label { name: name.to_owned(), what });
        let rows = format!("{} {}", tally.rows, tally.unit);
        if tally.present() == 0 {
            return refused(format!("has no value in the {rows} looked at"));
        }
        let values: Vec<&str> = tally.values.keys().map(String::as_str).collect();
        if values.len() > 2 {
            let some = values.iter().take(4).copied().collect::<Vec<_>>().join(", ");
            let many = if values.len() > VALUES_MAX { "more than " } else { "" };
            let count = values.len().min(VALUES_MAX);
            return refused(format!("has {many}{count} values ({some}, …) in the {rows} looked at"));
        }
        if tally.numbers == tally.present() {
            let numbers: Vec<f64> = values.iter().filter_map(|value| value.parse().ok()).collect();
            let (least, most) = (tally.least, tally.most);
            return match numbers.len() {
                1 if least != 0.0 && least != 1.0 => {
                    refused(format!("is {least} in all of the {rows} looked at"))
                }
                1 => Ok(Self::Numbers { zero: 0.0, one: 1.0 }),
                _ => Ok(Self::Numbers { zero: least, one: most }),
            };
        }
        let known = PAIRS.iter().find(|(no, yes)| values.iter().all(|value| value == no || value == yes));
        match (known, &values[..]) {
            (Some((no, yes)), _) => Ok(Self::Words { zero: (*no).to_owned(), one: (*yes).to_owned() }),
            // In the order of the alphabet.
            (None, [first, second]) => {
                Ok(Self::Words { zero: (*first).to_owned(), one: (*second).to_owned() })
            }
            _ => refused(format!("is '{}' in all of the {rows} looked at", values[0])),
        }
    }

    /// The label of a row; `None` if the value is none of the two.
    pub(super) fn of(&self, field: &RowField<'_>) -> Option<bool> {
        match self {
            Self::Numbers { zero, one } => {
                let value = field.real()?;
                // Exactly as they are written, or as the same number.
                #[allow(clippy::float_cmp, reason = "two values of the file itself")]
                if value == *one { Some(true) } else { (value == *zero).then_some(false) }
            }
            Self::Words { zero, one } => {
                if field.is_word(one) {
                    Some(true)
                } else {
                    field.is_word(zero).then_some(false)
                }
            }
            Self::AtLeast(limit) => field.real().map(|value| value >= *limit),
            Self::Above(limit) => field.real().map(|value| value > *limit),
            Self::Is(word) => match field {
                RowField::Missing => None,
                field => Some(field.is_word(word)),
            },
        }
    }

    /// The rule in words: `Yes is 1, No is 0`.
    pub(super) fn rule(&self) -> String {
        match self {
            Self::Numbers { zero, one } => format!("{one} is 1, {zero} is 0"),
            Self::Words { zero, one } => format!("{one} is 1, {zero} is 0"),
            Self::AtLeast(limit) => format!("{limit} and more is 1, less is 0"),
            Self::Above(limit) => format!("more than {limit} is 1, the rest 0"),
            Self::Is(word) => format!("{word} is 1, all others are 0"),
        }
    }

    /// What a value of the column must be, for error texts.
    pub(super) const fn expected(&self) -> &'static str {
        match self {
            Self::Numbers { .. } | Self::Words { .. } => {
                "one of the label's two values; the label needs two classes, which a condition makes: --label 'COLUMN=VALUE'"
            }
            Self::AtLeast(_) | Self::Above(_) => "a number",
            Self::Is(_) => "a value of the label",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> RowField<'_> {
        RowField::of_text(text.as_bytes().into())
    }

    fn tally(values: &[&str]) -> Tally {
        let mut tally = Tally::default();
        values.iter().for_each(|value| tally.add(&text(value)));
        tally
    }

    #[test]
    fn two_values_become_0_and_1_by_the_rule() {
        for (values, ones, zeros) in [
            (&["1", "0"][..], "1", "0"),
            (&["0", "0"], "1.0", "0"),
            (&["1", "2"], "2", "1"),
            (&["-1", "1.0"], "1", "-1"),
            (&["Yes", "No"], "YES", "no"),
            (&["True"], "true", "False"),
            (&["existing", "attrited"], "Existing", "attrited"),
            (&[">50K", "<=50K"], ">50K", "<=50K"),
        ] {
            let label = Label::infer("l", &tally(values)).unwrap();
            assert_eq!(
                (label.of(&text(ones)), label.of(&text(zeros))),
                (Some(true), Some(false)),
                "{values:?}"
            );
            assert_eq!((label.of(&text("")), label.of(&text("third"))), (None, None), "{values:?}");
        }
    }

    #[test]
    fn label_without_two_classes_is_refused_with_its_values() {
        for (values, words) in [
            (&["1", "2", "3"][..], "has 3 values (1, 2, 3, …)"),
            (&["7", "7"], "is 7 in all"),
            (&["spam"], "is 'spam' in all"),
            (&["", ""], "has no value in the 2 rows"),
        ] {
            let error = Label::infer("l", &tally(values)).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("two classes"), "{error}");
        }
    }

    #[test]
    fn a_condition_makes_two_classes_of_any_column() {
        let names = ["rating", "a>b"];
        let of = |text| asked(text, |name| names.contains(&name));
        assert_eq!(of("rating").unwrap(), ("rating", None));
        assert_eq!(of("a>b").unwrap(), ("a>b", None));
        let (name, label) = of("rating>=4").unwrap();
        let label = label.unwrap();
        assert_eq!((name, label.of(&text("4")), label.of(&text("3.5"))), ("rating", Some(true), Some(false)));
        assert_eq!(of("rating > 4").unwrap().1.unwrap().of(&text("4")), Some(false));
        let (name, label) = of("kind=Spam").unwrap();
        let label = label.unwrap();
        assert_eq!(
            (name, label.of(&text("spam")), label.of(&text("ham"))),
            ("kind", Some(true), Some(false))
        );
        assert!(of("rating>=high").unwrap_err().to_string().contains("rating>=high"));
    }
}
