//! The columns of the table, and what was measured of one.

use std::fmt;
use std::time::Duration;

use super::case::Path;
use super::order::Medium;
use super::terms::Terms;
use crate::arguments::Peer;
use crate::meter::{median, median_interval, quantile};

/// Systems that take turns at reducing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Column {
    /// Ours.
    Ours(Path),
    /// gloo has only TCP; inside a host it is what PyTorch users get.
    Gloo(Terms),
    /// Open MPI over the same medium.
    Openmpi(Medium, Terms),
    /// What two ranks must send each other over loopback, and nothing else.
    Duplex,
    /// The same, and the sums.
    Bare,
    /// The same, and a copy of what lay there before.
    Kept,
    /// The same, in the way that takes the cores the least time.
    Frugal,
    /// The pass over memory that ours make, where ranks share it: one that reduces, to all ranks at once.
    Floor,
    /// The copies that ours make besides of a buffer that is the caller's.
    Copies,
}

impl fmt::Display for Column {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(path) => write!(f, "ours over {path}"),
            Self::Gloo(terms) => write!(f, "{}{terms}", Peer::Gloo),
            Self::Openmpi(_, terms) => write!(f, "{}{terms}", Peer::Openmpi),
            Self::Duplex => f.write_str("duplex ceiling"),
            Self::Bare => f.write_str("bare all-reduce"),
            Self::Kept => f.write_str("bare all-reduce with a way back"),
            Self::Frugal => f.write_str("least time on the cores"),
            Self::Floor => f.write_str("memory floor"),
            Self::Copies => f.write_str("copies of a caller's buffers"),
        }
    }
}

/// One column of one case, a value for each round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Series {
    pub(super) column: Column,
    /// Of one reduction.
    pub(super) seconds: Vec<f64>,
    /// Time on the cores of one reduction, all ranks together; nothing for bounds of memory.
    pub(super) cpu: Vec<f64>,
}

impl Series {
    pub(super) const fn new(column: Column) -> Self {
        Self { column, seconds: Vec::new(), cpu: Vec::new() }
    }

    pub(super) fn median(&self) -> f64 {
        median(self.seconds.iter().copied())
    }

    /// What a quarter and three quarters of the rounds do not exceed.
    pub(super) fn quartiles(&self) -> [f64; 2] {
        let mut times: Vec<Duration> = self.seconds.iter().map(|s| Duration::from_secs_f64(*s)).collect();
        [0.25, 0.75].map(|share| quantile(&mut times, share).as_secs_f64())
    }

    pub(super) fn cpu_median(&self) -> f64 {
        median(self.cpu.iter().copied())
    }

    /// How many times longer it takes than `other`, and the 95 % interval of that. They took turns, so each round is a pair.
    pub(super) fn over(&self, other: &Self) -> (f64, [f64; 2]) {
        ratio(&self.seconds, &other.seconds)
    }

    /// The same of the time on the cores.
    pub(super) fn cpu_over(&self, other: &Self) -> (f64, [f64; 2]) {
        ratio(&self.cpu, &other.cpu)
    }
}

/// Median and interval of the ratios of values that belong together.
fn ratio(above: &[f64], below: &[f64]) -> (f64, [f64; 2]) {
    debug_assert_eq!(above.len(), below.len(), "each round is a turn of each");
    let ratios: Vec<f64> = above.iter().zip(below).map(|(above, below)| above / below).collect();
    median_interval(&ratios)
}
