//! Description of one setting of a job, and the macro that generates a struct's fields and their
//! descriptions.

use antdt_core::InvalidValue;
use serde_json::{Value as Json, json};

use super::spec::JobSpec;
use super::value::{Form, not_one_of};

/// Description of a setting of a job: name, unit, form and default, without a value.
#[derive(Debug)]
pub struct JobSetting {
    /// Name of the setting: the flag without dashes, and the key in a job file.
    pub name: &'static str,
    /// Placeholder for the value in the help text; empty if the flag needs no value.
    pub unit: &'static str,
    /// Lines of its documentation.
    pub(super) doc: &'static [&'static str],
    /// What happens without it, if it has no default value.
    pub(super) unset: Option<&'static str>,
    /// The names that its text must be one of, if its type does not say it.
    pub(super) among: Option<fn() -> Vec<&'static str>>,
    /// What joins several of the names, if several may be given.
    pub(super) joined: Option<&'static str>,
    /// The least value of a whole number.
    pub(super) least: Option<u64>,
    /// Words that stand for a whole number which the host knows.
    pub(super) words: &'static [&'static str],
    /// Whether `ANTDT_<NAME>` sets it.
    pub(super) variable: bool,
    pub(super) form: fn() -> Form,
    pub(super) set: fn(&mut JobSpec, &str) -> Result<(), InvalidValue>,
    pub(super) read: fn(&mut JobSpec, &Json) -> Result<(), InvalidValue>,
    pub(super) write: fn(&JobSpec) -> Json,
}

impl JobSetting {
    /// Returns the flag of the setting, such as `--global-batch-size`.
    pub fn flag(&self) -> String {
        format!("--{}", self.name)
    }

    /// Returns the environment variable of the setting, such as `ANTDT_GLOBAL_BATCH_SIZE`; `None` if it has
    /// none.
    pub fn variable(&self) -> Option<String> {
        self.variable.then(|| format!("ANTDT_{}", self.name.replace('-', "_").to_uppercase()))
    }

    /// Returns whether it has another value than its default.
    pub fn is_set(&self, spec: &JobSpec) -> bool {
        (self.write)(spec) != (self.write)(&JobSpec::default())
    }

    /// Returns the form of the setting's values as text.
    pub fn form(&self) -> Form {
        match self.among {
            Some(names) => Form::OneOf(names().into_iter().map(str::to_owned).collect()),
            None => (self.form)(),
        }
    }

    /// Returns the words that may stand in place of a value.
    pub const fn words(&self) -> &'static [&'static str] {
        self.words
    }

    /// Returns the setting's documentation in one line.
    pub fn doc(&self) -> String {
        self.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the text of the default value, or of what happens without the setting; `None` if it has no
    /// default.
    pub fn default_text(&self) -> Option<String> {
        match (self.write)(&JobSpec::default()) {
            Json::Null => self.unset.map(str::to_owned),
            Json::Array(list) if list.is_empty() => self.unset.map(str::to_owned),
            Json::String(text) => Some(text),
            other => Some(other.to_string()),
        }
    }

    /// Returns the JSON schema of the setting's value in a job file.
    pub fn schema(&self) -> Json {
        let mut schema = match (self.joined, self.form()) {
            (Some(joint), Form::OneOf(names)) => joined_schema(&names, joint),
            (_, form) => form.schema(),
        };
        if let Some(least) = self.least {
            schema["minimum"] = least.into();
        }
        if !self.words.is_empty() {
            schema = json!({ "anyOf": [schema, { "enum": self.words }] });
        }
        schema["description"] = Json::String(self.doc());
        if !self.unit.is_empty() {
            schema["x-unit"] = Json::String(self.unit.to_owned());
        }
        let default = (self.write)(&JobSpec::default());
        if !default.is_null() {
            schema["default"] = default;
        }
        schema
    }

    /// Refuses a text that must be one of some names and is none.
    pub(super) fn check_name(&self, text: &str) -> Result<(), InvalidValue> {
        let Some(names) = self.among.map(|names| names()) else { return Ok(()) };
        // A program that knows no name leaves it to its nodes.
        let is_known = |name: &&str| names.is_empty() || names.contains(name);
        let mut given =
            self.joined.map_or_else(|| vec![text], |joint| text.split(joint).collect()).into_iter();
        match given.find(|name| !is_known(name)) {
            Some(name) => Err(not_one_of(&self.flag(), name, &names)),
            None => Ok(()),
        }
    }

    /// Refuses a whole number below the least one.
    pub(super) fn check_least(&self, spec: &JobSpec) -> Result<(), InvalidValue> {
        let (Some(least), Some(value)) = (self.least, (self.write)(spec).as_u64()) else { return Ok(()) };
        if value < least {
            return Err(InvalidValue::new(self.flag(), value, format!("at least {least}")));
        }
        Ok(())
    }
}

