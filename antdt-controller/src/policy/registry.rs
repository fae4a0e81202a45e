//! The policies that a program knows by name, and their settings.
//!
//! One registry serves the master, recordings, `whatif` and the simulator. A program adds policies of its own with
//! [`register`], before it reads its command line; they are then as good as those that ship.
//!
//! The registry is the one value of this crate that a whole process shares: names are read in many places, and a program has one
//! set of them. It decides nothing.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use antdt_core::InvalidValue;
use antdt_core::text::{format_duration, named_duration, nearest};

use super::{NonDedicated, Policy, Unmanaged};

/// A policy that is known by name.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Its name on the command line, in job files and in reports; what [`Policy::name`] says.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// Its settings, in the order in which they are listed.
    pub settings: fn() -> Vec<Setting>,
    /// Makes it.
    pub build: fn(&Settings<'_>) -> Result<Box<dyn Policy>, InvalidValue>,
}

/// A setting of a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Its key in the job file's table `[policy.NAME]`.
    pub name: &'static str,
    /// Its text when the table does not name it.
    pub default: String,
    /// What it means, with its unit, in one line.
    pub about: &'static str,
}

/// Texts of a policy's settings by name, as a job file has them.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    policy: &'a str,
    texts: &'a BTreeMap<String, String>,
}

impl Settings<'_> {
    /// Reads a number or a truth value; `default` if it is not given.
    ///
    /// # Errors
    /// If its text does not read as one; the error names the table and the key.
    pub fn value<T: FromStr>(&self, name: &str, default: T, expected: &str) -> Result<T, InvalidValue> {
        match self.texts.get(name) {
            Some(text) => text.parse().map_err(|_| self.refuse(name, text, expected)),
            None => Ok(default),
        }
    }

    /// Reads a length of time with its unit; `default` if it is not given.
    ///
    /// # Errors
    /// As [`value`](Self::value).
    pub fn duration(&self, name: &str, default: Duration) -> Result<Duration, InvalidValue> {
        let field = self.field(name);
        self.texts.get(name).map_or(Ok(default), |text| named_duration(field, text))
    }

    /// The error of a setting that cannot be.
    pub fn refuse(&self, name: &str, value: impl Display, expected: &str) -> InvalidValue {
        InvalidValue::new(self.field(name), value, expected)
    }

    fn field(&self, name: &str) -> String {
        format!("[policy.{}] {name}", self.policy)
    }
}

/// Why a policy cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No policy has this name.
    #[error(transparent)]
    Unknown(#[from] UnknownPolicy),
    /// A setting is unknown, or its value cannot be.
    #[error(transparent)]
    Setting(#[from] InvalidValue),
}

/// No policy has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown policy `{given}`; known: {}{}", names().join(", "), suggested(*.suggestion))]
pub struct UnknownPolicy {
    /// The name as given.
    pub given: String,
    /// The known name nearest to it, if one is near.
    pub suggestion: Option<&'static str>,
}

fn suggested(suggestion: Option<&'static str>) -> String {
    suggestion.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// Policies that a program added to those that ship.
static ADDED: RwLock<Vec<Entry>> = RwLock::new(Vec::new());

/// Policies that ship.
const SHIPPED: [Entry; 2] = [
    Entry {
        name: Unmanaged::NAME,
        about: "does nothing; what every other policy is compared with",
        settings: Vec::new,
        build: |_| Ok(Box::new(Unmanaged)),
    },
    Entry {
        name: NonDedicated::NAME,
        about: "for shared clusters: new batch sizes against stragglers that come and go, restarts where they pay",
        settings: NonDedicated::settings,
        build: |settings| Ok(Box::new(NonDedicated::read(settings)?)),
    },
];

/// Every policy that is known, those that ship first.
pub fn entries() -> Vec<Entry> {
    let added = ADDED.read().unwrap_or_else(PoisonError::into_inner);
    SHIPPED.into_iter().chain(added.iter().copied()).collect()
}

/// Their names.
pub fn names() -> Vec<&'static str> {
    entries().into_iter().map(|entry| entry.name).collect()
}

/// Makes a policy known. Call it before anything asks for a policy by name.
///
/// # Errors
/// If the name is taken.
pub fn register(entry: Entry) -> Result<(), InvalidValue> {
    if names().contains(&entry.name) {
        return Err(InvalidValue::new("policy", entry.name, "a name that no other policy has"));
    }
    ADDED.write().unwrap_or_else(PoisonError::into_inner).push(entry);
    Ok(())
}

/// The policy of that name, with its default settings.
///
/// # Errors
/// If there is none.
///
/// ```
/// use antdt_controller::policy;
/// assert_eq!(policy::by_name("nd")?.name(), "nd");
/// assert!(policy::by_name("dn").unwrap_err().to_string().contains("did you mean `nd`?"));
/// # Ok::<(), policy::PolicyError>(())
/// ```
pub fn by_name(name: &str) -> Result<Box<dyn Policy>, PolicyError> {
    build(name, &BTreeMap::new())
}

/// The policy of that name with these settings; those that are not named have their defaults.
///
/// # Errors
/// If there is no such policy or setting, or a value cannot be.
pub fn build(name: &str, texts: &BTreeMap<String, String>) -> Result<Box<dyn Policy>, PolicyError> {
    let Some(entry) = entries().into_iter().find(|entry| entry.name == name) else {
        return Err(UnknownPolicy { given: name.to_owned(), suggestion: near(name) }.into());
    };
    let settings = Settings { policy: name, texts };
    let known: Vec<&str> = (entry.settings)().into_iter().map(|setting| setting.name).collect();
    if let Some((unknown, text)) = texts.iter().find(|(key, _)| !known.contains(&key.as_str())) {
        let expected = match (nearest(unknown, &known), known.is_empty()) {
            (_, true) => "left out: this policy has no settings".to_owned(),
            (Some(near), _) => format!("a setting of this policy; did you mean `{near}`?"),
            (None, _) => format!("a setting of this policy: {}", known.join(", ")),
        };
        return Err(settings.refuse(unknown, text, &expected).into());
    }
    Ok((entry.build)(&settings)?)
}

/// Returns the known name that a misspelt or spelt-out one most likely means.
fn near(given: &str) -> Option<&'static str> {
    let given = given.to_lowercase().replace(['_', ' '], "-");
    match given.as_str() {
        "off" | "no" | "unmanaged" => Some(Unmanaged::NAME),
        "antdt-nd" | "non-dedicated" | "nondedicated" => Some(NonDedicated::NAME),
        _ => nearest(&given, &names()),
    }
}

