//! Pictures in files of their own, JPEG or PNG, in one folder for each class.

use std::fs;
use std::io::Cursor;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use antdt_core::{Permutation, Seed};
use antdt_data::{Files, Reader, Splitter};
use image::imageops::FilterType;
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader};

use super::example::{ExampleBatch, ExampleShape, Examples};
use super::images::{COLOURS, scaled, values};
use super::inspect::InspectedClass;
use super::source::{Notify, failed};
use super::stored::Opening;
use super::{DatasetError, RowError};

/// Endings of the names of pictures, in lower case.
const ENDINGS: [&str; 3] = ["jpg", "jpeg", "png"];

/// Folder names that stand for parts of a data set; a folder with no other names has no classes.
const PARTS: [&str; 5] = ["train", "val", "valid", "validation", "test"];

/// Orders the pictures, so that a shard has pictures of all classes. The same on every machine, and in every job.
const ORDER: Seed = Seed(1);

/// The files of a folder with one folder of pictures for each class. Reads no picture.
#[derive(Debug, Default)]
pub(super) struct PictureFolders {
    /// Names of the classes, which are those of their folders, sorted.
    pub(super) classes: Vec<String>,
    /// The class and the file of each picture, in the order of the samples.
    pub(super) pictures: Vec<(usize, PathBuf)>,
    /// Files beside the pictures that are none by their name.
    others: Vec<PathBuf>,
}

/// The entries of a folder, sorted, without hidden ones.
#[derive(Debug, Default)]
struct Listing {
    folders: Vec<PathBuf>,
    pictures: Vec<PathBuf>,
    others: Vec<PathBuf>,
}

impl Listing {
    fn of(folder: &Path) -> Result<Self, DatasetError> {
        let mut found = Self::default();
        for entry in fs::read_dir(folder).map_err(failed(folder))? {
            let path = entry.map_err(failed(folder))?.path();
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                continue;
            }
            let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
            let list = match fs::metadata(&path).map_err(failed(&path))?.is_dir() {
                true => &mut found.folders,
                false if ENDINGS.contains(&&*ending) => &mut found.pictures,
                false => &mut found.others,
            };
            list.push(path);
        }
        for list in [&mut found.folders, &mut found.pictures, &mut found.others] {
            list.sort_unstable();
        }
        Ok(found)
    }
}

impl PictureFolders {
    /// Lists the pictures of a folder; `None` if it holds none, in its folders or in theirs.
    ///
    /// # Errors
    /// If a folder cannot be listed, or the pictures do not lie in folders of at least two classes.
    pub(super) fn find(root: &Path) -> Result<Option<Self>, DatasetError> {
        if !root.is_dir() {
            return Ok(None);
        }
        let top = Listing::of(root)?;
        let mut classes = Vec::new();
        for folder in top.folders {
            classes.push((Listing::of(&folder)?, folder));
        }
        let mut nested = classes.iter().flat_map(|(listing, _)| &listing.folders);
        if classes.iter().all(|(listing, _)| listing.pictures.is_empty()) && top.pictures.is_empty() {
            let holds = |folder: &PathBuf| Listing::of(folder).is_ok_and(|found| !found.pictures.is_empty());
            return match nested.find(|folder| holds(folder)) {
                Some(folder) => Err(too_deep(root, folder)),
                None => Ok(None),
            };
        }
        if let Some(folder) = nested.next() {
            return Err(too_deep(root, folder));
        }
        if let Some(path) = top.pictures.into_iter().next() {
            let why = "a picture outside the folder of a class; move it there, or out of the data".to_owned();
            return Err(DatasetError::Pictures { path, why });
        }
        Self::of(root, classes).map(Some)
    }