/// The JSON schema of one of these names, or of several that are joined.
fn joined_schema(names: &[String], joint: &str) -> Json {
    let literal = |text: &str| {
        let escaped = |c: char| if c.is_alphanumeric() || c == '-' { vec![c] } else { vec!['\\', c] };
        text.chars().flat_map(escaped).collect::<String>()
    };
    let one = names.iter().map(|name| literal(name)).collect::<Vec<_>>().join("|");
    json!({ "type": "string", "pattern": format!("^({one})({}({one}))*$", literal(joint)) })
}

/// Generates the struct of a job's settings and the list of their descriptions.
///
/// An entry is all there is to write for a setting:
///
/// ```text
/// /// Documentation, which is the help text too.
/// field: Type = default, "name", "UNIT" [, unset "what happens without it"] [, among NAMES] [, joined by "JOINT"] [, least N] [, or WORDS] [, no variable];
/// ```
///
/// `Type` implements [`SettingValue`](super::value::SettingValue). `UNIT` stands for the value in the help. What follows `others` are
/// plain fields.
macro_rules! settings {
    (
        $(#[$spec_doc:meta])*
        pub struct $Spec:ident;
        $(
            $(#[doc = $doc:literal])+
            $field:ident: $Type:ty = $default:expr, $name:literal, $unit:literal
            $(, unset $unset:literal)?
            $(, among $names:expr)?
            $(, joined by $joint:literal)?
            $(, least $least:literal)?
            $(, or $words:expr)?
            $(, no $variable:ident)?;
        )+
        others:
        $( $(#[$other_doc:meta])+ $other:ident: $Other:ty = $other_default:expr; )+
    ) => {
        $(#[$spec_doc])*
        #[derive(Debug, Clone, PartialEq)]
        pub struct $Spec {
            $(
                $(#[doc = $doc])+
                #[doc = concat!("\n\nThe flag `--", $name, "`.")]
                pub $field: $Type,
            )+
            $( $(#[$other_doc])+ pub $other: $Other, )+
        }

        impl Default for $Spec {
            fn default() -> Self {
                Self { $( $field: $default, )+ $( $other: $other_default, )+ }
            }
        }

        impl $Spec {
            /// All settings that are flags, in the order of the help text.
            pub const SETTINGS: &[$crate::job::JobSetting] = &[ $( $crate::job::JobSetting {
                name: $name,
                unit: $unit,
                doc: &[ $( $doc ),+ ],
                unset: { let unset: &[&str] = &[ $( $unset )? ]; unset.first().copied() },
                among: {
                    let names: &[fn() -> Vec<&'static str>] = &[ $( || ($names).to_vec() )? ];
                    names.first().copied()
                },
                joined: { let joined: &[&str] = &[ $( $joint )? ]; joined.first().copied() },
                least: { let least: &[u64] = &[ $( $least )? ]; least.first().copied() },
                words: { let words: &[&[&str]] = &[ $( $words, )? &[] ]; words[0] },
                variable: { let without: &[&str] = &[ $( stringify!($variable) )? ]; without.is_empty() },
                form: <$Type as $crate::job::value::SettingValue>::form,
                set: |spec, text| $crate::job::value::SettingValue::set(&mut spec.$field, concat!("--", $name), text),
                read: |spec, json| {
                    spec.$field = $crate::job::value::SettingValue::from_json(concat!("--", $name), json)?;
                    Ok(())
                },
                write: |spec| $crate::job::value::SettingValue::to_json(&spec.$field),
            } ),+ ];
        }
    };
}

pub(super) use settings;
