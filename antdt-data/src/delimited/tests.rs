use std::fs;
use std::fs::File;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::error::IndexError;
use crate::rows::Rows;
use crate::source::Container;
use crate::testing::{Folder, check_splitter, lines};

fn open(path: &Path, dialect: Dialect) -> Result<Delimited, OpenError> {
    Delimited::open([path], dialect, &IndexPlace::Memory)
}

fn origin(data: &Delimited) -> IndexOrigin {
    data.origins().next().unwrap().clone()
}

/// What all rows of a data set are.
fn all(data: &Delimited) -> Result<Vec<Vec<u8>>, ReadError> {
    let end = data.num_samples();
    let rows = data.read(SampleRange { start: 0, end })?;
    Ok((0..end).map(|sample| rows.row(sample).unwrap().to_vec()).collect())
}

#[test]
fn rows_of_all_files_are_read_exactly_once() {
    let folder = Folder::new();
    // Across several marks of the index, ends of lines of either kind, blank lines, and no end at the end.
    let (a, b, c) = (lines("a", 700), lines("b", 1), lines("c", 300));
    let paths = [
        folder.write("a.csv", [a.join(&b"\r\n"[..]), b"\r\n\r\n".to_vec()].concat()),
        folder.write("b.csv", [b"\n\n".to_vec(), b.concat()].concat()),
        folder.write("c.csv", c.join(&b"\n"[..])),
    ];
    for dialect in [Dialect::csv(), Dialect::tsv()] {
        let data = Delimited::open(&paths, dialect, &IndexPlace::Memory).unwrap();
        check_splitter(&data, &[a.clone(), b.clone(), c.clone()].concat(), <[u8]>::to_vec);
        assert_eq!(data.layout().ends(), [700, 701, 1001]);
    }
}

#[test]
fn quoted_rows_may_hold_line_ends() {
    let folder = Folder::new();
    let rows: Vec<Vec<u8>> =
        (0..600).map(|i| format!("{i},\"two\nlines, \"\"{i}\"\"\"").into_bytes()).collect();
    let path = folder.write("a.csv", rows.join(&b'\n'));
    let data = open(&path, Dialect::csv()).unwrap();
    check_splitter(&data, &rows, <[u8]>::to_vec);
    assert_eq!(open(&path, Dialect::csv().with_quote(None)).unwrap().num_samples(), 1200);
}

#[test]
fn a_header_names_columns_and_is_no_sample() {
    let folder = Folder::new();
    let dialect = Dialect::csv().with_header();
    let a = folder.write("a.csv", "\u{feff}id,\"full name\"\n1,x\n2,y\n");
    let b = folder.write("b.csv", "id,\"full name\"\r\n3,z");
    let data = Delimited::open([&a, &b], dialect, &IndexPlace::Beside).unwrap();
    check_splitter(&data, &["1,x", "2,y", "3,z"].map(Into::into), <[u8]>::to_vec);
    assert_eq!((data.column("id"), data.column("full name"), data.column("x")), (Some(0), Some(1), None));
    let again = Delimited::open([&a, &b], dialect, &IndexPlace::Beside).unwrap();
    assert_eq!((origin(&again), again.column("full name")), (IndexOrigin::Loaded, Some(1)));

    let c = folder.write("c.csv", "id,name\n3,z");
    let error = Delimited::open([&a, &c], dialect, &IndexPlace::Memory).unwrap_err();
    assert!(matches!(&error, OpenError::Columns { path, .. } if *path == c), "{error}");
    let d = folder.write("d.csv", "id,name\n");
    assert!(matches!(open(&d, dialect), Err(OpenError::Empty { .. })));
}

