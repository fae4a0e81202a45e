//! Asks a running job: its status, another size, a checkpoint, or its end.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_core::Connections;

use super::print;
use crate::cli::{ScaleTo, Show, Status};
use crate::diagnosis;
use crate::remote::{self, RemoteError, RemoteJob};
use crate::run_dir::{self, MasterFile};

/// Pause between two looks of one that watches.
const LOOK: Duration = Duration::from_secs(1);

/// What clears a terminal, and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Shows how far a job is, or what is slow in it, once or until it has ended.
pub(super) fn status(asked: &Status, connections: &Connections) -> anyhow::Result<()> {
    if !asked.watch {
        return show(asked, connections);
    }
    let mut asked = asked.clone();
    let dir = known(&mut asked.dir)?;
    show(&asked, connections)?;
    loop {
        std::thread::sleep(LOOK);
        match show(&asked, connections) {
            Ok(()) => {}
            // A master that is gone has removed its file; one that was killed has left it, and that is said.
            Err(_) if run_dir::read_master(&dir).is_err() => return print("the job has ended\n"),
            Err(error) => return Err(error),
        }
    }
}

/// The run directory of the job that is meant, which stays the same while it is watched.
fn known(dir: &mut Option<PathBuf>) -> Result<PathBuf, RemoteError> {
    let named = match dir.take() {
        Some(dir) => run_dir::below(&dir),
        None => RemoteJob::only()?,
    };
    *dir = Some(named.clone());
    Ok(named)
}

fn show(asked: &Status, connections: &Connections) -> anyhow::Result<()> {
    let clear = if asked.watch && std::io::stdout().is_terminal() { CLEAR } else { "" };
    remote(asked.dir.as_deref(), connections.clone(), async |job| {
        Ok(match asked.show {
            Show::Progress => {
                let page = job.page().map(|url| {
                    format!("live page {url}; {} opens its buttons\n", job.token_file().display())
                });
                clear.to_owned() + &remote::render(&job.describe().await?) + &page.unwrap_or_default()
            }
            Show::Diagnosis => clear.to_owned() + &diagnosis::render(&job.diagnose().await?),
            Show::DiagnosisJson => format!("{:#}\n", diagnosis::to_json(&job.diagnose().await?)),
        })
    })
}

/// Lists the jobs of this user and host.
pub(super) fn jobs() -> anyhow::Result<()> {
    let line = |dir: PathBuf| {
        let MasterFile { job, address, pid, host, .. } = run_dir::read_master(&dir).ok()?;
        Some(format!("{job}  {}  master {address}, process {pid} on {host}\n", dir.display()))
    };
    let lines: String = run_dir::known().into_iter().filter_map(line).collect();
    print(if lines.is_empty() { "no job of this user runs on this host\n" } else { &lines })
}

/// Ends a job.
pub(super) fn stop(dir: Option<&Path>, connections: Connections) -> anyhow::Result<()> {
    remote(dir, connections, async |job| {
        job.stop().await?;
        Ok(format!("job {} is stopped\n", job.job()))
    })
}

/// Has a job take a checkpoint, and waits for it.
pub(super) fn checkpoint(dir: Option<&Path>, connections: Connections) -> anyhow::Result<()> {
    remote(dir, connections, async |job| {
        let (checkpoint, place) = job.checkpoint().await?;
        Ok(format!("job {}: checkpoint {checkpoint} is complete: {place}\n", job.job()))
    })
}

/// Changes the number of workers or of servers of a job.
pub(super) fn scale(to: &ScaleTo, dir: Option<&Path>, connections: Connections) -> anyhow::Result<()> {
    remote(dir, connections, async |job| {
        let (before, now, which) = match *to {
            ScaleTo::Workers(workers) => (job.scale(workers).await?, workers, "workers"),
            ScaleTo::Servers(servers) => (job.scale_servers(servers).await?, servers, "servers"),
        };
        Ok(match before == now {
            true => format!("job {} has {now} {which} already\n", job.job()),
            false => format!("job {} changes from {before} to {now} {which}\n", job.job()),
        })
    })
}

/// Kills a worker of a job, which is started again.
pub(super) fn restart(worker: u32, dir: Option<&Path>, connections: Connections) -> anyhow::Result<()> {
    remote(dir, connections, async |job| {
        job.restart(worker).await?;
        Ok(format!("job {}: worker-{worker} is killed and started again\n", job.job()))
    })
}

/// Asks a running job, and prints what it says.
fn remote(
    dir: Option<&Path>,
    connections: Connections,
    ask: impl AsyncFnOnce(&RemoteJob) -> Result<String, RemoteError>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let text = runtime.block_on(async { ask(&RemoteJob::find_with(dir, connections)?).await })?;
    print(&text)
}
