//! Forms groups whose long messages a library between GPUs moves.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use antdt_core::Rank;

use super::bulk::{BulkError, Library, Patience};
use super::group::DeviceGroup;
use crate::error::CollectiveError;
use crate::group::Group;
use crate::nccl::{Last, Statement, Way, way};
use crate::outcome::Resolution;
use crate::runtime::process_group::{Backend, ProcessGroup};
use crate::runtime::transport::Listener;
use crate::runtime::{AbortHandle, CommunicatorConfig};

/// A [`Backend`] over a library and over another backend, whose groups carry what is short.
pub(super) struct DeviceBackend<L: Library> {
    // Or why this process has none.
    library: Result<L, String>,
    below: Box<dyn Backend>,
    kept: Arc<Mutex<Kept<L::Comm>>>,
    // How the last group communicates, as was told.
    pub(super) told: Option<String>,
}

/// What is left of the last group.
pub(super) struct Kept<C> {
    pub(super) comm: Option<(C, Last)>,
    /// The result of an all-reduce in place whose outcome is open.
    pub(super) open: Option<Vec<u8>>,
}

impl<L: Library> DeviceBackend<L> {
    pub(super) fn new(library: Result<L, String>, below: Box<dyn Backend>) -> Self {
        Self { library, below, kept: Arc::new(Mutex::new(Kept { comm: None, open: None })), told: None }
    }

    // The communicator of the group: all members have one, or none has.
    fn meet(
        &mut self,
        below: &mut dyn ProcessGroup,
        mine: &Statement,
        last: Option<L::Comm>,
        patience: &Patience,
    ) -> Result<Option<L::Comm>, CollectiveError> {
        let group = below.group().clone();
        if group.world() == 1 {
            // It sends nothing.
            return Ok(None);
        }
        let way = way(&statements(below, mine)?);
        if let Way::Without(rank, why) = way {
            let how = match &self.library {
                Err(lacking) if group.me() == rank => format!("{} {why}: {lacking}", group.holder(rank)),
                _ => format!("{} {why}", group.holder(rank)),
            };
            self.tell(&group, how, false);
            return Ok(None);
        }
        let made = self.communicator(below, last, &way, patience)?;
        // A communicator of which one member has no part is of use to nobody.
        let failed = made.as_ref().err().map(ToString::to_string).unwrap_or_default();
        let said = below.all_gather_v(failed.as_bytes())?;
        if let Some((rank, why)) = (0..).zip(&said).find(|(_, why)| !why.is_empty()) {
            let why = String::from_utf8_lossy(why);
            self.tell(&group, format!("{}: {way}: {why}", group.holder(Rank(rank))), false);
            return Ok(None);
        }
        self.tell(&group, way.to_string(), true);
        Ok(made.ok())
    }

    // The communicator of the group, by the way that all have agreed on.
    fn communicator(
        &mut self,
        below: &mut dyn ProcessGroup,
        last: Option<L::Comm>,
        way: &Way,
        patience: &Patience,
    ) -> Result<Result<L::Comm, BulkError>, CollectiveError> {
        let Ok(library) = &mut self.library else {
            return Ok(Err(BulkError::Failed("no library".to_owned())));
        };
        let group = below.group();
        let (world, me) = (group.world(), group.me());
        let lost = || BulkError::Failed("the communicator of the last group is gone".to_owned());
        Ok(match (way, last) {
            (Way::Keep, last) => last.ok_or_else(lost),
            (Way::Shrink { excluded, stop }, last) => {
                let excluded: Vec<u32> = excluded.iter().map(|rank| rank.0).collect();
                last.ok_or_else(lost).and_then(|comm| library.shrink(comm, &excluded, *stop, patience))
            }
            (Way::Grow, mut last) => {
                let identity = match &mut last {
                    Some(comm) if me == Rank(0) => library.identity_to_grow(comm),
                    _ => Ok(Vec::new()),
                };
                match agreed(below, identity)? {
                    Ok(identity) => library.grow(last, &identity, world, me.0, patience),
                    Err(error) => Err(error),
                }
            }
            (Way::Renew(_), last) => {
                drop(last);
                let identity = if me == Rank(0) { library.identity() } else { Ok(Vec::new()) };
                match agreed(below, identity)? {
                    Ok(identity) => library.init(&identity, world, me.0, patience),
                    Err(error) => Err(error),
                }
            }
            (Way::Without(_, why), _) => Err(BulkError::Failed((*why).to_owned())),
        })
    }

