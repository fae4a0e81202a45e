use super::*;
use crate::testing::{Folder, check_splitter};

fn shape(record_len_bytes: u64, header_len_bytes: u64) -> RecordShape {
    RecordShape { record_len_bytes: NonZeroU64::new(record_len_bytes).unwrap(), header_len_bytes }
}

#[test]
fn records_of_all_files_are_read_exactly_once() {
    let folder = Folder::new();
    let records: Vec<Vec<u8>> = (0..23_u8).map(|i| vec![i, i ^ 0x5a, 255 - i]).collect();
    let file = |from: usize, to: usize| [b"head".to_vec(), records[from..to].concat()].concat();
    let paths =
        [folder.write("a", file(0, 9)), folder.write("b", file(9, 10)), folder.write("c", file(10, 23))];
    let data = FixedRecords::open(&paths, shape(3, 4)).unwrap();
    check_splitter(&data, &records, <[u8]>::to_vec);
    assert_eq!(data.layout().ends(), [9, 10, 23]);
}

#[test]
fn a_record_that_is_not_whole_is_reported_with_its_place() {
    let folder = Folder::new();
    let path = folder.write("a", [0; 4 + 3 * 2 + 1]);
    let error = FixedRecords::open([&path], shape(3, 4)).unwrap_err();
    assert!(matches!(error, OpenError::Truncated { at: 10, left: 1, record_len_bytes: 3, .. }), "{error}");
}

#[test]
fn a_tail_that_may_be_left_is_in_no_sample_of_its_file() {
    let folder = Folder::new();
    let open = |paths: &[std::path::PathBuf]| {
        let sources = paths.iter().map(Source::file).collect::<Result<_, _>>().unwrap();
        FixedRecords::of(sources, shape(3, 0), Tail::Leave)
    };
    let (a, b) = (folder.write("a", "abcdefgh"), folder.write("b", "ijk"));
    let data = open(&[a.clone(), b]).unwrap();
    check_splitter(&data, &[b"abc".to_vec(), b"def".to_vec(), b"ijk".to_vec()], <[u8]>::to_vec);
    let error = open(&[a, folder.write("short", "ab")]).unwrap_err();
    assert!(matches!(error, OpenError::Empty { .. }), "{error}");
}

#[test]
fn missing_empty_and_odd_files_are_refused() {
    let folder = Folder::new();
    let open = |path: std::path::PathBuf| FixedRecords::open([path], shape(3, 4)).unwrap_err();
    assert!(matches!(open(folder.path().join("no")), OpenError::Io { doing: "open", .. }));
    assert!(matches!(open(folder.path().to_owned()), OpenError::Io { .. }));
    assert!(matches!(open(folder.write("empty", "")), OpenError::Empty { .. }));
    assert!(matches!(open(folder.write("header", "head")), OpenError::Empty { .. }));
    assert!(matches!(open(folder.write("short", "he")), OpenError::Empty { .. }));
    let none: [&Path; 0] = [];
    assert!(matches!(FixedRecords::open(none, shape(3, 4)), Err(OpenError::NoFiles { .. })));
}

#[test]
fn a_file_that_changed_while_the_job_runs_is_refused() {
    let folder = Folder::new();
    let path = folder.write("a", [7; 30]);
    let data = FixedRecords::open([&path], shape(3, 0)).unwrap();
    folder.write("a", [7; 27]);
    let error = data.read(SampleRange { start: 2, end: 5 }).unwrap_err();
    assert!(matches!(error, ReadError::Changed { sample: 2, .. }), "{error}");
    std::fs::remove_file(path).unwrap();
    let error = data.read(SampleRange { start: 2, end: 5 }).unwrap_err();
    assert!(matches!(error, ReadError::Io { sample: 2, .. }), "{error}");
}
