//! How bytes change hands between processes that share memory: the protocols, without the memory.
//!
//! Four small ones, over whatever atomic numbers they are given: those of the standard library in a mapping, those of a
//! model checker in the tests.
//!
//! - [`Producer`] and [`Consumer`]: a ring of bytes from one to another. What lies between the two counters belongs to
//!   the consumer, the rest to the producer.
//! - [`Offer`]: bytes that stay where they are until the other side has read them, and written, where it may. The side that
//!   offers may take the offer back; the first of the two decides, so that bytes which were changed too early are never
//!   counted as read.
//! - [`Slot`]: a place that is filled again and again for all to read, in turn with a second one.
//! - [`Bell`]: sleeping until another member has moved a counter, without losing a wake-up and without a system call while
//!   no member sleeps.
//!
//! Source: our design, of well-known parts: Lamport's ring for one producer and one consumer, and Dekker's pair of
//! flags for the bell.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};

/// An atomic number, with the operations that the protocols need.
pub trait Atomic {
    /// The number.
    type Value: Copy + Eq;

    /// Reads it.
    fn load(&self, order: Ordering) -> Self::Value;

    /// Writes it.
    fn store(&self, value: Self::Value, order: Ordering);

    /// Replaces `current` by `new`, as an acquire and a release; `false` if it is something else.
    fn replace(&self, current: Self::Value, new: Self::Value) -> bool;

    /// Adds one, as a release; wraps around.
    fn increment(&self);

    /// A sequentially consistent fence.
    fn fence();
}

macro_rules! atomic {
    ($type:ty, $value:ty, $fence:path) => {
        impl Atomic for $type {
            type Value = $value;

            fn load(&self, order: Ordering) -> $value {
                self.load(order)
            }

            fn store(&self, value: $value, order: Ordering) {
                self.store(value, order);
            }

            fn replace(&self, current: $value, new: $value) -> bool {
                self.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
            }

            fn increment(&self) {
                self.fetch_add(1, Ordering::Release);
            }

            fn fence() {
                $fence(Ordering::SeqCst);
            }
        }
    };
}

atomic!(AtomicU32, u32, atomic::fence);
atomic!(AtomicU64, u64, atomic::fence);

/// A counter of the other side says what it cannot: its memory was overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a counter in shared memory is out of its range")
    }
}

/// The writing end of a ring. Counters start at 0 on both ends and never wrap around: 2^64 bytes are never sent.
#[derive(Debug)]
pub struct Producer<A> {
    head: A,
    tail: A,
    capacity: u64,
    position: u64,
    // The tail as it was last seen.
    taken: u64,
}

impl<A: Deref<Target: Atomic<Value = u64>>> Producer<A> {
    /// The writing end of an empty ring of `capacity` bytes: `head` is moved by this end, `tail` by the other.
    pub const fn new(head: A, tail: A, capacity: u64) -> Self {
        Self { head, tail, capacity, position: 0, taken: 0 }
    }

    /// Bytes that may be written now, from [`place`](Self::place) on and round the end. Looks at the other side's
    /// counter only if fewer than `wanted` are known to be free.
    ///
    /// # Errors
    /// If that counter makes no sense.
    pub fn space(&mut self, wanted: u64) -> Result<u64, Damaged> {
        if self.capacity - (self.position - self.taken) < wanted {
            let tail = self.tail.load(Ordering::Acquire);
            if tail < self.taken || tail > self.position {
                return Err(Damaged);
            }
            self.taken = tail;
        }
        Ok(self.capacity - (self.position - self.taken))
    }

    /// Where the next byte goes, in the ring.
    pub const fn place(&self) -> u64 {
        self.position % self.capacity
    }

    /// Hands over the next `len` bytes, which have been written.
    pub fn publish(&mut self, len: u64) {
        self.position += len;
        self.head.store(self.position, Ordering::Release);
    }

