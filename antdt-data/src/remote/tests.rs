use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use antdt_core::SampleRange;
use object_store::memory::InMemory;
use object_store::path::Path as Location;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};

use super::*;
use crate::cache::Cache;
use crate::delimited::{Delimited, Dialect, RowCheck};
use crate::error::ReadError;
use crate::kept::{IndexOrigin, IndexPlace};
use crate::rows::Rows;
use crate::splitter::Splitter;
use crate::testing::{Folder, check_splitter, lines};

/// A store in memory that fails the first requests of each kind, and counts its reads.
#[derive(Debug, Default)]
struct Shaky {
    store: InMemory,
    failures: AtomicUsize,
    reads: AtomicUsize,
}

impl std::fmt::Display for Shaky {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("shaky")
    }
}

#[async_trait::async_trait]
impl ObjectStore for Shaky {
    async fn put_opts(
        &self,
        at: &Location,
        what: PutPayload,
        how: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.store.put_opts(at, what, how).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Location,
        how: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(at, how).await
    }

    async fn get_opts(&self, at: &Location, how: GetOptions) -> object_store::Result<GetResult> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let fails = |left: usize| left.checked_sub(1);
        if self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fails).is_ok() {
            return Err(Error::Generic { store: "shaky", source: "it is\nshaky".into() });
        }
        self.store.get_opts(at, how).await
    }

    fn delete_stream(
        &self,
        places: futures_util::stream::BoxStream<'static, object_store::Result<Location>>,
    ) -> futures_util::stream::BoxStream<'static, object_store::Result<Location>> {
        self.store.delete_stream(places)
    }

    fn list(
        &self,
        below: Option<&Location>,
    ) -> futures_util::stream::BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.store.list(below)
    }

    async fn list_with_delimiter(&self, below: Option<&Location>) -> object_store::Result<ListResult> {
        self.store.list_with_delimiter(below).await
    }

    async fn copy_opts(&self, from: &Location, to: &Location, how: CopyOptions) -> object_store::Result<()> {
        self.store.copy_opts(from, to, how).await
    }
}

const PATIENCE: RequestLimits =
    RequestLimits { request: Duration::from_secs(5), call: Duration::from_secs(20) };

