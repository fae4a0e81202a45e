use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;

const ADULT_ROW: &str = "39 State-gov 77516 Bachelors 13 Never-married Adm-clerical Not-in-family White Male 2174 0 40 \
                         United-States <=50K\n";

fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

fn criteo_row(label: &str) -> String {
    let mut columns = vec![label.to_owned()];
    columns.extend((0..13).map(|i| if i == 3 { String::new() } else { (i - 1).to_string() }));
    columns.extend((0..26).map(|i| if i == 5 { String::new() } else { format!("{:08x}", i + 1) }));
    columns.join("\t") + "\n"
}

fn read_all(data: &dyn Dataset) -> RowBatch {
    let mut batch = RowBatch::default();
    data.read(&(0..data.rows()).collect::<Vec<_>>(), &mut batch).unwrap();
    batch
}

fn open_file(path: &Path) -> Result<MemoryDataset, OpenError> {
    MemoryDataset::open(path, None)
}

#[test]
fn a_criteo_row_is_read_with_its_missing_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.tsv", &(criteo_row("1") + &criteo_row("0")));
    let data = open_file(&path).unwrap();
    let batch = read_all(&data);
    assert_eq!(batch.labels, [1.0, 0.0]);
    assert_eq!(batch.numeric[..13], [-1, 0, 1, MISSING, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    let mut categories: Vec<u32> = (1..=26).collect();
    categories[5] = NO_CATEGORY;
    assert_eq!(batch.categories[..26], categories);
    assert_eq!(batch.categories[26..], categories);
}

#[test]
fn adult_rows_are_the_same_in_both_spellings() {
    let folder = tempfile::tempdir().unwrap();
    let rows = ADULT_ROW.to_owned() + &ADULT_ROW.replace("State-gov", "?").replace("<=50K", ">50K");
    let spaces = write(folder.path(), "spaces", &rows);
    // The published files: a comma and a space; the test file has a header line, and dots after its labels.
    let text =
        format!("|1x3 Cross validator\n{}\n\n", rows.trim_end().replace(' ', ", ").replace("50K", "50K."));
    let commas = write(folder.path(), "commas", &text);
    let (spaces, commas) =
        (open_file(&spaces).unwrap(), MemoryDataset::open(&commas, Some(Format::Adult)).unwrap());
    let batch = read_all(&spaces);
    assert_eq!(batch, read_all(&commas));
    assert_eq!(batch.labels, [0.0, 1.0]);
    assert_eq!(batch.numeric[..6], [39, 77516, 13, 2174, 0, 40]);
    assert_eq!(batch.categories[8], NO_CATEGORY);
    assert_ne!(batch.categories[0], NO_CATEGORY);
    assert_eq!(batch.categories[1..8], batch.categories[9..]);
}

#[test]
fn compressed_files_are_told_by_their_first_bytes_and_blank_lines_at_the_end_are_no_rows() {
    let folder = tempfile::tempdir().unwrap();
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all((criteo_row("1") + "\n  \n\r\n").as_bytes()).unwrap();
    let path = folder.path().join("no-ending");
    fs::write(&path, gz.finish().unwrap()).unwrap();
    let plain = write(folder.path(), "plain.gz", &criteo_row("1").replace('\n', "\r\n"));
    assert_eq!(read_all(&open_file(&path).unwrap()), read_all(&open_file(&plain).unwrap()));
}

#[test]
fn a_folder_is_read_in_the_order_of_its_names_without_its_documentation() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "day_1", &criteo_row("0").repeat(2));
    write(folder.path(), "day_0", &criteo_row("1"));
    write(folder.path(), "README.md", "words about the data");
    fs::create_dir(folder.path().join("more")).unwrap();
    let data = open_file(folder.path()).unwrap();
    assert_eq!(read_all(&data).labels, [1.0, 0.0, 0.0]);
}

