//! The kinds of faults.

use std::fmt;
use std::time::Duration;

use antdt_core::InvalidValue;
use serde::{Deserialize, Serialize};

/// A kind of fault that `antdt-chaos` injects into a running job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ChaosKind {
    /// A worker is killed by SIGKILL.
    WorkerKill,
    /// A worker is stopped, and continued later.
    Stop,
    /// The training thread of a worker stops, while its other threads go on.
    Hang,
    /// A worker gets only a small share of the processor.
    SlowCpu,
    /// Messages to and from a worker are delayed.
    SlowLink,
    /// Packets to and from a worker are lost.
    LossyLink,
    /// Connections to and from a worker are reset, and new ones refused.
    CutLink,
    /// One side of a worker's connections is told that they are reset, and the other side hears nothing.
    HalfReset,
    /// All packets to and from a worker are dropped.
    BlackHole,
    /// A bit is flipped in the data that workers and servers send each other.
    CorruptFrame,
    /// Calls to the master arrive twice.
    DuplicateRpc,
    /// Calls to the master arrive late and in another order.
    ReorderRpc,
    /// The disk of the run directory is full.
    DiskFull,
    /// The folder of checkpoints is read-only.
    DiskReadOnly,
    /// The wall clock of all processes jumps.
    ClockJump,
    /// The master is killed by SIGKILL, and another master takes over.
    MasterKill,
    /// A parameter server is killed by SIGKILL.
    ServerKill,
    /// All workers are killed by SIGKILL.
    AllWorkersKill,
    /// A worker runs out of memory.
    OutOfMemory,
    /// The platform takes a worker back by SIGTERM.
    Preempt,
    /// Strangers connect to every port of the job, and say nothing or nonsense.
    Strangers,
}

/// What two faults cannot have at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shared {
    Disk,
    Clock,
    Calls,
    Master,
}

impl ChaosKind {
    /// All kinds of faults.
    pub const ALL: [Self; 21] = [
        Self::WorkerKill,
        Self::Stop,
        Self::Hang,
        Self::SlowCpu,
        Self::SlowLink,
        Self::LossyLink,
        Self::CutLink,
        Self::HalfReset,
        Self::BlackHole,
        Self::CorruptFrame,
        Self::DuplicateRpc,
        Self::ReorderRpc,
        Self::DiskFull,
        Self::DiskReadOnly,
        Self::ClockJump,
        Self::MasterKill,
        Self::ServerKill,
        Self::AllWorkersKill,
        Self::OutOfMemory,
        Self::Preempt,
        Self::Strangers,
    ];

    /// Returns the name of the kind on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::WorkerKill => "worker-kill",
            Self::Stop => "stop",
            Self::Hang => "hang",
            Self::SlowCpu => "slow-cpu",
            Self::SlowLink => "slow-link",
            Self::LossyLink => "lossy-link",
            Self::CutLink => "cut-link",
            Self::HalfReset => "half-reset",
            Self::BlackHole => "black-hole",
            Self::CorruptFrame => "corrupt-frame",
            Self::DuplicateRpc => "duplicate-rpc",
            Self::ReorderRpc => "reorder-rpc",
            Self::DiskFull => "disk-full",
            Self::DiskReadOnly => "disk-read-only",
            Self::ClockJump => "clock-jump",
            Self::MasterKill => "master-kill",
            Self::ServerKill => "server-kill",
            Self::AllWorkersKill => "all-workers-kill",
            Self::OutOfMemory => "out-of-memory",
            Self::Preempt => "preempt",
            Self::Strangers => "strangers",
        }
    }

    /// Parses a list of kinds, or `all`.
    ///
    /// # Errors
    /// Names the first word that is not a kind.
    pub fn list(field: &str, text: &str) -> Result<Vec<Self>, InvalidValue> {
        let mut kinds = Vec::new();
        for name in text.split(',').map(str::trim) {
            if name == "all" {
                kinds.extend(Self::ALL);
                continue;
            }
            let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
            let names = || format!("all, or some of {}", Self::ALL.map(Self::name).join(", "));
            kinds.push(found.ok_or_else(|| InvalidValue::new(field, format!("`{name}`"), names()))?);
        }
        kinds.sort_unstable();
        kinds.dedup();
        Ok(kinds)
    }

    /// How long it lasts, from and to; nothing if it is over at once.
    pub(super) fn lasts(self) -> Option<(Duration, Duration)> {
        let ms = |from, to| Some((Duration::from_millis(from), Duration::from_millis(to)));
        match self {
            Self::WorkerKill
            | Self::ServerKill
            | Self::AllWorkersKill
            | Self::OutOfMemory
            | Self::Preempt => None,
            // Until another master is started.
            Self::MasterKill => ms(1, 2_000),
            Self::Stop => ms(200, 4_000),
            Self::Hang => ms(1_000, 8_000),
            Self::CutLink | Self::HalfReset | Self::BlackHole | Self::CorruptFrame => ms(500, 4_000),
            Self::DiskFull | Self::DiskReadOnly => ms(500, 4_000),
            Self::SlowCpu | Self::SlowLink | Self::LossyLink => ms(1_000, 8_000),
            Self::DuplicateRpc | Self::ReorderRpc | Self::ClockJump | Self::Strangers => ms(1_000, 8_000),
        }
    }

    pub(super) const fn shared(self) -> Option<Shared> {
        match self {
            Self::DiskFull | Self::DiskReadOnly => Some(Shared::Disk),
            Self::ClockJump => Some(Shared::Clock),
            Self::DuplicateRpc | Self::ReorderRpc => Some(Shared::Calls),
            Self::MasterKill => Some(Shared::Master),
            _ => None,
        }
    }
}

impl fmt::Display for ChaosKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_by_name_and_an_unknown_one_is_named() {
        let kinds = ChaosKind::list("--faults", "hang, worker-kill,hang").unwrap();
        assert_eq!(kinds, [ChaosKind::WorkerKill, ChaosKind::Hang]);
        assert_eq!(ChaosKind::list("--faults", "stop,all").unwrap(), ChaosKind::ALL);
        let error = ChaosKind::list("--faults", "stop,flood").unwrap_err().to_string();
        assert!(
            error.contains("--faults") && error.contains("`flood`") && error.contains("black-hole"),
            "{error}"
        );
    }

    #[test]
    fn a_name_is_the_same_on_the_command_line_and_in_a_file() {
        for kind in ChaosKind::ALL {
            assert_eq!(serde_json::to_string(&kind).unwrap(), format!("\"{kind}\""));
        }
    }
}
