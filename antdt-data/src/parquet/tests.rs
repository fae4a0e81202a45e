use std::path::PathBuf;

use ::parquet::basic::Compression;
use ::parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray, FixedLenByteArrayType,
    FloatType, Int32Type, Int64Type,
};
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

use super::*;
use crate::rows::Rows;
use crate::testing::{Folder, check_splitter};

const SCHEMA: &str = "message rows {
    required int64 id;
    optional binary text (UTF8);
    optional double score;
    required boolean flag;
    optional group place { required float x; }
    required fixed_len_byte_array(4) code;
    required int32 small;
}";

/// Of a row of [`SCHEMA`], by its number: what it is made of.
fn text(id: i64) -> Option<String> {
    (id % 3 != 0).then(|| format!("t{}", id % 7).repeat((id % 5) as usize))
}

fn score(id: i64) -> Option<f64> {
    (id % 4 != 1).then_some(id as f64 / 8.0)
}

fn x(id: i64) -> Option<f32> {
    (id % 2 == 0).then_some(id as f32)
}

fn code(id: i64) -> [u8; 4] {
    (id as u32).to_le_bytes()
}

/// A row of [`SCHEMA`], with the columns in the order of the schema.
fn row(id: i64) -> Vec<u8> {
    let values = [
        Value::I64(id),
        text(id).as_ref().map_or(Value::Null, |text| Value::Bytes(text.as_bytes())),
        score(id).map_or(Value::Null, Value::F64),
        Value::Bool(id % 5 == 0),
        x(id).map_or(Value::Null, Value::F32),
        Value::Bytes(&code(id)),
        Value::I32(-(id as i32)),
    ]
    .map(|value| format!("{value:?}"));
    values.join(" ").into_bytes()
}

fn bytes(row: ColumnRow<'_>) -> Vec<u8> {
    row.values().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(" ").into_bytes()
}

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, Vec<u8>>,
    values: &[T::T],
    levels: Option<&[i16]>,
) {
    let mut column = group.next_column().unwrap().unwrap();
    column.typed::<T>().write_batch(values, levels, None).unwrap();
    column.close().unwrap();
}

/// A file of [`SCHEMA`] with row groups of these lengths, whose ids begin at `first`.
fn written(first: i64, groups: &[i64], compression: Compression) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_data_page_row_count_limit(20)
        .set_write_batch_size(5);
    let schema = Arc::new(parse_message_type(SCHEMA).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build())).unwrap();
    let mut next = first;
    for len in groups {
        let ids: Vec<i64> = (next..next + len).collect();
        next += len;
        let levels =
            |there: &dyn Fn(i64) -> bool| ids.iter().map(|id| i16::from(there(*id))).collect::<Vec<_>>();
        let mut group = writer.next_row_group().unwrap();
        column::<Int64Type>(&mut group, &ids, None);
        let texts: Vec<ByteArray> =
            ids.iter().filter_map(|id| text(*id)).map(|text| text.into_bytes().into()).collect();
        column::<ByteArrayType>(&mut group, &texts, Some(&levels(&|id| text(id).is_some())));
        let scores: Vec<f64> = ids.iter().filter_map(|id| score(*id)).collect();
        column::<DoubleType>(&mut group, &scores, Some(&levels(&|id| score(id).is_some())));
        let flags: Vec<bool> = ids.iter().map(|id| id % 5 == 0).collect();
        column::<BoolType>(&mut group, &flags, None);
        let xs: Vec<f32> = ids.iter().filter_map(|id| x(*id)).collect();
        column::<FloatType>(&mut group, &xs, Some(&levels(&|id| x(id).is_some())));
        let codes: Vec<FixedLenByteArray> =
            ids.iter().map(|id| ByteArray::from(code(*id).to_vec()).into()).collect();
        column::<FixedLenByteArrayType>(&mut group, &codes, None);
        let smalls: Vec<i32> = ids.iter().map(|id| -(*id as i32)).collect();
        column::<Int32Type>(&mut group, &smalls, None);
        group.close().unwrap();
    }
    writer.into_inner().unwrap()
}

