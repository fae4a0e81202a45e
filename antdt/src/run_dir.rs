//! The run directory of a job: how a later command reaches the job's master.
//!
//! It holds these while the job runs, and none of them afterwards:
//!
//! | file | what | mode |
//! |---|---|---|
//! | `master.json` | address of the master, name and generation of the job; process id and host, for people | 0600 |
//! | `token` | the secret that every call to the master carries | 0600 |
//! | `job.journal` | what the job began with, for a successor of its master | 0600 |
//! | `head.journal` | the newest state of the job's head and nodes, for the same | 0600 |
//! | `ledger` | folder with the log of the ledger, for the same | |
//! | `output` | folder with what the nodes write | |
//!
//! The last four are there only for a job whose master may have a successor. A master holds a lock on the
//! directory, which the kernel takes from a process that ends. Where etcd says which master leads
//! (`--elect`), each has a folder `master-N` with a `head.journal` and a `ledger` of its own, so that a
//! master that was cut off cannot write to the files of the next one.
//!
//! The run directory is `--run-dir`, else the folder `run` in the report folder, else
//! `$XDG_STATE_HOME/antdt/JOB`, with `~/.local/state` where that variable is not set. There is a link of that name to it in the
//! first two cases, so that all jobs of a user and host are found in one place.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use antdt_proto::Token;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::job::JobSpec;
use crate::lead::{Elector, Lead, lock};
use crate::net;

/// Name of the file in the run directory with the address of the master.
pub const MASTER: &str = "master.json";

/// Name of the file in the run directory with the job's secret.
pub const TOKEN: &str = "token";

/// Name of the file with what a job began with.
pub(crate) const JOB: &str = "job.journal";

/// Name of the file with the newest state of a job's head.
pub const HEAD: &str = "head.journal";

/// Name of the folder with the log of the ledger.
pub(crate) const LEDGER: &str = "ledger";

/// What the names of folders with the journals of one master begin with; its number follows.
const OWN: &str = "master-";

/// Name of the folder with what nodes write.
pub(crate) const OUTPUT: &str = "output";

/// Mode of a run directory: whoever may open it may lock it, and keep its owner out.
const PRIVATE: u32 = 0o700;

/// How long a master that is named in a directory has to take a connection before the directory counts as left behind.
const PROBE: Duration = Duration::from_secs(2);

/// Content of the file `master.json`: how to reach the master of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterFile {
    /// Address of the master as `host:port`.
    pub address: String,
    /// URL of the job's live page; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<String>,
    /// Name of the job.
    pub job: String,
    /// Number of this master among the masters that the run directory has had, from 1.
    pub generation: u64,
    /// Process id of the master, for people who look into the file.
    pub pid: u32,
    /// Host of the master, for people who look into the file.
    pub host: String,
    /// Whether it takes encrypted connections only, by the job's secret.
    #[serde(default)]
    pub tls: bool,
}

impl MasterFile {
    fn runs_there(&self) -> String {
        format!("job `{}` runs there, at {}", self.job, self.address)
    }
}

