//! One member's shared memory: the layout of its file.
//!
//! The file begins with the control part: the bell on which its owner sleeps, two slots, and for each peer the counters of
//! the way from the owner to that peer. Then come the rings, one for each peer, and the regions that the owner hands out,
//! behind one another. All of it is written by its owner but the counters that the reader of a ring or of an offer moves.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::thread::futex;

use super::memory::{GRAIN, RingPlace, Segment, Shared, SharedRegion, Slots};
use crate::handover::{Bell, Offer};
use crate::runtime::abort::Wake;

/// Bytes of the ring from one member to another. Two of them in use stay in the second level of the cache, where what is
/// written by one core is fetched by the other from the third.
pub(super) const RING_BYTES: usize = 256 << 10;

const LINE: usize = 64;
const PAGE: usize = 4 << 10;

// The bell's two numbers.
const RINGS_AT: usize = 0;
const SLEEPING_AT: usize = 4;
// Beside them: whether it is room in a ring that the owner waits for.
const ROOM_AT: usize = 8;
const SLOTS_AT: usize = LINE;
const WAYS_AT: usize = SLOTS_AT + Slots::LEN;

// The counters of one way, each on a line of its own: the head, the tail, the offer, the bytes taken from offers.
const WAY_LEN: usize = 4 * LINE;

const fn control_len(ways: usize) -> usize {
    (WAYS_AT + ways * WAY_LEN).next_multiple_of(PAGE)
}

/// How many ways lead from a file's owner, and how long their rings are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) ways: usize,
    pub(super) ring_bytes: usize,
}

impl Shape {
    /// That of a member of a group of `world`.
    pub(super) const fn of_group(world: usize) -> Self {
        Self { ways: world, ring_bytes: RING_BYTES }
    }

    const fn control_len(self) -> usize {
        control_len(self.ways)
    }

    const fn regions_at(self) -> u64 {
        (self.control_len() + self.ways * self.ring_bytes) as u64
    }
}

/// One member's file, as some member has it mapped.
#[derive(Debug)]
pub(super) struct Arena {
    file: Arc<OwnedFd>,
    shape: Shape,
    control: Arc<Segment>,
    bell: Bell<Shared<AtomicU32>>,
    waits_for_room: Shared<AtomicU32>,
}

/// The way from one member to another, in the sender's file.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) ring: RingPlace,
    pub(super) offer: Offer<Shared<AtomicU64>>,
    /// Bytes of offers that the receiver has read, of all offers together.
    pub(super) read: Shared<AtomicU64>,
}

impl Arena {
    /// A new file of that shape.
    pub(super) fn create(shape: Shape) -> io::Result<Self> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("antdt-collective", flags)?;
        rustix::fs::ftruncate(&file, shape.regions_at())?;
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, shape.control_len() as u64)?;
        Self::map(file, shape)
    }

    /// A peer's file.
    ///
    /// # Errors
    /// If it is not one that [`create`](Self::create) made in that shape.
    pub(super) fn open(file: OwnedFd, shape: Shape) -> io::Result<Self> {
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        if !sealed || file_len(file.as_fd())? < shape.regions_at() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a member's memory file"));
        }
        Self::map(file, shape)
    }

    fn map(file: OwnedFd, shape: Shape) -> io::Result<Self> {
        let control = Arc::new(Segment::map(&file, 0, shape.control_len(), true)?);
        let bell = Bell::new(Shared::new(&control, RINGS_AT), Shared::new(&control, SLEEPING_AT));
        let waits_for_room = Shared::new(&control, ROOM_AT);
        Ok(Self { file: Arc::new(file), shape, control, bell, waits_for_room })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Where its owner sleeps.
    pub(super) const fn bell(&self) -> &Bell<Shared<AtomicU32>> {
        &self.bell
    }

    /// Whether its owner, when it sleeps, waits for room in its ring and not for what comes: 1 or 0. Written before its bell
    /// is listened to, and read after it was rung.
    pub(super) fn waits_for_room(&self) -> &AtomicU32 {
        &self.waits_for_room
    }

    /// Its owner's slots.
    pub(super) fn slots(&self) -> Slots {
        Slots::new(&self.control, SLOTS_AT)
    }

    /// The way from its owner to `peer`.
    pub(super) fn way(&self, peer: usize) -> io::Result<Way> {
        let capacity = self.shape.ring_bytes;
        let offset = (self.shape.control_len() + peer * capacity) as u64;
        // So that a machine without memory says so here, and not by a signal later.
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, capacity as u64)?;
        let counters = WAYS_AT + peer * WAY_LEN;
        let ring = Arc::new(Segment::map(&self.file, offset, capacity, true)?);
        Ok(Way {
            ring: RingPlace {
                head: Shared::new(&self.control, counters),
                tail: Shared::new(&self.control, counters + LINE),
                segment: ring,
                capacity,
                grain: GRAIN,
            },
            offer: Offer::new(Shared::new(&self.control, counters + 2 * LINE)),
            read: Shared::new(&self.control, counters + 3 * LINE),
        })
    }

    /// Maps part of a peer's regions, to be written as well if it is `writable`.
    ///
    /// # Errors
    /// If the file is not that long, or does not have so much memory: the mapping would make what is missing.
    pub(super) fn region(&self, offset: u64, len: u64, writable: bool) -> io::Result<Segment> {
        let beyond = || io::Error::new(io::ErrorKind::InvalidData, "a region beyond the memory of its file");
        let end = offset.checked_add(len).ok_or_else(beyond)?;
        let memory = memory_of(self.descriptor())?;
        if offset < self.shape.regions_at() || end > file_len(self.descriptor())? || len > memory {
            return Err(beyond());
        }
        Segment::map(&self.file, offset, usize::try_from(len).map_err(|_| beyond())?, writable)
    }

    /// Sleeps until the bell has rung since `heard`, or `longest` has passed; whether it rang.
    pub(super) fn sleep(&self, heard: u32, longest: std::time::Duration) -> bool {
        let timeout = rustix::thread::Timespec::try_from(longest).ok();
        let slept = futex::wait(self.bell.rings(), futex::Flags::empty(), heard, timeout.as_ref());
        // Rung meanwhile is an answer as well; so is a signal.
        !matches!(slept, Err(rustix::io::Errno::TIMEDOUT))
    }

    /// Wakes its owner if it sleeps, after a counter was moved that it may wait for.
    pub(super) fn ring(&self) {
        if self.bell.ring() {
            self.wake_owner();
        }
    }

    /// Makes its owner look about, whether it sleeps or is about to.
    pub(super) fn alarm(&self) {
        self.bell.alarm();
        self.wake_owner();
    }

    fn wake_owner(&self) {
        // Fails only for an address that is not mapped.
        let _ = futex::wake(self.bell.rings(), futex::Flags::empty(), u32::MAX >> 1);
    }
}

