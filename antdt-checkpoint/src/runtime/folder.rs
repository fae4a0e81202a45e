//! [`Folder`]: the checkpoints of a job, in a folder of a local or shared disk or in an object store.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use antdt_core::{CheckpointId, ParamLayout};
use antdt_model::Portion;
use antdt_shard::LedgerCut;

#[cfg(feature = "object-store")]
use super::bucket::Bucket;
use super::disk::Disk;
use super::read::{self, CheckpointReadError, unread};
use super::storage::{CheckpointWriteError, Storage, failed};
use super::stored::Checkpoint;
use crate::header::Header;
use crate::manifest::{FileEntry, Manifest, checkpoint_of, folder_name, is_plain};
use crate::part::{self, PartFileError, PartShape};
use crate::retention::{CheckpointState, Retention};
use crate::state::{self, ModelState};

/// Checkpoints in a folder, or below a prefix of an object store. Each has a folder of its own, with a file
/// for each part of the model, `ledger.cut`, and `manifest.json`.
///
/// A checkpoint exists once its manifest does, which gets its name last, after everything else is durable. A
/// failure on the way therefore leaves the earlier checkpoints as they were.
///
/// Any process that shares the folder may write parts. Only the master of the job commits and removes
/// checkpoints.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    pub(super) storage: Arc<dyn Storage>,
}

/// A checkpoint that was found in a folder, complete or not.
#[derive(Debug)]
pub struct FoundCheckpoint {
    /// Number of the checkpoint.
    pub checkpoint: CheckpointId,
    /// Manifest of the checkpoint, or the reason why the checkpoint cannot be used.
    pub manifest: Result<Manifest, CheckpointReadError>,
}

/// The newest usable checkpoint of a folder, and newer ones that were skipped.
#[derive(Debug)]
pub struct Newest {
    /// The newest usable checkpoint, all of whose files were verified; `None` if there is none.
    pub checkpoint: Option<Checkpoint>,
    /// Newer checkpoints that cannot be used, newest first, each with the reason.
    pub passed_over: Vec<(CheckpointId, CheckpointReadError)>,
}

