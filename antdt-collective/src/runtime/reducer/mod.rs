//! All-reduce on a thread of its own, bucket by bucket, while the backward pass still runs.
//!
//! The caller hands over each layer's gradient as it is made and goes on. It is copied straight to its place in the
//! bucket, which lies in memory of the communicator ([`Communicator::buffer`]), made once and kept from step to step: a
//! transport with adapters registers it once, and peers read and write it where it lies. Full buckets are reduced in the
//! order of the plan, so all members make the same calls whatever order their layers come in.
//!
//! Buckets may lie on a GPU ([`BucketMemory::on_device`]), where a group that can reduces them: the caller then copies each gradient
//! there by itself ([`Reducer::submit_by`]) and reads the sums where they lie ([`BucketMemory::places`]); the host sees neither.
//!
//! Cost: a bucket has memory for the operand and for the result, so that the plan has twice the gradient's bytes, and each
//! value is copied once in and, by the caller, once out. Rejected: layers in memory of the caller's own, which are copied
//! together, to a log, and back again, and which no adapter knows.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::region::{DevicePlace, Region};
use super::{AbortHandle, Communicator, CommunicatorBuffer, Compressor, Halves};
use crate::bucket::{BucketError, Buckets, Filling};
use crate::error::CollectiveError;
use crate::op::ReduceOp;
use crate::schedule::Span;

/// Reason why a gradient could not be submitted, or a step's reduction failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReducerError {
    /// The submitted gradient does not fit the bucket plan, or a gradient is missing.
    #[error(transparent)]
    Bucket(#[from] BucketError),
    /// A bucket could not be reduced. Every later call fails with the same error, until the caller forms a
    /// new group.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The caller's deadline passed. The reduction continues until its own deadline.
    #[error("{what} was not reduced within {waited:.1?}; wait longer, or abort")]
    Timeout {
        /// Description of what the caller waited for.
        what: String,
        /// Time that the caller waited.
        waited: Duration,
    },
    /// The reducer's thread has ended, because it panicked.
    #[error("the reducer has ended; make a new one with a new group")]
    Ended,
}

/// The memory of the buckets of a [`Reducer`], for the next reducer with the same plan.
#[derive(Debug, Default)]
pub struct BucketMemory {
    buckets: Vec<Memory>,
}

impl BucketMemory {
    /// Returns memory for the buckets of a plan on a device. `region` makes memory of so many bytes there.
    ///
    /// # Errors
    /// If `region` fails.
    pub fn on_device<E>(
        plan: &Buckets,
        mut region: impl FnMut(usize) -> Result<Region, E>,
    ) -> Result<Self, E> {
        let mut memory = |len: usize| {
            if len == 0 {
                return Ok(Memory::Heap(Vec::new()));
            }
            let len_bytes = len * size_of::<f32>();
            Ok(Memory::Own(CommunicatorBuffer::in_halves(Halves::new(
                region(len_bytes)?,
                region(len_bytes)?,
            ))))
        };
        let buckets = plan.buckets().iter().map(|bucket| memory(bucket.len)).collect::<Result<_, E>>()?;
        Ok(Self { buckets })
    }

    /// Returns where the values of each layer lie on a device, in order of the layers; `None` for a layer without values.
    /// `None` in all if the memory is not on a device, or not that of this plan.
    pub fn places(&mut self, plan: &Buckets) -> Option<Vec<Option<DevicePlace>>> {
        if self.buckets.len() != plan.buckets().len() {
            return None;
        }
        let mut places = vec![None; plan.layer_lens().len()];
        for (memory, bucket) in self.buckets.iter_mut().zip(plan.buckets()) {
            if bucket.len == 0 {
                continue;
            }
            let Memory::Own(buffer) = memory else { return None };
            let start = buffer.device_place().filter(|_| buffer.elements() == bucket.len)?;
            for (layer, span) in &bucket.layers {
                places[*layer] = (span.len > 0).then(|| start.after(span.start * size_of::<f32>()));
            }
        }
        Some(places)
    }
}

/// Where the gradient of a layer belongs in its bucket.
#[derive(Debug)]
#[non_exhaustive]
pub enum LayerMemory<'a> {
    /// In host memory.
    Host(&'a mut [f32]),
    /// On a device.
    Device(DevicePlace),
}

/// What is left of a [`Reducer`], and what one begins with.
#[derive(Debug)]
pub struct ReducerParts<C> {
    /// The communicator of the group.
    pub communicator: C,
    /// The compressors of the buckets, in order of the plan, with their residuals; none without compression.
    pub compressors: Vec<Compressor>,
    /// The memory of the buckets; by default none, and the reducer makes what it lacks. Memory of the previous group's
    /// communicator may be passed: its first all-reduce moves it where the new communicator needs it.
    pub memory: BucketMemory,
}

