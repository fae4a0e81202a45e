//! The orders to the ranks of a collective benchmark and their answers: one line each, the same for every
//! system.
//!
//! `prepare BUFFER BYTES` makes a buffer, reduces it once and checks every sum; `time BUFFER CALLS
//! REPETITIONS WARM` times reductions of it, each repetition after a barrier, the first `WARM` ones untimed.
//! The ranks of our own collectives also know `meet MEDIUM ADDRESS...` and `repeat BYTES`.

use std::fmt;

use anyhow::{Context, Result, bail};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Medium over which the bytes of a reduction travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    /// TCP sockets over loopback.
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

/// Memory in which a buffer is reduced in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Buffer {
    /// Memory of the caller, on its heap.
    Heap,
    /// Memory of the communicator.
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

/// The first line that a rank sends to the benchmark's main process: its rank, process id and address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Rank of the process.
    pub rank: u32,
    /// Process id of the rank.
    pub pid: i32,
    /// Address at which other ranks reach this one; `None` for the ranks of a peer, another project's library.
    pub address: Option<String>,
}

/// Answer to an order that asks for no values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

/// Resident memory of a rank before, during and after its first reduction of a buffer, in bytes. `before` and `peak` include the
/// buffer itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prepared {
    /// Resident bytes before the reduction.
    pub before: u64,
    /// Largest number of resident bytes during the reduction.
    pub peak: u64,
    /// Number of bytes by which the process's resident shared memory has grown from before the reduction to after it, whichever
    /// process created that memory; negative if it has shrunk.
    pub shared: i64,
}

/// Times that one rank measured for an order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// Seconds of one call, for each repetition.
    pub seconds: Vec<f64>,
    /// Processor time of one call in seconds, all threads together.
    pub cpu_s: f64,
    /// Processor time that the rank took while it waited for this order, in seconds: after the answer to the order before.
    pub idle_cpu_s: f64,
}

/// End of a group as one rank of it noticed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Time at which the call returned, on the monotonic clock that all processes of a host share, in
    /// nanoseconds.
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

/// Parses a rank's answer.
///
/// # Errors
/// If the rank says that it failed, or the line is something else.
pub fn parse<T: DeserializeOwned>(line: &str) -> Result<T> {
    if let Ok(Refusal { error }) = serde_json::from_str(line) {
        bail!("{error}");
    }
    serde_json::from_str(line).with_context(|| format!("`{}` is not an answer", line.trim_end()))
}

/// Returns, for each repetition, the time of its slowest rank in seconds.
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
    fn answers_are_read_in_any_spelling() {
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
