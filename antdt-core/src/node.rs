//! Description of a node, its status, and how its process ended.

use std::fmt;
use std::sync::Arc;

use crate::id::Holder;

/// Hardware class of a node. A node is compared with nodes of its own class only. The name is shared by all copies, because every
/// view of the job names the class of every node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct DeviceClass(pub Arc<str>);

impl Default for DeviceClass {
    fn default() -> Self {
        Self("cpu".into())
    }
}

impl fmt::Display for DeviceClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Description of a node, which the node sends to the master when it registers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct NodeInfo {
    /// Node and incarnation that registers.
    pub holder: Holder,
    /// Name of the host, or of the emulated host, that the node runs on: processes with the same name share a
    /// network card.
    pub host: String,
    /// Device class of the node.
    pub device: DeviceClass,
    /// Memory in bytes that the processes of the node's host, or of its container, may use together; `None`
    /// if the operating system does not say.
    #[cfg_attr(feature = "serde", serde(default))]
    pub memory_bytes: Option<u64>,
    /// Smallest batch, or micro-batch, that the node accepts, in samples.
    pub batch_size_min: u32,
    /// Largest batch, or micro-batch, that fits into the memory of the node's device, in samples.
    pub batch_size_max: u32,
}

/// Stage of a node's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum NodeStatus {
    /// The node was requested and has not registered yet.
    Pending,
    /// The node is registered and at work.
    Running,
    /// The node finishes its batch before it leaves.
    Draining,
    /// The node left after the end of the data.
    Finished,
    /// The node died, was killed, or fell silent.
    Lost,
}

/// How a process ended, and whether starting it again can help.
///
/// Source: our table, `DLRover`'s mapping considered (master/watcher, read).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Exit {
    /// The process ended with code 0.
    Finished,
    /// A signal that the job did not send ended the process.
    Killed {
        /// Number of the signal.
        signal: i32,
    },
    /// The process, or its device, ran out of memory, as the process says by
    /// [`CODE_MEMORY`](Self::CODE_MEMORY).
    OutOfMemory,
    /// The user's code failed in a way that will repeat.
    Unretryable {
        /// Exit code.
        code: i32,
    },
    /// The process asked to be started again, or failed in an unknown way.
    Retryable {
        /// Exit code.
        code: i32,
    },
    /// The process sent no heartbeat within the limit.
    Silent,
    /// No process was started, because its host lacked something for the moment: descriptors, processes or memory.
    NotStarted,
}

impl Exit {
    /// Exit code by which a process of AntDT says that it should be started again, because its master was
    /// lost or it was fenced.
    pub const CODE_RETRY: i32 = 75; // EX_TEMPFAIL of sysexits.h
    /// Exit code by which a process says that its device has too little memory for its batch.
    pub const CODE_MEMORY: i32 = 247;
    /// Exit code by which a process says that starting it again cannot help, for example after invalid input
    /// or configuration.
    pub const CODE_NEVER: i32 = 78; // EX_CONFIG of sysexits.h

    /// Stands for the exit code of a process whose end nobody saw, as that of another host's that is gone.
    pub const CODE_UNSEEN: i32 = -1;

    /// Beginning of a line that a launcher adds to the last lines of a node's output where it knows why the node ended.
    pub const CAUSE: &str = "cause: ";

    /// Returns whether a new process of the node may succeed where this one failed.
    pub const fn retryable(&self) -> bool {
        match self {
            Self::Killed { .. }
            | Self::OutOfMemory
            | Self::Retryable { .. }
            | Self::Silent
            | Self::NotStarted => true,
            Self::Finished | Self::Unretryable { .. } => false,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => f.write_str("finished"),
            Self::Killed { signal } => write!(f, "killed by signal {signal}"),
            Self::OutOfMemory => f.write_str("out of memory"),
            Self::Retryable { code: Self::CODE_UNSEEN } => f.write_str("gone, nobody saw how"),
            Self::Unretryable { code } | Self::Retryable { code } => write!(f, "exit code {code}"),
            Self::Silent => f.write_str("no heartbeat"),
            Self::NotStarted => f.write_str("not started"),
        }
    }
}
