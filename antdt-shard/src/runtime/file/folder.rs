//! The folder of a store, and the one current segment in it. Everything here blocks.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{FileStoreError, FileStoreOptions, SyncPolicy};
use crate::error::RecoverError;
use crate::journal::{HEAD_LEN, Segment, SegmentReader, put_frame, put_head, urgent};
use crate::ledger::{Record, Recovery};
use crate::spec::DatasetSpec;

const EXTENSION: &str = "journal";
const UNFINISHED: &str = "tmp";

/// A segment on the disk.
type Numbered = (u64, PathBuf);

/// The segment that is appended to.
#[derive(Debug)]
struct Open {
    file: File,
    path: PathBuf,
    number: u64,
    /// Bytes that are whole frames; what the file has beyond is to be overwritten.
    len: u64,
    /// Bytes that are durable.
    durable: u64,
    /// Bytes before the first frame that is no snapshot.
    base: u64,
}

#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    spec: DatasetSpec,
    options: FileStoreOptions,
    /// Held as long as the folder is.
    _lock: File,
    /// What the records say so far. Grows and shrinks as the state of the ledger does.
    state: Recovery,
    /// Whether the folder was read; `open` and `state` mean something only then.
    read: bool,
    open: Option<Open>,
    /// The segment may have lost what was written to it: the next one must take its place first.
    broken: bool,
    /// When the oldest bytes that are not durable were written.
    dirty_since: Option<Instant>,
    /// Length of the segment at which it is replaced.
    compact_at: u64,
    /// Bytes that the disk still takes.
    #[cfg(test)]
    pub(super) room: std::sync::Arc<std::sync::atomic::AtomicU64>,
}

