//! Carries out the decisions of the master's state machine.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use antdt_collective::runtime::transport::paced::Lines;
use antdt_controller::action::{self, Cluster};
use antdt_core::{AckOutcome, Contribution, Exit, Holder, JobTime, NodeId, Role};
use antdt_job::{Head, HeadEffect, HeadEvent, Note, SyncMode};
use antdt_launch::{LaunchStatus, Launcher, MASTER_ADDR, NodeSpec, Placement};
use antdt_rt::{Mailbox, Runner};
use antdt_shard::runtime::ShardHandle;
use tokio::sync::oneshot;

use super::journal::HeadJournal;
use super::restorer::Restorer;
use super::service::Parked;
use super::sink::{JobNote, Notes};
use super::{Programs, evaluations, lock};
use crate::lead::{self, Lead};
use crate::node::NodeEnv;
use crate::{descriptors, net};

/// The job's launcher, and the lives that were launched with it.
pub(super) struct Nodes {
    launcher: Box<dyn Launcher>,
    launched: BTreeSet<Holder>,
    placement: Placement,
}

/// What is known of the latest life of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NodeView {
    pub(super) holder: Holder,
    pub(super) status: LaunchStatus,
    /// Where the launcher places it; unknown for servers.
    pub(super) host: Option<String>,
}

impl std::fmt::Debug for Nodes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nodes").field("launched", &self.launched).finish_non_exhaustive()
    }
}

impl Nodes {
    /// Asks the launcher for the host of each of `workers` workers.
    pub(super) fn new(mut launcher: Box<dyn Launcher>, workers: u32) -> Self {
        let mut placement = Placement::default();
        for worker in (0..workers).map(NodeId::worker) {
            placement.set(worker, launcher.place(worker));
        }
        Self { launcher, launched: BTreeSet::new(), placement }
    }

    /// Records the host of a life that was placed after its start. Returns whether it is the newest life of its node.
    pub(super) fn placed(&mut self, holder: Holder, host: &str) -> bool {
        let newest = self.launched.iter().rfind(|launched| launched.node == holder.node) == Some(&holder);
        if newest && holder.node.role == Role::Worker {
            self.placement.set(holder.node, Some(host.to_owned()));
        }
        newest
    }

    /// Has nodes outlive this process. Returns whether the launcher can do that.
    pub(super) fn outlive(&mut self, folder: &Path) -> bool {
        self.launcher.outlive(folder)
    }

    /// Takes over the lives that an earlier master has started. Returns those that cannot be.
    pub(super) fn adopt(&mut self, handles: &[(Holder, String)]) -> Vec<Holder> {
        let mut lost = Vec::new();
        for (holder, handle) in handles {
            match self.launcher.adopt(*holder, handle) {
                Ok(()) => {
                    self.launched.insert(*holder);
                    if holder.node.role == Role::Worker {
                        self.placement.set(holder.node, self.launcher.place(holder.node));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "a node cannot be taken over");
                    lost.push(*holder);
                }
            }
        }
        lost
    }

    /// By which another launcher adopts the lives that are left.
    fn handles(&self) -> Vec<(Holder, String)> {
        self.left().filter_map(|holder| Some((holder, self.launcher.handle(holder)?))).collect()
    }

    /// The latest life of each node, in order.
    pub(super) fn latest(&self) -> Vec<NodeView> {
        let mut latest: Vec<Holder> = Vec::new();
        for holder in &self.launched {
            match latest.last_mut() {
                Some(last) if last.node == holder.node => *last = *holder,
                _ => latest.push(*holder),
            }
        }
        let view = |holder: Holder| {
            let status = self.launcher.status(holder)?;
            Some(NodeView { holder, status, host: self.placement.host(holder.node).map(str::to_owned) })
        };
        latest.into_iter().filter_map(view).collect()
    }

    /// Whether a life is pending or running.
    pub(super) fn any_left(&self) -> bool {
        self.left().next().is_some()
    }

    /// The lives that are pending or running.
    pub(super) fn left(&self) -> impl Iterator<Item = Holder> {
        let is_left = |holder: &&Holder| {
            matches!(self.launcher.status(**holder), Some(LaunchStatus::Pending | LaunchStatus::Running))
        };
        self.launched.iter().filter(is_left).copied()
    }

    /// Ends all nodes that are left, with the same grace.
    pub(super) fn end_all(&mut self, grace: Duration) {
        let left: Vec<Holder> = self.left().collect();
        for holder in left {
            self.launcher.end(holder, grace);
        }
    }
}

impl Cluster for Nodes {
    fn avoid(&mut self, hosts: &BTreeSet<String>) {
        self.launcher.avoid(hosts);
    }
}

/// What any node is started with, to be filled in for one.
#[derive(Debug, Clone)]
pub(super) struct NodeTemplate {
    pub(super) node: NodeEnv,
    /// Of the emulated network: they are there for as long as the master is.
    pub(super) lines: Option<Lines>,
    pub(super) programs: Programs,
    /// A free port for the user's own rendezvous.
    pub(super) user_port: u16,
}

