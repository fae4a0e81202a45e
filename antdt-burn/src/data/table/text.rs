//! Tables of text: what separates their fields, and whether they have a header.

use std::borrow::Cow;
use std::path::Path;

use antdt_data::{Delimited, Dialect};

use super::infer::Seen;
use super::tally::Tally;
use super::{ColumnChoice, ColumnError, FolderColumns, SAMPLE_ROWS, Table, names};
use crate::data::DatasetError;
use crate::data::format::RowField;

/// What separates the fields of a row, in the order in which it is tried where several separate as many.
const DELIMITERS: [u8; 4] = [b',', b'\t', b';', b'|'];

/// How the rows of a text are read.
#[derive(Debug, Clone, Copy)]
struct Form {
    dialect: Dialect,
    colons: bool,
}

/// The fields of a row.
pub(super) fn fields(
    colons: bool,
    dialect: Dialect,
    row: &[u8],
) -> impl Iterator<Item = Cow<'_, [u8]>> + Clone {
    let (by_colons, by_byte) = if colons { (Some(row), None) } else { (None, Some(row)) };
    let by_colons = by_colons.into_iter().flat_map(|row| {
        let mut rest = Some(row);
        std::iter::from_fn(move || {
            let text = rest.take()?;
            let Some(at) = text.windows(2).position(|two| two == b"::") else { return Some(text) };
            rest = Some(&text[at + 2..]);
            Some(&text[..at])
        })
    });
    by_colons.map(Cow::Borrowed).chain(by_byte.into_iter().flat_map(move |row| dialect.fields(row)))
}

impl Form {
    /// What separates most fields of the first row; `tabs` says that tabs do, or that they do not.
    fn of(first: &[u8], tabs: Option<bool>) -> Self {
        let quoted = |delimiter: u8| Dialect::csv().with_delimiter(delimiter);
        let count = |delimiter: &u8| quoted(*delimiter).fields(first).count();
        let may = |delimiter: &&u8| tabs.is_none_or(|tabs| tabs == (**delimiter == b'\t'));
        let best = DELIMITERS.iter().filter(may).rev().max_by_key(|delimiter| count(delimiter));
        let delimiter = best.copied().unwrap_or(b',');
        let colons = tabs != Some(true) && fields(true, Dialect::csv(), first).count() > count(&delimiter);
        // A quote within a text with tabs, colons or bars most often is an inch.
        let has_quotes = !colons && (delimiter == b',' || delimiter == b';' || first.contains(&b'"'));
        let dialect = quoted(delimiter).with_quote(has_quotes.then_some(b'"'));
        Self { dialect, colons }
    }

    fn names(self, row: &[u8]) -> Vec<String> {
        let plain = |name: Cow<'_, [u8]>| String::from_utf8_lossy(&name).trim().trim_matches('"').to_owned();
        fields(self.colons, self.dialect, row).map(plain).collect()
    }
}

/// Whether the first row names the columns: one of them is the label that is asked for, or none is a number, none is there twice,
/// and at most the first is empty.
fn is_header(names: &[String], choice: &ColumnChoice) -> bool {
    // A number is the name of a column of a file without a header.
    let label = choice.label.as_deref().filter(|label| label.parse::<f64>().is_err());
    let asked = label.is_some_and(|label| !names::find(label, names).is_empty());
    let mut sorted: Vec<&String> = names.iter().collect();
    sorted.sort_unstable();
    let twice = sorted.windows(2).any(|two| two[0] == two[1]);
    let number = |name: &String| RowField::of_text(name.as_bytes().into()).real().is_some();
    let empty = names.iter().skip(1).any(String::is_empty);
    asked || !(twice || empty || names.iter().any(number))
}

/// The names of the columns as the first row of a text has them; `None` if it names fewer than two.
pub(in crate::data) fn header(begin: &[u8], whole: bool) -> Option<Vec<String>> {
    let plain = Dialect::tsv();
    let first = Delimited::rows_of(plain, begin, whole).into_iter().next()?;
    let names = Form::of(first, None).names(first);
    // What nothing separates may be a row of a form that is not known here.
    (names.len() > 1 && is_header(&names, &ColumnChoice::default())).then_some(names)
}

impl Table {
    /// The columns of a text that begins with `begin`, and is `whole` there or not. `tabs` says whether tabs separate its fields, if the
    /// user does.
    pub(in crate::data) fn of_text(
        path: &Path,
        (begin, whole): (&[u8], bool),
        tabs: Option<bool>,
        folders: &FolderColumns,
        choice: &ColumnChoice,
    ) -> Result<(Self, Dialect), DatasetError> {
        let refused = |error| DatasetError::Table { path: path.into(), error };
        let (seen, form) = sample(path, (begin, whole), tabs, folders, choice)?;
        let table = Self::decide(&seen, folders, choice, form.colons).map_err(refused)?;
        table.check_folders()?;
        Ok((table, form.dialect))
    }
}

/// The columns of a text, what its first rows show of them, and its dialect.
pub(in crate::data) fn text_sample(
    path: &Path,
    begin: (&[u8], bool),
    tabs: Option<bool>,
    folders: &FolderColumns,
    choice: &ColumnChoice,
) -> Result<(Seen, Dialect), DatasetError> {
    let (seen, form) = sample(path, begin, tabs, folders, choice)?;
    Ok((seen, form.dialect))
}

/// The columns of a text, and what its first rows show of them.
fn sample(
    path: &Path,
    (begin, whole): (&[u8], bool),
    tabs: Option<bool>,
    folders: &FolderColumns,
    choice: &ColumnChoice,
) -> Result<(Seen, Form), DatasetError> {
    if begin.starts_with(b"\xff\xfe") || begin.starts_with(b"\xfe\xff") {
        return Err(DatasetError::Table { path: path.into(), error: ColumnError::Utf16 });
    }
    let empty = || DatasetError::Empty { path: path.into() };
    // The first line, which shows what separates the fields.
    let first = Delimited::rows_of(Dialect::tsv(), begin, whole).into_iter().next().ok_or_else(empty)?;
    let mut form = Form::of(first, tabs);
    let mut rows = Delimited::rows_of(form.dialect, begin, whole).into_iter();
    let names = form.names(rows.as_slice().first().ok_or_else(empty)?);
    let names = if is_header(&names, choice) {
        rows.next();
        form.dialect = form.dialect.with_header();
        let spelt =
            |(at, name): (usize, String)| if name.is_empty() { format!("column {}", at + 1) } else { name };
        names.into_iter().enumerate().map(spelt).collect()
    } else {
        (1..=names.len()).map(|number| number.to_string()).collect::<Vec<_>>()
    };
    let mut tallies = vec![Tally::default(); names.len()];
    #[allow(clippy::cast_possible_truncation, reason = "a few thousand")]
    for row in rows.take(SAMPLE_ROWS as usize) {
        // A row of another width is refused with its line when all rows are checked.
        for (tally, field) in tallies.iter_mut().zip(fields(form.colons, form.dialect, row)) {
            tally.add(&RowField::of_text(field));
        }
    }
    if tallies.first().is_none_or(|tally| tally.rows == 0) {
        return Err(empty());
    }
    let meanings = vec![None; names.len()];
    let mut seen = Seen { names, tallies, meanings, folders: 0 };
    seen.add_folders(folders).map_err(|error| DatasetError::Table { path: path.into(), error })?;
    Ok((seen, form))
}