/// The values of one bucket.
#[derive(Debug)]
enum Memory {
    /// Memory of the communicator.
    Own(CommunicatorBuffer<f32>),
    /// Any memory: of compressed buckets, whose values never travel as they are, and of empty ones.
    Heap(Vec<f32>),
}

impl Memory {
    fn make<C: Communicator>(
        communicator: &mut C,
        len: usize,
        is_compressed: bool,
    ) -> Result<Self, CollectiveError> {
        if is_compressed || len == 0 {
            return Ok(Self::Heap(vec![0.0; len]));
        }
        communicator.buffer(len).map(Self::Own)
    }

    fn fits(&self, len: usize, is_compressed: bool) -> bool {
        let elements = match self {
            Self::Own(buffer) => buffer.elements(),
            Self::Heap(values) => values.len(),
        };
        elements == len && matches!(self, Self::Heap(_)) == (is_compressed || len == 0)
    }
}

impl Memory {
    /// Where it begins, if it is on a device.
    fn device_place(&mut self) -> Option<DevicePlace> {
        match self {
            Self::Own(buffer) => buffer.device_place(),
            Self::Heap(_) => None,
        }
    }
}

impl Deref for Memory {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Own(buffer) => buffer,
            Self::Heap(values) => values,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Own(buffer) => buffer,
            Self::Heap(values) => values,
        }
    }
}

/// Where the memory of a bucket is.
#[derive(Debug)]
enum Place {
    /// It takes gradients, or holds their sums.
    Here { memory: Memory, is_reduced: bool },
    /// The thread reduces it.
    Away,
}

/// All-reduces the gradients of one model bucket by bucket, on a thread of its own. Every member submits
/// every layer in every step, in any order.
///
/// The result is a sum over all members; for a mean over uneven batches submit sums over samples, and the
/// number of samples as one more layer. Dropping it ends the thread and drops the communicator. If gradients
/// are then still being reduced, the abort handle is used, so that neither this process nor the others wait
/// for them.
pub struct Reducer<C> {
    buckets: Buckets,
    // Bucket of each layer, and its span there.
    spans: Vec<(usize, Span)>,
    filling: Filling,
    abort: AbortHandle,
    places: Vec<Place>,
    // Buckets that the thread has.
    away: usize,
    failed: Option<CollectiveError>,
    jobs: Option<SyncSender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<(C, Vec<Compressor>)>>,
}

impl<C> fmt::Debug for Reducer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reducer")
            .field("filling", &self.filling)
            .field("away", &self.away)
            .finish_non_exhaustive()
    }
}

/// What is to be read or written on the host lies on a device.
fn elsewhere(layer: usize) -> CollectiveError {
    let what = format!("layer {layer} lies on a device; use submit_by, and the places of the bucket memory");
    CollectiveError::Invalid { what }
}

/// How often the thread looks after the group while no bucket is full.
const ATTEND: Duration = Duration::from_millis(20);

const DROPPED: &str = "the reducer was dropped while gradients were on their way";

struct Job {
    bucket: usize,
    memory: Memory,
}

struct Done {
    bucket: usize,
    memory: Memory,
    outcome: Result<(), CollectiveError>,
}