impl NodeTemplate {
    /// What one life of one node is started with: our variables, torchrun's, and those of the programs.
    fn of(&self, holder: Holder, placement: &Placement) -> NodeSpec {
        let network = self.lines.as_ref().and_then(Lines::path);
        let host = placement.host(holder.node).map(str::to_owned);
        let node = NodeEnv { holder, host, network, ..self.node.clone() };
        let (mut env, file) = (node.variables(), node.file());
        if let Some(ranks) = placement.ranks(holder.node) {
            for (name, value) in [
                ("RANK", ranks.rank.to_string()),
                ("WORLD_SIZE", ranks.world_size.to_string()),
                ("LOCAL_RANK", ranks.local_rank.to_string()),
                ("LOCAL_WORLD_SIZE", ranks.local_world_size.to_string()),
                ("ROLE_NAME", "default".to_owned()),
                ("ROLE_RANK", ranks.rank.to_string()),
                ("ROLE_WORLD_SIZE", ranks.world_size.to_string()),
                ("GROUP_RANK", ranks.group_rank.to_string()),
                ("GROUP_WORLD_SIZE", ranks.group_world_size.to_string()),
                // torchrun has it without the brackets of an IPv6 address.
                (MASTER_ADDR, net::host_of(&node.master).to_owned()),
                ("MASTER_PORT", self.user_port.to_string()),
                ("TORCHELASTIC_RESTART_COUNT", holder.incarnation.to_string()),
                ("TORCHELASTIC_MAX_RESTARTS", node.spec.max_restarts.to_string()),
                ("TORCHELASTIC_RUN_ID", node.job),
            ] {
                env.push((name.to_owned(), value));
            }
            if node.spec.program.is_some() && ranks.local_world_size > 1 && threads_are_ours() {
                env.push((THREADS.to_owned(), "1".to_owned()));
            }
        }
        env.extend(self.programs.env.iter().cloned());
        let (program, args) = match holder.node.role {
            Role::Worker => self.programs.worker.clone(),
            Role::Server => self.programs.server.clone(),
        };
        NodeSpec { holder, program, args, env, file }
    }
}

/// Variable with the number of threads of the libraries of numbers that programs use. By default each takes all cores.
pub(crate) const THREADS: &str = "OMP_NUM_THREADS";

/// Whether the user has left open how many threads a worker has: one then where several share a host, as under torchrun.
pub(crate) fn threads_are_ours() -> bool {
    std::env::var_os(THREADS).is_none()
}

/// How the head of a job came to its end.
#[derive(Debug)]
pub(super) enum Ended {
    /// The job is over: it went well, or failed for this reason.
    Over(Result<(), String>),
    /// The job goes on in this mode.
    GoesOn(SyncMode),
}

/// The hands of the head.
#[derive(Debug)]
pub(super) struct HeadRunner {
    /// Taken out when the job is over: nothing is started any more.
    pub(super) nodes: Arc<Mutex<Option<Nodes>>>,
    pub(super) template: NodeTemplate,
    pub(super) ledger: Option<ShardHandle>,
    pub(super) parked: Parked,
    pub(super) notes: Notes,
    /// Number of servers that the job has.
    pub(super) servers: Arc<AtomicU32>,
    /// What sets the job back, if it can go back.
    pub(super) restorer: Option<Restorer>,
    /// What a successor of this master finds, if it may have one.
    pub(super) journal: Option<HeadJournal>,
    /// Without it this master may do nothing.
    pub(super) lead: Option<Arc<dyn Lead>>,
    pub(super) head: Mailbox<Head>,
    pub(super) ended: Option<oneshot::Sender<Ended>>,
}

impl HeadRunner {
    fn must_lead(&self) {
        if self.lead.as_ref().is_some_and(|lead| !lead.holds()) {
            lead::lost();
        }
    }

    /// Writes down what a successor must know of all that is carried out now. A record names every node and says all of the ones
    /// before it, so that of many nodes which come at once the newest is enough.
    fn write_down(&mut self, effects: &mut [HeadEffect]) {
        let Some(journal) = &mut self.journal else { return };
        let record = effects.iter_mut().rev().find_map(|effect| match effect {
            HeadEffect::Record(record) => Some(std::mem::take(&mut **record)),
            _ => None,
        });
        if let Some(record) = record {
            journal.record(record);
        }
    }