/// Reason why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunDirError {
    /// No job runs in the directory.
    #[error("{}: no job runs there; name the --run-dir or --report-dir of a running job; `antdt jobs` lists those of this user and host", .0.display())]
    NoJob(PathBuf),
    /// Another job runs in the directory: stop it, or use another directory.
    #[error("{}: {who}; name another --run-dir or --report-dir, or stop that job", path.display())]
    Taken {
        /// Path of the directory.
        path: PathBuf,
        /// The job that runs in the directory with the address of its master, or the process that has the lock, in words.
        who: String,
    },
    /// The folder holds files of an earlier job.
    #[error("{flag} = {}: it holds {what}; `--resume {}` goes on with that job, --force replaces its files, and another folder leaves them as they are", path.display(), path.display())]
    Used {
        /// Flag that names the folder.
        flag: &'static str,
        /// Path of the folder.
        path: PathBuf,
        /// What the job has left, in words.
        what: &'static str,
    },
    /// Nodes of a job run in the directory without a master.
    #[error("{}: {alive} nodes of a job live there without a master{}; `antdt run --resume {}` without other settings takes them over, and without a master they end after --master-grace", path.display(), if changed.is_empty() { String::new() } else { format!(", which began with another {changed}") }, path.display())]
    Orphans {
        /// Path of the directory.
        path: PathBuf,
        /// Number of nodes that run.
        alive: usize,
        /// Names of the settings in which the command line differs from that job.
        changed: String,
    },
    /// The job in the directory keeps no record from which another master could continue it.
    #[error("{}: job `{job}` cannot have another master: it has neither --run-dir nor --report-dir, runs a program of the user's or has --emulate-network", path.display())]
    NoSuccessor {
        /// Path of the directory.
        path: PathBuf,
        /// Name of the job.
        job: String,
    },
    /// A file for a successor of the master is damaged.
    #[error("{}: {why}; delete the file once no process of the job is left, and the job goes on from its newest checkpoint", path.display())]
    Torn {
        /// Path of the file.
        path: PathBuf,
        /// Description of the damage.
        why: String,
    },
    /// The masters of the job cannot elect the one that leads it.
    #[error("--elect: {why}")]
    Election {
        /// Why the masters cannot elect one, and the remedy.
        why: String,
    },
    /// The file system of the directory has no locks.
    #[error("--run-dir = {}: it cannot be locked ({source}), so that two masters could lead one job; name a folder on a file system with locks, or let --elect say which master leads", path.display())]
    Unlocked {
        /// Path of the directory.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file cannot be read or written.
    #[error("--run-dir: {}: {source}; name a folder that this user can write to", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// A file does not have the expected content.
    #[error("{}: {why}; it belongs to another program or version", path.display())]
    Malformed {
        /// Path of the file.
        path: PathBuf,
        /// Description of what is wrong with the content.
        why: String,
    },
}

impl RunDirError {
    /// Why the lock on a directory cannot be asked for.
    fn of_lock(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match Errno::from_io_error(&source) {
            Some(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                Self::Unlocked { path, source }
            }
            _ => Self::File { path, source },
        }
    }
}

/// The directory of a job that runs in this process, which has it for itself. Dropping it removes its files.
#[derive(Debug)]
pub(crate) struct RunDir {
    path: PathBuf,
    /// Whether the directory was made for this job.
    made: bool,
    /// Whether the files stay when this is dropped, for a job that goes on without this process.
    pub(crate) keep: bool,
    /// The right to be the master there.
    lead: Arc<dyn Lead>,
}

