//! Errors of reading a table by the names of its columns.

use super::names::{LABELS, listed};

/// What a label may be.
const SUPPORTED: &str = "a label has two values, classes, or numbers to estimate (--task regression); a condition makes two classes of \
                         any column: --label 'COLUMN>=NUMBER' or --label 'COLUMN=VALUE'";

/// Names of columns that an error text shows, at most.
const NAMES_MAX: usize = 30;

/// Reason why the columns of a table cannot be used. The error text names the column, and the flag that helps.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ColumnError {
    /// No column, or more than one, has a name that says that it is the label.
    #[error(
        "{}; name the column to predict with --label, one of: {}",
        match &found[..] {
            [] => format!("no column is called {}", LABELS.join(", ")),
            found => format!("{} may each be the label", found.join(" and ")),
        },
        listed(columns.iter().map(String::as_str), NAMES_MAX)
    )]
    NoLabel {
        /// Columns whose name says so.
        found: Vec<String>,
        /// All columns.
        columns: Vec<String>,
    },
    /// The only column whose name says that it is the label is one that is not to be used.
    #[error(
        "--ignore = {name}: it is called as the label is; leave it out of --ignore, or name the column to predict with --label"
    )]
    LabelIgnored {
        /// Name of the column.
        name: String,
    },
    /// A flag names a column that does not exist.
    #[error("{flag} = {name}: no column is called so; there are: {}", listed(columns.iter().map(String::as_str), NAMES_MAX))]
    NoColumn {
        /// The flag.
        flag: &'static str,
        /// Name that it was given.
        name: String,
        /// All columns.
        columns: Vec<String>,
    },
    /// A flag names a column that exists several times.
    #[error("{flag} = {name}: {count} columns are called so; give them different names in the file")]
    Ambiguous {
        /// The flag.
        flag: &'static str,
        /// Name that it was given.
        name: String,
        /// Number of columns of this name.
        count: usize,
    },
    /// Two flags want different things of one column.
    #[error("{name} is named by {first} and by {second}; leave it out of one of them")]
    Twice {
        /// Name of the column.
        name: String,
        /// The flags.
        first: &'static str,
        /// The flags.
        second: &'static str,
    },
    /// A folder and a column of the file have one name.
    #[error(
        "its folder is called {name}=…, and its column {column}; rename the folders, or write the files without the column"
    )]
    FolderColumn {
        /// Key of the folder.
        name: String,
        /// Name of the column.
        column: String,
    },
    /// Two folders of a path have one key.
    #[error("two folders of its path are called {name}=…; rename one of them")]
    FolderTwice {
        /// The key.
        name: String,
    },
    /// The value of a folder cannot be used for its column.
    #[error("its folders: {what}; rename the folder, or take it off the data")]
    FolderValue {
        /// Which column, and why.
        what: String,
    },
    /// A condition, which makes two classes, is to be estimated as a number.
    #[error(
        "--task = regression: --label {text} makes two classes of its column; name the column alone, or leave --task out"
    )]
    ConditionEstimated {
        /// Text of `--label`.
        text: String,
    },
    /// The column of the label cannot be one.
    #[error("--label = {name}: it {what}; {SUPPORTED}")]
    Label {
        /// Name of the column.
        name: String,
        /// What it has instead.
        what: String,
    },
    /// A condition of the label cannot be read.
    #[error("--label = {text}: must be COLUMN, COLUMN>=NUMBER, COLUMN>NUMBER or COLUMN=VALUE")]
    Condition {
        /// Text of the flag.
        text: String,
    },
    /// A column that was to be numeric has a value that is no number.
    #[error("--numeric = {name}: '{value}' is no number; leave the column out, or name it in --categorical")]
    NoNumber {
        /// Name of the column.
        name: String,
        /// Its first value that is no number.
        value: String,
    },
    /// A column that the job was to use has a kind of value that it cannot.
    #[error(
        "{flag} = {name}: the column is {kind}, which is no number and no category; write it as one, or leave it out"
    )]
    Kind {
        /// The flag.
        flag: &'static str,
        /// Name of the column.
        name: String,
        /// Its kind in words.
        kind: &'static str,
    },
    /// Besides the label nothing is left to learn from.
    #[error("no column is left to learn from beside the label {label}; name some with --numeric or --categorical, of: {}",
        listed(columns.iter().map(String::as_str), NAMES_MAX))]
    NoFeatures {
        /// Name of the label.
        label: String,
        /// All columns.
        columns: Vec<String>,
    },
    /// The table has more columns than a model takes.
    #[error("{count} columns, at most {most} are supported; leave some out with --ignore")]
    TooWide {
        /// Number of columns that the job would use.
        count: usize,
        /// Largest number of them.
        most: usize,
    },
    /// The text is in an encoding that is not read.
    #[error("the text is in UTF-16; save it in UTF-8")]
    Utf16,
}
