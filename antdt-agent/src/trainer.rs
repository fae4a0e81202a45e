//! [`Trainer`], the interface to a training framework: it computes gradients, and knows nothing of peers,
//! shards or plans.

use std::fmt;
use std::ops::Range;

use antdt_core::{MetricError, Metrics, ParamLayout, SampleRange, Seed};

/// Reason why a batch could not be computed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// Samples cannot be read. This counts against the shard and towards its quarantine, not against the node.
    #[error("sample {sample}: {why}")]
    Data {
        /// Number of the first sample that could not be read.
        sample: u64,
        /// What is wrong with the sample.
        why: String,
    },
    /// The loss or a gradient is not a number. A learning rate that is too high is the likeliest reason.
    #[error("the loss became {loss} on a batch of {samples}; lower --learning-rate")]
    Diverged {
        /// Sum of the losses of the batch.
        loss: f64,
        /// Number of samples in the batch.
        samples: usize,
    },
    /// The device has too little memory for the batch. The process ends with [`Exit::CODE_MEMORY`](antdt_core::Exit::CODE_MEMORY), and the job
    /// gives no worker of its device class as many samples at once again.
    #[error("a batch of {samples} samples does not fit the device's memory: {what}")]
    OutOfMemory {
        /// Samples in the batch, or micro-batch.
        samples: usize,
        /// Error message of the framework or the device.
        what: String,
    },
    /// The framework that computes the model failed, with this message.
    #[error("the model failed: {0}")]
    Model(String),
    /// The device whose memory holds some of the parameters failed. The device may work again in a new
    /// process.
    #[error("the device failed: {0}")]
    Device(String),
    /// The trainer handed over a gradient that does not fit the layout.
    #[error(transparent)]
    Gradient(#[from] GradientError),
    /// The trainer recorded a metric with an invalid name or value.
    #[error(transparent)]
    Metric(#[from] MetricError),
}

/// Values in the memory of a device, such as a GPU, of which the host gets copies only.
pub trait DeviceValues: fmt::Debug {
    /// Returns the number of values.
    fn len(&self) -> usize;

    /// Returns whether there are no values.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the values to `into`, in host memory.
    ///
    /// # Errors
    /// If the device fails.
    fn read(&self, into: &mut Vec<f32>) -> Result<(), TrainError>;

    /// Copies the values to other memory of the same device, such as a tensor of the training framework, and returns
    /// when they are there. The caller has room for them at `address`, and nothing that the device still
    /// computes may read or write that room.
    ///
    /// # Errors
    /// If the address is not in the memory of this device, or the device fails.
    fn copy_to(&self, address: u64) -> Result<(), TrainError>;

    /// Returns the address of the first value, for a copy within the device. Nothing that the device still computes writes
    /// the values. A gradient has one; by default values have none.
    ///
    /// # Errors
    /// If the values have no address.
    fn address(&self) -> Result<u64, TrainError> {
        Err(TrainError::Device("values that are handed over there have no address".to_owned()))
    }
}

/// The values of parameters or of a gradient, in host memory or in that of a device.
///
/// A trainer that can use host memory only calls [`host`](Self::host), whose error refuses any other place. Values
/// elsewhere come only to trainers that [take rows](Trainer::takes_device_rows) or [dense
/// parameters](Trainer::takes_device_dense) there, and to sinks that [take gradients](GradientSink::takes_device) there.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Buffer<'a> {
    /// The values lie in this process's memory.
    Host(&'a [f32]),
    /// The values lie in the memory of a device.
    Device(&'a dyn DeviceValues),
}

impl<'a> Buffer<'a> {
    /// Returns the values, if they lie in this process's memory.
    ///
    /// # Errors
    /// If the values lie elsewhere.
    pub fn host(self) -> Result<&'a [f32], TrainError> {
        match self {
            Self::Host(values) => Ok(values),
            Self::Device(_) => Err(TrainError::Model(
                "values lie on a device, where the host's memory is expected".to_owned(),
            )),
        }
    }

    /// Returns the number of values.
    pub fn len(self) -> usize {
        match self {
            Self::Host(values) => values.len(),
            Self::Device(values) => values.len(),
        }
    }

    /// Returns whether there are no values.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [f32]> for Buffer<'a> {
    fn from(values: &'a [f32]) -> Self {
        Self::Host(values)
    }
}

impl<'a> From<&'a Vec<f32>> for Buffer<'a> {
    fn from(values: &'a Vec<f32>) -> Self {
        Self::Host(values)
    }
}