    /// Bytes handed over that the other side had not given back when it was last asked.
    pub const fn in_flight(&self) -> u64 {
        self.position - self.taken
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer<A> {
    head: A,
    tail: A,
    capacity: u64,
    position: u64,
    // The head as it was last seen.
    published: u64,
}

impl<A: Deref<Target: Atomic<Value = u64>>> Consumer<A> {
    /// The reading end of an empty ring of `capacity` bytes: `tail` is moved by this end, `head` by the other.
    pub const fn new(head: A, tail: A, capacity: u64) -> Self {
        Self { head, tail, capacity, position: 0, published: 0 }
    }

    /// Bytes that may be read now, from [`place`](Self::place) on and round the end. Looks at the other side's counter
    /// only if fewer than `wanted` are known to be there.
    ///
    /// # Errors
    /// If that counter makes no sense.
    pub fn available(&mut self, wanted: u64) -> Result<u64, Damaged> {
        if self.published - self.position < wanted {
            let head = self.head.load(Ordering::Acquire);
            if head < self.published || head - self.position > self.capacity {
                return Err(Damaged);
            }
            self.published = head;
        }
        Ok(self.published - self.position)
    }

    /// Where the next byte lies, in the ring.
    pub const fn place(&self) -> u64 {
        self.position % self.capacity
    }

    /// Gives back the next `len` bytes, which have been read.
    pub fn release(&mut self, len: u64) {
        self.position += len;
        self.tail.store(self.position, Ordering::Release);
    }
}

/// Whether bytes that stay where they are have been read. One offer stands at a time; each has a number, counted up from
/// 1.
#[derive(Debug)]
pub struct Offer<A> {
    word: A,
}

const POSTED: u64 = 1;
const TAKEN: u64 = 2;
const WITHDRAWN: u64 = 3;

impl<A: Deref<Target: Atomic<Value = u64>>> Offer<A> {
    /// No offer stands.
    pub const fn new(word: A) -> Self {
        Self { word }
    }

    /// Makes offer `number`. The other side learns of it by other means, which are a release.
    pub fn post(&self, number: u64) {
        self.word.store(number << 2 | POSTED, Ordering::Relaxed);
    }

    /// Whether offer `number` was read. The bytes may be written from then on, and what the other side was allowed to write is
    /// there.
    pub fn is_taken(&self, number: u64) -> bool {
        self.word.load(Ordering::Acquire) == number << 2 | TAKEN
    }

    /// Takes offer `number` back; `false` if it was read before. The bytes may be written in either case.
    pub fn withdraw(&self, number: u64) -> bool {
        self.word.replace(number << 2 | POSTED, number << 2 | WITHDRAWN)
    }

    /// The other side: says that offer `number` has been read. `false` if it was taken back: what was read may be
    /// anything.
    pub fn take(&self, number: u64) -> bool {
        self.word.replace(number << 2 | POSTED, number << 2 | TAKEN)
    }
}

/// A place that its owner fills for all others to read, over and over. The owner fills it for the `n`-th time only when
/// every member has read the one before: with two slots in turn, that is when every member has filled its own `n-1`-th.
#[derive(Debug)]
pub struct Slot<A> {
    filled: A,
}

impl<A: Deref<Target: Atomic<Value = u64>>> Slot<A> {
    /// A slot that was never filled.
    pub const fn new(filled: A) -> Self {
        Self { filled }
    }

    /// Shows what was written, as number `number`; numbers rise.
    pub fn show(&self, number: u64) {
        self.filled.store(number, Ordering::Release);
    }

    /// The number that is shown; 0 if none ever was. What belongs to it may be read.
    pub fn shown(&self) -> u64 {
        self.filled.load(Ordering::Acquire)
    }
}

/// Where one side sleeps and others wake it.
#[derive(Debug)]
pub struct Bell<A> {
    rings: A,
    sleeping: A,
}

impl<A: Deref<Target: Atomic<Value = u32>>> Bell<A> {
    /// A silent bell.
    pub const fn new(rings: A, sleeping: A) -> Self {
        Self { rings, sleeping }
    }

    /// The number on which to sleep, while it is what [`listen`](Self::listen) returned.
    pub fn rings(&self) -> &A::Target {
        &self.rings
    }

    /// Before going to sleep. The caller then looks once more for what it waits for, and sleeps only if it is not there.
    pub fn listen(&self) -> u32 {
        let rings = self.rings.load(Ordering::Acquire);
        // A release, so that the ring of whoever sees it comes after the number just read.
        self.sleeping.store(1, Ordering::Release);
        A::Target::fence();
        rings
    }

    /// After sleeping, or instead of it.
    pub fn wake(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
    }

    /// The others, after moving what the owner may wait for: whether it must be woken.
    pub fn ring(&self) -> bool {
        A::Target::fence();
        if self.sleeping.load(Ordering::Acquire) == 0 {
            return false;
        }
        self.rings.increment();
        true
    }

    /// Rings whether or not the owner sleeps.
    pub fn alarm(&self) {
        self.rings.increment();
    }
}

#[cfg(test)]
mod tests;
