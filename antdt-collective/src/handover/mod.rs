//! Protocols by which processes that share memory pass bytes to each other, without the memory itself.
//!
//! There are four small ones, over any atomic numbers: those of the standard library in a mapping, or those
//! of a model checker in the tests.
//!
//! - [`Producer`] and [`Consumer`]: a ring of bytes from one process to another. What lies between the two
//!   counters belongs to the consumer, the rest to the producer.
//! - [`Offer`]: bytes that stay where they are until the other process has read them, and written, where it
//!   may. The process that offers may withdraw the offer; the first of the two decides, so that bytes which
//!   were changed too early are never counted as read.
//! - [`Slot`]: a place that is filled again and again for all to read, in turn with a second one.
//! - [`Bell`]: sleeping until another process has moved a counter, without losing a wake-up and without a
//!   system call while no process sleeps.
//!
//! Source: our design, of well-known parts: Lamport's ring for one producer and one consumer, and Dekker's
//! pair of flags for the bell.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{self, AtomicU32, AtomicU64, Ordering};

/// An atomic number with the operations that the protocols of this module need.
pub trait Atomic {
    /// Type of the number.
    type Value: Copy + Eq;

    /// Returns the number.
    fn load(&self, order: Ordering) -> Self::Value;

    /// Writes the number.
    fn store(&self, value: Self::Value, order: Ordering);

    /// Replaces the number by `new` if it equals `current`, as an acquire and a release; returns whether it
    /// did.
    fn replace(&self, current: Self::Value, new: Self::Value) -> bool;

    /// Adds one, as a release; wraps around.
    fn increment(&self);

    /// Issues a sequentially consistent fence.
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

/// The other process's counter has an impossible value: the memory that both share was overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a counter in shared memory is out of its range")
    }
}

/// The writing end of a ring of bytes between two processes. Counters start at 0 on both ends and never wrap
/// around, since 2^64 bytes are never sent.
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
    /// Returns the writing end of an empty ring of `capacity` bytes. This end advances the counter `head`,
    /// the reading end advances `tail`.
    pub const fn new(head: A, tail: A, capacity: u64) -> Self {
        Self { head, tail, capacity, position: 0, taken: 0 }
    }

    /// Returns how many bytes may be written now, from [`place`](Self::place) on, continuing at the start of
    /// the ring after its end. Reads the other end's counter only if fewer than `wanted` bytes are known to
    /// be free.
    ///
    /// # Errors
    /// If the other end's counter has an impossible value.
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

    /// Returns the offset in the ring at which the next byte is written.
    pub const fn place(&self) -> u64 {
        self.position % self.capacity
    }

    /// Hands the next `len` bytes, which the caller has written, over to the reading end.
    pub fn publish(&mut self, len: u64) {
        self.position += len;
        self.head.store(self.position, Ordering::Release);
    }

    /// Returns the number of bytes handed over that the reading end had not released when its counter was
    /// last read.
    pub const fn in_flight(&self) -> u64 {
        self.position - self.taken
    }
}

/// The reading end of a ring of bytes between two processes.
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
    /// Returns the reading end of an empty ring of `capacity` bytes. This end advances the counter `tail`,
    /// the writing end advances `head`.
    pub const fn new(head: A, tail: A, capacity: u64) -> Self {
        Self { head, tail, capacity, position: 0, published: 0 }
    }

    /// Returns how many bytes may be read now, from [`place`](Self::place) on, continuing at the start of the
    /// ring after its end. Reads the other end's counter only if fewer than `wanted` bytes are known to be
    /// there.
    ///
    /// # Errors
    /// If the other end's counter has an impossible value.
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

    /// Returns the offset in the ring at which the next byte lies.
    pub const fn place(&self) -> u64 {
        self.position % self.capacity
    }

    /// Gives the next `len` bytes, which the caller has read, back to the writing end.
    pub fn release(&mut self, len: u64) {
        self.position += len;
        self.tail.store(self.position, Ordering::Release);
    }
}

/// An offer of bytes that another process reads in place, and the answer whether it has read them. One offer
/// is open at a time; offers are numbered from 1.
#[derive(Debug)]
pub struct Offer<A> {
    word: A,
}

const POSTED: u64 = 1;
const TAKEN: u64 = 2;
const WITHDRAWN: u64 = 3;

