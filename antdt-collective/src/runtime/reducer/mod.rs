//! All-reduce on a thread of its own, bucket by bucket, while the backward pass still runs.
//!
//! The caller hands over each layer's gradient as it is made and goes on. Full buckets are reduced in the order of the
//! plan, so all members make the same calls whatever order their layers come in. A bucket of one layer is reduced in
//! the memory that was handed over; layers that share a bucket are copied together, reduced, and copied back into the
//! memory they came in.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{AbortHandle, Communicator, Compressor};
use crate::bucket::{BucketError, Buckets, Filling};
use crate::error::CollectiveError;
use crate::op::ReduceOp;

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
    /// The reducer's thread has ended, because it panicked or the reducer was dropped.
    #[error("the reducer has ended; make a new one with a new group")]
    Ended,
}

/// A handle to the reduction of one layer's gradient. Dropping it does not stop the reduction.
#[derive(Debug)]
pub struct Handle {
    layer: usize,
    reply: Receiver<Result<Vec<f32>, CollectiveError>>,
}

impl Handle {
    /// Returns the index of the layer.
    pub const fn layer(&self) -> usize {
        self.layer
    }

    /// Waits for the reduction and returns the sum over all members, in the memory that was submitted.
    ///
    /// # Errors
    /// If the layer's bucket, or one before it, could not be reduced, or the deadline passed. A bucket is
    /// reduced only once all its layers are submitted.
    pub fn wait(self, deadline: Instant) -> Result<Vec<f32>, ReducerError> {
        receive(&self.reply, deadline, || format!("layer {}", self.layer))
    }
}

/// All-reduces the gradients of one model bucket by bucket, on a thread of its own. Every member submits
/// every layer in every step, in any order.
///
/// The result is a sum over all members; for a mean over uneven batches submit sums over samples, and the
/// number of samples as one more layer. Dropping it ends the thread and drops the communicator. If gradients
/// are then still being reduced, the abort handle is used, so that neither this process nor the others wait
/// for them.
pub struct Reducer<C> {
    buckets: Arc<Buckets>,
    filling: Filling,
    abort: AbortHandle,
    // Gradients that were handed over and not answered yet.
    open: Arc<AtomicUsize>,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<(C, Vec<Compressor>)>>,
    // An end of the step that was asked for and not answered in time.
    finishing: Option<Receiver<Result<(), CollectiveError>>>,
}

impl<C> fmt::Debug for Reducer<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reducer")
            .field("filling", &self.filling)
            .field("open", &self.open)
            .finish_non_exhaustive()
    }
}

const DROPPED: &str = "the reducer was dropped while gradients were on their way";

enum Job {
    Layer(usize, Gradient),
    Reduce(usize),
    Finish(Sender<Result<(), CollectiveError>>),
}

struct Gradient {
    values: Vec<f32>,
    reply: Sender<Result<Vec<f32>, CollectiveError>>,
}

