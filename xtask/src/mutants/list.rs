//! The lists of mutants: the `mutants.toml` of each crate that has one.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

use super::LIST;
use super::plant::{self, Planted};

/// What a `mutants.toml` says.
#[derive(Debug)]
pub(super) struct List {
    /// The folder of the crate that has it, from the root.
    pub(super) folder: String,
    /// How the crate, and what of ours it is built from, is optimised: 0 to 3. Time to build against time to run.
    pub(super) opt_level: i64,
    /// Features of the crate that are built; the default ones are not.
    pub(super) features: Vec<String>,
    pub(super) suites: BTreeMap<String, Tests>,
    pub(super) mutants: Vec<Mutant>,
}

/// Tests of one binary.
#[derive(Debug)]
pub(super) struct Tests {
    /// `lib`, or the name of an integration test.
    pub(super) target: String,
    /// Arguments of the binary: it is started with each of them until a test fails, so the fast tests come first.
    pub(super) runs: Vec<Vec<String>>,
}

/// A defect that could be in the crate.
#[derive(Debug)]
pub(super) struct Mutant {
    pub(super) name: String,
    /// The folder of the crate it is planted in: one that the crate with the list is built from, or itself if none is
    /// named.
    pub(super) krate: Option<String>,
    /// From that crate's folder.
    pub(super) file: String,
    /// An expression, or one or more statements, which is once in the file, white space aside. With `«` and `»` around
    /// a part of it only that part is replaced.
    pub(super) original: String,
    /// What stands in its place.
    pub(super) defect: String,
    /// What it would do, or where it was seen.
    pub(super) why: String,
    /// Each of these must catch it.
    pub(super) suites: Vec<String>,
}

impl List {
    /// Reads the list of the crate in `folder`.
    pub(super) fn parse(folder: &str, text: &str) -> Result<Self> {
        Self::read(folder, text).with_context(|| format!("{folder}/{LIST}"))
    }

    fn read(folder: &str, text: &str) -> Result<Self> {
        let mut top: Table = text.parse()?;
        let opt_level = match top.remove("opt-level") {
            None => 1,
            Some(Value::Integer(level @ 0..=3)) => level,
            Some(other) => bail!("opt-level = {other}: must be 0 to 3"),
        };
        let features = texts(&mut top, "features")?.unwrap_or_default();
        let mut suites = BTreeMap::new();
        for (name, mut suite) in table(&mut top, "suites")? {
            let suite = suite.as_table_mut().with_context(|| format!("suites.{name} must be a table"))?;
            let tests = Tests {
                target: text_of(suite, "target").with_context(|| format!("suites.{name}"))?,
                runs: runs(suite)?,
            };
            nothing_else(suite, &format!("suites.{name}"))?;
            suites.insert(name, tests);
        }
        let first = suites.keys().next().context("suites: at least one is needed")?.clone();
        let default = texts(&mut top, "default")?.unwrap_or_else(|| vec![first]);
        let Some(Value::Array(entries)) = top.remove("mutant") else {
            bail!("[[mutant]]: at least one is needed");
        };
        let mut mutants = Vec::new();
        for (at, entry) in entries.into_iter().enumerate() {
            let Value::Table(entry) = entry else { bail!("mutant {} must be a table", at + 1) };
            mutants.push(Mutant::parse(entry, &default).with_context(|| format!("mutant {}", at + 1))?);
        }
        nothing_else(&top, "the file")?;
        let list = Self { folder: folder.to_owned(), opt_level, features, suites, mutants };
        list.validate()?;
        Ok(list)
    }

    fn validate(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        for mutant in &self.mutants {
            if !names.insert(&mutant.name) {
                bail!("two mutants are called {:?}; give each its own name", mutant.name);
            }
            if let Some(unknown) = mutant.suites.iter().find(|suite| !self.suites.contains_key(*suite)) {
                bail!("mutant {:?} names the suite {unknown:?}, which is not listed", mutant.name);
            }
            if mutant.suites.is_empty() {
                bail!("mutant {:?} names no suite that must catch it", mutant.name);
            }
        }
        Ok(())
    }
}

