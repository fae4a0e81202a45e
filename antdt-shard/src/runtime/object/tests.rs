use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use antdt_core::{DetRng, Epoch, Generation};
use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use object_store::local::LocalFileSystem;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::journal::urgent;
use crate::ledger::LedgerSnapshot;
use crate::testing::records::History;
use crate::testing::store::{check_cuts, check_store, loaded, suite_spec};

const PREFIX: &str = "jobs/7";
/// Small enough that each history is compacted many times.
const SMALL: u64 = 2_000;

fn options(sync: SyncPolicy, segment_bytes: u64) -> ObjectLogOptions {
    ObjectLogOptions { sync, segment_bytes, patience: ObjectTimeouts::default() }
}

const EACH: ObjectLogOptions = ObjectLogOptions {
    sync: SyncPolicy::Each,
    segment_bytes: SMALL,
    patience: ObjectTimeouts { request: Duration::from_secs(10), call: Duration::from_secs(30) },
};

fn started(generation: u64) -> Record {
    Record::GenerationStarted { generation: Generation(generation) }
}

fn opened() -> Record {
    Record::EpochOpened { share: 0, epoch: Epoch(0) }
}

fn acked(offset: u64) -> Record {
    Record::Acked { epoch: Epoch(0), position: 0, offset }
}

fn fold<'a>(records: impl IntoIterator<Item = &'a Record>) -> LedgerSnapshot {
    let mut recovery = Recovery::new(suite_spec()).unwrap();
    for record in records {
        recovery.apply(record).unwrap();
    }
    recovery.snapshot()
}

/// The state after each of the groups, the empty one first.
fn states(groups: &[Vec<Record>]) -> Vec<LedgerSnapshot> {
    let mut recovery = Recovery::new(suite_spec()).unwrap();
    let mut states = vec![recovery.snapshot()];
    for group in groups {
        group.iter().for_each(|record| recovery.apply(record).unwrap());
        states.push(recovery.snapshot());
    }
    states
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    /// The store fails before it does anything.
    Failed,
    /// It is done, and its answer is lost.
    Unanswered,
    /// It is not done, and never answered.
    Lost,
    /// The object is not there, although it was listed.
    Gone,
}

/// Decides the fate of a request: its name, and what it is about.
type Hand = Box<dyn FnMut(&'static str, &str) -> Fate + Send>;

/// A store in memory whose requests meet with a fate. Clones share the memory and not the fate.
struct Fated {
    inner: Arc<InMemory>,
    hand: Mutex<Hand>,
    puts: AtomicU64,
}

impl Fated {
    fn new(hand: impl FnMut(&'static str, &str) -> Fate + Send + 'static) -> Arc<Self> {
        Self::over(&Arc::default(), hand)
    }

    fn over(
        inner: &Arc<InMemory>,
        hand: impl FnMut(&'static str, &str) -> Fate + Send + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { inner: inner.clone(), hand: Mutex::new(Box::new(hand)), puts: AtomicU64::new(0) })
    }

    fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    async fn meet<A>(
        &self,
        what: &'static str,
        about: &str,
        request: impl Future<Output = object_store::Result<A>> + Send,
    ) -> object_store::Result<A> {
        let failed = || object_store::Error::Generic { store: "fated", source: "as decided".into() };
        let fate = (self.hand.lock().unwrap())(what, about);
        match fate {
            Fate::Done => request.await,
            Fate::Failed => Err(failed()),
            Fate::Unanswered => request.await.and_then(|_| Err(failed())),
            Fate::Lost => std::future::pending().await,
            Fate::Gone => {
                Err(object_store::Error::NotFound { path: about.into(), source: "as decided".into() })
            }
        }
    }
}

impl fmt::Debug for Fated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fated")
    }
}

impl fmt::Display for Fated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fated")
    }
}

