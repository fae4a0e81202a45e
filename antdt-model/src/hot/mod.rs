//! [`HotRows`]: decides which rows of a table lie in the slots of a faster memory, which lose their slots to
//! others, and which must be written back.
//!
//! A row is *hot* while it has a slot; the slot then has the row's newest values. A row that a step changed there is
//! *changed* until it is written back to the table. Each batch says which rows it touches:
//!
//! - a touched row that has a slot keeps it for the batch;
//! - one without gets a free slot, if there is one;
//! - otherwise a pointer (the hand of the clock) moves on to the next slot whose row the batch does not
//!   touch. The new row takes the slot if it was touched more often than the row there; if not, it stays in
//!   the table, as a *guest* of the batch.
//!
//! The counts of touches are halved after every eight rounds of the hand. So rows that are no longer touched
//! lose their slots after a while, and the many rows of a click model that occur only once move no other row.
//! Cost: a few operations for each touched row, six bytes for each row of the table, 32 for each hot one.
//!
//! Rejected: the least recently used row makes room, because a batch of rows that come once would then empty the memory;
//! writing every change through to the table, because then each step moves each row twice; deciding by the steps of all
//! workers, because what is hot here changes no bits.
//!
//! Source: our design, after the CLOCK of Corbató ("A Paging Experiment with the Multics System", 1968) with counts of use, and the
//! admission rule of Einziger, Friedman and Manes ("TinyLFU", 2017; both recalled).

/// A row that lies in a slot of the faster memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Hot {
    /// Index of the row in its table.
    pub row: u64,
    /// Number of the slot that holds the row.
    pub slot: u32,
}

/// The row moves that a batch requires, to be carried out in the order of the fields.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Moves {
    /// Changed rows that have lost their slots; the caller must write them back to the table.
    pub out: Vec<Hot>,
    /// Rows that have got slots; the caller must read them from the table into the slots.
    pub into: Vec<Hot>,
    /// Slot of each row that the batch touches, in the batch's order; `None` for a guest: a row that got no
    /// slot and stays in the table.
    pub places: Vec<Option<u32>>,
}

/// The rows of a table that are hot, that is, lie in slots of a faster memory such as a GPU's.
#[derive(Debug, Clone)]
pub struct HotRows {
    /// For each row, one more than its slot; 0 if it has none.
    slot_of: Vec<u32>,
    /// For each row, how often batches touched it, as of its age.
    touches: Vec<u8>,
    /// For each row, its age when a batch touched it last.
    ages: Vec<u8>,
    /// The slots that a row lies in, the first ones: a slot that has had a row always has one.
    slots: Vec<Slot>,
    /// Number of slots that there are.
    most: u32,
    hand: usize,
    /// Rounds that the hand has gone of this age.
    round: u8,
    /// How often touches were halved, without its upper bits.
    age: u8,
    /// Number of the batch.
    batch: u64,
}

/// What lies in a slot.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    row: Option<u64>,
    changed: bool,
    /// The last batch that touched the row.
    batch: u64,
}

impl HotRows {
    /// Rounds of the hand after which touches count half. On rows whose use falls as one over their rank, 25 times as many as there are
    /// slots, slots get 0.72, 0.92, 0.95, 0.94 and 0.91 of the touches that the best choice gets, for 1, 4, 8, 16 and 32.
    const AGE: u8 = 8;

    /// Returns the state of a table of `rows` rows, none of which is hot, and a memory of `slots` slots.
    pub fn new(rows: usize, slots: u32) -> Self {
        Self {
            slot_of: vec![0; rows],
            touches: vec![0; rows],
            ages: vec![0; rows],
            slots: Vec::new(),
            most: slots,
            hand: 0,
            round: 0,
            age: 0,
            batch: 0,
        }
    }

    /// Returns the number of hot rows.
    pub const fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether no row is hot.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the slot of a row; `None` if the row is not hot.
    pub fn slot(&self, row: u64) -> Option<u32> {
        self.slot_of[index(row)].checked_sub(1)
    }

