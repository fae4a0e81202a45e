use std::fs;
use std::path::Path;
use std::sync::Arc;

use antdt_data::Cache;
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, FixedLenByteArray, FixedLenByteArrayType, Int32Type, Int64Type,
};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

use super::*;
use crate::data::{Dataset, DatasetError, Format, Opening, StoredRows};

fn choice(label: &str) -> ColumnChoice {
    ColumnChoice { label: Some(label.to_owned()), ..ColumnChoice::default() }
}

/// What a job sees of the data at a path, and what it says of them.
fn open(
    path: &Path,
    format: Option<&str>,
    columns: &ColumnChoice,
) -> Result<(StoredRows, Vec<String>), DatasetError> {
    let cache = Cache::at(path.parent().unwrap().join(".cache"));
    let mut said = Vec::new();
    let format = format.map(|name| name.parse::<Format>().unwrap());
    let opening = Opening { cache: &cache, budget_bytes: 1 << 20 };
    let rows = StoredRows::open(path, format, columns, &opening, &mut |line| said.push(line.to_string()))?;
    Ok((rows, said))
}

fn read(rows: &mut StoredRows) -> RowBatch {
    let mut batch = RowBatch::default();
    rows.read(&(0..rows.rows()).collect::<Vec<_>>(), &mut batch).unwrap();
    batch
}

/// Six columns, as people have them.
fn churn(delimiter: &str) -> String {
    let mut text =
        ["customerID", "Tenure", "charges", "contract", "Phone Service", "Churned"].join(delimiter) + "\n";
    for row in 0..60 {
        let charges = if row % 10 == 0 { " ".to_owned() } else { format!("{}.85", 20 + row) };
        let cells = [
            format!("id-{}", row * 31 % 61),
            (row % 30).to_string(),
            charges,
            ["month", "year"][row % 2].to_owned(),
            ["yes", "NA", "no"][row % 3].to_owned(),
            ["Yes", "No"][row % 2].to_owned(),
        ];
        text += &(cells.join(delimiter) + "\n");
    }
    text
}

#[test]
fn a_table_is_the_same_rows_with_any_delimiter_and_any_spelling_of_its_header() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for (name, delimiter, format) in [
        ("a.csv", ",", Some("csv")),
        ("b.tsv", "\t", Some("tsv")),
        ("semicolons.csv", ";", Some("csv")),
        ("bars", "|", None),
        ("colons.dat", "::", None),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, churn(delimiter)).unwrap();
        let (mut rows, said) = open(&path, format, &choice(" churned")).unwrap();
        assert!(said[0].contains("label: Churned (yes is 1, no is 0)"), "{said:?}");
        assert!(said[3].contains("ignored: customerID (another value in each row)"), "{said:?}");
        all.push(read(&mut rows));
    }
    let quoted = folder.path().join("quoted.csv");
    fs::write(&quoted, churn(",").replacen("Churned", "\" CHURNED \"", 1)).unwrap();
    all.push(read(&mut open(&quoted, None, &choice("churned")).unwrap().0));
    let first = &all[0];
    assert!(all.iter().all(|batch| batch == first));
    assert_eq!((first.labels.len(), &first.labels[..3]), (60, &[1.0, 0.0, 1.0][..]));
    // Tenure as it is, charges by octave, and a blank is missing.
    assert_eq!(first.numeric[..4], [0, MISSING, 1, octave(21.85)]);
    assert_eq!((first.categories[3], first.categories[0] == first.categories[4]), (NO_CATEGORY, true));
}

#[test]
fn files_of_text_with_reordered_headers_are_the_same_samples() {
    let folder = tempfile::tempdir().unwrap();
    for (delimiter, name) in [(",", "csv"), ("\t", "tsv")] {
        let turned: String = churn(delimiter)
            .lines()
            .map(|line| line.rsplit(delimiter).collect::<Vec<_>>().join(delimiter) + "\n")
            .collect();
        let read_with = |second: &str| {
            let data = folder.path().join(format!("{name}-data"));
            fs::create_dir_all(&data).unwrap();
            fs::write(data.join(format!("a.{name}")), churn(delimiter)).unwrap();
            fs::write(data.join(format!("b.{name}")), second).unwrap();
            open(&data, Some(name), &choice("churned")).map(|(mut rows, _)| read(&mut rows))
        };
        let (same, reordered) = (read_with(&churn(delimiter)).unwrap(), read_with(&turned).unwrap());
        assert_eq!(same.labels.len(), 120);
        assert_eq!(same, reordered);
        let error = read_with(&turned.replacen("Tenure", "Years", 1)).unwrap_err().to_string();
        assert!(error.contains(&format!("b.{name}")) && error.contains("lacks column \"Tenure\""), "{error}");
        let error = read_with(&turned.replacen("\nYes", "\nmaybe", 1)).unwrap_err().to_string();
        assert!(
            error.contains(&format!("b.{name} line 2: ")) && error.contains("Churned: 'maybe'"),
            "{error}"
        );
    }
}

