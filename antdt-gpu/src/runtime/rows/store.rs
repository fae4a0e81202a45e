//! [`Store`]: slots in the memory of a card.

use std::fmt;

use antdt_collective::RowStep;
use antdt_collective::runtime::region::DevicePlace;

use super::card::Card;
use super::kernel::{RowKernel, Work};
use super::{RowMemory, RowShape, RowsError};

/// Bytes of rows that go to or from the card at a time. More needs more pinned memory and saves nothing: a copy of this size
/// takes a hundred times as long as it takes to be started.
pub(super) const STAGE: usize = 8 << 20;

/// The most slots: guests are numbered beyond them, in the same 32 bits.
const SLOTS_MAX: u32 = 1 << 31;

/// See the [module](self).
pub(super) struct Store<C: Card> {
    card: C,
    shape: RowShape,
    slots: u32,
    rows: u64,
    // Places of the rows that are worked on, then the rows.
    places: u64,
    packed: u64,
    /// Rows that are worked on at a time.
    at_once: usize,
    batch: Option<Batch>,
    /// A bit for each slot, all 0 between calls.
    listed: Vec<u64>,
}

/// The values of a batch.
#[derive(Debug, Clone, Copy)]
struct Batch {
    address: u64,
    /// Values that there is room for, and that there are.
    room: usize,
    len: usize,
}

impl<C: Card> Store<C> {
    /// Zeroed rows in so many slots.
    ///
    /// # Errors
    /// If the card has not so much memory, or the shape is beyond what kernels count.
    pub(super) fn new(mut card: C, shape: RowShape, slots: u32) -> Result<Self, RowsError> {
        let RowShape { dim, state_per_value } = shape;
        let width = dim.checked_mul(1 + state_per_value).filter(|width| *width <= STAGE / 4);
        let width = width.filter(|width| *width > 0 && state_per_value <= 2).ok_or_else(|| {
            RowsError::None(format!("a row of {dim} values with {state_per_value} numbers for each"))
        })?;
        let too_long = || RowsError::None(format!("{slots} rows of {width} numbers"));
        let len = (slots as usize).checked_mul(4 * width).filter(|len| *len > 0 && slots <= SLOTS_MAX);
        let len = len.ok_or_else(too_long)?;
        let at_once = (STAGE / (4 * width)).max(1);
        let rows = card.allocate(len)?;
        let places = card.allocate(4 * at_once)?;
        let packed = card.allocate(4 * at_once * width)?;
        let listed = vec![0; (slots as usize).div_ceil(64)];
        Ok(Self { card, shape, slots, rows, places, packed, at_once, batch: None, listed })
    }

    /// What all kernels need; `dim` numbers of each of `count` rows.
    fn work(&self, count: usize, dim: usize) -> Work {
        Work {
            rows: self.rows,
            packed: self.packed,
            places: self.places,
            count: small(count),
            slots: self.slots,
            dim: small(dim),
            stride: small(self.shape.width()),
            ..Work::default()
        }
    }

    /// Checks that there are all these slots.
    fn exist(&self, slots: &[u32]) -> Result<(), RowsError> {
        let beyond = slots.iter().find(|slot| **slot >= self.slots);
        beyond.map_or(Ok(()), |slot| Err(RowsError::OutOfRange { slot: *slot, slots: self.slots }))
    }

    /// Checks that there are all these slots, and that each is listed once: two threads would write one.
    fn each_once(&mut self, slots: &[u32]) -> Result<(), RowsError> {
        self.exist(slots)?;
        let mut twice = None;
        for slot in slots {
            let (word, bit) = (&mut self.listed[*slot as usize / 64], 1 << (slot % 64));
            if *word & bit != 0 {
                twice = Some(*slot);
            }
            *word |= bit;
        }
        for slot in slots {
            self.listed[*slot as usize / 64] = 0;
        }
        twice.map_or(Ok(()), |slot| Err(RowsError::Twice { slot }))
    }

    /// Room for the values of a batch.
    fn room(&mut self, len: usize) -> Result<u64, RowsError> {
        match &mut self.batch {
            Some(batch) if batch.room >= len => {
                batch.len = len;
                return Ok(batch.address);
            }
            _ => {}
        }
        if let Some(batch) = self.batch.take() {
            self.card.release(batch.address);
        }
        let room = len.next_power_of_two();
        let address = self.card.allocate(4 * room)?;
        self.batch = Some(Batch { address, room, len });
        Ok(address)
    }
}

/// Numbers that were checked to be this small when the store was made.
fn small(number: usize) -> u32 {
    u32::try_from(number).expect("at most as many as there are numbers in a stage")
}

fn fit(values: usize, rows: usize, dim: usize) -> Result<(), RowsError> {
    let due = rows * dim;
    if values == due { Ok(()) } else { Err(RowsError::Length { values, rows, due }) }
}

impl<C: Card> RowMemory for Store<C> {
    fn shape(&self) -> RowShape {
        self.shape
    }

    fn slots(&self) -> u32 {
        self.slots
    }

    fn write(&mut self, slots: &[u32], rows: &[f32]) -> Result<(), RowsError> {
        let width = self.shape.width();
        fit(rows.len(), slots.len(), width)?;
        self.each_once(slots)?;
        for (slots, rows) in slots.chunks(self.at_once).zip(rows.chunks(self.at_once * width)) {
            self.card.up(self.places, bytemuck::cast_slice(slots))?;
            self.card.up(self.packed, bytemuck::cast_slice(rows))?;
            self.card.start(RowKernel::Scatter, &self.work(slots.len(), width))?;
        }
        self.card.finish()
    }

