//! A parameter server's process: holds one partition of the parameters.

use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use antdt_agent::{Meter, Part, Reported, SessionState};
use antdt_checkpoint::Folder;
use antdt_core::{Barrier, Iteration, ParamLayout, PlanVersion, Seed};
use antdt_model::{PartitionConfig, PsServer, PsServerConfig, Staleness, UpdateRule};

use crate::descriptors;
use crate::node::NodeEnv;
use crate::resume::Taken;
use crate::worker::{WorkerError, fabric, write_part};

/// How often a server looks at its orders and reports its service time.
const BEAT: Duration = Duration::from_millis(100);

/// Runs the parameter server whose environment is `env`, until all workers are done.
///
/// # Errors
/// If the server cannot start, or loses its master.
pub fn run(env: &NodeEnv, layout: &ParamLayout, rule: &UpdateRule) -> Result<(), WorkerError> {
    let staleness = match env.spec.sync.capabilities().barrier {
        Barrier::All | Barrier::AllBut(_) => Staleness::Synchronous,
        // Every sample weighs the same: a push of n samples counts n / (mean batch of a worker).
        #[allow(clippy::cast_precision_loss, reason = "a weight")]
        Barrier::Within(_) | Barrier::Peers | Barrier::Nobody => {
            Staleness::Unbounded { scale: env.spec.workers as f32 / env.spec.global_batch_size as f32 }
        }
    };
    let partition = PartitionConfig {
        layout: layout.clone(),
        rule: rule.clone(),
        seed: Seed(env.spec.seed).derive("model"),
        server: env.holder.node.index,
        servers: env.spec.servers,
        weights: env.weights.clone(),
        staleness,
    };
    let mut config = PsServerConfig::new(partition, env.job_token());
    config.connections = env.data_connections();
    config.doorway = descriptors::doorway();
    let server = env.open_data_plane(|address| Ok(PsServer::bind(address, config.clone(), fabric(env)?)?))?;
    let folder = env.spec.checkpoint_dir.clone().map(Folder::open).transpose();
    let folder = folder.map_err(|error| WorkerError::Input(format!("--checkpoint-dir: {error}")))?;
    if let Some(taken) = Taken::open(env.spec.resume.as_deref(), layout, &rule.identity())? {
        let dense_len = server.dense_len();
        let trained = taken.restore(dense_len, |portion, state| server.restore(portion, state))?;
        server.set_trained(trained);
    }
    let (stop, stopped) = mpsc::channel();
    let agent = env.connect(server.local_address(), move |_| {
        // Ends the wait for the next beat; the receiver outlives the agent.
        let _ = stop.send(());
    })?;
    let mut meter = Meter::new(env.holder, agent.clock().now());
    let mut step = 0;
    let mut before = server.stats();
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (node, restarts) = (env.holder.node, env.holder.incarnation.0);
        server.set_slowdown(env.spec.slowdown(node, restarts, now.saturating_sub(env.job_start)));
        // Waits for the next beat, or for the end of the session.
        let _ = stopped.recv_timeout(BEAT);
        let lost = agent.session().take_lost();
        for mark in lost {
            server.lost(mark);
        }
        while let (Some(copy), Some(folder)) = (server.take_copy(), &folder) {
            let (folder, layout, checkpoint) = (folder.clone(), layout.clone(), copy.checkpoint);
            let name = env.holder.node.to_string();
            let write = move || write_part(&folder, checkpoint, &name, &layout, &copy.portion);
            agent.write_beside(checkpoint, write);
        }
        let stats = server.stats();
        let served = stats.service_time.saturating_sub(before.service_time);
        let bytes = stats.bytes.saturating_sub(before.bytes);
        if bytes > 0 {
            meter.reassign(served, Part::Compute);
            let report = meter.finish(agent.clock().now(), Iteration(step), PlanVersion(0), bytes, 1);
            agent.session().report(Reported { report, loss_sum: 0.0 });
            step += 1;
        }
        before = stats;
        let state = agent.session().state();
        match state {
            SessionState::Running => {}
            SessionState::Draining | SessionState::Finished => return Ok(()),
            SessionState::Fenced => {
                return Err(antdt_agent::runtime::AgentError::Fenced { holder: env.holder }.into());
            }
            SessionState::MasterLost => {
                let why = "no heartbeat was answered".to_owned();
                return Err(
                    antdt_agent::runtime::AgentError::MasterLost { master: env.master.clone(), why }.into()
                );
            }
        }
    }
}
