//! [`Store`]: what a long benchmark has measured, each cell in a file before the next one is measured.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The cells that were measured.
#[derive(Debug)]
pub(crate) struct Store<T> {
    path: PathBuf,
    file: File,
    cells: Vec<T>,
}

impl<T: Serialize + DeserializeOwned> Store<T> {
    /// Opens a file; empties it unless its cells are kept. A last line that was cut off is measured again.
    pub(crate) fn open(path: &Path, keep: bool) -> Result<Self> {
        let named = || format!("cannot use {}", path.display());
        let mut cells = Vec::new();
        if keep && path.exists() {
            let text = fs::read_to_string(path).with_context(named)?;
            for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
                let cell = serde_json::from_str(line);
                cells.push(cell.with_context(|| format!("{}: leave out --continue", named()))?);
            }
        }
        let mut text = Vec::new();
        for cell in &cells {
            serde_json::to_writer(&mut text, cell)?;
            text.push(b'\n');
        }
        fs::write(path, text).with_context(named)?;
        let file = OpenOptions::new().append(true).open(path).with_context(named)?;
        Ok(Self { path: path.to_owned(), file, cells })
    }

    pub(crate) fn push(&mut self, measured: T) -> Result<()> {
        let mut line = serde_json::to_vec(&measured)?;
        line.push(b'\n');
        self.file.write_all(&line).with_context(|| format!("cannot write {}", self.path.display()))?;
        self.cells.push(measured);
        Ok(())
    }

    pub(crate) fn cells(&self) -> &[T] {
        &self.cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_run_goes_on_after_its_last_whole_cell() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cells.jsonl");
        let mut store = Store::open(&path, false).unwrap();
        store.push((1, "one".to_owned())).unwrap();
        store.push((2, "two".to_owned())).unwrap();
        store.file.write_all(b"[3,").unwrap();
        let mut kept = Store::<(u32, String)>::open(&path, true).unwrap();
        assert_eq!(kept.cells(), [(1, "one".to_owned()), (2, "two".to_owned())]);
        kept.push((4, "four".to_owned())).unwrap();
        assert_eq!(Store::<(u32, String)>::open(&path, true).unwrap().cells().len(), 3);
        assert!(Store::<(u32, String)>::open(&path, false).unwrap().cells().is_empty());
        fs::write(&path, "{}\n").unwrap();
        let refused = Store::<(u32, String)>::open(&path, true).unwrap_err();
        assert!(format!("{refused:#}").contains("leave out --continue"), "{refused:#}");
    }
}
