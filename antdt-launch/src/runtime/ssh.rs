//! Nodes on several hosts, each started by a command that runs a shell there, such as `ssh`.
//!
//! The shell reads a script that becomes the node. The script travels over standard input, so that the job's secret is in no list
//! of processes; the shell puts the node's file under a descriptor of the node and removes its name before the node starts, so that
//! nothing is left on the host, however the node ends.
//!
//! The first line that the script prints says that the shell runs. It is kept from the output of the node; where it is missing, the
//! host could not be reached.
//!
//! What this launcher ends is the command. Where command and node are one process (`ip netns exec`), that ends the node. Over a
//! network the node is not told: it gets no grace, and ends by itself once its master fences it or does not answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use antdt_core::registry::{Setting, Settings};
use antdt_core::{Exit, Holder, InvalidValue, NodeId, Role};
use tokio::process::Command;

use super::node_file::memory;
use super::process::{LAUNCHER_PID, ProcessLauncher};
use super::registry::Entry;
use crate::launcher::{
    ADVERTISE, BIND, LaunchError, LaunchStatus, Launcher, LauncherEvent, NODE_FILE, NodeSpec, Outlets,
    OutputLine, OutputStream,
};

/// The launcher's line in the registry.
pub(super) const ENTRY: Entry = Entry {
    name: "ssh",
    about: "processes on several hosts, each started by ssh or another command that runs a shell there",
    settings: || {
        vec![
            Setting::new(
                "hosts",
                "",
                "hosts, with a comma between them, each with the address that its nodes bind to: a=10.0.0.1,b=10.0.0.2; without one \
                 they bind to the name",
            ),
            Setting::new("per-host", 1, "workers of a host: they fill the hosts in order"),
            Setting::new(
                "command",
                COMMAND,
                "command that runs, on the host {host}, the shell script on its standard input",
            ),
        ]
    },
    build: |settings| {
        let config = Arc::new(SshConfig::read(settings)?);
        Ok(Arc::new(move |outlets| Box::new(SshLauncher::new(Arc::clone(&config), outlets))))
    },
};

/// The default command. Without a terminal there is no user to answer a question, so that it fails instead of asking.
const COMMAND: &str = "ssh -T -o BatchMode=yes {host} sh -s";

/// Stands for the name of the host in the command.
const HOST: &str = "{host}";

/// First line of what a script prints.
const REACHED: &str = "antdt: a shell runs on this host";

/// A host: its name, and the address that its nodes bind to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct HostPlace {
    name: String,
    address: String,
}

/// Which hosts there are, and how a node gets there.
#[derive(Debug)]
struct SshConfig {
    /// At least one.
    hosts: Vec<HostPlace>,
    /// Workers of a host; at least 1.
    per_host: u32,
    /// Program and arguments of the command; at least the program.
    command: Vec<String>,
}

impl SshConfig {
    fn read(settings: &Settings<'_>) -> Result<Self, InvalidValue> {
        let text = settings.value("hosts", String::new(), "a text")?;
        let hosts: Vec<HostPlace> = text
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
            .map(|word| {
                let (name, address) = word.split_once('=').unwrap_or((word, word));
                HostPlace { name: name.trim().to_owned(), address: address.trim().to_owned() }
            })
            .collect();
        let refused = |value: &str, expected: &str| Err(settings.refuse("hosts", value, expected));
        if hosts.is_empty() {
            return refused("(nothing)", "the hosts of the job, such as a=10.0.0.1,b=10.0.0.2");
        }
        let mut names = BTreeSet::new();
        for HostPlace { name, address } in &hosts {
            // What begins with a dash would be an option of the command.
            let is_word = |word: &str| {
                !word.is_empty() && !word.starts_with('-') && !word.contains(char::is_whitespace)
            };
            if !is_word(name) || !is_word(address) {
                return refused(
                    &format!("{name}={address}"),
                    "a name, or NAME=ADDRESS, without spaces or a leading dash",
                );
            }
            if !names.insert(name) {
                return refused(name, "given once");
            }
        }
        let per_host = settings.value("per-host", 1, "a whole number")?;
        if per_host == 0 {
            return Err(settings.refuse("per-host", per_host, "at least 1 worker"));
        }
        let text = settings.value("command", COMMAND.to_owned(), "a text")?;
        let command: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        if !command.iter().any(|word| word.contains(HOST)) {
            let expected = "a command with {host} for the name of the host, such as `ssh {host} sh -s`";
            return Err(settings.refuse("command", text, expected));
        }
        Ok(Self { hosts, per_host, command })
    }