#[test]
fn a_bad_row_is_named_with_its_line_and_column_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    // Beyond the rows that are looked at.
    let mut text = "x,y\n".to_owned();
    (0..SAMPLE_ROWS).for_each(|row| text += &format!("{row},{}\n", row % 2));
    for (row, words) in [
        ("many,1\n", "line 10002: column 1, x: 'many' is not a number; name the column in --categorical"),
        ("7,maybe\n", "line 10002: column 2, y: 'maybe' is not one of the label's two values"),
        ("7,\n", "line 10002: column 2, y: 'nothing' is not one of"),
        ("7\n", "line 10002: 1 columns, but the first row has 2"),
        ("7,1,2\n", "line 10002: 3 columns, but the first row has 2"),
    ] {
        fs::write(&path, text.clone().replace("\n0,", "\n5,") + row).unwrap();
        let error = open(&path, None, &ColumnChoice::default()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn class_that_the_first_rows_do_not_have_is_named_with_its_line_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    let mut text = "x,kind\n".to_owned();
    (0..SAMPLE_ROWS)
        .for_each(|row| text += &format!("{},{}\n", row % 9, ["cat", "dog", "eel"][row as usize % 3]));
    fs::write(&path, text + "7,emu\n").unwrap();
    let error = open(&path, None, &choice("kind")).unwrap_err().to_string();
    assert!(
        error.contains("line 10002: column 2, kind: 'emu' is not one of the label's classes")
            && error.contains("shuffle the rows"),
        "{error}"
    );
}

#[test]
fn table_that_no_job_can_train_is_refused_at_the_start_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ratings.dat");
    let rows: String =
        (0..80).map(|row| format!("{}::{}::{}::9783{row:05}\n", row % 7, row % 11, row % 5 + 1)).collect();
    fs::write(&path, &rows).unwrap();
    let error = open(&path, None, &ColumnChoice::default()).unwrap_err().to_string();
    assert!(
        error.contains("ratings.dat: no column is called click") && error.contains("one of: 1, 2, 3, 4"),
        "{error}"
    );
    let said = open(&path, None, &choice("4")).unwrap().1;
    assert!(said[0].ends_with("label: 4 (a number to estimate; mean 9.78e8, deviation 23.1)"), "{said:?}");
    let (mut rows, said) = open(&path, None, &choice("3")).unwrap();
    assert!(said[0].ends_with("label: 3 (5 classes: 1, 2, 3, 4, 5)"), "{said:?}");
    assert_eq!(read(&mut rows).labels[..6], [0.0, 1.0, 2.0, 3.0, 4.0, 0.0]);
    let mut rows = open(&path, None, &choice("3>=4")).unwrap().0;
    assert_eq!(read(&mut rows).labels[..5], [0.0, 0.0, 0.0, 1.0, 1.0]);
    let error = open(&path, Some("parquet"), &choice("3>=4")).unwrap_err().to_string();
    assert!(error.contains("--format = parquet: must be csv or tsv"), "{error}");
    let error = open(&path, Some("criteo"), &choice("3>=4")).unwrap_err().to_string();
    assert!(error.contains("--format = criteo: must be csv, tsv or parquet with --label"), "{error}");
    fs::write(&path, b"\xff\xfex\0,\0y\0").unwrap();
    assert!(open(&path, None, &choice("y")).unwrap_err().to_string().contains("UTF-16"));
    fs::write(&path, "y\n0\n1\n").unwrap();
    let error = open(&path, None, &choice("y")).unwrap_err().to_string();
    assert!(error.contains("no column is left to learn from beside the label y"), "{error}");
}

