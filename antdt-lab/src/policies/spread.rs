//! [`spread`]: simulated jobs on all cores at once.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::Result;

/// What `of` makes of each of `items`, in their order, whichever core is done first.
///
/// # Errors
/// The first one of `of`, in that order; items behind it may be left out.
///
/// # Panics
/// If `of` does.
pub(super) fn spread<I: Sync, T: Send>(items: &[I], of: impl Fn(&I) -> Result<T> + Sync) -> Result<Vec<T>> {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get).min(items.len());
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let work = || {
        let mut made = Vec::new();
        // Items are taken in their order, so that what precedes the first error is done.
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { break };
            let one = of(item);
            failed.fetch_or(one.is_err(), Ordering::Relaxed);
            made.push((at, one));
        }
        made
    };
    let mut all: Vec<(usize, Result<T>)> = thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        started
            .into_iter()
            .flat_map(|it| it.join().unwrap_or_else(|why| std::panic::resume_unwind(why)))
            .collect()
    });
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use anyhow::bail;

    use super::*;

    #[test]
    fn results_are_in_the_order_of_their_items_and_each_is_made_once() {
        let items: Vec<usize> = (0..100).collect();
        let calls = AtomicUsize::new(0);
        let made = spread(&items, |item| {
            calls.fetch_add(1, Ordering::Relaxed);
            Ok(10 * item)
        });
        assert_eq!(made.unwrap(), items.iter().map(|item| 10 * item).collect::<Vec<_>>());
        assert_eq!(calls.into_inner(), 100);
        assert!(spread(&[] as &[u32], |item| Ok(*item)).unwrap().is_empty());
    }

    #[test]
    fn as_many_items_are_in_work_as_there_are_cores() {
        let cores = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        // No thread passes until all are there.
        let all = Barrier::new(cores);
        spread(&vec![(); cores], |()| {
            all.wait();
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn of_several_errors_the_first_one_is_told() {
        let items: Vec<u32> = (0..100).collect();
        let made = spread(&items, |item| if *item >= 40 { bail!("{item}") } else { Ok(*item) });
        assert_eq!(made.unwrap_err().to_string(), "40");
    }
}