impl<A: Deref<Target: Atomic<Value = u64>>> Offer<A> {
    /// Returns the state of offers between two processes, with no offer open.
    pub const fn new(word: A) -> Self {
        Self { word }
    }

    /// Opens offer `number`. The caller tells the other process of it by a release write elsewhere.
    pub fn post(&self, number: u64) {
        self.word.store(number << 2 | POSTED, Ordering::Relaxed);
    }

    /// Returns whether the other process has taken offer `number`. If so, the owner may overwrite the offered
    /// bytes, and the bytes that the other process was to write are complete.
    pub fn is_taken(&self, number: u64) -> bool {
        self.word.load(Ordering::Acquire) == number << 2 | TAKEN
    }

    /// Withdraws offer `number`. Returns `false` if the other process took it before. The owner may overwrite
    /// the bytes in either case.
    pub fn withdraw(&self, number: u64) -> bool {
        self.word.replace(number << 2 | POSTED, number << 2 | WITHDRAWN)
    }

    /// Returns whether offer `number` is open. Once it is not, memory of the offer that the other process finds missing
    /// was given back by its owner.
    pub fn stands(&self, number: u64) -> bool {
        self.word.load(Ordering::Acquire) == number << 2 | POSTED
    }

    /// Called by the process that read the bytes of offer `number`: takes the offer. Returns `false` if the
    /// owner has withdrawn it; the bytes that were read may then be anything.
    pub fn take(&self, number: u64) -> bool {
        self.word.replace(number << 2 | POSTED, number << 2 | TAKEN)
    }
}

/// A place in shared memory that its owner fills again and again for all other members to read. The owner may
/// fill it for the `n`-th time only when every member has read fill `n-1`. With two slots in turn, that is
/// true once every member has filled its own slot for the `n-1`-th time.
#[derive(Debug)]
pub struct Slot<A> {
    filled: A,
}

impl<A: Deref<Target: Atomic<Value = u64>>> Slot<A> {
    /// Returns a slot that has not been filled yet.
    pub const fn new(filled: A) -> Self {
        Self { filled }
    }

    /// Publishes what the owner has written as fill `number`; each number is larger than the one before.
    pub fn show(&self, number: u64) {
        self.filled.store(number, Ordering::Release);
    }

    /// Returns the number of the latest fill, whose content may be read; 0 if there is none.
    pub fn shown(&self) -> u64 {
        self.filled.load(Ordering::Acquire)
    }
}

/// Lets the thread that owns the bell sleep until another process rings it, without losing a wake-up. Ringing
/// takes a system call only while the owner sleeps.
#[derive(Debug)]
pub struct Bell<A> {
    rings: A,
    sleeping: A,
}

impl<A: Deref<Target: Atomic<Value = u32>>> Bell<A> {
    /// Returns a bell that has not been rung and on which no thread sleeps.
    pub const fn new(rings: A, sleeping: A) -> Self {
        Self { rings, sleeping }
    }

    /// Returns the counter of rings. The owner sleeps on it (as on a futex) while its value is what
    /// [`listen`](Self::listen) returned.
    pub fn rings(&self) -> &A::Target {
        &self.rings
    }

    /// Announces that the owner is about to sleep, and returns the present count of rings. The owner then
    /// checks its condition once more, and sleeps only if the condition is not met.
    pub fn listen(&self) -> u32 {
        let rings = self.rings.load(Ordering::Acquire);
        // A release, so that the ring of the rank that sees it comes after the number just read.
        self.sleeping.store(1, Ordering::Release);
        A::Target::fence();
        rings
    }

    /// Withdraws the announcement of [`listen`](Self::listen), after sleeping or instead of it.
    pub fn wake(&self) {
        self.sleeping.store(0, Ordering::Relaxed);
    }

    /// Rings the bell. Another process calls it after advancing a counter that the owner may wait for.
    /// Returns whether the caller must wake the owner.
    pub fn ring(&self) -> bool {
        A::Target::fence();
        if self.sleeping.load(Ordering::Acquire) == 0 {
            return false;
        }
        self.rings.increment();
        true
    }

    /// Rings the bell whether or not the owner sleeps.
    pub fn alarm(&self) {
        self.rings.increment();
    }
}

#[cfg(test)]
mod tests;
