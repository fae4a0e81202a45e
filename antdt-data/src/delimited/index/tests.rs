use proptest::prelude::*;

use super::*;
use crate::testing::{Folder, lines};

const FORM: RowForm<'static> = RowForm { dialect: Dialect::csv(), check: RowCheck::NONE, order: None };

fn build(folder: &Folder, rows: usize) -> RowIndex {
    let path = folder.write("a.csv", lines("a", rows).join(&b'\n'));
    let source = Source::file(&path).unwrap();
    let fingerprint = Fingerprint::of(&source).unwrap();
    RowIndex::build(&source, &FORM, fingerprint).unwrap()
}

/// Its checksum is made to fit.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let body = bytes.len() - 4;
    let sum = crc32c(&bytes[..body]).to_le_bytes();
    bytes[body..].copy_from_slice(&sum);
    bytes
}

#[test]
fn an_index_comes_back_from_its_bytes() {
    let index = build(&Folder::new(), 1000);
    assert_eq!((index.num_rows, index.marks.len()), (1000, 4));
    assert_eq!(RowIndex::from_bytes(&index.to_bytes()).unwrap(), index);
}

#[test]
fn other_versions_and_other_files_are_told_apart() {
    let mut bytes = build(&Folder::new(), 10).to_bytes();
    bytes[8] = 9;
    assert_eq!(RowIndex::from_bytes(&sealed(bytes)), Err(IndexError::Version { found: 9, known: 6 }));
    for bytes in [&b""[..], b"id,name\n1,x\n", b"ANTDTROW", b"ANTDTROW\x06\0\0\0"] {
        assert!(matches!(RowIndex::from_bytes(bytes), Err(IndexError::Malformed { .. })), "{bytes:?}");
    }
}

#[test]
fn a_window_begins_at_a_mark_and_holds_the_rows() {
    let index = build(&Folder::new(), 1000);
    let len_bytes = index.fingerprint.stamp.len_bytes;
    let window = |start, end| index.window(start, end);
    assert_eq!(window(0, 1000), Window { at: 0, len_bytes, skip: 0 });
    let marks = &index.marks;
    assert_eq!(window(300, 512), Window { at: marks[1], len_bytes: marks[2] - marks[1], skip: 44 });
    assert_eq!(window(768, 769), Window { at: marks[3], len_bytes: len_bytes - marks[3], skip: 0 });
}

#[test]
fn the_number_of_marks_has_a_bound_and_rows_are_found_all_the_same() {
    let folder = Folder::new();
    let path = folder.write("a.csv", lines("a", 10_000).join(&b'\n'));
    let source = Source::file(&path).unwrap();
    let fingerprint = Fingerprint::of(&source).unwrap();
    let build = |most| RowIndex::build_within(most, &source, &FORM, fingerprint).unwrap();
    let (all, few) = (build(MARKS_MAX), build(4));
    assert_eq!((all.marks.len(), all.stride), (40, 256));
    assert_eq!((few.marks.len(), few.stride, few.num_rows), (3, 4096, 10_000));
    assert_eq!(few.marks, [all.marks[0], all.marks[16], all.marks[32]]);
    assert_eq!(few.window(5000, 5001).skip, 5000 - 4096);
    assert!(few.is_sound());
}

proptest! {
    /// As from a program with a defect: the checksum fits, the numbers do not.
    #[test]
    fn no_numbers_in_an_index_lead_astray(
        which in 0_usize..8,
        to in prop_oneof![any::<u64>(), 0_u64..2000, Just(u64::MAX)],
    ) {
        let folder = Folder::new();
        let mut index = build(&folder, 1000);
        let last = index.marks.len() - 1;
        let numbers = [
            &mut index.fingerprint.stamp.len_bytes,
            &mut index.num_rows,
            &mut index.stride,
        ];
        match numbers.into_iter().nth(which) {
            Some(number) => *number = to,
            None => index.marks[(which - 3).min(last)] = to,
        }
        if let Ok(index) = RowIndex::from_bytes(&index.to_bytes()) {
            let len_bytes = index.fingerprint.stamp.len_bytes;
            for (start, end) in [(0, index.num_rows), (index.num_rows / 2, index.num_rows)] {
                let window = index.window(start, end);
                prop_assert!(window.at <= len_bytes && window.len_bytes <= len_bytes - window.at);
            }
        }
    }

    /// Bytes that no index has, with a checksum that fits.
    #[test]
    fn no_bytes_make_an_index_panic(at in 12_usize..100, to: u8, cut in 0_usize..40) {
        let mut bytes = build(&Folder::new(), 1000).to_bytes();
        let at = at.min(bytes.len() - 5);
        bytes[at] = to;
        bytes.truncate((bytes.len() - cut).max(16));
        let _ = RowIndex::from_bytes(&sealed(bytes));
    }
}