impl Folder {
    pub(super) fn open(
        path: &Path,
        spec: DatasetSpec,
        options: FileStoreOptions,
    ) -> Result<Self, FileStoreError> {
        let state = Recovery::new(spec.clone())
            .map_err(|source| FileStoreError::Unfit { path: path.into(), source })?;
        make_folder(path)?;
        let lock_path = path.join("lock");
        let mut how = OpenOptions::new();
        let lock = how.create(true).truncate(false).write(true).open(&lock_path);
        let lock = lock.map_err(|e| failed("open", &lock_path, e))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(FileStoreError::Locked { folder: path.into() }),
            Err(TryLockError::Error(e)) => return Err(failed("lock", &lock_path, e)),
        }
        Ok(Self {
            path: path.into(),
            spec,
            options,
            _lock: lock,
            state,
            read: false,
            open: None,
            broken: false,
            dirty_since: None,
            compact_at: 0,
            #[cfg(test)]
            room: std::sync::Arc::new(u64::MAX.into()),
        })
    }

    fn fresh(&self) -> Result<Recovery, FileStoreError> {
        let unfit = |source| FileStoreError::Unfit { path: self.path.clone(), source };
        Recovery::new(self.spec.clone()).map_err(unfit)
    }

    /// Reads the newest segment, cuts off what a crash tore, and removes what is left of others.
    pub(super) fn load(&mut self, mut recovery: Recovery) -> Result<Recovery, FileStoreError> {
        self.read = false;
        (self.open, self.broken, self.dirty_since) = (None, false, None);
        if recovery.spec() != &self.spec {
            let source = RecoverError::SpecMismatch { name: recovery.spec().name.clone() };
            return Err(FileStoreError::Unfit { path: self.path.clone(), source });
        }
        let (newest, others) = self.segments()?;
        if let Some((number, path)) = newest {
            let file = OpenOptions::new().read(true).write(true).open(&path);
            let mut file = file.map_err(|e| failed("open", &path, e))?;
            let (segment, folded) = fold(&mut file, &path, recovery)?;
            if segment.torn > 0 {
                tracing::warn!(
                    segment = %path.display(), at = segment.len, bytes = segment.torn,
                    "the end of the journal was torn by a crash; it is cut off, its samples are trained again"
                );
                file.set_len(segment.len).map_err(|e| failed("truncate", &path, e))?;
            }
            // The process before may have died with records that only the system knew.
            file.sync_all().map_err(|e| failed("sync", &path, e))?;
            recovery = folded;
            let Segment { base, len, .. } = segment;
            self.adopt(Open { file, path, number, len, durable: len, base });
        }
        for path in others {
            remove(&path);
        }
        self.state = recovery.clone();
        self.read = true;
        Ok(recovery)
    }

    fn adopt(&mut self, open: Open) {
        self.compact_at = open.base.saturating_add(self.options.segment_bytes.max(open.base));
        self.open = Some(open);
    }

    /// The segment with the highest number, and all else that a crash may have left.
    fn segments(&self) -> Result<(Option<Numbered>, Vec<PathBuf>), FileStoreError> {
        let list = |e| failed("list", &self.path, e);
        let mut newest: Option<Numbered> = None;
        let mut others = Vec::new();
        for entry in fs::read_dir(&self.path).map_err(list)? {
            let path = entry.map_err(list)?.path();
            let extension = path.extension().and_then(|e| e.to_str());
            if extension == Some(UNFINISHED) {
                others.push(path);
                continue;
            }
            let stem = path.file_stem().and_then(|s| s.to_str());
            let number = stem.and_then(|s| s.parse().ok()).filter(|_| extension == Some(EXTENSION));
            let Some(number) = number else { continue }; // Not ours.
            if newest.as_ref().is_none_or(|(highest, _)| *highest < number) {
                others.extend(newest.replace((number, path)).map(|(_, path)| path));
            } else {
                others.push(path);
            }
        }
        Ok((newest, others))
    }

    /// Appends one frame. If this fails, the folder is as it was before.
    pub(super) fn append(&mut self, records: &[Record]) -> Result<(), FileStoreError> {
        if !self.read {
            self.load(self.fresh()?)?;
        }
        if self.open.is_none() || self.broken {
            self.replace()?;
        }
        let open = self.open.as_mut().expect("the line above made one");
        let mut frame = Vec::new();
        put_frame(&mut frame, open.len, open.durable, records)
            .ok_or_else(|| FileStoreError::TooLarge { path: self.path.clone() })?;
        let before = open.len;
        #[cfg(test)]
        let room = Some(&*self.room);
        #[cfg(not(test))]
        let room = None;
        if let Err(e) = write_at(&mut open.file, before, &frame, room) {
            let error = failed("write", &open.path, e);
            self.cut(before);
            return Err(error);
        }
        open.len += frame.len() as u64;
        self.dirty_since.get_or_insert_with(Instant::now);
        if (self.options.sync == SyncPolicy::Each || records.iter().any(urgent))
            && let Err(error) = self.sync()
        {
            self.cut(before);
            return Err(error);
        }
        for record in records {
            if let Err(source) = self.state.apply(record) {
                self.cut(before);
                // Some of them may have been applied: the state is that of the disk again when that is read.
                self.read = false;
                return Err(FileStoreError::Unfit { path: self.path.clone(), source });
            }
        }
        Ok(())
    }

    /// Takes back what was written beyond `len`. Where that fails, the segment is not to be used again.
    fn cut(&mut self, len: u64) {
        let Some(open) = &mut self.open else { return };
        open.len = len;
        open.durable = open.durable.min(len);
        if let Err(error) = open.file.set_len(len) {
            tracing::warn!(segment = %open.path.display(), %error, "a failed write cannot be taken back");
            self.broken = true;
        }
    }

    /// Makes all that was written durable.
    fn sync(&mut self) -> Result<(), FileStoreError> {
        self.dirty_since = None;
        let Some(open) = &mut self.open else { return Ok(()) };
        if let Err(e) = open.file.sync_data() {
            // What the system could not write it may have thrown away, and it does not say so twice.
            self.broken = true;
            return Err(failed("sync", &open.path, e));
        }
        open.durable = open.len;
        Ok(())
    }

    /// Whether to append these means no more than to write them: nothing must be made durable, read or replaced first.
    pub(super) fn is_quick(&self, records: &[Record]) -> bool {
        let has_room = self.open.as_ref().is_some_and(|open| open.len < self.compact_at);
        let waits = self.options.sync != SyncPolicy::Each && !records.iter().any(urgent);
        self.read && has_room && waits && !self.broken && self.sync_due() != Some(Duration::ZERO)
    }

    /// How long until the oldest bytes must be made durable; zero if at once, `None` if there are none.
    pub(super) fn sync_due(&self) -> Option<Duration> {
        let SyncPolicy::Every(after) = self.options.sync else { return None };
        self.dirty_since.map(|since| after.saturating_sub(since.elapsed()))
    }

    /// Makes durable what was promised for later. If that fails the segment is written anew, from the state in memory,
    /// when it is due again or with the next records.
    pub(super) fn sync_late(&mut self) {
        if self.dirty_since.is_none() {
            return;
        }
        let synced = if self.broken { self.replace() } else { self.sync() };
        if let Err(error) = synced {
            tracing::warn!(%error, "the end of the journal is not durable yet; it will be written anew");
            self.dirty_since = Some(Instant::now());
        }
    }

    /// Replaces the segment if it has grown enough.
    pub(super) fn compact_if_due(&mut self) {
        if !self.read || self.broken || self.open.as_ref().is_none_or(|open| open.len < self.compact_at) {
            return;
        }
        if let Err(error) = self.replace() {
            // The segment is as good as before, only long.
            tracing::warn!(%error, "the journal cannot be compacted; it will be tried again later");
            self.compact_at = self.compact_at.saturating_add(self.options.segment_bytes.max(1));
        }
    }

    /// Writes the next segment, which begins with a snapshot if there is anything to remember, and drops the one
    /// before. The new one takes its name only when it is durable: a crash leaves the old one, or both.
    fn replace(&mut self) -> Result<(), FileStoreError> {
        let (number, mut base) = (self.open.as_ref().map_or(1, |open| open.number + 1), Vec::new());
        if self.open.is_some() {
            let snapshot = Record::Base(Box::new(self.state.snapshot()));
            put_frame(&mut base, HEAD_LEN as u64, HEAD_LEN as u64, &[snapshot])
                .ok_or_else(|| FileStoreError::TooLarge { path: self.path.clone() })?;
        }
        let len = (HEAD_LEN + base.len()) as u64;
        let mut bytes = Vec::with_capacity(HEAD_LEN + base.len());
        put_head(&mut bytes, &self.spec, len);
        bytes.append(&mut base);

        let path = self.path.join(format!("{number:020}.{EXTENSION}"));
        let unfinished = path.with_extension(UNFINISHED);
        let file = self.write_whole(&unfinished, &bytes).inspect_err(|_| remove(&unfinished))?;
        // From here on the new one may be found after a crash, whatever fails: nothing more may go to the old one.
        self.broken = true;
        fs::rename(&unfinished, &path).map_err(|e| failed("rename", &unfinished, e))?;
        sync_folder(&self.path)?;
        let old = self.open.take();
        self.adopt(Open { file, path, number, len, durable: len, base: len });
        (self.broken, self.dirty_since) = (false, None);
        if let Some(old) = old {
            remove(&old.path);
        }
        Ok(())
    }

    fn write_whole(&self, path: &Path, bytes: &[u8]) -> Result<File, FileStoreError> {
        let mut how = OpenOptions::new();
        let file = how.create(true).truncate(true).read(true).write(true).open(path);
        let mut file = file.map_err(|e| failed("create", path, e))?;
        #[cfg(test)]
        let room = Some(&*self.room);
        #[cfg(not(test))]
        let room = None;
        write_at(&mut file, 0, bytes, room).map_err(|e| failed("write", path, e))?;
        file.sync_all().map_err(|e| failed("sync", path, e))?;
        Ok(file)
    }
}

