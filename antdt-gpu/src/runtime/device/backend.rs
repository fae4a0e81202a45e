//! Forms groups whose long messages a library between GPUs moves.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use antdt_collective::outcome::Resolution;
use antdt_collective::runtime::process_group::{Backend, ProcessGroup};
use antdt_collective::runtime::transport::Listener;
use antdt_collective::runtime::{AbortHandle, CommunicatorConfig};
use antdt_collective::{CollectiveError, Group};
use antdt_core::Rank;

use super::bulk::{BulkError, Library, Patience};
use super::group::DeviceGroup;
use crate::device::{Claim, HeldComms, Last, Renewal, Sharing, Statement, Way, sharing, way};

/// A [`Backend`] over a library and over another backend, whose groups carry what is short.
pub(in crate::runtime) struct DeviceBackend<L: Library> {
    // Or why this process has none.
    library: Result<L, String>,
    below: Box<dyn Backend>,
    kept: Arc<Mutex<Kept<L::Comm>>>,
    // How the last group communicates, as was told.
    pub(in crate::runtime) told: Option<String>,
    // Why groups of a few did without the library, as was told.
    told_of_few: BTreeSet<String>,
}

/// Where a group's communicator goes when this process leaves the group.
#[derive(Debug, Clone, Copy)]
pub(in crate::runtime) enum Home {
    /// It becomes that of the next group, if that follows from this one.
    Last,
    /// It goes to the pool, under this name.
    Pool(u64),
}

/// What is left of the last groups.
pub(in crate::runtime) struct Kept<C> {
    /// The communicator of the last group that was no group of a few.
    pub(in crate::runtime) comm: Option<(C, Last)>,
    /// Those of groups of a few.
    pub(in crate::runtime) few: HeldComms<C>,
    /// The result of an all-reduce in place whose outcome is open.
    pub(in crate::runtime) open: Option<Vec<u8>>,
}

impl<L: Library> DeviceBackend<L> {
    /// Of a process that computes on the GPU with this index, or on none; or whose host lacks what `open` needs.
    #[cfg(feature = "cuda")]
    pub(in crate::runtime) fn on<E: fmt::Display>(
        gpu: Option<u32>,
        open: impl FnOnce(u32) -> Result<L, E>,
        below: Box<dyn Backend>,
    ) -> Self {
        let library = match gpu {
            Some(index) => open(index).map_err(|error| error.to_string()),
            None => Err("this process computes on no GPU".to_owned()),
        };
        Self::new(library, below)
    }

    pub(in crate::runtime) fn new(library: Result<L, String>, below: Box<dyn Backend>) -> Self {
        let kept = Kept { comm: None, few: HeldComms::default(), open: None };
        Self { library, below, kept: Arc::new(Mutex::new(kept)), told: None, told_of_few: BTreeSet::new() }
    }

    /// Keeps communicators of groups of a few in this pool.
    #[cfg(test)]
    pub(in crate::runtime) fn with_pool(self, few: HeldComms<L::Comm>) -> Self {
        self.kept().few = few;
        self
    }

    /// The number of communicators in the pool.
    #[cfg(test)]
    pub(in crate::runtime) fn kept_of_few(&self) -> usize {
        self.kept().few.len()
    }