    /// Workers fill the hosts in order, or the next host that is not to be avoided; the servers go round.
    fn host(&self, node: NodeId, avoided: &BTreeSet<String>) -> &HostPlace {
        let index = match node.role {
            Role::Worker => node.index / self.per_host,
            Role::Server => node.index,
        } as usize;
        let is_free = |host: &&HostPlace| node.role == Role::Server || !avoided.contains(&host.name);
        let mut from = (0..self.hosts.len()).map(|next| &self.hosts[(index + next) % self.hosts.len()]);
        // If all are to be avoided, none is.
        from.find(is_free).unwrap_or(&self.hosts[index % self.hosts.len()])
    }

    /// The command that runs a script on a host.
    fn command(&self, host: &str) -> Command {
        let mut words = self.command.iter().map(|word| word.replace(HOST, host));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        command
    }
}

/// A word as the shell reads it back.
fn quoted(word: &[u8]) -> Vec<u8> {
    let inner: Vec<&[u8]> = word.split(|byte| *byte == b'\'').collect();
    [b"'", &inner.join(&b"'\\''"[..])[..], b"'"].concat()
}

/// The script that becomes the node.
fn script(spec: &NodeSpec, address: &str) -> Vec<u8> {
    let mut script = format!("echo '{REACHED}'\n").into_bytes();
    // Where the hosts share a kernel, the command has the variable of a child of this process, which the node is not.
    script.extend(format!("unset {LAUNCHER_PID}\n").into_bytes());
    // What the master says of itself in the same variables is not true of a node on another host.
    let own = [BIND, ADVERTISE].map(|name| (name.to_owned(), address.to_owned()));
    for (name, value) in spec.env.iter().chain(&own) {
        script.extend([b"export ", name.as_bytes(), b"=", &quoted(value.as_bytes()), b"\n"].concat());
    }
    script.extend(b"antdt_file=$(mktemp) || exit 1\nprintf %s ");
    script.extend(quoted(spec.file.as_bytes()));
    script.extend(b" >\"$antdt_file\" || { rm -f \"$antdt_file\"; exit 1; }\n");
    script.extend(b"exec 9<\"$antdt_file\"\nrm -f \"$antdt_file\"\n");
    script.extend(format!("export {NODE_FILE}=/dev/fd/9\nexec ").into_bytes());
    script.extend(quoted(spec.program.as_os_str().as_bytes()));
    for word in &spec.args {
        script.extend([b" ", &quoted(word.as_bytes())[..]].concat());
    }
    script.extend(b" 9<&9 </dev/null\n");
    script
}

/// An incarnation whose shell has not said yet that it runs.
#[derive(Debug, Default)]
struct Attempt {
    host: String,
    /// What its command wrote last to its standard error.
    said: String,
}

#[derive(Debug, Clone, Default)]
struct Attempts(Arc<Mutex<BTreeMap<Holder, Attempt>>>);

