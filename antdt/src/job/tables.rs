//! [`Tables`]: settings of parts that a job names, such as its policy: the tables `[policy.NAME]` of a job file.

use std::collections::BTreeMap;

use antdt_controller::policy;
use antdt_core::InvalidValue;
use antdt_core::registry::BuildError;
use antdt_launch::runtime as launcher;
use antdt_launch::runtime::source::HOST_SOURCES;
use antdt_model::optimizer;
use antdt_monitor::rule;
use serde_json::{Map, Value as Json};

use crate::workload;

/// Settings of one part as JSON values by name. Only the part itself knows their meaning.
pub type PartSettings = Map<String, Json>;

/// A kind of replaceable part of a job, such as the policy, whose settings are tables of the job file. The
/// setting that selects the part has the name of the kind.
#[derive(Debug)]
pub struct PartKind {
    /// Name of the kind, such as `policy`.
    pub name: &'static str,
    /// Makes a part, to see whether its settings can be.
    check: fn(&str, &BTreeMap<String, String>) -> Result<(), BuildError>,
}

impl PartKind {
    /// All kinds of parts that have tables.
    pub const ALL: [Self; 6] = [
        Self { name: "policy", check: |name, texts| policy::REGISTRY.build(name, texts).map(drop) },
        Self { name: "pace-rule", check: |name, texts| rule::REGISTRY.build(name, texts).map(drop) },
        Self { name: "optimizer", check: |name, texts| optimizer::REGISTRY.build(name, texts).map(drop) },
        Self { name: "launcher", check: |name, texts| launcher::REGISTRY.build(name, texts).map(drop) },
        Self { name: "host-source", check: |name, texts| HOST_SOURCES.build(name, texts).map(drop) },
        Self { name: "workload", check: |name, texts| workload::REGISTRY.build(name, texts).map(drop) },
    ];

    /// Key of the selected part's name in a table that also has tables of settings: `[policy] name = "nd"`.
    pub const PART: &'static str = "name";

    /// Returns the kind of this name; `None` if there is none.
    pub fn of(name: &str) -> Option<&'static Self> {
        const ALL: &[PartKind] = &PartKind::ALL;
        ALL.iter().find(|kind| kind.name == name)
    }
}

/// What the entry of a job file for a kind of part says of the part that the job uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selected {
    /// The part of this name: the `name` of the entry, or the part of its only table.
    Part(String),
    /// That none is selected: the `name` is null, as [`JobSpec::to_json`](super::JobSpec::to_json) writes it.
    Unset,
    /// Nothing: the entry is empty.
    Open,
}

impl Selected {
    /// Reads what an entry says.
    fn by(kind: &'static PartKind, object: &Map<String, Json>) -> Result<Self, InvalidValue> {
        let PartKind { name: kind, .. } = kind;
        let mut tables = Vec::new();
        let mut named = None;
        for (name, value) in object {
            match value {
                Json::Object(_) => tables.push(name.as_str()),
                Json::String(part) if name == PartKind::PART => named = Some(Self::Part(part.clone())),
                Json::Null if name == PartKind::PART => named = Some(Self::Unset),
                other => {
                    let expected = format!("in the table of one {kind}, [{kind}.NAME]");
                    return Err(InvalidValue::new(format!("--{kind} {name}"), other, expected));
                }
            }
        }
        match (named, &tables[..]) {
            (Some(named), _) => Ok(named),
            (None, []) => Ok(Self::Open),
            (None, [part]) => Ok(Self::Part((*part).to_owned())),
            (None, parts) => {
                let expected = format!(
                    "named, by `{}` under [{kind}] or by the flag --{kind}: there are tables of {}",
                    PartKind::PART,
                    parts.join(" and ")
                );
                Err(InvalidValue::new(format!("--{kind}"), "(nothing)", expected))
            }
        }
    }
}

/// Settings of a job's replaceable parts, such as its policy: the tables `[policy.NAME]` of a job file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tables(BTreeMap<&'static str, BTreeMap<String, PartSettings>>);

impl Tables {
    /// Returns the tables of a kind, by the names of its parts.
    pub fn of(&self, kind: &str) -> impl Iterator<Item = (&String, &PartSettings)> {
        self.0.get(kind).into_iter().flatten()
    }

    /// Adds the entry of a job file for a kind of part. Returns which part it selects.
    ///
    /// # Errors
    /// If the entry is neither a name nor a table, or has several tables and does not say which part is selected.
    pub fn put(
        &mut self,
        kind: &'static PartKind,
        object: &Map<String, Json>,
    ) -> Result<Selected, InvalidValue> {
        let selected = Selected::by(kind, object)?;
        for (name, value) in object {
            if let Json::Object(settings) = value {
                let tables = self.0.entry(kind.name).or_default();
                tables.entry(name.clone()).or_default().extend(settings.clone());
            }
        }
        Ok(selected)
    }

    /// Returns the settings of a part as texts.
    ///
    /// # Errors
    /// If a setting is not a text, number or truth value; the error names the table and the key.
    pub fn texts(&self, kind: &str, part: &str) -> Result<BTreeMap<String, String>, InvalidValue> {
        let settings = self.0.get(kind).and_then(|tables| tables.get(part));
        let texts = settings.into_iter().flatten().map(|(name, value)| match value {
            Json::String(text) => Ok((name.clone(), text.clone())),
            Json::Number(_) | Json::Bool(_) => Ok((name.clone(), value.to_string())),
            Json::Null | Json::Array(_) | Json::Object(_) => {
                let field = format!("[{kind}.{part}] {name}");
                Err(InvalidValue::new(field, value, "a text, a number, true or false"))
            }
        });
        texts.collect()
    }

    /// Checks all tables, including those of parts that the job does not use, so that mistakes are found at
    /// once.
    ///
    /// # Errors
    /// The first setting that is unknown or has an invalid value.
    pub fn validate(&self) -> Result<(), InvalidValue> {
        for kind in &PartKind::ALL {
            for (part, _) in self.of(kind.name) {
                (kind.check)(part, &self.texts(kind.name, part)?).map_err(|error| match error {
                    BuildError::Setting(error) => error,
                    other => InvalidValue::new(format!("[{}.…]", kind.name), part, other.to_string()),
                })?;
            }
        }
        Ok(())
    }
}