#[async_trait]
impl ObjectStore for Fated {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        let put = self.inner.put_opts(location, payload, options);
        let put = self.meet("put", location.as_ref(), put).await;
        self.puts.fetch_add(u64::from(put.is_ok()), Ordering::Relaxed);
        put
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.meet("get", location.as_ref(), self.inner.get_opts(location, options)).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        match (self.hand.lock().unwrap())("delete", "") {
            Fate::Done => self.inner.delete_stream(locations),
            Fate::Lost => stream::pending().boxed(),
            // One is removed, and then it fails.
            _ => {
                let failed = object_store::Error::Generic { store: "fated", source: "as decided".into() };
                let one = self.inner.delete_stream(locations.take(1).boxed());
                one.chain(stream::iter([Err(failed)])).boxed()
            }
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        match (self.hand.lock().unwrap())("list", "") {
            Fate::Done => self.inner.list(prefix),
            Fate::Lost => stream::pending().boxed(),
            _ => {
                let failed = object_store::Error::Generic { store: "fated", source: "as decided".into() };
                self.inner.list(prefix).take(1).chain(stream::iter([Err(failed)])).boxed()
            }
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> object_store::Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// A log whose requests are made by a task of the test, on the clock of the test.
struct OnTask {
    log: ObjectLog,
    task: JoinHandle<()>,
}

impl OnTask {
    fn open(store: Arc<dyn ObjectStore>, options: ObjectLogOptions) -> Self {
        let log = new_log(store, PREFIX, suite_spec(), options).unwrap();
        let (jobs, inbox) = mpsc::unbounded_channel();
        let task = tokio::spawn(Writer::new(log, inbox).run());
        Self { log: ObjectLog { jobs: Some(jobs), thread: None }, task }
    }

    async fn close(self) {
        drop(self.log);
        self.task.await.unwrap();
    }

    /// As when the process is killed: whatever it was doing is not done.
    async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

/// Names of the pieces that are there.
async fn pieces(store: &InMemory) -> Vec<String> {
    let listed: Vec<_> = store.list(Some(&Path::from(PREFIX))).collect().await;
    let mut names: Vec<String> =
        listed.into_iter().map(|o| o.unwrap().location.filename().unwrap().into()).collect();
    names.sort();
    names
}

fn location(number: u64) -> Path {
    Path::from(format!("{PREFIX}/log/{number:020}.piece"))
}

/// What a new service finds.
async fn found(store: &Arc<InMemory>) -> LedgerSnapshot {
    let mut reader = OnTask::open(store.clone(), EACH);
    let found = loaded(&mut reader.log).await;
    reader.close().await;
    found
}

#[tokio::test]
async fn the_log_in_an_object_store_keeps_the_contract() {
    let often = SyncPolicy::Every(Duration::from_millis(1));
    let usual = ObjectLogOptions::default();
    for options in [EACH, options(often, SMALL), options(usual.sync, 0), usual] {
        let store: Arc<InMemory> = Arc::default();
        let open = || ObjectLog::open(store.clone(), PREFIX, suite_spec(), options).unwrap();
        check_store(open).await;
        let first = store.get(&location(1)).await.is_ok();
        assert_eq!(first, options.segment_bytes > SMALL, "it was compacted, or there was no need");
    }
}

#[tokio::test]
async fn the_log_in_a_folder_keeps_the_contract() {
    for options in [EACH, ObjectLogOptions::default()] {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
        check_store(|| ObjectLog::open(store.clone(), PREFIX, suite_spec(), options).unwrap()).await;
    }
}

#[tokio::test]
async fn the_cuts_in_an_object_store_keep_the_contract() {
    let store: Arc<InMemory> = Arc::default();
    check_cuts(|| ObjectCuts::new(store.clone(), PREFIX, ObjectTimeouts::default()).unwrap()).await;
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(LocalFileSystem::new_with_prefix(folder.path()).unwrap());
    check_cuts(|| ObjectCuts::new(store.clone(), PREFIX, ObjectTimeouts::default()).unwrap()).await;
}

/// Each request fails in one way or another with a probability of `bad` in 100.
fn moody(mut rng: DetRng, bad: u64) -> impl FnMut(&'static str, &str) -> Fate + Send + 'static {
    move |_, _| match rng.below(100) {
        n if n >= bad => Fate::Done,
        n if n % 8 == 0 => Fate::Lost,
        n if n % 2 == 0 => Fate::Failed,
        _ => Fate::Unanswered,
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_often_fails_loses_and_repeats_nothing() {
    let groups = History::play(suite_spec(), 4, 500).groups;
    let expected = fold(groups.iter().flatten());
    for seed in 0..6 {
        let store = Fated::new(moody(Seed(seed).rng(), 30));
        let mut log = OnTask::open(store.clone(), EACH);
        for group in &groups {
            log.log.append(group).await.unwrap();
        }
        assert_eq!(loaded(&mut log.log).await, expected);
        log.close().await;
        assert_eq!(found(&store.inner).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn the_cuts_of_a_store_that_often_fails_are_whole() {
    let store = Fated::new(moody(Seed(1).rng(), 30));
    check_cuts(|| ObjectCuts::new(store.clone(), PREFIX, ObjectTimeouts::default()).unwrap()).await;
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_gone_is_an_error_in_time_and_not_a_hang() {
    for fate in [Fate::Failed, Fate::Lost] {
        for what in ["put", "list", "get"] {
            let store: Arc<InMemory> = Arc::default();
            let mut log = OnTask::open(store.clone(), EACH);
            log.log.append(&[started(1)]).await.unwrap();
            log.close().await;
            let gone = Fated::over(&store, move |asked, _| if asked == what { fate } else { Fate::Done });
            let mut log = OnTask::open(gone, EACH);
            let began = Instant::now();
            let error = log.log.append(&[started(2)]).await.unwrap_err();
            assert!(matches!(error, ObjectError::Unavailable { .. }), "{what} {fate:?}: {error}");
            assert!(!ObjectLog::is_full(&error));
            assert!(began.elapsed() <= EACH.patience.call, "{what} {fate:?}");
            log.close().await;
            assert!(began.elapsed() <= 2 * EACH.patience.call, "its end neither");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_that_the_store_will_never_accept_is_not_repeated() {
    let mut asked = 0;
    let store = Fated::new(move |what, _| {
        asked += u32::from(what == "put");
        assert!(asked < 2, "once is enough");
        if what == "put" { Fate::Gone } else { Fate::Done }
    });
    let mut log = OnTask::open(store, EACH);
    let error = log.log.append(&[started(1)]).await.unwrap_err();
    assert!(matches!(error, ObjectError::Refused { what: "write", .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn acks_wait_for_their_interval_and_records_that_must_not_be_lost_do_not() {
    let store = Fated::new(|_, _| Fate::Done);
    let usual = ObjectLogOptions::default();
    let mut log = OnTask::open(store.clone(), usual);
    log.log.append(&[started(1), opened()]).await.unwrap();
    assert_eq!(store.puts(), 1, "written before it is answered");
    for offset in 1..5 {
        log.log.append(&[acked(offset)]).await.unwrap();
    }
    assert_eq!(store.puts(), 1, "gathered");
    tokio::time::advance(Duration::from_millis(1_001)).await;
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.puts(), 2, "all in one piece");
    log.log.append(&[acked(5)]).await.unwrap();
    let fence = Record::Fenced { node: antdt_core::NodeId::worker(0), through: antdt_core::Incarnation(0) };
    log.log.append(&[acked(6), fence.clone()]).await.unwrap();
    assert_eq!(store.puts(), 3, "and what came before it");
    log.log.append(&[acked(7)]).await.unwrap();
    log.kill().await;
    let before = [started(1), opened(), acked(6), fence];
    assert_eq!(found(&store.inner).await, fold(&before), "the last interval is trained again");
}

#[tokio::test(start_paused = true)]
async fn acks_are_answered_while_a_piece_is_on_its_way() {
    let store = Fated::new(|_, _| Fate::Done);
    let mut log = OnTask::open(store.clone(), ObjectLogOptions::default());
    log.log.append(&[started(1), opened()]).await.unwrap();
    *store.hand.lock().unwrap() = Box::new(|_, _| Fate::Lost);
    log.log.append(&[acked(1)]).await.unwrap();
    tokio::time::advance(Duration::from_millis(1_001)).await;
    tokio::task::yield_now().await;
    let began = Instant::now();
    for offset in 2..6 {
        log.log.append(&[acked(offset)]).await.unwrap();
    }
    assert_eq!(began.elapsed(), Duration::ZERO);
    *store.hand.lock().unwrap() = Box::new(|_, _| Fate::Done);
    log.close().await;
    assert_eq!(found(&store.inner).await, fold(&[started(1), opened(), acked(5)]));
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_no_caller_waited_for_is_told_to_the_next_caller() {
    let store = Fated::new(|_, _| Fate::Done);
    let mut log = OnTask::open(store.clone(), ObjectLogOptions::default());
    log.log.append(&[started(1), opened()]).await.unwrap();
    *store.hand.lock().unwrap() = Box::new(|_, _| Fate::Failed);
    log.log.append(&[acked(1)]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let error = log.log.append(&[acked(2)]).await.unwrap_err();
    assert!(matches!(error, ObjectError::Unavailable { .. }), "{error}");
    // A service that goes on all the same begins with the stored log.
    *store.hand.lock().unwrap() = Box::new(|_, _| Fate::Done);
    assert_eq!(loaded(&mut log.log).await, fold(&[started(1), opened()]));
    log.log.append(&[acked(3)]).await.unwrap();
    log.close().await;
    assert_eq!(found(&store.inner).await, fold(&[started(1), opened(), acked(3)]));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_is_killed_loses_acks_only_and_no_answer_before_them() {
    let groups = History::play(suite_spec(), 6, 400).groups;
    let states = states(&groups);
    let mut lost = 0;
    for seed in 0..60_u64 {
        let mut rng = Seed(seed).rng();
        let store = Fated::new(moody(Seed(seed).rng(), 20));
        let mut log = OnTask::open(store.clone(), options(ObjectLogOptions::default().sync, SMALL));
        let killed = rng.below(groups.len() as u64) as usize;
        let mut safe = 0;
        for (number, group) in groups[..killed].iter().enumerate() {
            log.log.append(group).await.unwrap();
            if group.iter().any(urgent) {
                safe = number + 1;
            }
            // Some of a second.
            tokio::time::sleep(Duration::from_millis(rng.below(100))).await;
        }
        // In the middle of one more, at times.
        let last =
            tokio::time::timeout(Duration::from_millis(rng.below(300)), log.log.append(&groups[killed]));
        let answered = matches!(last.await, Ok(Ok(())));
        if answered && groups[killed].iter().any(urgent) {
            safe = killed + 1;
        }
        log.kill().await;
        let found = found(&store.inner).await;
        let at = (safe..=killed + 1).rev().find(|at| states[*at] == found);
        let at = at.expect("a state that was true once, not older than what had to be written");
        lost += usize::from(at <= killed);
    }
    assert!(lost > 10, "something was lost {lost} times");
}

#[tokio::test(start_paused = true)]
async fn the_log_stays_short_however_long_it_is_written() {
    let store: Arc<InMemory> = Arc::default();
    let mut log = OnTask::open(store.clone(), EACH);
    let history = History::play(suite_spec(), 3, 3_000);
    let mut most = 0;
    for group in &history.groups {
        log.log.append(group).await.unwrap();
        most = most.max(pieces(&store).await.len());
    }
    assert!(most < 200, "{most} pieces");
    // Pieces of a few bytes: their number is what counts.
    let mut short = OnTask::open(store.clone(), options(SyncPolicy::Each, u64::MAX));
    let mut generation = history.ledger.generation().0;
    for _ in 0..1_200 {
        generation += 1;
        short.log.append(&[started(generation)]).await.unwrap();
        most = most.max(pieces(&store).await.len());
    }
    assert!((512..600).contains(&most), "{most} pieces");
}

#[tokio::test(start_paused = true)]
async fn of_two_services_on_one_prefix_the_one_that_wrote_last_goes_on() {
    let store: Arc<InMemory> = Arc::default();
    let mut first = OnTask::open(store.clone(), EACH);
    first.log.append(&[started(1), opened()]).await.unwrap();
    let mut second = OnTask::open(store.clone(), EACH);
    second.log.append(&[started(2)]).await.unwrap();
    let error = first.log.append(&[acked(1)]).await.unwrap_err();
    assert!(matches!(&error, ObjectError::Taken { path } if *path == location(2).to_string()), "{error}");
    second.log.append(&[acked(2)]).await.unwrap();
    assert_eq!(found(&store).await, fold(&[started(1), opened(), started(2), acked(2)]));
}

#[tokio::test(start_paused = true)]
async fn of_two_services_that_begin_at_once_one_does_not() {
    // Both write the very same bytes, but for their identity.
    let store: Arc<InMemory> = Arc::default();
    let (mut first, mut second) = (OnTask::open(store.clone(), EACH), OnTask::open(store.clone(), EACH));
    assert_eq!(loaded(&mut first.log).await, loaded(&mut second.log).await);
    let generation = [started(1)];
    let (one, other) = tokio::join!(first.log.append(&generation), second.log.append(&generation));
    let error = one.and(other).unwrap_err();
    assert!(matches!(&error, ObjectError::Taken { path } if *path == location(1).to_string()), "{error}");
    assert_eq!(found(&store).await, fold(&generation));
}

#[tokio::test(start_paused = true)]
async fn a_service_that_slept_does_not_write_where_a_compacted_log_left_room() {
    let store: Arc<InMemory> = Arc::default();
    let mut slow = OnTask::open(store.clone(), EACH);
    slow.log.append(&[started(1), opened()]).await.unwrap();
    let mut quick = OnTask::open(store.clone(), EACH);
    let mut generation = 1;
    // Until the name that the slow one will take is free again.
    while generation == 1 || store.get(&location(2)).await.is_ok() {
        generation += 1;
        quick.log.append(&[started(generation)]).await.unwrap();
        tokio::task::yield_now().await;
    }
    let error = slow.log.append(&[acked(9)]).await.unwrap_err();
    assert!(matches!(&error, ObjectError::Taken { path } if *path == location(2).to_string()), "{error}");
    let expected = fold(&[started(1), opened(), started(generation)]);
    assert_eq!(found(&store).await, expected, "its piece does not count");
    assert!(store.get(&location(2)).await.is_err(), "and was removed");
}

#[tokio::test(start_paused = true)]
async fn leftovers_of_a_crashed_compaction_do_not_count_and_are_removed() {
    let groups = History::play(suite_spec(), 8, 600).groups;
    let expected = fold(groups.iter().flatten());
    for fate in [Fate::Failed, Fate::Lost] {
        let store = Fated::new(move |what, _| if what == "delete" { fate } else { Fate::Done });
        let mut log = OnTask::open(store.clone(), EACH);
        for group in &groups {
            log.log.append(group).await.unwrap();
        }
        log.kill().await;
        let left = pieces(&store.inner).await.len();
        let mut next = OnTask::open(store.inner.clone(), EACH);
        assert_eq!(loaded(&mut next.log).await, expected);
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        let kept = pieces(&store.inner).await.len();
        assert!(kept < left, "{kept} of {left}");
        assert_eq!(loaded(&mut next.log).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_that_is_compacted_while_it_is_read_is_read_again() {
    let store: Arc<InMemory> = Arc::default();
    let mut writer = OnTask::open(store.clone(), EACH);
    writer.log.append(&[started(1), opened(), acked(1)]).await.unwrap();
    writer.log.append(&[acked(2)]).await.unwrap();
    for gone in [1, 4] {
        let mut left = gone;
        let passing = Fated::over(&store, move |what, _| {
            if what != "get" || left == 0 {
                return Fate::Done;
            }
            left -= 1;
            Fate::Gone
        });
        let mut reader = OnTask::open(passing, EACH);
        assert_eq!(loaded(&mut reader.log).await, fold(&[started(1), opened(), acked(2)]));
    }
}

#[tokio::test(start_paused = true)]
async fn damage_is_an_error_that_names_the_piece() {
    let write = async || {
        let store: Arc<InMemory> = Arc::default();
        let mut log = OnTask::open(store.clone(), options(SyncPolicy::Each, u64::MAX));
        log.log.append(&[started(1), opened()]).await.unwrap();
        for offset in 1..8 {
            log.log.append(&[acked(offset)]).await.unwrap();
        }
        log.close().await;
        store
    };
    let read = async |store: &Arc<InMemory>| {
        let mut log = OnTask::open(store.clone(), EACH);
        log.log.load(Recovery::new(suite_spec()).unwrap()).await.map(|recovery| recovery.snapshot())
    };

    for number in 1..=8 {
        let store = write().await;
        let mut bytes = store.get(&location(number)).await.unwrap().bytes().await.unwrap().to_vec();
        bytes[50] ^= 4;
        store.put(&location(number), bytes.into()).await.unwrap();
        let error = read(&store).await.unwrap_err();
        let at = location(number).to_string();
        assert!(
            matches!(&error, ObjectError::Piece { path, source: PieceError::Damaged } if *path == at),
            "{error}"
        );
    }

    let store = write().await;
    store.delete(&location(4)).await.unwrap();
    let error = read(&store).await.unwrap_err();
    assert!(matches!(&error, ObjectError::Missing { path } if *path == location(4).to_string()), "{error}");

    // The last one is gone: nothing tells, and what was before it was true once.
    let store = write().await;
    store.delete(&location(8)).await.unwrap();
    assert_eq!(read(&store).await.unwrap(), fold(&[started(1), opened(), acked(6)]));

    let store = write().await;
    store.copy(&location(3), &location(5)).await.unwrap();
    let error = read(&store).await.unwrap_err();
    let misplaced = PieceError::Misplaced { number: 3, base: 1 };
    assert!(matches!(error, ObjectError::Piece { source, .. } if source == misplaced));

    // Nothing is built on a damaged log, and it is left as it is.
    let mut log = OnTask::open(store.clone(), EACH);
    assert!(log.log.append(&[started(2)]).await.is_err());
    assert_eq!(pieces(&store).await.len(), 8);
}

#[tokio::test(start_paused = true)]
async fn a_prefix_belongs_to_one_data_set() {
    let store: Arc<InMemory> = Arc::default();
    let mut log = OnTask::open(store.clone(), EACH);
    log.log.append(&[started(1)]).await.unwrap();
    let other = DatasetSpec { num_samples: 7, ..suite_spec() };
    let error = log.log.load(Recovery::new(other.clone()).unwrap()).await.unwrap_err();
    assert!(
        matches!(&error, ObjectError::Unfit { source: RecoverError::SpecMismatch { .. }, .. }),
        "{error}"
    );
    let mut log = ObjectLog::open(store.clone(), PREFIX, other.clone(), EACH).unwrap();
    let error = log.load(Recovery::new(other).unwrap()).await.unwrap_err();
    assert!(matches!(&error, ObjectError::Piece { source: PieceError::SpecMismatch { .. }, .. }), "{error}");
    let error = ObjectLog::open(store.clone(), "a//b", suite_spec(), EACH).unwrap_err();
    assert!(matches!(error, ObjectError::Prefix { .. }), "{error}");
    let nonsense = DatasetSpec { num_samples: 0, ..suite_spec() };
    let error = ObjectLog::open(store, PREFIX, nonsense, EACH).unwrap_err();
    assert!(matches!(error, ObjectError::Unfit { .. }), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_does_not_follow_leaves_no_trace() {
    let store: Arc<InMemory> = Arc::default();
    let mut log = OnTask::open(store.clone(), ObjectLogOptions::default());
    log.log.append(&[started(1), opened()]).await.unwrap();
    log.log.append(&[acked(1)]).await.unwrap();
    let error = log.log.append(&[started(2), acked(1)]).await.unwrap_err();
    assert!(matches!(error, ObjectError::Unfit { .. }), "{error}");
    log.log.append(&[acked(2), started(2)]).await.unwrap();
    log.kill().await;
    assert_eq!(found(&store).await, fold(&[started(1), opened(), acked(2), started(2)]));
}
