//! Writes the report folder: `report.json` and `report.html` appear complete or not at all.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::{Report, html};

/// Names of the files of a report: for programs, for people.
pub(crate) const FILES: [&str; 2] = ["report.json", "report.html"];

/// Reason why the report could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The folder cannot be created.
    #[error("cannot create the report folder {}: {source}; choose another --report-dir", folder.display())]
    Folder {
        /// Path of the report folder.
        folder: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file cannot be written: the disk is full, or the folder is read-only.
    #[error("cannot write {}: {source}; free some space or choose another --report-dir", file.display())]
    File {
        /// Path of the file that could not be written.
        file: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A number in the report cannot be written as JSON.
    #[error("the report cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

/// Creates the report folder if needed, and checks that a file can be written there.
///
/// It is called before a job starts, so that an hour's work does not end in an error that the first second
/// could have shown.
///
/// # Errors
/// If the folder cannot be created or written to.
pub fn prepare(folder: &Path) -> Result<(), WriteError> {
    fs::create_dir_all(folder).map_err(|source| WriteError::Folder { folder: folder.to_owned(), source })?;
    let probe = folder.join(format!(".antdt-probe-{}", std::process::id()));
    let written = fs::write(&probe, b"x");
    // A probe that was half written must not stay; whether it was there at all is of no interest.
    let _ = fs::remove_file(&probe);
    written.map_err(|source| WriteError::File { file: probe, source })
}

/// Writes `report.json` and `report.html` into `folder`, which is created if needed.
///
/// Each file is written under a temporary name, flushed to the disk, then renamed: a reader never sees half a
/// report, and an older report survives a failure.
///
/// # Errors
/// If the folder or a file cannot be written.
pub fn write(report: &Report, folder: &Path) -> Result<(), WriteError> {
    fs::create_dir_all(folder).map_err(|source| WriteError::Folder { folder: folder.to_owned(), source })?;
    let mut json = serde_json::to_string_pretty(report)?;
    json.push('\n');
    let [of_programs, of_people] = FILES.map(|name| folder.join(name));
    write_whole(&of_programs, json.as_bytes())?;
    write_whole(&of_people, html::render(report).as_bytes())
}

fn write_whole(file: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    whole(file, bytes).map_err(|source| WriteError::File { file: file.to_owned(), source })
}

/// Puts `bytes` into `file` by way of a temporary file in the same folder; into what is no plain file, such as a pipe, without.
pub(crate) fn whole(file: &Path, bytes: &[u8]) -> io::Result<()> {
    if file.metadata().is_ok_and(|found| !found.is_file()) {
        return fs::write(file, bytes);
    }
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let temporary = file.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    let written = (|| {
        let mut out = fs::File::create(&temporary)?;
        out.write_all(bytes)?;
        out.sync_all()?;
        fs::rename(&temporary, file)
    })();
    // What could not be finished must not fill the disk further; if even this fails, the error says enough.
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}
