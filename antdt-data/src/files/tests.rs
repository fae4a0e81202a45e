use super::*;
use crate::testing::{Folder, check_splitter};

#[test]
fn every_file_of_a_folder_is_a_sample_in_the_order_of_the_paths() {
    let folder = Folder::new();
    for name in ["cat/2.jpg", "cat/10.jpg", "dog/1.jpg", "dog/deep/0.jpg", ".hidden.jpg", "notes.txt"] {
        folder.write(name, name);
    }
    let data = Files::list(folder.path(), |path| path.extension().is_some_and(|kind| kind == "jpg")).unwrap();
    let names = ["cat/10.jpg", "cat/2.jpg", "dog/1.jpg", "dog/deep/0.jpg"];
    check_splitter(&data, &names.map(|name| name.as_bytes().to_vec()), <[u8]>::to_vec);
    assert!(data.path(2).unwrap().ends_with("dog/1.jpg"));
    assert_eq!(data.path(4), None);
}

#[test]
fn the_numbers_do_not_depend_on_how_the_folder_is_stored() {
    let folder = Folder::new();
    let names: Vec<String> = (0..60).map(|i| format!("{:02}", i * 37 % 60)).collect();
    for name in &names {
        folder.write(name, name);
    }
    let data = Files::list(folder.path(), |_| true).unwrap();
    check_splitter(
        &data,
        &(0..60).map(|i| format!("{i:02}").into_bytes()).collect::<Vec<_>>(),
        <[u8]>::to_vec,
    );
}

#[test]
fn a_manifest_names_files_in_its_own_order() {
    let folder = Folder::new();
    folder.write("b", "second");
    let a = folder.write("a", "first");
    let manifest = folder.write("list.txt", format!("b\r\n\n{}\nb", a.display()));
    let data = Files::manifest(&manifest).unwrap();
    check_splitter(&data, &["second", "first", "second"].map(Into::into), <[u8]>::to_vec);
}

#[test]
fn lists_without_files_are_refused() {
    let folder = Folder::new();
    assert!(matches!(Files::new(Vec::new()), Err(OpenError::NoFiles { .. })));
    assert!(matches!(Files::list(folder.path(), |_| true), Err(OpenError::NoFiles { .. })));
    assert!(matches!(
        Files::list(folder.path().join("no"), |_| true),
        Err(OpenError::Io { doing: "list", .. })
    ));
    assert!(matches!(Files::manifest(folder.path().join("no")), Err(OpenError::Io { doing: "read", .. })));
    let blank = folder.write("blank", "\n \n");
    assert!(matches!(Files::manifest(blank), Err(OpenError::NoFiles { .. })));
    let binary = folder.write("binary", b"\xff\xfe");
    assert!(matches!(Files::manifest(binary), Err(OpenError::Malformed { .. })));
}

#[test]
fn a_missing_or_empty_file_is_the_fault_of_its_sample() {
    let folder = Folder::new();
    let paths = vec![folder.write("a", "1"), folder.path().join("gone"), folder.write("empty", "")];
    let data = Files::new(paths).unwrap();
    let all = data.read(SampleRange { start: 0, end: 3 }).unwrap_err();
    assert!(matches!(&all, ReadError::Io { sample: 1, .. }), "{all}");
    let last = data.read(SampleRange { start: 2, end: 3 }).unwrap_err();
    assert!(matches!(&last, ReadError::Empty { sample: 2, .. }), "{last}");
    assert_eq!((all.sample(), last.sample()), (1, 2));
}

#[test]
fn a_fingerprint_covers_paths_below_the_root_and_content() {
    let (folder, moved) = (Folder::new(), Folder::new());
    let print = |root: &Folder, files: &[(&str, &[u8])]| {
        let paths = files.iter().map(|(name, bytes)| root.write(name, bytes)).collect();
        Files::new(paths).unwrap().fingerprint(root.path()).unwrap()
    };
    let all: [&[(&str, &[u8])]; 5] = [
        &[("a", b"12"), ("b", b"")],
        &[("a", b"13"), ("b", b"")],
        &[("a", b"12"), ("c", b"")],
        &[("b", b""), ("a", b"12")],
        &[("a", b"12")],
    ];
    let prints: Vec<String> = all.iter().map(|files| print(&folder, files)).collect();
    for (at, one) in prints.iter().enumerate() {
        assert!(!prints[..at].contains(one), "{prints:?}");
    }
    assert_eq!(print(&moved, all[0]), prints[0]);
}
