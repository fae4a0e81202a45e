//! [`Accumulator`]: the gradients of the micro-batches of one batch, added up.
//!
//! Gradients are sums over samples, so that adding them is exact whatever the sizes of the micro-batches. All but the last
//! stay in this process; the last one is handed on with the sums of those before it added, and may travel meanwhile as the
//! gradient of a batch does that is computed at once. Dense gradients that are on a device are added up there.

use std::ops::Range;
use std::sync::Arc;

use antdt_agent::{Buffer, Gradient, GradientError, GradientSink, MicroBatch, TrainError};
use antdt_collective::runtime::flat::FlatMemory;
use antdt_core::ParamLayout;
use antdt_model::SparseGradient;

use device::DeviceSums;
pub(super) use device::OntoDevice;

mod device;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Accumulator {
    micro: MicroBatch,
    /// Sums over the micro-batches before the one that is loaded; empty if there are none.
    dense: Vec<f32>,
    /// The same on a device, in which `dense` is empty; made when it is first used.
    device: Option<DeviceSums>,
    rows: SparseGradient,
    /// Samples of the batch that were computed.
    samples: u64,
}

impl Accumulator {
    pub(super) fn new() -> Self {
        Self {
            micro: MicroBatch::WHOLE,
            dense: Vec::new(),
            device: None,
            rows: SparseGradient::default(),
            samples: 0,
        }
    }

    /// A micro-batch is loaded. The first one of a batch drops what is left of the batch before.
    pub(super) fn begin(&mut self, micro: MicroBatch) {
        self.micro = micro;
        if micro.is_first() {
            self.dense.clear();
            if let Some(device) = &mut self.device {
                device.clear();
            }
            self.rows.rows.clear();
            self.rows.values.clear();
            self.samples = 0;
        }
    }

    /// The micro-batch that is loaded.
    pub(super) const fn micro(&self) -> MicroBatch {
        self.micro
    }

    /// Samples of the batch that were computed.
    pub(super) const fn samples(&self) -> u64 {
        self.samples
    }

    /// So many samples of the batch are computed.
    pub(super) const fn computed(&mut self, samples: u64) {
        self.samples += samples;
    }

    /// Adds the gradient of a micro-batch that is not the last.
    pub(super) fn add(&mut self, layout: &ParamLayout, touched: &[u64], gradient: &Gradient) {
        if self.dense.is_empty() {
            self.dense.extend_from_slice(&gradient.dense);
        } else {
            add(&mut self.dense, &gradient.dense);
        }
        self.add_rows(layout, touched, &gradient.rows);
    }

    /// The same for rows only: the dense part went through [`on_device`](Self::on_device).
    pub(super) fn add_rows(&mut self, layout: &ParamLayout, touched: &[u64], values: &[f32]) {
        self.rows = sum_of(layout, &self.rows, touched, values);
    }

    /// A sink for a micro-batch that is not the last, whose dense gradient is added up on the device of `flat`. The batch has rows of
    /// `rows_len` values.
    pub(super) fn on_device<'a>(
        &'a mut self,
        layout: &'a ParamLayout,
        flat: &Arc<dyn FlatMemory>,
        rows_len: usize,
    ) -> Result<OntoDevice<'a>, TrainError> {
        let sums = match self.device.take() {
            Some(sums) => sums,
            None => DeviceSums::new(flat)?,
        };
        Ok(OntoDevice::new(self.device.insert(sums), layout, rows_len))
    }

    /// Completes the gradient of the last micro-batch, which is on the host, to that of the batch.
    pub(super) fn complete(
        &mut self,
        layout: &ParamLayout,
        touched: &mut Vec<u64>,
        gradient: &mut Gradient,
    ) -> Result<(), TrainError> {
        if let Some(device) = &mut self.device {
            device.read(&mut self.dense)?;
        }
        if !self.dense.is_empty() {
            add(&mut gradient.dense, &self.dense);
        }
        self.complete_rows(layout, touched, &mut gradient.rows);
        Ok(())
    }

    /// The same for rows only: the dense part went through [`onto`](Self::onto).
    pub(super) fn complete_rows(&self, layout: &ParamLayout, touched: &mut Vec<u64>, values: &mut Vec<f32>) {
        if !self.rows.rows.is_empty() {
            let sum = sum_of(layout, &self.rows, touched, values);
            (*touched, *values) = (sum.rows, sum.values);
        }
    }

    /// A sink for the last micro-batch: its dense gradient goes to `sink` with the sums added, that of its rows to `rows` without.
    pub(super) fn onto<'a>(
        &'a mut self,
        layout: &'a ParamLayout,
        sink: &'a mut dyn GradientSink,
        rows: &'a mut RowValues,
    ) -> Onto<'a> {
        Onto { sums: &mut self.dense, device: self.device.as_mut(), layout, sink, rows }
    }
}

