//! What a data set is, found in its first rows: for `antdt data inspect`.

use std::fmt;
use std::path::Path;

use antdt_core::SampleRange;
use antdt_data::{Cache, Delimited, Parquet, Rows, Source, Splitter};

use super::pictures::PictureFolders;
use super::source::{self, Notify};
use super::stored::{Layout, SAMPLE_LEN_BYTES};
use super::table::{self, FolderColumns, SAMPLE_ROWS, Seen};
use super::{ColumnChoice, DatasetError, Format, LabelKind, MISSING, NO_CATEGORY, RowBatch};

/// A data set, as its first rows show it.
#[derive(Debug, Clone, PartialEq)]
pub struct Inspection {
    /// Format and container in words, such as `csv, gzip`.
    pub format: String,
    /// Number of files.
    pub files: usize,
    /// Number of rows.
    pub rows: u64,
    /// Whether `rows` was counted; otherwise it is estimated from the length of the files.
    pub exact: bool,
    /// Number of rows that were looked at, from the beginning of the first file.
    pub sampled: u64,
    /// The columns, in the order of the file.
    pub columns: Vec<InspectedColumn>,
    /// The classes of a folder of pictures, which has no columns.
    pub classes: Vec<InspectedClass>,
    /// Name of the label, and which of its values are 1; `None` if the label is not known.
    pub label: Option<(String, String)>,
    /// Share of the rows looked at whose label is 1; `None` if there is none, or the label is not one of two classes.
    pub positive: Option<f64>,
    /// Name of each class of a label with more than two, and its share of the rows looked at.
    pub shares: Vec<(String, f64)>,
    /// Why a job would refuse these data; `None` if it would not.
    pub problem: Option<String>,
    /// Flags of a job that does what a job does without them, but for `--data`.
    pub flags: Vec<String>,
}

/// A class of a folder of pictures of an [`Inspection`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectedClass {
    /// Name of the class, which is that of its folder.
    pub name: String,
    /// Number of pictures.
    pub pictures: u64,
    /// Width and height, in pixels, of the smallest picture looked at; `None` if none of these can be decoded.
    pub smallest: Option<(u32, u32)>,
    /// The same of the largest one.
    pub largest: Option<(u32, u32)>,
}

/// A column of an [`Inspection`].
#[derive(Debug, Clone, PartialEq)]
pub struct InspectedColumn {
    /// Name of the column, or its number, from 1.
    pub name: String,
    /// What a job takes it for: `label`, `numeric`, `categorical` or `ignored`.
    pub kind: &'static str,
    /// Why, in a few words; empty if it is the format that says so.
    pub why: String,
    /// Share of the rows looked at that have no value there.
    pub missing: f64,
}

/// Looks at the first rows of what `--data` would name.
///
/// # Errors
/// If the files cannot be read. What a job would refuse of readable ones is a [`problem`](Inspection::problem).
pub fn inspect(
    path: &Path,
    format: Option<Format>,
    columns: &ColumnChoice,
    cache: &Cache,
    announce: Notify<'_>,
) -> Result<Inspection, DatasetError> {
    if let Some(found) = PictureFolders::find(path)? {
        return Ok(of_pictures(&found));
    }
    let containers: Vec<String> = source::sources(path)?
        .iter()
        .map(|source| Ok(source.container()?.to_string()))
        .collect::<Result<_, DatasetError>>()?;
    let sources = source::seekable(path, cache, announce)?;
    let first = sources.first().ok_or_else(|| DatasetError::Empty { path: path.into() })?;
    let is_parquet = first.container()? == antdt_data::Container::Parquet;
    let folders = FolderColumns::of(path, sources.iter().map(Source::path))?;
    let look = if is_parquet {
        Look::of_parquet(&sources, &folders, format, columns)?
    } else {
        Look::of_text(&sources, &folders, format, columns)?
    };
    let mut found = look.inspection(columns)?;
    found.files = sources.len();
    found.format = match (look.name, &containers[0][..]) {
        (name, "plain") => name.to_owned(),
        (name, container) if container.eq_ignore_ascii_case(name) => name.to_owned(),
        (name, container) => format!("{name}, {container}"),
    };
    found.flags = flags(look.name, columns, &found);
    Ok(found)
}

/// The first rows of a data set.
struct Look {
    name: &'static str,
    layout: Result<Layout, DatasetError>,
    /// Of a table.
    seen: Option<Seen>,
    batch: RowBatch,
    sampled: u64,
    rows: u64,
    exact: bool,
    wrong: Option<String>,
}

