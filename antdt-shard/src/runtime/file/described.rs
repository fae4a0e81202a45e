//! The settings of a data set beside its log, in `dataset.json`. A log identifies its data set only by a
//! fingerprint; with the settings, a service that starts again serves every data set that its folder holds.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use super::FileStoreError;
use super::folder::{failed, sync_folder};
use crate::spec::DatasetSpec;

const FILE: &str = "dataset.json";

/// Writes down what the log in `folder` is about, unless it says so already.
pub(in crate::runtime) fn describe(folder: &Path, spec: &DatasetSpec) -> Result<(), FileStoreError> {
    let path = folder.join(FILE);
    if path.try_exists().map_err(|e| failed("read", &path, e))? {
        return Ok(());
    }
    let text = serde_json::to_vec_pretty(spec).map_err(|e| failed("write", &path, e.into()))?;
    let unfinished = folder.join("dataset.tmp");
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()
    });
    written.map_err(|e| failed("write", &unfinished, e))?;
    fs::rename(&unfinished, &path).map_err(|e| failed("rename", &unfinished, e))?;
    sync_folder(folder)
}

/// The data sets that have their logs in folders below `root`, in the order of these; none if there is no such folder.
pub(in crate::runtime) fn described(root: &Path) -> Result<Vec<DatasetSpec>, FileStoreError> {
    let entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed("list", root, error)),
    };
    let paths: Result<Vec<_>, io::Error> = entries.map(|entry| Ok(entry?.path().join(FILE))).collect();
    let mut paths = paths.map_err(|e| failed("list", root, e))?;
    paths.sort();
    let mut specs = Vec::new();
    for path in paths {
        let text = match fs::read(&path) {
            Ok(text) => text,
            // A foreign folder, or one that a crash left before anything was in it.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => continue,
            Err(error) => return Err(failed("read", &path, error)),
        };
        let spec = serde_json::from_slice(&text);
        specs.push(spec.map_err(|source| FileStoreError::Description { path, source })?);
    }
    Ok(specs)
}
