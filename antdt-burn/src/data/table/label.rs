//! The label of a table: two classes, several, or a number. Pure.
//!
//! Of a column with more than two values, words are classes, and so are up to 20 different whole numbers; other numbers are estimated as
//! numbers. `--task` says otherwise. The rule for two values: of numbers the larger one is 1; of words those that say yes (`yes`, `true`, `y`, `t`, `on`, `positive`,
//! `pos`); of other words the later one in the alphabet. A condition, as in `rating>=4` or `species=setosa`, makes two classes of any
//! column.

use std::collections::BTreeMap;
use std::str::FromStr;

use antdt_core::InvalidValue;

use super::infer::{KEYS_MIN, short};
use super::names::listed;
use super::tally::{Tally, VALUES_MAX, spelt};
use super::{ColumnError, SHOWN};
use crate::data::LabelKind;
use crate::data::format::RowField;

/// Classes of a label, at most: a model predicts a value for each.
const CLASSES_MAX: usize = 1000;

/// What a model learns of the label of a table: the value of `--task`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelTask {
    /// To tell classes apart: each value of the label is one.
    Classification,
    /// To estimate a number.
    Regression,
}

impl LabelTask {
    /// Names of all tasks.
    pub const NAMES: [&str; 2] = ["classification", "regression"];

    /// Returns the name of the task.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Classification => Self::NAMES[0],
            Self::Regression => Self::NAMES[1],
        }
    }
}

impl FromStr for LabelTask {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let tasks = [Self::Classification, Self::Regression];
        let found = tasks.into_iter().find(|task| task.name() == text);
        found.ok_or_else(|| InvalidValue::new("task", text, Self::NAMES.join(" or ")))
    }
}

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

