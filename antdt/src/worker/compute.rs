//! Computation of the gradient of a batch, at the machine's speed or at an emulated one; by the training thread, or by another one beside it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use antdt_agent::runtime::{AtWork, Pulse};
use antdt_agent::{Batch, Buffer, Gradient, GradientSink, Params, StepStats, TrainError, Trainer};
use antdt_core::{Capabilities, Holder, ParamLayout, Work};

use super::beside::Beside;
use super::control::Control;
use super::error::WorkerError;
use crate::job::JobSpec;

/// How fast this worker appears to be.
#[derive(Debug, Clone)]
pub(super) struct Pacing {
    spec: JobSpec,
    holder: Holder,
    job_start: Duration,
}

impl Pacing {
    /// The pacing of one life of a worker in a job that began `job_start` after the Unix epoch.
    pub(super) const fn new(spec: JobSpec, holder: Holder, job_start: Duration) -> Self {
        Self { spec, holder, job_start }
    }

    /// Whether so many samples fit the emulated memory at once.
    fn fits(&self, samples: usize) -> Result<(), TrainError> {
        match self.spec.device(self.holder.node.index).and_then(|device| device.memory) {
            Some(most) if samples > most as usize => {
                let what = format!("the emulated device has room for {most} (--device memory)");
                Err(TrainError::OutOfMemory { samples, what })
            }
            _ => Ok(()),
        }
    }

    /// When a batch of `samples` must have come to `share` of its computation, since its begin, after `real` time of
    /// computing; `None` at the machine's own speed.
    fn target(&self, samples: u64, real: Duration, share: f64) -> Option<Duration> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = now.saturating_sub(self.job_start);
        let worker = self.holder.node.index;
        let slowdown = self.spec.slowdown(self.holder.node, self.holder.incarnation.0, at);
        let fixed = self.spec.device(worker).map_or(0.0, |device| device.fixed.as_secs_f64());
        #[allow(clippy::cast_precision_loss, reason = "a batch is far smaller than 2^53")]
        let seconds = match self.spec.speed(worker) {
            Some(speed) => (fixed + samples as f64 / speed) * slowdown * share,
            None if slowdown == 1.0 && fixed == 0.0 => return None,
            None => (real.as_secs_f64() + fixed * share) * slowdown,
        };
        // Slower than any duration can say is for ever.
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }
}

/// Share of a batch's computation that is the forward pass: the backward pass has two products where it has one.
const FORWARD_SHARE: f64 = 1.0 / 3.0;

/// A sink whose pieces come when the emulated worker would have them: the waiting of a batch is spread over its groups.
struct Paced<'a> {
    sink: &'a mut dyn GradientSink,
    at_work: AtWork<'a>,
    pacing: &'a Pacing,
    samples: u64,
    dense_len: usize,
    /// Values that were handed over.
    handed: usize,
    start: Instant,
    slept: Duration,
}

impl Paced<'_> {
    /// Waits until the emulated worker has computed this share of the batch.
    fn wait(&mut self, share: f64) {
        let elapsed = self.start.elapsed();
        let target = self.pacing.target(self.samples, elapsed.saturating_sub(self.slept), share);
        if let Some(pause) =
            target.map(|target| target.saturating_sub(elapsed)).filter(|pause| !pause.is_zero())
        {
            std::thread::sleep(pause);
            self.slept += self.start.elapsed().saturating_sub(elapsed);
        }
    }
}

impl GradientSink for Paced<'_> {
    fn group(&mut self, group: usize, sums: Buffer<'_>) -> Result<(), TrainError> {
        self.handed += sums.len();
        #[allow(clippy::cast_precision_loss, reason = "a share")]
        let backward = self.handed as f64 / self.dense_len.max(1) as f64;
        self.wait(FORWARD_SHARE + (1.0 - FORWARD_SHARE) * backward.min(1.0));
        self.at_work.gets_on();
        self.sink.group(group, sums)
    }

    fn rows(&mut self, sums: Buffer<'_>) -> Result<(), TrainError> {
        self.at_work.gets_on();
        self.sink.rows(sums)
    }

    fn takes_device(&self) -> bool {
        self.sink.takes_device()
    }

    fn progress(&mut self) {
        self.at_work.gets_on();
        self.sink.progress();
    }
}

