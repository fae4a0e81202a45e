//! Samples of text for a model of bytes: generated ones, or windows of files.

use super::OpenExamples;
use crate::data::DataSource;
use crate::data::example::Examples;
use crate::data::prose::Prose;
use crate::data::text::TextWindows;

/// Opens samples of `context` bytes.
pub(crate) fn data(context: usize) -> OpenExamples {
    Box::new(move |spec, seed, announce| match &spec.data {
        DataSource::Synthetic { rows } => {
            let (total, split) = spec.split_generated(*rows)?;
            Ok((Box::new(Prose::new(seed, total, context)), split))
        }
        DataSource::Path(path) => {
            spec.refuse_columns("a text as it is")?;
            let data = spec.open_files(|opening| TextWindows::open(path, context, opening, announce))?;
            let split = spec.split_stored(data.rows(), seed);
            Ok((Box::new(data), split))
        }
    })
}