impl NonDedicated {
    /// Its settings with their defaults.
    fn settings() -> Vec<Setting> {
        NonDedicated::default().texts()
    }
}

/// A setting and its value.
pub(super) fn setting(name: &'static str, value: impl Display, about: &'static str) -> Setting {
    Setting { name, default: value.to_string(), about }
}

/// A setting that is a length of time.
pub(super) fn time(name: &'static str, value: Duration, about: &'static str) -> Setting {
    Setting { name, default: format_duration(value), about }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(settings: &[(&str, &str)]) -> Result<Box<dyn Policy>, PolicyError> {
        let texts = settings.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        build("nd", &texts)
    }

    #[test]
    fn every_name_gives_a_policy_that_answers_to_it_and_says_its_settings() {
        for entry in SHIPPED {
            let policy = by_name(entry.name).unwrap();
            assert_eq!(policy.name(), entry.name);
            let defaults = (entry.settings)().into_iter().map(|s| (s.name.to_owned(), s.default));
            assert_eq!(policy.settings(), defaults.collect());
        }
    }

    #[test]
    fn settings_are_read_and_said_again() {
        let policy = with(&[("noise-percent", "40"), ("drain", "5s")]).unwrap();
        let said = policy.settings();
        assert_eq!((said["noise-percent"].as_str(), said["drain"].as_str()), ("40", "5s"));
        assert_eq!(said["gain-min-percent"], "5", "the default");
        assert_eq!(build("nd", &said).unwrap().settings(), said);
    }

    #[test]
    fn a_setting_that_is_unknown_or_cannot_be_is_refused_by_name() {
        let refused = |settings: &[(&str, &str)]| with(settings).unwrap_err().to_string();
        let text = refused(&[("noise-percnt", "40")]);
        assert!(
            text.contains("[policy.nd] noise-percnt") && text.contains("did you mean `noise-percent`?"),
            "{text}"
        );
        assert!(refused(&[("noise-percent", "many")]).contains("[policy.nd] noise-percent"));
        assert!(refused(&[("drain", "5")]).contains("[policy.nd] drain"));
        assert!(refused(&[("cured-below", "1.5")]).contains("above 0 and at most 1"));
        assert!(refused(&[("known-min-percent", "0")]).contains("1 to 100"));
        let none = build("none", &[("x".to_owned(), "1".to_owned())].into()).unwrap_err().to_string();
        assert!(none.contains("no settings"), "{none}");
    }

    #[test]
    fn a_program_adds_a_policy_once() {
        let entry = Entry { name: "registry-test", about: "a test", ..SHIPPED[0] };
        register(entry).unwrap();
        assert!(names().contains(&"registry-test"));
        assert!(register(entry).unwrap_err().to_string().contains("no other policy"));
        assert!(register(SHIPPED[1]).is_err());
        assert!(by_name("registry-tst").unwrap_err().to_string().contains("did you mean `registry-test`?"));
    }

    #[test]
    fn an_unknown_name_lists_the_known_and_suggests_the_nearest() {
        let text = by_name("non-dedicated").unwrap_err().to_string();
        assert!(text.starts_with("unknown policy `non-dedicated`; known: none, nd"), "{text}");
        assert!(text.ends_with("did you mean `nd`?"), "{text}");
        let suggestion = |name: &str| match by_name(name).unwrap_err() {
            PolicyError::Unknown(unknown) => unknown.suggestion,
            PolicyError::Setting(error) => panic!("{error}"),
        };
        assert_eq!((suggestion("NONE"), suggestion("quick"), suggestion("")), (Some("none"), None, None));
    }
}
