//! A group whose long messages a library between GPUs moves.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use antdt_collective::CollectiveError;
use antdt_collective::element::{Element, ElementType};
use antdt_collective::elements::{ElementsMut, with_type};
use antdt_collective::frame::{Operation, OperationKind};
use antdt_collective::op::ReduceOp;
use antdt_collective::runtime::process_group::ProcessGroup;
use antdt_collective::runtime::{AbortHandle, CommunicatorConfig, Halves, Transfer};
use antdt_core::Rank;

use super::backend::{Home, Kept};
use super::bulk::{Bulk, BulkError, Job, Patience};
use crate::device::{Last, Terms};

mod communicator;

/// Shorter calls on memory of the host go over the group below: two copies to a GPU and back, and its own start, take longer than they
/// do. Not measured, for want of a GPU: some 30 µs at 20 GB/s. What lies on the GPUs of all members is reduced there, however short.
pub(in crate::runtime) const BULK_MIN_BYTES: usize = 256 << 10;

/// Where a member has the memory that is to be reduced: on the host, on a GPU where the library reaches it, or on a GPU where
/// it does not.
const ON_HOST: u64 = 0;
const ON_DEVICE: u64 = 1;
const UNREACHABLE: u64 = 2;

/// A [`ProcessGroup`] that has another one below, for what is short, for agreement before a call, and for the verdict after
/// one that failed.
pub(in crate::runtime) struct DeviceGroup<C: Bulk + 'static> {
    below: Box<dyn ProcessGroup>,
    comm: Option<C>,
    home: Home,
    terms: Terms,
    config: CommunicatorConfig,
    abort: AbortHandle,
    failed: Option<CollectiveError>,
    // The result of an all-reduce in place of this group whose outcome is open, and of the last one once it counts.
    open: Option<Vec<u8>>,
    adoptable: Option<Vec<u8>>,
    kept: Arc<Mutex<Kept<C>>>,
}