/// Applies the records of a segment, whose file may be larger than memory.
fn fold(file: &mut File, path: &Path, recovery: Recovery) -> Result<(Segment, Recovery), FileStoreError> {
    /// So large that the calls cost nothing beside the records in it, and small enough for any cache.
    const PIECE: usize = 256 << 10;
    let unreadable = |source| FileStoreError::Segment { path: path.into(), source };
    let total = file.metadata().map_err(|e| failed("read", path, e))?.len();
    let mut reader = SegmentReader::new(recovery, total);
    let mut bytes = Vec::new();
    loop {
        let room = reader.wanted().max(PIECE) - bytes.len();
        let read = Read::by_ref(file).take(room as u64).read_to_end(&mut bytes);
        let read = read.map_err(|e| failed("read", path, e))?;
        let used = reader.take(&bytes).map_err(unreadable)?;
        if used == 0 && read == 0 {
            return reader.finish().map_err(unreadable);
        }
        bytes.drain(..used);
    }
}

/// `room`: bytes that the disk still takes, counted by tests.
fn write_at(
    file: &mut File,
    at: u64,
    bytes: &[u8],
    room: Option<&std::sync::atomic::AtomicU64>,
) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    if let Some(room) = room {
        use std::sync::atomic::Ordering::Relaxed;
        let left = room.load(Relaxed);
        if left < bytes.len() as u64 {
            // As a full disk does: some of it, then the error.
            file.write_all(&bytes[..left as usize])?;
            room.store(0, Relaxed);
            return Err(ErrorKind::StorageFull.into());
        }
        room.store(left - bytes.len() as u64, Relaxed);
    }
    file.write_all(bytes)
}

/// Makes a folder, and durable that it is there.
pub(super) fn make_folder(path: &Path) -> Result<(), FileStoreError> {
    let missing = path.ancestors().take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let missing = missing.count();
    fs::create_dir_all(path).map_err(|e| failed("make", path, e))?;
    for parent in path.ancestors().skip(1).take(missing) {
        sync_folder(if parent.as_os_str().is_empty() { Path::new(".") } else { parent })?;
    }
    Ok(())
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(path: &Path) -> Result<(), FileStoreError> {
    let synced = File::open(path).and_then(|folder| folder.sync_all());
    synced.map_err(|e| failed("sync", path, e))
}

/// What is left of earlier segments costs room and nothing else.
pub(super) fn remove(path: &Path) {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(error) => tracing::warn!(path = %path.display(), %error, "cannot remove it; remove it by hand"),
    }
}

pub(super) fn failed(what: &'static str, path: &Path, source: io::Error) -> FileStoreError {
    let path = path.to_path_buf();
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => FileStoreError::Full { path, source },
        _ => FileStoreError::Io { what, path, source },
    }
}