/// Parameters that a batch is computed with.
#[derive(Debug, Clone, Copy)]
pub struct Params<'a> {
    /// Dense parameters: all groups of the layout, one after another.
    pub dense: Buffer<'a>,
    /// Values of the rows that the batch touches, in the order in which [`Trainer::load`] gave the rows.
    pub rows: Buffer<'a>,
}

impl<'a> Params<'a> {
    /// Returns parameters that lie in this process's memory.
    pub const fn host(dense: &'a [f32], rows: &'a [f32]) -> Self {
        Self { dense: Buffer::Host(dense), rows: Buffer::Host(rows) }
    }
}

/// Reason why a gradient that a trainer handed over does not fit the layout of the model. The text says what
/// the trainer must hand over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GradientError {
    /// The layout has no parameter group of this number.
    #[error("the trainer handed over group {group}, the layout has {groups}")]
    Unknown {
        /// Number of the parameter group that the trainer handed over.
        group: usize,
        /// Number of parameter groups in the layout.
        groups: usize,
    },
    /// The trainer handed over the gradient of a parameter group, or of the rows, twice in one batch.
    #[error("the trainer handed over {what} twice in one batch")]
    Twice {
        /// Name of the parameter group, or `rows` for the rows of tables.
        what: String,
    },
    /// The gradient of a parameter group, or of the rows, has another number of values than the layout says.
    #[error("the trainer handed over {got} values of {what}, which has {expected}")]
    Length {
        /// Name of the parameter group, or `rows` for the rows of tables.
        what: String,
        /// Number of values that the trainer handed over.
        got: usize,
        /// Number of values that the layout asks for.
        expected: usize,
    },
    /// The trainer did not hand over the gradients of some parameter groups, or of the rows.
    #[error("the trainer never handed over {what}; hand over zeros where the loss does not depend on it")]
    Missing {
        /// Names of the missing parameter groups, or `rows` for the rows of tables.
        what: String,
    },
}