impl RunDir {
    /// Opens a directory, which is made if it does not exist, for this process alone, if `elector` lets it lead.
    pub(crate) fn open(path: &Path, keep: bool, elector: &Elector) -> Result<Self, RunDirError> {
        let failed = |source| RunDirError::File { path: path.to_owned(), source };
        let made = !path.exists();
        path.parent().map_or(Ok(()), fs::create_dir_all).map_err(failed)?;
        if let Err(error) = DirBuilder::new().mode(PRIVATE).create(path)
            && !path.is_dir()
        {
            return Err(failed(error));
        }
        let lead = match (elector.try_lead(path), elector) {
            (Ok(Some(lead)), _) => lead,
            (Ok(None), _) => {
                let who = match read_master(path) {
                    Ok(last) => last.runs_there(),
                    Err(_) => {
                        let holder = File::open(path).ok().and_then(|lock| lock::holder(&lock));
                        format!("a job begins or ends there{}", lock::text(&holder))
                    }
                };
                return Err(RunDirError::Taken { path: path.to_owned(), who });
            }
            (Err(source), Elector::Lock) => return Err(RunDirError::of_lock(path, source)),
            (Err(error), Elector::Etcd(..)) => return Err(RunDirError::Election { why: error.to_string() }),
        };
        Ok(Self { path: path.to_owned(), made, keep, lead })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What this process must still have before it changes anything.
    pub(crate) fn lead(&self) -> Arc<dyn Lead> {
        Arc::clone(&self.lead)
    }

    /// The folder of this master's journals.
    pub(crate) fn journals(&self) -> PathBuf {
        self.lead
            .number()
            .map_or_else(|| self.path.clone(), |number| self.path.join(format!("{OWN}{number}")))
    }

    /// The folder of the newest journals of the masters before this one.
    pub(crate) fn last_journals(&self) -> PathBuf {
        let number = |path: &PathBuf| own_number(path).filter(|number| self.lead.number() > Some(*number));
        owned(&self.path)
            .into_iter()
            .filter_map(|path| Some((number(&path)?, path)))
            .max()
            .map_or_else(|| self.path.clone(), |(_, path)| path)
    }

    /// Announces the master of a job, by its address, the URL of its page, and whether it is called over TLS. Returns its number among the masters of this directory.
    pub(crate) fn announce(
        &self,
        (address, page, tls): (&str, Option<&str>, bool),
        job: &str,
        token: &Token,
    ) -> Result<u64, RunDirError> {
        let path = &self.path;
        let generation = match read_master(path) {
            // A lock is of one host; the same address is this process. One that etcd has put out may answer for a moment.
            Ok(last) if self.lead.number().is_none() && last.address != address && answers(&last.address) => {
                return Err(RunDirError::Taken { path: path.clone(), who: last.runs_there() });
            }
            Ok(last) => last.generation.saturating_add(1).max(self.lead.number().unwrap_or(0)),
            Err(RunDirError::NoJob(_)) => self.lead.number().unwrap_or(1),
            Err(error) => return Err(error),
        };
        let master = MasterFile {
            address: address.to_owned(),
            page: page.map(str::to_owned),
            job: job.to_owned(),
            generation,
            pid: std::process::id(),
            host: crate::host::name(),
            tls,
        };
        let text = serde_json::to_string_pretty(&master).expect("plain values") + "\n";
        // The address last: a reader that finds it finds the token too.
        for (name, mode, text) in [(TOKEN, 0o600, token.text()), (MASTER, 0o600, &*text)] {
            let path = path.join(name);
            replace(&path, mode, text, Durability::Disk)
                .map_err(|source| RunDirError::File { path, source })?;
        }
        if let Some(entry) = self.entry(job) {
            let _ = fs::remove_file(&entry);
            let entered = entry.parent().map_or(Ok(()), fs::create_dir_all);
            if let Err(error) = entered.and_then(|()| symlink(std::path::absolute(path)?, &entry)) {
                tracing::debug!(%error, entry = %entry.display(), "`antdt jobs` does not list the job");
            }
        }
        Ok(generation)
    }

    /// The link in the user's state folder by which the job is found; `None` if the directory itself is there.
    fn entry(&self, job: &str) -> Option<PathBuf> {
        let entry = state_folder()?.join(file_name(job));
        (std::path::absolute(&self.path).ok()? != entry).then_some(entry)
    }

    /// Removes what is there for a successor.
    pub(crate) fn clear(&self) {
        for name in [JOB, HEAD] {
            // Not there, or left for people to find.
            let _ = fs::remove_file(self.path.join(name));
        }
        for path in [LEDGER, OUTPUT].map(|name| self.path.join(name)).into_iter().chain(owned(&self.path)) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        if !self.keep {
            self.clear();
            if let Some(entry) = read_master(&self.path).ok().and_then(|master| self.entry(&master.job)) {
                let _ = fs::remove_file(entry);
            }
            for name in [MASTER, TOKEN] {
                // Removed by another process already, or left for people to find; it names a master that does not answer.
                let _ = fs::remove_file(self.path.join(name));
            }
        }
        if self.made {
            // Fails if something is kept there.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Folders of journals of one master each.
fn owned(path: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| own_number(path).is_some()).collect()
}

fn own_number(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(OWN)?.parse().ok()
}

/// Returns the run directory of a job, as the module says; `None` if there is no place for one.
pub(crate) fn place(spec: &JobSpec, job: &str) -> Option<PathBuf> {
    match (&spec.run_dir, &spec.report_dir) {
        (Some(path), _) => Some(path.clone()),
        (None, Some(report)) => Some(report.join("run")),
        (None, None) => Some(state_folder()?.join(file_name(job))),
    }
}

/// Returns the run directory that is meant: that of a report folder, or the folder itself.
pub(crate) fn below(dir: &Path) -> PathBuf {
    let below = dir.join("run");
    let has_one = [JOB, MASTER].iter().any(|name| dir.join(name).exists());
    let dir = if !has_one && below.is_dir() { &below } else { dir };
    std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned())
}

/// Where the run directories of jobs are that name none.
fn state_folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    Some(state.join("antdt"))
}

/// The name of a job as that of a folder.
pub(crate) fn file_name(job: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_".contains(c) { c } else { '_' };
    job.chars().map(plain).collect()
}

/// Reads the address of the job's master and the job's secret from a run directory.
///
/// # Errors
/// If no job runs there, or this user may not read the files.
pub fn read(path: &Path) -> Result<(MasterFile, Token), RunDirError> {
    let master = read_master(path)?;
    let file = path.join(TOKEN);
    let text =
        fs::read_to_string(&file).map_err(|source| RunDirError::File { path: file.clone(), source })?;
    let token = Token::new(text.trim())
        .map_err(|error| RunDirError::Malformed { path: file, why: error.to_string() })?;
    Ok((master, token))
}

pub(crate) fn read_master(path: &Path) -> Result<MasterFile, RunDirError> {
    let file = path.join(MASTER);
    let text = match fs::read_to_string(&file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(RunDirError::NoJob(path.to_owned()));
        }
        Err(source) => return Err(RunDirError::File { path: file, source }),
    };
    // What a power cut leaves of a file that was not on the disk.
    if text.is_empty() {
        return Err(RunDirError::NoJob(path.to_owned()));
    }
    serde_json::from_str(&text).map_err(|error| RunDirError::Malformed { path: file, why: error.to_string() })
}

