//! Reductions by kernels that read and write the memory of all members.
//!
//! Each member reduces one part of the elements: it reads that part of all windows, and writes the result to all of them. With
//! `n` members and `S` bytes, `n·S` bytes are read and `n·S` written in all, the least there is.
//!
//! Two rounds over the group below order the members' streams: in the first, all learn that each has filled its window, in
//! the second, that each has begun to reduce. What that means on the GPUs is left to the marks of the streams: a stream waits
//! for the marks of all others, and the host waits only for its own stream, at the end. A member that fails says so in the
//! next round, and all give up together.
//!
//! A mark is set again only when the others' streams wait no more for what it was: they have asked to wait for `Filled` before
//! the second round, and for `Reduced` before the first round of the next piece.
//!
//! Longer data goes in pieces of a window.

use antdt_collective::element::ElementType;
use antdt_collective::op::ReduceOp;
use antdt_collective::runtime::process_group::ProcessGroup;
use antdt_collective::runtime::region::DevicePlace;
use antdt_collective::schedule::{Span, split_even};

use super::card::{Card, Gpu, Mark, Window};
use super::kernel::{Kernel, VECTOR, Work};
use crate::device::{Statement, Stop, Terms};
use crate::runtime::device::bulk::{Bulk, BulkError, Job, Library, Patience, size_of_element};

/// The library: kernels over windows of GPUs.
pub(super) struct Ipc<G: Gpu> {
    gpu: G,
    // What was offered, until the communicator is made.
    offered: Option<G::Card>,
}

impl<G: Gpu> Ipc<G> {
    pub(super) const fn new(gpu: G) -> Self {
        Self { gpu, offered: None }
    }
}

/// A communicator: the windows of all members.
pub(super) struct Windows<C: Card> {
    // By rank; `None` for this member.
    peers: Vec<Option<C::Peer>>,
    card: C,
    result: Vec<u64>,
}

impl<C: Card> Drop for Windows<C> {
    fn drop(&mut self) {
        if !self.card.settle() {
            // What is still under way may use them: they stay open.
            std::mem::forget(std::mem::take(&mut self.peers));
        }
    }
}

impl<G: Gpu> Library for Ipc<G> {
    type Comm = Windows<G::Card>;

    const TERMS: Terms = Terms::CUDA_IPC;

    fn statement(&self) -> Statement {
        self.gpu.statement()
    }

    fn offer(&mut self, _: u32) -> Result<Vec<u8>, BulkError> {
        let card = self.offered.insert(self.gpu.card()?);
        card.offer()
    }

    fn init(&mut self, offers: &[Vec<u8>], me: u32, _: &Patience) -> Result<Self::Comm, BulkError> {
        let mut card =
            self.offered.take().ok_or_else(|| BulkError::Failed("no window was offered".to_owned()))?;
        let mut peers = Vec::with_capacity(offers.len());
        for (rank, offer) in (0_u32..).zip(offers) {
            peers.push(if rank == me { None } else { Some(card.open(offer)?) });
        }
        Ok(Windows { peers, card, result: Vec::new() })
    }

    // To open windows is quick: whatever changed in a group, they are opened anew.
    fn shrink(&mut self, _: Self::Comm, _: &[u32], _: Stop, _: &Patience) -> Result<Self::Comm, BulkError> {
        Err(anew())
    }

    fn split(
        &mut self,
        _: &mut Self::Comm,
        _: Option<u32>,
        _: u32,
        _: &Patience,
    ) -> Result<Option<Self::Comm>, BulkError> {
        Err(anew())
    }

    fn offer_to_grow(&mut self, _: Option<&mut Self::Comm>, _: u32) -> Result<Vec<u8>, BulkError> {
        Err(anew())
    }

    fn grow(
        &mut self,
        _: Option<Self::Comm>,
        _: &[Vec<u8>],
        _: u32,
        _: &Patience,
    ) -> Result<Self::Comm, BulkError> {
        Err(anew())
    }
}

/// The part of `len` elements that a rank reduces: as even as whole vectors allow, so that each begins with one.
fn part(len: usize, world: usize, rank: usize, in_vector: usize) -> Span {
    let vectors = split_even(len.div_ceil(in_vector), world)[rank];
    let (start, end) = (vectors.start * in_vector, (vectors.start + vectors.len) * in_vector);
    Span { start: start.min(len), len: end.min(len) - start.min(len) }
}

fn anew() -> BulkError {
    BulkError::Failed("windows are opened anew for every group".to_owned())
}

