//! NCCL on one GPU of this process. Host memory goes through pinned buffers and buffers on the GPU.

use std::sync::Arc;
use std::sync::mpsc::channel;

use antdt_collective::element::{Element as _, ElementType};
use antdt_collective::elements::with_float;
use antdt_collective::op::ReduceOp;
use antdt_collective::runtime::process_group::ProcessGroup;
use antdt_collective::runtime::region::DevicePlace;
use antdt_collective::schedule::Span;
use antdt_collective::weighted::{self, Weighed};

use super::api::{Api, Call, Place, Raw};
use super::error::NcclError;
use crate::device::{Statement, Stop, Terms};
use crate::runtime::cuda::context::Context;
use crate::runtime::cuda::lane::{ALIGNMENT, END, Lane};
use crate::runtime::device::bulk::{Bulk, BulkError, Job, Library, Patience, size_of_element};

/// The library and the GPU.
pub(super) struct Nccl {
    api: Arc<Api>,
    version: u32,
    gpu: Arc<Context>,
}

/// A communicator of NCCL.
pub(super) struct NcclComm {
    api: Arc<Api>,
    // Before the lane: what is under way ends with it.
    raw: Owned,
    lane: Lane,
}

/// A communicator that is given up when it is dropped.
struct Owned {
    api: Arc<Api>,
    raw: Raw,
}

impl Drop for Owned {
    fn drop(&mut self) {
        let (api, raw) = (Arc::clone(&self.api), self.raw);
        let (done, ended) = channel();
        // On a thread of its own: where it hangs, this process goes on.
        std::thread::spawn(move || {
            api.abort(raw);
            let _ = done.send(());
        });
        let _ = ended.recv_timeout(END);
    }
}

impl Nccl {
    /// Loads NCCL for the GPU with this index.
    ///
    /// # Errors
    /// If this host lacks the driver, the GPU or the library.
    pub(super) fn open(index: u32) -> Result<Self, NcclError> {
        let gpu = Arc::new(Context::open(index)?);
        let (api, version) = Api::load()?;
        Ok(Self { api: Arc::new(api), version, gpu })
    }

    fn wait(&self, comm: Raw, patience: &Patience) -> Result<(), BulkError> {
        patience.poll(|| Ok(self.api.is_done(comm)?.then_some(())))
    }

    fn own(&self, raw: Raw) -> Owned {
        Owned { api: Arc::clone(&self.api), raw }
    }
}

impl Library for Nccl {
    type Comm = NcclComm;

    const TERMS: Terms = Terms::NCCL;

    fn statement(&self) -> Statement {
        Statement {
            gpu: Some(self.gpu.identity),
            // It reaches all hosts.
            host: 0,
            version: self.version,
            abilities: self.api.abilities(),
            last: None,
        }
    }

    // Of rank 0 its identity, of the others nothing.
    fn offer(&mut self, me: u32) -> Result<Vec<u8>, BulkError> {
        if me == 0 { self.api.identity() } else { Ok(Vec::new()) }
    }

    fn init(&mut self, offers: &[Vec<u8>], me: u32, patience: &Patience) -> Result<NcclComm, BulkError> {
        let lane = Lane::new(&self.gpu)?;
        let raw = self.own(self.api.begin(&offers[0], world_of(offers), me)?);
        self.wait(raw.raw, patience)?;
        Ok(NcclComm { api: Arc::clone(&self.api), raw, lane })
    }

    fn shrink(
        &mut self,
        comm: NcclComm,
        excluded: &[u32],
        stop: Stop,
        patience: &Patience,
    ) -> Result<NcclComm, BulkError> {
        let NcclComm { api, raw: parent, lane } = comm;
        self.gpu.make_current()?;
        if stop == Stop::Revoke {
            api.begin_revoke(parent.raw)?;
            self.wait(parent.raw, patience)?;
        }
        let child = api.begin_shrink(parent.raw, excluded, stop == Stop::Abort)?;
        self.wait(parent.raw, patience)?;
        let raw = self.own(child.made()?);
        self.wait(raw.raw, patience)?;
        drop(parent);
        Ok(NcclComm { api, raw, lane })
    }