/// A trainer, its pacing, and the batch that it has loaded.
struct Engine {
    trainer: Box<dyn Trainer>,
    pacing: Pacing,
    pulse: Pulse,
    /// Numbers of the loaded samples.
    samples: Vec<u64>,
    /// The pass over the data that each belongs to.
    epochs: Vec<u32>,
}

impl Engine {
    fn load(&mut self, batch: &Batch) -> Result<&[u64], TrainError> {
        self.samples.clear();
        self.samples.extend(batch.samples());
        if self.samples.is_empty() {
            return Ok(&[]);
        }
        self.pacing.fits(self.samples.len())?;
        let _at_work = self.pulse.begin(Work::Loading);
        self.epochs.clear();
        self.epochs.extend(batch.epochs());
        self.trainer.of_epochs(&self.epochs);
        self.trainer.load(&self.samples)
    }

    fn run(&mut self, params: Params<'_>, sink: &mut dyn GradientSink) -> Result<StepStats, TrainError> {
        let layout = self.trainer.layout();
        if self.samples.is_empty() {
            sink.all(layout, &vec![0.0; layout.dense_len()], &[])?;
            return Ok(StepStats::default());
        }
        let mut paced = Paced {
            sink,
            at_work: self.pulse.begin(Work::Training),
            pacing: &self.pacing,
            samples: self.samples.len() as u64,
            dense_len: layout.dense_len(),
            handed: 0,
            start: Instant::now(),
            slept: Duration::ZERO,
        };
        let stats = self.trainer.forward_backward(params, &mut paced)?;
        if !stats.loss_sum.is_finite() {
            return Err(TrainError::Diverged { loss: stats.loss_sum, samples: self.samples.len() });
        }
        paced.wait(1.0);
        Ok(stats)
    }

    fn gradient(&mut self, params: Params<'_>, gradient: &mut Gradient) -> Result<StepStats, TrainError> {
        gradient.begin(params.rows.len());
        let stats = self.run(params, gradient)?;
        gradient.finish()?;
        Ok(stats)
    }
}

/// A gradient that was computed beside the training thread, and all that the computation had.
struct Computed {
    engine: Box<Engine>,
    dense: Vec<f32>,
    gradient: Gradient,
    stats: Result<StepStats, TrainError>,
}

/// A trainer and its pacing.
pub(super) struct Compute {
    /// Not here while another thread computes with it.
    engine: Option<Box<Engine>>,
    layout: ParamLayout,
    /// The thread that computes gradients beside this one, once one was wanted.
    beside: Option<Beside<Computed>>,
    /// Memory of the parameters that it computes with.
    dense: Vec<f32>,
}

impl std::fmt::Debug for Compute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compute").field("layout", &self.layout).finish_non_exhaustive()
    }
}

impl Compute {
    pub(super) fn new(trainer: Box<dyn Trainer>, pacing: Pacing, pulse: Pulse) -> Self {
        let layout = trainer.layout().clone();
        let engine = Engine { trainer, pacing, pulse, samples: Vec::new(), epochs: Vec::new() };
        Self { engine: Some(Box::new(engine)), layout, beside: None, dense: Vec::new() }
    }

    /// The trainer and its batch. A gradient that is computed beside this thread, and was not taken, is waited for and dropped.
    fn engine(&mut self) -> &mut Engine {
        if self.engine.is_none() {
            let computed = self.beside.as_mut().and_then(Beside::take);
            self.engine = computed.map(|(computed, _)| computed.engine);
        }
        self.engine.as_mut().expect("it is here unless it computes beside this thread")
    }

    pub(super) fn trainer(&mut self) -> &mut dyn Trainer {
        &mut *self.engine().trainer
    }