/// The rows of a table as Parquet: `order` says which column of the schema stands where.
fn parquet(path: &Path, order: [usize; 7], first: i32) {
    const COLUMNS: [&str; 7] = [
        "required boolean click;",
        "optional int32 age;",
        "required int64 price (DECIMAL(10,2));",
        "required binary site (UTF8);",
        "required int64 at (TIMESTAMP(MICROS,true));",
        "required fixed_len_byte_array(3) cost (DECIMAL(5,1));",
        "required int32 day (DATE);",
    ];
    let columns: String = order.iter().map(|at| COLUMNS[*at]).collect();
    let schema = Arc::new(parse_message_type(&format!("message rows {{ {columns} }}")).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let rows: Vec<i32> = (first..first + 50).collect();
    for at in order {
        let mut column = group.next_column().unwrap().unwrap();
        match at {
            0 => {
                let values: Vec<bool> = rows.iter().map(|row| row % 3 == 0).collect();
                column.typed::<BoolType>().write_batch(&values, None, None).unwrap();
            }
            1 => {
                let values: Vec<i32> = rows.iter().filter(|row| **row % 5 != 0).map(|row| row % 40).collect();
                let levels: Vec<i16> = rows.iter().map(|row| i16::from(row % 5 != 0)).collect();
                column.typed::<Int32Type>().write_batch(&values, Some(&levels), None).unwrap();
            }
            2 | 4 => {
                let values: Vec<i64> = rows.iter().map(|row| i64::from(row * 150)).collect();
                column.typed::<Int64Type>().write_batch(&values, None, None).unwrap();
            }
            3 => {
                let values: Vec<ByteArray> =
                    rows.iter().map(|row| ByteArray::from(["a", "b"][*row as usize % 2])).collect();
                column.typed::<ByteArrayType>().write_batch(&values, None, None).unwrap();
            }
            5 => {
                let bytes = |row: &i32| FixedLenByteArray::from((-row).to_be_bytes()[1..].to_vec());
                let values: Vec<FixedLenByteArray> = rows.iter().map(bytes).collect();
                column.typed::<FixedLenByteArrayType>().write_batch(&values, None, None).unwrap();
            }
            _ => {
                column.typed::<Int32Type>().write_batch(&rows, None, None).unwrap();
            }
        }
        column.close().unwrap();
    }
    group.close().unwrap();
    fs::write(path, writer.into_inner().unwrap()).unwrap();
}

#[test]
fn parquet_is_read_by_name_wherever_a_file_has_its_columns() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    parquet(&data.join("a.parquet"), [0, 1, 2, 3, 4, 5, 6], 0);
    parquet(&data.join("b.parquet"), [3, 6, 5, 2, 4, 0, 1], 50);
    let (mut rows, said) = open(&data, None, &ColumnChoice::default()).unwrap();
    assert!(
        said[3].ends_with(
            "ignored: at (times; --numeric takes them as seconds), day (dates; --numeric takes them as days)"
        ),
        "{said:?}"
    );
    let batch = read(&mut rows);
    let expected: Vec<f32> = (0..100).map(|row| f32::from(u8::from(row % 3 == 0))).collect();
    assert_eq!(batch.labels, expected);
    // The age, the price of 1.50 a row, and minus a tenth of a row.
    for row in [1, 49, 51, 99] {
        let values = [row % 40, octave(f64::from(row) * 1.5), octave(f64::from(-row) / 10.0)];
        let at = row as usize;
        assert_eq!(batch.numeric[at * 3..][..3], values, "row {row}");
        assert_eq!(batch.categories[at], category(["a", "b"][at % 2].as_bytes()));
    }
    assert_eq!(batch.numeric[150], MISSING);
    let numeric = ["at", "day"].map(str::to_owned).to_vec();
    let (mut rows, _) = open(&data, Some("parquet"), &ColumnChoice { numeric, ..choice("click") }).unwrap();
    let batch = read(&mut rows);
    assert_eq!((batch.numeric[5 * 60 + 2], batch.numeric[5 * 60 + 4]), (octave(60.0 * 150.0 / 1e6), 60));
}

#[test]
fn numbers_have_buckets_of_an_eighth_of_an_octave() {
    let of = |values: &[f64]| values.iter().map(|value| octave(*value)).collect::<Vec<_>>();
    let steps = of(&[1.0, 1.13, 1.26, 1.38, 1.51, 1.63, 1.76, 1.88, 2.0]);
    assert!(steps.windows(2).all(|two| two[1] == two[0] + 1), "{steps:?}");
    assert_eq!(octave(1000.0), octave(1001.0));
    assert_eq!(of(&[-3.5, 0.0, -0.0]), [-octave(3.5), 0, 0]);
    assert!(octave(f64::INFINITY) < i32::MAX && octave(f64::NEG_INFINITY) > MISSING);
    assert_eq!([whole(2.5), whole(-1e300), whole(7.0)], [3, MISSING + 1, 7]);
    assert_eq!([big_endian(&[0xff, 0xfe]), big_endian(&[1, 0]), big_endian(&[0x80])], [-2.0, 256.0, -128.0]);
}

