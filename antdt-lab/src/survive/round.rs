//! Membership rounds: all members of a job ask its master for a group at once, each over a connection of its own, and all are told.
//!
//! The master is that of `antdt run`, with its journal, its calls over gRPC on loopback and its head. The members are no processes
//! but tasks of this one, which register, send heartbeats and ask for groups as workers do, and train nothing: what they cost the
//! machine is in the times, too.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use antdt::job::{DataSpec, JobSpec};
use antdt::master::{self, Programs, Seams, TrainingData};
use antdt::node::NodeEnv;
use antdt::report::Outcome;
use antdt_core::{Holder, MembershipVersion, NodeId, Standing};
use antdt_launch::{
    LaunchError, LaunchStatus, Launcher, LauncherEvent, LauncherFactory, NodeExit, NodeSpec, Outlets,
};
use antdt_proto::v1::control_client::ControlClient;
use antdt_proto::{Bearer, JobChannel, v1};
use antdt_rt::CancellationToken;
use anyhow::{Context, Result, anyhow, bail, ensure};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Endpoint;

/// Rounds before those that are measured.
const WARM_UP: usize = 3;

/// Samples of the job, which are never trained.
const SAMPLES: u64 = 1 << 20;

/// Bound on a round, and on the start; both take far less than a second for each member.
const LIMIT: Duration = Duration::from_secs(60);

