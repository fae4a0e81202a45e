//! Every interleaving, by the model checker loom: it knows the memory model, and finds reads of bytes that nothing
//! orders after their write.
#![allow(
    clippy::arc_with_non_send_sync,
    reason = "the model's cells are shared on purpose: it finds the races"
)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32 as ModelU32, AtomicU64 as ModelU64, fence};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::*;

atomic!(ModelU32, u32, fence);
atomic!(ModelU64, u64, fence);

fn word() -> Arc<ModelU64> {
    Arc::new(ModelU64::new(0))
}

// Explores all interleavings with at most three involuntary switches of thread; more find nothing new in protocols of so
// few steps, and take hours.
fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

#[test]
fn a_ring_hands_over_every_byte_in_order_and_never_two_at_once() {
    model(|| {
        const CAPACITY: u64 = 2;
        const BYTES: u64 = 4;
        let (head, tail) = (word(), word());
        let memory: Arc<[UnsafeCell<u64>; CAPACITY as usize]> =
            Arc::new(std::array::from_fn(|_| UnsafeCell::new(0)));
        let mut producer = Producer::new(head.clone(), tail.clone(), CAPACITY);
        let written = memory.clone();
        let writer = thread::spawn(move || {
            for value in 0..BYTES {
                while producer.space(1).unwrap() == 0 {
                    thread::yield_now();
                }
                // SAFETY of the model: loom reports any access that is not ordered with this one.
                written[producer.place() as usize].with_mut(|place| write(place, 10 + value));
                producer.publish(1);
            }
        });
        let mut consumer = Consumer::new(head, tail, CAPACITY);
        for value in 0..BYTES {
            while consumer.available(1).unwrap() == 0 {
                thread::yield_now();
            }
            assert_eq!(memory[consumer.place() as usize].with(read), 10 + value);
            consumer.release(1);
        }
        writer.join().unwrap();
    });
}

#[test]
fn offered_bytes_are_read_before_they_change_or_not_counted_as_read() {
    model(|| {
        let (offer, posted, failed) = (word(), word(), Arc::new(ModelU32::new(0)));
        let memory = Arc::new(ModelU64::new(0));
        let (theirs, seen, bytes) = (Offer::new(offer.clone()), posted.clone(), memory.clone());
        let reader = thread::spawn(move || {
            if seen.load(Ordering::Acquire) == 0 {
                return None;
            }
            // The one place where bytes may change under a reader, which then finds out; so they are atomic here.
            let value = bytes.load(Ordering::Relaxed);
            theirs.take(1).then_some(value)
        });
        let gives_up = failed.clone();
        let canceller = thread::spawn(move || gives_up.store(1, Ordering::Relaxed));
        let ours = Offer::new(offer);
        memory.store(7, Ordering::Relaxed);
        ours.post(1);
        posted.store(1, Ordering::Release);
        // Until it is taken, or this side gives up: then the memory is another's.
        if failed.load(Ordering::Relaxed) == 1 {
            ours.withdraw(1);
            memory.store(9, Ordering::Relaxed);
        } else if ours.is_taken(1) {
            memory.store(9, Ordering::Relaxed);
        }
        let value = reader.join().unwrap();
        assert!(value.is_none_or(|value| value == 7), "{value:?}");
        canceller.join().unwrap();
    });
}

#[test]
fn a_taken_offer_orders_the_next_write_after_the_read() {
    model(|| {
        let (offer, posted) = (word(), word());
        let memory = Arc::new(UnsafeCell::new(0_u64));
        let (theirs, seen, bytes) = (Offer::new(offer.clone()), posted.clone(), memory.clone());
        let reader = thread::spawn(move || {
            if seen.load(Ordering::Acquire) == 1 {
                assert_eq!(bytes.with(read), 7);
                assert!(theirs.take(1));
            }
        });
        let ours = Offer::new(offer);
        memory.with_mut(|place| write(place, 7));
        ours.post(1);
        posted.store(1, Ordering::Release);
        if ours.is_taken(1) {
            memory.with_mut(|place| write(place, 9));
        }
        reader.join().unwrap();
    });
}

