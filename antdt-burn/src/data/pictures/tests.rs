use antdt_data::Cache;
use image::{ImageFormat, Rgb, RgbImage};

use super::*;

/// A picture whose left and right sixth are black, and whose middle is of one colour.
fn wide(colour: [u8; 3]) -> RgbImage {
    RgbImage::from_fn(24, 16, |x, _| Rgb(if (4..20).contains(&x) { colour } else { [0; 3] }))
}

fn write(root: &Path, name: &str, colour: [u8; 3], format: ImageFormat) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    wide(colour).save_with_format(path, format).unwrap();
}

fn open(root: &Path) -> Result<Option<Pictures>, DatasetError> {
    let cache = Cache::at(root.join(".cache"));
    Pictures::open(root, 4, &Opening { cache: &cache, budget_bytes: 1 << 20 }, &mut |_| {})
}

/// Of all pictures, the class and the first value of each colour.
fn read(data: &mut Pictures) -> Vec<(i32, [f32; 3])> {
    let rows: Vec<u64> = (0..data.rows()).collect();
    let mut batch = ExampleBatch::default();
    data.read(&rows, &mut batch).unwrap();
    assert_eq!(batch.inputs.len(), rows.len() * data.shape().inputs);
    let picture = |values: &[f32]| [values[0], values[16], values[32]];
    let mut all: Vec<_> = batch.classes.into_iter().zip(batch.inputs.chunks(48).map(picture)).collect();
    all.sort_by_key(|(class, _)| *class);
    all
}

#[test]
fn folders_are_classes_and_the_square_in_the_middle_is_the_sample() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "dog/b.PNG", [120, 184, 56], ImageFormat::Png);
    write(root.path(), "cat/a.Jpeg", [56, 56, 56], ImageFormat::Jpeg);
    fs::write(root.path().join("cat/notes.txt"), "not a picture").unwrap();
    let mut data = open(root.path()).unwrap().unwrap();
    assert_eq!(data.shape(), ExampleShape { inputs: 48, positions: 1, classes: 2 });
    let all = read(&mut data);
    assert_eq!(all[1], (1, [0.0, 1.0, -1.0]), "no black of the sides, and planes of colours");
    assert_eq!(all[0].0, 0, "classes are sorted by name");
    assert!(all[0].1.iter().all(|value| (value + 1.0).abs() < 0.1), "{all:?}");
}

#[test]
fn a_shard_has_pictures_of_all_classes() {
    let root = tempfile::tempdir().unwrap();
    for at in 0..20 {
        for class in ["a", "b"] {
            write(root.path(), &format!("{class}/{at}.png"), [0; 3], ImageFormat::Png);
        }
    }
    let data = open(root.path()).unwrap().unwrap();
    for shard in data.classes.chunks(20) {
        assert!((4..=16).contains(&shard.iter().sum()), "{shard:?}");
    }
}

#[test]
fn a_picture_that_cannot_be_decoded_is_a_fault_of_its_row_that_names_the_file() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "cat/a.png", [0; 3], ImageFormat::Png);
    write(root.path(), "dog/b.png", [0; 3], ImageFormat::Png);
    let path = root.path().join("dog/b.png");
    let whole = fs::read(&path).unwrap();
    for bytes in [&whole[..whole.len() / 2], &whole[..9], b"GIF89a, which is another format", &[0; 40]] {
        fs::write(&path, bytes).unwrap();
        let mut data = open(root.path()).unwrap().unwrap();
        let error = data.read(&[0, 1], &mut ExampleBatch::default()).unwrap_err();
        let bad = data.classes.iter().position(|class| *class == 1).unwrap() as u64;
        assert_eq!(error.row, bad);
        assert!(
            error.why.contains("dog/b.png: cannot be decoded")
                && error.why.ends_with("replace or remove the picture"),
            "{error}"
        );
        data.read(&[1 - bad], &mut ExampleBatch::default()).unwrap();
    }
}

#[test]
fn a_folder_that_is_no_folder_of_classes_is_refused_with_the_remedy() {
    for (names, words) in [
        (&["train/cat/a.png", "train/dog/b.png"][..], "train/cat: a folder within"),
        (&["cat/a.png", "dog/old/b.png"], "dog/old: a folder within"),
        (&["cat/a.png", "dog/b.png", "c.png"], "c.png: a picture outside the folder of a class"),
        (&["train/a.png", "val/b.png"], "train, val: parts of a data set, not its classes"),
        (&["cat/a.png"], "one class only, cat"),
        (&["cat/a.png", "dog/b.txt"], "dog: the folder of a class without a picture"),
    ] {
        let root = tempfile::tempdir().unwrap();
        for name in names {
            write(root.path(), name, [0; 3], ImageFormat::Png);
        }
        let error = open(root.path()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("data_batch_1.bin"), [0; 49]).unwrap();
    assert!(open(root.path()).unwrap().is_none());
}