/// A reduction, whatever its call: which elements this member gets.
struct Reduction<'a> {
    kernel: Kernel,
    element: ElementType,
    data: &'a [u8],
    weights: &'a [f64],
    total: f64,
    // Of all members' elements, what this one gets; `None`: all of them.
    part: Option<Span>,
}

impl<'a> Reduction<'a> {
    fn of(job: &Job<'a>) -> Option<Self> {
        let plain = |op: ReduceOp, element, data, part| Self {
            kernel: Kernel::Reduce(op, element),
            element,
            data,
            weights: &[],
            total: 0.0,
            part,
        };
        match *job {
            Job::AllReduce { element, op, data } => Some(plain(op, element, data, None)),
            Job::ReduceScatter { element, op, data, spans, me } => {
                Some(plain(op, element, data, Some(spans[me])))
            }
            Job::Weighted { element, data, weights, total, .. } => Some(Self {
                kernel: Kernel::WeightedMean(element),
                element,
                data,
                weights,
                total,
                part: None,
            }),
            Job::OnDevice { .. } | Job::Exchange { .. } | Job::Broadcast { .. } => None,
        }
    }
}

impl<C: Card> Windows<C> {
    fn me(&self) -> usize {
        self.peers.iter().position(Option::is_none).unwrap_or(0)
    }

    // By rank.
    fn windows(&self) -> Vec<Window> {
        let own = self.card.window();
        self.peers.iter().map(|peer| peer.as_ref().map_or(own, C::window_of)).collect()
    }

    // All members learn whether each has done its part so far.
    fn round(below: &mut dyn ProcessGroup, done: Result<(), BulkError>) -> Result<(), BulkError> {
        Self::tell(below, done.map(|()| Vec::new())).map(drop)
    }

    // All members learn what each has to say, or that one of them failed.
    fn tell(
        below: &mut dyn ProcessGroup,
        mine: Result<Vec<u8>, BulkError>,
    ) -> Result<Vec<Vec<u8>>, BulkError> {
        let (tag, words) = match &mine {
            Ok(words) => (b"+", words.clone()),
            Err(error) => (b"-", error.to_string().into_bytes()),
        };
        let mut said = below.all_gather_v(&[&tag[..], &words].concat()).map_err(BulkError::Below)?;
        mine?;
        for (rank, words) in said.iter_mut().enumerate() {
            let tag = if words.is_empty() { b'-' } else { words.remove(0) };
            if tag != b'+' {
                let why = String::from_utf8_lossy(words);
                return Err(BulkError::Failed(format!("rank {rank}: {why}")));
            }
        }
        Ok(said)
    }

    fn wait_all(&mut self, mark: Mark) -> Result<(), BulkError> {
        self.peers.iter().flatten().try_for_each(|peer| self.card.wait(peer, mark))
    }

    // One piece, elements `piece` of the data: appends to the result what this member gets of it.
    fn reduce_piece(
        &mut self,
        call: &Reduction<'_>,
        piece: Span,
        below: &mut dyn ProcessGroup,
        patience: &Patience,
        made: &mut usize,
    ) -> Result<(), BulkError> {
        let size = size_of_element(call.element);
        let data = &call.data[piece.start * size..][..piece.len * size];
        let filled = self.card.fill(data).and_then(|()| self.card.mark(Mark::Filled));
        Self::round(below, filled)?;

        // Within the piece: what this member reduces, into which windows, and what it gets.
        let (me, windows) = (self.me(), self.windows());
        let from: Vec<u64> = windows.iter().map(|window| window.from).collect();
        let (work, into, gets) = match call.part {
            None => {
                let into: Vec<u64> = windows.iter().map(|window| window.into).collect();
                (part(piece.len, windows.len(), me, VECTOR / size), into, Span { start: 0, len: piece.len })
            }
            Some(part) => {
                let start = part.start.clamp(piece.start, piece.start + piece.len);
                let end = (part.start + part.len).clamp(start, piece.start + piece.len);
                let own = Span { start: start - piece.start, len: end - start };
                // From the beginning of a vector: what is reduced besides lies in this member's own window.
                let before = own.start % (VECTOR / size);
                let work = Span { start: own.start - before, len: own.len + before };
                (work, vec![windows[me].into], own)
            }
        };
        let Reduction { kernel, weights, total, .. } = *call;
        let work =
            Work { kernel, from: &from, into: &into, weights, total, start: work.start, len: work.len };
        let reduced = self
            .wait_all(Mark::Filled)
            .and_then(|()| if work.len > 0 { self.card.reduce(&work) } else { Ok(()) })
            .and_then(|()| self.card.mark(Mark::Reduced));
        Self::round(below, reduced)?;

        // Also where this member gets nothing: its window is read until then.
        self.wait_all(Mark::Reduced)?;
        let bytes = gets.len * size;
        if bytes > 0 {
            self.card.fetch(gets.start * size, bytes)?;
        }
        patience.poll(|| Ok(self.card.is_idle()?.then_some(())))?;
        let result: &mut [u8] = bytemuck::cast_slice_mut(&mut self.result);
        result[*made..*made + bytes].copy_from_slice(&self.card.fetched()[gets.start * size..][..bytes]);
        *made += bytes;
        Ok(())
    }
}