/// A file of another schema, whose columns are all INT32 and which has one row.
fn other(folder: &Folder, name: &str, schema: &str, columns: usize) -> PathBuf {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for _ in 0..columns {
        column::<Int32Type>(&mut group, &[1], None);
    }
    group.close().unwrap();
    folder.write(name, writer.into_inner().unwrap())
}

#[test]
fn rows_of_all_row_groups_and_files_are_read_exactly_once() {
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::BROTLI(Default::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
    ] {
        let folder = Folder::new();
        let paths = [
            folder.write("a.parquet", written(0, &[70, 5, 0, 130], compression)),
            folder.write("b.parquet", written(205, &[1], compression)),
            folder.write("c.parquet", written(206, &[20, 20], compression)),
        ];
        let data = Parquet::open_all(&paths).unwrap();
        let expected: Vec<Vec<u8>> = (0..246).map(row).collect();
        check_splitter(&data, &expected, bytes);
        assert_eq!(data.row_group_ends(), [70, 75, 205, 206, 226, 246]);
        let place = |sample, file: usize, row| assert_eq!(data.place(sample), Some((&*paths[file], row)));
        place(0, 0, 0);
        place(204, 0, 204);
        place(205, 1, 0);
        place(245, 2, 39);
        assert_eq!(data.place(246), None);
        let names = ["id", "text", "score", "flag", "place.x", "code", "small"];
        assert!(data.columns().eq(names));
    }
}

#[cfg(feature = "zstd")]
#[test]
fn pages_compressed_with_zstandard_are_read() {
    let folder = Folder::new();
    let path = folder.write("a", written(0, &[50], Compression::ZSTD(Default::default())));
    check_splitter(&Parquet::open_all([path]).unwrap(), &(0..50).map(row).collect::<Vec<_>>(), bytes);
}

#[test]
fn a_damaged_page_is_a_fault_that_names_its_column() {
    let folder = Folder::new();
    let mut bytes = written(0, &[50], Compression::SNAPPY);
    // The first page of the first column: its header.
    bytes[4..].iter_mut().take(64).for_each(|byte| *byte = !*byte);
    let data = Parquet::open_all([folder.write("a", &bytes)]).unwrap();
    let error = data.read(SampleRange { start: 0, end: 50 }).unwrap_err();
    assert!(
        matches!(&error, ReadError::Malformed { sample: 0, why, .. } if why.contains("\"id\"")),
        "{error}"
    );
}

#[test]
fn columns_that_cannot_be_read_are_refused_when_the_file_is_opened() {
    let folder = Folder::new();
    let source = Source::file(folder.write("a", written(0, &[50], Compression::SNAPPY))).unwrap();
    let file = source.reopen(0).unwrap();
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
    let group = metadata.row_group(0);
    assert_eq!(check_group(group, &source, &[0, 6], 7), Ok(50));
    let squeezed = group.column(6).clone().into_builder().set_compression(Compression::LZO).build().unwrap();
    let mut columns = group.columns().to_vec();
    columns[6] = squeezed;
    let group = group.clone().into_builder().set_column_metadata(columns).build().unwrap();
    let why = check_group(&group, &source, &[0, 6], 7).unwrap_err();
    assert!(why.contains("\"small\"") && why.contains("LZO"), "{why}");
    let far = group.column(6).clone().into_builder().set_compression(Compression::SNAPPY);
    let mut columns = group.columns().to_vec();
    columns[6] = far.set_total_compressed_size(1 << 20).build().unwrap();
    let beyond = group.clone().into_builder().set_column_metadata(columns).build().unwrap();
    assert!(check_group(&beyond, &source, &[6], 7).unwrap_err().contains("\"small\" outside the file"));
    // A column that is not wanted may be compressed with anything.
    assert_eq!(check_group(&group, &source, &[0, 5], 7), Ok(50));
}

#[test]
fn a_panic_of_the_decoder_is_an_error() {
    let error = decode::guarded::<()>(|| panic!("a page of {} rows", -1)).unwrap_err();
    assert!(error.contains("a page of -1 rows"), "{error}");
}