impl<C: Communicator + 'static> Reducer<C> {
    /// Starts the thread of a reducer. `abort` is the handle that the communicator's transport was made with.
    ///
    /// # Errors
    /// If the system has no thread or no memory left.
    pub fn new(communicator: C, buckets: Buckets, abort: AbortHandle) -> Result<Self, CollectiveError> {
        let parts = ReducerParts { communicator, compressors: Vec::new(), memory: BucketMemory::default() };
        Self::resume(parts, buckets, abort)
    }

    /// Starts a reducer that goes on with the [parts](Self::into_parts) of another one. With compressors its
    /// gradients are compressed.
    ///
    /// # Errors
    /// If there are compressors, but not one for each bucket, or the system has no thread or no memory left.
    pub fn resume(
        parts: ReducerParts<C>,
        buckets: Buckets,
        abort: AbortHandle,
    ) -> Result<Self, CollectiveError> {
        let ReducerParts { mut communicator, compressors, memory } = parts;
        let (got, due) = (compressors.len(), buckets.buckets().len());
        let is_compressed = got > 0;
        if is_compressed && got != due {
            let what = format!("{got} compressors for {due} buckets; give each bucket its own");
            return Err(CollectiveError::Invalid { what });
        }
        let mut kept = memory.buckets.into_iter();
        let place = |len| {
            let memory = match kept.next().filter(|memory| memory.fits(len, is_compressed)) {
                Some(memory) => memory,
                None => Memory::make(&mut communicator, len, is_compressed)?,
            };
            Ok(Place::Here { memory, is_reduced: false })
        };
        let places: Vec<Place> = buckets
            .buckets()
            .iter()
            .map(|bucket| bucket.len)
            .map(place)
            .collect::<Result<_, CollectiveError>>()?;
        let mut spans = vec![(0, Span { start: 0, len: 0 }); buckets.layer_lens().len()];
        for (index, bucket) in buckets.buckets().iter().enumerate() {
            for (layer, span) in &bucket.layers {
                spans[*layer] = (index, *span);
            }
        }
        // All buckets of a step at once, at the most.
        let (jobs, todo) = sync_channel(due.max(1));
        let (answers, done) = channel();
        let worker = Worker { communicator, compressors, abort: abort.clone(), failed: None };
        let thread = std::thread::Builder::new()
            .name("reducer".to_owned())
            .spawn(move || worker.run(&todo, &answers))
            .map_err(|error| CollectiveError::Io {
                what: "starting the reducer's thread".to_owned(),
                kind: error.kind(),
            })?;
        Ok(Self {
            filling: Filling::new(&buckets),
            buckets,
            spans,
            abort,
            places,
            away: 0,
            failed: None,
            jobs: Some(jobs),
            done,
            thread: Some(thread),
        })
    }

    /// Returns the bucket plan.
    pub const fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Submits a layer's gradient for reduction: copies it into its bucket, and returns at once.
    ///
    /// # Errors
    /// If the gradient does not fit the plan, in which case the step goes on without it; if a bucket of this
    /// reducer has failed or lies on a device; or if the reducer's thread has ended.
    pub fn submit(&mut self, layer: usize, gradient: &[f32]) -> Result<(), ReducerError> {
        self.submit_by(layer, gradient.len(), |memory| match memory {
            LayerMemory::Host(place) => {
                place.copy_from_slice(gradient);
                Ok(())
            }
            LayerMemory::Device(_) if gradient.is_empty() => Ok(()),
            LayerMemory::Device(_) => Err(elsewhere(layer)),
        })
    }

    /// Submits a layer's gradient of `len` values, which `copy` writes to its place in the bucket, wherever that is.
    ///
    /// # Errors
    /// As [`submit`](Self::submit). If `copy` fails, so does the step: the group is aborted, since the other members wait for
    /// the bucket, and every later call fails.
    pub fn submit_by(
        &mut self,
        layer: usize,
        len: usize,
        copy: impl FnOnce(LayerMemory<'_>) -> Result<(), CollectiveError>,
    ) -> Result<(), ReducerError> {
        self.check()?;
        let ready = self.filling.arrive(&self.buckets, layer, len)?;
        let (bucket, span) = self.spans[layer];
        let Place::Here { memory, is_reduced } = &mut self.places[bucket] else {
            return Err(ReducerError::Ended);
        };
        *is_reduced = false;
        let place = match memory.device_place() {
            Some(start) => LayerMemory::Device(start.after(span.start * size_of::<f32>())),
            None => LayerMemory::Host(&mut memory[span.range()]),
        };
        if let Err(error) = copy(place) {
            self.abort.abort(error.to_string());
            self.jobs = None;
            self.failed = Some(error.clone());
            return Err(error.into());
        }
        for bucket in ready {
            let Place::Here { memory, .. } = std::mem::replace(&mut self.places[bucket], Place::Away) else {
                return Err(ReducerError::Ended);
            };
            let jobs = self.jobs.as_ref().ok_or(ReducerError::Ended)?;
            jobs.send(Job { bucket, memory }).map_err(|_| ReducerError::Ended)?;
            self.away += 1;
        }
        Ok(())
    }

    /// Waits until a layer is reduced, and returns the sums over all members. They stay until a layer of the
    /// same bucket is submitted in the next step.
    ///
    /// # Errors
    /// If the layer's bucket, or one before it, could not be reduced, or the deadline passed; if layers
    /// of these buckets are missing, which the error names; or if the bucket lies on a device.
    pub fn wait(&mut self, layer: usize, deadline: Instant) -> Result<&[f32], ReducerError> {
        let layers = self.spans.len();
        let (bucket, span) = *self.spans.get(layer).ok_or(BucketError::Unknown { layer, layers })?;
        while !matches!(self.places[bucket], Place::Here { is_reduced: true, .. }) {
            self.check()?;
            self.filling.check(&self.buckets, bucket)?;
            self.receive(deadline, || format!("layer {layer}"))?;
        }
        match &mut self.places[bucket] {
            Place::Here { memory, .. } => match memory.device_place() {
                Some(_) => Err(elsewhere(layer).into()),
                None => Ok(&memory[span.range()]),
            },
            Place::Away => Err(ReducerError::Ended),
        }
    }

    /// Waits until all buckets of the step are reduced, and begins the next step.
    ///
    /// # Errors
    /// If layers are missing: names them, and aborts the group, since the other members wait for them; every
    /// later call then fails. If a bucket could not be reduced. If the deadline passed: the step is not over,
    /// and the caller may call again.
    pub fn finish(&mut self, deadline: Instant) -> Result<(), ReducerError> {
        if let Err(missing) = self.filling.finish() {
            self.abort.abort(missing.to_string());
            self.jobs = None;
            self.failed = self.failed.take().or_else(|| self.abort.error());
            return Err(missing.into());
        }
        self.check()?;
        while self.away > 0 {
            self.receive(deadline, || "the step".to_owned())?;
        }
        self.filling = Filling::new(&self.buckets);
        Ok(())
    }

    /// Ends the thread once all full buckets are reduced. Returns the communicator, the compressors with their
    /// residuals, and the memory of the buckets.
    ///
    /// # Errors
    /// If the thread panicked.
    pub fn into_parts(mut self) -> Result<ReducerParts<C>, ReducerError> {
        self.jobs = None;
        let ended = self.thread.take().and_then(|thread| thread.join().ok());
        let (communicator, compressors) = ended.ok_or(ReducerError::Ended)?;
        while let Ok(done) = self.done.try_recv() {
            self.places[done.bucket] = Place::Here { memory: done.memory, is_reduced: false };
        }
        let here = |place| match place {
            Place::Here { memory, .. } => memory,
            // Is made anew.
            Place::Away => Memory::Heap(Vec::new()),
        };
        let buckets = std::mem::take(&mut self.places).into_iter().map(here).collect();
        Ok(ReducerParts { communicator, compressors, memory: BucketMemory { buckets } })
    }

    fn check(&self) -> Result<(), CollectiveError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    // Takes one bucket back from the thread.
    fn receive(&mut self, deadline: Instant, what: impl Fn() -> String) -> Result<(), ReducerError> {
        let started = Instant::now();
        match self.done.recv_timeout(deadline.saturating_duration_since(started)) {
            Ok(Done { bucket, memory, outcome }) => {
                self.away -= 1;
                self.places[bucket] = Place::Here { memory, is_reduced: outcome.is_ok() };
                if let Err(error) = outcome {
                    self.failed.get_or_insert_with(|| error.clone());
                    return Err(error.into());
                }
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => {
                Err(ReducerError::Timeout { what: what(), waited: started.elapsed() })
            }
            Err(RecvTimeoutError::Disconnected) => Err(ReducerError::Ended),
        }
    }
}

impl<C> Drop for Reducer<C> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        while self.done.try_recv().is_ok() {
            self.away -= 1;
        }
        if self.away > 0 || self.filling.has_begun(&self.buckets) {
            self.abort.abort(DROPPED);
        }
        self.jobs = None;
        // A panic of the thread is the error of every caller that waited for it.
        let _ = thread.join();
    }
}