    // Says how the group communicates, once for each answer.
    fn tell(&mut self, group: &Group, how: String, plainly: bool) {
        if self.told.as_ref() == Some(&how) {
            return;
        }
        let membership = group.membership().0;
        if plainly {
            tracing::info!(membership, how, "communicator of NCCL");
        } else {
            tracing::warn!(membership, how, "no NCCL: this group communicates over its transport");
        }
        self.told = Some(how);
    }
}

/// The identity that rank 0 made, on all members; empty where it could not.
fn agreed(
    below: &mut dyn ProcessGroup,
    identity: Result<Vec<u8>, BulkError>,
) -> Result<Result<Vec<u8>, BulkError>, CollectiveError> {
    let (mut bytes, error) = match identity {
        Ok(bytes) => (bytes, None),
        Err(error) => (Vec::new(), Some(error)),
    };
    below.broadcast(Rank(0), &mut bytes)?;
    let empty = || BulkError::Failed("rank 0 could not make an identity".to_owned());
    Ok(if bytes.is_empty() { Err(error.unwrap_or_else(empty)) } else { Ok(bytes) })
}

/// What all members say of themselves, in order of rank.
fn statements(below: &mut dyn ProcessGroup, mine: &Statement) -> Result<Vec<Statement>, CollectiveError> {
    let said = below.all_gather_v(&mine.encode())?;
    let group = below.group();
    let read = |(rank, bytes): (u32, &Vec<u8>)| {
        Statement::decode(bytes).ok_or_else(|| CollectiveError::Corrupt {
            peer: group.holder(Rank(rank)),
            what: format!("{} bytes that are no statement", bytes.len()),
        })
    };
    (0..).zip(&said).map(read).collect()
}

impl<L: Library> Backend for DeviceBackend<L> {
    fn join(
        &mut self,
        listener: &Listener,
        group: &Group,
        config: CommunicatorConfig,
        abort: &AbortHandle,
    ) -> Result<(Box<dyn ProcessGroup>, Resolution), CollectiveError> {
        // A call that failed is judged by who comes to a barrier, which therefore waits as long as may be for each.
        let patient = CommunicatorConfig { patience: f64::MAX, ..config };
        let below_config = if self.library.is_ok() { patient } else { config };
        let (mut below, resolution) = self.below.join(listener, group, below_config, abort)?;
        let (last, open) = {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            (kept.comm.take(), kept.open.take())
        };
        let open = open.filter(|_| resolution == Resolution::Committed);
        let (last, known) = last.unzip();
        let mine = match &self.library {
            Ok(library) => Statement { last: known, ..library.statement() },
            Err(_) => Statement::ABSENT,
        };
        let patience = Patience { deadline: Instant::now() + config.timeout, abort: abort.clone() };
        // A group that breaks now is returned all the same, with the fate of the last call: its next call fails.
        let made = self.meet(&mut *below, &mine, last, &patience).unwrap_or(None);
        let kept = Arc::clone(&self.kept);
        Ok((Box::new(DeviceGroup::new(below, made, config, abort.clone(), open, kept)), resolution))
    }
}

impl<L: Library> fmt::Debug for DeviceBackend<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let library = self.library.as_ref().map(Library::statement);
        f.debug_struct("DeviceBackend").field("library", &library).finish_non_exhaustive()
    }
}
