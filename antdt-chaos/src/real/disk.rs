//! Disks that are full or read-only: two file systems in memory, one for the run directory and one for the
//! checkpoints below it. Needs root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use rustix::fs::statvfs;

use antdt::resume::CHECKPOINTS;

/// Size of each while it is not full.
const SIZE: &str = "size=75%";

/// The two disks. They go when this is dropped.
#[derive(Debug)]
pub(super) struct Disks {
    run: PathBuf,
    checkpoints: PathBuf,
}

impl Disks {
    /// Mounts them in a folder, which is made.
    pub(super) fn mount(run: &Path) -> io::Result<Self> {
        fs::create_dir_all(run)?;
        let disks = Self { run: run.to_owned(), checkpoints: run.join(CHECKPOINTS) };
        let at = |path: &Path| -> io::Result<()> {
            let data = format!("{SIZE},mode=700");
            Ok(mount(Some("antdt-chaos"), path, Some("tmpfs"), MsFlags::empty(), Some(&*data))?)
        };
        at(&disks.run)?;
        fs::create_dir(&disks.checkpoints)?;
        at(&disks.checkpoints)?;
        Ok(disks)
    }

    /// Neither has any room left.
    pub(super) fn fill(&self) -> io::Result<()> {
        for path in [&self.run, &self.checkpoints] {
            let found = statvfs(path)?;
            let used = (found.f_blocks - found.f_bfree).max(1) * found.f_frsize;
            remount(path, MsFlags::empty(), &format!("size={used}"))?;
        }
        Ok(())
    }

    /// Makes the disk of the checkpoints read-only. Fails while a process of the job writes to it.
    pub(super) fn protect(&self) -> io::Result<()> {
        remount(&self.checkpoints, MsFlags::MS_RDONLY, SIZE)
    }

    /// Both are as at the start.
    pub(super) fn restore(&self) -> io::Result<()> {
        for path in [&self.run, &self.checkpoints] {
            remount(path, MsFlags::empty(), SIZE)?;
        }
        Ok(())
    }

    /// Copies the checkpoints to a folder that stays.
    pub(super) fn keep(&self, to: &Path) -> io::Result<()> {
        copy(&self.checkpoints, to)
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for path in [&self.checkpoints, &self.run] {
            // Left for people to find; `mount` shows it.
            let _ = umount2(path, MntFlags::MNT_DETACH);
        }
        let _ = fs::remove_dir(&self.run);
    }
}

fn remount(path: &Path, flags: MsFlags, data: &str) -> io::Result<()> {
    Ok(mount(None::<&str>, path, None::<&str>, flags | MsFlags::MS_REMOUNT, Some(data))?)
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