    /// What an action can change, in a plan in which this worker has batches of that size.
    pub(super) fn control(&mut self, mode: Capabilities, batch_size: u32) -> Control<'_> {
        let Engine { trainer, pacing, .. } = self.engine();
        let even = f64::from(pacing.spec.global_batch_size) / f64::from(pacing.spec.workers.max(1));
        Control::new(pacing.holder, mode, batch_size, even, &mut **trainer)
    }

    pub(super) const fn layout(&self) -> &ParamLayout {
        &self.layout
    }

    /// Reads the samples of a batch. Returns the rows it touches, ascending.
    pub(super) fn load(&mut self, batch: &Batch) -> Result<&[u64], TrainError> {
        self.engine().load(batch)
    }

    /// Computes the gradient of the loaded batch at the emulated speed. An empty batch has a gradient of zero and takes no
    /// time.
    pub(super) fn run(
        &mut self,
        params: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError> {
        self.engine().run(params, sink)
    }

    /// The same with the whole gradient in one place.
    pub(super) fn gradient(
        &mut self,
        params: Params<'_>,
        gradient: &mut Gradient,
    ) -> Result<StepStats, TrainError> {
        self.engine().gradient(params, gradient)
    }

    /// Begins to compute the gradient of the loaded batch in another thread, with a copy of the flat parameters. `rows` are the
    /// values of the rows that the batch touches.
    pub(super) fn begin_beside(
        &mut self,
        dense: &[f32],
        rows: Vec<f32>,
        mut gradient: Gradient,
    ) -> Result<(), WorkerError> {
        self.engine();
        let Some(mut engine) = self.engine.take() else { return Ok(()) };
        let beside = match &mut self.beside {
            Some(beside) => beside,
            none => none.insert(Beside::spawn("antdt-gradient")?),
        };
        let mut copy = std::mem::take(&mut self.dense);
        copy.clear();
        copy.extend_from_slice(dense);
        beside.start(move || {
            let stats = engine.gradient(Params::host(&copy, &rows), &mut gradient);
            Computed { engine, dense: copy, gradient, stats }
        });
        Ok(())
    }

    /// Waits until the gradient is here that was begun beside this thread. May be dropped before.
    pub(super) async fn is_computed(&mut self) {
        if let Some(beside) = &mut self.beside {
            beside.arrives().await;
        }
    }

    /// Waits for the gradient that was begun beside this thread, and says how long it took.
    pub(super) fn finish_beside(&mut self) -> Result<(Gradient, StepStats, Duration), WorkerError> {
        let computed = self.beside.as_mut().and_then(Beside::take);
        let (computed, took) =
            computed.ok_or_else(|| WorkerError::Loop("no gradient was begun to wait for".to_owned()))?;
        (self.engine, self.dense) = (Some(computed.engine), computed.dense);
        Ok((computed.gradient, computed.stats?, took))
    }

    /// Samples of the loaded batch.
    pub(super) fn samples(&mut self) -> u64 {
        self.engine().samples.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId};

    use super::*;

    fn pacing(settings: &[(&str, &str)]) -> Pacing {
        let mut spec = JobSpec::default();
        for (setting, text) in settings {
            spec.set(setting, text).unwrap();
        }
        Pacing::new(spec, Holder::new(NodeId::worker(0), Incarnation(0)), Duration::ZERO)
    }

    #[test]
    fn an_emulated_worker_takes_the_time_of_its_samples_times_its_slowness() {
        let second = Duration::from_secs(1);
        let target = |settings: &[_], share| pacing(settings).target(50, second, share);
        let slow = ("straggler", "worker=0,slow=4");
        assert_eq!(target(&[("emulate-speed", "100")], 1.0), Some(second / 2));
        assert_eq!(target(&[("emulate-speed", "100"), slow], 1.0), Some(second * 2));
        assert_eq!(target(&[("emulate-speed", "100"), slow], 0.25), Some(second / 2));
        assert_eq!(target(&[slow], 0.25), Some(second * 4), "what it really took so far, times four");
        assert_eq!(target(&[], 1.0), None);
        let device = ("device", "class=a,worker=0,speed=200,fixed=1s");
        let others = ("device", "class=b,worker=1-3,speed=200");
        let both = [device, ("emulate-speed", "100")];
        assert_eq!(
            target(&both, 1.0),
            Some(second * 5 / 4),
            "its own speed, and each micro-batch its fixed time"
        );
        assert_eq!(target(&[device, slow], 0.5), Some(second * 5 / 2));
        assert_eq!(target(&[("device", "class=a,worker=0,fixed=1s")], 0.5), Some(second * 3 / 2));
        assert_eq!(target(&[others], 1.0), None, "another worker's");
    }

    #[test]
    fn a_worker_slower_than_any_duration_is_no_panic() {
        let real = Duration::from_secs(1);
        for settings in [("emulate-speed", "1e-300"), ("straggler", "worker=0,slow=1e300")] {
            assert_eq!(pacing(&[settings]).target(50, real, 1.0), Some(Duration::MAX));
        }
    }
}
