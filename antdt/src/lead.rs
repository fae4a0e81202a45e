//! [`Lead`]: the right to be the master of a job, and the authority that gives it.
//!
//! Two give it: the lock on the run directory, which the kernel takes from a process that ends, for masters on one host; and etcd
//! (`--elect`), for masters on several hosts with a run directory that they share. What etcd gives ends with its lease, so that a
//! master that is cut off loses it though it lives. What such a master could do after that is prevented thrice: it ends itself
//! before the lease does, and asks whether it [holds](Lead::holds) the lead right before each thing that it does; each master
//! writes journals of its own; and what nodes are told bears numbers that no other master gives out.

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
#[cfg(feature = "cli")]
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::job::EtcdSpec;

#[cfg(feature = "etcd")]
mod etcd;
pub(crate) mod lock;

/// The right to be the master of a job. Dropping it gives it up.
pub(crate) trait Lead: Debug + Send + Sync {
    /// Whether this process still has it.
    fn holds(&self) -> bool;

    /// Its number among all that were given for the job; `None` if the authority does not count.
    fn number(&self) -> Option<u64>;
}

/// A master that finds that it does not lead any more ends as if it was killed: what it would write or say is another one's now.
pub(crate) fn lost() -> ! {
    tracing::error!(
        "--elect: this master could not renew its lead in time and ends; another one goes on with the job"
    );
    std::process::exit(1);
}

/// The lock on a run directory.
#[derive(Debug)]
struct Lock {
    _directory: File,
}

impl Lead for Lock {
    fn holds(&self) -> bool {
        true
    }

    fn number(&self) -> Option<u64> {
        None
    }
}

/// The authority that gives the lead of a job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Elector {
    /// The lock on its run directory.
    #[default]
    Lock,
    /// etcd, to candidates for the job of this name.
    Etcd(EtcdSpec, String),
}

impl Elector {
    pub(crate) fn new(elect: Option<&EtcdSpec>, job: &str) -> Self {
        elect.map_or(Self::Lock, |etcd| Self::Etcd(etcd.clone(), job.to_owned()))
    }

    /// Pause between two tries.
    #[cfg(feature = "cli")]
    pub(crate) const fn pause(&self) -> Duration {
        match self {
            // It adds at most this to the time that the job is without a master, and costs one system call.
            Self::Lock => Duration::from_millis(20),
            // Each costs a call.
            Self::Etcd(..) => Duration::from_millis(100),
        }
    }

    /// Tries to get the lead of the job in a run directory; `None` if another process has it.
    pub(crate) fn try_lead(&self, directory: &Path) -> io::Result<Option<Arc<dyn Lead>>> {
        match self {
            Self::Lock => {
                let lock = File::open(directory)?;
                match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => Ok(Some(Arc::new(Lock { _directory: lock }))),
                    Err(Errno::WOULDBLOCK) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(etcd, job) => {
                let lead = etcd::try_lead(etcd, job).map_err(io::Error::other)?;
                Ok(lead.map(|lead| Arc::new(lead) as Arc<dyn Lead>))
            }
            #[cfg(not(feature = "etcd"))]
            Self::Etcd(..) => Err(io::Error::other(
                "this program was built without etcd; build it with --features etcd, or leave the setting out",
            )),
        }
    }
}
