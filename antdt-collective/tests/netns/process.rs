//! A member as the test sees it: what it says, line by line, and what is done to it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::member;
use super::network::Network;

/// Longest that a member may take for what it is to do next: several times the timeout of its calls.
const LIMIT: Duration = Duration::from_secs(30);

/// Lines of a member that are shown when it fails.
const SHOWN: usize = 12;

/// What is done to a process.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Signal {
    Kill,
    Stop,
    Continue,
}

/// A member.
pub(crate) struct Process {
    rank: u32,
    child: Child,
    orders: Option<ChildStdin>,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Process {
    /// This test once more, on the network of a member.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(crate) fn start(rank: u32, network: &Network) -> Result<Self, String> {
        let itself = std::env::current_exe().map_err(|error| format!("this test has no file: {error}"))?;
        let name = Network::name(rank);
        if !network.names().contains(&name) {
            return Err(format!("there is no network for rank {rank}"));
        }
        // `ip` becomes the program: its number is that of the member.
        let child = Command::new("ip")
            .args(["netns", "exec", &name])
            .arg(itself)
            .args(["--exact", "a_member", "--nocapture"])
            .env(member::RANK, rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.map_err(|error| format!("rank {rank} cannot be started: {error}"))?;
        let orders = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().expect("it was piped"));
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if let Some((_, said)) = line.split_once('@') {
                    // No process listens any more: the test is over.
                    let _ = sender.send(said.to_owned());
                }
            }
        });
        Ok(Self { rank, child, orders, lines, said: Vec::new() })
    }

    /// Says what to do next.
    ///
    /// # Errors
    /// If the member has ended.
    pub(crate) fn order(&mut self, line: &str) -> Result<(), String> {
        let orders = self.orders.as_mut().ok_or_else(|| format!("rank {} has been ended", self.rank))?;
        writeln!(orders, "{line}").map_err(|error| format!("rank {} takes no orders: {error}", self.rank))
    }

    /// What follows `word` in the next line but those that only tell of progress.
    ///
    /// # Errors
    /// If it says something else, nothing in time, or ends.
    pub(crate) fn expect(&mut self, word: &str) -> Result<String, String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let line = match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => line,
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("rank {} hangs: no word of `{word}` for {LIMIT:?}", self.rank));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(format!("rank {} ended without a word of `{word}`", self.rank));
                }
            };
            self.said.push(line.clone());
            match line.split_once(' ') {
                Some((first, rest)) if first == word => return Ok(rest.to_owned()),
                Some(("done", _)) => {}
                _ => return Err(format!("rank {} was to say `{word}`, it says: {line}", self.rank)),
            }
        }
    }

    /// The number of calls that have counted, when it next tells of its progress.
    ///
    /// # Errors
    /// As [`expect`](Self::expect).
    pub(crate) fn expect_done(&mut self) -> Result<u64, String> {
        let count = self.expect("done")?;
        count.parse().map_err(|_| format!("rank {} counts {count}", self.rank))
    }

    /// The number of calls that had counted when one failed, the member that it names, and the error.
    ///
    /// # Errors
    /// As [`expect`](Self::expect).
    pub(crate) fn expect_failed(&mut self) -> Result<(u64, String, String), String> {
        let line = self.expect("failed")?;
        let mut words = line.splitn(3, ' ');
        let count = words.next().and_then(|count| count.parse().ok());
        match (count, words.next(), words.next()) {
            (Some(count), Some(culprit), Some(error)) => Ok((count, culprit.to_owned(), error.to_owned())),
            _ => Err(format!("rank {} fails without saying how: {line}", self.rank)),
        }
    }

    /// That it ends, and well.
    ///
    /// # Errors
    /// If it does not.
    pub(crate) fn expect_success(&mut self) -> Result<(), String> {
        // The end of what it says is its own end.
        match self.lines.recv_timeout(LIMIT) {
            Err(RecvTimeoutError::Disconnected) => {}
            Err(RecvTimeoutError::Timeout) => return Err(format!("rank {} does not end", self.rank)),
            Ok(line) => return Err(format!("rank {} says after its end: {line}", self.rank)),
        }
        match self.child.wait() {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("rank {} ended with {other:?}", self.rank)),
        }
    }

    /// Does it.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn signal(&mut self, signal: Signal) -> Result<(), String> {
        let name = match signal {
            Signal::Kill => "KILL",
            Signal::Stop => "STOP",
            Signal::Continue => "CONT",
        };
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {}", self.child.id())]).status();
        match status {
            Ok(status) if status.success() => Ok(()),
            other => Err(format!("rank {} gets no {name}: {other:?}", self.rank)),
        }
    }

    /// Ends it, if it has not ended; what it said last.
    pub(crate) fn end(&mut self) -> String {
        // Fails if it has ended, as it should have.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.orders = None;
        self.said.extend(self.lines.iter());
        let last = self.said.len().saturating_sub(SHOWN);
        format!("rank {} said last: {:#?}", self.rank, &self.said[last..])
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}