/// Takes the gradient of a batch from a trainer, piece by piece: sums over samples, not means.
///
/// Every group of the layout and the touched rows are handed over once, in any order, each as soon as it is
/// final. Pieces that are handed over early may be sent to the other workers while the backward pass still
/// runs. The sink no longer uses a buffer once the call returns.
pub trait GradientSink {
    /// Takes the gradient of the parameter group with this number in the layout. For a [state
    /// group](antdt_core::GroupKind::State), `sums` are its new values times the samples of the batch.
    ///
    /// # Errors
    /// If the gradient does not fit the layout, or was handed over before.
    fn group(&mut self, group: usize, sums: Buffer<'_>) -> Result<(), TrainError>;

    /// Takes the gradient of the rows that the batch touches, in the order in which [`Trainer::load`] gave
    /// them.
    ///
    /// # Errors
    /// If the gradient does not fit the rows, or was handed over before.
    fn rows(&mut self, sums: Buffer<'_>) -> Result<(), TrainError>;

    /// Returns whether [`group`](Self::group) takes values in the memory of the device on which the dense parameters
    /// of the batch lie. Rows are taken from host memory only.
    fn takes_device(&self) -> bool {
        false
    }

    /// Reports that the computation makes progress, though no piece of the gradient is final yet. The master
    /// restarts a worker without progress for many of its usual steps as hung; a trainer whose steps differ
    /// much in duration calls this now and then.
    fn progress(&mut self) {}

    /// Takes the whole gradient at once: `dense` holds all groups of `layout` one after another. For a
    /// trainer that has its gradient only at the end of the backward pass. The last group is passed on first,
    /// as in a backward pass.
    ///
    /// # Errors
    /// As [`group`](Self::group) and [`rows`](Self::rows).
    fn all(&mut self, layout: &ParamLayout, dense: &[f32], rows: &[f32]) -> Result<(), TrainError> {
        if dense.len() != layout.dense_len() {
            let (what, got, expected) = ("all groups".to_owned(), dense.len(), layout.dense_len());
            return Err(GradientError::Length { what, got, expected }.into());
        }
        let ranges: Vec<_> = layout.ranges().map(|(range, _)| range).collect();
        for (group, range) in ranges.into_iter().enumerate().rev() {
            self.group(group, Buffer::Host(&dense[range]))?;
        }
        self.rows(Buffer::Host(rows))
    }
}

/// The gradient of a batch in this process's memory: the simplest [`GradientSink`].
#[derive(Debug, Clone, PartialEq)]
pub struct Gradient {
    /// Sums over the samples of the batch, all groups of the layout one after another; empty before the first
    /// batch.
    pub dense: Vec<f32>,
    /// Sums over the samples of the batch for each touched row, in the order in which [`Trainer::load`] gave
    /// the rows.
    pub rows: Vec<f32>,
    /// Name and place of each group.
    places: Vec<(String, Range<usize>)>,
    dense_len: usize,
    /// Whether each group came, then the rows.
    came: Vec<bool>,
    rows_len: usize,
}

impl Gradient {
    /// Returns a gradient for a model of this layout, before its first batch.
    pub fn new(layout: &ParamLayout) -> Self {
        Self {
            dense: Vec::new(),
            rows: Vec::new(),
            places: layout.ranges().map(|(range, group)| (group.name.clone(), range)).collect(),
            dense_len: layout.dense_len(),
            came: vec![false; layout.groups().len() + 1],
            rows_len: 0,
        }
    }

    /// Makes `trainer` compute the gradient of its loaded batch, and stores it here. `dense` and `rows` are
    /// the parameters.
    ///
    /// # Errors
    /// If the trainer fails, or does not hand over the whole gradient.
    pub fn compute(
        &mut self,
        trainer: &mut dyn Trainer,
        dense: &[f32],
        rows: &[f32],
    ) -> Result<StepStats, TrainError> {
        self.begin(rows.len());
        let stats = trainer.forward_backward(Params::host(dense, rows), self)?;
        self.finish()?;
        Ok(stats)
    }

    /// Prepares for the gradient of a batch whose touched rows have `rows_len` values in all.
    pub fn begin(&mut self, rows_len: usize) {
        self.dense.resize(self.dense_len, 0.0);
        self.rows.clear();
        self.rows_len = rows_len;
        self.came.fill(false);
    }

    /// Checks that the gradient of the batch is complete.
    ///
    /// # Errors
    /// If a group or the rows were not handed over; the error names them.
    pub fn finish(&self) -> Result<(), TrainError> {
        let missing = self.came.iter().enumerate().filter(|(_, came)| !**came);
        let what: Vec<&str> =
            missing.map(|(number, _)| self.places.get(number).map_or(ROWS, |(name, _)| name)).collect();
        if what.is_empty() { Ok(()) } else { Err(GradientError::Missing { what: what.join(", ") }.into()) }
    }

    /// Takes note of a piece.
    fn arrive(&mut self, number: usize, got: usize, expected: usize) -> Result<(), GradientError> {
        let what = || self.places.get(number).map_or(ROWS, |(name, _)| name).to_owned();
        if got != expected {
            return Err(GradientError::Length { what: what(), got, expected });
        }
        if self.came[number] {
            return Err(GradientError::Twice { what: what() });
        }
        self.came[number] = true;
        Ok(())
    }
}

/// What errors call the touched rows.
const ROWS: &str = "rows";

impl GradientSink for Gradient {
    fn group(&mut self, group: usize, sums: Buffer<'_>) -> Result<(), TrainError> {
        let groups = self.places.len();
        let (_, place) = self.places.get(group).ok_or(GradientError::Unknown { group, groups })?;
        let place = place.clone();
        self.arrive(group, sums.len(), place.len())?;
        self.dense[place].copy_from_slice(sums.host()?);
        Ok(())
    }

    fn rows(&mut self, sums: Buffer<'_>) -> Result<(), TrainError> {
        self.arrive(self.places.len(), sums.len(), self.rows_len)?;
        self.rows.extend_from_slice(sums.host()?);
        Ok(())
    }
}

/// Result of the computation of a batch besides its gradient.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StepStats {
    /// Sum of the losses of the batch's samples.
    pub loss_sum: f64,
    /// Number of samples computed.
    pub samples: u64,
}

/// Computes gradients of a model on samples named by number.
///
/// The trainer does not own the parameters: each call passes them in, from a replica or from servers, as one
/// flat vector and the rows that the batch touches. The framework sees only these rows of a table.
///
/// Calls come in this order for each batch: [`load`](Self::load), then [`forward_backward`](Self::forward_backward). An
/// evaluation is [`begin_evaluation`](Self::begin_evaluation), then [`load_eval`](Self::load_eval) and
/// [`evaluate`](Self::evaluate) for each batch, then [`end_evaluation`](Self::end_evaluation).
pub trait Trainer: Send {
    /// Returns the layout of the parameters, which never changes.
    fn layout(&self) -> &ParamLayout;