    fn read(&mut self, slots: &[u32], into: &mut Vec<f32>) -> Result<(), RowsError> {
        let width = self.shape.width();
        self.exist(slots)?;
        let begin = into.len();
        into.resize(begin + slots.len() * width, 0.0);
        for (slots, into) in slots.chunks(self.at_once).zip(into[begin..].chunks_mut(self.at_once * width)) {
            self.card.up(self.places, bytemuck::cast_slice(slots))?;
            self.card.start(RowKernel::Gather, &self.work(slots.len(), width))?;
            self.card.down(self.packed, bytemuck::cast_slice_mut(into))?;
        }
        Ok(())
    }

    fn update(&mut self, slots: &[u32], sums: &[f32], step: &RowStep) -> Result<(), RowsError> {
        let RowShape { dim, state_per_value: kept } = self.shape;
        let due = step.state_per_value();
        if kept != due {
            return Err(RowsError::State { kept, due });
        }
        fit(sums.len(), slots.len(), dim)?;
        self.each_once(slots)?;
        for (slots, sums) in slots.chunks(self.at_once).zip(sums.chunks(self.at_once * dim)) {
            self.card.up(self.places, bytemuck::cast_slice(slots))?;
            self.card.up(self.packed, bytemuck::cast_slice(sums))?;
            self.card.start(RowKernel::of(step), &self.work(slots.len(), dim).with(step))?;
        }
        self.card.finish()
    }

    fn gather(&mut self, places: &[Option<u32>], guests: &[f32]) -> Result<DevicePlace, RowsError> {
        let dim = self.shape.dim;
        fit(guests.len(), places.iter().filter(|place| place.is_none()).count(), dim)?;
        if let Some(slot) = places.iter().flatten().find(|slot| **slot >= self.slots) {
            return Err(RowsError::OutOfRange { slot: *slot, slots: self.slots });
        }
        let address = self.room(places.len() * dim)?;
        let mut rest = guests;
        let mut numbers = Vec::with_capacity(self.at_once.min(places.len()));
        for (part, places) in places.chunks(self.at_once).enumerate() {
            numbers.clear();
            let mut alone = 0;
            for place in places {
                // A guest is told from a slot by a number beyond them all.
                numbers.push(place.unwrap_or_else(|| {
                    alone += 1;
                    self.slots + (alone - 1)
                }));
            }
            let (of_part, left) = rest.split_at(alone as usize * dim);
            rest = left;
            self.card.up(self.places, bytemuck::cast_slice(&numbers))?;
            self.card.up(self.packed, bytemuck::cast_slice(of_part))?;
            let packed = address + (part * self.at_once * dim * 4) as u64;
            let work = Work { packed, guests: self.packed, ..self.work(places.len(), dim) };
            self.card.start(RowKernel::Gather, &work)?;
        }
        self.card.finish()?;
        Ok(self.card.place(address))
    }

    fn gathered(&mut self, into: &mut Vec<f32>) -> Result<(), RowsError> {
        let Some(Batch { address, len, .. }) = self.batch else { return Ok(()) };
        let begin = into.len();
        into.resize(begin + len, 0.0);
        self.card.down(address, bytemuck::cast_slice_mut(&mut into[begin..]))
    }

    fn gathered_at(&mut self, address: u64) -> Result<(), RowsError> {
        let Some(batch) = self.batch.filter(|batch| batch.len > 0) else { return Ok(()) };
        let len_bytes = 4 * batch.len;
        // The first byte and the last one: a batch that ends behind the memory would be written over what lies there.
        let Some(last) = address.checked_add(len_bytes as u64 - 1) else {
            return Err(RowsError::Elsewhere { address });
        };
        if !(self.card.holds(address)? && self.card.holds(last)?) {
            return Err(RowsError::Elsewhere { address });
        }
        self.card.copy(batch.address, address, len_bytes)?;
        self.card.finish()
    }
}

impl<C: Card> fmt::Debug for Store<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store")
            .field("shape", &self.shape)
            .field("slots", &self.slots)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::HostKernels;
    use super::*;

    #[test]
    fn a_batch_is_copied_to_other_memory_of_the_card_and_nowhere_else() {
        let kernels = match HostKernels::build() {
            Ok(kernels) => kernels,
            Err(why) => return println!("skipped, not here: {why}"),
        };
        let mut rows = kernels.store(RowShape { dim: 2, state_per_value: 0 }, 3).unwrap();
        let tensor = rows.card.allocate(5 * 4).unwrap();
        rows.gathered_at(tensor).unwrap();
        rows.write(&[2], &[5.0, 6.0]).unwrap();
        rows.gather(&[Some(2), None], &[7.0, 8.0]).unwrap();
        rows.gathered_at(tensor).unwrap();
        let mut there = [0.0_f32; 5];
        rows.card.down(tensor, bytemuck::cast_slice_mut(&mut there)).unwrap();
        assert_eq!(there, [5.0, 6.0, 7.0, 8.0, 0.0]);
        // The last one begins in the tensor, and would end 4 bytes behind it.
        for address in [0, u64::from(u32::MAX), tensor + 8] {
            assert_eq!(rows.gathered_at(address), Err(RowsError::Elsewhere { address }));
        }
    }
}