    fn split(
        &mut self,
        comm: &mut NcclComm,
        part: Option<u32>,
        me: u32,
        patience: &Patience,
    ) -> Result<Option<NcclComm>, BulkError> {
        let lane = Lane::new(&self.gpu)?;
        let parent = comm.raw.raw;
        let child = self.api.begin_split(parent, part, me)?;
        self.wait(parent, patience)?;
        if part.is_none() {
            return Ok(None);
        }
        let raw = self.own(child.made()?);
        self.wait(raw.raw, patience)?;
        Ok(Some(NcclComm { api: Arc::clone(&self.api), raw, lane }))
    }

    fn offer_to_grow(&mut self, comm: Option<&mut NcclComm>, me: u32) -> Result<Vec<u8>, BulkError> {
        match comm {
            Some(comm) if me == 0 => self.api.identity_to_grow(comm.raw.raw),
            _ => Ok(Vec::new()),
        }
    }

    fn grow(
        &mut self,
        comm: Option<NcclComm>,
        offers: &[Vec<u8>],
        me: u32,
        patience: &Patience,
    ) -> Result<NcclComm, BulkError> {
        self.gpu.make_current()?;
        let parent = comm.as_ref().map(|comm| comm.raw.raw);
        let child = self.api.begin_grow(parent, &offers[0], world_of(offers), me)?;
        if let Some(parent) = parent {
            self.wait(parent, patience)?;
        }
        let raw = self.own(child.made()?);
        self.wait(raw.raw, patience)?;
        let lane = comm.map_or_else(|| Lane::new(&self.gpu), |comm| Ok(comm.lane))?;
        Ok(NcclComm { api: Arc::clone(&self.api), raw, lane })
    }
}

/// Members of a group of which each has made an offer.
fn world_of(offers: &[Vec<u8>]) -> u32 {
    u32::try_from(offers.len()).unwrap_or(u32::MAX)
}

impl Bulk for NcclComm {
    const MOVES: bool = true;

    fn reaches(&mut self, place: &DevicePlace) -> bool {
        place.gpu == self.lane.gpu.identity
    }

    fn run(
        &mut self,
        job: &Job<'_>,
        _: &mut dyn ProcessGroup,
        patience: &Patience,
    ) -> Result<&[u8], BulkError> {
        let Self { api, raw, lane } = self;
        lane.gpu.make_current()?;
        let (sent, received) = lens(job);
        let at = sent.next_multiple_of(ALIGNMENT);
        lane.reserve(at + received)?;
        write_sent(job, lane.host());
        if sent > 0 {
            lane.send_up(sent)?;
        }
        if let Job::OnDevice { from, into, .. } = job {
            lane.follow(from.stream)?;
            lane.follow(into.stream)?;
        }
        api.submit(raw.raw, lane.stream.cast(), &calls(job, lane, at))?;
        patience.poll(|| Ok(api.is_done(raw.raw)?.then_some(())))?;
        if received > 0 {
            lane.send_down(at, received)?;
        }
        patience.poll(|| match lane.is_idle()? {
            true => Ok(Some(())),
            // A peer's failure shows only here.
            false => api.is_done(raw.raw).map(|_| None),
        })?;
        let result = &mut lane.host()[at..at + received];
        let Job::Weighted { element, total, .. } = job else { return Ok(result) };
        let means = with_float!(*element, E => unweigh_bytes::<E>(result, *total), else => 0);
        Ok(&result[..means])
    }
}

/// Bytes that a member sends, and that it receives.
fn lens(job: &Job<'_>) -> (usize, usize) {
    match job {
        Job::AllReduce { data, .. } => (data.len(), data.len()),
        Job::Weighted { element, data, .. } => {
            let (len, sum) = sums_of(*element, data);
            (len * size_of_element(sum), len * size_of_element(sum))
        }
        Job::OnDevice { .. } => (0, 0),
        Job::ReduceScatter { element, data, spans, me, .. } => {
            (data.len(), spans[*me].len * size_of_element(*element))
        }
        Job::Exchange { sends, receives } => {
            (sends.iter().map(|(_, bytes)| bytes.len()).sum(), receives.iter().map(|(_, len)| len).sum())
        }
        Job::Broadcast { data, len, .. } => (data.len(), *len),
    }
}

