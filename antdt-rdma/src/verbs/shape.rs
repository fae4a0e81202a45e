//! How much memory members keep for each other's messages.

/// Number and size of the message slots that a member keeps for a peer's RDMA writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Number of slots.
    pub slots: u32,
    /// Size of a slot in bytes, header included; a multiple of 64.
    pub slot_bytes: u32,
}

impl Shape {
    /// Smallest number of slots: one is written while another one is read.
    pub const SLOTS_MIN: u32 = 2;
    /// Smallest size of a slot in bytes: 4 KiB, header included.
    pub const SLOT_BYTES_MIN: u32 = 4 << 10;
    /// Slots of a connection in a small group.
    const SLOTS: u32 = 8;
    /// Bytes of a slot in a small group: sixteen packets of the longest kind, against one completion and one header.
    const SLOT_BYTES: u32 = 64 << 10;
    /// Bytes for all connections of a member, each way. What is registered cannot be swapped out.
    const BUDGET: u64 = 64 << 20;

    /// Returns the slots for a group of `world` members: up to 8 of 64 KiB for each peer. In large groups
    /// they become shorter, then fewer, so that all of them together take at most 64 MiB.
    pub const fn of_group(world: u32) -> Self {
        let mut shape = Self { slots: Self::SLOTS, slot_bytes: Self::SLOT_BYTES };
        while shape.len_bytes() * world as u64 > Self::BUDGET {
            if shape.slot_bytes > 2 * Self::SLOT_BYTES_MIN {
                shape.slot_bytes /= 2;
            } else if shape.slots > Self::SLOTS_MIN {
                shape.slots /= 2;
            } else {
                break;
            }
        }
        shape
    }

    /// Returns the smaller number and the smaller size of the two shapes; a group uses the minimum of what
    /// its members offer.
    #[must_use]
    pub fn least(self, other: Self) -> Self {
        Self { slots: self.slots.min(other.slots), slot_bytes: self.slot_bytes.min(other.slot_bytes) }
    }

    /// Returns the shape with fewer slots if necessary, so that `peers` connections fit into an adapter whose
    /// queues hold `depth` work requests and whose completion queue holds `completions` entries. At least
    /// [`SLOTS_MIN`](Self::SLOTS_MIN) slots remain, even if they do not fit.
    #[must_use]
    pub const fn within(mut self, peers: u32, depth: u32, completions: u32) -> Self {
        while self.slots > Self::SLOTS_MIN
            && (self.receives() > depth
                || (self.sends() + self.receives()) as u64 * peers as u64 > completions as u64)
        {
            self.slots -= 1;
        }
        self
    }

    /// Returns whether a connection can use this shape: its number and size of slots are within their limits.
    pub const fn is_valid(self) -> bool {
        self.slots >= Self::SLOTS_MIN
            && self.slot_bytes >= Self::SLOT_BYTES_MIN
            && self.slot_bytes.is_multiple_of(64)
            && self.len_bytes() <= Self::BUDGET
    }

    /// Returns the size of all slots of a connection in one direction, in bytes.
    pub const fn len_bytes(self) -> u64 {
        self.slots as u64 * self.slot_bytes as u64
    }

    /// Returns the offset, in bytes, of the slot for piece `number`.
    pub const fn offset(self, number: u64) -> u64 {
        number % self.slots as u64 * self.slot_bytes as u64
    }

    /// Returns the number of receives that a member keeps posted for a peer: for its pieces, for control
    /// messages that name a place, and for credits.
    pub const fn receives(self) -> u32 {
        2 * self.slots + 4
    }

    /// Returns the largest number of sends that a member has in flight to a peer: pieces and control
    /// messages.
    pub const fn sends(self) -> u32 {
        2 * self.slots + 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_group_takes_no_more_memory_than_a_small_one_may() {
        for world in [1, 2, 8, 100, 129, 1000, 1024] {
            let shape = Shape::of_group(world);
            assert!(shape.is_valid(), "{shape:?}");
            let all = shape.len_bytes() * u64::from(world);
            assert!(all <= Shape::BUDGET, "{shape:?} of {world}: {all} bytes");
        }
        assert_eq!(Shape::of_group(4), Shape { slots: 8, slot_bytes: 64 << 10 });
    }

    #[test]
    fn an_adapter_with_short_queues_gets_fewer_slots() {
        let shape = Shape { slots: 8, slot_bytes: 4096 };
        assert_eq!(shape.within(3, 20, 120).slots, 8);
        assert_eq!(shape.within(3, 19, 120).slots, 7);
        assert_eq!(shape.within(3, 20, 119).slots, 7);
        assert_eq!(shape.within(u32::MAX, 20, 120).slots, Shape::SLOTS_MIN);
    }

    #[test]
    fn places_follow_each_other_and_come_round() {
        let shape = Shape { slots: 3, slot_bytes: 4096 };
        let offsets: Vec<u64> = (0..5).map(|number| shape.offset(number)).collect();
        assert_eq!(offsets, [0, 4096, 8192, 0, 4096]);
        assert!(!Shape { slots: 1, ..shape }.is_valid());
        assert!(!Shape { slot_bytes: 4100, ..shape }.is_valid());
    }
}
