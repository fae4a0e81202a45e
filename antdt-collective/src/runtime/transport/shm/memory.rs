//! Memory that several processes have mapped: the only unsafe code of this transport.
//!
//! A mapping is bytes that other processes may read and write at any time; Rust knows nothing of them. What makes its
//! rules hold is that every byte has one owner at any time, and that owners change by the protocols of
//! [`handover`](crate::handover) only:
//!
//! - Counters are atomics, on both sides.
//! - Bytes of a ring are written by the producer while they are free, and read by the consumer between its acquire load of
//!   `head` and its release store of `tail`. [`RingWriter`] and [`RingReader`] hand out nothing else: a slice that was
//!   read borrows the reader, which can give the bytes back only afterwards.
//! - A slot is written by its owner, and read after an acquire load of its number; its owner writes it again only when all
//!   others have shown that they are done with it.
//! - Bytes of a region belong to the process that made it. Others read what was offered, until they say that it is taken.
//!   The owner's call returns only then, or with an error after it took the offer back. In that one case bytes may change
//!   while a reader still folds them; it finds out when it says that it is done, and what it computed is thrown away.
//!   Nothing that reads them trusts a value for more than arithmetic.
//! - With an offer, a process may give another one the right to write some of its bytes, until that one says that it has
//!   taken the offer. Only regions that were offered so are mapped writable there. Where the offer was taken back first,
//!   the other one may go on writing until it finds out. So such a region is not used again: its owner drops it, and its
//!   place in the file is never given to another one.
//!
//! A memory file cannot shrink (it is sealed), so that no access can fail. It has no name: when the last process that has
//! it is gone, however it went, so is the memory.
#![allow(unsafe_code, reason = "mappings, and slices of them")]

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::FallocateFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::handover::{Consumer, Damaged, Producer, Slot};

/// Part of a file, mapped into this process.
pub(in crate::runtime::transport) struct Segment {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
}

// SAFETY: a segment is an address range that stays mapped until it is dropped; what may be done with the bytes, and by
// whom, is a matter of the module's protocols, not of threads.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps `len` bytes from `offset` on, a multiple of the page size.
    pub(in crate::runtime::transport) fn map(
        file: &impl AsFd,
        offset: u64,
        len: usize,
        writable: bool,
    ) -> io::Result<Self> {
        let protection = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // All pages at once: faults one by one would cost more than the reduction.
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping, at an address that the system picks, changes no memory that is in use.
        let start = unsafe { rustix::mm::mmap(ptr::null_mut(), len, protection, flags, file, offset)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, len, writable })
    }

    /// Whether this process may write it.
    pub(super) const fn is_writable(&self) -> bool {
        self.writable
    }

    /// First address and the one after the last.
    pub(super) fn range(&self) -> (usize, usize) {
        let start = self.start.as_ptr() as usize;
        (start, start + self.len)
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset, "beyond the mapping");
        // SAFETY: inside the mapping, as was just checked.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Bytes that another process has offered and this one has not yet said to have read.
    pub(super) fn lent(&self, offset: usize, len: usize) -> &[u8] {
        let start = self.at(offset, len);
        // SAFETY: mapped and initialised. No rank writes them while the offer stands; see the module for the one case in
        // which it is taken back.
        unsafe { slice::from_raw_parts(start, len) }
    }
}

impl Segment {
    /// Bytes that another process has offered for an answer, and that this one has not yet said to have answered.
    ///
    /// # Panics
    /// If this process may not write the mapping.
    pub(super) fn lent_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        assert!(self.writable, "only regions that are mapped writable are answered in");
        let start = self.at(offset, len);
        // SAFETY: mapped, writable and initialised. While the offer stands they are this process's alone; see the module
        // for the one case in which it is taken back.
        unsafe { slice::from_raw_parts_mut(start, len) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `map`; slices of it borrow this segment or hold it by `Arc`.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), self.len) };
        debug_assert!(unmapped.is_ok(), "a mapped range can be unmapped");
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes)", self.len)
    }
}

/// Numbers that may lie in shared memory: every pattern of bits is one, and every access is atomic.
pub(in crate::runtime::transport) trait Number {}
impl Number for AtomicU32 {}
impl Number for AtomicU64 {}

/// A number in a segment.
pub(in crate::runtime::transport) struct Shared<T> {
    segment: Arc<Segment>,
    offset: usize,
    number: PhantomData<T>,
}