/// The gradient of the rows of a micro-batch, once it is handed over.
#[derive(Debug)]
pub(super) struct RowValues {
    len: usize,
    values: Option<Vec<f32>>,
}

impl RowValues {
    /// There will be so many values.
    pub(super) const fn new(len: usize) -> Self {
        Self { len, values: None }
    }

    fn take(&mut self, sums: Buffer<'_>) -> Result<(), TrainError> {
        let before = self.values.as_ref().map_or(0, Vec::len);
        if sums.len() != self.len || before > 0 {
            return Err(self.unfit(sums.len() + before));
        }
        self.values = Some(sums.host()?.to_vec());
        Ok(())
    }

    /// Returns the gradient.
    pub(super) fn finish(self) -> Result<Vec<f32>, TrainError> {
        match self.values {
            Some(values) => Ok(values),
            None if self.len == 0 => Ok(Vec::new()),
            None => Err(self.unfit(0)),
        }
    }

    fn unfit(&self, got: usize) -> TrainError {
        GradientError::Length { what: "rows".to_owned(), got, expected: self.len }.into()
    }
}

fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// The sum of two gradients of rows, both ascending.
fn sum_of(layout: &ParamLayout, sums: &SparseGradient, rows: &[u64], values: &[f32]) -> SparseGradient {
    let mut total = SparseGradient {
        rows: Vec::with_capacity(sums.rows.len() + rows.len()),
        values: Vec::with_capacity(sums.values.len() + values.len()),
    };
    let mut left = (&sums.rows[..], &sums.values[..]);
    let mut right = (rows, values);
    while let Some(row) = left.0.first().into_iter().chain(right.0.first()).min().copied() {
        let (len, start) = (layout.row_len(row), total.values.len());
        total.rows.push(row);
        total.values.resize(start + len, 0.0);
        for part in [&mut left, &mut right] {
            if part.0.first() == Some(&row) {
                add(&mut total.values[start..], &part.1[..len]);
                *part = (&part.0[1..], &part.1[len..]);
            }
        }
    }
    total
}

/// Where a group lies in the flat vector; `None` if there is no such group.
fn place_of(layout: &ParamLayout, group: usize) -> Option<Range<usize>> {
    layout.ranges().nth(group).map(|(range, _)| range)
}

/// See [`Accumulator::onto`].
pub(super) struct Onto<'a> {
    sums: &'a mut Vec<f32>,
    device: Option<&'a mut DeviceSums>,
    layout: &'a ParamLayout,
    sink: &'a mut dyn GradientSink,
    rows: &'a mut RowValues,
}

impl GradientSink for Onto<'_> {
    fn group(&mut self, group: usize, sums: Buffer<'_>) -> Result<(), TrainError> {
        let place = place_of(self.layout, group);
        if let (Some(device), Some(place)) = (&mut self.device, &place)
            && device.has_begun()
            && place.len() == sums.len()
        {
            device.add(place, sums)?;
            return self.sink.group(group, Buffer::Device(&device.part(place)?));
        }
        match place.and_then(|place| self.sums.get_mut(place)) {
            // What does not fit is refused by the sink.
            Some(total) if total.len() == sums.len() => {
                add(total, sums.host()?);
                self.sink.group(group, Buffer::Host(total))
            }
            _ => self.sink.group(group, sums),
        }
    }

    fn rows(&mut self, sums: Buffer<'_>) -> Result<(), TrainError> {
        self.rows.take(sums)
    }

    fn takes_device(&self) -> bool {
        self.sink.takes_device()
    }

    fn progress(&mut self) {
        self.sink.progress();
    }
}