    fn kept(&self) -> MutexGuard<'_, Kept<L::Comm>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
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
        let way = way(&L::TERMS, &statements(below, mine)?);
        if let Way::Without(rank, why) = &way {
            let rank = *rank;
            let how = match &self.library {
                Err(lacking) if group.me() == rank => format!("{} {why}: {lacking}", group.holder(rank)),
                _ => format!("{} {why}", group.holder(rank)),
            };
            self.tell(&group, how, false);
            return Ok(None);
        }
        let made = self.communicator(below, last, &way, patience)?;
        match of_all(below, made)? {
            Ok(comm) => {
                self.tell(&group, way.to_string(), true);
                Ok(Some(comm))
            }
            Err((rank, why)) => {
                self.tell(&group, format!("{}: {way}: {why}", group.holder(rank)), false);
                Ok(None)
            }
        }
    }

    // The communicator of a group of a few, with its name in the pool: all members have it, or none has.
    fn meet_few(
        &mut self,
        below: &mut dyn ProcessGroup,
        patience: &Patience,
    ) -> Result<Option<(L::Comm, u64)>, CollectiveError> {
        let group = below.group().clone();
        if group.world() == 1 {
            return Ok(None);
        }
        let (claim, held) = self.kept().few.take(&group);
        let mine = self.library.as_ref().map_or(Statement::ABSENT, Library::statement);
        let (statements, claims): (Vec<Statement>, Vec<Claim>) =
            words_of_few(below, &mine, &claim)?.into_iter().unzip();
        if let Way::Without(rank, why) = way(&L::TERMS, &statements) {
            self.tell_of_few(&group, rank, &why);
            return Ok(None);
        }
        let sharing = sharing(&claims);
        tracing::debug!(membership = group.membership().0, ?sharing, "communicator of {}", L::TERMS.library);
        match sharing {
            Sharing::Use(name) => Ok(held.map(|comm| (comm, name))),
            Sharing::Without => Ok(None),
            Sharing::Make => {
                // All memory that is given up is free before more is taken.
                drop(held);
                let out = self.kept().few.make_room();
                drop(out);
                let made = self.communicator(below, None, &Way::Renew(Renewal::First), patience)?;
                match of_all(below, made)? {
                    Ok(comm) => Ok(Some((comm, group.membership().0))),
                    Err((rank, why)) => {
                        self.kept().few.failed(&group);
                        self.tell_of_few(&group, rank, &why);
                        Ok(None)
                    }
                }
            }
        }
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
        let me = group.me();
        let lost = || BulkError::Failed("the communicator of the last group is gone".to_owned());
        Ok(match (way, last) {
            (Way::Keep, last) => last.ok_or_else(lost),
            (Way::Shrink { excluded, stop }, last) => {
                let excluded: Vec<u32> = excluded.iter().map(|rank| rank.0).collect();
                last.ok_or_else(lost).and_then(|comm| library.shrink(comm, &excluded, *stop, patience))
            }
            (Way::Grow, mut last) => {
                let mine = library.offer_to_grow(last.as_mut(), me.0);
                match offers(below, mine)? {
                    Ok(offers) => library.grow(last, &offers, me.0, patience),
                    Err(error) => Err(error),
                }
            }
            (Way::Reorder, last) => last.ok_or_else(lost).and_then(|mut comm| {
                let made = library.split(&mut comm, Some(0), me.0, patience)?;
                made.ok_or_else(lost)
            }),
            (Way::Renew(_), last) => {
                drop(last);
                let mine = library.offer(me.0);
                match offers(below, mine)? {
                    Ok(offers) => library.init(&offers, me.0, patience),
                    Err(error) => Err(error),
                }
            }
            (Way::Without(_, why), _) => Err(BulkError::Failed(why.clone())),
        })
    }

    // A call that failed is judged by the members that come to a barrier, which therefore waits as long as may be for each.
    fn below_config(&self, config: CommunicatorConfig) -> CommunicatorConfig {
        match &self.library {
            Ok(_) => CommunicatorConfig { patience: f64::MAX, ..config },
            Err(_) => config,
        }
    }

    // Says why a group of a few does without the library, once for each reason.
    fn tell_of_few(&mut self, group: &Group, rank: Rank, why: &str) {
        let lacking = self.library.as_ref().err().filter(|_| group.me() == rank);
        let lacking = lacking.map_or_else(String::new, |lacking| format!(": {lacking}"));
        let how = format!("{} {why}{lacking}", group.holder(rank));
        if self.told_of_few.insert(how.clone()) {
            tracing::warn!(
                how,
                "no {}: groups with this worker communicate over their transport",
                L::TERMS.library
            );
        }
    }

    // Says how the group communicates, once for each answer.
    fn tell(&mut self, group: &Group, how: String, plainly: bool) {
        if self.told.as_ref() == Some(&how) {
            return;
        }
        let (membership, library) = (group.membership().0, L::TERMS.library);
        if plainly {
            tracing::info!(membership, how, "communicator of {library}");
        } else {
            tracing::warn!(membership, how, "no {library}: this group communicates over its transport");
        }
        self.told = Some(how);
    }
}

/// A communicator that all members have made, or the first of them that could not: if one has no part of it, it is of no use
/// to any.
fn of_all<C>(
    below: &mut dyn ProcessGroup,
    made: Result<C, BulkError>,
) -> Result<Result<C, (Rank, String)>, CollectiveError> {
    let failed = made.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let said = below.all_gather_v(failed.as_bytes())?;
    let first = (0..).map(Rank).zip(&said).find(|(_, why)| !why.is_empty());
    Ok(match (first, made) {
        (None, Ok(comm)) => Ok(comm),
        (Some((rank, why)), _) => Err((rank, String::from_utf8_lossy(why).into_owned())),
        (None, Err(error)) => Err((below.group().me(), error.to_string())),
    })
}

