//! The session of a node with its master, and the end of a process that outlives it.
//!
//! A node whose master is lost, or that was fenced, must exit. Its training thread learns so at its next call, and whatever
//! it waits for is aborted. A thread that computes cannot be told: the model's code may take minutes, or hang. Then the
//! process is ended under it.

use std::ops::Deref;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use antdt_agent::Notice;
use antdt_agent::runtime::{Agent, AgentConfig, AgentError};
use antdt_core::Exit;

/// How long a process may go on after its session has ended. Enough to leave by itself where it can; its leases are void and its
/// pushes refused meanwhile.
const PATIENCE: Duration = Duration::from_secs(5);

/// An agent whose process ends, at the latest some seconds after the session has.
#[derive(Debug)]
pub(crate) struct NodeSession {
    agent: Agent,
    /// Dropped with the session, which is then over for the process.
    _over: Sender<()>,
}

impl NodeSession {
    /// Registers with the master.
    pub(crate) fn connect(
        config: AgentConfig,
        on_notice: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Result<Self, AgentError> {
        let holder = config.info.holder;
        let (sender, over) = channel();
        let over = Mutex::new(Some(over));
        let agent = Agent::connect(config, move |notice| {
            on_notice(notice);
            let Notice::Stopped(state) = notice else { return };
            let Some(over) = over.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
            std::thread::spawn(move || {
                if outlived(&over, PATIENCE) {
                    tracing::error!(%holder, ?state, "this process did not exit after its session; ending it");
                    std::process::exit(Exit::CODE_RETRY);
                }
            });
        })?;
        agent.heed_sigterm();
        Ok(Self { agent, _over: sender })
    }
}

impl Deref for NodeSession {
    type Target = Agent;

    fn deref(&self) -> &Agent {
        &self.agent
    }
}

/// Whether the session is still held after that time.
fn outlived(over: &Receiver<()>, patience: Duration) -> bool {
    over.recv_timeout(patience) == Err(RecvTimeoutError::Timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_leaves_its_session_is_let_go_and_another_is_not() {
        let (sender, over) = channel();
        assert!(outlived(&over, Duration::ZERO));
        drop(sender);
        assert!(!outlived(&over, Duration::from_secs(600)));
    }
}