#[cfg(test)]
mod tests {
    use antdt_core::{ParamGroup, TableSpec};

    use super::*;

    fn layout() -> ParamLayout {
        let groups = vec![ParamGroup::trainable("w", 3), ParamGroup::state("mean", 2)];
        let tables = vec![TableSpec::new("a", 4, 1, 0.0), TableSpec::new("b", 4, 2, 0.0)];
        ParamLayout::new(groups, tables).unwrap()
    }

    /// The gradient of samples: of whole numbers, so that sums are exact in any order. Sample `s` touches row `s % 4` of the
    /// one table and row `s % 3` of the other.
    fn gradient(samples: &[u64]) -> (Vec<u64>, Gradient) {
        let layout = layout();
        #[allow(clippy::cast_precision_loss, reason = "small numbers")]
        let value = |sample: u64, index: usize| ((sample * 7 + index as u64) % 11) as f32 - 5.0;
        let mut rows: Vec<u64> =
            samples.iter().flat_map(|s| [layout.row(0, s % 4), layout.row(1, s % 3)]).collect();
        rows.sort_unstable();
        rows.dedup();
        let mut values: Vec<f32> = Vec::new();
        for row in &rows {
            for at in 0..layout.row_len(*row) {
                let touches = |s: &&u64| layout.row(0, *s % 4) == *row || layout.row(1, *s % 3) == *row;
                values.push(samples.iter().filter(touches).map(|s| value(*s, at)).sum());
            }
        }
        let dense: Vec<f32> =
            (0..layout.dense_len()).map(|at| samples.iter().map(|s| value(*s, at)).sum()).collect();
        let mut gradient = Gradient::new(&layout);
        gradient.begin(values.len());
        gradient.all(&layout, &dense, &values).unwrap();
        (rows, gradient)
    }

    /// The samples in pieces, added up; the last one as a whole, or streamed.
    fn accumulated(pieces: &[&[u64]], streams: bool) -> (Vec<u64>, Gradient) {
        let layout = layout();
        let mut sums = Accumulator::new();
        // What an earlier batch left behind is no part of this one.
        sums.begin(MicroBatch { index: 0, count: 2 });
        let (rows, of_before) = gradient(&[1, 2, 3]);
        sums.add(&layout, &rows, &of_before);
        let count = u32::try_from(pieces.len()).unwrap();
        for (index, piece) in (0..).zip(pieces) {
            let micro = MicroBatch { index, count };
            sums.begin(micro);
            let (mut rows, mut own) = gradient(piece);
            sums.computed(piece.len() as u64);
            if !micro.is_last() {
                sums.add(&layout, &rows, &own);
                continue;
            }
            assert_eq!(sums.samples(), pieces.iter().map(|piece| piece.len() as u64).sum::<u64>());
            if !streams {
                sums.complete(&layout, &mut rows, &mut own).unwrap();
                return (rows, own);
            }
            let mut sink = Gradient::new(&layout);
            sink.begin(own.rows.len());
            let mut values = RowValues::new(own.rows.len());
            sums.onto(&layout, &mut sink, &mut values).all(&layout, &own.dense, &own.rows).unwrap();
            sink.rows(Buffer::Host(&values.finish().unwrap())).unwrap();
            sink.finish().unwrap();
            sums.complete_rows(&layout, &mut rows, &mut sink.rows);
            return (rows, sink);
        }
        unreachable!("the last piece returns");
    }

    #[test]
    fn pieces_add_up_to_the_gradient_of_the_batch_however_it_is_cut() {
        let samples: Vec<u64> = (0..13).collect();
        let (rows, whole) = gradient(&samples);
        for cuts in [vec![13], vec![1, 12], vec![5, 4, 4], vec![3, 3, 3, 2, 2], vec![1; 13]] {
            let mut rest = &samples[..];
            let mut pieces: Vec<&[u64]> = Vec::new();
            for cut in &cuts {
                let (piece, after) = rest.split_at(*cut);
                pieces.push(piece);
                rest = after;
            }
            for streams in [false, true] {
                let (touched, sum) = accumulated(&pieces, streams);
                assert_eq!((&touched, &sum.dense, &sum.rows), (&rows, &whole.dense, &whole.rows), "{cuts:?}");
            }
        }
    }
}