/// How many sums a weighted mean of these floats has, and of which type.
fn sums_of(element: ElementType, data: &[u8]) -> (usize, ElementType) {
    let sum = with_float!(element, E => <E as Weighed>::Sum::TYPE, else => element);
    (data.len() / size_of_element(element), sum)
}

fn write_sent(job: &Job<'_>, host: &mut [u8]) {
    match job {
        Job::AllReduce { data, .. } | Job::ReduceScatter { data, .. } | Job::Broadcast { data, .. } => {
            host[..data.len()].copy_from_slice(data);
        }
        Job::OnDevice { .. } => {}
        Job::Weighted { element, data, weights, me, .. } => with_float!(*element, E => {
            let (len, sum) = sums_of(*element, data);
            let products = bytemuck::cast_slice_mut(&mut host[..len * size_of_element(sum)]);
            weighted::weigh::<E>(bytemuck::cast_slice(data), weights[*me], products);
        }, else => {}),
        Job::Exchange { sends, .. } => {
            let mut at = 0;
            for (_, bytes) in *sends {
                host[at..at + bytes.len()].copy_from_slice(bytes);
                at += bytes.len();
            }
        }
    }
}

fn place(lane: &Lane, at: usize) -> Place {
    Place(lane.address() + at as u64)
}

/// What the library is to do; the part that is received begins at `at`.
fn calls(job: &Job<'_>, lane: &Lane, at: usize) -> Vec<Call> {
    let (from, into) = (place(lane, 0), place(lane, at));
    match job {
        Job::AllReduce { element, op, data } => {
            let len = data.len() / size_of_element(*element);
            vec![Call::AllReduce(from, into, len, *element, *op)]
        }
        Job::OnDevice { element, op, from, into, len_bytes } => {
            let len = len_bytes / size_of_element(*element);
            vec![Call::AllReduce(Place(from.address), Place(into.address), len, *element, *op)]
        }
        Job::Weighted { element, data, .. } => {
            let (len, sum) = sums_of(*element, data);
            vec![Call::AllReduce(from, into, len, sum, ReduceOp::Sum)]
        }
        // Parts may differ in length by an element, which the library's own reduce-scatter does not allow.
        Job::ReduceScatter { element, op, spans, .. } => {
            let bytes = size_of_element(*element);
            let call = |(root, span): (u32, &Span)| {
                Call::Reduce(place(lane, span.start * bytes), into, span.len, *element, *op, root)
            };
            (0..).zip(*spans).map(call).collect()
        }
        Job::Exchange { sends, receives } => {
            let (mut out, mut back, mut calls) = (0, at, Vec::new());
            for (rank, bytes) in *sends {
                calls.push(Call::Send(place(lane, out), bytes.len(), *rank));
                out += bytes.len();
            }
            for (rank, len) in *receives {
                calls.push(Call::Receive(place(lane, back), *len, *rank));
                back += len;
            }
            // A message without bytes is none.
            calls.retain(|call| !matches!(call, Call::Send(_, 0, _) | Call::Receive(_, 0, _)));
            calls
        }
        Job::Broadcast { root, len, .. } => vec![Call::Broadcast(from, into, *len, *root)],
    }
}

/// Divides sums as `unweigh` does, where they lie; returns the bytes of the means, which begin where the sums do.
fn unweigh_bytes<E: Weighed>(sums: &mut [u8], total: f64) -> usize {
    let (wide, narrow) = (size_of::<E::Sum>(), size_of::<E>());
    let len = sums.len() / wide;
    for at in 0..len {
        // A mean is no longer than a sum, so that it overwrites none that is still to be read.
        let sum = bytemuck::pod_read_unaligned(&sums[at * wide..][..wide]);
        sums[at * narrow..][..narrow].copy_from_slice(bytemuck::bytes_of(&E::mean(sum, total)));
    }
    len * narrow
}
