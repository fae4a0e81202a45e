//! A launcher of the test's own: each node runs in the network namespace of its host.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use antdt_controller::{LaunchError, LaunchStatus, Launcher, LauncherEvent, NodeExit, NodeSpec, Outlets};
use antdt_core::{Holder, NodeId, Role};
use rustix::process::{Pid, Signal, kill_process_group};

/// Pause between two looks at a child.
const LOOK: Duration = Duration::from_millis(5);

/// A host: the name of its namespace, and its address.
pub(crate) type HostPlace = (String, String);

/// Process ids of the lives that run.
pub(crate) type Pids = Arc<Mutex<BTreeMap<Holder, u32>>>;

/// Starts nodes in network namespaces, two workers in each.
pub(crate) struct NetnsLauncher {
    hosts: Vec<HostPlace>,
    avoided: BTreeSet<String>,
    outlets: Outlets,
    lives: BTreeMap<Holder, Arc<Mutex<Life>>>,
    pids: Pids,
}

struct Life {
    status: LaunchStatus,
    kill_at: Option<Instant>,
    child: Child,
}

impl NetnsLauncher {
    pub(crate) fn new(hosts: Vec<HostPlace>, outlets: Outlets, pids: Pids) -> Self {
        Self { hosts, avoided: BTreeSet::new(), outlets, lives: BTreeMap::new(), pids }
    }

    /// Two workers to a host, or the next host that is not to be avoided; the servers go round.
    fn host(&self, node: NodeId) -> &HostPlace {
        let index = match node.role {
            Role::Worker => node.index / 2,
            Role::Server => node.index,
        };
        let from = (0..self.hosts.len()).map(|next| &self.hosts[(index as usize + next) % self.hosts.len()]);
        let mut free = from.filter(|(name, _)| node.role == Role::Server || !self.avoided.contains(name));
        free.next().expect("there are more hosts than are avoided")
    }
}

impl Life {
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        // It is not reaped yet; it may have ended in this moment.
        let _ = kill_process_group(pid.expect("a process has an id"), signal);
    }
}

impl Launcher for NetnsLauncher {
    fn place(&mut self, node: NodeId) -> String {
        self.host(node).0.clone()
    }

    fn hosts(&self) -> BTreeSet<String> {
        self.hosts.iter().map(|(name, _)| name.clone()).collect()
    }

    fn avoid(&mut self, hosts: &BTreeSet<String>) {
        self.avoided = hosts.clone();
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        let holder = spec.holder;
        if self.lives.contains_key(&holder) {
            return Err(LaunchError::Launched { holder });
        }
        let (namespace, address) = self.host(holder.node);
        // `ip` becomes the program: its process is that of the node.
        let child = Command::new("ip")
            .args(["netns", "exec", namespace])
            .arg(&spec.program)
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .env("ANTDT_BIND", address)
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| LaunchError::Refused { holder, why: error.to_string() })?;
        self.pids.lock().unwrap().insert(holder, child.id());
        let life = Arc::new(Mutex::new(Life { status: LaunchStatus::Running, kill_at: None, child }));
        self.lives.insert(holder, Arc::clone(&life));
        (self.outlets.events)(LauncherEvent::Started { holder });
        let (outlets, pids) = (self.outlets.clone(), Arc::clone(&self.pids));
        thread::spawn(move || {
            let exit = follow(&life);
            pids.lock().unwrap().remove(&holder);
            (outlets.events)(LauncherEvent::Gone { holder, exit, tail: Vec::new() });
        });
        Ok(())
    }

    fn end(&mut self, holder: Holder, grace: Duration) -> bool {
        let Some(life) = self.lives.get(&holder) else { return false };
        let mut life = life.lock().unwrap();
        if matches!(life.status, LaunchStatus::Gone(_)) {
            return false;
        }
        if grace.is_zero() {
            life.signal(Signal::KILL);
        } else {
            life.signal(Signal::TERM);
            let deadline = Instant::now() + grace.min(Duration::from_secs(3600));
            life.kill_at = Some(life.kill_at.map_or(deadline, |kill_at| kill_at.min(deadline)));
        }
        true
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.lives.get(&holder).map(|life| life.lock().unwrap().status)
    }
}

impl Drop for NetnsLauncher {
    fn drop(&mut self) {
        let lives: Vec<Holder> = self.lives.keys().copied().collect();
        for holder in lives {
            self.end(holder, Duration::ZERO);
        }
    }
}

/// Follows a child to its end.
fn follow(life: &Mutex<Life>) -> NodeExit {
    loop {
        let mut held = life.lock().unwrap();
        if let Ok(Some(status)) = held.child.try_wait() {
            let exit = NodeExit { code: status.code(), signal: status.signal() };
            held.status = LaunchStatus::Gone(exit);
            return exit;
        }
        if held.kill_at.is_some_and(|kill_at| Instant::now() >= kill_at) {
            held.kill_at = None;
            held.signal(Signal::KILL);
        }
        drop(held);
        thread::sleep(LOOK);
    }
}