// What the thread owns.
struct Worker<C> {
    communicator: C,
    // One for each bucket, or none.
    compressors: Vec<Compressor>,
    abort: AbortHandle,
    failed: Option<CollectiveError>,
}

impl<C: Communicator> Worker<C> {
    fn run(mut self, jobs: &Receiver<Job>, answers: &Sender<Done>) -> (C, Vec<Compressor>) {
        loop {
            let Job { bucket, mut memory } = match jobs.recv_timeout(ATTEND) {
                Ok(job) => job,
                Err(RecvTimeoutError::Timeout) => {
                    self.communicator.attend();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let outcome = match &self.failed {
                Some(error) => Err(error.clone()),
                None => self.reduce(bucket, &mut memory),
            };
            if let Err(error) = &outcome {
                self.failed.get_or_insert_with(|| error.clone());
            }
            // The reducer may have been dropped.
            let _ = answers.send(Done { bucket, memory, outcome });
        }
        if self.abort.reason().is_some() {
            // Fails at once, and tells the other members why.
            let _ = self.communicator.barrier();
        }
        (self.communicator, self.compressors)
    }

    fn reduce(&mut self, bucket: usize, memory: &mut Memory) -> Result<(), CollectiveError> {
        let communicator = &mut self.communicator;
        match (self.compressors.get_mut(bucket), memory) {
            (Some(compressor), memory) => compressor.all_reduce(communicator, memory),
            (None, Memory::Own(buffer)) => communicator.all_reduce_buffer(buffer, ReduceOp::Sum),
            (None, Memory::Heap(values)) => communicator.all_reduce(values, ReduceOp::Sum),
        }
    }
}

#[cfg(test)]
mod tests;
