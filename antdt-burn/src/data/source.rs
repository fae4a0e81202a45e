//! The source of a workload's rows.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use antdt_core::InvalidValue;
use antdt_data::{Cache, Source, remote};

use super::DatasetError;
use super::pictures::PictureFolders;
use super::table::key_value;

/// Source of a workload's rows: the value of `--data`.
///
/// ```
/// use antdt_burn::DataSource;
/// assert_eq!("synthetic:1000".parse(), Ok(DataSource::Synthetic { rows: 1000 }));
/// assert_eq!("clicks.tsv".parse(), Ok(DataSource::Path("clicks.tsv".into())));
/// assert_eq!("s3://bucket/day_0/".parse(), Ok(DataSource::Path("s3://bucket/day_0/".into())));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// A file, a folder of files, or a URL of objects in a store.
    Path(PathBuf),
    /// Generated rows, of [`Clicks`](super::synthetic::Clicks).
    Synthetic {
        /// Number of training rows; rows for evaluation are generated beyond them.
        rows: u64,
    },
}

impl DataSource {
    /// Returns a digest of the files' content, by which data that moved is known again; `None` for generated rows.
    ///
    /// # Errors
    /// If the files cannot be read.
    pub fn fingerprint(&self) -> Result<Option<String>, DatasetError> {
        match self {
            Self::Path(path) => Ok(Some(match PictureFolders::find(path)? {
                Some(pictures) => pictures.fingerprint(path)?,
                None => antdt_data::fingerprint(&sources(path)?)?,
            })),
            Self::Synthetic { .. } => Ok(None),
        }
    }
}

impl FromStr for DataSource {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let Some(rows) = text.strip_prefix("synthetic:") else {
            if text.is_empty() {
                return Err(InvalidValue::new("data", "''", "a file, a folder, a URL, or synthetic:ROWS"));
            }
            return Ok(Self::Path(text.into()));
        };
        match rows.replace('_', "").parse() {
            Ok(rows) if rows > 0 => Ok(Self::Synthetic { rows }),
            _ => Err(InvalidValue::new("data", text, "synthetic:ROWS with ROWS a number of at least 1")),
        }
    }
}

impl fmt::Display for DataSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Synthetic { rows } => write!(f, "synthetic:{rows}"),
        }
    }
}

/// Callback that gets a line of text about the data before the first sample is read.
pub type Notify<'a> = &'a mut dyn FnMut(&dyn fmt::Display);

/// The files of a source, each as itself or as its copy that can be read by range; `announce` is told of a copy.
pub(super) fn seekable(
    path: &Path,
    cache: &Cache,
    announce: Notify<'_>,
) -> Result<Vec<Source>, DatasetError> {
    let mut found = Vec::new();
    if remote::url_of(path).is_none()
        && let Some(line) = Files::of(path)?.left_out(path)
    {
        announce(&line);
    }
    for source in sources(path)? {
        found.push(source.seekable(cache, &mut |notice| announce(notice))?);
    }
    Ok(found)
}

/// The files of a source, opened: those of a path, or the objects of a URL.
pub(super) fn sources(path: &Path) -> Result<Vec<Source>, DatasetError> {
    if let Some(url) = remote::url_of(path) {
        return Ok(remote::open_url(url, &|name| !is_documentation(name))?);
    }
    let mut sources = Vec::new();
    for file in Files::of(path)?.files {
        sources.push(Source::file(file)?);
    }
    Ok(sources)
}

/// Folders within folders, at most: beyond, a link most likely leads back.
const DEPTH_MAX: usize = 16;

/// The files of a path: the file itself, or those of the folder and of the folders in it that are called `KEY=VALUE`, in the order of
/// their paths.
///
/// Data sets travel with their documentation. Left out are hidden files, those that begin with `_` as markers such as `_SUCCESS` do, and
/// names that say "documentation": README, LICENSE, COPYING and Index with any ending, and the endings `.md` and `.names`, all also
/// with `.gz`.
#[derive(Debug, Default)]
struct Files {
    files: Vec<PathBuf>,
    /// Folders that are not read.
    folders: Vec<PathBuf>,
}

impl Files {
    fn of(path: &Path) -> Result<Self, DatasetError> {
        if !fs::metadata(path).map_err(failed(path))?.is_dir() {
            return Ok(Self { files: vec![path.into()], folders: Vec::new() });
        }
        let mut found = Self::default();
        found.add(path, DEPTH_MAX)?;
        if found.files.is_empty() {
            return Err(DatasetError::Empty { path: path.into() });
        }
        found.files.sort();
        found.folders.sort();
        Ok(found)
    }

    fn add(&mut self, folder: &Path, depth: usize) -> Result<(), DatasetError> {
        for entry in fs::read_dir(folder).map_err(failed(folder))? {
            let path = entry.map_err(failed(folder))?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if is_documentation(&name) {
                continue;
            }
            let kind = fs::metadata(&path).map_err(|error| match fs::read_link(&path) {
                Ok(target) if error.kind() == io::ErrorKind::NotFound => {
                    DatasetError::Dangling { path: path.clone(), target }
                }
                _ => failed(&path)(error),
            })?;
            if kind.is_file() {
                self.files.push(path);
            } else if kind.is_dir() && key_value(&name).is_some() && depth > 0 {
                self.add(&path, depth - 1)?;
            } else if kind.is_dir() {
                self.folders.push(path);
            }
        }
        Ok(())
    }

    /// Says which folders are not read; `None` if there are none.
    fn left_out(&self, path: &Path) -> Option<String> {
        let first = self.folders.first()?;
        let (path, count) = (path.display(), self.folders.len());
        let first = first.file_name().unwrap_or_default().to_string_lossy();
        Some(format!(
            "{path}: of the folders in it, {count} not called KEY=VALUE are not read ({first}{}); --data names one folder",
            if count > 1 { ", …" } else { "" }
        ))
    }
}

/// The error of a file operation.
pub(super) fn failed(path: &Path) -> impl Fn(io::Error) -> DatasetError {
    move |source| match source.kind() {
        io::ErrorKind::NotFound => DatasetError::NotFound { path: path.into() },
        _ => DatasetError::Read { path: path.into(), source },
    }
}

fn is_documentation(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
    let (stem, ending) = name.split_once('.').unwrap_or((name, ""));
    stem.is_empty()
        || stem.starts_with('_')
        || ["readme", "license", "copying", "index"].contains(&stem)
        || ["md", "names"].iter().any(|e| ending == *e || ending.ends_with(&format!(".{e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_is_told_from_data_by_its_name() {
        for name in
            ["README.md", "README", "adult.names.gz", "old.adult.names", ".hidden", "Index", "_SUCCESS"]
        {
            assert!(is_documentation(name), "{name}");
        }
        for name in ["adult.data.gz", "day_11", "part-00000.tsv", "train.csv", "day_11.first.tsv.gz"] {
            assert!(!is_documentation(name), "{name}");
        }
    }

    #[test]
    fn a_synthetic_source_needs_a_number_of_rows() {
        for text in ["synthetic:", "synthetic:0", "synthetic:many", "synthetic:-1", ""] {
            let error = text.parse::<DataSource>().unwrap_err();
            assert!(error.to_string().contains("synthetic:ROWS"), "{error}");
        }
        assert_eq!("synthetic:1_000".parse::<DataSource>().unwrap().to_string(), "synthetic:1000");
    }
}
