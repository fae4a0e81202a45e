use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use antdt_core::Seed;
use antdt_data::Cache;
use flate2::Compression;
use flate2::write::GzEncoder;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
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

fn read_all(data: &mut dyn Dataset) -> RowBatch {
    let mut batch = RowBatch::default();
    data.read(&(0..data.rows()).collect::<Vec<_>>(), &mut batch).unwrap();
    batch
}

/// The format of that name.
fn format(name: &str) -> Format {
    name.parse().unwrap()
}

fn open_file(path: &Path) -> Result<StoredRows, DatasetError> {
    open_as(path, None)
}

fn open_as(path: &Path, format: Option<Format>) -> Result<StoredRows, DatasetError> {
    // Beside the file, in a folder that is no file of the data set.
    let cache = Cache::at(path.parent().unwrap().join(".cache"));
    let opening = Opening { cache: &cache, budget_bytes: 1 << 20 };
    StoredRows::open(path, format, &ColumnChoice::default(), &opening, &mut |_| {})
}

#[test]
fn a_criteo_row_is_read_with_its_missing_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = write(folder.path(), "a.tsv", &(criteo_row("1") + &criteo_row("0")));
    let mut data = open_file(&path).unwrap();
    let batch = read_all(&mut data);
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
    let batch = read_all(&mut open_file(&spaces).unwrap());
    assert_eq!(batch, read_all(&mut open_as(&commas, Some(format("adult"))).unwrap()));
    assert_eq!(batch, read_all(&mut open_file(&commas).unwrap()));
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
    let expected = read_all(&mut open_file(&plain).unwrap());
    assert_eq!(read_all(&mut open_file(&path).unwrap()), expected);
    let path = folder.path().join("zstd");
    fs::write(&path, zstd::encode_all(criteo_row("1").as_bytes(), 0).unwrap()).unwrap();
    assert_eq!(read_all(&mut open_file(&path).unwrap()), expected);
}

#[test]
fn a_folder_is_read_in_the_order_of_its_names_without_its_documentation() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "day_1", &criteo_row("0").repeat(2));
    write(folder.path(), "day_0", &criteo_row("1"));
    write(folder.path(), "README.md", "words about the data");
    fs::create_dir(folder.path().join("more")).unwrap();
    write(folder.path(), "_SUCCESS", "");
    let days = folder.path().join("dt=1/hour=2");
    fs::create_dir_all(&days).unwrap();
    write(&days, "part-0", &criteo_row("1").repeat(2));
    let cache = Cache::at(folder.path().join(".cache"));
    let (opening, mut said) = (Opening { cache: &cache, budget_bytes: 1 << 20 }, Vec::new());
    let mut say = |line: &dyn fmt::Display| said.push(line.to_string());
    let mut data =
        StoredRows::open(folder.path(), None, &ColumnChoice::default(), &opening, &mut say).unwrap();
    assert_eq!(read_all(&mut data).labels, [1.0, 0.0, 0.0, 1.0, 1.0]);
    assert!(said.len() == 2 && said[0].contains("1 not called KEY=VALUE are not read (more)"), "{said:?}");
    assert!(
        said[1].ends_with("what the folders say (dt=…, hour=…) is no column of the format criteo"),
        "{said:?}"
    );
    std::os::unix::fs::symlink("/nowhere/day_2", folder.path().join("day_2")).unwrap();
    let error = open_file(folder.path()).unwrap_err().to_string();
    assert!(error.contains("day_2: a link to /nowhere/day_2, which does not exist"), "{error}");
}