/// What the value of a row is as a label.
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
    /// Each of these values, as [`spelt`], is a class, of this number.
    Classes(BTreeMap<String, usize>),
    /// A number, with mean and standard deviation of those that were looked at.
    Real { mean: f64, deviation: f64 },
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
    /// The rule for a column with these values. The user may say what is to be learnt.
    pub(super) fn infer(name: &str, tally: &Tally, task: Option<LabelTask>) -> Result<Self, ColumnError> {
        let refused = |what: String| Err(ColumnError::Label { name: name.to_owned(), what });
        let rows = format!("{} {}", tally.rows, tally.unit);
        if tally.present() == 0 {
            return refused(format!("has no value in the {rows} looked at"));
        }
        let values: Vec<&str> = tally.values.keys().map(String::as_str).collect();
        let few_numbers = tally.whole == tally.present() && values.len() <= VALUES_MAX;
        let is_number = match task {
            Some(task) => task == LabelTask::Regression,
            None => values.len() > 2 && tally.numbers == tally.present() && !few_numbers,
        };
        if is_number {
            return Self::number(tally).or_else(refused);
        }
        if values.len() > 2 {
            return Self::classes(tally).or_else(refused);
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

    /// A label that is a number; otherwise, what is wrong with these values.
    fn number(tally: &Tally) -> Result<Self, String> {
        if let Some(word) = &tally.word {
            return Err(format!("has the value '{word}', which is no number to estimate"));
        }
        let (mean, deviation) = (tally.mean, tally.deviation());
        if deviation > 0.0 && deviation.is_finite() {
            return Ok(Self::Real { mean, deviation });
        }
        Err(format!("is {} in all of the {} {} looked at", tally.least, tally.rows, tally.unit))
    }

    /// A label with a class for each of its values; otherwise, what is wrong with these values.
    fn classes(tally: &Tally) -> Result<Self, String> {
        let mut values: Vec<&str> = tally.all_values().collect();
        let seen = format!("in the {} {} looked at", tally.rows, tally.unit);
        if values.len() > CLASSES_MAX {
            return Err(format!("has more than {CLASSES_MAX} values {seen}, too many for classes"));
        }
        if tally.present() >= KEYS_MIN && tally.distinct() == tally.present() {
            return Err(format!("has another value in each row {seen}, which are no classes"));
        }
        // Numbers by their value; words, which come after them, by the alphabet.
        let order = |value: &&str| (value.parse::<f64>().unwrap_or(f64::INFINITY), (*value).to_owned());
        values.sort_by(|a, b| {
            let (a, b) = (order(a), order(b));
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))
        });
        let numbered = values.into_iter().enumerate().map(|(number, value)| (value.to_owned(), number));
        Ok(Self::Classes(numbered.collect()))
    }

    /// What the labels are.
    pub(super) fn kind(&self) -> LabelKind {
        match self {
            Self::Numbers { .. } | Self::Words { .. } | Self::AtLeast(_) | Self::Above(_) | Self::Is(_) => {
                LabelKind::Binary
            }
            Self::Classes(classes) => LabelKind::Classes(classes.len()),
            Self::Real { mean, deviation } => LabelKind::Number { mean: *mean, deviation: *deviation },
        }
    }

    /// The names of the classes, in the order of their numbers; none if the label has two classes, or is a number.
    pub(super) fn class_names(&self) -> Vec<&str> {
        let Self::Classes(classes) = self else { return Vec::new() };
        let mut names = vec![""; classes.len()];
        classes.iter().for_each(|(name, number)| names[*number] = name);
        names
    }

    /// The label of a row; `None` if the value is none.
    pub(super) fn of(&self, field: &RowField<'_>) -> Option<f32> {
        match self {
            Self::Classes(classes) => {
                #[allow(clippy::cast_precision_loss, reason = "at most a thousand")]
                let class = *classes.get(&spelt(field)?)? as f32;
                Some(class)
            }
            Self::Real { mean, deviation } => {
                let value = field.real().filter(|value| value.is_finite())?;
                #[allow(clippy::cast_possible_truncation, reason = "a number to estimate has no more digits")]
                let label = ((value - mean) / deviation) as f32;
                Some(label)
            }
            _ => self.is_one(field).map(|is_one| f32::from(u8::from(is_one))),
        }
    }

    /// Whether a row is a 1, by a rule of two classes; `None` if the value is none of the two.
    fn is_one(&self, field: &RowField<'_>) -> Option<bool> {
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
            Self::Classes(_) | Self::Real { .. } => None,
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
            Self::Classes(classes) => {
                format!("{} classes: {}", classes.len(), listed(self.class_names(), SHOWN))
            }
            Self::Real { mean, deviation } => {
                format!("a number to estimate; mean {}, deviation {}", short(*mean), short(*deviation))
            }
        }
    }

    /// What a value of the column must be, for error texts.
    pub(super) const fn expected(&self) -> &'static str {
        match self {
            Self::Numbers { .. } | Self::Words { .. } => {
                "one of the label's two values, which are those of the first rows; a condition makes two classes of any: --label 'COLUMN=VALUE'"
            }
            Self::AtLeast(_) | Self::Above(_) | Self::Real { .. } => "a number",
            Self::Classes(_) => {
                "one of the label's classes, which are those of the first rows; shuffle the rows, so that these have all classes"
            }
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
            let label = Label::infer("l", &tally(values), None).unwrap();
            assert_eq!((label.of(&text(ones)), label.of(&text(zeros))), (Some(1.0), Some(0.0)), "{values:?}");
            assert_eq!((label.of(&text("")), label.of(&text("third"))), (None, None), "{values:?}");
        }
    }

    #[test]
    fn label_without_two_classes_is_refused_with_its_values() {
        for (values, words) in [
            (&["7", "7"][..], "is 7 in all"),
            (&["spam"], "is 'spam' in all"),
            (&["", ""], "has no value in the 2 rows"),
        ] {
            let error = Label::infer("l", &tally(values), None).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("two classes"), "{error}");
        }
    }

    #[test]
    fn words_and_few_whole_numbers_are_classes_and_other_numbers_are_estimated() {
        let (classification, regression) = (Some(LabelTask::Classification), Some(LabelTask::Regression));
        let classes = LabelKind::Classes;
        let number = |mean, deviation| LabelKind::Number { mean, deviation };
        let many: Vec<String> = (0..41).map(|at| at.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        for (values, task, kind) in [
            (&["setosa", "Virginica", "versicolor", "virginica"][..], None, classes(3)),
            (&["1", "2", "3", "2.0"], None, classes(3)),
            (&["1", "2", "3"], classification, classes(3)),
            (&["1", "5", "3"], regression, number(3.0, (8.0_f64 / 3.0).sqrt())),
            (&["0", "1"], classification, LabelKind::Binary),
            (&["0", "1"], regression, number(0.5, 0.5)),
            (&["1.5", "2.5", "3.5", "2.5"], None, number(2.5, 0.5_f64.sqrt())),
            (&["1.5", "2.5", "3.5"], classification, classes(3)),
            (&many, None, number(20.0, 140.0_f64.sqrt())),
            (&many, classification, classes(41)),
        ] {
            let found = Label::infer("l", &tally(values), task).unwrap().kind();
            let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
            let same = match (found, kind) {
                (LabelKind::Number { mean: a, deviation: b }, LabelKind::Number { mean, deviation }) => {
                    near(a, mean) && near(b, deviation)
                }
                (found, kind) => found == kind,
            };
            assert!(same, "{values:?} {task:?}: {found:?} instead of {kind:?}");
        }
        let words = |count: usize| {
            let mut tally = Tally::default();
            (0..2 * count).for_each(|at| tally.add(&text(&format!("w{}", at % count))));
            Label::infer("l", &tally, None)
        };
        assert_eq!(words(1000).unwrap().kind(), classes(1000));
        let error = words(1001).unwrap_err().to_string();
        assert!(error.contains("has more than 1000 values in the 2002 rows looked at"), "{error}");
        let names: Vec<String> = (0..60).map(|at| format!("c{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let error = Label::infer("l", &tally(&names), None).unwrap_err().to_string();
        assert!(error.contains("has another value in each row"), "{error}");
        let error = Label::infer("l", &tally(&["1", "x", "3"]), regression).unwrap_err().to_string();
        assert!(error.contains("'x', which is no number to estimate"), "{error}");
    }

    #[test]
    fn classes_are_numbered_in_their_order_and_numbers_are_in_deviations() {
        let label = Label::infer("l", &tally(&["10", "9", "2.0", "9"]), None).unwrap();
        assert_eq!(label.rule(), "3 classes: 2, 9, 10");
        assert_eq!(
            ["2", "9.0", " 10", "3", ""].map(|value| label.of(&text(value))),
            [Some(0.0), Some(1.0), Some(2.0), None, None]
        );
        assert_eq!(label.of(&RowField::Integer(9)), Some(1.0));
        let label = Label::infer("l", &tally(&["b", "C", "a"]), None).unwrap();
        assert_eq!((label.rule(), label.of(&text("c"))), ("3 classes: a, b, c".to_owned(), Some(2.0)));
        let label = Label::infer("l", &tally(&["1", "3"]), Some(LabelTask::Regression)).unwrap();
        assert_eq!(label.rule(), "a number to estimate; mean 2, deviation 1");
        let labels = ["5", "1", "inf", "", "many"].map(|value| label.of(&text(value)));
        assert_eq!(labels, [Some(3.0), Some(-1.0), None, None, None]);
    }

    #[test]
    fn a_condition_makes_two_classes_of_any_column() {
        let names = ["rating", "a>b"];
        let of = |text| asked(text, |name| names.contains(&name));
        assert_eq!(of("rating").unwrap(), ("rating", None));
        assert_eq!(of("a>b").unwrap(), ("a>b", None));
        let (name, label) = of("rating>=4").unwrap();
        let label = label.unwrap();
        assert_eq!((name, label.of(&text("4")), label.of(&text("3.5"))), ("rating", Some(1.0), Some(0.0)));
        assert_eq!(of("rating > 4").unwrap().1.unwrap().of(&text("4")), Some(0.0));
        let (name, label) = of("kind=Spam").unwrap();
        let label = label.unwrap();
        assert_eq!((name, label.of(&text("spam")), label.of(&text("ham"))), ("kind", Some(1.0), Some(0.0)));
        assert!(of("rating>=high").unwrap_err().to_string().contains("rating>=high"));
    }
}
