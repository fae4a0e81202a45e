//! The source of a workload's rows.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use antdt_core::InvalidValue;
use antdt_data::{Source, remote};

use super::DatasetError;

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
            Self::Path(path) => Ok(Some(antdt_data::fingerprint(&sources(path)?)?)),
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

/// The files of a source, opened: those of a path, or the objects of a URL.
pub(super) fn sources(path: &Path) -> Result<Vec<Source>, DatasetError> {
    if let Some(url) = remote::url_of(path) {
        return Ok(remote::open_url(url, &|name| !is_documentation(name))?);
    }
    let mut sources = Vec::new();
    for file in files(path)? {
        sources.push(Source::file(file)?);
    }
    Ok(sources)
}

/// The files of a path: the file itself, or those of the folder in the order of their names.
///
/// Data sets travel with their documentation. Hidden files and names that say "documentation" are left out: README,
/// LICENSE, COPYING and Index with any ending, and the endings `.md` and `.names`, all also with `.gz`.
fn files(path: &Path) -> Result<Vec<PathBuf>, DatasetError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => DatasetError::NotFound { path: path.into() },
        _ => DatasetError::Read { path: path.into(), source },
    };
    if !fs::metadata(path).map_err(failed)?.is_dir() {
        return Ok(vec![path.into()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_file = fs::metadata(entry.path()).map_err(failed)?.is_file();
        if is_file && !is_documentation(&entry.file_name().to_string_lossy()) {
            files.push(entry.path());
        }
    }
    if files.is_empty() {
        return Err(DatasetError::Empty { path: path.into() });
    }
    files.sort();
    Ok(files)
}

fn is_documentation(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let name = name.strip_suffix(".gz").or_else(|| name.strip_suffix(".zst")).unwrap_or(&name);
    let (stem, ending) = name.split_once('.').unwrap_or((name, ""));
    stem.is_empty()
        || ["readme", "license", "copying", "index"].contains(&stem)
        || ["md", "names"].iter().any(|e| ending == *e || ending.ends_with(&format!(".{e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documentation_is_told_from_data_by_its_name() {
        for name in ["README.md", "README", "adult.names.gz", "old.adult.names", ".hidden", "Index"] {
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
