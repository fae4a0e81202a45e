//! [`Rows`]: the rows of a benchmark, stored one by one as they are measured.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::Entry;

/// The rows that a benchmark has measured so far. Each is stored as a line of a file before the next one is
/// measured, so that it survives if the benchmark is ended.
#[derive(Debug)]
pub struct Rows {
    entries: Vec<Entry>,
    file: File,
    /// The first row that the disk did not take.
    broken: Option<io::Error>,
}

impl Rows {
    /// Creates the file of the rows. Its first line is `on`, the environment of the measurements.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn create(file: &Path, on: &impl Serialize) -> Result<Self> {
        let name = file.display();
        let mut file = File::create(file).with_context(|| format!("cannot create {name}"))?;
        let head = serde_json::to_string(on)?;
        writeln!(file, "{head}").with_context(|| format!("cannot write {name}"))?;
        Ok(Self { entries: Vec::new(), file, broken: None })
    }

    /// Adds a row and stores it.
    pub fn push(&mut self, entry: Entry) {
        if let Err(error) = self.store(&entry) {
            self.broken.get_or_insert(error);
        }
        self.entries.push(entry);
    }

    fn store(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        // One write a row: a line is whole or not there.
        self.file.write_all(&line)
    }

    /// Brings the rows into another order; those with equal keys stay in theirs. The file keeps the order in which they were added.
    pub fn sort_by_key<K: Ord>(&mut self, key: impl FnMut(&Entry) -> K) {
        self.entries.sort_by_key(key);
    }

    /// Returns the rows that were added so far.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns all rows.
    ///
    /// # Errors
    /// If a row could not be stored.
    pub fn finish(self) -> Result<Vec<Entry>> {
        self.broken.map_or(Ok(self.entries), |error| Err(error).context("a row could not be stored"))
    }
}

impl Extend<Entry> for Rows {
    fn extend<I: IntoIterator<Item = Entry>>(&mut self, entries: I) {
        entries.into_iter().for_each(|entry| self.push(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_in_the_file_before_the_next_one_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.jsonl");
        let stored = || {
            let text = std::fs::read_to_string(&file).unwrap();
            let mut lines = text.lines();
            assert_eq!(lines.next(), Some("{\"kernel\":\"6.1\"}"));
            lines.map(|line| serde_json::from_str::<Entry>(line).unwrap()).collect::<Vec<_>>()
        };
        let mut rows = Rows::create(&file, &serde_json::json!({"kernel": "6.1"})).unwrap();
        let (one, two) = (Entry::shown("one", 1.0, "s"), Entry::shown("two", 2.0, "s").at_most(1.0));
        rows.push(one.clone());
        assert_eq!(stored(), std::slice::from_ref(&one));
        rows.extend([two.clone()]);
        assert_eq!(stored(), [one.clone(), two.clone()]);
        assert_eq!(rows.finish().unwrap(), [one, two]);
    }
}
