//! [`Crew`]: the processes of one system that reduce together, and the orders to them.
//!
//! Each has a connection to here and sleeps in a read of it while others are measured. It ends when the connection
//! does, so that none outlives this process, however this one ends. A process that does not is killed with its process group,
//! so that what it has started ends too.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use serde::de::DeserializeOwned;

use super::order::{self, Done, Hello, Medium};

/// What may pass until all ranks of a system have reported.
const START: Duration = Duration::from_secs(60);
/// What may pass until processes without orders have ended by themselves.
const END: Duration = Duration::from_secs(5);

/// The processes of a system that is measured, one for each rank.
#[derive(Debug)]
pub struct Crew {
    name: String,
    children: Vec<Child>,
    ranks: Vec<Rank>,
    /// What an order may take.
    limit: Duration,
    log: PathBuf,
}

#[derive(Debug)]
struct Rank {
    hello: Hello,
    connection: BufReader<TcpStream>,
}

/// Where ranks report.
#[derive(Debug)]
pub(super) struct Control {
    listener: TcpListener,
    pub(super) address: SocketAddr,
}

impl Control {
    pub(super) fn new() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on loopback")?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok(Self { listener, address })
    }
}

impl Crew {
    /// Starts ranks of this project's collectives: each is a process of `program`, which is `antdt-bench`.
    ///
    /// # Errors
    /// If a process does not start, or the ranks do not find each other.
    pub fn ours(program: &Path, medium: Medium, world: u32, folder: &Path) -> Result<Self> {
        /// Twice the longest, and as long as the ranks themselves wait for each other.
        const LIMIT: Duration = Duration::from_secs(60);
        let control = Control::new()?;
        let commands = (0..world).map(|rank| {
            let mut command = Command::new(program);
            command.args(["--control", &control.address.to_string(), "--rank", &rank.to_string()]);
            command
        });
        let mut crew =
            Self::start(format!("antdt {medium} {world}"), commands, &control, (world, LIMIT), folder)?;
        let addresses: Vec<&str> =
            crew.ranks.iter().filter_map(|rank| rank.hello.address.as_deref()).collect();
        let meet = format!("meet {medium} {}", addresses.join(" "));
        let _: Vec<Done> = crew.order(&meet)?;
        Ok(crew)
    }

