//! Carries out what the head decides.

use std::sync::{Arc, Mutex, PoisonError};

use antdt_controller::runtime::launcher::ProcessLauncher;
use antdt_controller::{LaunchRequest, Launcher};
use antdt_core::{AckOutcome, Holder, JobTime, Role};
use antdt_job::{Head, HeadEffect, HeadEvent};
use antdt_rt::{Mailbox, Runner};
use antdt_shard::runtime::ShardHandle;
use tokio::sync::oneshot;

use super::recorder::Recorder;
use super::service::Parked;
use crate::node::NodeEnv;

/// What starts workers, and what starts servers.
#[derive(Debug)]
pub(super) struct Launchers {
    workers: ProcessLauncher,
    servers: ProcessLauncher,
}

impl Launchers {
    pub(super) const fn new(workers: ProcessLauncher, servers: ProcessLauncher) -> Self {
        Self { workers, servers }
    }

    fn of(&mut self, holder: Holder) -> &mut ProcessLauncher {
        match holder.node.role {
            Role::Worker => &mut self.workers,
            Role::Server => &mut self.servers,
        }
    }

    pub(super) fn any_running(&self) -> bool {
        !(self.workers.running().is_empty() && self.servers.running().is_empty())
    }

    /// Ends all processes; none is left when this returns.
    pub(super) async fn shutdown(&mut self) {
        tokio::join!(self.workers.shutdown(), self.servers.shutdown());
    }
}

/// The environment of any node, to be filled in for one.
#[derive(Debug, Clone)]
pub(super) struct EnvTemplate {
    pub(super) node: NodeEnv,
    /// A free port for the user's own rendezvous.
    pub(super) user_port: u16,
    pub(super) extra: Vec<(String, String)>,
}

impl EnvTemplate {
    /// Our variables, and torchrun's, for one life of one node.
    fn of(&self, holder: Holder) -> Vec<(String, String)> {
        let node = NodeEnv { holder, ..self.node.clone() };
        let mut env = node.variables();
        if holder.node.role == Role::Worker {
            let (rank, world) = (holder.node.index.to_string(), node.spec.workers.to_string());
            let host = self.node.master.rsplit_once(':').map_or("127.0.0.1", |(host, _)| host).to_owned();
            for (name, value) in [
                ("RANK", rank.clone()),
                ("WORLD_SIZE", world.clone()),
                ("LOCAL_RANK", rank.clone()),
                ("LOCAL_WORLD_SIZE", world.clone()),
                ("ROLE_RANK", rank),
                ("ROLE_WORLD_SIZE", world),
                ("GROUP_RANK", "0".to_owned()),
                ("MASTER_ADDR", host),
                ("MASTER_PORT", self.user_port.to_string()),
                ("TORCHELASTIC_RESTART_COUNT", holder.incarnation.to_string()),
                ("TORCHELASTIC_MAX_RESTARTS", node.spec.max_restarts.to_string()),
                ("TORCHELASTIC_RUN_ID", node.job),
            ] {
                env.push((name.to_owned(), value));
            }
        }
        env.extend(self.extra.iter().cloned());
        env
    }
}

/// The hands of the head.
#[derive(Debug)]
pub(super) struct HeadRunner {
    /// Taken out when the job is over: nothing is started any more.
    pub(super) launchers: Arc<Mutex<Option<Launchers>>>,
    pub(super) env: EnvTemplate,
    pub(super) ledger: Option<ShardHandle>,
    pub(super) parked: Parked,
    pub(super) recorder: Arc<Mutex<Recorder>>,
    pub(super) head: Mailbox<Head>,
    pub(super) ended: Option<oneshot::Sender<Result<(), String>>>,
}

impl HeadRunner {
    fn launch(&self, holder: Holder) {
        let request = LaunchRequest { holder, env: self.env.of(holder) };
        let mut launchers = self.launchers.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(launchers) = launchers.as_mut() else { return };
        if let Err(error) = launchers.of(holder).launch(&request) {
            let source = std::error::Error::source(&error).map(|e| format!(" ({e})")).unwrap_or_default();
            let (head, why) = (self.head.clone(), format!("{error}{source}"));
            // Not awaited here: the head is waiting for this very effect.
            tokio::spawn(async move {
                let _ = head.send(HeadEvent::LaunchFailed(holder, why)).await;
            });
        }
    }
}

impl Runner<Head> for HeadRunner {
    async fn carry_out(&mut self, _now: JobTime, effects: &mut Vec<HeadEffect>) {
        for effect in effects.drain(..) {
            match effect {
                HeadEffect::Launch(holder) => self.launch(holder),
                HeadEffect::Kill(holder) => {
                    let mut launchers = self.launchers.lock().unwrap_or_else(PoisonError::into_inner);
                    if let Some(launchers) = launchers.as_mut() {
                        launchers.of(holder).kill(holder);
                    }
                }
                HeadEffect::Settle(contribution) => {
                    let Some(ledger) = &self.ledger else { continue };
                    if contribution.acks.is_empty() {
                        continue;
                    }
                    match ledger.settle(contribution.holder, contribution.acks.into_vec()).await {
                        Ok(outcomes) => {
                            if outcomes.contains(&AckOutcome::StaleLease) {
                                tracing::debug!(holder = %contribution.holder, "settled after its lease had ended");
                            }
                        }
                        Err(error) => tracing::error!(%error, "samples could not be settled"),
                    }
                }
                HeadEffect::LedgerLost(holder) => {
                    let Some(ledger) = &self.ledger else { continue };
                    if let Err(error) = ledger.worker_lost(holder).await {
                        tracing::error!(%error, %holder, "leases could not be taken back");
                    }
                }
                HeadEffect::Joined(holder, joined) => self.parked.joined(holder, *joined),
                HeadEffect::Committed(holder, commit) => self.parked.committed(holder, *commit),
                HeadEffect::Note { at, note } => {
                    self.recorder.lock().unwrap_or_else(PoisonError::into_inner).note(at, note);
                }
                HeadEffect::End(outcome) => {
                    if let Some(ended) = self.ended.take() {
                        let _ = ended.send(outcome);
                    }
                }
            }
        }
    }
}