#[test]
fn an_answer_is_there_when_its_offer_is_taken() {
    model(|| {
        let (offer, posted) = (word(), word());
        let memory = Arc::new(UnsafeCell::new(0_u64));
        let (theirs, seen, bytes) = (Offer::new(offer.clone()), posted.clone(), memory.clone());
        let borrower = thread::spawn(move || {
            if seen.load(Ordering::Acquire) == 1 {
                assert_eq!(bytes.with(read), 7);
                bytes.with_mut(|place| write(place, 8));
                assert!(theirs.take(1));
            }
        });
        let ours = Offer::new(offer);
        memory.with_mut(|place| write(place, 7));
        ours.post(1);
        posted.store(1, Ordering::Release);
        if ours.is_taken(1) {
            assert_eq!(memory.with(read), 8);
        }
        borrower.join().unwrap();
    });
}

#[test]
fn two_slots_in_turn_are_never_filled_while_a_rank_reads() {
    model(|| {
        const ROUNDS: u64 = 3;
        let filled: [[Arc<ModelU64>; 2]; 2] = std::array::from_fn(|_| std::array::from_fn(|_| word()));
        let memory: Arc<[[UnsafeCell<u64>; 2]; 2]> =
            Arc::new(std::array::from_fn(|_| std::array::from_fn(|_| UnsafeCell::new(0))));
        let member =
            move |me: usize, filled: &[[Arc<ModelU64>; 2]; 2], memory: &[[UnsafeCell<u64>; 2]; 2]| {
                for round in 1..=ROUNDS {
                    let turn = (round % 2) as usize;
                    memory[me][turn].with_mut(|place| write(place, round));
                    Slot::new(filled[me][turn].clone()).show(round);
                    let other = Slot::new(filled[1 - me][turn].clone());
                    while other.shown() != round {
                        thread::yield_now();
                    }
                    assert_eq!(memory[1 - me][turn].with(read), round);
                }
            };
        let (theirs, bytes) = (filled.clone(), memory.clone());
        let other = thread::spawn(move || member(1, &theirs, &bytes));
        member(0, &filled, &memory);
        other.join().unwrap();
    });
}

// What the system's futex does: sleeps only while the number is what it was, and never misses a wake-up after it looked.
#[derive(Default)]
struct Futex {
    lock: Mutex<()>,
    woken: Condvar,
}

impl Futex {
    fn wait(&self, number: &ModelU32, expected: u32) {
        let mut guard = self.lock.lock().unwrap();
        while number.load(Ordering::Relaxed) == expected {
            guard = self.woken.wait(guard).unwrap();
        }
    }

    fn wake(&self) {
        drop(self.lock.lock().unwrap());
        self.woken.notify_all();
    }
}

#[test]
fn no_rank_sleeps_through_the_bell() {
    // A lost wake-up would leave the model without a thread that can go on, which loom reports.
    model(|| {
        let (rings, sleeping) = (Arc::new(ModelU32::new(0)), Arc::new(ModelU32::new(0)));
        let (counter, futex) = (word(), Arc::new(Futex::default()));
        let (bell, moved, wakes) =
            (Bell::new(rings.clone(), sleeping.clone()), counter.clone(), futex.clone());
        let waker = thread::spawn(move || {
            for value in 1..=2 {
                moved.store(value, Ordering::Release);
                if bell.ring() {
                    wakes.wake();
                }
            }
        });
        let bell = Bell::new(rings, sleeping);
        while counter.load(Ordering::Acquire) < 2 {
            let heard = bell.listen();
            if counter.load(Ordering::Acquire) < 2 {
                futex.wait(bell.rings(), heard);
            }
            bell.wake();
        }
        waker.join().unwrap();
    });
}

#[test]
fn counters_that_make_no_sense_are_damage() {
    let word = |value| Arc::new(AtomicU64::new(value));
    assert_eq!(Producer::new(word(0), word(1), 8).space(9), Err(Damaged), "taken before it was handed over");
    assert_eq!(Consumer::new(word(9), word(0), 8).available(1), Err(Damaged), "more than the ring holds");
    let (head, tail) = (word(4), word(0));
    let mut consumer = Consumer::new(head.clone(), tail, 8);
    assert_eq!(consumer.available(1), Ok(4));
    consumer.release(4);
    head.store(3, Ordering::Relaxed);
    assert_eq!(consumer.available(1), Err(Damaged), "back again");
}

#[allow(unsafe_code, reason = "the model's cells are read through pointers")]
fn read(place: *const u64) -> u64 {
    // SAFETY: loom's cell hands out a valid pointer, and panics if the access races with another.
    unsafe { *place }
}

#[allow(unsafe_code, reason = "the model's cells are written through pointers")]
fn write(place: *mut u64, value: u64) {
    // SAFETY: as for `read`.
    unsafe { *place = value }
}
