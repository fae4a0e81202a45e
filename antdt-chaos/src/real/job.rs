//! A real job under chaos: its processes, which faults kill, stop or slow down.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use antdt_checkpoint::Folder;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use antdt::node::NodeEnv;
use antdt::{resume, run_dir};

/// A process of a job's node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node {
    /// Its name, such as `worker-1`.
    pub(super) name: String,
    pub(super) pid: i32,
}

/// A job whose master is a child of this process.
#[derive(Debug)]
pub(super) struct RealJob {
    /// The program and its arguments, without those of [`resumed`](Self::start).
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    pub(super) variables: Vec<(&'static str, String)>,
    /// Name of the job.
    pub(super) name: String,
    /// Its run directory.
    pub(super) run_dir: PathBuf,
    /// What its masters say goes there.
    pub(super) log: PathBuf,
    master: Option<Child>,
    /// Masters that were started.
    pub(super) masters: u32,
}

impl RealJob {
    pub(super) fn new(program: PathBuf, name: String, run_dir: PathBuf, log: PathBuf) -> Self {
        let (arguments, variables) = (Vec::new(), Vec::new());
        Self { program, arguments, variables, name, run_dir, log, master: None, masters: 0 }
    }

    /// Starts a master: the first one, or one that goes on with what an earlier one left. Returns whether it begins anew because nothing is
    /// left.
    pub(super) fn start(&mut self) -> io::Result<bool> {
        let goes_on = self.masters > 0 && self.can_go_on();
        if !goes_on {
            // No master can take them over.
            for node in self.nodes("") {
                let _ = send(node.pid, Signal::SIGKILL);
            }
        }
        let log = OpenOptions::new().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command.arg("run");
        if goes_on {
            command.arg("--resume").arg(&self.run_dir);
        } else if self.masters > 0 {
            command.arg("--force");
        }
        command.args(&self.arguments).envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.master = Some(command.spawn()?);
        self.masters += 1;
        Ok(!goes_on && self.masters > 1)
    }

    /// Whether an earlier master has left nodes that can be taken over, or a whole checkpoint.
    fn can_go_on(&self) -> bool {
        let newest = || Folder::open(resume::place(&self.run_dir)).ok()?.newest().ok()?.checkpoint;
        self.run_dir.join(run_dir::HEAD).exists() && !self.nodes("").is_empty() || newest().is_some()
    }

    /// Process of the master, if it was not seen to end.
    pub(super) fn master(&self) -> Option<i32> {
        self.master.as_ref().and_then(|child| i32::try_from(child.id()).ok())
    }

    /// How the master ended, once.
    pub(super) fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        let status = match &mut self.master {
            Some(child) => child.try_wait()?,
            None => None,
        };
        if status.is_some() {
            self.master = None;
        }
        Ok(status)
    }

    /// Kills the master, which is not waited for long: it is killed.
    pub(super) fn kill_master(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.master.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    /// The processes of its nodes whose name begins so, sorted.
    pub(super) fn nodes(&self, kind: &str) -> Vec<Node> {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let mut nodes: Vec<Node> =
            pids.filter_map(|pid| self.node(pid)).filter(|node| node.name.starts_with(kind)).collect();
        nodes.sort();
        nodes
    }

    fn node(&self, pid: i32) -> Option<Node> {
        let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
        let value = |name: &str| {
            let mut variables = environment.split(|byte| *byte == 0);
            let value = variables.find_map(|it| it.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
            String::from_utf8(value.to_vec()).ok()
        };
        let name = (value(NodeEnv::JOB)? == self.name).then(|| value(NodeEnv::NODE)).flatten()?;
        is_alive(pid).then_some(Node { name, pid })
    }

    /// Ends everything that is left of it.
    pub(super) fn end(&mut self) {
        // What it cannot end is left for people to find.
        let _ = self.kill_master();
        for node in self.nodes("") {
            let _ = send(node.pid, Signal::SIGKILL);
        }
    }

    /// The last lines that its masters said.
    pub(super) fn last_words(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.log)?;
            let len = file.metadata()?.len();
            file.seek(SeekFrom::Start(len.saturating_sub(4_096)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
            let said = lines.iter().rev().find(|line| line.starts_with("error: ")).or(lines.last());
            Ok(said.map_or_else(String::new, |line| (*line).to_owned()))
        };
        read().unwrap_or_default()
    }
}

impl Drop for RealJob {
    fn drop(&mut self) {
        self.end();
    }
}

/// How a process ended, for people.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// Whether a process exists and is no zombie.
pub(super) fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with(['Z', 'X']))
}

/// Sends a signal to a process.
pub(super) fn send(pid: i32, signal: Signal) -> Result<(), String> {
    kill(Pid::from_raw(pid), signal).map_err(|error| format!("the process is gone: {error}"))
}

/// The TCP ports that a process has.
pub(super) fn ports(pid: i32) -> BTreeSet<u16> {
    sockets(pid).into_iter().map(|(address, _)| address.port()).collect()
}

/// Where a process listens; an address of this host if it does at all of them.
pub(super) fn listens_at(pid: i32) -> Vec<SocketAddr> {
    let reached = |address: SocketAddr| match address.ip().is_unspecified() {
        true => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        false => address,
    };
    sockets(pid)
        .into_iter()
        .filter(|(_, state)| state == LISTEN)
        .map(|(address, _)| reached(address))
        .collect()
}

/// State of a socket that listens, as the kernel writes it.
const LISTEN: &str = "0A";

/// The TCP sockets that a process has, each with its own address and its state.
fn sockets(pid: i32) -> Vec<(SocketAddr, String)> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets: BTreeSet<String> = links
        .filter_map(|link| {
            let target = fs::read_link(link.path()).ok()?;
            Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
        })
        .collect();
    let table = fs::read_to_string(format!("/proc/{pid}/net/tcp")).unwrap_or_default();
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| row.get(9).is_some_and(|inode| sockets.contains(*inode)))
        .filter_map(|row| {
            let (ip, port) = row.get(1)?.rsplit_once(':')?;
            // In the order of its bytes in memory.
            let ip = Ipv4Addr::from(u32::from_str_radix(ip, 16).ok()?.to_ne_bytes());
            Some((SocketAddr::from((ip, u16::from_str_radix(port, 16).ok()?)), (*row.get(3)?).to_owned()))
        })
        .collect()
}

/// Whether a folder has checkpoints of an earlier job.
pub(super) fn is_used(dir: &Path) -> bool {
    dir.join("run").join(resume::CHECKPOINTS).exists() || dir.join("report.json").exists()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_ports_of_a_process_are_those_that_it_listens_at() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let port = address.port();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(ports(own).contains(&port) && listens_at(own).contains(&address));
        let caller = std::net::TcpStream::connect(address).unwrap();
        assert!(!listens_at(own).contains(&caller.local_addr().unwrap()));
        drop(listener);
        assert!(!ports(own).contains(&port));
    }
}
