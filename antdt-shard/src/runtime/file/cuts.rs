//! Consistent cuts as files in a folder of a local or shared disk.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::FileStoreError;
use super::folder::{failed, make_folder, remove, sync_folder};
use crate::store::CutStore;

const EXTENSION: &str = "cut";
/// Not that of the unfinished segments of a journal, which are removed when that is read.
const UNFINISHED: &str = "part";

/// A [`CutStore`] in a folder, with one file for each checkpoint. A file gets its name only when all of it is
/// durable.
///
/// The folder may be that of a [`FileStore`](super::FileStore).
#[derive(Debug)]
pub struct FileCuts {
    folder: PathBuf,
}

impl FileCuts {
    /// Opens a folder of cuts, and creates it if it does not exist.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, FileStoreError> {
        let folder = folder.into();
        make_folder(&folder)?;
        Ok(Self { folder })
    }

    fn path(&self, checkpoint: u64) -> PathBuf {
        self.folder.join(format!("{checkpoint:020}.{EXTENSION}"))
    }

    /// Waits for what blocks, without blocking the runtime.
    async fn blocking<A: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> Result<A, FileStoreError> + Send + 'static,
    ) -> Result<A, FileStoreError> {
        let folder = self.folder.clone();
        let done = tokio::task::spawn_blocking(move || work(&folder)).await;
        done.map_err(|_| FileStoreError::Ended { folder: self.folder.clone() })?
    }
}

impl CutStore for FileCuts {
    type Error = FileStoreError;

    async fn save(&mut self, checkpoint: u64, cut: Vec<u8>) -> Result<(), FileStoreError> {
        let path = self.path(checkpoint);
        self.blocking(move |folder| {
            let unfinished = path.with_extension(UNFINISHED);
            let write = || -> io::Result<()> {
                let mut file = File::create(&unfinished)?;
                file.write_all(&cut)?;
                file.sync_all()
            };
            write().map_err(|e| failed("write", &unfinished, e)).inspect_err(|_| remove(&unfinished))?;
            fs::rename(&unfinished, &path).map_err(|e| failed("rename", &unfinished, e))?;
            sync_folder(folder)
        })
        .await
    }

    async fn load(&mut self, checkpoint: u64) -> Result<Option<Vec<u8>>, FileStoreError> {
        let path = self.path(checkpoint);
        self.blocking(move |_| match fs::read(&path) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(failed("read", &path, e)),
        })
        .await
    }

    async fn list(&mut self) -> Result<Vec<u64>, FileStoreError> {
        self.blocking(list).await
    }

    async fn keep(&mut self, newest: usize) -> Result<(), FileStoreError> {
        let mut checkpoints = self.list().await?;
        checkpoints.truncate(checkpoints.len().saturating_sub(newest));
        let paths: Vec<PathBuf> = checkpoints.into_iter().map(|checkpoint| self.path(checkpoint)).collect();
        self.blocking(move |_| {
            paths.iter().try_for_each(|path| match fs::remove_file(path) {
                Err(e) if e.kind() != ErrorKind::NotFound => Err(failed("remove", path, e)),
                _ => Ok(()),
            })
        })
        .await
    }
}

fn list(folder: &Path) -> Result<Vec<u64>, FileStoreError> {
    let unlisted = |e| failed("list", folder, e);
    let mut checkpoints = Vec::new();
    for entry in fs::read_dir(folder).map_err(unlisted)? {
        let path = entry.map_err(unlisted)?.path();
        let ours = path.extension().is_some_and(|extension| extension == EXTENSION);
        let stem = path.file_stem().and_then(|stem| stem.to_str()).filter(|stem| ours && stem.len() == 20);
        checkpoints.extend(stem.and_then(|stem| stem.parse::<u64>().ok()));
    }
    checkpoints.sort_unstable();
    Ok(checkpoints)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::store::check_cuts;

    #[tokio::test]
    async fn the_cuts_in_a_folder_keep_the_contract() {
        let folder = tempfile::tempdir().unwrap();
        let cuts = folder.path().join("a/cuts");
        check_cuts(|| FileCuts::open(&cuts).unwrap()).await;
        assert_eq!(fs::read_dir(&cuts).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn a_cut_that_a_crash_left_half_is_no_cut() {
        let folder = tempfile::tempdir().unwrap();
        let mut cuts = FileCuts::open(folder.path()).unwrap();
        cuts.save(1, vec![1]).await.unwrap();
        fs::write(folder.path().join("00000000000000000002.part"), [2]).unwrap();
        fs::write(folder.path().join("3.cut"), [3]).unwrap();
        assert_eq!(cuts.list().await.unwrap(), [1]);
        assert_eq!(cuts.load(2).await.unwrap(), None);
        cuts.save(2, vec![4]).await.unwrap();
        assert_eq!(cuts.load(2).await.unwrap(), Some(vec![4]));
    }

    #[tokio::test]
    async fn a_cut_that_cannot_be_written_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let mut cuts = FileCuts::open(folder.path()).unwrap();
        cuts.save(1, vec![1]).await.unwrap();
        // A folder stands where the unfinished file must be.
        fs::create_dir(folder.path().join("00000000000000000001.part")).unwrap();
        let error = cuts.save(1, vec![2]).await.unwrap_err();
        assert!(matches!(error, FileStoreError::Io { what: "write", .. }), "{error}");
        assert_eq!(cuts.load(1).await.unwrap(), Some(vec![1]));
    }
}
