//! Pictures for a model of them: generated ones, JPEG and PNG by class, or records of files.

use super::OpenExamples;
use crate::data::example::Examples;
use crate::data::gratings::Gratings;
use crate::data::images::ImageRecords;
use crate::data::pictures::Pictures;
use crate::data::{DataSource, DatasetError};

/// Pixels of a side of CIFAR-10's pictures.
pub(crate) const SIDE: usize = 32;

/// What the setting `side` of a model of pictures is.
pub(crate) const ABOUT: &str = "pixels of a side of a picture, generated or of a file";

/// What the setting `side` must be.
pub(crate) const EXPECTED: &str = "a whole number between 4 and 1024";

/// Returns whether a picture can have this side: it is halved twice, and a record has 3 side² bytes.
pub(crate) fn fits(side: usize) -> bool {
    (4..=1024).contains(&side)
}

/// Opens pictures of so many pixels a side.
pub(crate) fn data(side: usize) -> OpenExamples {
    Box::new(move |spec, seed, announce| match &spec.data {
        DataSource::Synthetic { rows } => {
            let (total, split) = spec.split_generated(*rows)?;
            Ok((Box::new(Gratings::new(seed, total, side)), split))
        }
        DataSource::Path(path) => {
            spec.refuse_columns("pictures: JPEG and PNG by class, or the binary form of CIFAR-10")?;
            let data = spec.open_files(|opening| -> Result<Box<dyn Examples>, DatasetError> {
                Ok(match Pictures::open(path, side, opening, announce)? {
                    Some(pictures) => Box::new(pictures),
                    None => Box::new(ImageRecords::open(path, side, opening, announce)?),
                })
            })?;
            let split = spec.split_stored(data.rows(), seed);
            Ok((data, split))
        }
    })
}
