//! What ranks are told and what they answer: a line each, the same for every system.
//!
//! `prepare BUFFER BYTES` makes a buffer, reduces it once and checks every sum; `time BUFFER CALLS REPETITIONS WARM`
//! times reductions of it, each repetition after a barrier, the first `WARM` ones untimed. Ours also know
//! `meet MEDIUM ADDRESS...` and `repeat BYTES`.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Medium that carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    /// Sockets over loopback.
    Tcp,
    /// Memory that the processes of a host share.
    Shm,
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        })
    }
}

/// Owner of the buffer that is reduced in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Buffer {
    /// The caller, on its heap.
    Heap,
    /// The communicator.
    Own,
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Heap => "heap",
            Self::Own => "own",
        })
    }
}

/// The first line that a rank sends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Rank of the process.
    pub rank: u32,
    /// Process id.
    pub pid: i32,
    /// Address at which its peers reach it; only for ranks of ours.
    pub address: Option<String>,
}

/// Answer to an order that asks for no values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// Memory around the first reduction of a buffer, in bytes. The buffer itself is in all of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Resident bytes before the reduction.
    pub before: u64,
    /// Resident bytes at the peak.
    pub peak: u64,
    /// Number of pages of shared memory that became visible to this process meanwhile, its own and other processes'.
    pub shared: i64,
}

/// The times that one rank measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Seconds of one call, for every repetition.
    pub seconds: Vec<f64>,
    /// Time on the cores for one call, all threads together.
    pub cpu_s: f64,
    /// Time on the cores between the last order and this one.
    pub idle_cpu_s: f64,
}

/// How a rank of ours saw its group end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// When the call returned, on the clock that all processes of a host share.
    pub at_ns: u64,
    /// Rank that the error blames.
    pub culprit: Option<u32>,
    /// Text that the process printed.
    pub text: String,
}

/// The line of an answer that is a failure.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) error: String,
}

/// Reads an answer.
///
/// # Errors
/// If the rank says that it failed, or the line is something else.
pub fn parse<T: DeserializeOwned>(line: &str) -> Result<T> {
    if let Ok(Refusal { error }) = serde_json::from_str(line) {
        bail!("{error}");
    }
    serde_json::from_str(line).with_context(|| format!("`{}` is not an answer", line.trim_end()))
}

/// Returns the time of each repetition: that of its slowest rank.
pub fn slowest(ranks: &[Times]) -> Vec<f64> {
    let repetitions = ranks.iter().map(|times| times.seconds.len()).min().unwrap_or(0);
    (0..repetitions).map(|i| ranks.iter().map(|times| times.seconds[i]).fold(0.0, f64::max)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(seconds: &[f64]) -> Times {
        Times { seconds: seconds.to_vec(), cpu_s: 0.0, idle_cpu_s: 0.0 }
    }

    #[test]
    fn answers_are_read_whatever_their_spelling() {
        let line = "{\"seconds\": [0.5, 1e-3], \"cpu_s\": 0.25, \"idle_cpu_s\": 0.000000000}\n";
        let read: Times = parse(line).unwrap();
        assert_eq!(read, Times { cpu_s: 0.25, ..times(&[0.5, 0.001]) });
        let hello: Hello = parse("{\"rank\": 1, \"pid\": 77}").unwrap();
        assert_eq!(hello, Hello { rank: 1, pid: 77, address: None });
    }

    #[test]
    fn a_failure_is_passed_on_and_noise_is_shown() {
        assert_eq!(
            parse::<Times>("{\"error\": \"a sum is wrong\"}").unwrap_err().to_string(),
            "a sum is wrong"
        );
        assert!(parse::<Times>("Segmentation fault\n").unwrap_err().to_string().contains("Segmentation"));
        assert!(parse::<Done>("").is_err());
    }

    #[test]
    fn the_slowest_rank_decides_each_repetition() {
        assert_eq!(slowest(&[times(&[1.0, 5.0]), times(&[2.0, 3.0])]), [2.0, 5.0]);
        assert!(slowest(&[]).is_empty());
    }
}