impl Attempts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Holder, Attempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the outlets of the commands: a shell's first line goes no further, and the end of a command that reached no shell has
    /// its host for a cause.
    fn outlets(&self, outlets: Outlets) -> Outlets {
        let Outlets { events, lines } = outlets;
        let (of_lines, of_events) = (self.clone(), self.clone());
        let lines = Arc::new(move |line: OutputLine<'_>| {
            if line.text == REACHED {
                of_lines.lock().remove(&line.holder);
                return;
            }
            if line.stream == OutputStream::Err
                && !line.text.trim().is_empty()
                && let Some(attempt) = of_lines.lock().get_mut(&line.holder)
            {
                line.text.trim().clone_into(&mut attempt.said);
            }
            lines(line);
        });
        let events = Arc::new(move |mut event| {
            if let LauncherEvent::Gone { holder, exit, tail } = &mut event {
                tail.retain(|line| line != REACHED);
                let failed = exit.code.is_some_and(|code| code != 0);
                let attempt = of_events.lock().remove(holder);
                if let Some(Attempt { host, mut said }) = attempt.filter(|_| failed) {
                    if said.is_empty() {
                        "its command said nothing".clone_into(&mut said);
                    }
                    tail.push(format!("{}host {host} cannot be reached: {said}", Exit::CAUSE));
                }
            }
            events(event);
        });
        Outlets { events, lines }
    }
}

/// A launcher whose nodes are started by commands of this machine.
struct SshLauncher {
    config: Arc<SshConfig>,
    avoided: BTreeSet<String>,
    attempts: Attempts,
    /// The commands.
    commands: ProcessLauncher,
}

impl SshLauncher {
    fn new(config: Arc<SshConfig>, outlets: Outlets) -> Self {
        let attempts = Attempts::default();
        let commands = ProcessLauncher::new(attempts.outlets(outlets));
        Self { config, avoided: BTreeSet::new(), attempts, commands }
    }
}