impl<C: Card> Windows<C> {
    // Memory of the members' GPUs, where it lies: as a piece, but that the members first tell each other where.
    fn reduce_on_device(
        &mut self,
        kernel: Kernel,
        (from, into): (&DevicePlace, &DevicePlace),
        len: usize,
        size: usize,
        below: &mut dyn ProcessGroup,
        patience: &Patience,
    ) -> Result<(), BulkError> {
        let shared = self
            .card
            .share(from)
            .and_then(|from| Ok([from, self.card.share(into)?]))
            .and_then(|shared| self.card.follow(from).map(|()| shared))
            .and_then(|shared| self.card.follow(into).map(|()| shared))
            .and_then(|shared| self.card.mark(Mark::Filled).map(|()| shared));
        let said = Self::tell(below, shared.map(|[from, into]| [from, into].concat()))?;

        let me = self.me();
        let reduced = self.places(&said, (from.address, into.address)).and_then(|(from, into)| {
            self.wait_all(Mark::Filled)?;
            let part = part(len, said.len(), me, VECTOR / size);
            let (start, len) = (part.start, part.len);
            if len > 0 {
                let (from, into) = (&from, &into);
                self.card.reduce(&Work { kernel, from, into, weights: &[], total: 0.0, start, len })?;
            }
            self.card.mark(Mark::Reduced)
        });
        Self::round(below, reduced)?;
        self.wait_all(Mark::Reduced)?;
        patience.poll(|| Ok(self.card.is_idle()?.then_some(())))
    }

    // By rank, where all read and write: this member at its own addresses, the others at what they have shared.
    fn places(&mut self, said: &[Vec<u8>], own: (u64, u64)) -> Result<(Vec<u64>, Vec<u64>), BulkError> {
        let mut places = (Vec::new(), Vec::new());
        for (peer, shared) in self.peers.iter_mut().zip(said) {
            let (from, into) = match peer {
                None => own,
                Some(peer) => {
                    // Both are equally long.
                    let (from, into) = shared.split_at(shared.len() / 2);
                    (self.card.reach(peer, from)?, self.card.reach(peer, into)?)
                }
            };
            places.0.push(from);
            places.1.push(into);
        }
        Ok(places)
    }
}

impl<C: Card> Bulk for Windows<C> {
    // Between processes of one host, shared memory is the shorter way.
    const MOVES: bool = false;

    fn reaches(&mut self, place: &DevicePlace) -> bool {
        self.card.share(place).is_ok()
    }

    fn run(
        &mut self,
        job: &Job<'_>,
        below: &mut dyn ProcessGroup,
        patience: &Patience,
    ) -> Result<&[u8], BulkError> {
        if let Job::OnDevice { element, op, from, into, len_bytes } = job {
            let (kernel, size) = (Kernel::Reduce(*op, *element), size_of_element(*element));
            self.reduce_on_device(kernel, (from, into), len_bytes / size, size, below, patience)?;
            return Ok(&[]);
        }
        let call = Reduction::of(job)
            .ok_or_else(|| BulkError::Failed("messages do not travel over CUDA IPC".to_owned()))?;
        let size = size_of_element(call.element);
        let (len, most) = (call.data.len() / size, C::WINDOW / size);
        let gets = call.part.map_or(len, |part| part.len) * size;
        self.result.resize(gets.div_ceil(8), 0);
        let mut made = 0;
        for start in (0..len).step_by(most) {
            let piece = Span { start, len: most.min(len - start) };
            self.reduce_piece(&call, piece, below, patience, &mut made)?;
        }
        Ok(&bytemuck::cast_slice(&self.result)[..gets])
    }
}
