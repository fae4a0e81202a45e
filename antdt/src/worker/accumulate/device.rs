//! [`DeviceSums`]: the dense gradients of micro-batches, added up on the device where they are.

use std::ops::Range;
use std::sync::Arc;

use antdt_agent::{Buffer, DeviceValues, GradientError, GradientSink, TrainError};
use antdt_collective::runtime::Region;
use antdt_collective::runtime::flat::{FlatError, FlatMemory};
use antdt_core::ParamLayout;

use super::place_of;
use crate::worker::lift;

/// Bytes of a value.
const SIZE: usize = size_of::<f32>();

/// See the [module](self): all groups one after another.
#[derive(Debug)]
pub(super) struct DeviceSums {
    flat: Arc<dyn FlatMemory>,
    sums: Region,
    /// Where values of the host are put before they are added.
    apart: Option<Region>,
    has_begun: bool,
}

/// Where a region of the device begins.
fn address(region: &mut Region) -> Result<u64, TrainError> {
    let place = region.device().map(|memory| memory.place().address);
    place.ok_or_else(|| lift::failed(FlatError::Device("its memory lies on the host".to_owned())))
}

impl DeviceSums {
    pub(super) fn new(flat: &Arc<dyn FlatMemory>) -> Result<Self, TrainError> {
        let sums = flat.region(SIZE * flat.shape().len).map_err(lift::failed)?;
        Ok(Self { flat: Arc::clone(flat), sums, apart: None, has_begun: false })
    }

    /// Another batch begins.
    pub(super) const fn clear(&mut self) {
        self.has_begun = false;
    }

    /// Whether there are sums of this batch.
    pub(super) const fn has_begun(&self) -> bool {
        self.has_begun
    }

    fn at(&mut self, place: &Range<usize>) -> Result<u64, TrainError> {
        Ok(address(&mut self.sums)? + (SIZE * place.start) as u64)
    }

    /// The first values of a group.
    fn set(&mut self, place: &Range<usize>, values: Buffer<'_>) -> Result<(), TrainError> {
        let to = self.at(place)?;
        let done = match values {
            Buffer::Device(values) => self.flat.copy(values.address()?, to, place.len()),
            values => self.flat.put(values.host()?, to),
        };
        done.map_err(lift::failed)
    }

    /// More values of a group.
    pub(super) fn add(&mut self, place: &Range<usize>, values: Buffer<'_>) -> Result<(), TrainError> {
        let to = self.at(place)?;
        let from = match values {
            Buffer::Device(values) => values.address()?,
            values => {
                let len_bytes = SIZE * self.flat.shape().len;
                let apart = match self.apart.take() {
                    Some(apart) => apart,
                    None => self.flat.region(len_bytes).map_err(lift::failed)?,
                };
                let from = address(self.apart.insert(apart))?;
                self.flat.put(values.host()?, from).map_err(lift::failed)?;
                from
            }
        };
        self.flat.add(from, to, place.len()).map_err(lift::failed)
    }

    /// The sums of a group, for a sink.
    pub(super) fn part(&mut self, place: &Range<usize>) -> Result<Part<'_>, TrainError> {
        let address = self.at(place)?;
        Ok(Part { flat: &*self.flat, address, len: place.len() })
    }

    /// Copies the sums to the host, if there are any of this batch, for a last micro-batch whose gradient is there.
    pub(super) fn read(&mut self, into: &mut Vec<f32>) -> Result<(), TrainError> {
        if !std::mem::take(&mut self.has_begun) {
            return Ok(());
        }
        let failed = |error: String| lift::failed(FlatError::Device(error));
        let memory = self.sums.device().ok_or_else(|| failed("its memory lies on the host".to_owned()))?;
        let mut bytes = vec![0; memory.len_bytes()];
        memory.read(&mut bytes).map_err(|error| failed(error.to_string()))?;
        let (values, _) = bytes.as_chunks::<SIZE>();
        into.clear();
        into.extend(values.iter().map(|value| f32::from_ne_bytes(*value)));
        Ok(())
    }
}

/// Sums of a group on the device.
#[derive(Debug)]
pub(super) struct Part<'a> {
    flat: &'a dyn FlatMemory,
    address: u64,
    len: usize,
}

impl DeviceValues for Part<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, _: &mut Vec<f32>) -> Result<(), TrainError> {
        Err(TrainError::Device("sums of gradients stay on the device".to_owned()))
    }

    fn copy_to(&self, address: u64) -> Result<(), TrainError> {
        self.flat.copy(self.address, address, self.len).map_err(lift::failed)
    }

    fn address(&self) -> Result<u64, TrainError> {
        Ok(self.address)
    }
}

/// A sink for a micro-batch that is not the last; see [`Accumulator::on_device`](super::Accumulator::on_device).
pub(in crate::worker) struct OntoDevice<'a> {
    sums: &'a mut DeviceSums,
    layout: &'a ParamLayout,
    /// Whether each group came.
    came: Vec<bool>,
    rows: Option<Vec<f32>>,
    rows_len: usize,
}

impl<'a> OntoDevice<'a> {
    pub(super) fn new(sums: &'a mut DeviceSums, layout: &'a ParamLayout, rows_len: usize) -> Self {
        Self { sums, layout, came: vec![false; layout.groups().len()], rows: None, rows_len }
    }

    /// Checks that the gradient is complete, and returns that of the rows.
    pub(in crate::worker) fn finish(self) -> Result<Vec<f32>, TrainError> {
        let missing = self.came.iter().zip(self.layout.groups()).filter(|(came, _)| !**came);
        let mut what: Vec<&str> = missing.map(|(_, group)| group.name.as_str()).collect();
        if self.rows.is_none() {
            what.push("rows");
        }
        match self.rows {
            Some(rows) if what.is_empty() => {
                self.sums.has_begun = true;
                Ok(rows)
            }
            _ => Err(GradientError::Missing { what: what.join(", ") }.into()),
        }
    }
}

impl GradientSink for OntoDevice<'_> {
    fn group(&mut self, group: usize, sums: Buffer<'_>) -> Result<(), TrainError> {
        let groups = self.came.len();
        let place = place_of(self.layout, group).ok_or(GradientError::Unknown { group, groups })?;
        let what = || self.layout.groups()[group].name.clone();
        let (got, expected) = (sums.len(), place.len());
        if got != expected {
            return Err(GradientError::Length { what: what(), got, expected }.into());
        }
        if std::mem::replace(&mut self.came[group], true) {
            return Err(GradientError::Twice { what: what() }.into());
        }
        if self.sums.has_begun() { self.sums.add(&place, sums) } else { self.sums.set(&place, sums) }
    }

    fn rows(&mut self, sums: Buffer<'_>) -> Result<(), TrainError> {
        let (got, expected, what) = (sums.len(), self.rows_len, "rows".to_owned());
        if got != expected {
            return Err(GradientError::Length { what, got, expected }.into());
        }
        if self.rows.is_some() {
            return Err(GradientError::Twice { what }.into());
        }
        self.rows = Some(sums.host()?.to_vec());
        Ok(())
    }

    fn takes_device(&self) -> bool {
        true
    }
}