/// Returns the run directories of this user's jobs on this host whose master answers, sorted.
pub fn known() -> Vec<PathBuf> {
    state_folder().map(|folder| alive(&folder)).unwrap_or_default()
}

/// The run directories in a folder whose master answers: one that was killed leaves its directory behind.
fn alive(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let paths = entries.filter_map(|entry| entry.ok()?.path().canonicalize().ok());
    let lives = |path: &PathBuf| read_master(path).is_ok_and(|master| answers(&master.address));
    let mut paths: Vec<PathBuf> = paths.filter(lives).collect();
    paths.sort();
    // A job that was resumed under another name has two links.
    paths.dedup();
    paths
}

/// Whether a process listens at that address.
pub(crate) fn answers(address: &str) -> bool {
    net::resolve(address, IpAddr::V4(Ipv4Addr::UNSPECIFIED))
        .and_then(|address| TcpStream::connect_timeout(&address, PROBE))
        .is_ok()
}

/// What a file that was written outlives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durability {
    /// The process.
    Process,
    /// The machine's power.
    Disk,
}

/// Writes a file that others see whole or not at all.
pub(crate) fn replace(path: &Path, mode: u32, text: &str, durability: Durability) -> io::Result<()> {
    let part = path.with_extension("part");
    let _ = fs::remove_file(&part);
    let mut file: File = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
    file.write_all(text.as_bytes())?;
    if durability == Durability::Process {
        return fs::rename(&part, path);
    }
    file.sync_all()?;
    fs::rename(&part, path)?;
    // The folder of a name alone is the working directory, and its parent an empty path.
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn token() -> Token {
        Token::new("secret").unwrap()
    }

    #[test]
    fn file_of_a_name_alone_is_one_in_the_working_directory() {
        let name = PathBuf::from(format!("antdt-test-{}", std::process::id()));
        let written = replace(&name, 0o600, "x", Durability::Disk);
        let text = fs::read_to_string(&name);
        fs::remove_file(&name).unwrap();
        assert_eq!((written.map_err(|error| error.to_string()), text.unwrap()), (Ok(()), "x".to_owned()));
    }

    #[test]
    fn a_job_is_found_while_it_runs_and_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report/run");
        let dir = RunDir::open(&path, false, &Elector::Lock).unwrap();
        dir.announce(("127.0.0.1:1", None, false), "demo", &token()).unwrap();
        let (master, found) = read(&path).unwrap();
        assert_eq!(
            (master.address.as_str(), master.job.as_str(), master.generation),
            ("127.0.0.1:1", "demo", 1)
        );
        assert_eq!((master.pid, found), (std::process::id(), token()));
        // Who may open the directory may lock it, and keep its owner out.
        for (path, expected) in [(path.clone(), 0o700), (path.join(TOKEN), 0o600)] {
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, expected, "{path:?}");
        }
        drop(dir);
        assert!(!path.exists() && folder.path().join("report").exists());
        assert!(matches!(read(&path), Err(RunDirError::NoJob(_))));
    }

    #[test]
    fn directory_on_a_file_system_without_locks_is_refused_with_the_remedy() {
        let of = |errno: Errno| RunDirError::of_lock(Path::new("/nfs/run"), errno.into()).to_string();
        for errno in [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS] {
            let error = of(errno);
            assert!(error.contains("cannot be locked") && error.contains("--elect"), "{error}");
        }
        assert!(of(Errno::ACCESS).contains("that this user can write to"));
    }

    #[test]
    fn a_directory_in_use_is_refused_and_one_left_behind_is_taken_over() {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let first = RunDir::open(folder.path(), true, &Elector::Lock).unwrap();
        first.announce((&address, None, false), "first", &token()).unwrap();
        let refused = RunDir::open(folder.path(), false, &Elector::Lock).unwrap_err();
        assert!(refused.to_string().contains("first") && refused.to_string().contains(&address), "{refused}");
        drop(first);
        let dir = RunDir::open(folder.path(), false, &Elector::Lock).unwrap();
        // As one of another host, which the lock does not keep away.
        let refused = dir.announce(("127.0.0.1:1", None, false), "second", &token()).unwrap_err();
        assert!(refused.to_string().contains("first") && refused.to_string().contains(&address), "{refused}");
        drop(listener);
        assert_eq!(dir.announce(("127.0.0.1:1", None, false), "second", &token()).unwrap(), 2);
        assert_eq!(read(folder.path()).unwrap().0.generation, 2);
        drop(dir);
        assert!(folder.path().exists(), "it was there before the job");
    }

    #[test]
    fn a_job_whose_master_was_killed_is_not_known() {
        let folder = tempfile::tempdir().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let [dead, lives] = ["a", "b"].map(|name| folder.path().join(name));
        for (path, address) in [(&dead, "127.0.0.1:1"), (&lives, &*address)] {
            RunDir::open(path, true, &Elector::Lock)
                .unwrap()
                .announce((address, None, false), "demo", &token())
                .unwrap();
        }
        assert_eq!(alive(folder.path()), [lives]);
    }

    /// The lead of a master that has a number.
    #[derive(Debug)]
    struct Numbered(u64);

    impl Lead for Numbered {
        fn holds(&self) -> bool {
            true
        }

        fn number(&self) -> Option<u64> {
            Some(self.0)
        }
    }

    #[test]
    fn an_elected_master_has_journals_of_its_own_and_finds_those_of_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let dir = |number| RunDir {
            path: folder.path().to_owned(),
            made: false,
            keep: true,
            lead: Arc::new(Numbered(number)),
        };
        let (first, third) = (dir(2), dir(11));
        assert_eq!(third.last_journals(), folder.path(), "there are none");
        for master in [&first, &third] {
            fs::create_dir(master.journals()).unwrap();
        }
        // What a master did not get ready is no journal.
        fs::create_dir(dir(12).journals().with_extension("part")).unwrap();
        assert_eq!(dir(13).last_journals(), third.journals());
        assert_eq!(third.last_journals(), first.journals(), "never what a later one writes, nor its own");
        assert_eq!(third.announce(("127.0.0.1:1", None, false), "job", &token()).unwrap(), 11);
        assert_eq!(dir(12).announce(("127.0.0.1:1", None, false), "job", &token()).unwrap(), 12);
        third.clear();
        assert_eq!(owned(folder.path()), Vec::<PathBuf>::new());
    }

    #[test]
    fn the_place_is_the_one_that_is_named_or_below_the_report() {
        let mut spec = JobSpec { report_dir: Some("/r".into()), ..JobSpec::default() };
        assert_eq!(place(&spec, "j"), Some("/r/run".into()));
        spec.run_dir = Some("/d".into());
        assert_eq!(place(&spec, "j"), Some("/d".into()));
        assert_eq!(file_name("../a b/c.d"), "___a_b_c_d");
    }

    #[test]
    fn a_file_that_is_not_ours_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(MASTER), "{}").unwrap();
        assert!(matches!(read(folder.path()), Err(RunDirError::Malformed { .. })));
        let dir = RunDir::open(folder.path(), false, &Elector::Lock).unwrap();
        assert!(dir.announce(("127.0.0.1:1", None, false), "x", &token()).is_err());
    }
}
