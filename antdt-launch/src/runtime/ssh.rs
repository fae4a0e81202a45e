//! Nodes on several hosts, each started by a command that runs a shell there, such as `ssh`.
//!
//! The shell reads a script that becomes the node. The script travels over standard input, so that the job's secret is in no list
//! of processes; the shell puts the node's file under a descriptor of the node and removes its name before the node starts, so that
//! nothing is left on the host, however the node ends.
//!
//! What this launcher ends is the command. Where command and node are one process (`ip netns exec`), that ends the node. Over a
//! network the node is not told: it gets no grace, and ends by itself once its master fences it or does not answer.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use antdt_core::registry::{Setting, Settings};
use antdt_core::{Holder, InvalidValue, NodeId, Role};
use tokio::process::Command;

use super::node_file::memory;
use super::process::{LAUNCHER_PID, ProcessLauncher};
use super::registry::Entry;
use crate::launcher::{ADVERTISE, BIND, LaunchError, LaunchStatus, Launcher, NODE_FILE, NodeSpec, Outlets};

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
    let mut script = Vec::new();
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

/// A launcher whose nodes are started by commands of this machine.
struct SshLauncher {
    config: Arc<SshConfig>,
    avoided: BTreeSet<String>,
    /// The commands.
    commands: ProcessLauncher,
}

impl SshLauncher {
    fn new(config: Arc<SshConfig>, outlets: Outlets) -> Self {
        Self { config, avoided: BTreeSet::new(), commands: ProcessLauncher::new(outlets) }
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
        let input = memory(&script(spec, &host.address))
            .map_err(|source: io::Error| LaunchError::File { holder, source })?;
        let mut command = self.config.command(&host.name);
        command.stdin(Stdio::from(input));
        self.commands.start(holder, command, None)
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