impl List {
    /// The folders of the crates that its mutants lie in.
    pub(super) fn crates(&self) -> BTreeSet<&str> {
        self.mutants.iter().map(|mutant| mutant.folder(self)).collect()
    }

    /// The texts of the files that have mutants, with all of these in them, and what is wrong with the places of some: an
    /// original is in its file exactly once, and no two cross. Files are named by their paths from the root.
    pub(super) fn plant<'a>(
        &self,
        text_of: impl Fn(&str) -> Option<&'a str>,
    ) -> (BTreeMap<String, String>, Vec<String>) {
        let mut files: BTreeMap<String, Vec<(u32, &Mutant)>> = BTreeMap::new();
        for (at, mutant) in self.mutants.iter().enumerate() {
            files.entry(mutant.path(self)).or_default().push((plant::number(at), mutant));
        }
        let (mut planted, mut misplaced) = (BTreeMap::new(), Vec::new());
        for (file, mutants) in files {
            let text = text_of(&file);
            let mut defects = Vec::new();
            for (number, Mutant { name, original, defect, .. }) in mutants {
                match text.context("there is no such text").and_then(|text| plant::find(text, original)) {
                    Ok(place) => defects.push(Planted { place, number, name, defect }),
                    Err(error) => misplaced.push(format!("{}/{LIST}: {name} ({file}): {error}", self.folder)),
                }
            }
            match plant::plant(text.unwrap_or_default(), defects) {
                Ok(text) => drop(planted.insert(file, text)),
                Err(error) => misplaced.push(format!("{file}: {error}")),
            }
        }
        (planted, misplaced)
    }
}

impl Mutant {
    fn folder<'a>(&'a self, list: &'a List) -> &'a str {
        self.krate.as_deref().unwrap_or(&list.folder)
    }

    pub(super) fn path(&self, list: &List) -> String {
        format!("{}/{}", self.folder(list), self.file)
    }

    fn parse(mut entry: Table, default: &[String]) -> Result<Self> {
        let mutant = Self {
            name: text_of(&mut entry, "name")?,
            krate: entry.contains_key("crate").then(|| text_of(&mut entry, "crate")).transpose()?,
            file: text_of(&mut entry, "file")?,
            original: text_of(&mut entry, "original")?,
            defect: text_of(&mut entry, "defect")?,
            why: text_of(&mut entry, "why")?,
            suites: texts(&mut entry, "suites")?.unwrap_or_else(|| default.to_vec()),
        };
        nothing_else(&entry, &format!("{:?}", mutant.name))?;
        Ok(mutant)
    }
}

fn table(from: &mut Table, key: &str) -> Result<Table> {
    match from.remove(key) {
        Some(Value::Table(table)) => Ok(table),
        _ => bail!("[{key}] is missing"),
    }
}

fn text_of(from: &mut Table, key: &str) -> Result<String> {
    match from.remove(key) {
        Some(Value::String(text)) => Ok(text),
        _ => bail!("{key} is missing or not a text"),
    }
}

fn texts(from: &mut Table, key: &str) -> Result<Option<Vec<String>>> {
    let Some(value) = from.remove(key) else { return Ok(None) };
    strings(&value).map(Some).with_context(|| format!("{key} must be a list of texts"))
}

fn runs(suite: &mut Table) -> Result<Vec<Vec<String>>> {
    let Some(value) = suite.remove("runs") else { return Ok(vec![Vec::new()]) };
    let list = value.as_array().context("runs must be a list of lists of texts")?;
    list.iter().map(strings).collect::<Option<_>>().context("runs must be a list of lists of texts")
}

fn strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|value| value.as_str().map(str::to_owned)).collect()
}

fn nothing_else(table: &Table, place: &str) -> Result<()> {
    match table.keys().next() {
        Some(key) => bail!("{key} is not a key of {place}"),
        None => Ok(()),
    }
}