    /// Returns whether [`forward_backward`](Self::forward_backward) accepts rows in the memory of a device, as
    /// [`Buffer::Device`]. All other trainers get them in host memory.
    fn takes_device_rows(&self) -> bool {
        false
    }

    /// Returns whether the trainer computes on a device where it can have the dense parameters, as [`Buffer::Device`], and where it
    /// leaves gradients that the sink [takes](GradientSink::takes_device) there. It must check by itself that they are
    /// finite.
    fn takes_device_dense(&self) -> bool {
        false
    }

    /// Returns the number of training samples; their numbers are `0..train_samples()`.
    fn train_samples(&self) -> u64;

    /// Returns the number of samples held out for evaluation; 0 if there are none. They are numbered from 0, independently of the
    /// numbers of the training samples.
    fn eval_samples(&self) -> u64;

    /// Returns a checksum of the whole data set, by which a job that goes on from a checkpoint tells that samples were edited in
    /// between; `None` if there is none.
    fn data_checksum(&self) -> Option<u32> {
        None
    }

    /// Returns the initial dense parameters, all groups of the layout one after another: a pure function of `seed`, the
    /// same on every node.
    fn initial_dense(&self, seed: Seed) -> Vec<f32>;

    /// Reads the samples of the next batch. Returns the joint rows of the layout's tables that they touch, ascending, each
    /// once; empty if the layout has no table.
    ///
    /// # Errors
    /// [`TrainError::Data`] if a sample cannot be read.
    fn load(&mut self, samples: &[u64]) -> Result<&[u64], TrainError>;

    /// Reads held-out samples as the next batch; otherwise like [`load`](Self::load).
    ///
    /// # Errors
    /// [`TrainError::Data`] if a sample cannot be read.
    fn load_eval(&mut self, samples: SampleRange) -> Result<&[u64], TrainError>;

    /// Computes the gradient of the loaded batch and hands it over to `sink`, each piece as soon as it is final.
    ///
    /// # Errors
    /// If the framework fails, the loss is not finite, or the sink refuses a piece.
    fn forward_backward(
        &mut self,
        params: Params<'_>,
        sink: &mut dyn GradientSink,
    ) -> Result<StepStats, TrainError>;

    /// Carries out an action of a user-defined policy that workers hand to their trainer. The worker calls it
    /// between two batches, at one iteration on all workers, and may call it again with the same value.
    ///
    /// # Errors
    /// If the trainer does not know this action or value, which ends the job.
    fn act(&mut self, action: &str, _value: &str) -> Result<(), TrainError> {
        Err(TrainError::Model(format!("the trainer takes no action `{action}`")))
    }

    /// Tells the trainer, for each sample of the batch that is loaded next, the pass over the data that it
    /// belongs to, in the order of the samples. For trainers whose random choices, such as dropout, depend on
    /// the pass.
    fn of_epochs(&mut self, _epochs: &[u32]) {}

    /// Returns how many batches beyond the one that is loaded the trainer begins to read: the worker leases their samples before. 0
    /// unless the trainer overrides this.
    fn read_ahead(&self) -> u32 {
        0
    }

    /// Tells a trainer that [reads ahead](Self::read_ahead) the samples that follow those of the batch that is loaded next, in their
    /// order, as things are: they may be given to another worker, come in batches of another size, or come again.
    fn upcoming(&mut self, _samples: &[u64]) {}

    /// Begins an evaluation: the trainer drops its own records of an earlier one.
    fn begin_evaluation(&mut self) {}

