//! Registries of parts that users choose by name, such as policies, rules and models. There is one
//! [`Registry`] for each kind of part.
//!
//! A registry holds the entries that ship, in a table that its crate writes, and those that a program adds
//! with [`Registry::register`] before it reads its command line; both are treated alike. It is a value that
//! the whole process shares: names are read in many places, and a program has one set of them.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::str::FromStr;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use crate::error::InvalidValue;
pub use crate::settings::SettingSet;
#[doc(hidden)]
pub use crate::settings::key;
use crate::text::{format_duration, named_duration, nearest};

/// An entry of a registry, which has a name.
pub trait Named: Copy {
    /// Returns the entry's name on the command line, in job files and in reports.
    fn name(&self) -> &'static str;
}

/// All known parts of one kind, such as policies, by name.
#[derive(Debug)]
pub struct Registry<E: 'static> {
    kind: &'static str,
    shipped: &'static [E],
    synonyms: &'static [(&'static str, &'static str)],
    added: RwLock<Vec<E>>,
}

impl<E: Named> Registry<E> {
    /// Returns a registry of the parts of a kind, with the entries `shipped`. `kind` is also the flag and the
    /// table of the job file, such as `policy`.
    pub const fn new(kind: &'static str, shipped: &'static [E]) -> Self {
        Self { kind, shipped, synonyms: &[], added: RwLock::new(Vec::new()) }
    }

    /// Adds misspellings and synonyms, each with the name that is most likely meant. The registry suggests
    /// that name; it does not accept the synonym.
    #[must_use]
    pub const fn with_synonyms(mut self, synonyms: &'static [(&'static str, &'static str)]) -> Self {
        self.synonyms = synonyms;
        self
    }

    /// Returns all entries; those that ship with AntDT come first.
    pub fn entries(&self) -> Vec<E> {
        let added = self.added.read().unwrap_or_else(PoisonError::into_inner);
        self.shipped.iter().chain(added.iter()).copied().collect()
    }

    /// Returns the names of all entries.
    pub fn names(&self) -> Vec<&'static str> {
        self.entries().iter().map(Named::name).collect()
    }

    /// Adds an entry. A program calls it before it reads its command line.
    ///
    /// # Errors
    /// If an entry of this name exists.
    pub fn register(&self, entry: E) -> Result<(), InvalidValue> {
        if self.names().contains(&entry.name()) {
            let expected = format!("a name that no other {} has", self.kind);
            return Err(InvalidValue::new(self.kind, entry.name(), expected));
        }
        self.added.write().unwrap_or_else(PoisonError::into_inner).push(entry);
        Ok(())
    }

    /// Returns the entry of this name.
    ///
    /// # Errors
    /// If there is none; the error suggests the nearest name.
    pub fn find(&self, name: &str) -> Result<E, UnknownName> {
        let entries = self.entries();
        entries.iter().find(|entry| entry.name() == name).copied().ok_or_else(|| {
            let known: Vec<&str> = entries.iter().map(Named::name).collect();
            let given = name.to_lowercase().replace(['_', ' '], "-");
            let meant = self.synonyms.iter().find(|(synonym, _)| *synonym == given).map(|(_, meant)| *meant);
            let suggestion = meant.or_else(|| nearest(&given, &known));
            UnknownName { kind: self.kind, given: name.to_owned(), known, suggestion }
        })
    }
}

impl<T> Registry<Entry<T>> {
    /// Builds the part of this name, with its default settings.
    ///
    /// # Errors
    /// If no entry has this name.
    pub fn by_name(&self, name: &str) -> Result<T, BuildError> {
        self.build(name, &BTreeMap::new())
    }

