//! [`Store`]: a flat vector in the memory of a card.

use std::fmt;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use antdt_collective::RowStep;
use antdt_collective::runtime::RowsError;
use antdt_collective::runtime::region::Region;

use super::{FlatError, FlatMemory, FlatShape};
use crate::runtime::rows::card::Card;
use crate::runtime::rows::kernel::{self, RowKernel, Work};

/// The most parameters, 4 GiB of them: kernels count them, and what is kept of them, in 32 bits.
const LEN_MAX: usize = 1 << 30;

/// Bytes of a value.
const SIZE: usize = size_of::<f32>();

/// A card with memory that others can reduce in.
pub(in crate::runtime) trait FlatCard: Card {
    /// Zeroed memory for halves of a buffer.
    fn region(&mut self, len_bytes: usize) -> Result<Region, RowsError>;
}

/// See the [module](self). The training thread uses it, while another reduces what lies in its regions.
pub(in crate::runtime) struct Store<C: FlatCard> {
    shape: FlatShape,
    /// Where the parameters begin; what is kept of them follows.
    values: u64,
    /// Where the squares of strands are added up.
    strands: u64,
    inner: Mutex<Inner<C>>,
}

struct Inner<C> {
    card: C,
    /// Why it is used no more.
    failed: Option<FlatError>,
}

impl<C: FlatCard> Store<C> {
    /// A zeroed vector.
    ///
    /// # Errors
    /// If the card has not so much memory, or the shape is beyond what kernels count.
    pub(in crate::runtime) fn new(mut card: C, shape: FlatShape) -> Result<Self, FlatError> {
        let FlatShape { len, state_per_value } = shape;
        if len == 0 || len > LEN_MAX || state_per_value > 2 {
            let what = format!("{len} parameters with {state_per_value} numbers for each");
            return Err(FlatError::None(format!("{what}; 1 to {LEN_MAX} with 2 at most are taken")));
        }
        let values = card.allocate(SIZE * len * (1 + state_per_value))?;
        let strands = card.allocate(size_of::<f64>() * kernel::strands(len))?;
        Ok(Self { shape, values, strands, inner: Mutex::new(Inner { card, failed: None }) })
    }

    /// Does something with the card, and waits for it. A card that failed is used no more.
    fn with(&self, work: impl FnOnce(&mut C) -> Result<(), FlatError>) -> Result<(), FlatError> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = &inner.failed {
            return Err(why.clone());
        }
        let done = work(&mut inner.card).and_then(|()| Ok(inner.card.finish()?));
        if let Err(error @ FlatError::Device(_)) = &done {
            inner.failed = Some(error.clone());
        }
        done
    }

    /// Where so many of the arrays before begin: the parameters, then the first and the second that are kept.
    const fn array(&self, number: usize) -> u64 {
        self.values + (number * self.shape.len * SIZE) as u64
    }

    fn lens(&self, values: usize, state: [usize; 2]) -> Result<(), FlatError> {
        let FlatShape { len, state_per_value } = self.shape;
        let due = [len, if state_per_value > 0 { len } else { 0 }, if state_per_value > 1 { len } else { 0 }];
        let wrong = [values, state[0], state[1]].into_iter().zip(due).find(|(got, due)| got != due);
        wrong.map_or(Ok(()), |(got, due)| Err(FlatError::Length { got, due }))
    }

    /// What a kernel needs for a piece.
    fn work(&self, place: &Range<usize>, sums: u64) -> Result<Work, FlatError> {
        if place.start > place.end || place.end > self.shape.len {
            return Err(FlatError::Length { got: place.end, due: self.shape.len });
        }
        let small = |number: usize| u32::try_from(number).expect("at most as many as the vector has");
        Ok(Work {
            rows: self.values + (place.start * SIZE) as u64,
            packed: sums,
            count: small(place.len()),
            dim: 1,
            stride: small(self.shape.len),
            ..Work::default()
        })
    }

    fn run(&self, kernel: RowKernel, work: &Work) -> Result<(), FlatError> {
        if work.count == 0 {
            return Ok(());
        }
        self.with(|card| {
            holds(card, work.packed, work.count as usize)?;
            Ok(card.start(kernel, work)?)
        })
    }
}

/// Checks that so many values from an address on are in the memory of the card: their first byte and their last one.
fn holds(card: &mut impl Card, address: u64, len: usize) -> Result<(), FlatError> {
    let last = address.checked_add((len * SIZE) as u64 - 1).ok_or(FlatError::Elsewhere { address })?;
    if card.holds(address)? && card.holds(last)? { Ok(()) } else { Err(FlatError::Elsewhere { address }) }
}