impl<T: Number> Shared<T> {
    /// The number that lies `offset` bytes into the segment, a multiple of its size.
    pub(in crate::runtime::transport) fn new(segment: &Arc<Segment>, offset: usize) -> Self {
        let place = segment.at(offset, size_of::<T>());
        assert!(place.cast::<T>().is_aligned(), "a number in shared memory is aligned");
        Self { segment: segment.clone(), offset, number: PhantomData }
    }
}

impl<T: Number> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: inside the mapping and aligned, as `new` checked; initialised, since files begin as zeros; and all who
        // touch it do so atomically.
        unsafe { &*self.segment.start.as_ptr().add(self.offset).cast::<T>() }
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self { segment: self.segment.clone(), offset: self.offset, number: PhantomData }
    }
}

impl<T> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared(at {})", self.offset)
    }
}

/// Where a ring lies.
#[derive(Debug, Clone)]
pub(super) struct RingPlace {
    pub(super) head: Shared<AtomicU64>,
    pub(super) tail: Shared<AtomicU64>,
    /// Its bytes, from the first on.
    pub(super) segment: Arc<Segment>,
    pub(super) capacity: usize,
    /// What is written at a time takes multiples of this many bytes.
    pub(super) grain: usize,
}

/// The grain of a ring with records, so that none is cut in two at its end.
pub(super) const GRAIN: usize = 128;

/// The writing end of a ring in shared memory.
#[derive(Debug)]
pub(super) struct RingWriter {
    segment: Arc<Segment>,
    capacity: usize,
    grain: usize,
    tail: Shared<AtomicU64>,
    producer: Producer<Shared<AtomicU64>>,
}

impl RingWriter {
    pub(super) fn new(place: RingPlace) -> Self {
        let RingPlace { head, tail, segment, capacity, grain } = place;
        assert!(capacity % grain == 0, "a ring holds whole records");
        let producer = Producer::new(head, tail.clone(), capacity as u64);
        Self { segment, capacity, grain, tail, producer }
    }

    /// Writes as many of the bytes as fit in one piece, `most` at most; how many. The last ones are followed by a gap up to
    /// the next multiple of the ring's grain.
    pub(super) fn write(&mut self, from: &[u8], most: usize) -> Result<usize, Damaged> {
        #[allow(clippy::cast_possible_truncation, reason = "at most the capacity")]
        let (space, place) =
            (self.producer.space(most.min(from.len()) as u64)? as usize, self.producer.place() as usize);
        let len = from.len().min(space).min(self.capacity - place).min(most);
        if len == 0 {
            return Ok(0);
        }
        let to = self.segment.at(place, len);
        // SAFETY: `len` readable bytes, and as many writable ones in the mapping, which the producer's protocol says are
        // this side's until they are published. They cannot overlap: no slice of a ring outlives the reader's borrow.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, len) };
        self.producer.publish(len.next_multiple_of(self.grain) as u64);
        Ok(len)
    }

