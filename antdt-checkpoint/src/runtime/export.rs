//! [`export`]: writes the model of a checkpoint to one safetensors file.
//!
//! Each group is one tensor, each table one of `[rows, dim]` in which rows that no gradient has touched have
//! the values that the seed gives them. The optimizer's state is left out. Rows are computed and written a
//! few at a time; the touched rows of all parts are in memory, without their optimizer state.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use antdt_core::{ParamLayout, Seed};
use antdt_model::{Portion, TablePortion, initial_rows};

use super::disk::Disk;
use super::read::CheckpointReadError;
use super::storage::{CheckpointWriteError, Sink, Storage};
use super::stored::Checkpoint;
use crate::header::{Dtype, Header};
use crate::manifest::Manifest;
use crate::part::check_cover;

/// Reason why a model could not be exported. No file was written or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The checkpoint cannot be read.
    #[error(transparent)]
    Read(#[from] CheckpointReadError),
    /// The file cannot be written.
    #[error(transparent)]
    Write(#[from] CheckpointWriteError),
    /// The output file exists already: the caller must allow that it is overwritten, or choose another name.
    #[error("--out = {}: it exists; name another file, or replace it with --force", .0.display())]
    Exists(PathBuf),
    /// The output path exists and is not a regular file.
    #[error("--out = {}: it is no plain file; name another one", .0.display())]
    NotAFile(PathBuf),
    /// The model cannot be written as one safetensors file.
    #[error("--out = {}: {why}", path.display())]
    Unfit {
        /// Path of the output file.
        path: PathBuf,
        /// Reason why the model cannot be written, in words.
        why: String,
    },
}

/// Size of an exported model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// Number of tensors in the file.
    pub tensors: usize,
    /// Number of values in all tensors.
    pub values: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// Writes the parameters of a checkpoint to the safetensors file `out`. An existing file is replaced only if
/// `overwrite` is true. The file takes the name `out` only when it is complete.
///
/// # Errors
/// See [`ExportError`].
pub fn export(checkpoint: &Checkpoint, out: &Path, overwrite: bool) -> Result<Exported, ExportError> {
    export_on(&Disk::default(), checkpoint, out, overwrite)
}

pub(super) fn export_on(
    disk: &Disk,
    checkpoint: &Checkpoint,
    out: &Path,
    overwrite: bool,
) -> Result<Exported, ExportError> {
    match out.metadata() {
        Ok(found) if !found.is_file() => return Err(ExportError::NotAFile(out.to_owned())),
        Ok(_) if !overwrite => return Err(ExportError::Exists(out.to_owned())),
        _ => {}
    }
    let manifest = checkpoint.manifest();
    let layout = &manifest.job.layout;
    let unfit = |why| ExportError::Unfit { path: out.to_owned(), why };
    if manifest.file(Manifest::STATE).is_some() {
        let file = checkpoint.path().join(Manifest::STATE);
        let why = format!(
            "the model is a program's own, with the names of its tensors: read {} as it is",
            file.display()
        );
        return Err(unfit(why));
    }
    let header = header(manifest).map_err(unfit)?;
    let first = header.encode().map_err(unfit)?;
    let portions = portions(checkpoint)?;
    let written = disk.write_whole(out, &mut |sink| {
        sink.put(&first)?;
        for portion in &portions {
            sink.put(bytemuck::cast_slice(&portion.dense))?;
        }
        for table in 0..layout.tables().len() {
            let parts: Vec<&TablePortion> = portions.iter().map(|portion| &portion.tables[table]).collect();
            put_table(sink, layout, Seed(manifest.job.rows_seed), table, &parts)?;
        }
        Ok(())
    })?;
    Ok(Exported { tensors: header.tensors.len(), values: header.data_bytes() / 4, bytes: written.bytes })
}

/// The parts without what the optimizer keeps, in the order of the flat vector.
fn portions(checkpoint: &Checkpoint) -> Result<Vec<Portion>, CheckpointReadError> {
    let mut portions = Vec::new();
    for portion in checkpoint.portions() {
        let mut portion = portion?;
        portion.dense_state.clear();
        portion.tables.iter_mut().for_each(|table| table.state.clear());
        portions.push(portion);
    }
    portions.sort_by_key(|portion| (portion.dense_from, portion.dense.len()));
    let place =
        |portion: &Portion| ("the next part", portion.dense_from..portion.dense_from + portion.dense.len());
    check_cover(
        checkpoint.manifest().job.layout.dense_len(),
        &portions.iter().map(place).collect::<Vec<_>>(),
    )
    .map_err(|error| CheckpointReadError::Part { path: checkpoint.path().to_owned(), error })?;
    Ok(portions)
}

fn header(manifest: &Manifest) -> Result<Header, String> {
    let Manifest { antdt, checkpoint, created_unix_s, job, trained, optimizer, mode, extra, .. } = manifest;
    let mut header = Header::new([
        ("version", antdt.clone()),
        ("checkpoint", checkpoint.to_string()),
        ("created_unix_s", created_unix_s.to_string()),
        ("workload", job.workload.clone()),
        ("seed", job.seed.to_string()),
        ("data", job.data.name.clone()),
        ("data_rows", job.data.rows.to_string()),
        ("steps", trained.steps.to_string()),
        ("samples", trained.samples.to_string()),
        ("optimizer", optimizer.clone()),
        ("mode", mode.clone()),
    ]);
    header.metadata.extend(extra.iter().map(|(key, value)| (format!("antdt.job.{key}"), value.clone())));
    let mut end = 0;
    for group in job.layout.groups() {
        let shape = group.shape.iter().map(|dim| *dim as u64).collect();
        end = header.push(group.name.clone(), Dtype::F32, shape, end)?;
    }
    for table in job.layout.tables() {
        end = header.push(table.name.clone(), Dtype::F32, vec![table.rows, table.dim as u64], end)?;
    }
    Ok(header)
}

/// Writes all rows of a table. A row that two parts have, which no job writes, has the values of the later one.
fn put_table(
    sink: &mut Sink<'_>,
    layout: &ParamLayout,
    seed: Seed,
    table: usize,
    parts: &[&TablePortion],
) -> io::Result<()> {
    /// Values that are computed and written at a time.
    const CHUNK: u64 = 1 << 18;
    let spec = &layout.tables()[table];
    let step = (CHUNK / spec.dim as u64).max(1);
    let (mut values, mut start) = (Vec::new(), 0);
    while start < spec.rows {
        let rows = start..spec.rows.min(start + step);
        values.clear();
        initial_rows(layout, seed, table, rows.clone(), &mut values);
        for part in parts {
            overlay(part, &rows, spec.dim, &mut values);
        }
        sink.put(bytemuck::cast_slice(&values))?;
        start = rows.end;
    }
    Ok(())
}

/// Puts those of a part's rows that are in `rows` in place of their first values.
fn overlay(part: &TablePortion, rows: &Range<u64>, dim: usize, values: &mut [f32]) {
    let from = part.rows.partition_point(|row| *row < rows.start);
    for (index, row) in part.rows.iter().enumerate().skip(from).take_while(|(_, row)| **row < rows.end) {
        let into = usize::try_from(row - rows.start).expect("below the rows of a chunk") * dim;
        values[into..into + dim].copy_from_slice(&part.values[index * dim..][..dim]);
    }
}

/// Returns the path of the temporary file that an interrupted export to `out` leaves; the user can remove it.
pub fn unfinished_export(out: &Path) -> PathBuf {
    super::disk::unfinished(out)
}