/// Writes four rows of text below folders, with `column` as the name of a column of the file.
fn in_folders(data: &Path, folders: &[&str], column: &str) {
    for (at, folder) in folders.iter().enumerate() {
        fs::create_dir_all(data.join(folder)).unwrap();
        let rows: String = (0..4).map(|row| format!("{},{}\n", at * 4 + row, row % 2)).collect();
        fs::write(data.join(folder).join("part.csv"), format!("{column},y\n{rows}")).unwrap();
    }
}

#[test]
fn folders_called_key_value_are_columns_of_text_and_of_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    in_folders(
        &text,
        &["hour=7/country=de", "hour=9/country=__HIVE_DEFAULT_PARTITION__", "hour=9/country=a%20b"],
        "x",
    );
    let (mut rows, said) = open(&text, None, &choice("y")).unwrap();
    assert!(said[0].contains("4 columns by name"), "{said:?}");
    assert!(said[1].ends_with("numeric: x (0 to 3), hour (of folders; 7 to 9)"), "{said:?}");
    assert!(said[2].ends_with("categorical: country (of folders; 2 values)"), "{said:?}");
    // In the order of the paths: `country=__…` comes before `country=a%20b`.
    let batch = read(&mut rows);
    let hours: Vec<i32> = batch.numeric.chunks(2).map(|row| row[1]).collect();
    assert_eq!(hours, [[7; 4], [9; 4], [9; 4]].concat());
    let (de, other) = (category(b"de"), category(b"a b"));
    assert_eq!(batch.categories, [[de; 4], [NO_CATEGORY; 4], [other; 4]].concat());
    // Rows in any order are those of their own files.
    let mut turned = RowBatch::default();
    rows.read(&[11, 0], &mut turned).unwrap();
    assert_eq!((turned.numeric, turned.categories), (vec![11, 9, 0, 7], vec![other, de]));

    let parquet_data = folder.path().join("parquet");
    for (at, name) in ["site_group=b", "site_group=a"].iter().enumerate() {
        fs::create_dir_all(parquet_data.join(name)).unwrap();
        parquet(&parquet_data.join(name).join("part.parquet"), [0, 1, 2, 3, 4, 5, 6], 50 * at as i32);
    }
    let (mut rows, said) = open(&parquet_data, None, &ColumnChoice::default()).unwrap();
    assert!(said[2].ends_with("categorical: site (2 values), site_group (of folders; 2 values)"), "{said:?}");
    let batch = read(&mut rows);
    let groups: Vec<u32> = batch.categories.chunks(2).map(|row| row[1]).collect();
    assert_eq!(groups, [[category(b"a"); 50], [category(b"b"); 50]].concat());
}

#[test]
fn columns_of_folders_are_named_by_the_flags_and_may_be_the_label() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("rows");
    in_folders(&data, &["kind=cat/day=1", "kind=dog/day=2"], "x");
    let list = |name: &str| vec![name.to_owned()];
    let asked = ColumnChoice { categorical: list("Day"), ignore: list("x"), ..choice("kind") };
    let (mut rows, said) = open(&data, Some("csv"), &asked).unwrap();
    assert!(said[0].contains("label: kind (dog is 1, cat is 0)"), "{said:?}");
    let batch = read(&mut rows);
    assert_eq!(batch.labels, [[0.0; 4], [1.0; 4]].concat());
    assert_eq!(batch.categories, [[category(b"1"); 4], [category(b"2"); 4]].concat());
    assert_eq!(batch.numeric, [[0, 1], [0, 1], [0, 1], [0, 1]].concat());
    for (choice, words) in [
        (ColumnChoice { numeric: list("kind"), ..choice("y") }, "--numeric = kind: 'cat' is no number"),
        (choice("kind>=2"), "part.csv: its folders: column 3, kind: 'cat' is not a number"),
        (choice("month"), "--label = month: no column is called so; there are: x, y, kind, day"),
    ] {
        let error = open(&data, None, &choice).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn folder_that_is_called_as_a_column_of_the_file_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("rows");
    in_folders(&data, &["day=1", "day=2"], "Day");
    let error = open(&data, None, &choice("y")).unwrap_err().to_string();
    assert!(
        error.contains("part.csv: its folder is called day=…, and its column Day; rename the folders"),
        "{error}"
    );
}

#[test]
fn files_whose_folder_was_renamed_are_other_data() {
    let folder = tempfile::tempdir().unwrap();
    let sum = |name: &str| {
        let data = folder.path().join(name);
        in_folders(&data, &["day=1", name], "x");
        open(&data, None, &choice("y")).unwrap().0.content_checksum().unwrap()
    };
    let first = sum("day=2");
    assert_ne!(sum("day=3"), first);
    assert_eq!(sum("day=2"), first);
}