impl<C: Communicator + 'static> Reducer<C> {
    /// Starts the thread of a reducer. `abort` is the handle that the communicator's transport was made with.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn new(communicator: C, buckets: Buckets, abort: AbortHandle) -> Result<Self, CollectiveError> {
        Self::start(communicator, buckets, Vec::new(), abort)
    }

    /// Starts a reducer whose gradients are compressed. It needs one compressor for each bucket, in order of
    /// the plan, new or from [`into_parts`](Self::into_parts) of the previous group's reducer.
    ///
    /// # Errors
    /// If there is not one compressor for each bucket, or the system has no thread left.
    pub fn compressed(
        communicator: C,
        buckets: Buckets,
        compressors: Vec<Compressor>,
        abort: AbortHandle,
    ) -> Result<Self, CollectiveError> {
        let (got, due) = (compressors.len(), buckets.buckets().len());
        if got != due {
            let what = format!("{got} compressors for {due} buckets; give each bucket its own");
            return Err(CollectiveError::Invalid { what });
        }
        Self::start(communicator, buckets, compressors, abort)
    }

    fn start(
        communicator: C,
        buckets: Buckets,
        compressors: Vec<Compressor>,
        abort: AbortHandle,
    ) -> Result<Self, CollectiveError> {
        // In one step: each layer, each bucket, and the end.
        let (jobs, todo) = sync_channel(buckets.layer_lens().len() + buckets.buckets().len() + 1);
        let (buckets, open) = (Arc::new(buckets), Arc::new(AtomicUsize::new(0)));
        let worker = Worker {
            communicator,
            compressors,
            buckets: Arc::clone(&buckets),
            came: buckets.layer_lens().iter().map(|_| None).collect(),
            shared: Vec::new(),
            open: Arc::clone(&open),
            abort: abort.clone(),
            failed: None,
        };
        let thread = std::thread::Builder::new()
            .name("reducer".to_owned())
            .spawn(move || worker.run(&todo))
            .map_err(|error| CollectiveError::Io {
                what: "starting the reducer's thread".to_owned(),
                kind: error.kind(),
            })?;
        let filling = Filling::new(&buckets);
        Ok(Self { buckets, filling, abort, open, jobs: Some(jobs), thread: Some(thread), finishing: None })
    }

    /// Returns the bucket plan.
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }

    /// Submits a layer's gradient for reduction and returns at once.
    ///
    /// # Errors
    /// If the gradient does not fit the plan, in which case the step goes on without it; or if the reducer's
    /// thread has ended.
    pub fn submit(&mut self, layer: usize, gradient: Vec<f32>) -> Result<Handle, ReducerError> {
        let ready = self.filling.arrive(&self.buckets, layer, gradient.len())?;
        let (answer, reply) = channel();
        self.open.fetch_add(1, Ordering::AcqRel);
        self.send(Job::Layer(layer, Gradient { values: gradient, reply: answer }))?;
        for bucket in ready {
            self.send(Job::Reduce(bucket))?;
        }
        Ok(Handle { layer, reply })
    }

    /// Waits until all buckets of the step are reduced, and begins the next step.
    ///
    /// # Errors
    /// If layers are missing: names them, and aborts the group, since the other members wait for them; every
    /// handle of the step then fails. If a bucket could not be reduced. If the deadline passed: the step is
    /// not over, and the caller may call again.
    pub fn finish(&mut self, deadline: Instant) -> Result<(), ReducerError> {
        if let Err(missing) = self.filling.finish() {
            self.abort.abort(missing.to_string());
            self.jobs = None;
            return Err(missing.into());
        }
        let reply = match self.finishing.take() {
            Some(reply) => reply,
            None => {
                let (answer, reply) = channel();
                self.send(Job::Finish(answer))?;
                reply
            }
        };
        let result = receive(&reply, deadline, || "the step".to_owned());
        match &result {
            Ok(()) => self.filling = Filling::new(&self.buckets),
            Err(ReducerError::Timeout { .. }) => self.finishing = Some(reply),
            Err(_) => {}
        }
        result
    }

    /// Ends the thread once all full buckets are reduced. Returns the communicator, and the compressors of
    /// the buckets, which hold the residuals; none without compression.
    ///
    /// # Errors
    /// If the thread panicked.
    pub fn into_parts(mut self) -> Result<(C, Vec<Compressor>), ReducerError> {
        self.jobs = None;
        self.thread.take().and_then(|thread| thread.join().ok()).ok_or(ReducerError::Ended)
    }

    fn send(&self, job: Job) -> Result<(), ReducerError> {
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or(ReducerError::Ended)
    }
}

impl<C> Drop for Reducer<C> {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if self.open.load(Ordering::Acquire) > 0 {
            self.abort.abort(DROPPED);
        }
        self.jobs = None;
        // A panic of the thread was told to everyone who waited for it.
        let _ = thread.join();
    }
}

