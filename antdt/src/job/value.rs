//! Types of settings: how their values are read, written and described.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use antdt_collective::Compression;
use antdt_collective::schedule::Choice;
use antdt_core::InvalidValue;
use antdt_core::text::{format_duration, named_duration, nearest};
use antdt_job::evaluation::{EarlyStopping, EvalEvery};
use antdt_job::head::CheckpointEvery;
use antdt_model::RateSchedule;
use serde_json::{Value as Json, json};

use super::data_spec::DataSpec;
use super::device::DeviceSetting;
use super::elect::EtcdSpec;
use super::host_count::HostCount;
use super::hot_rows::HotRowsSpec;
use super::http_addr::HttpAddr;
use super::network::NetworkSpec;
use super::port_range::PortRange;
use super::straggler::StragglerSpec;
use super::streams::{RanksSpec, StreamsSpec};
use super::sync::SyncSpec;

/// Form of a setting's values as text, for the help, the list of settings and the schema of the job file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// A whole number below 2 to the power of `bits`.
    Whole {
        /// Number of bits of the number.
        bits: u32,
    },
    /// A finite decimal number.
    Number,
    /// `true` or `false`; the flag needs no value.
    Truth,
    /// Any text that is not empty.
    Text,
    /// A length of time with its unit.
    Duration,
    /// One of these words.
    OneOf(Vec<String>),
    /// One of these usages: a word, or a word with a setting as in `name=STEPS`, where `STEPS` stands for the
    /// setting's value; in `name[=STEPS]` the setting may be left out.
    Usage(Vec<String>),
    /// Several values of this form: a flag that may be repeated, an array in a job file, or a variable with
    /// `;` between the values.
    List(Box<Form>),
}

impl Form {
    /// Returns the JSON schema of values of this form.
    pub fn schema(&self) -> Json {
        match self {
            Self::Whole { bits } => {
                let most = u64::MAX >> (64 - bits);
                json!({ "type": "integer", "minimum": 0, "maximum": most })
            }
            Self::Number => json!({ "type": "number" }),
            Self::Truth => json!({ "type": "boolean" }),
            Self::Text => json!({ "type": "string", "minLength": 1 }),
            Self::Duration => {
                json!({ "type": "string", "minLength": 2, "examples": ["250ms", "10s", "1m30s"] })
            }
            Self::OneOf(names) => json!({ "type": "string", "enum": names }),
            Self::Usage(usages) => {
                let pattern = |usage: &String| match usage.split_once('=') {
                    Some((name, _)) => {
                        let pattern = match name.strip_suffix('[') {
                            Some(name) => format!("^{name}(=.+)?$"),
                            None => format!("^{name}=.+$"),
                        };
                        json!({ "type": "string", "pattern": pattern })
                    }
                    None => json!({ "const": usage }),
                };
                json!({ "anyOf": usages.iter().map(pattern).collect::<Vec<_>>() })
            }
            // A list of one may be written without brackets.
            Self::List(each) => {
                json!({ "anyOf": [each.schema(), { "type": "array", "items": each.schema() }] })
            }
        }
    }
}

/// A type that a setting can have.
///
/// Texts come from flags and variables, JSON from job files and from the master. Errors name the setting by
/// its `flag`, such as `--global-batch-size`.
pub trait SettingValue: Sized {
    /// Returns the form of the texts.
    fn form() -> Form;

    /// Parses a value from its text.
    ///
    /// # Errors
    /// If the text is not a value of this type; the error says what would be accepted.
    fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue>;

    /// Parses a value from its text and stores it in this one: replaces a single value, or appends to a list.
    ///
    /// # Errors
    /// As [`parse`](Self::parse).
    fn set(&mut self, flag: &str, text: &str) -> Result<(), InvalidValue> {
        *self = Self::parse(flag, text)?;
        Ok(())
    }

    /// Parses a value from JSON, as [`to_json`](Self::to_json) or a job file has it.
    ///
    /// # Errors
    /// As [`parse`](Self::parse); also if the JSON is a list or a table where one value is expected.
    fn from_json(flag: &str, json: &Json) -> Result<Self, InvalidValue> {
        Self::parse(flag, &plain(flag, json)?)
    }

    /// Returns the value as a JSON number, boolean or string, or a list of these; null stands for "not set".
    fn to_json(&self) -> Json;
}

/// Returns the text form of a JSON value that is neither null nor nested.
fn plain(flag: &str, json: &Json) -> Result<String, InvalidValue> {
    match json {
        Json::String(text) => Ok(text.clone()),
        Json::Number(number) => Ok(number.to_string()),
        Json::Bool(truth) => Ok(truth.to_string()),
        Json::Null | Json::Array(_) | Json::Object(_) => {
            Err(InvalidValue::new(flag, json, "a text, a number, true or false"))
        }
    }
}

macro_rules! whole {
    ($($Whole:ty),+) => { $(
        impl SettingValue for $Whole {
            fn form() -> Form {
                Form::Whole { bits: Self::BITS }
            }

            fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
                // Underscores group digits, as in Rust.
                let digits: String = text.chars().filter(|c| *c != '_').collect();
                let expected = format!("a whole number from 0 to below 2^{}", Self::BITS);
                digits.parse().map_err(|_| InvalidValue::new(flag, text, expected))
            }

            fn to_json(&self) -> Json {
                json!(self)
            }
        }
    )+ };
}

whole!(u16, u32, u64);

macro_rules! number {
    ($($Number:ty),+) => { $(
        impl SettingValue for $Number {
            fn form() -> Form {
                Form::Number
            }

            fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
                text.parse().map_err(|_| InvalidValue::new(flag, text, "a number"))
            }

            fn to_json(&self) -> Json {
                // By its text, so that 0.05 stays 0.05 and not the nearest number of more digits.
                self.to_string().parse::<f64>().map_or(Json::Null, |number| json!(number))
            }
        }
    )+ };
}