    fn of(root: &Path, listings: Vec<(Listing, PathBuf)>) -> Result<Self, DatasetError> {
        let mut found = Self::default();
        for (listing, folder) in listings {
            if listing.pictures.is_empty() {
                let why = "the folder of a class without a picture whose name ends in .jpg, .jpeg or .png; add pictures, or remove it";
                return Err(DatasetError::Pictures { path: folder, why: why.to_owned() });
            }
            let class = found.classes.len();
            found.classes.push(folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
            found.pictures.extend(listing.pictures.into_iter().map(|path| (class, path)));
            found.others.extend(listing.others);
        }
        let refused = |why: String| Err(DatasetError::Pictures { path: root.into(), why });
        if found.classes.iter().all(|name| PARTS.contains(&&*name.to_lowercase())) {
            let names = found.classes.join(", ");
            return refused(format!(
                "{names}: parts of a data set, not its classes; put the pictures of each class into a folder called as the class"
            ));
        }
        if found.classes.len() < 2 {
            return refused(format!(
                "one class only, {}; a model tells at least two apart: add a folder for each other class",
                found.classes[0]
            ));
        }
        let order = Permutation::new(ORDER, found.pictures.len() as u64);
        #[allow(clippy::cast_possible_truncation, reason = "places in a list")]
        let ordered =
            (0..found.pictures.len()).map(|at| found.pictures[order.at(at as u64) as usize].clone());
        found.pictures = ordered.collect();
        Ok(found)
    }

    /// A digest of the pictures and their classes.
    pub(super) fn fingerprint(&self, root: &Path) -> Result<String, DatasetError> {
        let paths = self.pictures.iter().map(|(_, path)| path.clone()).collect();
        Ok(Files::new(paths)?.fingerprint(root)?)
    }

    /// How many pictures a class has, and how large the ones looked at are; the first that cannot be decoded.
    pub(super) fn look(&self, class: usize, most: usize) -> (InspectedClass, Option<String>) {
        let of_class = || self.pictures.iter().filter(|(of, _)| *of == class).map(|(_, path)| path);
        let (mut least, mut largest, mut wrong) = (None, None, None);
        for path in of_class().take(most) {
            match size(path) {
                Ok((width, height)) => {
                    let size = (u64::from(width) * u64::from(height), width, height);
                    least = Some(least.map_or(size, |least| size.min(least)));
                    largest = largest.max(Some(size));
                }
                Err(why) => {
                    wrong.get_or_insert_with(|| {
                        format!("{}: {why}; replace or remove the picture", path.display())
                    });
                }
            }
        }
        let plain = |(_, width, height)| (width, height);
        let name = self.classes[class].clone();
        let pictures = of_class().count() as u64;
        (InspectedClass { name, pictures, smallest: least.map(plain), largest: largest.map(plain) }, wrong)
    }

    /// Says which files are not read; `None` if there are none.
    fn left_out(&self, root: &Path) -> Option<String> {
        let first = self.others.first()?;
        let (root, count, first) = (root.display(), self.others.len(), first.display());
        Some(format!("{root}: {count} files that do not end in .jpg, .jpeg or .png are not read ({first})"))
    }
}

/// The error of a folder within the folder of a class.
fn too_deep(root: &Path, folder: &Path) -> DatasetError {
    let parent = folder.parent().unwrap_or(root).display();
    let why = format!(
        "a folder within {parent}, which would be a class; --data takes the folder that holds the folders of the classes, \
         such as {parent}, and --eval-fraction holds out a part of it"
    );
    DatasetError::Pictures { path: folder.into(), why }
}

/// Pictures of classes, decoded when they are read.
///
/// The largest square in the middle of a picture is scaled to `side` by `side` pixels of red, green and blue. A picture is
/// first turned as its EXIF data say; transparency is left out.
#[derive(Debug)]
pub(crate) struct Pictures {
    files: Reader<Files>,
    /// The class of each picture.
    classes: Vec<i32>,
    /// Number of classes.
    count: usize,
    side: usize,
}

impl Pictures {
    /// Lists the pictures of a folder; `None` if it holds none. `announce` is told of the classes, and of files that are not read.
    ///
    /// # Errors
    /// If they do not lie in folders of at least two classes.
    pub(crate) fn open(
        root: &Path,
        side: usize,
        opening: &Opening<'_>,
        announce: Notify<'_>,
    ) -> Result<Option<Self>, DatasetError> {
        let Some(found) = PictureFolders::find(root)? else { return Ok(None) };
        let names = super::table::listed(found.classes.iter().map(String::as_str), super::table::SHOWN);
        let (count, pictures) = (found.classes.len(), found.pictures.len());
        announce(&format_args!("{}: {pictures} pictures of {count} classes: {names}", root.display()));
        if let Some(line) = found.left_out(root) {
            announce(&line);
        }
        let (classes, paths): (Vec<usize>, Vec<PathBuf>) = found.pictures.into_iter().unzip();
        let class = |class: usize| i32::try_from(class).expect("a folder has fewer entries");
        let files = Reader::new(Files::new(paths)?, NonZeroU64::MIN, opening.budget_bytes);
        Ok(Some(Self { files, classes: classes.into_iter().map(class).collect(), count, side }))
    }
}

impl Examples for Pictures {
    fn rows(&self) -> u64 {
        self.files.data().num_samples()
    }