    /// Builds the part of this name with these settings; missing settings have their defaults.
    ///
    /// # Errors
    /// If there is no such entry or setting, or a value is invalid.
    pub fn build(&self, name: &str, texts: &BTreeMap<String, String>) -> Result<T, BuildError> {
        let entry = self.find(name)?;
        let settings = Settings { kind: self.kind, name, texts };
        let known: Vec<&str> = (entry.settings)().into_iter().map(|setting| setting.name).collect();
        if let Some((unknown, text)) = texts.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            let expected = match (nearest(unknown, &known), known.is_empty()) {
                (_, true) => format!("left out: this {} has no settings", self.kind),
                (Some(near), _) => format!("a setting of this {}; did you mean `{near}`?", self.kind),
                (None, _) => format!("a setting of this {}: {}", self.kind, known.join(", ")),
            };
            return Err(settings.refuse(unknown, text, &expected).into());
        }
        Ok((entry.build)(&settings)?)
    }

    /// Returns the text of every entry and its settings with their defaults, as a job file has them.
    pub fn listing(&self) -> String {
        let mut text = String::new();
        for entry in self.entries() {
            text += &format!("{}: {}\n", entry.name, entry.about);
            let settings = (entry.settings)();
            if !settings.is_empty() {
                text += &format!("  [{}.{}]\n", self.kind, entry.name);
            }
            for Setting { name, default, about } in settings {
                // A number as a number, everything else as a text.
                let quote = if default.parse::<f64>().is_err() { "\"" } else { "" };
                text += &format!("  {name} = {quote}{default}{quote}  # {about}\n");
            }
        }
        text
    }
}

/// A registry entry, whose part is built from settings.
pub struct Entry<T> {
    /// Name on the command line, in job files and in reports.
    pub name: &'static str,
    /// Description of the part in one line.
    pub about: &'static str,
    /// Function that returns the part's settings, in the order in which they are listed.
    pub settings: fn() -> Vec<Setting>,
    /// Function that builds the part from its settings.
    pub build: fn(&Settings<'_>) -> Result<T, InvalidValue>,
}

impl<T> Entry<T> {
    /// Returns an entry without settings.
    pub const fn new(
        name: &'static str,
        about: &'static str,
        build: fn(&Settings<'_>) -> Result<T, InvalidValue>,
    ) -> Self {
        Self { name, about, settings: Vec::new, build }
    }

    /// Returns an entry with the settings `S`, which `build` [reads](Settings::read).
    pub const fn with<S: SettingSet>(
        name: &'static str,
        about: &'static str,
        build: fn(&Settings<'_>) -> Result<T, InvalidValue>,
    ) -> Self {
        Self { name, about, settings: S::defaults, build }
    }
}

// By hand: a derive would ask the same of `T`.
impl<T> Clone for Entry<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Entry<T> {}

impl<T> fmt::Debug for Entry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry").field("name", &self.name).field("about", &self.about).finish_non_exhaustive()
    }
}

impl<T> Named for Entry<T> {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// Description of one setting of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// Key of the setting in the part's table of the job file, such as `[policy.NAME]`.
    pub name: &'static str,
    /// Text of the default value.
    pub default: String,
    /// Meaning of the setting, with its unit, in one line.
    pub about: &'static str,
}

impl Setting {
    /// Returns a setting with this default value.
    pub fn new(name: &'static str, value: impl Display, about: &'static str) -> Self {
        Self { name, default: value.to_string(), about }
    }

    /// Returns a setting that is a duration, with this default.
    pub fn time(name: &'static str, value: Duration, about: &'static str) -> Self {
        Self { name, default: format_duration(value), about }
    }
}

/// The settings that a job gives to an entry, as texts by name.
#[derive(Debug, Clone, Copy)]
pub struct Settings<'a> {
    kind: &'a str,
    name: &'a str,
    texts: &'a BTreeMap<String, String>,
}

impl Settings<'_> {
    /// Returns the name of the entry whose settings these are.
    pub const fn part(&self) -> &str {
        self.name
    }

    /// Reads all settings of the entry; those that the job does not give have their defaults.
    ///
    /// # Errors
    /// If a value is invalid; the error names the table and the key.
    pub fn read<S: SettingSet>(&self) -> Result<S, InvalidValue> {
        S::read(self)
    }

    /// Returns a setting parsed as a number or truth value; `default` if the job does not give it.
    ///
    /// # Errors
    /// If the text cannot be parsed; the error names the table and the key.
    pub fn value<T: FromStr>(&self, name: &str, default: T, expected: &str) -> Result<T, InvalidValue> {
        match self.texts.get(name) {
            Some(text) => text.parse().map_err(|_| self.refuse(name, text, expected)),
            None => Ok(default),
        }
    }

    /// Returns a setting parsed as a duration with its unit; `default` if the job does not give it.
    ///
    /// # Errors
    /// As [`value`](Self::value).
    pub fn duration(&self, name: &str, default: Duration) -> Result<Duration, InvalidValue> {
        let field = self.field(name);
        self.texts.get(name).map_or(Ok(default), |text| named_duration(field, text))
    }

    /// Returns the error for a setting with an invalid value. An empty value is shown as a pair of backticks.
    pub fn refuse(&self, name: &str, value: impl Display, expected: &str) -> InvalidValue {
        let shown = value.to_string();
        InvalidValue::new(self.field(name), if shown.is_empty() { "``" } else { &shown }, expected)
    }

    fn field(&self, name: &str) -> String {
        format!("[{}.{}] {name}", self.kind, self.name)
    }
}