impl Wake for Arena {
    fn wake(&self) {
        self.alarm();
    }
}

fn file_len(file: BorrowedFd<'_>) -> io::Result<u64> {
    u64::try_from(rustix::fs::fstat(file)?.st_size).map_err(|_| io::ErrorKind::InvalidData.into())
}

// Bytes of a file that are not holes; the system counts them in blocks of 512.
fn memory_of(file: BorrowedFd<'_>) -> io::Result<u64> {
    let blocks = u64::try_from(rustix::fs::fstat(file)?.st_blocks);
    blocks.map(|blocks| blocks.saturating_mul(512)).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Where bytes of a region lie, as its owner tells a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    /// The region: its part of the file.
    pub(super) region: u64,
    pub(super) region_len: u64,
    /// The bytes, in the region.
    pub(super) offset: u64,
}

/// The regions that this member has handed out.
#[derive(Debug)]
pub(super) struct Regions {
    file: Arc<OwnedFd>,
    // Where the next one begins. Places are not used twice; a file may have holes.
    next: u64,
    out: Vec<(Weak<Segment>, u64)>,
}

impl Regions {
    pub(super) fn new(arena: &Arena) -> Self {
        Self { file: arena.file.clone(), next: arena.shape.regions_at(), out: Vec::new() }
    }

    pub(super) fn make(&mut self, len: usize) -> io::Result<SharedRegion> {
        let mapped = len.max(1).next_multiple_of(PAGE);
        let offset = self.next;
        rustix::fs::ftruncate(&self.file, offset + mapped as u64)?;
        rustix::fs::fallocate(&self.file, FallocateFlags::empty(), offset, mapped as u64)?;
        let segment = Arc::new(Segment::map(&self.file, offset, mapped, true)?);
        self.next += mapped as u64;
        self.out.retain(|(segment, _)| segment.strong_count() > 0);
        self.out.push((Arc::downgrade(&segment), offset));
        Ok(SharedRegion::new(segment, self.file.clone(), offset, len))
    }

    /// Where these bytes lie, if they lie in a region of this member.
    pub(super) fn find(&self, bytes: &[u8]) -> Option<Place> {
        let first = bytes.as_ptr() as usize;
        self.out.iter().find_map(|(segment, region)| {
            let (start, end) = segment.upgrade()?.range();
            let inside = start <= first && first + bytes.len() <= end;
            let (offset, region_len) = ((first - start.min(first)) as u64, (end - start) as u64);
            inside.then_some(Place { region: *region, region_len, offset })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_of_a_peer_is_mapped_only_if_its_memory_is_there() {
        const LEN: u64 = 1 << 20;
        let arena = Arena::create(Shape::of_group(2)).unwrap();
        let mut regions = Regions::new(&arena);
        let region = regions.make(LEN as usize).unwrap();
        let place = regions.find(&region).unwrap();
        let size = |len| arena.region(place.region, len, false).map(|_| ()).map_err(|error| error.kind());
        assert_eq!(size(place.region_len), Ok(()));
        // Its owner says that the file is longer, which costs the owner nothing.
        rustix::fs::ftruncate(arena.descriptor(), place.region + 64 * LEN).unwrap();
        for len in [8 * LEN, 64 * LEN, u64::MAX - place.region, u64::MAX] {
            assert_eq!(size(len), Err(io::ErrorKind::InvalidData), "{len}");
        }
        let before = memory_of(arena.descriptor()).unwrap();
        assert!(before < 8 * LEN, "{before} bytes were made by who only looked");
    }
}