fn receive<T>(
    reply: &Receiver<Result<T, CollectiveError>>,
    deadline: Instant,
    what: impl Fn() -> String,
) -> Result<T, ReducerError> {
    let started = Instant::now();
    match reply.recv_timeout(deadline.saturating_duration_since(started)) {
        Ok(answer) => Ok(answer?),
        Err(RecvTimeoutError::Timeout) => {
            Err(ReducerError::Timeout { what: what(), waited: started.elapsed() })
        }
        Err(RecvTimeoutError::Disconnected) => Err(ReducerError::Ended),
    }
}

// What the thread owns.
struct Worker<C> {
    communicator: C,
    // One for each bucket, or none.
    compressors: Vec<Compressor>,
    buckets: Arc<Buckets>,
    // Gradients whose bucket was not reduced yet, by layer.
    came: Vec<Option<Gradient>>,
    // Where layers that share a bucket lie together.
    shared: Vec<f32>,
    open: Arc<AtomicUsize>,
    abort: AbortHandle,
    failed: Option<CollectiveError>,
}

impl<C: Communicator> Worker<C> {
    fn run(mut self, jobs: &Receiver<Job>) -> (C, Vec<Compressor>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Layer(layer, gradient) => match &self.failed {
                    None => self.came[layer] = Some(gradient),
                    Some(error) => self.answer(&gradient.reply, Err(error.clone())),
                },
                Job::Reduce(bucket) => self.reduce(bucket),
                Job::Finish(reply) => {
                    // Nobody may be waiting any more.
                    let _ = reply.send(self.failed.clone().map_or(Ok(()), Err));
                }
            }
        }
        let error = self.abort.error().unwrap_or_else(|| CollectiveError::Aborted {
            by: None,
            culprit: None,
            reason: DROPPED.to_owned(),
        });
        self.fail(&error);
        if self.abort.reason().is_some() {
            // Fails at once, and tells the other members why.
            let _ = self.communicator.barrier();
        }
        (self.communicator, self.compressors)
    }

    fn reduce(&mut self, bucket: usize) {
        if self.failed.is_some() {
            return;
        }
        let buckets = Arc::clone(&self.buckets);
        let layers = &buckets.buckets()[bucket].layers;
        // All are there: the caller sends a bucket after its layers.
        let mut gradients: Vec<Gradient> =
            layers.iter().filter_map(|(layer, _)| self.came[*layer].take()).collect();
        let (communicator, compressor) = (&mut self.communicator, self.compressors.get_mut(bucket));
        let all_reduce = |values: &mut [f32]| match compressor {
            Some(compressor) => compressor.all_reduce(communicator, values),
            None => communicator.all_reduce(values, ReduceOp::Sum),
        };
        let result = if let [gradient] = &mut gradients[..] {
            all_reduce(&mut gradient.values)
        } else {
            self.shared.clear();
            gradients.iter().for_each(|gradient| self.shared.extend_from_slice(&gradient.values));
            let result = all_reduce(&mut self.shared);
            for (gradient, (_, span)) in gradients.iter_mut().zip(layers) {
                gradient.values.copy_from_slice(&self.shared[span.range()]);
            }
            result
        };
        for gradient in gradients {
            self.answer(&gradient.reply, result.clone().map(|()| gradient.values));
        }
        if let Err(error) = result {
            self.fail(&error);
        }
    }

    fn fail(&mut self, error: &CollectiveError) {
        for gradient in std::mem::take(&mut self.came).into_iter().flatten() {
            self.answer(&gradient.reply, Err(error.clone()));
        }
        self.failed = Some(error.clone());
    }

    fn answer(
        &self,
        reply: &Sender<Result<Vec<f32>, CollectiveError>>,
        answer: Result<Vec<f32>, CollectiveError>,
    ) {
        self.open.fetch_sub(1, Ordering::AcqRel);
        // The handle may have been dropped.
        let _ = reply.send(answer);
    }
}

#[cfg(test)]
mod tests;