#[test]
fn an_unreadable_value_is_named_with_its_place_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let twelve = ["1\t2\t3\t4\t5\t6\t7\t8\t9\t10\t11\t12\n", &criteo_row("1")];
    let word = criteo_row("1").replace("\t11\t", "\televen\t");
    let cases: [(&str, String, &[&str]); 9] = [
        ("twelve", twelve.concat(), &["twelve: no column is called click, label", "--label", "1, 2, 3"]),
        ("second", criteo_row("1") + "\n" + twelve[0], &["second line 3: 12 columns", "mend or remove"]),
        ("label", criteo_row("2"), &["label line 1: column 1: '2' is not a label, 0 or 1"]),
        ("word", word, &["word line 1: column 14: 'eleven' is not an integer", "mend or remove"]),
        ("adult", ADULT_ROW.replace("<=50K", "50K"), &["adult line 1: column 15: '50K'", ">50K or <=50K"]),
        ("short", ADULT_ROW.to_owned() + "39 Private\n", &["short line 2: 2 columns", "adult needs 15"]),
        ("wide", criteo_row("1").replace('\n', "\t5\n"), &["wide: no column is called click", "and 11 more"]),
        ("prose", "two words\nand two\n".into(), &["prose: no column is called", "one of: two words"]),
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
    assert!(matches!(open_file(&folder.path().join("none")), Err(DatasetError::NotFound { .. })));
    assert!(matches!(open_file(folder.path()), Err(DatasetError::Empty { .. })));
    let path = write(folder.path(), "zero", "");
    assert!(matches!(open_file(&path), Err(DatasetError::Empty { .. })));
    let mut gz = GzEncoder::new(Vec::new(), Compression::fast());
    gz.write_all(criteo_row("1").repeat(100).as_bytes()).unwrap();
    let bytes = gz.finish().unwrap();
    let cut = folder.path().join("cut.gz");
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let error = open_file(&cut).unwrap_err().to_string();
    let words = format!(
        "cut.gz: truncated: the file ends after {} bytes, in the middle of its gzip stream",
        bytes.len() / 2
    );
    assert!(error.contains(&words) && error.contains("download it again"), "{error}");
    let long = write(folder.path(), "long", &"x".repeat(1 << 20));
    let error = open_as(&long, Some(format("criteo"))).unwrap_err();
    assert!(error.to_string().contains("long line 1: longer than"), "{error}");
}

/// The same rows as a Parquet file: integers as floating point numbers with nulls, or as integers; categories as text or
/// as integers; in row groups of 40.
fn parquet(folder: &Path, name: &str, rows: &RowBatch, as_numbers: bool) -> PathBuf {
    let kind = if as_numbers { "double" } else { "int64" };
    let mut schema = "message rows { required int64 label;".to_owned();
    (0..13).for_each(|i| schema += &format!(" optional {kind} i{i};"));
    let kind = if as_numbers { "int64" } else { "binary" };
    (0..26).for_each(|i| schema += &format!(" optional {kind} c{i};"));
    let schema = Arc::new(parse_message_type(&(schema + "}")).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let count = rows.labels.len();
    for start in (0..count).step_by(40) {
        let range = start..(start + 40).min(count);
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        let labels: Vec<i64> = rows.labels[range.clone()].iter().map(|label| *label as i64).collect();
        column.typed::<Int64Type>().write_batch(&labels, None, None).unwrap();
        column.close().unwrap();
        for i in 0..13 {
            let values: Vec<i32> = range.clone().map(|row| rows.numeric[row * 13 + i]).collect();
            let levels: Vec<i16> = values.iter().map(|value| i16::from(*value != MISSING)).collect();
            let present = values.into_iter().filter(|value| *value != MISSING);
            let mut column = group.next_column().unwrap().unwrap();
            if as_numbers {
                let values: Vec<f64> = present.map(f64::from).collect();
                column.typed::<DoubleType>().write_batch(&values, Some(&levels), None).unwrap();
            } else {
                let values: Vec<i64> = present.map(i64::from).collect();
                column.typed::<Int64Type>().write_batch(&values, Some(&levels), None).unwrap();
            }
            column.close().unwrap();
        }
        for i in 0..26 {
            let codes: Vec<u32> = range.clone().map(|row| rows.categories[row * 26 + i]).collect();
            let levels: Vec<i16> = codes.iter().map(|code| i16::from(*code != NO_CATEGORY)).collect();
            let present = codes.into_iter().filter(|code| *code != NO_CATEGORY);
            let mut column = group.next_column().unwrap().unwrap();
            if as_numbers {
                let values: Vec<i64> = present.map(i64::from).collect();
                column.typed::<Int64Type>().write_batch(&values, Some(&levels), None).unwrap();
            } else {
                let values: Vec<ByteArray> =
                    present.map(|code| format!("{code:08x}").into_bytes().into()).collect();
                column.typed::<ByteArrayType>().write_batch(&values, Some(&levels), None).unwrap();
            }
            column.close().unwrap();
        }
        group.close().unwrap();
    }
    let path = folder.join(name);
    fs::write(&path, writer.into_inner().unwrap()).unwrap();
    path
}

#[test]
fn the_same_rows_come_from_tabs_commas_and_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let expected = read_all(&mut synthetic::Clicks::new(Seed(9), 100));
    let mut text = Vec::new();
    synthetic::write_tsv(100, Seed(9), &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let names: Vec<String> = (0..39).map(|i| format!("x{i}")).collect();
    let header = format!("Label,{}\n", names.join(","));
    let commas = text.replace('\t', ",");
    let files = [
        write(folder.path(), "tabs", &text),
        write(folder.path(), "commas", &commas),
        write(folder.path(), "header.csv", &(header.clone() + &commas)),
        write(folder.path(), "quotes.csv", &(header + &commas.replacen(",5,", ",\"5\",", 3))),
        parquet(folder.path(), "strings.parquet", &expected, false),
        parquet(folder.path(), "numbers.parquet", &expected, true),
    ];
    for file in files {
        let mut data = open_file(&file).unwrap();
        assert_eq!(
            (data.rows(), data.schema()),
            (100, format("criteo").schema().unwrap()),
            "{}",
            file.display()
        );
        assert_eq!(read_all(&mut data), expected, "{}", file.display());
        let (mut some, mut same) = (RowBatch::default(), RowBatch::default());
        data.read(&[77, 3, 40], &mut some).unwrap();
        synthetic::Clicks::new(Seed(9), 100).read(&[77, 3, 40], &mut same).unwrap();
        assert_eq!(some, same);
    }
}

#[test]
fn a_bad_label_of_a_parquet_file_is_found_at_the_start_and_names_its_row() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows = read_all(&mut synthetic::Clicks::new(Seed(9), 100));
    rows.labels[60] = 7.0;
    let error = open_file(&parquet(folder.path(), "a.parquet", &rows, false)).unwrap_err().to_string();
    assert!(
        error.ends_with("a.parquet row 61: column 1: '7' is not a label, 0 or 1; mend or remove the row"),
        "{error}"
    );
}