    /// The reader's counter: moves when it takes something.
    pub(super) fn taken(&self) -> u64 {
        self.tail.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// The reading end of a ring in shared memory.
#[derive(Debug)]
pub(super) struct RingReader {
    segment: Arc<Segment>,
    capacity: usize,
    grain: usize,
    consumer: Consumer<Shared<AtomicU64>>,
}

impl RingReader {
    pub(super) fn new(place: RingPlace) -> Self {
        let RingPlace { head, tail, segment, capacity, grain } = place;
        Self { segment, capacity, grain, consumer: Consumer::new(head, tail, capacity as u64) }
    }

    /// What has come and lies in one piece, `most` bytes at most; empty if nothing has.
    pub(super) fn read(&mut self, most: usize) -> Result<&[u8], Damaged> {
        #[allow(clippy::cast_possible_truncation, reason = "at most the capacity")]
        let (available, place) =
            (self.consumer.available(most as u64)? as usize, self.consumer.place() as usize);
        let len = available.min(self.capacity - place).min(most);
        let from = self.segment.at(place, len);
        // SAFETY: mapped and initialised; the consumer's protocol says that no rank writes them until they are released,
        // which needs this reader and so cannot happen while the slice lives.
        Ok(unsafe { slice::from_raw_parts(from, len) })
    }

    /// Gives back the next `len` bytes and the gap behind them.
    pub(super) fn release(&mut self, len: usize) {
        self.consumer.release(len.next_multiple_of(self.grain) as u64);
    }
}

/// Two slots in turn: what one member shows to all others.
#[derive(Debug)]
pub(super) struct Slots {
    segment: Arc<Segment>,
    start: usize,
    slots: [Slot<Shared<AtomicU64>>; 2],
}

/// Header of a slot's content, as in a frame.
pub(super) type SlotHeader = [u8; 64];

impl Slots {
    /// Longest content of a slot, in bytes. Longer ones are sent: what every member writes once and all others read is then
    /// no longer bound by latency.
    pub(super) const CONTENT_MAX: usize = 4 << 10;

    // The number and the length have a line of the cache for themselves, and so has the header.
    const LEN_AT: usize = 8;
    const HEADER_AT: usize = 64;
    const CONTENT_AT: usize = Self::HEADER_AT + size_of::<SlotHeader>();
    const STRIDE: usize = Self::CONTENT_AT + Self::CONTENT_MAX;
    /// Bytes of both.
    pub(super) const LEN: usize = 2 * Self::STRIDE;

    /// The slots that lie `start` bytes into the segment.
    pub(super) fn new(segment: &Arc<Segment>, start: usize) -> Self {
        segment.at(start, Self::LEN);
        let slots = [0, 1].map(|turn| Slot::new(Shared::new(segment, start + turn * Self::STRIDE)));
        Self { segment: segment.clone(), start, slots }
    }

    fn turn(number: u64) -> usize {
        usize::from(number % 2 == 1)
    }

    /// Shows something, as number `number`. Called by the owner of these slots, once every member has shown the number before.
    pub(super) fn show(&mut self, number: u64, header: &SlotHeader, content: &[u8]) {
        assert!(content.len() <= Self::CONTENT_MAX, "longer contents are sent");
        let slot = self.start + Self::turn(number) * Self::STRIDE;
        let len = (content.len() as u64).to_le_bytes();
        let parts = [(Self::LEN_AT, &len[..]), (Self::HEADER_AT, &header[..]), (Self::CONTENT_AT, content)];
        for (at, bytes) in parts {
            let to = self.segment.at(slot + at, bytes.len());
            // SAFETY: writable bytes of the mapping, which by the slots' protocol no other rank touches until the number
            // is stored below.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
        self.slots[Self::turn(number)].show(number);
    }

    /// What is shown as number `number`: its header and content; `None` if it is not there yet. To be used up before this
    /// member shows its own next number.
    pub(super) fn shown(&self, number: u64) -> Option<(&SlotHeader, &[u8])> {
        if self.slots[Self::turn(number)].shown() != number {
            return None;
        }
        let slot = self.start + Self::turn(number) * Self::STRIDE;
        let bytes = |at: usize, len: usize| {
            let from = self.segment.at(slot + at, len);
            // SAFETY: mapped and initialised; the acquire load above saw the number, and the owner writes the slot again
            // only after this member has shown the next number, for which it comes back here first.
            unsafe { slice::from_raw_parts(from, len) }
        };
        let len = bytes(Self::LEN_AT, 8).try_into().map_or(0, u64::from_le_bytes);
        let header = bytes(Self::HEADER_AT, size_of::<SlotHeader>()).first_chunk()?;
        // A length beyond the slot is damage; it will not be the expected one.
        let len = usize::try_from(len).unwrap_or(usize::MAX).min(Self::CONTENT_MAX);
        Some((header, bytes(Self::CONTENT_AT, len)))
    }
}

/// Memory of this process that peers can read where it lies.
#[derive(Debug)]
pub(in crate::runtime) struct SharedRegion {
    segment: Arc<Segment>,
    file: Arc<OwnedFd>,
    offset: u64,
    len: usize,
}

impl SharedRegion {
    /// The first `len` bytes of the segment, which maps the file from `offset` on and is used for nothing else.
    pub(super) fn new(segment: Arc<Segment>, file: Arc<OwnedFd>, offset: u64, len: usize) -> Self {
        segment.at(0, len);
        Self { segment, file, offset, len }
    }
}

impl Deref for SharedRegion {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped and initialised; this process writes it only through `deref_mut`, others as is said there.
        unsafe { slice::from_raw_parts(self.segment.start.as_ptr(), self.len) }
    }
}

impl DerefMut for SharedRegion {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; a region is not cloned, so that `&mut self` is the only way to its bytes in this process.
        // Others read or write them only while a call of this process, which borrows them, has offered them; where such a
        // call fails, the region is not used again.
        unsafe { slice::from_raw_parts_mut(self.segment.start.as_ptr(), self.len) }
    }
}

impl Drop for SharedRegion {
    fn drop(&mut self) {
        // Its place in the file is not used again; the pages go back to the system. Where that fails they stay until the
        // file goes, which is no worse than it was.
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(&self.file, flags, self.offset, self.segment.len as u64);
    }
}