    fn launch(&mut self, holder: Holder) {
        let mut nodes = lock(&self.nodes);
        let Some(nodes) = nodes.as_mut() else { return };
        if holder.node.role == Role::Worker {
            // A new life may run elsewhere.
            nodes.placement.set(holder.node, nodes.launcher.place(holder.node));
        }
        let mut template = self.template.clone();
        if let Some(restorer) = &self.restorer {
            template.node.spec.resume = restorer.from();
        }
        let spec = template.of(holder, &nodes.placement);
        nodes.launched.insert(holder);
        if let Err(error) = nodes.launcher.launch(&spec) {
            let source = std::error::Error::source(&error).map(|e| format!(" ({e})")).unwrap_or_default();
            let why = descriptors::explained(format!("{error}{source}"));
            let event = match error.is_passing() {
                true => HeadEvent::Exited(holder, Exit::NotStarted, vec![format!("{}{why}", Exit::CAUSE)]),
                false => HeadEvent::LaunchFailed(holder, why),
            };
            let head = self.head.clone();
            // Not awaited here: the head is waiting for this very effect.
            tokio::spawn(async move {
                let _ = head.send(event).await;
            });
        } else if let Some(journal) = &mut self.journal {
            // A life that starts in the moment in which this master dies is unknown to the next one, which fences it.
            journal.nodes(nodes.handles());
        }
    }
}

impl HeadRunner {
    /// Does something with the nodes, unless the job is over.
    fn with_nodes(&self, act: impl FnOnce(&mut Nodes)) {
        if let Some(nodes) = lock(&self.nodes).as_mut() {
            act(nodes);
        }
    }

    fn end(&mut self, how: Ended) {
        if let Some(ended) = self.ended.take() {
            // A master that was given up waits for no end.
            let _ = ended.send(how);
        }
    }

    async fn settle(&self, contribution: Contribution) {
        let Contribution { holder, acks } = contribution;
        let Some(ledger) = self.ledger.as_ref().filter(|_| !acks.is_empty()) else { return };
        match ledger.settle(holder, acks.into_vec()).await {
            Ok(outcomes) if outcomes.contains(&AckOutcome::StaleLease) => {
                tracing::debug!(%holder, "settled after its lease had ended");
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "samples could not be settled"),
        }
    }

    fn note(&self, at: JobTime, note: Note) {
        let evaluated = match &note {
            Note::EpochEvaluated(entry) => Some((entry.epoch, entry.samples)),
            _ => None,
        };
        self.notes.tell(at, JobNote::Head(note));
        if let (Some((epoch, samples)), Some(place)) = (evaluated, &self.template.node.spec.checkpoint_dir) {
            let recorder = lock(&self.notes.recorder);
            evaluations::write(place, &recorder.evaluations, (samples == 0).then_some(epoch));
        }
    }
}

impl Runner<Head> for HeadRunner {
    async fn carry_out(&mut self, _now: JobTime, effects: &mut Vec<HeadEffect>) {
        self.must_lead();
        self.write_down(effects);
        for effect in effects.drain(..) {
            self.must_lead();
            match effect {
                HeadEffect::Launch(holder) => self.launch(holder),
                HeadEffect::Kill(holder) => self.with_nodes(|nodes| {
                    nodes.launcher.end(holder, Duration::ZERO);
                }),
                HeadEffect::Order(values) => self.with_nodes(|nodes| {
                    if let Err(error) = action::order(&values, nodes) {
                        tracing::error!(%error, "the cluster cannot carry out an action of the plan");
                    }
                }),
                HeadEffect::Settle(contribution) => self.settle(contribution).await,
                HeadEffect::LedgerLost(holder) => {
                    let Some(ledger) = &self.ledger else { continue };
                    if let Err(error) = ledger.worker_lost(holder).await {
                        tracing::error!(%error, %holder, "leases could not be taken back");
                    }
                }
                HeadEffect::Joined(holder, joined) => self.parked.joined(holder, joined),
                HeadEffect::Committed(holder, commit) => self.parked.committed(holder, *commit),
                HeadEffect::Undone(holder) => self.parked.undone(holder),
                HeadEffect::RollBack(rollback) => {
                    // Without one, the head asks for none.
                    let Some(restorer) = self.restorer.clone() else { continue };
                    // Not awaited here: files are read, and the head is waiting for this very effect.
                    tokio::spawn(async move { restorer.roll_back(rollback).await });
                }
                HeadEffect::Epochs(epochs) => {
                    let Some(ledger) = &self.ledger else { continue };
                    if let Err(error) = ledger.end_after(epochs).await {
                        tracing::error!(%error, "the data do not end for the next evaluation");
                    }
                }
                HeadEffect::Servers(servers) => {
                    self.template.node.spec.servers = servers;
                    self.servers.store(servers, Ordering::Relaxed);
                }
                HeadEffect::Weights(weights) => self.template.node.weights = weights,
                HeadEffect::Rested { holder, checkpoint, keep, pushes } => {
                    self.parked.rested(holder, checkpoint, keep, &pushes);
                }
                HeadEffect::Note { at, note } => self.note(at, note),
                // It is written down already.
                HeadEffect::Record(_) => {}
                HeadEffect::End(outcome) => self.end(Ended::Over(outcome)),
                HeadEffect::GoOn(mode) => self.end(Ended::GoesOn(mode)),
            }
        }
    }
}
