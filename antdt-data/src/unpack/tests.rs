use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;
use crate::delimited::{Delimited, Dialect, RowCheck};
use crate::kept::IndexPlace;
use crate::testing::Folder;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(text).unwrap();
    packed.finish().unwrap()
}

/// Opens the file, and says what was announced.
fn open(path: &Path, cache: &Cache) -> (Result<Vec<u8>, OpenError>, Vec<String>) {
    let mut told = Vec::new();
    let copy = Source::file(path)
        .and_then(|source| source.seekable(cache, &mut |notice| told.push(notice.to_string())))
        .and_then(|copy| copy.first(u64::MAX));
    (copy, told)
}

#[test]
fn compressed_text_is_unpacked_once_and_again_when_it_changed() {
    let (folder, kept) = (Folder::new(), Folder::new());
    let cache = Cache::at(kept.path().join("deep"));
    // Two members, as `cat a.gz b.gz` makes them.
    let path = folder.write("a.gz", [gzip(b"one\n"), gzip(b"two\n"), vec![0; 9999]].concat());
    let (text, told) = open(&path, &cache);
    assert_eq!(text.unwrap(), b"one\ntwo\n");
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[0].contains("a.gz") && told[0].contains("gzip") && told[0].contains("deep"), "{told:?}");
    let (text, told) = open(&path, &cache);
    assert_eq!((text.unwrap(), told.len()), (b"one\ntwo\n".to_vec(), 0));

    // As a process leaves it that is killed half-way.
    let stale = fs::read_dir(cache.folder()).unwrap().map(|entry| entry.unwrap().path());
    let stale = stale.into_iter().find(|path| path.extension().is_some_and(|end| end == "copy")).unwrap();
    fs::write(stale.with_extension("part"), "half").unwrap();
    folder.write("a.gz", gzip(b"three\n"));
    assert_eq!(open(&path, &cache).0.unwrap(), b"three\n");
    let names: Vec<_> =
        fs::read_dir(cache.folder()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let left = names.iter().filter(|name| !name.to_string_lossy().ends_with(".lock")).count();
    assert_eq!(left, 2, "the copy and its seal: {names:?}");
}

#[test]
fn a_copy_that_was_cut_or_written_to_is_made_again() {
    let (folder, kept) = (Folder::new(), Folder::new());
    let cache = Cache::at(kept.path());
    let text = b"a\tb\n".repeat(1000);
    let path = folder.write("a.gz", gzip(&text));
    let source = Source::file(&path).unwrap().seekable(&cache, &mut |_| ()).unwrap();
    let (copy, seal) = (source.stored_at().to_owned(), seal_of(source.stored_at()));
    let cut = || File::options().write(true).open(&copy).unwrap().set_len(2000).unwrap();
    let write = || fs::write(&copy, b"c\td\n".repeat(1000)).unwrap();
    let unseal = || fs::remove_file(&seal).unwrap();
    let damage_seal = || fs::write(&seal, "0 0\n").unwrap();
    for harm in [&cut as &dyn Fn(), &write, &unseal, &damage_seal] {
        harm();
        let (read, told) = open(&path, &cache);
        assert_eq!((read.unwrap() == text, told.len()), (true, 2), "{told:?}");
        assert_eq!(open(&path, &cache).1.len(), 0, "once");
    }
}

#[cfg(feature = "zstd")]
#[test]
fn zstandard_of_several_frames_is_unpacked_too() {
    let (folder, kept) = (Folder::new(), Folder::new());
    let frames = [zstd::encode_all(&b"one\n"[..], 0).unwrap(), zstd::encode_all(&b"two\n"[..], 0).unwrap()];
    let path = folder.write("a.zst", frames.concat());
    assert_eq!(open(&path, &Cache::at(kept.path())).0.unwrap(), b"one\ntwo\n");
}

#[test]
fn plain_text_stays_where_it_is() {
    let (folder, kept) = (Folder::new(), Folder::new());
    let path = folder.write("a.tsv", "a\tb\n");
    let (text, told) = open(&path, &Cache::at(kept.path().join("none")));
    assert_eq!((text.unwrap(), told.len()), (b"a\tb\n".to_vec(), 0));
    assert!(!kept.path().join("none").exists());
}

#[test]
fn damage_unknown_forms_and_folders_that_cannot_be_are_refused_and_leave_nothing() {
    let (folder, kept) = (Folder::new(), Folder::new());
    let cache = Cache::at(kept.path());
    let whole = gzip(&b"some text that is long enough\n".repeat(100));
    let cut = folder.write("cut.gz", &whole[..whole.len() / 2]);
    let error = open(&cut, &cache).0.unwrap_err();
    let half = whole.len() as u64 / 2;
    assert!(matches!(error, OpenError::CutOff { len_bytes, .. } if len_bytes == half), "{error}");
    assert!(error.to_string().contains("cut.gz: truncated: the file ends after"), "{error}");
    let left: Vec<_> = fs::read_dir(kept.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name.to_string_lossy().ends_with(".lock")), "{left:?}");
    let bzip = folder.write("a.bz2", b"BZh91AY");
    assert!(matches!(open(&bzip, &cache).0, Err(OpenError::Compressed { .. })));
    let error = open(&folder.write("a.gz", gzip(b"x")), &Cache::at(bzip.join("below"))).0.unwrap_err();
    assert!(
        matches!(error, OpenError::Copy { .. }) && error.to_string().contains(Cache::VARIABLE),
        "{error}"
    );
}