#[test]
fn a_bad_row_of_a_parquet_file_is_found_when_it_is_read_and_names_its_column() {
    let folder = tempfile::tempdir().unwrap();
    let mut rows = read_all(&mut synthetic::Clicks::new(Seed(9), 100));
    rows.numeric[60 * 13 + 5] = 987_654;
    let path = parquet(folder.path(), "a.parquet", &rows, true);
    let mut bytes = fs::read(&path).unwrap();
    let at = bytes.windows(8).position(|value| value == 987_654.0_f64.to_le_bytes()).unwrap();
    bytes[at..at + 8].copy_from_slice(&987_654.5_f64.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let mut data = open_file(&path).unwrap();
    let mut batch = RowBatch::default();
    data.read(&[0, 59, 61, 99], &mut batch).unwrap();
    let error = data.read(&[59, 60], &mut RowBatch::default()).unwrap_err();
    let error = error.to_string();
    assert!(error.ends_with("a.parquet row 61: column 7: '987654.5' is not an integer"), "{error}");
    let error = open_as(&folder.path().join("a.parquet"), Some(format("adult"))).unwrap_err().to_string();
    assert!(error.contains("40 columns, but adult needs 15"), "{error}");
}

#[test]
fn a_row_beyond_the_end_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = open_file(&write(folder.path(), "a", &criteo_row("1"))).unwrap();
    let error = data.read(&[0, 1], &mut RowBatch::default()).unwrap_err();
    assert_eq!((error.row, error.to_string().contains("data set of 1")), (1, true), "{error}");
}

#[test]
fn numbers_beyond_32_bits_are_cut_and_never_look_missing() {
    let folder = tempfile::tempdir().unwrap();
    let text = criteo_row("1").replacen("-1", "-99999999999", 1).replacen("\t11\t", "\t99999999999\t", 1);
    let batch = read_all(&mut open_file(&write(folder.path(), "a", &text)).unwrap());
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
    let mut data = open_file(&path).unwrap();
    assert_eq!(Some(data.schema()), format("criteo").schema());
    let read = read_all(&mut data);
    assert_eq!(read, read_all(&mut synthetic::Clicks::new(Seed(9), 300)));
    assert!(read.numeric.contains(&MISSING) && read.categories.contains(&NO_CATEGORY));
}

proptest! {
    #[test]
    fn any_bytes_are_rows_or_an_error(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        format in proptest::option::of(proptest::sample::select(format::REGISTRY.entries())),
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
        if let Ok(mut data) = open_as(&path, format) {
            let batch = read_all(&mut data);
            prop_assert_eq!(batch.labels.len() as u64, data.rows());
            prop_assert_eq!(batch.categories.len(), batch.labels.len() * data.schema().categorical);
        }
    }
}