impl<C: Bulk + 'static> DeviceGroup<C> {
    pub(in crate::runtime) fn new(
        below: Box<dyn ProcessGroup>,
        (comm, home): (Option<C>, Home),
        terms: Terms,
        config: CommunicatorConfig,
        abort: AbortHandle,
        adoptable: Option<Vec<u8>>,
        kept: Arc<Mutex<Kept<C>>>,
    ) -> Self {
        Self { below, comm, home, terms, config, abort, failed: None, open: None, adoptable, kept }
    }

    fn check(&self) -> Result<(), CollectiveError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    // Whether a call of this many bytes, the same on all members, goes over the library.
    const fn is_bulk(&self, len_bytes: usize) -> bool {
        self.comm.is_some() && len_bytes >= BULK_MIN_BYTES
    }

    // Whether messages of so many bytes in all, the same number on all members, go over the library.
    const fn moves(&self, len_bytes: usize) -> bool {
        C::MOVES && self.is_bulk(len_bytes)
    }

    const fn is_bulk_reduce(&self, len_bytes: usize, element: ElementType, op: ReduceOp) -> bool {
        self.is_bulk(len_bytes) && self.is_reducible(element, op)
    }

    // Whether there is a library for this reduction. Minimum and maximum of floats differ: NCCL's pass over a NaN, ours keep it.
    const fn is_reducible(&self, element: ElementType, op: ReduceOp) -> bool {
        let orders = matches!(op, ReduceOp::Min | ReduceOp::Max);
        let whole = matches!(element, ElementType::I32 | ElementType::I64 | ElementType::U8);
        self.comm.is_some() && (whole || !orders)
    }

    // Every member's words about this call, by rank. All make the same call, or all fail.
    fn agree(&mut self, call: Operation, words: &[u64]) -> Result<Vec<Vec<u64>>, CollectiveError> {
        let head = [
            u64::from(call.kind as u8) << 16
                | u64::from(call.element.code()) << 8
                | u64::from(call.op.code()),
            u64::from(call.root.0),
            call.len,
        ];
        // By hand: words, of which the first are only compared.
        let mine: Vec<u8> = head.iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
        let said = self.below.all_gather_v(&mine)?;
        let read = |bytes: &Vec<u8>| {
            let (words, _) = bytes.as_chunks::<8>();
            words.iter().map(|word| u64::from_le_bytes(*word)).collect::<Vec<u64>>()
        };
        let said: Vec<Vec<u64>> = said.iter().map(read).collect();
        for (rank, theirs) in (0..).map(Rank).zip(&said) {
            if theirs.get(..3) != Some(&head[..]) || theirs.len() != 3 + words.len() {
                let peer = self.below.group().holder(rank);
                let error = CollectiveError::Mismatch {
                    peer,
                    theirs: format!(
                        "a call over {} that begins {:?}",
                        self.terms.library,
                        theirs.get(..3).unwrap_or_default()
                    ),
                    ours: call.to_string(),
                };
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(said.into_iter().map(|mut words| words.split_off(3)).collect())
    }

    // Carries out a call whose result `take` reads.
    //
    // All members begin it together, after they have agreed, and wait equally long. What is left of the timeout is for
    // the verdict: a member that fails early waits there for those that are still at it.
    fn run<R>(&mut self, job: &Job<'_>, take: impl FnOnce(&[u8]) -> R) -> Result<R, CollectiveError> {
        let limit = self.config.timeout / 4 * 3;
        let patience = Patience { deadline: Instant::now() + limit, abort: self.abort.clone() };
        let comm = self.comm.as_mut().expect("asked for where there is one");
        match comm.run(job, &mut *self.below, &patience) {
            Ok(result) => Ok(take(result)),
            Err(error) => Err(self.verdict(&error)),
        }
    }

    // What a call of the library failed of. The library does not know; the members of the group below do: who is dead or
    // late does not come to its barrier.
    fn verdict(&mut self, error: &BulkError) -> CollectiveError {
        let judged = match error {
            BulkError::Below(error) => Err(error.clone()),
            _ => self.below.barrier(),
        };
        let error = match judged {
            Err(error) => error,
            Ok(()) => {
                let library = self.terms.library;
                let what = format!("a call over {library} ({error}), of which all members are there");
                CollectiveError::Io { what, kind: std::io::ErrorKind::Other }
            }
        };
        self.failed = Some(error.clone());
        error
    }

    // All members have the result, or are told so. `open` is what an in-place call has to keep until its outcome is known.
    fn conclude(&mut self, open: impl FnOnce() -> Option<Vec<u8>>) -> Result<(), CollectiveError> {
        if self.config.unanimous {
            // The group below takes it for a call of its own, and says in the next group whether it counts.
            let voted = self.below.all_reduce_elements(ElementsMut::of(&mut [1_u8]), ReduceOp::Min);
            if let Err(error) = voted {
                self.open = open();
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    fn invalid(&mut self, what: String) -> CollectiveError {
        let error = CollectiveError::Invalid { what };
        self.failed = Some(error.clone());
        error
    }

    // The reduction of all members' `data`: `take` reads it, if all went well.
    fn reduce(
        &mut self,
        element: ElementType,
        op: ReduceOp,
        data: &[u8],
        take: impl FnOnce(&[u8]),
    ) -> Result<(), CollectiveError> {
        let len = data.len() as u64;
        self.agree(Operation { element, op, len, ..Operation::plain(OperationKind::AllReduce) }, &[])?;
        // A mean is a sum that each member divides, as over any other transport.
        let combined = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
        self.run(&Job::AllReduce { element, op: combined, data }, take)
    }

    // Where this member has what is to be reduced.
    fn side_of(&mut self, halves: &mut Halves, element: ElementType, op: ReduceOp) -> u64 {
        let Some((live, spare)) = halves.device_parts() else {
            // A half that was lent in vain is gone; the group below makes another.
            return if halves.parts().1.len() == halves.len_bytes() { ON_HOST } else { UNREACHABLE };
        };
        let (from, into) = (live.place(), spare.place());
        let divides = op != ReduceOp::Mean || divides(element);
        let reached = self.comm.as_mut().is_some_and(|comm| comm.reaches(&from) && comm.reaches(&into));
        if divides && reached { ON_DEVICE } else { UNREACHABLE }
    }

    // The members have agreed on the call.
    fn reduce_on_device(
        &mut self,
        halves: &mut Halves,
        element: ElementType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let len_bytes = halves.len_bytes();
        if let Some((live, spare)) = halves.device_parts() {
            let (from, into) = (live.place(), spare.place());
            self.run(&Job::OnDevice { element, op, from, into, len_bytes }, |_| ())?;
        }
        self.conclude(|| None)?;
        halves.adopt();
        Ok(())
    }

    fn lens_of(&mut self, said: &[Vec<u64>]) -> Result<Vec<usize>, CollectiveError> {
        let lens: Vec<u64> = said.iter().map(|words| words[0]).collect();
        let total = lens.iter().try_fold(0_u64, |sum, len| sum.checked_add(*len));
        let most = self.config.bytes_max;
        if total.is_none_or(|total| total > most) {
            return Err(
                self.invalid(format!("messages of {lens:?} bytes, at most {most} in all are accepted"))
            );
        }
        Ok(lens.iter().map(|len| usize::try_from(*len).unwrap_or(usize::MAX)).collect())
    }

    fn check_root(&mut self, root: Rank) -> Result<(), CollectiveError> {
        let world = self.below.group().world();
        if root.0 >= world {
            return Err(self.invalid(format!("root {root} does not exist, the group has {world}")));
        }
        Ok(())
    }

    fn me(&self) -> u32 {
        self.below.group().me().0
    }

    fn world(&self) -> u32 {
        self.below.group().world()
    }
}

/// Whether there are means of such elements.
fn divides(element: ElementType) -> bool {
    with_type!(element, E => E::DIVIDES)
}

impl<C: Bulk + 'static> ProcessGroup for DeviceGroup<C> {
    fn fit(&mut self) -> Result<(), CollectiveError> {
        self.check()?;
        self.below.fit()
    }

    fn set_timeout(&mut self, timeout: Duration) {
        self.config.timeout = timeout;
        self.below.set_timeout(timeout);
    }

    fn transfers(&mut self) -> Vec<Transfer> {
        self.below.transfers()
    }

    fn adopt(&mut self, mut data: ElementsMut<'_>) -> Result<(), CollectiveError> {
        match self.adoptable.take() {
            Some(result) if result.len() >= data.bytes().len() => {
                let len = data.bytes().len();
                data.bytes().copy_from_slice(&result[..len]);
                // What the group below has for it is the vote.
                self.below.adopt(ElementsMut::of(&mut [0_u8]))
            }
            result => {
                self.adoptable = result;
                self.below.adopt(data)
            }
        }
    }

    fn leave(self: Box<Self>) {
        let group = self.below.group();
        let failed = self.failed.is_some() || self.abort.reason().is_some();
        let last = Last { group: group.fingerprint(), world: group.world(), rank: group.me(), failed };
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.open = self.open;
        let given_up = match (self.home, self.comm) {
            (Home::Last, comm) => {
                kept.comm = comm.map(|comm| (comm, last));
                Vec::new()
            }
            (Home::Pool(name), Some(comm)) if !failed => kept.few.keep(group, name, comm),
            (Home::Pool(_), comm) => comm.into_iter().collect(),
        };
        drop(kept);
        drop(given_up);
        self.below.leave();
    }
}

impl<C: Bulk + 'static> fmt::Debug for DeviceGroup<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceGroup")
            .field("group", self.below.group())
            .field("library", &self.comm.is_some())
            .finish_non_exhaustive()
    }
}