impl fmt::Debug for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Look").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Look {
    fn of_text(
        sources: &[Source],
        folders: &FolderColumns,
        format: Option<Format>,
        columns: &ColumnChoice,
    ) -> Result<Self, DatasetError> {
        let first = &sources[0];
        let begin = first.first(SAMPLE_LEN_BYTES)?;
        let whole = begin.len() as u64 == first.len_bytes();
        let (layout, dialect, seen) = match Layout::of_text(first, folders, format, columns) {
            Ok((layout @ Layout::Fixed(_), dialect)) => (Ok(layout), dialect, None),
            layout => {
                let tabs = format.and_then(Format::tabs);
                let (seen, dialect) =
                    table::text_sample(first.path(), (&begin, whole), tabs, folders, columns)?;
                (layout.map(|(layout, _)| layout), dialect, Some(seen))
            }
        };
        let rows = Delimited::rows_of(dialect, &begin, whole);
        let rows = &rows[usize::from(dialect.has_header()).min(rows.len())..];
        let name = match &layout {
            Ok(Layout::Fixed(fixed)) => fixed.name(),
            _ if dialect.delimiter() == b'\t' => "tsv",
            _ => "csv",
        };
        let len_bytes: u64 = sources.iter().map(Source::len_bytes).sum();
        let exact = whole && sources.len() == 1;
        let count = rows.len() as u64;
        let mut look = Self {
            name,
            layout,
            seen,
            batch: RowBatch::default(),
            sampled: 0,
            rows: count,
            exact,
            wrong: None,
        };
        if !exact {
            look.rows = estimated(count, begin.len() as u64, len_bytes);
        }
        #[allow(clippy::cast_possible_truncation, reason = "a few thousand")]
        for row in rows.iter().take(SAMPLE_ROWS as usize) {
            look.add(|layout, batch| layout.parse_text(dialect, (row, 0), batch));
        }
        Ok(look)
    }

    fn of_parquet(
        sources: &[Source],
        folders: &FolderColumns,
        format: Option<Format>,
        columns: &ColumnChoice,
    ) -> Result<Self, DatasetError> {
        let first = &sources[0];
        let layout = Layout::of_parquet(first, folders, format, columns);
        let fields = Parquet::fields(first)?;
        let all: Vec<&str> =
            fields.iter().filter(|field| field.is_readable()).map(|field| field.name.as_str()).collect();
        let (seen, wanted) = match &layout {
            Ok(Layout::Fixed(_)) => (None, all),
            Ok(Layout::Table(table)) => (Some(table::parquet_sample(first, folders)?), table.wanted()),
            Err(_) => (Some(table::parquet_sample(first, folders)?), all),
        };
        let data = Parquet::of_columns(sources.iter().cloned(), &wanted)?;
        let (rows, end) = (data.num_samples(), data.num_samples().min(SAMPLE_ROWS));
        let sample = data.read(SampleRange { start: 0, end }).map_err(DatasetError::sample)?;
        let name = match &layout {
            Ok(Layout::Fixed(fixed)) => fixed.name(),
            _ => "parquet",
        };
        let batch = RowBatch::default();
        drop(wanted);
        let mut look = Self { name, layout, seen, batch, sampled: 0, rows, exact: true, wrong: None };
        for row in 0..end {
            if let Some(row) = sample.row(row) {
                look.add(|layout, batch| layout.parse_values((&row, 0), batch));
            }
        }
        Ok(look)
    }

    /// Reads one more row.
    fn add(&mut self, parse: impl FnOnce(&Layout, &mut RowBatch) -> Result<(), String>) {
        self.sampled += 1;
        let Ok(layout) = &self.layout else { return };
        let mut one = RowBatch::default();
        match parse(layout, &mut one) {
            Ok(()) => {
                self.batch.labels.append(&mut one.labels);
                self.batch.numeric.append(&mut one.numeric);
                self.batch.categories.append(&mut one.categories);
            }
            Err(why) => {
                let row = self.sampled;
                self.wrong.get_or_insert_with(|| format!("row {row}: {why}"));
            }
        }
    }

    #[allow(clippy::cast_precision_loss, reason = "shares to read")]
    fn inspection(&self, choice: &ColumnChoice) -> Result<Inspection, DatasetError> {
        let read = self.batch.labels.len();
        let (columns, label) = match (&self.layout, &self.seen) {
            (Ok(Layout::Table(table)), Some(seen)) => (seen.report(table.columns()), Some(table.label())),
            (Err(_), Some(seen)) => (seen.report(&seen.columns(choice, None).unwrap_or_default()), None),
            (Ok(Layout::Fixed(fixed)), _) => {
                let label = (fixed.label() + 1).to_string();
                (self.fixed_columns(fixed.label()), Some((label, "by the format".to_owned())))
            }
            (_, None) => (Vec::new(), None),
        };
        let share = |is: &dyn Fn(f32) -> bool| {
            self.batch.labels.iter().filter(|label| is(**label)).count() as f64 / read.max(1) as f64
        };
        let is_binary = self.layout.as_ref().is_ok_and(|layout| layout.label_kind() == LabelKind::Binary);
        let classes = match &self.layout {
            Ok(Layout::Table(table)) => table.class_names(),
            _ => Vec::new(),
        };
        let of_class = |(class, name): (usize, &str)| {
            (name.to_owned(), share(&|label| (label - class as f32).abs() < 0.5))
        };
        let shares = classes.into_iter().enumerate().map(of_class).collect();
        Ok(Inspection {
            format: String::new(),
            files: 0,
            rows: self.rows,
            exact: self.exact,
            sampled: self.sampled,
            columns,
            classes: Vec::new(),
            label,
            positive: (read > 0 && is_binary).then(|| share(&|label| label > 0.5)),
            shares,
            problem: self.layout.as_ref().err().map(ToString::to_string).or_else(|| self.wrong.clone()),
            flags: Vec::new(),
        })
    }

    /// The columns of a format that says what they are.
    #[allow(clippy::cast_precision_loss, reason = "shares to read")]
    fn fixed_columns(&self, label: usize) -> Vec<InspectedColumn> {
        let Ok(layout) = &self.layout else { return Vec::new() };
        let schema = layout.schema();
        let rows = self.batch.labels.len().max(1);
        let share = |count: usize| count as f64 / rows as f64;
        let numeric = (0..schema.numeric.len()).map(|at| {
            let values = self.batch.numeric.iter().skip(at).step_by(schema.numeric.len());
            ("numeric", share(values.filter(|value| **value == MISSING).count()))
        });
        let categories = (0..schema.categorical).map(|at| {
            let codes = self.batch.categories.iter().skip(at).step_by(schema.categorical);
            ("categorical", share(codes.filter(|code| **code == NO_CATEGORY).count()))
        });
        // By kind: which of the columns is of which is known to the format only.
        let mut columns: Vec<(&'static str, f64)> = numeric.chain(categories).collect();
        columns.insert(label.min(columns.len()), ("label", 0.0));
        let named = |(at, (kind, missing)): (usize, (&'static str, f64))| InspectedColumn {
            name: (at + 1).to_string(),
            kind,
            why: String::new(),
            missing,
        };
        columns.into_iter().enumerate().map(named).collect()
    }
}

/// A folder of pictures by class, of each of which the sizes of a share of [`SAMPLE_ROWS`] are looked at.
fn of_pictures(found: &PictureFolders) -> Inspection {
    #[allow(clippy::cast_possible_truncation, reason = "a few thousand")]
    let most = (SAMPLE_ROWS as usize).div_ceil(found.classes.len());
    let looks: Vec<_> = (0..found.classes.len()).map(|class| found.look(class, most)).collect();
    let sampled = looks.iter().map(|(class, _)| class.pictures.min(most as u64)).sum();
    Inspection {
        format: "pictures".to_owned(),
        files: found.pictures.len(),
        rows: found.pictures.len() as u64,
        exact: true,
        sampled,
        columns: Vec::new(),
        label: None,
        positive: None,
        shares: Vec::new(),
        problem: looks.iter().find_map(|(_, wrong)| wrong.clone()),
        flags: ["--workload", "resnet20"].map(str::to_owned).to_vec(),
        classes: looks.into_iter().map(|(class, _)| class).collect(),
    }
}

/// Rows of a text of `len_bytes` whose first `read` bytes have `count`.
fn estimated(count: u64, read: u64, len_bytes: u64) -> u64 {
    let rows = u128::from(count) * u128::from(len_bytes) / u128::from(read.max(1));
    u64::try_from(rows).unwrap_or(u64::MAX)
}

/// The flags of a job that does what a job does without them.
fn flags(format: &str, choice: &ColumnChoice, found: &Inspection) -> Vec<String> {
    let mut flags = vec!["--format".to_owned(), format.to_owned()];
    // Columns of a fixed format have no reason.
    if found.columns.iter().all(|column| column.why.is_empty()) {
        return flags;
    }
    for (flag, kind) in [
        ("--label", "label"),
        ("--numeric", "numeric"),
        ("--categorical", "categorical"),
        ("--ignore", "ignored"),
    ] {
        let of_kind = found.columns.iter().filter(|column| column.kind == kind);
        let names: Vec<&str> = of_kind.map(|column| column.name.as_str()).collect();
        // A condition on the label is more than its name.
        let asked = choice.label.clone().filter(|_| kind == "label");
        if !names.is_empty() {
            flags.extend([flag.to_owned(), asked.unwrap_or_else(|| names.join(","))]);
        }
    }
    if let Some(task) = choice.task {
        flags.extend(["--task".to_owned(), task.name().to_owned()]);
    }
    flags
}