#[test]
fn what_cannot_be_read_is_named_with_its_place_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let twelve = ["1\t2\t3\t4\t5\t6\t7\t8\t9\t10\t11\t12\n", &criteo_row("1")];
    let word = criteo_row("1").replace("\t11\t", "\televen\t");
    let cases: [(&str, String, &[&str]); 8] = [
        ("twelve", twelve.concat(), &["twelve line 1: 12 columns", "criteo needs 40", "--format"]),
        ("second", criteo_row("1") + "\n" + twelve[0], &["second line 3: 12 columns", "mend or remove"]),
        ("label", criteo_row("2"), &["label line 1 column 1: '2' is not a label, 0 or 1"]),
        ("word", word, &["word line 1 column 14: 'eleven' is not an integer"]),
        ("adult", ADULT_ROW.replace("<=50K", "50K"), &["adult line 1 column 15: '50K'", ">50K or <=50K"]),
        ("short", ADULT_ROW.to_owned() + "39 Private\n", &["short line 2: 2 columns", "adult needs 15"]),
        ("prose", "two words\n".into(), &["prose line 1: 2 columns", "--format"]),
        ("blank", "\n \n".into(), &["blank: holds no rows"]),
    ];
    for (name, text, expected) in cases {
        let error = open_file(&write(folder.path(), name, &text)).unwrap_err().to_string();
        for words in expected {
            assert!(error.contains(words), "'{error}' does not say '{words}'");
        }
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn missing_and_empty_and_damaged_sources_are_different_errors() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(open_file(&folder.path().join("none")), Err(OpenError::NotFound { .. })));
    assert!(matches!(open_file(folder.path()), Err(OpenError::Empty { .. })));
    let path = write(folder.path(), "zero", "");
    assert!(matches!(open_file(&path), Err(OpenError::Empty { .. })));
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(criteo_row("1").repeat(100).as_bytes()).unwrap();
    let bytes = gz.finish().unwrap();
    let cut = folder.path().join("cut.gz");
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    assert!(matches!(open_file(&cut), Err(OpenError::Read { .. })));
    let long = write(folder.path(), "long", &"x".repeat(1 << 20));
    assert!(matches!(open_file(&long), Err(OpenError::LineTooLong { line: 1, .. })));
}

#[test]
fn a_row_beyond_the_end_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let data = open_file(&write(folder.path(), "a", &criteo_row("1"))).unwrap();
    let error = data.read(&[0, 1], &mut RowBatch::default()).unwrap_err();
    assert_eq!(error, RowError { row: 1, rows: 1 });
}

#[test]
fn numbers_beyond_32_bits_are_cut_and_never_look_missing() {
    let folder = tempfile::tempdir().unwrap();
    let text = criteo_row("1").replacen("-1", "-99999999999", 1).replacen("\t11\t", "\t99999999999\t", 1);
    let batch = read_all(&open_file(&write(folder.path(), "a", &text)).unwrap());
    assert_eq!((batch.numeric[0], batch.numeric[12]), (i32::MIN + 1, i32::MAX));
}

#[test]
fn no_written_category_looks_missing() {
    assert_ne!(category(b"00000000"), NO_CATEGORY);
    assert_eq!(category(b"0000002a"), 42);
    assert_eq!(category(b"0000002A"), 42);
    assert_ne!(category(b"42"), category(b"43"));
}

#[test]
fn generated_rows_written_and_read_back_are_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let mut text = Vec::new();
    synthetic::write_tsv(300, Seed(9), &mut text).unwrap();
    let path = folder.path().join("clicks.tsv");
    fs::write(&path, text).unwrap();
    let data = open_file(&path).unwrap();
    assert_eq!(data.schema(), Format::Criteo.schema());
    let read = read_all(&data);
    assert_eq!(read, read_all(&synthetic::Clicks::new(Seed(9), 300)));
    assert!(read.numeric.contains(&MISSING) && read.categories.contains(&NO_CATEGORY));
}

proptest! {
    #[test]
    fn any_bytes_are_rows_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        format in proptest::option::of(prop_oneof![Just(Format::Criteo), Just(Format::Adult)]),
        tabs in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        let bytes: Vec<u8> = if tabs {
            std::iter::once(&b'1').chain(std::iter::repeat_n(&b'\t', 39)).chain(&bytes).copied().collect()
        } else {
            bytes
        };
        fs::write(&path, &bytes).unwrap();
        if let Ok(data) = MemoryDataset::open(&path, format) {
            let batch = read_all(&data);
            prop_assert_eq!(batch.labels.len() as u64, data.rows());
            prop_assert_eq!(batch.categories.len(), batch.labels.len() * data.schema().categorical);
        }
    }
}