/// What all members have made for the others, by rank; an error on all of them if one could not.
fn offers(
    below: &mut dyn ProcessGroup,
    mine: Result<Vec<u8>, BulkError>,
) -> Result<Result<Vec<Vec<u8>>, BulkError>, CollectiveError> {
    let (made, bytes) = match mine {
        Ok(offer) => (1_u8, offer),
        Err(error) => (0, error.to_string().into_bytes()),
    };
    let said = below.all_gather_v(&[&[made][..], &bytes].concat())?;
    let read = |(rank, bytes): (usize, &Vec<u8>)| match bytes.split_first() {
        Some((1, offer)) => Ok(offer.to_vec()),
        failed => {
            let why = failed.map(|(_, why)| String::from_utf8_lossy(why)).unwrap_or_default();
            Err(BulkError::Failed(format!("rank {rank}: {why}")))
        }
    };
    Ok(said.iter().enumerate().map(read).collect())
}

/// What all members say of themselves, in order of rank.
fn statements(below: &mut dyn ProcessGroup, mine: &Statement) -> Result<Vec<Statement>, CollectiveError> {
    all_say(below, &mine.encode(), Statement::decode)
}

/// The same in a group of a few, each with what it has kept for it.
fn words_of_few(
    below: &mut dyn ProcessGroup,
    mine: &Statement,
    claim: &Claim,
) -> Result<Vec<(Statement, Claim)>, CollectiveError> {
    all_say(below, &[&mine.encode()[..], &claim.encode()].concat(), |bytes| {
        let (statement, claim) = bytes.split_at_checked(Statement::LEN)?;
        Some((Statement::decode(statement)?, Claim::decode(claim)?))
    })
}

fn all_say<T>(
    below: &mut dyn ProcessGroup,
    mine: &[u8],
    decode: impl Fn(&[u8]) -> Option<T>,
) -> Result<Vec<T>, CollectiveError> {
    let said = below.all_gather_v(mine)?;
    let group = below.group();
    let read = |(rank, bytes): (u32, &Vec<u8>)| {
        decode(bytes).ok_or_else(|| CollectiveError::Corrupt {
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
        let (mut below, resolution) = self.below.join(listener, group, self.below_config(config), abort)?;
        let (last, open, strangers) = {
            let mut kept = self.kept();
            (kept.comm.take(), kept.open.take(), kept.few.drop_strangers(group))
        };
        drop(strangers);
        let open = open.filter(|_| resolution == Resolution::Committed);
        let (last, known) = last.unzip();
        let mine = match &self.library {
            Ok(library) => Statement { last: known, ..library.statement() },
            Err(_) => Statement::ABSENT,
        };
        let patience = Patience { deadline: Instant::now() + config.timeout, abort: abort.clone() };
        // A group that breaks now is returned all the same, with the fate of the last call: its next call fails.
        let made = self.meet(&mut *below, &mine, last, &patience).unwrap_or(None);
        let (comm, kept) = ((made, Home::Last), Arc::clone(&self.kept));
        Ok((Box::new(DeviceGroup::new(below, comm, L::TERMS, config, abort.clone(), open, kept)), resolution))
    }

    fn join_few(
        &mut self,
        listener: &Listener,
        group: &Group,
        config: CommunicatorConfig,
        abort: &AbortHandle,
    ) -> Result<(Box<dyn ProcessGroup>, Resolution), CollectiveError> {
        let (mut below, resolution) =
            self.below.join_few(listener, group, self.below_config(config), abort)?;
        let open = self.kept().open.take().filter(|_| resolution == Resolution::Committed);
        let patience = Patience { deadline: Instant::now() + config.timeout, abort: abort.clone() };
        // As above.
        let made = self.meet_few(&mut *below, &patience).unwrap_or(None);
        let (made, name) = made.unzip();
        // Without a communicator nothing goes there.
        let (comm, kept) = ((made, Home::Pool(name.unwrap_or(0))), Arc::clone(&self.kept));
        Ok((Box::new(DeviceGroup::new(below, comm, L::TERMS, config, abort.clone(), open, kept)), resolution))
    }
}

impl<L: Library> fmt::Debug for DeviceBackend<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let library = self.library.as_ref().map(Library::statement);
        f.debug_struct("DeviceBackend").field("library", &library).finish_non_exhaustive()
    }
}