impl fmt::Debug for SshLauncher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SshLauncher").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Launcher for SshLauncher {
    fn place(&mut self, node: NodeId) -> Option<String> {
        Some(self.config.host(node, &self.avoided).name.clone())
    }

    fn hosts(&self) -> BTreeSet<String> {
        self.config.hosts.iter().map(|host| host.name.clone()).collect()
    }

    fn avoid(&mut self, hosts: &BTreeSet<String>) {
        self.avoided = hosts.clone();
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        let holder = spec.holder;
        let host = self.config.host(holder.node, &self.avoided);
        let mut spec = spec.clone();
        spec.set_first(&self.config.host(NodeId::worker(0), &self.avoided).address);
        let input = memory(&script(&spec, &host.address))
            .map_err(|source: io::Error| LaunchError::File { holder, source })?;
        let mut command = self.config.command(&host.name);
        command.stdin(Stdio::from(input));
        let attempt = Attempt { host: host.name.clone(), ..Attempt::default() };
        self.attempts.lock().insert(holder, attempt);
        let started = self.commands.start(holder, command, None);
        started.inspect_err(|_| drop(self.attempts.lock().remove(&holder)))
    }

    fn end(&mut self, holder: Holder, grace: Duration) -> bool {
        self.commands.end(holder, grace)
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.commands.status(holder)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::runtime::REGISTRY;
    use crate::runtime::testing::check_launcher;

    const LIMIT: Duration = Duration::from_secs(60);

    fn texts(settings: &[(&str, &str)]) -> BTreeMap<String, String> {
        settings.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    /// A command that runs the script on this machine, whatever the host.
    const HERE: (&str, &str) = ("command", "env HOST_OF_TEST={host} sh -s");

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn shell_launcher_passes_the_suite() {
        let factory = REGISTRY.build("ssh", &texts(&[("hosts", "a,b,c"), HERE])).unwrap();
        let suite = move || check_launcher(|outlets| factory(outlets), LIMIT);
        tokio::task::spawn_blocking(suite).await.unwrap().unwrap_or_else(|violation| panic!("{violation}"));
    }

    /// The end of a node and all that its user was shown, of a launcher whose `ssh` is this script.
    async fn run_with(fake: &str) -> (Vec<String>, Vec<String>) {
        let folder = tempfile::tempdir().unwrap();
        let ssh = folder.path().join("ssh");
        std::fs::write(&ssh, fake).unwrap();
        let command = format!("sh {} -T {{host}} sh -s", ssh.display());
        let factory = REGISTRY.build("ssh", &texts(&[("hosts", "a,b"), ("command", &command)])).unwrap();
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (sender, ends) = std::sync::mpsc::channel();
        let lines = Arc::clone(&shown);
        let mut launcher = factory(Outlets {
            events: Arc::new(move |event| {
                if let LauncherEvent::Gone { tail, .. } = event {
                    sender.send(tail).unwrap();
                }
            }),
            lines: Arc::new(move |line| lines.lock().unwrap().push(line.text.to_owned())),
        });
        let spec = NodeSpec {
            holder: Holder::new(NodeId::worker(1), antdt_core::Incarnation(0)),
            program: "sh".into(),
            args: ["-c", "echo of the node; exit 255"].map(Into::into).into(),
            env: Vec::new(),
            file: String::new(),
        };
        launcher.launch(&spec).unwrap();
        let tail = tokio::task::spawn_blocking(move || ends.recv_timeout(LIMIT).unwrap()).await.unwrap();
        let shown = shown.lock().unwrap().clone();
        (tail, shown)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn host_that_cannot_be_reached_is_named_and_one_that_runs_the_node_is_not() {
        let refused = "ssh: connect to host b port 22: Connection refused";
        let (tail, shown) = run_with(&format!("echo 'a banner'; echo '{refused}' >&2; exit 255")).await;
        assert_eq!(tail.last().unwrap(), &format!("{}host b cannot be reached: {refused}", Exit::CAUSE));
        assert!(shown.contains(&refused.to_owned()), "{shown:?}");
        let (tail, _) = run_with("exit 255").await;
        assert_eq!(tail, [format!("{}host b cannot be reached: its command said nothing", Exit::CAUSE)]);
        // The code is the node's own.
        let (tail, shown) = run_with("shift 2; \"$@\"").await;
        assert_eq!((tail, shown), (vec!["of the node".to_owned()], vec!["of the node".to_owned()]));
    }

    #[test]
    fn invalid_setting_is_refused_by_table_and_key() {
        for (settings, expected) in [
            (&[("hosts", " , ")][..], "[launcher.ssh] hosts = (nothing): must be the hosts of the job"),
            (&[("hosts", "-oProxyCommand=x")], "[launcher.ssh] hosts = -oProxyCommand=x: must be a name"),
            (&[("hosts", "a=")], "[launcher.ssh] hosts = a=: must be a name"),
            (&[("hosts", "a b")], "[launcher.ssh] hosts = a b=a b: must be a name"),
            (&[("hosts", "a=1.1.1.1,a=2.2.2.2")], "[launcher.ssh] hosts = a: must be given once"),
            (&[("hosts", "a"), ("per-host", "0")], "[launcher.ssh] per-host = 0: must be at least 1"),
            (
                &[("hosts", "a"), ("command", "ssh a")],
                "[launcher.ssh] command = ssh a: must be a command with {host}",
            ),
        ] {
            let refused = REGISTRY.build("ssh", &texts(settings)).err().expect(expected).to_string();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }

    #[test]
    fn workers_fill_hosts_in_order_and_leave_those_to_be_avoided() {
        let host = |name: &str| HostPlace { name: name.to_owned(), address: format!("address of {name}") };
        let config = SshConfig {
            hosts: ["a", "b", "c"].map(host).into(),
            per_host: 2,
            command: vec!["run".to_owned(), "{host}".to_owned()],
        };
        let places = |node: fn(u32) -> NodeId, avoided: &[&str]| -> String {
            let avoided = avoided.iter().map(|name| (*name).to_owned()).collect();
            (0..7).map(|index| config.host(node(index), &avoided).name.as_str()).collect()
        };
        assert_eq!(places(NodeId::worker, &[]), "aabbcca");
        assert_eq!(places(NodeId::worker, &["b"]), "aacccca");
        assert_eq!(places(NodeId::worker, &["a", "b", "c"]), "aabbcca", "no host is left");
        assert_eq!(places(NodeId::server, &["b"]), "abcabca", "servers are placed on any host");
        let command = config.command("b");
        let words: Vec<_> = command.as_std().get_args().collect();
        assert_eq!((command.as_std().get_program().to_str(), words), (Some("run"), vec!["b".as_ref()]));
    }
}
