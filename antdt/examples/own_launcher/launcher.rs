//! A launcher for several hosts: each node is started by the shell of its host.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use antdt::core::{Holder, NodeId, Role};
use antdt::launch::{LaunchError, LaunchStatus, Launcher, LauncherEvent, NodeExit, NodeSpec, Outlets};
use rustix::process::{Pid, Signal, kill_process_group};

/// Pause between two looks at a child.
const LOOK: Duration = Duration::from_millis(5);

/// A host: its name, and the address that its nodes bind to.
pub(crate) type HostPlace = (String, String);

/// Process ids of the lives that run.
pub(crate) type Pids = Arc<Mutex<BTreeMap<Holder, u32>>>;

/// Which hosts there are, and how a node gets there.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) hosts: Vec<HostPlace>,
    /// Workers of a host.
    pub(crate) per_host: u32,
    /// A command that runs, on the host `{host}`, the shell script on its standard input.
    pub(crate) shell: Vec<String>,
}

impl Plan {
    /// Workers fill the hosts in order, or the next host that is not to be avoided; the servers go round.
    fn host(&self, node: NodeId, avoided: &BTreeSet<String>) -> &HostPlace {
        let index = match node.role {
            Role::Worker => node.index / self.per_host,
            Role::Server => node.index,
        } as usize;
        let free = |(name, _): &&HostPlace| node.role == Role::Server || !avoided.contains(name);
        let mut from = (0..self.hosts.len()).map(|next| &self.hosts[(index + next) % self.hosts.len()]);
        // If all are to be avoided, none is.
        from.find(free).unwrap_or(&self.hosts[index % self.hosts.len()])
    }
}

/// The script that becomes a node. It travels over standard input, so that the job's secret is in no list of processes.
fn script(spec: &NodeSpec, address: &str) -> Vec<u8> {
    let quoted = |word: &[u8]| {
        let inner: Vec<&[u8]> = word.split(|byte| *byte == b'\'').collect();
        [b"'", &inner.join(&b"'\\''"[..])[..], b"'"].concat()
    };
    let mut script = Vec::new();
    // What the master says of itself in the same variables is not true of a node on another host.
    let own = ["ANTDT_BIND", "ANTDT_ADVERTISE"].map(|name| (name.to_owned(), address.to_owned()));
    for (name, value) in spec.env.iter().chain(&own) {
        script.extend([b"export ", name.as_bytes(), b"=", &quoted(value.as_bytes()), b"\n"].concat());
    }
    script.extend(b"exec ");
    script.extend(quoted(spec.program.as_os_str().as_bytes()));
    for word in &spec.args {
        script.extend([b" ", &quoted(word.as_bytes())[..]].concat());
    }
    script.extend(b" </dev/null\n");
    script
}

/// Starts nodes by commands. Who ends the command ends the node, if they are one process. Over a network the node is not told: it
/// gets no grace, and ends by itself once its master fences it or is gone.
pub(crate) struct ShellLauncher {
    plan: Plan,
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

impl ShellLauncher {
    pub(crate) fn new(plan: Plan, outlets: Outlets, pids: Pids) -> Self {
        Self { plan, avoided: BTreeSet::new(), outlets, lives: BTreeMap::new(), pids }
    }
}

impl Life {
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It is not reaped yet; it may have ended in this moment.
            let _ = kill_process_group(pid, signal);
        }
    }
}

/// A thread that panicked with the lock has changed nothing by halves.
fn held<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Launcher for ShellLauncher {
    fn place(&mut self, node: NodeId) -> String {
        self.plan.host(node, &self.avoided).0.clone()
    }

    fn hosts(&self) -> BTreeSet<String> {
        self.plan.hosts.iter().map(|(name, _)| name.clone()).collect()
    }

    fn avoid(&mut self, hosts: &BTreeSet<String>) {
        self.avoided = hosts.clone();
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        let holder = spec.holder;
        if self.lives.contains_key(&holder) {
            return Err(LaunchError::Launched { holder });
        }
        let (name, address) = self.plan.host(holder.node, &self.avoided);
        let words: Vec<String> = self.plan.shell.iter().map(|word| word.replace("{host}", name)).collect();
        let refused = |why: String| LaunchError::Refused { holder, why };
        let (program, arguments) = words.split_first().ok_or_else(|| refused("no command".to_owned()))?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|error| refused(format!("`{program}`: {error}")))?;
        if let Some(mut input) = child.stdin.take() {
            // A shell that has ended by now is reported as gone.
            let _ = input.write_all(&script(spec, address));
        }
        held(&self.pids).insert(holder, child.id());
        let life = Arc::new(Mutex::new(Life { status: LaunchStatus::Running, kill_at: None, child }));
        self.lives.insert(holder, Arc::clone(&life));
        (self.outlets.events)(LauncherEvent::Started { holder });
        let (outlets, pids) = (self.outlets.clone(), Arc::clone(&self.pids));
        thread::spawn(move || {
            let exit = follow(&life);
            held(&pids).remove(&holder);
            (outlets.events)(LauncherEvent::Gone { holder, exit, tail: Vec::new() });
        });
        Ok(())
    }

    fn end(&mut self, holder: Holder, grace: Duration) -> bool {
        let Some(life) = self.lives.get(&holder) else { return false };
        let mut life = held(life);
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
        self.lives.get(&holder).map(|life| held(life).status)
    }
}

impl Drop for ShellLauncher {
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
        let mut life = held(life);
        if let Ok(Some(status)) = life.child.try_wait() {
            let exit = NodeExit { code: status.code(), signal: status.signal() };
            life.status = LaunchStatus::Gone(exit);
            return exit;
        }
        if life.kill_at.is_some_and(|kill_at| Instant::now() >= kill_at) {
            life.kill_at = None;
            life.signal(Signal::KILL);
        }
        drop(life);
        thread::sleep(LOOK);
    }
}