    /// Evaluates the loaded batch. A metric that can be combined over batches is added to `metrics`, with the
    /// batch's number of samples as its weight. For a metric that needs all samples, the trainer keeps its
    /// own record until [`end_evaluation`](Self::end_evaluation).
    ///
    /// The metric [`Metric::LOSS`](antdt_core::Metric::LOSS) is the one that reports show first.
    ///
    /// # Errors
    /// If the framework fails or a metric cannot be recorded.
    fn evaluate(&mut self, params: Params<'_>, metrics: &mut Metrics) -> Result<(), TrainError>;

    /// Ends an evaluation: records the metrics that need all samples, or are derived from other metrics, such as a
    /// perplexity.
    ///
    /// # Errors
    /// If a metric cannot be recorded.
    fn end_evaluation(&mut self, _metrics: &mut Metrics) -> Result<(), TrainError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{ParamGroup, TableSpec};

    use super::*;

    fn layout() -> ParamLayout {
        let groups = vec![ParamGroup::trainable("w", 3), ParamGroup::state("mean", 2)];
        ParamLayout::new(groups, vec![TableSpec::new("table", 9, 2, 0.0)]).unwrap()
    }

    #[test]
    fn pieces_may_come_in_any_order_and_a_gradient_is_used_again() {
        let mut gradient = Gradient::new(&layout());
        for step in [1.0_f32, 2.0] {
            gradient.begin(4);
            gradient.rows(Buffer::Host(&[step; 4])).unwrap();
            gradient.group(1, Buffer::Host(&[step; 2])).unwrap();
            gradient.group(0, Buffer::Host(&[-step; 3])).unwrap();
            gradient.finish().unwrap();
            assert_eq!(gradient.dense, [-step, -step, -step, step, step]);
            assert_eq!(gradient.rows, [step; 4]);
            // The caller may keep the memory.
            drop(std::mem::take(&mut gradient.dense));
        }
        gradient.begin(2);
        gradient.all(&layout(), &[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0]).unwrap();
        gradient.finish().unwrap();
        assert_eq!(
            (&gradient.dense[..], &gradient.rows[..]),
            (&[1.0, 2.0, 3.0, 4.0, 5.0][..], &[6.0, 7.0][..])
        );
    }

    /// Values on a device, which the host has, too.
    #[derive(Debug)]
    struct Card(Vec<f32>);

    impl DeviceValues for Card {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn read(&self, into: &mut Vec<f32>) -> Result<(), TrainError> {
            into.extend_from_slice(&self.0);
            Ok(())
        }

        fn copy_to(&self, _: u64) -> Result<(), TrainError> {
            Err(TrainError::Device("another address".to_owned()))
        }
    }

    fn values_of(buffer: Buffer<'_>) -> &dyn DeviceValues {
        let Buffer::Device(values) = buffer else { panic!("they are on a device") };
        values
    }

    #[test]
    fn values_on_a_device_are_refused_where_the_hosts_are_expected() {
        let card = Card(vec![1.0, 2.0]);
        let values = Buffer::Device(&card);
        assert_eq!((values.len(), values.is_empty()), (2, false));
        assert!(values_of(values).address().unwrap_err().to_string().contains("have no address"));
        let said = values.host().unwrap_err().to_string();
        assert_eq!(said, "the model failed: values lie on a device, where the host's memory is expected");
        let mut gradient = Gradient::new(&layout());
        assert!(!gradient.takes_device());
        gradient.begin(2);
        gradient.rows(values).unwrap_err();
    }

    #[test]
    fn a_piece_that_does_not_fit_is_refused_by_name() {
        let mut gradient = Gradient::new(&layout());
        gradient.begin(2);
        let why = |result: Result<(), TrainError>| result.unwrap_err().to_string();
        assert_eq!(
            why(gradient.group(2, Buffer::Host(&[0.0]))),
            "the trainer handed over group 2, the layout has 2"
        );
        assert_eq!(
            why(gradient.group(1, Buffer::Host(&[0.0]))),
            "the trainer handed over 1 values of mean, which has 2"
        );
        assert_eq!(
            why(gradient.rows(Buffer::Host(&[0.0; 3]))),
            "the trainer handed over 3 values of rows, which has 2"
        );
        gradient.group(0, Buffer::Host(&[0.0; 3])).unwrap();
        assert_eq!(
            why(gradient.group(0, Buffer::Host(&[0.0; 3]))),
            "the trainer handed over w twice in one batch"
        );
        assert!(why(gradient.finish()).starts_with("the trainer never handed over mean, rows;"));
        let short = gradient.all(&layout(), &[0.0; 4], &[0.0; 2]);
        assert_eq!(why(short), "the trainer handed over 4 values of all groups, which has 5");
    }
}
