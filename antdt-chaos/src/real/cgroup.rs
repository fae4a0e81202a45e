//! Control groups that take processor time or memory away from a process. Version 1 or 2 is used, whichever
//! the machine has and this user may write.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What a group limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Controller {
    Cpu,
    Memory,
}

impl Controller {
    const fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }
}

/// Where the groups of version 2 are, and those of version 1 of each controller.
const MOUNT: &str = "/sys/fs/cgroup";

/// A group of one process. Dropping it puts the process back to where it was.
#[derive(Debug)]
pub(super) struct Group {
    path: PathBuf,
    /// The group in which the process was.
    before: PathBuf,
    pid: i32,
}

/// Where groups of a controller can be made, and whether they are of version 2.
#[derive(Debug, Clone)]
pub(super) struct Place {
    folder: PathBuf,
    unified: bool,
    controller: Controller,
}

impl Place {
    /// Finds out whether a process can be limited here; says why not.
    pub(super) fn find(controller: Controller) -> Result<Self, String> {
        let one = Path::new(MOUNT).join(controller.name());
        let two = Path::new(MOUNT).join("cgroup.controllers");
        let place = if one.join("cgroup.procs").exists() {
            Self { folder: one, unified: false, controller }
        } else if two.exists() {
            // Fails if it is on already and this user may not write: the trial below shows it.
            let all = Path::new(MOUNT).join("cgroup.subtree_control");
            let _ = fs::write(all, format!("+{}", controller.name()));
            Self { folder: PathBuf::from(MOUNT), unified: true, controller }
        } else {
            return Err(format!("there are no control groups below {MOUNT}"));
        };
        let trial = place.folder.join(format!("antdt-chaos-{}-trial", std::process::id()));
        let made = fs::create_dir(&trial).map(|()| {
            let (file, _) = place.limit(1.0, 1 << 30);
            trial.join(file).exists()
        });
        let _ = fs::remove_dir(&trial);
        match made {
            Ok(true) => Ok(place),
            Ok(false) => Err(format!("{}: no limits of {}", place.folder.display(), controller.name())),
            Err(error) => Err(format!("{}: {error}", place.folder.display())),
        }
    }

    /// The file with the limit and what is written to it, for a share of a processor or so many bytes.
    fn limit(&self, share: f64, bytes: u64) -> (&'static str, String) {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "microseconds of 100 ms")]
        let quota = ((share * 100_000.0) as u64).max(1_000);
        match (self.controller, self.unified) {
            (Controller::Cpu, false) => ("cpu.cfs_quota_us", quota.to_string()),
            (Controller::Cpu, true) => ("cpu.max", format!("{quota} 100000")),
            (Controller::Memory, false) => ("memory.limit_in_bytes", bytes.to_string()),
            (Controller::Memory, true) => ("memory.max", bytes.to_string()),
        }
    }

    /// Limits a process to a share of a processor.
    pub(super) fn slow(&self, pid: i32, share: f64) -> io::Result<Group> {
        self.put(pid, &self.limit(share, 0))
    }

    /// Gives a process no memory any more: it is ended when it wants some.
    pub(super) fn starve(&self, pid: i32) -> io::Result<Group> {
        self.put(pid, &self.limit(0.0, 64 << 10))
    }

    fn put(&self, pid: i32, (file, text): &(&str, String)) -> io::Result<Group> {
        let before = self.group_of(pid)?;
        let path = self.folder.join(format!("antdt-chaos-{}-{pid}", std::process::id()));
        fs::create_dir(&path)?;
        let group = Group { path, before, pid };
        fs::write(group.path.join(file), text)?;
        fs::write(group.path.join("cgroup.procs"), pid.to_string())?;
        Ok(group)
    }

    /// The folder of the group of a process.
    fn group_of(&self, pid: i32) -> io::Result<PathBuf> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
        let wanted = if self.unified { "" } else { self.controller.name() };
        let path = text.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            controllers.split(',').any(|name| name == wanted).then_some(path)
        });
        let folder = self.folder.join(path.unwrap_or("/").trim_start_matches('/'));
        // A container does not see the groups above it.
        Ok(if folder.exists() { folder } else { self.folder.clone() })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // It may have ended. Without processes the folder can go; what cannot is left for people to find.
        let _ = fs::write(self.before.join("cgroup.procs"), self.pid.to_string());
        for _ in 0..100 {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}