    fn shape(&self) -> ExampleShape {
        ExampleShape { inputs: values(self.side), positions: 1, classes: self.count }
    }

    fn read(&mut self, rows: &[u64], batch: &mut ExampleBatch) -> Result<(), RowError> {
        let (mut wrong, classes, side) = (None, &self.classes, self.side);
        let done = self.files.read(rows, |row, bytes| match decoded(bytes, side) {
            Ok(planes) => {
                let class = usize::try_from(row).ok().and_then(|row| classes.get(row));
                batch.classes.extend(class);
                batch.inputs.extend(planes);
            }
            Err(why) => {
                wrong.get_or_insert((row, why));
            }
        });
        done.map_err(|error| RowError { row: error.sample(), why: error.to_string() })?;
        let Some((row, why)) = wrong else { return Ok(()) };
        let path = self.files.data().path(row).unwrap_or(Path::new("")).display();
        Err(RowError { row, why: format!("{path}: {why}; replace or remove the picture") })
    }
}

/// Red, green and blue values of the square in the middle of a picture, each `side` rows of `side` values.
fn decoded(bytes: &[u8], side: usize) -> Result<impl Iterator<Item = f32>, String> {
    let picture = upright(bytes).map_err(|error| format!("cannot be decoded: {error}"))?;
    let (width, height) = (picture.width(), picture.height());
    let square = width.min(height);
    let middle = picture.crop_imm((width - square) / 2, (height - square) / 2, square, square);
    let pixels = u32::try_from(side).expect("1024 at most");
    let scaled_down = middle.resize_exact(pixels, pixels, FilterType::Triangle).into_rgb8().into_raw();
    Ok((0..COLOURS).flat_map(move |colour| {
        let plane: Vec<f32> =
            scaled_down.iter().skip(colour).step_by(COLOURS).map(|value| scaled(*value)).collect();
        plane
    }))
}

/// Decodes a picture, and turns it as its camera says. Takes 512 MB at most: the limit of [`image::Limits`].
fn upright(bytes: &[u8]) -> Result<DynamicImage, ImageError> {
    let mut decoder = ImageReader::new(Cursor::new(bytes)).with_guessed_format()?.into_decoder()?;
    let orientation = decoder.orientation()?;
    let mut picture = DynamicImage::from_decoder(decoder)?;
    picture.apply_orientation(orientation);
    Ok(picture)
}

/// Width and height of a picture in pixels, from the beginning of its file.
fn size(path: &Path) -> Result<(u32, u32), String> {
    let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
    let reader = reader.map_err(|error| format!("cannot be read: {error}"))?;
    reader.into_dimensions().map_err(|error| format!("cannot be decoded: {error}"))
}

#[cfg(test)]
mod tests;
