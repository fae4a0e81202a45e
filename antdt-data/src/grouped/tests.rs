use super::*;
use crate::delimited::{Dialect, IndexPlace};
use crate::testing::{Folder, check_splitter};

/// A row per sample: its task and its number.
fn rows(tasks: &[(&str, usize)]) -> Vec<Vec<u8>> {
    let row = |(task, count): &(&str, usize)| {
        let task = (*task).to_owned();
        (0..*count).map(move |i| format!("{i},{task}").into_bytes()).collect::<Vec<_>>()
    };
    tasks.iter().flat_map(row).collect()
}

fn open(folder: &Folder, rows: &[Vec<u8>]) -> Delimited {
    let path = folder.write("tasks.csv", rows.join(&b'\n'));
    Delimited::open([path], Dialect::csv(), &IndexPlace::Memory).unwrap()
}

#[test]
fn shards_hold_whole_groups() {
    let folder = Folder::new();
    let rows = rows(&[("a", 3), ("b", 1), ("\"c,d\"", 20), ("e", 4), ("f", 4)]);
    let data = Grouped::by_column(open(&folder, &rows), 1).unwrap();
    check_splitter(&data, &rows, <[u8]>::to_vec);
    assert_eq!(data.ends(), [3, 4, 24, 28, 32]);
    assert_eq!(data.cuts(NonZeroU64::new(8).unwrap()).ends(), [4, 24, 32]);
    assert_eq!(data.group_of(10), Some(SampleRange { start: 4, end: 24 }));
    assert_eq!((data.group_of(0).unwrap().end, data.group_of(32)), (3, None));
}

#[test]
fn a_key_that_comes_back_is_refused_with_its_place() {
    let folder = Folder::new();
    let rows = rows(&[("a", 3), ("b", 1), ("a", 1)]);
    let error = Grouped::by_column(open(&folder, &rows), 1).unwrap_err();
    assert!(matches!(&error, GroupError::Scattered { sample: 4, ended: 3, key } if key == "a"), "{error}");
}

#[test]
fn a_row_without_a_key_is_refused() {
    let folder = Folder::new();
    let error = Grouped::by_column(open(&folder, &[b"0,a".to_vec(), b"1".to_vec()]), 1).unwrap_err();
    assert!(matches!(error, GroupError::NoKey { sample: 1, column: 1 }), "{error}");
}

#[test]
fn ends_must_partition_the_samples() {
    let folder = Folder::new();
    let rows = rows(&[("a", 5)]);
    let data = open(&folder, &rows);
    for (ends, index) in [(vec![], 0), (vec![2], 0), (vec![2, 2, 5], 1), (vec![0, 5], 0), (vec![3, 6], 1)] {
        let error = Grouped::by_ends(&data, ends.clone()).unwrap_err();
        assert!(matches!(error, GroupError::Ends { index: at, .. } if at == index), "{ends:?}: {error}");
    }
    check_splitter(&Grouped::by_ends(&data, vec![2, 5]).unwrap(), &rows, <[u8]>::to_vec);
}