impl Folder {
    /// Opens the folder of checkpoints at a path, which is created if it does not exist, or at a URL such as
    /// `s3://bucket/jobs/7`. Writes and removes a small file there, to check that the folder is writable.
    ///
    /// # Errors
    /// If the folder cannot be created or written to, or the URL names a kind of store that this program does
    /// not know.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, CheckpointWriteError> {
        let path = path.into();
        let storage = match url_of(&path) {
            Some(url) => {
                store_of(url).map_err(|why| CheckpointWriteError::Url { url: url.to_owned(), why })?
            }
            None => Arc::new(Disk::default()),
        };
        Self { path, storage }.probed()
    }

    /// Opens the checkpoints below a prefix of this object store, and checks that the store is writable.
    ///
    /// # Errors
    /// If the store cannot be written to, or the prefix is not a valid path in it.
    #[cfg(feature = "object-store")]
    pub fn create_in(
        store: Arc<dyn object_store::ObjectStore>,
        prefix: &str,
    ) -> Result<Self, CheckpointWriteError> {
        let (path, storage) = Bucket::below(store, prefix)
            .map_err(|why| CheckpointWriteError::Url { url: prefix.to_owned(), why })?;
        Self { path, storage: Arc::new(storage) }.probed()
    }

    fn probed(self) -> Result<Self, CheckpointWriteError> {
        self.storage.make_folder(&self.path)?;
        // With a name of its own: several processes may do so.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let probe = self.path.join(format!("probe-{}-{}", std::process::id(), now.as_nanos()));
        self.storage.write_whole(&probe, &mut |sink| sink.put(b"ok"))?;
        self.storage.remove(&probe)?;
        Ok(self)
    }

    /// Opens an existing folder of checkpoints, at a path or at a URL.
    ///
    /// # Errors
    /// If there is no such folder, or the program does not know the URL's kind of store.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, CheckpointReadError> {
        let path = path.into();
        if let Some(url) = url_of(&path) {
            let storage =
                store_of(url).map_err(|why| CheckpointReadError::Url { url: url.to_owned(), why })?;
            return Ok(Self { path, storage });
        }
        match fs::metadata(&path) {
            Ok(found) if found.is_dir() => Ok(Self { path, storage: Arc::new(Disk::default()) }),
            Err(error) if ![ErrorKind::NotFound, ErrorKind::NotADirectory].contains(&error.kind()) => {
                Err(unread(&path)(error))
            }
            _ => Err(CheckpointReadError::NoFolder(path)),
        }
    }

    /// Splits the path of a checkpoint's own folder into the folder of checkpoints and the checkpoint's
    /// number; `None` if the path does not have the name of such a folder. Does not look whether the
    /// checkpoint exists.
    pub fn of_checkpoint(path: &Path) -> Option<(PathBuf, CheckpointId)> {
        let checkpoint = checkpoint_of(path.file_name()?.to_str()?)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Some((folder.unwrap_or(Path::new(".")).to_owned(), checkpoint))
    }

    /// Returns the path or URL of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn place(&self, checkpoint: CheckpointId) -> PathBuf {
        self.path.join(folder_name(checkpoint))
    }

    /// The numbers of all checkpoints and attempts, newest first.
    fn numbers(&self) -> Result<Vec<CheckpointId>, CheckpointReadError> {
        let names = self.storage.names(&self.path).map_err(unread(&self.path))?;
        let mut numbers: Vec<_> = names.iter().filter_map(|name| checkpoint_of(name)).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        Ok(numbers)
    }

    /// Returns the number for the next checkpoint. It is higher than those of all checkpoints and attempts,
    /// so that a process that still writes to an earlier attempt does not write to the next.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn next_id(&self) -> Result<CheckpointId, CheckpointReadError> {
        Ok(self.numbers()?.first().map_or(CheckpointId(1), |newest| newest.next()))
    }

    /// Returns all checkpoints, complete or not, newest first, each with its manifest or the reason why it
    /// has none. Files are checked for their length, not read.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn list(&self) -> Result<Vec<FoundCheckpoint>, CheckpointReadError> {
        let listed = |checkpoint| {
            let manifest = Checkpoint::open(&self.storage, self.place(checkpoint), checkpoint)
                .map(|found| found.manifest().clone());
            FoundCheckpoint { checkpoint, manifest }
        };
        Ok(self.numbers()?.into_iter().map(listed).collect())
    }

    /// Opens the checkpoint with this number.
    ///
    /// # Errors
    /// If the checkpoint does not exist or is incomplete; the error names the file.
    pub fn open_checkpoint(&self, checkpoint: CheckpointId) -> Result<Checkpoint, CheckpointReadError> {
        let path = self.place(checkpoint);
        if !self.storage.has(&path).map_err(unread(&path))? {
            return Err(CheckpointReadError::NoCheckpoint { folder: self.path.clone(), checkpoint });
        }
        Checkpoint::open(&self.storage, path, checkpoint)
    }

    /// Returns the newest checkpoint whose files are all intact; it reads them to find out. Newer attempts
    /// and damaged checkpoints are skipped.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn newest(&self) -> Result<Newest, CheckpointReadError> {
        self.newest_from(CheckpointId(0))
    }

    /// Returns the newest usable checkpoint from number `first` on, as [`newest`](Self::newest) does: for a
    /// folder that also has checkpoints of earlier jobs.
    ///
    /// # Errors
    /// As [`newest`](Self::newest).
    pub fn newest_from(&self, first: CheckpointId) -> Result<Newest, CheckpointReadError> {
        let mut passed_over = Vec::new();
        for id in self.numbers()?.into_iter().take_while(|id| *id >= first) {
            let usable = Checkpoint::open(&self.storage, self.place(id), id)
                .and_then(|found| found.verify().map(|()| found));
            match usable {
                Ok(checkpoint) => return Ok(Newest { checkpoint: Some(checkpoint), passed_over }),
                Err(why) => passed_over.push((id, why)),
            }
        }
        Ok(Newest { checkpoint: None, passed_over })
    }

    /// Writes one part of the model of a checkpoint that is being taken; the part is durable when this
    /// returns. A part of the same name is replaced. `name` is, for example, `replica` or `server-0`.
    ///
    /// The portion is written from where it lies in memory. This takes a few kilobytes besides on a disk, and
    /// up to 100 MB with an object store, where several pieces are uploaded at a time.
    ///
    /// # Errors
    /// If the part cannot be written; nothing of this part is left then. Parts that were written before are
    /// left until the caller [abandons](Self::abandon) the attempt.
    pub fn write_part(
        &self,
        checkpoint: CheckpointId,
        name: &str,
        layout: &ParamLayout,
        portion: &Portion,
    ) -> Result<FileEntry, CheckpointWriteError> {
        let file = format!("{name}{}", Manifest::PART);
        if name.is_empty() || !is_plain(&file) || file == Manifest::STATE {
            return Err(CheckpointWriteError::Name { name: name.to_owned() });
        }
        let header = PartShape::of(layout, portion).and_then(|shape| shape.header(layout, name));
        self.write(checkpoint, &file, header, || part::arrays(portion))
    }

    /// Writes the whole model of a checkpoint that is being taken, where a program keeps it: the only part, which is durable when
    /// this returns.
    ///
    /// # Errors
    /// As [`write_part`](Self::write_part).
    pub fn write_state(
        &self,
        checkpoint: CheckpointId,
        model: &ModelState,
    ) -> Result<FileEntry, CheckpointWriteError> {
        let name = Manifest::STATE.trim_end_matches(Manifest::PART);
        let tensors = || model.tensors.iter().map(|tensor| &tensor.bytes[..]);
        self.write(checkpoint, Manifest::STATE, state::header(model, name), tensors)
    }

    fn write<'m, I: Iterator<Item = &'m [u8]>>(
        &self,
        checkpoint: CheckpointId,
        file: &str,
        header: Result<Header, PartFileError>,
        arrays: impl Fn() -> I,
    ) -> Result<FileEntry, CheckpointWriteError> {
        let place = self.place(checkpoint);
        self.refuse_whole(checkpoint, &place)?;
        let path = place.join(file);
        let unfit = |error| CheckpointWriteError::Part { path: path.clone(), error };
        let header = header.and_then(|header| Ok(header.encode()?)).map_err(unfit)?;
        self.storage.make_folder(&place)?;
        self.storage.write_whole(&path, &mut |sink| {
            sink.put(&header)?;
            arrays().try_for_each(|bytes| sink.put(bytes))
        })
    }

    /// Completes a checkpoint whose parts are written: checks that the files which the manifest lists are
    /// there with their lengths, adds the ledger's cut, and writes the manifest last. Returns the manifest as
    /// written. No older checkpoint is removed.
    ///
    /// # Errors
    /// If a file is missing, the two halves are not of one checkpoint, or something cannot be written. The
    /// attempt is then removed, and the checkpoint before it is still the newest.
    pub fn commit(&self, mut manifest: Manifest, cut: &LedgerCut) -> Result<Manifest, CheckpointWriteError> {
        let checkpoint = manifest.checkpoint;
        let place = self.place(checkpoint);
        self.refuse_whole(checkpoint, &place)?;
        let committed = self.try_commit(&mut manifest, cut, &place);
        if let Err(error) = committed {
            // What cannot be removed either stays without a manifest, or not even that is known: the disk is failing.
            let _ = self.remove_checkpoint(&place);
            return Err(error);
        }
        Ok(manifest)
    }

    fn try_commit(
        &self,
        manifest: &mut Manifest,
        cut: &LedgerCut,
        place: &Path,
    ) -> Result<(), CheckpointWriteError> {
        let checkpoint = manifest.checkpoint;
        let unfit = |why: String| CheckpointWriteError::Unfit { checkpoint, why };
        if cut.binding() != manifest.ledger {
            return Err(unfit(format!(
                "the ledger was cut as {} and the model as {}",
                cut.binding(),
                manifest.ledger
            )));
        }
        manifest.check().map_err(unfit)?;
        for file in &manifest.files {
            read::check_length(&*self.storage, place, file).map_err(|error| unfit(error.to_string()))?;
        }
        let bytes = cut.to_bytes();
        manifest
            .files
            .push(self.storage.write_whole(&place.join(Manifest::LEDGER), &mut |sink| sink.put(&bytes))?);
        // Other processes may have made the checkpoint's folder, and died before that was durable.
        self.storage.sync_folder(&self.path)?;
        let json = manifest.to_json();
        self.storage.write_whole(&place.join(Manifest::NAME), &mut |sink| sink.put(json.as_bytes()))?;
        Ok(())
    }

    /// Removes the files of an attempt that will not be committed. Does nothing if there are none.
    ///
    /// # Errors
    /// If the checkpoint is complete, which this never removes, or a file cannot be removed.
    pub fn abandon(&self, checkpoint: CheckpointId) -> Result<(), CheckpointWriteError> {
        let place = self.place(checkpoint);
        self.refuse_whole(checkpoint, &place)?;
        self.remove_checkpoint(&place)
    }

    /// Removes the complete checkpoints beyond the limits of `retention`, and the unfinished ones that are older than the
    /// newest complete one. Returns their numbers, oldest first. The newest complete checkpoint and any that cannot be
    /// read are kept.
    ///
    /// # Errors
    /// If the folder cannot be read or a checkpoint cannot be removed.
    pub fn retain(
        &self,
        retention: &Retention,
        now_unix_s: u64,
    ) -> Result<Vec<CheckpointId>, CheckpointWriteError> {
        let listed = self.list().map_err(unlisted(&self.path))?;
        let standing = |listed: FoundCheckpoint| {
            let standing = match listed.manifest {
                Ok(Manifest { created_unix_s, .. }) => CheckpointState::Valid { created_unix_s },
                Err(CheckpointReadError::Unfinished(_)) => CheckpointState::Unfinished,
                Err(_) => CheckpointState::Unusable,
            };
            (listed.checkpoint, standing)
        };
        let all: Vec<_> = listed.into_iter().map(standing).collect();
        let doomed = retention.doomed(&all, now_unix_s);
        doomed.iter().try_for_each(|checkpoint| self.remove_checkpoint(&self.place(*checkpoint)))?;
        Ok(doomed)
    }

    /// Removes all checkpoints and attempts.
    ///
    /// # Errors
    /// If the folder cannot be read or a checkpoint cannot be removed.
    pub fn remove_all(&self) -> Result<(), CheckpointWriteError> {
        let numbers = self.numbers().map_err(unlisted(&self.path))?;
        numbers.iter().try_for_each(|checkpoint| self.remove_checkpoint(&self.place(*checkpoint)))
    }

    fn refuse_whole(&self, checkpoint: CheckpointId, place: &Path) -> Result<(), CheckpointWriteError> {
        let manifest = place.join(Manifest::NAME);
        if self.storage.has(&manifest).map_err(|e| failed("look for", &manifest, e))? {
            return Err(CheckpointWriteError::Whole { folder: self.path.clone(), checkpoint });
        }
        Ok(())
    }

    /// The manifest first: what is left if this breaks off is no checkpoint.
    fn remove_checkpoint(&self, place: &Path) -> Result<(), CheckpointWriteError> {
        let manifest = place.join(Manifest::NAME);
        if self.storage.has(&manifest).map_err(|e| failed("look for", &manifest, e))? {
            self.storage.remove(&manifest)?;
            self.storage.sync_folder(place)?;
        }
        self.storage.remove_folder(place)
    }
}

/// The URL that a path is, if it is one: a scheme, `://`, and more.
fn url_of(path: &Path) -> Option<&str> {
    let text = path.to_str()?;
    let (scheme, _) = text.split_once("://")?;
    let plain = scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|letter| letter.is_ascii_alphanumeric());
    plain.then_some(text)
}

#[cfg(feature = "object-store")]
fn store_of(url: &str) -> Result<Arc<dyn Storage>, String> {
    Ok(Arc::new(Bucket::of_url(url)?))
}

#[cfg(not(feature = "object-store"))]
fn store_of(_url: &str) -> Result<Arc<dyn Storage>, String> {
    Err("this program was built without object stores; build it with --features remote, or name a folder"
        .to_owned())
}

/// That a folder cannot be listed, where checkpoints are to be removed.
fn unlisted(folder: &Path) -> impl FnOnce(CheckpointReadError) -> CheckpointWriteError + '_ {
    move |error| match error {
        CheckpointReadError::Io { path, error } => failed("list", &path, error),
        error => failed("list", folder, std::io::Error::other(error.to_string())),
    }
}