#[test]
fn cuts_follow_row_groups() {
    let folder = Folder::new();
    let path = folder.write("a", written(0, &[40, 40, 200, 10, 40], Compression::UNCOMPRESSED));
    let data = Parquet::open_all([path]).unwrap();
    let cuts = |target| data.cuts(NonZeroU64::new(target).unwrap()).ends();
    assert_eq!(cuts(80), [80, 146, 213, 280, 330]);
    assert_eq!(cuts(1000), [330]);
}

#[test]
fn only_the_wanted_columns_are_read_and_in_their_order() {
    let folder = Folder::new();
    let paths = [
        folder.write("a", written(0, &[30], Compression::SNAPPY)),
        // This one has the columns at other places.
        other(&folder, "b", "message rows { required int32 extra; required int32 small; }", 2),
    ];
    let data = Parquet::open(&paths, &["small"]).unwrap();
    let rows = data.read(SampleRange { start: 28, end: 31 }).unwrap();
    assert_eq!(rows.columns()[0].values(), &Values::I32(vec![-28, -29, 1]));
    let data = Parquet::open(&paths[..1], &["place.x", "id"]).unwrap();
    let rows = data.read(SampleRange { start: 3, end: 5 }).unwrap();
    assert_eq!(rows.row(4).unwrap().values().collect::<Vec<_>>(), [Value::F32(4.0), Value::I64(4)]);
    let place = &rows.columns()[0];
    assert_eq!((place.name(), place.valid()), ("place.x", Some(&[false, true][..])));
    assert_eq!((rows.columns()[1].valid(), rows.row(4).unwrap().value(2)), (None, None));
}

#[test]
fn files_may_have_their_columns_in_any_order() {
    let folder = Folder::new();
    let (a, b) = ("required int32 a;", "required int64 b;");
    let file = |name: &str, order: [&str; 2], first: i32| {
        let schema = Arc::new(parse_message_type(&format!("message rows {{ {} }}", order.concat())).unwrap());
        let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        for column in order {
            if column == a {
                self::column::<Int32Type>(&mut group, &[first], None);
            } else {
                self::column::<Int64Type>(&mut group, &[i64::from(first) + 1], None);
            }
        }
        group.close().unwrap();
        folder.write(name, writer.into_inner().unwrap())
    };
    let paths = [file("x", [a, b], 1), file("y", [b, a], 3)];
    let data = Parquet::open_all(&paths).unwrap();
    let expected = ["I32(1) I64(2)", "I32(3) I64(4)"].map(|text| text.as_bytes().to_vec());
    check_splitter(&data, &expected, bytes);
}

#[test]
fn parquet_columns_say_their_meaning() {
    let folder = Folder::new();
    let schema = "message rows { required int32 a (DATE); required int32 b (DECIMAL(5,2)); required int32 c (UINT_32); \
                  required int32 d; required int32 e (TIME(MILLIS,true)); }";
    let path = other(&folder, "a", schema, 5);
    let fields = Parquet::fields(&Source::file(path).unwrap()).unwrap();
    let meanings: Vec<Meaning> = fields.iter().map(|field| field.meaning).collect();
    let expected = [
        Meaning::Date,
        Meaning::Decimal { scale: 2 },
        Meaning::Unsigned,
        Meaning::Whole,
        Meaning::Other("a time of day"),
    ];
    assert_eq!(meanings, expected);
    assert_eq!(fields[1].name, "b");
}

#[test]
fn a_column_that_is_null_in_one_file_only_is_whole_in_the_other() {
    let folder = Folder::new();
    let paths = [
        other(&folder, "a", "message rows { required int32 n; }", 1),
        folder.write("b", {
            let schema = Arc::new(parse_message_type("message rows { optional int32 n; }").unwrap());
            let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
            let mut group = writer.next_row_group().unwrap();
            column::<Int32Type>(&mut group, &[7], Some(&[0, 1]));
            group.close().unwrap();
            writer.into_inner().unwrap()
        }),
    ];
    let data = Parquet::open_all(&paths).unwrap();
    let expected = ["I32(1)", "Null", "I32(7)"].map(|text| text.as_bytes().to_vec());
    check_splitter(&data, &expected, bytes);
}

