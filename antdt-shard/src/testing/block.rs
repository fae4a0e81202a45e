//! Runs the future of a store or a source to its end without a runtime.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

/// How often a pending future without a wake-up is polled, and how many times. Together the patience with one call:
/// a store that takes longer in a test hangs.
const TICK: Duration = Duration::from_millis(10);
const TICKS_MAX: u32 = 3_000;

struct Signal {
    thread: Thread,
    woken: AtomicBool,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}

/// Waits for a future.
///
/// # Errors
/// If it is not woken for 30 s.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let signal = Arc::new(Signal { thread: thread::current(), woken: AtomicBool::new(true) });
    let waker = Waker::from(Arc::clone(&signal));
    let mut future = pin!(future);
    let mut ticks = 0;
    while ticks < TICKS_MAX {
        if signal.woken.swap(false, Ordering::Acquire) {
            ticks = 0;
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return Ok(value);
            }
        } else {
            ticks += 1;
            thread::park_timeout(TICK);
        }
    }
    Err(format!("no answer within {:?}", TICK * TICKS_MAX))
}
