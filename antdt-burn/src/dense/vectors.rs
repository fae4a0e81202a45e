//! Samples of numbers for a model: generated ones, or rows of columns that are hashed.

use antdt_core::InvalidValue;

use super::OpenExamples;
use crate::data::DataSource;
use crate::data::Dataset;
use crate::data::hashed::HashedRows;
use crate::data::teacher::Teacher;

/// Default number of inputs: the values of a census row share few of them.
pub(crate) const FEATURES: usize = 256;

/// What the setting `features` of a model of numbers is.
pub(crate) const ABOUT: &str = "numbers of a sample; the columns of a file's rows are hashed into so many";

/// Opens samples of so many numbers.
pub(crate) fn data(features: usize) -> OpenExamples {
    Box::new(move |spec, seed, announce| match &spec.data {
        DataSource::Synthetic { rows } => {
            let (total, split) = spec.split_generated(*rows)?;
            Ok((Box::new(Teacher::new(seed, total, features)), split))
        }
        DataSource::Path(path) => {
            let rows = spec.open_stored_rows(path, announce)?;
            let split = spec.split_stored(rows.rows(), seed);
            let rows = HashedRows::new(Box::new(rows), features).ok_or_else(|| {
                let expected =
                    "deepfm or xdeepfm for a label that is a number to estimate: this model predicts classes";
                InvalidValue::new("workload", spec.model.name, expected)
            })?;
            Ok((Box::new(rows), split))
        }
    })
}