/// The times of so many rounds of a job with so many members, in seconds.
pub(super) fn measure(members: u32, rounds: usize, folder: &Path) -> Result<Vec<f64>> {
    let (told, asked) = mpsc::unbounded_channel();
    let spec = JobSpec {
        workers: members,
        global_batch_size: 8 * members,
        policy: "none".to_owned(),
        // It has no reader.
        data: Some(DataSpec::Synthetic { rows: SAMPLES }),
        sync: "allreduce".parse()?,
        run_dir: Some(folder.join("run")),
        quiet: true,
        ..JobSpec::default()
    };
    let stop = CancellationToken::new();
    let job = thread::spawn({
        let stop = stop.clone();
        move || -> Result<()> {
            // As the command has it.
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
            let launcher: LauncherFactory =
                Arc::new(move |outlets| Box::new(Members::new(outlets, told.clone())));
            let seams = Seams { launcher: Some(launcher), ..Seams::default() };
            let nobody = (Default::default(), Vec::new());
            let programs = Programs {
                worker: nobody.clone(),
                server: nobody,
                env: Vec::new(),
                layout: None,
                foreign: false,
            };
            let data = Some(TrainingData::of(SAMPLES));
            let ended = stop.clone();
            let report = runtime.block_on(master::run(&spec, data, &programs, seams, stop))?;
            match report.outcome {
                Outcome::Failed { why } if !ended.is_cancelled() => bail!(why),
                _ => Ok(()),
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let measured = runtime.block_on(async { rounds_of(members, rounds, asked).await });
    // Heartbeats end with it; the master ends by itself.
    drop(runtime);
    stop.cancel();
    let ended = job.join().map_err(|_| anyhow!("the master panicked"))?;
    // If it failed, that is why nothing was measured.
    ended.context("the master of the job")?;
    measured
}

async fn rounds_of(
    members: u32,
    rounds: usize,
    mut asked: mpsc::UnboundedReceiver<NodeSpec>,
) -> Result<Vec<f64>> {
    let mut all = Vec::new();
    for _ in 0..members {
        let spec = tokio::time::timeout(LIMIT, asked.recv()).await.context("the master starts no members")?;
        all.push(Member::register(&spec.context("the master has ended before all were started")?).await?);
    }
    let mut times = Vec::new();
    let mut group = MembershipVersion(0);
    for round in 0..=WARM_UP + rounds {
        let began = Instant::now();
        let mut joins = JoinSet::new();
        for member in &all {
            joins.spawn(member.clone().join(group));
        }
        let mut versions = Vec::new();
        while let Some(joined) = tokio::time::timeout(LIMIT, joins.join_next()).await? {
            versions.push(joined??);
        }
        let took = began.elapsed().as_secs_f64();
        let (formed, size) = *versions.first().context("nobody was told of a group")?;
        ensure!(
            formed > group && size == members as usize && versions.iter().all(|told| *told == (formed, size)),
            "not all {members} members are in one new group after group {group}: {versions:?}"
        );
        group = formed;
        if round > WARM_UP {
            times.push(took);
        }
    }
    Ok(times)
}

/// A member, as its process would be.
#[derive(Debug, Clone)]
struct Member {
    holder: Holder,
    client: ControlClient<JobChannel>,
    /// Version of the plan that it holds: a node that says it holds none is sent one with each heartbeat.
    plan: Arc<AtomicU64>,
}

impl Member {
    async fn register(spec: &NodeSpec) -> Result<Self> {
        let variable = |name: &str| spec.env.iter().find(|(it, _)| it == name).map(|(_, text)| text.clone());
        let node = NodeEnv::read(variable, &spec.file)?;
        let endpoint = Endpoint::from_shared(format!("http://{}", node.master))?.tcp_nodelay(true);
        let mut client = ControlClient::new(Bearer::new(&node.token).over(endpoint.connect().await?));
        let holder = node.holder;
        let request = v1::RegisterRequest {
            holder: Some(holder.into()),
            job: node.job,
            host: "loopback".to_owned(),
            batch_size_min: 1,
            batch_size_max: u32::MAX,
            data_address: format!("127.0.0.1:{}", 10_000 + holder.node.index),
            process_id: std::process::id(),
            ..Default::default()
        };
        let reply = client.register(request).await?.into_inner();
        let every = Duration::from_nanos(reply.heartbeat_ns).max(Duration::from_millis(10));
        let plan = Arc::default();
        tokio::spawn(heartbeats(holder, client.clone(), Arc::clone(&plan), every));
        Ok(Self { holder, client, plan })
    }

    /// Asks for a group after one, until it is told of it; its version and its size.
    async fn join(mut self, group: MembershipVersion) -> Result<(MembershipVersion, usize)> {
        let standing = Standing { group, ..Standing::default() };
        loop {
            match self.client.join(v1::JoinRequest::new(self.holder, &standing)).await {
                Ok(reply) => {
                    let joined = antdt_core::Joined::try_from(reply.into_inner())?;
                    self.plan.store(joined.plan.version.0, Ordering::Relaxed);
                    // The answer to an earlier question: what is asked for comes.
                    if joined.membership > group {
                        return Ok((joined.membership, joined.members.len()));
                    }
                }
                Err(status) if status.code() == Code::Aborted => {}
                Err(status) => bail!("{} is not let in: {status}", self.holder),
            }
        }
    }
}

async fn heartbeats(
    holder: Holder,
    mut client: ControlClient<JobChannel>,
    plan: Arc<AtomicU64>,
    every: Duration,
) {
    let mut tick = tokio::time::interval(every);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let plan = plan.load(Ordering::Relaxed);
        let request = v1::HeartbeatRequest {
            holder: Some(holder.into()),
            plan_ready: plan,
            plan_applied: plan,
            ..Default::default()
        };
        if client.heartbeat(request).await.is_err() {
            // The master ends the member, or has ended.
            return;
        }
    }
}

/// "Starts" members by saying so.
struct Members {
    outlets: Outlets,
    told: mpsc::UnboundedSender<NodeSpec>,
    lives: BTreeMap<Holder, LaunchStatus>,
}

impl Members {
    const fn new(outlets: Outlets, told: mpsc::UnboundedSender<NodeSpec>) -> Self {
        Self { outlets, told, lives: BTreeMap::new() }
    }
}

impl Launcher for Members {
    fn place(&mut self, _node: NodeId) -> Option<String> {
        Some("loopback".to_owned())
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        let holder = spec.holder;
        if self.lives.contains_key(&holder) {
            return Err(LaunchError::Launched { holder });
        }
        let gone = |_| LaunchError::Refused { holder, why: "the benchmark is over".to_owned() };
        self.told.send(spec.clone()).map_err(gone)?;
        self.lives.insert(holder, LaunchStatus::Running);
        (self.outlets.events)(LauncherEvent::Started { holder });
        Ok(())
    }

    fn end(&mut self, holder: Holder, _grace: Duration) -> bool {
        let exit = NodeExit { code: None, signal: Some(9) };
        match self.lives.get_mut(&holder) {
            Some(status @ LaunchStatus::Running) => {
                *status = LaunchStatus::Gone(exit);
                (self.outlets.events)(LauncherEvent::Gone { holder, exit, tail: Vec::new() });
                true
            }
            _ => false,
        }
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.lives.get(&holder).copied()
    }

    /// So that the master writes its journal, as it does by default.
    fn outlive(&mut self, _folder: &Path) -> bool {
        true
    }

    fn handle(&self, holder: Holder) -> Option<String> {
        matches!(self.lives.get(&holder), Some(LaunchStatus::Running)).then(|| holder.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_members_get_a_new_group_in_every_round() {
        // No node trains, but a job names a workload, and without the command line `antdt` is built with none.
        if JobSpec::default().workload.is_empty() {
            println!("skipped: antdt is built without workloads; leave out --no-default-features");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(measure(5, 4, folder.path()).unwrap().len(), 4);
    }
}