#[test]
fn files_with_their_columns_in_another_order_are_read_by_name() {
    let folder = Folder::new();
    let dialect = Dialect::csv().with_header();
    let a = folder.write("a.csv", "id,\"full, name\",x\n1,\"a, \"\"b\"\"\",p\n2,b,\n");
    let b = folder.write("b.csv", "\u{feff}\"x\",\"full, name\",new,id \n,q,n,3\r\n\"r\ns\",t,n,4");
    let c = folder.write("c.csv", "id,\"full, name\",x\n5,u,v\n");
    let open = || Delimited::open([&a, &b, &c], dialect, &IndexPlace::Beside);
    let rows = ["1,\"a, \"\"b\"\"\",p", "2,b,", "3,q,", "4,t,\"r\ns\"", "5,u,v"].map(Into::into);
    check_splitter(&open().unwrap(), &rows, <[u8]>::to_vec);
    let again = open().unwrap();
    check_splitter(&again, &rows, <[u8]>::to_vec);
    assert!(again.origins().all(|origin| *origin == IndexOrigin::Loaded));

    // Rows were checked in the order of the first file; as a first file, it is checked again.
    let turned = Delimited::open([&b, &b], dialect, &IndexPlace::Beside).unwrap();
    let what = "what its rows were checked for";
    assert_eq!(origin(&turned), IndexOrigin::Rebuilt(IndexError::OtherData { what }));

    let checked = |text| {
        let d = folder.write("d.csv", text);
        let sources = [&a, &d].map(|path| Source::file(path).unwrap());
        Delimited::of(sources, dialect, &IndexPlace::Memory, NOT_BAD)
    };
    let error = checked("x,\"full, name\",id\n1,2,bad\n").unwrap_err().to_string();
    let words = "d.csv line 2: column 1 is bad (columns are counted as in the first file)";
    assert!(error.contains(words), "{error}");
    for (text, words) in [
        ("x,id\n1,2\n", "d.csv has other columns than"),
        ("x,id\n1,2\n", "its header \"x,id\" lacks column \"full, name\""),
        ("x,id,x,\"full, name\"\n1,2,3,4\n", "two of its columns are called \"x\""),
        ("x,\"full, name\",id\n1,2,3\n1,2\n", "d.csv line 3: 2 columns, but the header has 3"),
    ] {
        let d = folder.write("d.csv", text);
        let error = Delimited::open([&a, &d], dialect, &IndexPlace::Memory).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn comments_and_lines_of_spaces_are_no_rows() {
    let folder = Folder::new();
    let dialect = Dialect::csv().with_header().with_comment(Some(b'|'));
    let mut rows = lines("a", 600);
    rows[7] = b" indented".to_vec();
    let mut text = b"|about\n  \nname,value\n".to_vec();
    for (number, row) in rows.iter().enumerate() {
        text.extend_from_slice(if number % 50 == 0 { b"|a note\n   \r\n" } else { b"" });
        text.extend_from_slice(row);
        text.push(b'\n');
    }
    let data = open(&folder.write("a.csv", &text), dialect).unwrap();
    check_splitter(&data, &rows, <[u8]>::to_vec);
    assert_eq!(data.column("value"), Some(1));
}

/// Refuses rows that hold the word `bad`.
const NOT_BAD: RowCheck<'static> = RowCheck {
    name: "not bad",
    check: &|dialect, row| match dialect.fields(row).position(|field| *field == *b"bad") {
        Some(column) => Err(format!("column {} is bad", column + 1)),
        None => Ok(()),
    },
};

#[test]
fn rows_are_checked_once_while_they_are_indexed() {
    let folder = Folder::new();
    let place = IndexPlace::Folder(folder.path().join("cache"));
    let path = folder.write("a.csv", "a,\"x\ny\"\n\nb,bad\nc,bad\n");
    let open = |check| Delimited::of([Source::file(&path).unwrap()], Dialect::csv(), &place, check);
    let error = open(NOT_BAD).unwrap_err();
    assert!(matches!(error, OpenError::Row { line: 4, .. }), "{error}");
    assert!(error.to_string().ends_with("a.csv line 4: column 2 is bad; mend or remove the row"), "{error}");
    assert_eq!(origin(&open(RowCheck::NONE).unwrap()), IndexOrigin::Built);
    // The index of unchecked rows is no proof.
    assert!(matches!(open(NOT_BAD), Err(OpenError::Row { line: 4, .. })));
    folder.write("a.csv", "a,x\nb,good\n");
    assert!(matches!(origin(&open(NOT_BAD).unwrap()), IndexOrigin::Rebuilt(IndexError::OtherData { .. })));
    assert_eq!(origin(&open(NOT_BAD).unwrap()), IndexOrigin::Loaded);
    assert!(matches!(
        origin(&open(RowCheck::NONE).unwrap()),
        IndexOrigin::Rebuilt(IndexError::OtherData { what: "what its rows were checked for" })
    ));
}

#[test]
fn a_row_without_end_does_not_fill_the_memory() {
    let folder = Folder::new();
    let path = folder.write("a.csv", [b"a\n\"".to_vec(), b"x\n".repeat(1 << 20)].concat());
    let error = open(&path, Dialect::csv()).unwrap_err();
    assert!(matches!(error, OpenError::RowTooLong { line: 2, .. }), "{error}");
}

#[test]
fn files_that_cannot_be_a_data_set_are_refused_by_name() {
    let folder = Folder::new();
    let error = |path: PathBuf| open(&path, Dialect::csv()).unwrap_err();
    assert!(matches!(error(folder.path().join("no")), OpenError::Io { doing: "open", .. }));
    assert!(matches!(error(folder.path().to_owned()), OpenError::Io { .. }));
    assert!(matches!(error(folder.write("empty", "")), OpenError::Empty { .. }));
    assert!(matches!(error(folder.write("blank", "\n\r\n\n")), OpenError::Empty { .. }));
    let zipped = error(folder.write("a.csv.gz", b"\x1f\x8b\x08rest"));
    assert!(matches!(zipped, OpenError::Compressed { container: Container::Gzip, .. }), "{zipped}");
    let quote = error(folder.write("quote.csv", "a\nb,\"c\nd\n"));
    assert!(matches!(quote, OpenError::Quote { line: 2, .. }), "{quote}");
    let none: [&Path; 0] = [];
    let place = IndexPlace::Memory;
    assert!(matches!(Delimited::open(none, Dialect::csv(), &place), Err(OpenError::NoFiles { .. })));
    let dialect = Dialect::csv().with_delimiter(b'"');
    assert!(matches!(Delimited::open(none, dialect, &place), Err(OpenError::Dialect { .. })));
}

#[test]
fn an_index_is_built_once_and_again_when_the_data_changed() {
    let folder = Folder::new();
    let path = folder.write("a.csv", lines("a", 600).join(&b'\n'));
    let elsewhere = IndexPlace::Folder(folder.path().join("cache/deep"));
    for place in [IndexPlace::Beside, elsewhere] {
        folder.write("a.csv", lines("a", 600).join(&b'\n'));
        let open = |dialect| Delimited::open([&path], dialect, &place).unwrap();
        assert_eq!(origin(&open(Dialect::csv())), IndexOrigin::Built);
        let data = open(Dialect::csv());
        assert_eq!(origin(&data), IndexOrigin::Loaded);
        check_splitter(&data, &lines("a", 600), <[u8]>::to_vec);
        // Another dialect is another index.
        assert!(matches!(origin(&open(Dialect::tsv())), IndexOrigin::Rebuilt(IndexError::OtherData { .. })));

        let longer = lines("longer", 300);
        folder.write("a.csv", longer.join(&b'\n'));
        let data = open(Dialect::tsv());
        let what = "the length of the file";
        assert_eq!(origin(&data), IndexOrigin::Rebuilt(IndexError::OtherData { what }));
        check_splitter(&data, &longer, <[u8]>::to_vec);
    }
    let left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .filter(|name| name.as_encoded_bytes().starts_with(b"."))
        .collect();
    assert!(left.is_empty(), "unfinished files stay behind: {left:?}");
}

#[test]
fn the_index_of_another_file_is_not_used() {
    let folder = Folder::new();
    let a = folder.write("a.csv", lines("a", 600).join(&b'\n'));
    let b = folder.write("b.csv", lines("b", 600).join(&b'\n'));
    assert_eq!(fs::metadata(&a).unwrap().len(), fs::metadata(&b).unwrap().len());
    // As a copy that keeps the times would leave it: only the content tells them apart.
    let time = fs::metadata(&a).unwrap().modified().unwrap();
    File::options().write(true).open(&b).unwrap().set_modified(time).unwrap();
    Delimited::open([&a], Dialect::csv(), &IndexPlace::Beside).unwrap();
    fs::rename(folder.path().join("a.csv.antdt-index"), folder.path().join("b.csv.antdt-index")).unwrap();
    let data = Delimited::open([&b], Dialect::csv(), &IndexPlace::Beside).unwrap();
    let other = IndexError::OtherData { what: "its content" };
    assert_eq!(origin(&data), IndexOrigin::Rebuilt(other));
    check_splitter(&data, &lines("b", 600), <[u8]>::to_vec);
}

#[test]
fn a_place_where_no_index_can_be_is_refused_by_name() {
    let folder = Folder::new();
    let path = folder.write("a.csv", "1\n2\n");
    let place = IndexPlace::Folder(path.clone());
    let error = Delimited::open([&path], Dialect::csv(), &place).unwrap_err();
    assert!(matches!(error, OpenError::IndexPlace { .. }), "{error}");
    folder.write("a.csv.antdt-index/is a folder", "");
    let error = Delimited::open([&path], Dialect::csv(), &IndexPlace::Beside).unwrap_err();
    assert!(matches!(error, OpenError::IndexPlace { .. }), "{error}");
}

#[test]
fn a_file_that_changed_while_the_job_runs_is_refused() {
    let folder = Folder::new();
    let path = folder.write("a.csv", lines("a", 600).join(&b'\n'));
    let data = open(&path, Dialect::csv()).unwrap();
    folder.write("a.csv", lines("a", 599).join(&b'\n'));
    let error = data.read(SampleRange { start: 300, end: 310 }).unwrap_err();
    assert!(matches!(error, ReadError::Changed { sample: 300, .. }), "{error}");
}

#[test]
fn a_change_that_hides_its_time_is_noticed_when_rows_no_longer_fit() {
    let folder = Folder::new();
    let rows = lines("a", 300).join(&b'\n');
    for damage in [b"xxx", b"\n\"x"] {
        let path = folder.write("a.csv", &rows);
        let data = open(&path, Dialect::csv()).unwrap();
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        // Fewer line ends in the first rows, or a quote that nothing closes in the last.
        let mut other = rows.clone();
        if damage == b"xxx" {
            other[..200].fill(b'x');
        } else {
            let end = other.len();
            other[end - 3..].copy_from_slice(damage);
        }
        folder.write("a.csv", &other);
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        let error = data.read(SampleRange { start: 0, end: 300 }).unwrap_err();
        assert!(matches!(error, ReadError::Changed { sample: 0, .. }), "{error}");
    }
}

#[test]
fn a_file_that_is_refused_leaves_no_index() {
    let folder = Folder::new();
    let path = folder.write("blank.csv", "\n\n");
    assert!(Delimited::open([&path], Dialect::csv(), &IndexPlace::Beside).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn published_data_is_read_row_by_row() {
    let root = PathBuf::from(std::env::var_os("ANTDT_DATA").unwrap_or_default());
    let cases = [
        ("criteo_1tb_day11_3k/day_11_first_3k_rows_original.tsv.gz", Dialect::tsv(), 3_000, 40),
        ("uci_adult/adult.data.gz", Dialect::tsv().with_delimiter(b' '), 32_561, 15),
    ];
    for (name, dialect, count, columns) in cases {
        let path = root.join(name);
        let Ok(packed) = File::open(&path) else {
            println!("skipped: set ANTDT_DATA to a folder that has {name}");
            continue;
        };
        assert!(matches!(
            open(&path, dialect),
            Err(OpenError::Compressed { container: Container::Gzip, .. })
        ));
        let mut text = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::MultiGzDecoder::new(packed), &mut text).unwrap();
        let expected: Vec<Vec<u8>> =
            text.split(|byte| *byte == b'\n').filter(|row| !row.is_empty()).map(<[u8]>::to_vec).collect();
        let folder = Folder::new();
        let data = open(&folder.write("text", &text), dialect).unwrap();
        assert_eq!(data.num_samples(), count);
        assert_eq!(all(&data).unwrap(), expected);
        let check = data.read(SampleRange { start: 1000, end: 1500 }).unwrap();
        for sample in 1000..1500 {
            let row = check.row(sample).unwrap();
            assert_eq!(row, expected[sample as usize]);
            assert_eq!(dialect.fields(row).count(), columns, "sample {sample}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_data_set_or_an_error(bytes in prop::collection::vec(prop_oneof![
        Just(b'\n'), Just(b'"'), Just(b','), Just(b'\r'), any::<u8>()
    ], 0..1500)) {
        let folder = Folder::new();
        let path = folder.write("a", &bytes);
        let plain = Dialect::tsv();
        if let Ok(data) = open(&path, plain) {
            let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
            let expected: Vec<Vec<u8>> = text
                .split(|byte| *byte == b'\n')
                .map(|row| row.strip_suffix(b"\r").unwrap_or(row).to_vec())
                .filter(|row| row.iter().any(|byte| *byte != b' '))
                .collect();
            prop_assert_eq!(all(&data).unwrap(), expected);
        }
        if let Ok(data) = open(&path, Dialect::csv()) {
            let rows = all(&data).unwrap();
            let fields = rows.iter().flat_map(|row| Dialect::csv().fields(row)).count();
            prop_assert!(fields >= rows.len());
            // Any row is found alone as it is found among all.
            let last = data.num_samples() - 1;
            let alone = data.read(SampleRange { start: last, end: last + 1 }).unwrap();
            prop_assert_eq!(alone.row(last), rows.last().map(Vec::as_slice));
        }
    }

    /// Headers and rows of few bytes, so that many files have the same columns in another order.
    #[test]
    fn any_two_files_with_headers_are_a_data_set_or_an_error(files in prop::array::uniform2(prop::collection::vec(
        prop_oneof![3 => Just(b','), 2 => Just(b'\n'), 1 => Just(b'"'), 3 => b'a'..b'd', 1 => any::<u8>()], 0..40
    ))) {
        let folder = Folder::new();
        let paths = [folder.write("a", &files[0]), folder.write("b", &files[1])];
        let dialect = Dialect::csv().with_header();
        match Delimited::open(&paths, dialect, &IndexPlace::Memory) {
            Ok(data) => {
                let rows = all(&data).unwrap();
                let columns = dialect.fields(data.header.as_ref().unwrap()).count();
                if data.files[1].order.is_some() {
                    let from = usize::try_from(data.layout.ends()[0]).unwrap();
                    prop_assert!(rows[from..].iter().all(|row| dialect.fields(row).count() == columns));
                }
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }

    #[test]
    fn a_damaged_index_costs_time_and_nothing_else(at in 0_usize..200, to: u8, cut in 0_usize..200, shorten: bool) {
        let folder = Folder::new();
        let rows = lines("a", 600);
        let path = folder.write("a.csv", rows.join(&b'\n'));
        Delimited::open([&path], Dialect::csv(), &IndexPlace::Beside).unwrap();
        let kept = folder.path().join("a.csv.antdt-index");
        let whole = fs::read(&kept).unwrap();
        let mut damaged = whole.clone();
        let len = damaged.len();
        damaged[at % len] = to;
        if shorten {
            damaged.truncate(cut % len);
        }
        fs::write(&kept, &damaged).unwrap();
        let data = Delimited::open([&path], Dialect::csv(), &IndexPlace::Beside).unwrap();
        prop_assert_eq!(origin(&data) == IndexOrigin::Loaded, damaged == whole);
        prop_assert_eq!(all(&data).unwrap(), rows);
        prop_assert_eq!(fs::read(&kept).unwrap(), whole);
    }
}

#[test]
fn content_checksum_covers_every_byte_wherever_the_file_is() {
    let folder = Folder::new();
    let text = lines("a", 20_000).join(&b'\n');
    assert!(text.len() > 16 * 4096);
    let sum = |name: &str, text: &[u8], place: &IndexPlace| {
        Delimited::open([folder.write(name, text)], Dialect::csv(), place).unwrap().content_checksum()
    };
    let whole = sum("a.csv", &text, &IndexPlace::Beside);
    // As it is in the index that is loaded, too.
    assert_eq!(open(&folder.path().join("a.csv"), Dialect::csv()).unwrap().content_checksum(), whole);
    let loaded = Delimited::open([folder.path().join("a.csv")], Dialect::csv(), &IndexPlace::Beside).unwrap();
    assert_eq!((origin(&loaded), loaded.content_checksum()), (IndexOrigin::Loaded, whole));
    for at in (0..text.len()).step_by(9_973) {
        let mut edited = text.clone();
        edited[at] ^= 1;
        assert_ne!(sum("b.csv", &edited, &IndexPlace::Memory), whole, "byte {at}");
    }
}
