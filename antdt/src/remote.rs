//! [`RemoteJob`]: a client of a running job, found by its run directory: it asks for progress and a
//! diagnosis, changes the number of workers, takes a checkpoint, and ends the job.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use antdt_core::{Connections, Holder, InvalidValue, Role};
use antdt_proto::v1::job_client::JobClient;
use antdt_proto::{Bearer, JobChannel, connection, v1};
use tonic::Code;
use tonic::transport::Endpoint;

use crate::run_dir::{self, MasterFile, RunDirError};
use crate::{protection, resume};

/// Limit of one call.
const CALL_LIMIT: Duration = Duration::from_secs(5);

/// How long a job that was asked to stop may take: it gives its nodes a grace, and writes its report.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How long a master that answers no calls any more may take to remove its file.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two looks at a job that should end.
const LOOK: Duration = Duration::from_millis(50);

/// Reason why a request to a running job failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The job's run directory cannot be used.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The program cannot encrypt its calls as the job wants them.
    #[error(transparent)]
    Invalid(#[from] InvalidValue),
    /// The user named no run directory, and runs no job on this host.
    #[error("no job of this user runs on this host; name the run directory of one")]
    NoneKnown,
    /// The user named no run directory, and runs several jobs on this host, whose run directories are listed here.
    #[error("several jobs run; name one of {}", list(.0))]
    SeveralKnown(Vec<PathBuf>),
    /// The master of the job does not answer.
    #[error("job `{job}`: its master at {address} does not answer ({why}); it may have been killed{}", goes_on(.dir))]
    Unreachable {
        /// Name of the job.
        job: String,
        /// Address of the job's master.
        address: String,
        /// Error of the last call, in words.
        why: String,
        /// Path of the job's run directory, if the job left something there to resume it from.
        dir: Option<PathBuf>,
    },
    /// The master refuses the token of this process.
    #[error("job `{job}`: its master at {address} refuses the token ({why}); the directory is another job's")]
    Refused {
        /// Name of the job.
        job: String,
        /// Address of the job's master.
        address: String,
        /// The master's explanation.
        why: String,
    },
    /// The job cannot have that many workers or servers.
    #[error("job `{job}` does not change to {to}: {why}")]
    NotScaled {
        /// Name of the job.
        job: String,
        /// What the user asked for, such as `3 servers`.
        to: String,
        /// The master's reason.
        why: String,
    },
    /// The worker cannot be started again.
    #[error("job `{job}` does not start worker-{worker} again: {why}")]
    NotRestarted {
        /// Name of the job.
        job: String,
        /// Index of the worker.
        worker: u32,
        /// The master's reason.
        why: String,
    },
    /// The job takes no checkpoint now, or could not finish the requested one.
    #[error("job `{job}` takes no checkpoint: {why}")]
    NotKept {
        /// Name of the job.
        job: String,
        /// The master's reason.
        why: String,
    },
    /// The job ended while the caller waited for a checkpoint.
    #[error(
        "job `{job}` has ended before it could say what became of the checkpoint; its report and `antdt model list` say what it kept"
    )]
    Ended {
        /// Name of the job.
        job: String,
    },
    /// The job did not end within the deadline.
    #[error("job `{job}` was asked to stop and still runs after {after:?}; end its nodes, or wait")]
    StillRunning {
        /// Name of the job.
        job: String,
        /// Time that this process waited for the end.
        after: Duration,
    },
}

fn goes_on(dir: &Option<PathBuf>) -> String {
    let resume = |dir: &PathBuf| format!("; antdt run --resume {} goes on with its job", dir.display());
    dir.as_ref().map(resume).unwrap_or_default()
}

fn list(paths: &[PathBuf]) -> String {
    let texts: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    texts.join(", ")
}

/// A client of a job that may run in another process.
#[derive(Debug)]
pub struct RemoteJob {
    dir: PathBuf,
    master: MasterFile,
    client: JobClient<JobChannel>,
}

impl RemoteJob {
    /// Finds the job that runs in the run directory `dir`. With `None`, finds the only job of this user on this host.
    ///
    /// Must be called within a tokio runtime; nothing is sent yet.
    ///
    /// # Errors
    /// If there is no such job, or several.
    pub fn find(dir: Option<&Path>) -> Result<Self, RemoteError> {
        Self::find_with(dir, Connections::default())
    }