#[test]
fn a_full_disk_is_an_error_that_names_the_folder() {
    let folder = Folder::new();
    let path = folder.write("a.gz", gzip(&b"text\n".repeat(1000)));
    let source = Source::file(path).unwrap();
    // The device that is always full stands for a disk that is.
    let full = Path::new("/dev/full");
    if !full.exists() {
        println!("skipped, not here: there is no /dev/full");
        return;
    }
    let error = source.copy(Container::Gzip, full, u64::MAX).unwrap_err().to_string();
    assert!(error.contains("a.gz") && error.contains("/dev") && error.contains("No space left"), "{error}");
}

#[test]
fn errors_of_the_content_name_the_file_that_was_copied_and_errors_of_the_disk_the_copy() {
    let (folder, kept) = (Folder::new(), Folder::new());
    let cache = Cache::at(kept.path());
    let unpacked = |path: &Path| Source::file(path).unwrap().seekable(&cache, &mut |_| ()).unwrap();
    // A copy that is made, and one that is found.
    for text in [&b"a\nb,\"c\nd\n"[..], b"a\nb,\"c\nd\n", b"\n\n"] {
        let path = folder.write("a.csv.gz", gzip(text));
        let source = unpacked(&path);
        assert_eq!(source.path(), path);
        let (dialect, place) = (Dialect::csv(), IndexPlace::Beside);
        let error = Delimited::of([source], dialect, &place, RowCheck::NONE).unwrap_err().to_string();
        let (named, copy) = (path.display().to_string(), kept.path().display().to_string());
        assert!(error.contains(&named) && !error.contains(&copy), "{error}");
    }
    // The index lies beside the copy, which may be all that can be written.
    let path = folder.write("a.csv.gz", gzip(b"a\nb\n"));
    let source = unpacked(&path);
    Delimited::of([source.clone()], Dialect::csv(), &IndexPlace::Beside, RowCheck::NONE).unwrap();
    let beside = |folder: &Path| {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".antdt-index")).count()
    };
    assert_eq!((beside(folder.path()), beside(kept.path())), (0, 1));
    fs::remove_file(source.stored_at()).unwrap();
    let error = source.first(1).unwrap_err().to_string();
    assert!(error.contains(&kept.path().display().to_string()), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn damaged_gzip_is_its_text_or_an_error_and_leaves_nothing(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
        shorten: bool,
        noise: bool,
    ) {
        let text: Vec<u8> = (0..500_u32).flat_map(|i| format!("{i},{}\n", i * i).into_bytes()).collect();
        let mut packed = gzip(&text);
        let len = packed.len();
        for (at, to) in edits {
            packed[at.index(len)] = to;
        }
        if noise {
            // A stream of anything behind a header that says gzip.
            packed.drain(10..10 + len / 2);
        }
        if shorten {
            packed.truncate(cut.index(packed.len()));
        }
        let (folder, kept) = (Folder::new(), Folder::new());
        let path = folder.write("a.gz", &packed);
        let is_gzip = Source::file(&path).unwrap().container().unwrap() == Container::Gzip;
        if let Ok(read) = open(&path, &Cache::at(kept.path())).0 {
            prop_assert_eq!(&read, if is_gzip { &text } else { &packed });
        }
        let names = fs::read_dir(kept.path()).unwrap().map(|entry| entry.unwrap().file_name());
        prop_assert!(names.into_iter().all(|name| !name.to_string_lossy().ends_with("part")));
    }
}

#[test]
fn copy_of_a_file_that_unpacks_to_too_much_is_given_up() {
    let (folder, kept) = (Folder::new(), Folder::new());
    let source = Source::file(folder.write("bomb.gz", gzip(&vec![b'\n'; 3 << 20]))).unwrap();
    let part = kept.path().join("bomb.part");
    assert_eq!(source.copy(Container::Gzip, &part, 3 << 20).unwrap(), 3 << 20);
    let error = source.copy(Container::Gzip, &part, (3 << 20) - 1).unwrap_err().to_string();
    assert!(error.contains("bomb.gz") && error.ends_with("raise --unpack-limit"), "{error}");
    // What may be: a multiple of the length, and what a short file may hold in any case.
    let cache = Cache::at(kept.path()).with_unpack_limit(3);
    let limits = [1, 1 << 30, u64::MAX].map(|len_bytes| cache.unpack_limit_bytes(len_bytes));
    assert_eq!(limits, [1 << 30, 3 << 30, u64::MAX]);
}
