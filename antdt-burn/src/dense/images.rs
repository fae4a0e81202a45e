//! Pictures for a model of them: generated ones, or records of files.

use antdt_core::InvalidValue;
use antdt_core::registry::{Setting, Settings};

use super::OpenExamples;
use crate::data::DataSource;
use crate::data::example::Examples;
use crate::data::gratings::Gratings;
use crate::data::images::ImageRecords;

/// Pixels of a side of CIFAR-10's pictures.
pub(crate) const SIDE: usize = 32;

/// The setting of the size of a picture.
pub(crate) fn setting() -> Setting {
    Setting::new("side", SIDE, "pixels of a side of a picture, generated or of a file")
}

/// Reads the size of a picture.
pub(crate) fn side(settings: &Settings<'_>) -> Result<usize, InvalidValue> {
    // A picture is halved twice, and a record has 3 side² bytes.
    const EXPECTED: &str = "a whole number between 4 and 1024";
    let side = settings.value("side", SIDE, EXPECTED)?;
    if (4..=1024).contains(&side) { Ok(side) } else { Err(settings.refuse("side", side, EXPECTED)) }
}

/// Opens pictures of so many pixels a side.
pub(crate) fn data(side: usize) -> OpenExamples {
    Box::new(move |spec, seed, announce| match &spec.data {
        DataSource::Synthetic { rows } => {
            let (total, split) = spec.split_generated(*rows)?;
            Ok((Box::new(Gratings::new(seed, total, side)), split))
        }
        DataSource::Path(path) => {
            if let Some(format) = spec.format {
                let expected = "left out: this model takes pictures in the binary form of CIFAR-10";
                return Err(InvalidValue::new("format", format, expected).into());
            }
            let data = spec.open_files(|opening| ImageRecords::open(path, side, opening, announce))?;
            let split = spec.split_stored(data.rows(), seed);
            Ok((Box::new(data), split))
        }
    })
}