/// A store with these objects.
fn filled(objects: &[(&str, Vec<u8>)]) -> (Arc<Shaky>, RemoteStore) {
    let store = Arc::new(Shaky::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for (name, bytes) in objects {
        runtime.block_on(store.put(&Location::from(*name), bytes.clone().into())).unwrap();
    }
    let shared: Arc<dyn ObjectStore> = Arc::clone(&store) as _;
    (store, RemoteStore::over(shared, PATIENCE).unwrap())
}

fn everything(_: &str) -> bool {
    true
}

#[test]
fn text_in_a_store_is_indexed_by_one_pass_and_read_by_range() {
    let (a, b) = (lines("a", 700), lines("b", 300));
    let (shaky, store) = filled(&[
        ("rows/b.csv", b.join(&b'\n')),
        ("rows/a.csv", a.join(&b'\n')),
        ("rows/README.md", b"words".to_vec()),
    ]);
    let folder = Folder::new();
    let place = IndexPlace::Folder(folder.path().into());
    let open = || {
        let sources = store.open("memory://host/rows/", &|name| name.ends_with(".csv")).unwrap();
        Delimited::of(sources, Dialect::csv(), &place, RowCheck::NONE).unwrap()
    };
    assert_eq!(open().origins().collect::<Vec<_>>(), [&IndexOrigin::Built, &IndexOrigin::Built]);
    let data = open();
    assert_eq!(data.origins().collect::<Vec<_>>(), [&IndexOrigin::Loaded, &IndexOrigin::Loaded]);
    check_splitter(&data, &[a, b].concat(), <[u8]>::to_vec);
    let before = shaky.reads.load(Ordering::Relaxed);
    assert_eq!(data.read(SampleRange { start: 690, end: 710 }).unwrap().range().len(), 20);
    assert_eq!(shaky.reads.load(Ordering::Relaxed) - before, 2, "one request for each object");
}

#[test]
fn a_request_is_repeated_while_the_store_fails_and_given_up_at_its_deadline() {
    let (shaky, store) = filled(&[("a.csv", lines("a", 20).join(&b'\n'))]);
    shaky.failures.store(2, Ordering::Relaxed);
    let source = store.open("memory://host/a.csv", &everything).unwrap().remove(0);
    shaky.failures.store(2, Ordering::Relaxed);
    assert_eq!(source.first(2).unwrap(), b"a0");

    let short = RequestLimits { request: Duration::from_millis(50), call: Duration::from_millis(300) };
    let store = RemoteStore::over(Arc::clone(&shaky) as _, short).unwrap();
    let source = store.open("memory://host/a.csv", &everything).unwrap().remove(0);
    shaky.failures.store(usize::MAX, Ordering::Relaxed);
    let error = source.first(2).unwrap_err().to_string();
    assert!(error.contains("memory://host/a.csv") && error.contains("given up after 300ms"), "{error}");
    assert!(error.contains("shaky") && !error.contains('\n'), "{error}");
}

#[test]
fn an_object_that_changed_is_refused_and_one_that_is_missing_is_not_asked_for_again() {
    let (shaky, store) = filled(&[("a.csv", lines("a", 20).join(&b'\n'))]);
    let sources = store.open("memory://host/a.csv", &everything).unwrap();
    let data = Delimited::of(sources, Dialect::csv(), &IndexPlace::Memory, RowCheck::NONE).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    // Of the same length: only its version tells.
    let other = lines("b", 20).join(&b'\n');
    runtime.block_on(shaky.put(&Location::from("a.csv"), other.into())).unwrap();
    let error = data.read(SampleRange { start: 3, end: 5 }).unwrap_err();
    assert!(matches!(error, ReadError::Changed { sample: 3, .. }), "{error}");

    let before = shaky.reads.load(Ordering::Relaxed);
    let error = store.open("memory://host/none.csv", &everything).unwrap_err();
    assert!(matches!(error, OpenError::Url { .. }), "{error}");
    assert_eq!(shaky.reads.load(Ordering::Relaxed) - before, 1);
    assert!(matches!(store.open("memory://host/no/", &everything), Err(OpenError::NoFiles { .. })));
}

#[test]
fn compressed_objects_are_unpacked_onto_the_disk() {
    let text = lines("a", 300).join(&b'\n');
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &text).unwrap();
    let (_, store) = filled(&[("a.gz", packed.finish().unwrap())]);
    let folder = Folder::new();
    let source = store.open("memory://host/a.gz", &everything).unwrap().remove(0);
    let mut told = 0;
    let copy = source.seekable(&Cache::at(folder.path()), &mut |_| told += 1).unwrap();
    assert!(copy.is_on_disk() && told == 2);
    assert_eq!(copy.first(u64::MAX).unwrap(), text);
}

#[test]
fn urls_are_told_from_paths() {
    for path in ["s3://bucket/a.tsv", "https://host/a", "file:///a", "x-y+z.1://a"] {
        assert_eq!(url_of(Path::new(path)), Some(path));
    }
    for path in ["a.tsv", "/a/b", "a:b", "C:/x", "://a", "1a://b"] {
        assert_eq!(url_of(Path::new(path)), None);
    }
    let error = open_url("ftp://host/a", &everything).unwrap_err().to_string();
    assert!(error.contains("ftp://host/a") && error.contains("s3"), "{error}");
    let folder = Folder::new();
    let path = folder.write("a.csv", "1\n");
    let source = open_url(&format!("file://{}", path.display()), &everything).unwrap().remove(0);
    assert_eq!((source.path(), source.len_bytes()), (path.as_path(), 2));
}
