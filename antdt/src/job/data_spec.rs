//! The source of a job's samples.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use antdt_core::InvalidValue;

/// Source of a job's samples. Text form: `synthetic:ROWS`, a path, or a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSpec {
    /// A file or a folder at this path, or objects in a store at this URL.
    Path(PathBuf),
    /// Samples that are generated from the job's seed, in the form that the workload takes.
    Synthetic {
        /// Number of generated rows.
        rows: u64,
    },
    /// This many samples that a program of the user's has: it is told their numbers.
    Samples(u64),
}

impl FromStr for DataSpec {
    type Err = InvalidValue;
    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let number = |digits: &str, expected: &str| {
            // Underscores group digits, as in Rust.
            let digits: String = digits.chars().filter(|c| *c != '_').collect();
            digits.parse().map_err(|_| InvalidValue::new("--data", text, expected))
        };
        match text.split_once(':') {
            Some(("synthetic", rows)) => {
                let rows = number(rows, "synthetic:ROWS with a whole number, such as synthetic:100000")?;
                Ok(Self::Synthetic { rows })
            }
            Some(("samples", samples)) => {
                number(samples, "samples:NUMBER with a whole number, such as samples:60000")
                    .map(Self::Samples)
            }
            _ => {
                let expected = "a file or folder, or synthetic:ROWS such as synthetic:100000";
                if text.is_empty() || text == "synthetic" {
                    return Err(InvalidValue::new("--data", format!("`{text}`"), expected));
                }
                Ok(Self::Path(PathBuf::from(text)))
            }
        }
    }
}

impl fmt::Display for DataSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "{}", path.display()),
            Self::Synthetic { rows } => write!(f, "synthetic:{rows}"),
            Self::Samples(samples) => write!(f, "samples:{samples}"),
        }
    }
}