    /// Begins a batch that touches `rows`, each listed once, and returns the moves that it requires.
    ///
    /// # Panics
    /// If the table does not have one of the rows. The other methods panic for the same reason.
    pub fn touch(&mut self, rows: &[u64]) -> Moves {
        self.batch += 1;
        let mut moves = Moves { places: Vec::with_capacity(rows.len()), ..Moves::default() };
        for row in rows {
            let counted = self.count(*row).saturating_add(1);
            let at = index(*row);
            (self.touches[at], self.ages[at]) = (counted, self.age);
            let slot = self.slot(*row);
            if let Some(slot) = slot {
                self.slots[slot as usize].batch = self.batch;
            }
            moves.places.push(slot);
        }
        // The hand goes round once in a batch at most.
        let mut left = self.most as usize;
        for (row, place) in rows.iter().zip(&mut moves.places) {
            if place.is_some() {
                continue;
            }
            let slot = match u32::try_from(self.slots.len()).ok().filter(|next| *next < self.most) {
                Some(slot) => {
                    self.slots.push(Slot::default());
                    slot
                }
                None => match self.room_for(*row, &mut left) {
                    Some(slot) => {
                        moves.out.extend(self.empty(slot));
                        slot
                    }
                    None => continue,
                },
            };
            self.slots[slot as usize] = Slot { row: Some(*row), changed: false, batch: self.batch };
            self.slot_of[index(*row)] = slot + 1;
            moves.into.push(Hot { row: *row, slot });
            *place = Some(slot);
        }
        moves
    }

    /// Records that a step has changed those of `rows` that are hot, in their slots.
    pub fn change(&mut self, rows: &[u64]) {
        for row in rows {
            if let Some(slot) = self.slot(*row) {
                self.slots[slot as usize].changed = true;
            }
        }
    }

    /// Returns those of `rows` whose newest values exist only in their slots, and counts them as written
    /// back: the caller must write them to the table now. The rows keep their slots.
    pub fn write_back(&mut self, rows: &[u64]) -> Vec<Hot> {
        rows.iter()
            .filter_map(|row| {
                let slot = self.slot(*row)?;
                let changed = std::mem::take(&mut self.slots[slot as usize].changed);
                changed.then_some(Hot { row: *row, slot })
            })
            .collect()
    }

    /// Returns all rows whose newest values exist only in their slots, ascending, and counts them as written
    /// back: the caller must write them to the table now. The rows keep their slots.
    pub fn write_back_all(&mut self) -> Vec<Hot> {
        let mut changed: Vec<Hot> = (0..)
            .zip(&mut self.slots)
            .filter_map(|(slot, held)| {
                let changed = std::mem::take(&mut held.changed);
                held.row.filter(|_| changed).map(|row| Hot { row, slot })
            })
            .collect();
        changed.sort_unstable();
        changed
    }

    /// How often batches touched a row, half for each age that has ended since the last time.
    fn count(&self, row: u64) -> u8 {
        let at = index(row);
        let halvings = self.age.wrapping_sub(self.ages[at]);
        self.touches[at].checked_shr(u32::from(halvings)).unwrap_or(0)
    }

    /// Moves the hand to the next slot that the batch does not touch, at most `left` slots on. Returns it if its row was touched
    /// less than `row`, which the batch touches.
    fn room_for(&mut self, row: u64, left: &mut usize) -> Option<u32> {
        while *left > 0 {
            *left -= 1;
            let at = self.hand;
            let other = self.slots[at].row.filter(|_| self.slots[at].batch != self.batch);
            let wins = other.map(|other| self.touches[index(row)] > self.count(other));
            self.advance();
            if let Some(wins) = wins {
                return wins.then_some(u32::try_from(at).expect("there are 2^32 slots at most"));
            }
        }
        None
    }

    /// Moves the hand by one slot.
    const fn advance(&mut self) {
        self.hand += 1;
        if self.hand == self.slots.len() {
            self.hand = 0;
            self.round += 1;
        }
        if self.round == Self::AGE {
            self.round = 0;
            self.age = self.age.wrapping_add(1);
        }
    }

    /// Takes the row out of a slot; returns it if it was changed.
    fn empty(&mut self, slot: u32) -> Option<Hot> {
        let held = std::mem::take(&mut self.slots[slot as usize]);
        let row = held.row?;
        self.slot_of[index(row)] = 0;
        held.changed.then_some(Hot { row, slot })
    }
}

/// Rows of a table that is in memory.
fn index(row: u64) -> usize {
    usize::try_from(row).expect("a row of a table that is in memory")
}

#[cfg(test)]
mod tests;