impl<C: FlatCard> FlatMemory for Store<C> {
    fn shape(&self) -> FlatShape {
        self.shape
    }

    fn write(&self, values: &[f32], state: [&[f32]; 2]) -> Result<(), FlatError> {
        self.lens(values.len(), state.map(<[f32]>::len))?;
        self.with(|card| {
            for (number, values) in [values, state[0], state[1]].into_iter().enumerate() {
                card.up(self.array(number), bytemuck::cast_slice(values))?;
            }
            Ok(())
        })
    }

    fn read(&self, values: &mut [f32]) -> Result<(), FlatError> {
        let (got, due) = (values.len(), self.shape.len);
        if got != due {
            return Err(FlatError::Length { got, due });
        }
        self.with(|card| Ok(card.down(self.values, bytemuck::cast_slice_mut(values))?))
    }

    fn read_state(&self, state: [&mut [f32]; 2]) -> Result<(), FlatError> {
        self.lens(self.shape.len, [state[0].len(), state[1].len()])?;
        self.with(|card| {
            for (number, kept) in (1..).zip(state) {
                if !kept.is_empty() {
                    card.down(self.array(number), bytemuck::cast_slice_mut(kept))?;
                }
            }
            Ok(())
        })
    }

    fn copy_to(&self, address: u64) -> Result<(), FlatError> {
        self.copy(self.values, address, self.shape.len)
    }

    fn region(&self, len_bytes: usize) -> Result<Region, FlatError> {
        let mut made = None;
        self.with(|card| {
            made = Some(card.region(len_bytes)?);
            Ok(())
        })?;
        made.ok_or_else(|| FlatError::None("no memory".to_owned()))
    }

    fn put(&self, values: &[f32], to: u64) -> Result<(), FlatError> {
        if values.is_empty() {
            return Ok(());
        }
        self.with(|card| {
            holds(card, to, values.len())?;
            Ok(card.up(to, bytemuck::cast_slice(values))?)
        })
    }

    fn copy(&self, from: u64, to: u64, len: usize) -> Result<(), FlatError> {
        if len == 0 {
            return Ok(());
        }
        self.with(|card| {
            holds(card, from, len)?;
            holds(card, to, len)?;
            Ok(card.copy(from, to, SIZE * len)?)
        })
    }

    fn add(&self, from: u64, to: u64, len: usize) -> Result<(), FlatError> {
        let due = self.shape.len;
        if len == 0 {
            return Ok(());
        }
        let count = u32::try_from(len).ok().filter(|_| len <= due);
        let count = count.ok_or(FlatError::Length { got: len, due })?;
        self.with(|card| holds(card, to, len))?;
        self.run(RowKernel::AddFlat, &Work { rows: to, packed: from, count, dim: 1, ..Work::default() })
    }

    fn square_sum(&self, from: u64, len: usize) -> Result<f64, FlatError> {
        let due = self.shape.len;
        if len == 0 {
            return Ok(0.0);
        }
        let small = |number: usize| u32::try_from(number).ok().filter(|_| len <= due);
        let (stride, count) =
            small(len).zip(small(kernel::strands(len))).ok_or(FlatError::Length { got: len, due })?;
        let work = Work { rows: self.strands, packed: from, count, dim: 1, stride, ..Work::default() };
        let mut sums = vec![0.0_f64; count as usize];
        self.with(|card| {
            holds(card, from, len)?;
            card.start(RowKernel::SquaresFlat, &work)?;
            Ok(card.down(self.strands, bytemuck::cast_slice_mut(&mut sums))?)
        })?;
        Ok(sums.into_iter().fold(0.0, |total, sum| total + sum))
    }

    fn step(&self, place: Range<usize>, sums: u64, step: &RowStep, least: f32) -> Result<(), FlatError> {
        let (kept, due) = (self.shape.state_per_value, step.state_per_value());
        if kept != due {
            return Err(FlatError::State { kept, due });
        }
        self.run(RowKernel::of_flat(step), &self.work(&place, sums)?.with(step).dropping(least))
    }

    fn set(&self, place: Range<usize>, sums: u64, scale: f32) -> Result<(), FlatError> {
        self.run(RowKernel::SetFlat, &self.work(&place, sums)?.scaled(scale))
    }
}

impl<C: FlatCard> fmt::Debug for Store<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("shape", &self.shape).finish_non_exhaustive()
    }
}
