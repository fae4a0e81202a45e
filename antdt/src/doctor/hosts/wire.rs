//! What the first host and the probes tell each other: a line of JSON each.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Longest line.
const LINE_MAX: u64 = 64 << 10;

/// How long the other side may be silent: a measurement takes less than two seconds.
const SILENCE: Duration = Duration::from_secs(60);

/// What is known of a host without the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct HostFacts {
    /// Name of the host in the job.
    pub(crate) host: String,
    /// Version of its program.
    pub(crate) version: String,
    /// Cores that a process may use.
    pub(crate) cores: f64,
    /// GPUs, by their class.
    pub(crate) gpus: Vec<String>,
    /// RDMA devices, by their name.
    pub(crate) rdma: Vec<String>,
    /// What is not as a job needs it, in words.
    pub(crate) findings: Vec<String>,
}

/// A link in one direction, as the probe at its beginning has measured it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinkFigures {
    /// Median time of a message there and back, in seconds.
    pub(crate) round_trip: f64,
    /// Bytes a second to the peer.
    pub(crate) to: f64,
    /// Bytes a second from the peer.
    pub(crate) from: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum FromProbe {
    Hello {
        /// What the first host has given to the probes of this call alone.
        call: String,
        /// Number of probes.
        count: u32,
        facts: HostFacts,
        /// Where it listens for the others.
        address: String,
    },
    /// Seconds since the Unix epoch.
    Time(f64),
    /// Multiplications of its reference matrices a second.
    Speed(f64),
    Link(Result<LinkFigures, String>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum ToProbe {
    Time,
    Speed,
    /// Measure the link to the probe at this address.
    Link(String),
    End,
}

/// A connection.
#[derive(Debug)]
pub(super) struct Line {
    reader: BufReader<TcpStream>,
}

impl Line {
    pub(super) fn over(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        stream.set_write_timeout(Some(SILENCE))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    pub(super) fn say<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let line = serde_json::to_string(message)? + "\n";
        self.reader.get_mut().write_all(line.as_bytes())
    }

    pub(super) fn hear<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        let mut line = String::new();
        Read::by_ref(&mut self.reader).take(LINE_MAX).read_line(&mut line)?;
        if line.is_empty() {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}