/// Reason why a part cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No entry has this name.
    #[error(transparent)]
    Unknown(#[from] UnknownName),
    /// A setting is unknown, or its value is invalid.
    #[error(transparent)]
    Setting(#[from] InvalidValue),
}

/// Error: no entry of the registry has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind} `{given}`; known: {}{}", known.join(", "), suggested(*.suggestion))]
pub struct UnknownName {
    /// Kind of the entry, such as `policy`.
    pub kind: &'static str,
    /// Name that was given.
    pub given: String,
    /// Names of all entries.
    pub known: Vec<&'static str>,
    /// The name that is most similar to the given one, if one is similar enough.
    pub suggestion: Option<&'static str>,
}

fn suggested(suggestion: Option<&'static str>) -> String {
    suggestion.map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: [Entry<u32>; 2] = [
        Entry::new("one", "is 1", |_| Ok(1)),
        Entry {
            name: "some",
            about: "is as many as wanted",
            settings: || {
                vec![
                    Setting::new("count", 3, "how many"),
                    Setting::time("wait", Duration::from_secs(5), "how long"),
                ]
            },
            build: |settings| {
                assert_eq!(settings.part(), "some");
                let wait = settings.duration("wait", Duration::from_secs(5))?;
                let count: u32 = settings.value("count", 3, "a whole number")?;
                if count == 0 {
                    Err(settings.refuse("count", 0, "at least 1"))
                } else {
                    Ok(count + wait.as_secs() as u32)
                }
            },
        },
    ];

    fn registry() -> Registry<Entry<u32>> {
        Registry::new("number", &SHIPPED).with_synonyms(&[("single", "one")])
    }

    fn built(name: &str, texts: &[(&str, &str)]) -> Result<u32, String> {
        let texts = texts.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
        registry().build(name, &texts).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_have_defaults_and_are_refused_by_table_and_key() {
        assert_eq!(built("some", &[]), Ok(8));
        assert_eq!(built("some", &[("count", "1"), ("wait", "2s")]), Ok(3));
        let refused = |name: &str, key: &str, text: &str| built(name, &[(key, text)]).unwrap_err();
        assert_eq!(refused("some", "count", "many"), "[number.some] count = many: must be a whole number");
        assert_eq!(refused("some", "count", "0"), "[number.some] count = 0: must be at least 1");
        assert!(refused("some", "wait", "2").starts_with("[number.some] wait"));
        assert!(refused("some", "cuont", "2").ends_with("did you mean `count`?"));
        assert!(refused("some", "x", "2").ends_with("a setting of this number: count, wait"));
        assert!(refused("one", "x", "2").ends_with("left out: this number has no settings"));
    }

    #[test]
    fn an_unknown_name_lists_the_known_and_suggests_the_nearest() {
        let text = registry().by_name("SOEM").unwrap_err().to_string();
        assert_eq!(text, "unknown number `SOEM`; known: one, some; did you mean `some`?");
        assert_eq!(registry().find("single").unwrap_err().suggestion, Some("one"));
        assert_eq!(registry().find("").unwrap_err().suggestion, None);
    }

    #[test]
    fn a_program_adds_an_entry_once() {
        let registry = registry();
        let two = Entry::new("two", "is 2", |_| Ok(2));
        registry.register(two).unwrap();
        assert_eq!((registry.names(), registry.by_name("two")), (vec!["one", "some", "two"], Ok(2)));
        let again = registry.register(two).unwrap_err().to_string();
        assert_eq!(again, "number = two: must be a name that no other number has");
        assert!(registry.register(SHIPPED[0]).is_err());
    }

    #[test]
    fn the_listing_is_accepted_as_a_job_file() {
        let expected = "one: is 1\nsome: is as many as wanted\n  [number.some]\n  count = 3  # how many\n  \
                        wait = \"5s\"  # how long\n";
        assert_eq!(registry().listing(), expected);
    }
}