    /// Finds a job as [`find`](Self::find) does, and connects with its master as its program does.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    pub fn find_with(dir: Option<&Path>, connections: Connections) -> Result<Self, RemoteError> {
        let dir = match dir {
            Some(dir) => dir.to_owned(),
            None => Self::only()?,
        };
        // People name the report folder as well.
        let dir = run_dir::below(&dir);
        let (master, token) = run_dir::read(&dir)?;
        let endpoint = Endpoint::from_shared(format!("http://{}", master.address)).map_err(|error| {
            RunDirError::Malformed { path: dir.join(run_dir::MASTER), why: error.to_string() }
        })?;
        let connections = match master.tls && connections == Connections::default() {
            true => protection::by_secret(token.text())?,
            false => connections,
        };
        let channel = connection::channel(&endpoint.timeout(CALL_LIMIT), CALL_LIMIT, connections);
        let client = JobClient::new(Bearer::new(&token).over(channel));
        Ok(Self { dir, master, client })
    }

    /// Returns the run directory of the only running job of this user on this host.
    ///
    /// # Errors
    /// If there is none, or several.
    pub fn only() -> Result<PathBuf, RemoteError> {
        let mut known = run_dir::known();
        match (known.pop(), known.is_empty()) {
            (None, _) => Err(RemoteError::NoneKnown),
            (Some(only), true) => Ok(only),
            (Some(last), false) => {
                known.push(last);
                Err(RemoteError::SeveralKnown(known))
            }
        }
    }

    /// Asks the master for the progress of the job.
    ///
    /// # Errors
    /// If the master does not answer.
    pub async fn describe(&self) -> Result<v1::DescribeReply, RemoteError> {
        let reply = self.client.clone().describe(v1::DescribeRequest {}).await;
        reply.map(tonic::Response::into_inner).map_err(|status| self.failed(&status))
    }

    /// Asks the master which nodes are slow, and what was done about them.
    ///
    /// # Errors
    /// If the master does not answer.
    pub async fn diagnose(&self) -> Result<v1::DiagnoseReply, RemoteError> {
        let reply = self.client.clone().diagnose(v1::DiagnoseRequest {}).await;
        reply.map(tonic::Response::into_inner).map_err(|status| self.failed(&status))
    }

    /// Ends the job in order, as an interrupt does, and waits until its master has ended.
    ///
    /// # Errors
    /// If the master does not answer, or does not end within a minute.
    pub async fn stop(&self) -> Result<(), RemoteError> {
        let asked = self.client.clone().stop(v1::StopRequest {}).await;
        asked.map_err(|status| self.failed(&status))?;
        let deadline = tokio::time::Instant::now() + STOP_LIMIT;
        // Removed by the master as the last thing it does. Another job may have taken the directory meanwhile.
        while run_dir::read(&self.dir).is_ok_and(|(master, _)| master == self.master)
            && run_dir::answers(&self.master.address)
        {
            if tokio::time::Instant::now() >= deadline {
                return Err(RemoteError::StillRunning { job: self.master.job.clone(), after: STOP_LIMIT });
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }

    /// Changes the number of workers, and returns the number before. The master answers at once; added
    /// workers start, and surplus workers leave after their step.
    ///
    /// # Errors
    /// If the master does not answer, or refuses the number.
    pub async fn scale(&self, workers: u32) -> Result<u32, RemoteError> {
        let request = v1::ScaleRequest { workers, servers: None };
        self.try_scale(request, format!("{workers} workers")).await
    }

    /// Changes the number of parameter servers, and returns the number before. The master answers at once; the
    /// job then takes a checkpoint, and all servers start again from it, without the loss of a step.
    ///
    /// # Errors
    /// If the master does not answer, or refuses the number.
    pub async fn scale_servers(&self, servers: u32) -> Result<u32, RemoteError> {
        let request = v1::ScaleRequest { workers: 0, servers: Some(servers) };
        self.try_scale(request, format!("{servers} servers")).await
    }

    async fn try_scale(&self, request: v1::ScaleRequest, to: String) -> Result<u32, RemoteError> {
        let reply = self.client.clone().scale(request).await;
        let reply = reply.map_err(|status| match status.code() {
            Code::FailedPrecondition => {
                RemoteError::NotScaled { job: self.master.job.clone(), to, why: status.message().to_owned() }
            }
            _ => self.failed(&status),
        })?;
        Ok(reply.into_inner().before)
    }

    /// Has a worker killed and started again. The master answers at once.
    ///
    /// # Errors
    /// If the master does not answer, or the worker does not take part now.
    pub async fn restart(&self, worker: u32) -> Result<(), RemoteError> {
        let reply = self.client.clone().restart(v1::RestartRequest { worker }).await;
        reply.map(drop).map_err(|status| match status.code() {
            Code::FailedPrecondition => RemoteError::NotRestarted {
                job: self.master.job.clone(),
                worker,
                why: status.message().to_owned(),
            },
            _ => self.failed(&status),
        })
    }

    /// Makes the job take a checkpoint, waits for it, and returns its number and location. The wait has no
    /// limit of its own, because the master gives up a checkpoint that takes too long.
    ///
    /// # Errors
    /// If the master does not answer, takes no checkpoint now, could not finish it, or has ended.
    pub async fn checkpoint(&self) -> Result<(u64, String), RemoteError> {
        let refused = |why: String| RemoteError::NotKept { job: self.master.job.clone(), why };
        let mut checkpoint = None;
        loop {
            let reply = self.client.clone().checkpoint(v1::CheckpointRequest { checkpoint }).await;
            let reply = reply.map_err(|status| match status.code() {
                Code::FailedPrecondition => refused(status.message().to_owned()),
                _ => self.failed(&status),
            });
            let reply = match reply {
                Err(RemoteError::Unreachable { .. }) if self.has_ended().await => {
                    return Err(RemoteError::Ended { job: self.master.job.clone() });
                }
                reply => reply?,
            };
            let v1::CheckpointReply { checkpoint: number, ended } = reply.into_inner();
            match ended {
                Some(v1::checkpoint_reply::Ended::Place(place)) => return Ok((number, place)),
                Some(v1::checkpoint_reply::Ended::Failure(why)) => {
                    return Err(refused(format!("checkpoint {number}: {why}")));
                }
                None => checkpoint = Some(number),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Returns the name of the job.
    pub fn job(&self) -> &str {
        &self.master.job
    }

    /// Returns the URL of the job's live page, if it has one (`--http-addr`).
    pub fn page(&self) -> Option<&str> {
        self.master.page.as_deref()
    }

    /// Returns the file with the token of the job, by which its live page takes orders.
    pub fn token_file(&self) -> PathBuf {
        self.dir.join(run_dir::TOKEN)
    }

    /// Whether a master that does not answer has ended in order: then it removes its file, or another one has replaced it.
    async fn has_ended(&self) -> bool {
        let deadline = tokio::time::Instant::now() + LEAVE_LIMIT;
        while run_dir::read(&self.dir).is_ok_and(|(master, _)| master == self.master) {
            if tokio::time::Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
        true
    }

    fn failed(&self, status: &tonic::Status) -> RemoteError {
        let (job, address) = (self.master.job.clone(), self.master.address.clone());
        let why = status.message().to_owned();
        match status.code() {
            Code::Unauthenticated => RemoteError::Refused { job, address, why },
            _ => {
                let left =
                    [run_dir::JOB, resume::CHECKPOINTS].iter().any(|name| self.dir.join(name).exists());
                RemoteError::Unreachable { job, address, why, dir: left.then(|| self.dir.clone()) }
            }
        }
    }
}

/// Returns the progress of a job as text of a few lines.
pub fn render(reply: &v1::DescribeReply) -> String {
    let elapsed = Duration::from_nanos(reply.elapsed_ns).as_secs_f64();
    let mut text = format!("job {}: {elapsed:.1} s, {} steps", reply.job, reply.steps);
    if let Some(counts) = &reply.counts {
        let _ = write!(text, ", {} of {} samples committed", counts.acked, counts.total);
        if counts.quarantined > 0 {
            let _ = write!(text, ", {} unreadable", counts.quarantined);
        }
    }
    text += if reply.stopping { ", stopping\n" } else { "\n" };
    let _ = write!(text, "{} of {} workers take part", reply.members, reply.workers);
    if reply.samples_per_second > 0.0 {
        let _ = write!(text, ", {:.0} samples/s", reply.samples_per_second);
    }
    if let Some(loss) = reply.loss {
        let _ = write!(text, ", loss {loss:.4}");
    }
    text.push('\n');
    let dry = if reply.dry_run { ", dry run: its decisions are not carried out" } else { "" };
    let _ = writeln!(text, "policy {}{dry}", reply.policy);
    for node in &reply.nodes {
        let Some(Ok(holder)) = node.holder.map(Holder::try_from) else { continue };
        let state = match (node.state(), node.code, node.signal) {
            (v1::LaunchState::Pending, ..) => "pending".to_owned(),
            (v1::LaunchState::Running, ..) => "running".to_owned(),
            (v1::LaunchState::Gone, Some(code), _) => format!("gone, exit code {code}"),
            (v1::LaunchState::Gone, None, Some(signal)) => format!("gone, signal {signal}"),
            (v1::LaunchState::Gone, None, None) => "gone".to_owned(),
            (v1::LaunchState::Unspecified, ..) => "unknown".to_owned(),
        };
        let host = match holder.node.role {
            Role::Worker => format!(" on {}", node.host),
            Role::Server => String::new(),
        };
        let _ = writeln!(text, "  {}, life {}: {state}{host}", holder.node, holder.incarnation);
    }
    if !reply.actions.is_empty() {
        text += "last actions\n";
    }
    for v1::Decision { at_ns, kind, target, reason } in &reply.actions {
        let at = Duration::from_nanos(*at_ns).as_secs_f64();
        let _ = writeln!(text, "  {at:.1} s  {kind} {target}: {reason}");
    }
    text
}

#[cfg(test)]
mod tests {
    use antdt_proto::Token;

    use super::*;

    /// The clock is virtual: the wait for a file that stays takes no time.
    #[tokio::test(start_paused = true)]
    async fn a_job_that_ends_in_order_has_ended_and_a_master_that_leaves_its_file_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let token = Token::new("secret").unwrap();
        // No process listens there.
        let dir = run_dir::RunDir::open(folder.path(), false, &crate::lead::Elector::Lock).unwrap();
        dir.announce(("127.0.0.1:1", None, false), "demo", &token).unwrap();
        let job = RemoteJob::find(Some(folder.path())).unwrap();
        let killed = job.checkpoint().await.unwrap_err();
        assert!(matches!(killed, RemoteError::Unreachable { .. }), "{killed}");
        assert!(killed.to_string().ends_with("it may have been killed"), "{killed}");
        std::fs::create_dir(folder.path().join(resume::CHECKPOINTS)).unwrap();
        let killed = job.describe().await.unwrap_err().to_string();
        let says = format!("killed; antdt run --resume {} goes on with its job", folder.path().display());
        assert!(killed.ends_with(&says), "{killed}");
        drop(dir);
        let ended = job.checkpoint().await.unwrap_err();
        assert!(ended.to_string().contains("job `demo` has ended"), "{ended}");
    }

    #[test]
    fn a_job_is_told_in_a_few_lines() {
        let node = |role: v1::Role, state: v1::LaunchState, signal| v1::NodeState {
            holder: Some(v1::Holder { role: role.into(), index: 1, incarnation: 2 }),
            state: state.into(),
            code: None,
            signal,
            host: "here".to_owned(),
        };
        let reply = v1::DescribeReply {
            job: "demo".to_owned(),
            elapsed_ns: 1_500_000_000,
            steps: 7,
            counts: Some(v1::Counts { total: 10, acked: 4, ..v1::Counts::default() }),
            workers: 2,
            members: 1,
            samples_per_second: 12.3,
            loss: Some(0.5),
            nodes: vec![
                node(v1::Role::Worker, v1::LaunchState::Running, None),
                node(v1::Role::Server, v1::LaunchState::Gone, Some(9)),
            ],
            stopping: true,
            policy: "nd".to_owned(),
            dry_run: true,
            actions: vec![v1::Decision {
                at_ns: 900_000_000,
                kind: "WOULD_ADJUST_BS".to_owned(),
                target: "all".to_owned(),
                reason: "worker-1 is slow".to_owned(),
            }],
        };
        let expected = "job demo: 1.5 s, 7 steps, 4 of 10 samples committed, stopping\n\
                        1 of 2 workers take part, 12 samples/s, loss 0.5000\n\
                        policy nd, dry run: its decisions are not carried out\n  \
                        worker-1, life 2: running on here\n  server-1, life 2: gone, signal 9\n\
                        last actions\n  0.9 s  WOULD_ADJUST_BS all: worker-1 is slow\n";
        assert_eq!(render(&reply), expected);
    }

    #[tokio::test]
    async fn a_directory_without_a_job_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = RemoteJob::find(Some(folder.path())).unwrap_err().to_string();
        assert!(error.contains("no job runs there"), "{error}");
    }
}