#[test]
fn sets_that_do_not_fit_are_refused_by_name() {
    let folder = Folder::new();
    let a = folder.write("a", written(0, &[3], Compression::UNCOMPRESSED));
    let b = other(&folder, "b", "message rows { required int32 id; }", 1);
    let error = Parquet::open_all([&a, &b]).unwrap_err();
    assert!(
        matches!(&error, OpenError::Columns { path, what, .. } if *path == b && what == "1 instead of 7")
    );
    let error = Parquet::open([&a, &b], &["id"]).unwrap_err();
    assert!(matches!(&error, OpenError::Columns { what, .. } if what == "id (INT32) instead of id (INT64)"));
    let c = other(&folder, "c", "message rows { required int32 key; }", 1);
    let error = Parquet::open_all([&b, &c]).unwrap_err();
    assert!(matches!(&error, OpenError::Columns { what, .. } if what == "key (INT32) instead of id (INT32)"));
    let error = Parquet::open([&a, &b], &["flag"]).unwrap_err();
    assert!(matches!(&error, OpenError::NoColumn { name, have, .. } if name == "flag" && have == "id"));

    let list = "message rows { required group l (LIST) { repeated group list { required int32 element; } } }";
    let schema = Arc::new(parse_message_type(list).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut elements = group.next_column().unwrap().unwrap();
    elements.typed::<Int32Type>().write_batch(&[1, 2], Some(&[1, 1]), Some(&[0, 1])).unwrap();
    elements.close().unwrap();
    group.close().unwrap();
    let l = folder.write("l", writer.into_inner().unwrap());
    assert!(matches!(Parquet::open_all([&l]), Err(OpenError::ColumnKind { .. })));
    let error = Parquet::open([&l], &["l"]).unwrap_err();
    assert!(matches!(&error, OpenError::ColumnKind { name, .. } if name == "l"), "{error}");
}

#[test]
fn a_file_that_is_no_parquet_is_refused_by_name() {
    let folder = Folder::new();
    let open = |path: PathBuf| Parquet::open_all([path]).unwrap_err();
    assert!(matches!(open(folder.path().join("no")), OpenError::Io { .. }));
    assert!(matches!(open(folder.write("empty", "")), OpenError::Empty { .. }));
    assert!(matches!(open(folder.write("text", "id,name\n1,2\n")), OpenError::Malformed { .. }));
    let whole = written(0, &[30], Compression::UNCOMPRESSED);
    assert!(matches!(open(folder.write("half", &whole[..whole.len() / 2])), OpenError::Malformed { .. }));
    let no_rows = written(0, &[], Compression::UNCOMPRESSED);
    assert!(matches!(open(folder.write("no rows", no_rows)), OpenError::Empty { .. }));
    let none: [&Path; 0] = [];
    assert!(matches!(Parquet::open_all(none), Err(OpenError::NoFiles { .. })));
}

#[test]
fn a_published_trace_is_read_row_by_row() {
    let name = "bytedance_straggler/trace-ST.parquet";
    let path = std::env::var_os("ANTDT_DATA").map(|folder| PathBuf::from(folder).join(name));
    let Some(path) = path.filter(|path| path.exists()) else {
        println!("skipped: set ANTDT_DATA to a folder that has {name}");
        return;
    };
    let data = Parquet::open([&path], &["dp_rank", "duration"]).unwrap();
    assert_eq!(data.num_samples(), 6_784);
    let rows = data.read(SampleRange { start: 0, end: 6_784 }).unwrap();
    assert_eq!(rows.columns().len(), 2);
    let one = data.read(SampleRange { start: 5_000, end: 5_001 }).unwrap();
    assert_eq!(bytes(one.row(5_000).unwrap()), bytes(rows.row(5_000).unwrap()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_are_answered_with_errors(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        footer: bool, snappy: bool,
    ) {
        let compression = if snappy { Compression::SNAPPY } else { Compression::UNCOMPRESSED };
        let mut bytes = written(0, &[30, 20], compression);
        let len = bytes.len();
        // Half of the time all edits hit the footer, where the decoder is told what to expect.
        let meta = u32::from_le_bytes(bytes[len - 8..len - 4].try_into().unwrap()) as usize + 8;
        let from = if footer { len - meta } else { 0 };
        for (at, to) in edits {
            let at = from + at.index(len - from);
            bytes[at] = to;
        }
        let folder = Folder::new();
        if let Ok(data) = Parquet::open_all([folder.write("a", bytes)]) {
            let count = data.num_samples();
            if let Ok(rows) = data.read(SampleRange { start: 0, end: count }) {
                prop_assert!((0..count).all(|sample| rows.row(sample).unwrap().values().count() == data.columns.len()));
            }
        }
    }
}

/// Appends a field of Thrift's compact form to a struct: `delta` is its number less that of the field before.
fn thrift(out: &mut Vec<u8>, delta: u8, value: i32) {
    const I32: u8 = 5;
    out.push(delta << 4 | I32);
    let mut rest = ((value << 1) ^ (value >> 31)).cast_unsigned();
    while rest > 0x7f {
        out.push((rest & 0x7f) as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A file of one column and one page with a checksum, which the `parquet` crate verifies but does not write; and where the values are.
fn with_checksum(values: &[i32]) -> (Vec<u8>, usize) {
    const STRUCT: u8 = 12;
    let schema = Arc::new(parse_message_type("message rows { required int32 y; }").unwrap());
    // Statistics in the header of the page leave room for a checksum.
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Page)
        .set_write_page_header_statistics(true);
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties.build())).unwrap();
    let mut group = writer.next_row_group().unwrap();
    column::<Int32Type>(&mut group, values, None);
    group.close().unwrap();
    let mut file = writer.into_inner().unwrap();
    let page: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let at = file.windows(page.len()).position(|bytes| bytes == page).unwrap();
    let mut crc = flate2::Crc::new();
    crc.update(&page);
    let (len, count) = (page.len() as i32, values.len() as i32);
    let mut head = Vec::new();
    // A data page: length unpacked and packed, checksum; values, encoded plainly.
    for value in [0, len, len, crc.sum().cast_signed()] {
        thrift(&mut head, 1, value);
    }
    head.push(1 << 4 | STRUCT);
    for value in [count, 0, 3, 3] {
        thrift(&mut head, 1, value);
    }
    head.extend([0, 0]);
    let start = 4 + head.len();
    assert!(start <= at, "the header has room");
    file[4..start].copy_from_slice(&head);
    file[start..start + page.len()].copy_from_slice(&page);
    (file, start)
}

#[test]
fn page_whose_bytes_changed_is_refused_by_its_checksum_with_row_group_and_column() {
    let folder = Folder::new();
    let (file, start) = with_checksum(&(0..100).collect::<Vec<i32>>());
    let all = SampleRange { start: 0, end: 100 };
    let whole = Parquet::open_all([folder.write("whole.parquet", &file)]).unwrap().read(all).unwrap();
    assert_eq!(whole.columns()[0].values(), &Values::I32((0..100).collect()));
    let mut bad = file;
    bad[start + 40..start + 44].copy_from_slice(&[1, 0, 0, 0]);
    let data = Parquet::open_all([folder.write("bad.parquet", &bad)]).unwrap();
    let error = data.read(all).unwrap_err();
    assert!(matches!(error, ReadError::Malformed { .. }), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("bad.parquet") && text.contains("row group 0, column \"y\""), "{text}");
    assert!(text.contains("CRC"), "{text}");
}

#[test]
fn content_checksum_tells_other_counts_and_statistics_apart() {
    let folder = Folder::new();
    let sum = |name: &str, values: &[i32]| {
        let data = Parquet::open_all([folder.write(name, with_checksum(values).0)]).unwrap();
        assert_eq!(data.content_checksum(), None, "the file was not read");
        data.sealed(&IndexPlace::Memory, ColumnCheck::NONE).unwrap().content_checksum().unwrap()
    };
    let values: Vec<i32> = (0..100).collect();
    let first = sum("a.parquet", &values);
    assert_eq!(sum("copy.parquet", &values), first);
    assert_ne!(sum("fewer.parquet", &values[1..]), first);
}

#[test]
fn each_byte_of_a_file_counts_even_if_its_time_is_set_back() {
    let folder = Folder::new();
    // Several times what the 16 pieces cover that tell files apart without reading them.
    let whole = written(0, &[3000, 2000, 2500], Compression::UNCOMPRESSED);
    assert!(whole.len() > 200_000, "{}", whole.len());
    let place = IndexPlace::Folder(folder.path().join("seals"));
    let path = folder.write("a.parquet", &whole);
    let written_at = std::fs::metadata(&path).unwrap().modified().unwrap();
    let sum = || {
        let data = Parquet::open_all([&path]).unwrap().sealed(&place, ColumnCheck::NONE).unwrap();
        data.content_checksum().unwrap()
    };
    let first = sum();
    assert_eq!(sum(), first, "from the seal");
    // Bytes of pages: the footer is at the end.
    for at in (4..whole.len() - 20_000).step_by(9973) {
        let mut edited = whole.clone();
        edited[at] ^= 1;
        std::fs::write(&path, &edited).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(written_at).unwrap();
        assert_ne!(sum(), first, "byte {at}");
    }
}

#[test]
fn value_that_fails_its_check_is_named_with_file_and_row_and_is_looked_for_once() {
    let folder = Folder::new();
    let paths = [
        folder.write("a.parquet", written(0, &[30, 20], Compression::SNAPPY)),
        folder.write("b.parquet", written(50, &[10, 40], Compression::SNAPPY)),
    ];
    let place = IndexPlace::Folder(folder.path().join("seals"));
    let looked_at = std::cell::Cell::new(0);
    let open = |name: &str, bad: i64| {
        looked_at.set(0);
        let check = |column: usize, value: Value<'_>| {
            looked_at.set(looked_at.get() + 1);
            if value == Value::I64(bad) { Err(format!("checked column {column} is {bad}")) } else { Ok(()) }
        };
        let check = ColumnCheck { name, columns: &[1], check: &check };
        Parquet::open(&paths, &["small", "id"]).unwrap().sealed(&place, check).map(drop)
    };
    let error = open("no id is 77", 77).unwrap_err().to_string();
    assert!(error.ends_with("b.parquet row 28: checked column 0 is 77; mend or remove the row"), "{error}");
    open("no id is 1000", 1000).unwrap();
    assert_eq!(looked_at.get(), 100);
    open("no id is 1000", 1000).unwrap();
    assert_eq!(looked_at.get(), 0, "a sealed file is not read again");
    open("no id is 1001", 1001).unwrap();
    assert_eq!(looked_at.get(), 100, "another check reads it again");
}

#[test]
fn each_of_many_row_groups_takes_a_few_bytes_for_each_column() {
    /// What is copied holds no memory beside its own.
    fn has_no_memory_of_its_own<T: Copy>(_: &[T]) {}
    const GROUPS: usize = 20_000;
    let schema =
        Arc::new(parse_message_type("message rows { required int32 x; required int32 y; }").unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::default()).unwrap();
    for row in 0..GROUPS as i32 {
        let mut group = writer.next_row_group().unwrap();
        column::<Int32Type>(&mut group, &[row], None);
        column::<Int32Type>(&mut group, &[-row], None);
        group.close().unwrap();
    }
    let folder = Folder::new();
    let path = folder.write("groups.parquet", writer.into_inner().unwrap());
    let data = Parquet::open_all([path]).unwrap();
    assert_eq!((data.num_samples(), data.groups.len()), (GROUPS as u64, GROUPS));
    let mut held = size_of_val(data.layout.ends()) + data.groups.capacity() * size_of::<Arc<Group>>();
    for group in &data.groups {
        has_no_memory_of_its_own(&group.chunks);
        // With the two counts of an `Arc`.
        held += size_of::<Group>() + 2 * size_of::<usize>() + size_of_val(&*group.chunks);
    }
    assert!(held <= GROUPS * (96 + 2 * 32), "{} bytes for each group of 2 columns", held / GROUPS);
    let last = SampleRange { start: GROUPS as u64 - 1, end: GROUPS as u64 };
    let rows = data.read(last).unwrap();
    assert_eq!(rows.row(last.start).unwrap().value(1), Some(Value::I32(1 - GROUPS as i32)));
}