    /// Starts processes, each with a process group of its own, and waits until `world` ranks have reported. An order may take
    /// them `limit`. What they print goes to a file in `folder`.
    pub(super) fn start(
        name: String,
        commands: impl IntoIterator<Item = Command>,
        control: &Control,
        (world, limit): (u32, Duration),
        folder: &Path,
    ) -> Result<Self> {
        let log = folder.join(format!("{}.log", name.replace(' ', "-")));
        let out = fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
        let mut crew = Self { name, children: Vec::new(), ranks: Vec::new(), limit, log };
        for mut command in commands {
            command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out.try_clone()?).process_group(0);
            let child =
                command.spawn().with_context(|| format!("{}: cannot start {command:?}", crew.name))?;
            crew.children.push(child);
        }
        let began = Instant::now();
        while crew.ranks.len() < world as usize {
            match control.listener.accept() {
                Ok((stream, _)) => crew.admit(stream)?,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    crew.all_alive()?;
                    if began.elapsed() > START {
                        let (there, limit) = (crew.ranks.len(), START.as_secs());
                        bail!(
                            "{}: {there} of {world} ranks are there after {limit} s{}",
                            crew.name,
                            crew.said()
                        );
                    }
                    // Nothing is measured yet; a process takes longer than this to start.
                    thread::sleep(Duration::from_millis(2));
                }
                Err(e) => return Err(e).with_context(|| format!("{}: cannot hear its ranks", crew.name)),
            }
        }
        crew.ranks.sort_by_key(|rank| rank.hello.rank);
        if crew.ranks.iter().zip(0..).any(|(rank, expected)| rank.hello.rank != expected) {
            bail!("{}: two ranks say that they are the same one", crew.name);
        }
        Ok(crew)
    }

    fn admit(&mut self, stream: TcpStream) -> Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(START))?;
        stream.set_write_timeout(Some(self.limit))?;
        let mut connection = BufReader::new(stream);
        let mut line = String::new();
        connection.read_line(&mut line).with_context(|| format!("{}: a rank says nothing", self.name))?;
        let hello = order::parse(&line)
            .with_context(|| format!("{}: a rank has not started{}", self.name, self.said()))?;
        connection.get_ref().set_read_timeout(Some(self.limit))?;
        self.ranks.push(Rank { hello, connection });
        Ok(())
    }

    fn all_alive(&self) -> Result<()> {
        if self.children.iter().any(has_ended) {
            bail!("{}: a process ended at its start{}", self.name, self.said());
        }
        Ok(())
    }

    /// Returns the number of ranks.
    pub fn world(&self) -> usize {
        self.ranks.len()
    }

    /// Returns the process ids of the ranks.
    pub fn pids(&self) -> Vec<i32> {
        self.ranks.iter().map(|rank| rank.hello.pid).collect()
    }

    /// Sends an order to every rank and waits for all answers. Returns them in order of rank.
    ///
    /// # Errors
    /// If a rank is gone, fails, or does not answer in time; the error names the rank.
    pub fn order<T: DeserializeOwned>(&mut self, line: &str) -> Result<Vec<T>> {
        for rank in 0..self.world() {
            let told = writeln!(self.ranks[rank].connection.get_mut(), "{line}");
            told.with_context(|| self.about(rank, &format!("cannot be told `{line}`")))?;
        }
        (0..self.world())
            .map(|rank| self.hear(rank).with_context(|| self.about(rank, &format!("`{line}`"))))
            .collect()
    }

    /// Waits for the next answer of one rank.
    ///
    /// # Errors
    /// As [`order`](Self::order).
    pub fn hear<T: DeserializeOwned>(&mut self, rank: usize) -> Result<T> {
        let mut line = String::new();
        match self.ranks[rank].connection.read_line(&mut line) {
            Ok(0) => bail!("the process has ended{}", self.said()),
            Ok(_) => order::parse(&line),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                bail!("no answer within {:?}{}", self.limit, self.said())
            }
            Err(e) => Err(e).context("its connection broke"),
        }
    }

    /// Kills the process of one rank with SIGKILL. The other ranks are not told.
    ///
    /// # Errors
    /// If this crew did not start that process itself, or the process cannot be killed.
    pub fn kill(&mut self, rank: usize) -> Result<()> {
        let pid = self.ranks[rank].hello.pid;
        let child = self.children.iter_mut().find(|child| i32::try_from(child.id()) == Ok(pid));
        let child = child.with_context(|| format!("{}: rank {rank} is not ours to kill", self.name))?;
        child.kill().with_context(|| format!("{}: cannot kill rank {rank}", self.name))
    }

    fn about(&self, rank: usize, what: &str) -> String {
        format!("{}: rank {rank} of {}: {what}", self.name, self.world())
    }

    // The last lines that its processes printed.
    fn said(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        match lines.len() {
            0 => String::new(),
            n => format!("; it printed:\n{}", lines[n.saturating_sub(8)..].join("\n")),
        }
    }
}

/// Whether a process has ended. Its number stays taken until it is waited for, and that of its process group with it.
fn has_ended(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(Pid::from_child(child)), options), Ok(None))
}

impl Drop for Crew {
    fn drop(&mut self) {
        for rank in &self.ranks {
            // They notice and end. It fails for those that are gone already.
            let _ = rank.connection.get_ref().shutdown(Shutdown::Both);
        }
        let began = Instant::now();
        let mut running = true;
        while running && began.elapsed() < END {
            running = !self.children.iter().all(has_ended);
            if running {
                thread::sleep(Duration::from_millis(2));
            }
        }
        if running {
            // Ranks first, some of which have process groups of their own: what started them then ends by itself.
            for pid in self.ranks.iter().filter_map(|rank| Pid::from_raw(rank.hello.pid)) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        for child in &mut self.children {
            // Also what a process that has ended left behind.
            let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
            let _ = child.wait();
        }
    }
}