number!(f32, f64);

impl SettingValue for bool {
    fn form() -> Form {
        Form::Truth
    }

    fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
        match text {
            "true" | "1" | "" => Ok(true),
            "false" | "0" => Ok(false),
            _ => Err(InvalidValue::new(flag, text, "true or false")),
        }
    }

    fn to_json(&self) -> Json {
        Json::Bool(*self)
    }
}

impl SettingValue for String {
    fn form() -> Form {
        Form::Text
    }

    fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
        if text.is_empty() { Err(InvalidValue::new(flag, "``", "not empty")) } else { Ok(text.to_owned()) }
    }

    fn to_json(&self) -> Json {
        json!(self)
    }
}

impl SettingValue for PathBuf {
    fn form() -> Form {
        Form::Text
    }

    fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
        String::parse(flag, text).map(Self::from)
    }

    fn to_json(&self) -> Json {
        json!(self.display().to_string())
    }
}

impl SettingValue for Duration {
    fn form() -> Form {
        Form::Duration
    }

    fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
        named_duration(flag, text)
    }

    fn to_json(&self) -> Json {
        json!(format_duration(*self))
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    fn form() -> Form {
        T::form()
    }

    fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
        T::parse(flag, text).map(Some)
    }

    fn from_json(flag: &str, json: &Json) -> Result<Self, InvalidValue> {
        if json.is_null() { Ok(None) } else { T::from_json(flag, json).map(Some) }
    }

    fn to_json(&self) -> Json {
        self.as_ref().map_or(Json::Null, T::to_json)
    }
}

impl<T: SettingValue> SettingValue for Vec<T> {
    fn form() -> Form {
        Form::List(Box::new(T::form()))
    }

    fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
        T::parse(flag, text).map(|value| vec![value])
    }

    fn set(&mut self, flag: &str, text: &str) -> Result<(), InvalidValue> {
        self.push(T::parse(flag, text)?);
        Ok(())
    }

    fn from_json(flag: &str, json: &Json) -> Result<Self, InvalidValue> {
        match json {
            Json::Array(list) => list.iter().map(|each| T::from_json(flag, each)).collect(),
            // A list of one may be written without brackets.
            one => T::from_json(flag, one).map(|value| vec![value]),
        }
    }

    fn to_json(&self) -> Json {
        self.iter().map(T::to_json).collect()
    }
}

impl SettingValue for SyncSpec {
    fn form() -> Form {
        Form::Usage(SyncSpec::usages())
    }

    fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
        text.parse().map_err(|error| InvalidValue { field: flag.to_owned(), ..error })
    }

    fn to_json(&self) -> Json {
        json!(self.to_string())
    }
}

impl SettingValue for Choice {
    fn form() -> Form {
        Form::OneOf(Self::ALL.map(|choice| choice.to_string()).to_vec())
    }

    fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
        text.parse().map_err(|_| not_one_of(flag, text, &Self::ALL.map(|choice| choice.to_string())))
    }

    fn to_json(&self) -> Json {
        json!(self.to_string())
    }
}

impl SettingValue for Compression {
    fn form() -> Form {
        Form::Usage(vec!["bf16".to_owned(), "topk=SHARE".to_owned()])
    }

    fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
        parse_text(flag, text)
    }

    fn to_json(&self) -> Json {
        json!(self.to_string())
    }
}

// Types that have a text form of their own, which no other form describes.
macro_rules! texts {
    ($($type:ty),+) => {
        $(impl SettingValue for $type {
            fn form() -> Form {
                Form::Text
            }

            fn parse(flag: &str, text: &str) -> Result<Self, InvalidValue> {
                parse_text(flag, text)
            }

            fn to_json(&self) -> Json {
                json!(self.to_string())
            }
        })+
    };
}

texts!(
    CheckpointEvery,
    DataSpec,
    DeviceSetting,
    EarlyStopping,
    EtcdSpec,
    EvalEvery,
    HostCount,
    HotRowsSpec,
    HttpAddr,
    NetworkSpec,
    PortRange,
    RanksSpec,
    RateSchedule,
    StragglerSpec,
    StreamsSpec
);

/// Reads a type that has a text form of its own.
fn parse_text<T: FromStr<Err = InvalidValue> + Display>(flag: &str, text: &str) -> Result<T, InvalidValue> {
    // The type's errors name the setting that it was made for, and may go on: `--straggler from`.
    text.parse().map_err(|error: InvalidValue| {
        let rest = error.field.split_once(' ').map(|(_, rest)| format!(" {rest}")).unwrap_or_default();
        InvalidValue { field: format!("{flag}{rest}"), ..error }
    })
}

/// Returns the one of `all` whose name is `text`.
pub(super) fn choose<T: Copy>(
    flag: &str,
    text: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, InvalidValue> {
    let found = all.iter().copied().find(|value| name(*value) == text);
    found.ok_or_else(|| {
        let names: Vec<&str> = all.iter().map(|value| name(*value)).collect();
        not_one_of(flag, text, &names)
    })
}

/// Returns the error for a name that is not among `names`, with the nearest one.
pub(super) fn not_one_of<S: AsRef<str>>(flag: &str, text: &str, names: &[S]) -> InvalidValue {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    let suggestion =
        nearest(text, &names).map(|known| format!("; did you mean `{known}`?")).unwrap_or_default();
    InvalidValue::new(flag, text, format!("one of {}{suggestion}", names.join(", ")))
}
