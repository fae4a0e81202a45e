//! Columns that the folders of files name, as Hive writes them: `dt=2024-01-31/country=de/part.csv` has two. Pure.
//!
//! Keys and values are as Hive, Spark and others write them: characters that a path cannot hold are `%` and two hexadecimal digits, and
//! `__HIVE_DEFAULT_PARTITION__` is no value. A file that has no folder of a key has no value there.

use std::path::{Component, Path, PathBuf};

use super::{ColumnError, RowField};
use crate::data::DatasetError;

/// Value of a folder for rows that have none.
const NONE: &str = "__HIVE_DEFAULT_PARTITION__";

/// The key and the value of a folder called `KEY=VALUE`; `None` if it is called otherwise.
pub(in crate::data) fn key_value(folder: &str) -> Option<(&str, &str)> {
    folder.split_once('=').filter(|(key, _)| !key.is_empty())
}

/// Columns of a data set whose values are the names of folders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::data) struct FolderColumns {
    /// Names of the columns, in the order in which the first files name them.
    keys: Vec<String>,
    /// Each file, and its value of each column that it has one of.
    files: Vec<(PathBuf, Vec<Option<String>>)>,
}

impl FolderColumns {
    /// The columns that the folders from `root` to each file name; folders above `root` name none.
    pub(in crate::data) fn of<'a>(
        root: &Path,
        files: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Self, DatasetError> {
        let mut found = Self::default();
        for file in files {
            let folders = file.strip_prefix(root).ok().and_then(Path::parent).unwrap_or(Path::new(""));
            let mut values = vec![None; found.keys.len()];
            let mut named = Vec::new();
            for component in folders.components() {
                let Component::Normal(name) = component else { continue };
                let name = name.to_string_lossy();
                let Some((key, value)) = key_value(&name) else { continue };
                let (key, value) = (decoded(key), decoded(value));
                if named.contains(&key) {
                    let error = ColumnError::FolderTwice { name: key };
                    return Err(DatasetError::Table { path: file.into(), error });
                }
                let at = found.keys.iter().position(|known| *known == key).unwrap_or_else(|| {
                    found.keys.push(key.clone());
                    values.push(None);
                    found.keys.len() - 1
                });
                values[at] = Some(value).filter(|value| value != NONE);
                named.push(key);
            }
            found.files.push((file.into(), values));
        }
        let count = found.keys.len();
        found.files.iter_mut().for_each(|(_, values)| values.resize(count, None));
        Ok(found)
    }

    /// Names of the columns.
    pub(in crate::data) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// The files, in their order.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().map(|(path, _)| path.as_path())
    }

    /// The value of a column for all rows of a file.
    pub(super) fn field(&self, file: usize, key: usize) -> RowField<'_> {
        let value = self.files.get(file).and_then(|(_, values)| values.get(key)?.as_deref());
        value.map_or(RowField::Missing, |value| RowField::of_text(value.as_bytes().into()))
    }

    /// Everything that the folders say, to tell data sets apart.
    pub(super) fn identity(&self) -> String {
        let values: Vec<_> = self.files.iter().map(|(_, values)| values).collect();
        format!("{:?} {values:?}", self.keys)
    }
}

/// A name without its escapes; what is none stays as it is.
fn decoded(name: &str) -> String {
    let bytes = name.as_bytes();
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                plain.push(u8::try_from(high << 4 | low).expect("two digits are one byte"));
                at += 3;
            }
            _ => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(root: &str, files: &[&str]) -> Result<FolderColumns, DatasetError> {
        FolderColumns::of(Path::new(root), files.iter().map(Path::new))
    }

    fn texts(columns: &FolderColumns, file: usize) -> Vec<Option<String>> {
        let text = |field| match field {
            RowField::Text(text) => Some(String::from_utf8_lossy(&text).into_owned()),
            _ => None,
        };
        (0..columns.keys().len()).map(|key| text(columns.field(file, key))).collect()
    }

    #[test]
    fn folders_below_the_data_are_columns_and_those_above_are_none() {
        for root in ["/x=1/rows", "s3://bucket/rows/", "rows"] {
            let file = |name: &str| format!("{}/{name}", root.trim_end_matches('/'));
            let files = [
                file("dt=1/country=de/a.csv"),
                file("dt=2/country=__HIVE_DEFAULT_PARTITION__/b.csv"),
                file("c=d.csv"),
                file("old/shop=A%2FB %zz%/dt=/d.csv"),
            ];
            let columns = of(root, &files.each_ref().map(String::as_str)).unwrap();
            assert_eq!(columns.keys(), ["dt", "country", "shop"]);
            let some = |text: &str| Some(text.to_owned());
            assert_eq!(texts(&columns, 0), [some("1"), some("de"), None]);
            assert_eq!(texts(&columns, 1), [some("2"), None, None]);
            assert_eq!(texts(&columns, 2), [None, None, None]);
            assert_eq!(texts(&columns, 3), [None, None, some("A/B %zz%")]);
        }
        assert_eq!(of("/x=1/a.csv", &["/x=1/a.csv"]).unwrap().keys(), [""; 0]);
    }

    #[test]
    fn key_that_two_folders_of_one_path_have_is_refused_by_name() {
        let error = of("rows", &["rows/dt=1/dt=2/a.csv"]).unwrap_err().to_string();
        assert!(error.contains("rows/dt=1/dt=2/a.csv: two folders") && error.contains("dt="), "{error}");
    }
}
