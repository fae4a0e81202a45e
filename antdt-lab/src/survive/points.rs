//! Simulated jobs of which all processes end after a random event, and that another number of workers resumes.

use std::num::NonZeroUsize;
use std::thread;

use antdt_sim::chaos::{CaseError, Resumption, crashed};

use super::cell::Measured;

/// Crashes so many simulated jobs and compares how often each sample is in the trained model with the same job without a crash.
pub(super) fn measure(m: &mut Measured, points: u32) {
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let of_thread = |first: usize| -> Vec<(u64, Result<Resumption, CaseError>)> {
        let seeds = (0..u64::from(points)).skip(first).step_by(threads);
        seeds.map(|seed| (seed, crashed(seed).run())).collect()
    };
    let of_thread = &of_thread;
    let ran: Vec<_> = thread::scope(|scope| {
        let started: Vec<_> = (0..threads).map(|first| scope.spawn(move || of_thread(first))).collect();
        started.into_iter().flat_map(|thread| thread.join().expect("no simulation panics")).collect()
    });
    let mut all = Resumption::default();
    for (seed, outcome) in ran {
        m.jobs += 1;
        match outcome {
            Ok(seen) => {
                all.resumed += seen.resumed;
                all.anew += seen.anew;
                all.again += seen.again;
            }
            Err(why) => m.inexact.push(format!("simulated crash {seed}: {why}")),
        }
    }
    let Resumption { resumed, anew, again, .. } = all;
    m.beside = format!(
        "of {points}, all modes; {resumed} resumed from a checkpoint, {anew} begun anew, {again} samples trained again"
    );
}

#[cfg(test)]
mod tests {
    use super::super::cell::{Cell, What};
    use super::*;

    #[test]
    fn simulated_crashes_are_counted_and_none_loses_a_sample() {
        let mut measured = Measured::of(Cell { what: What::Points(22), number: 0 });
        measure(&mut measured, 22);
        assert_eq!((measured.jobs, measured.inexact.len()), (22, 0), "{:?}", measured.inexact);
        assert!(measured.beside.starts_with("of 22, all modes; "), "{}", measured.beside);
        assert!(!measured.beside.contains("; 0 resumed"), "{}", measured.beside);
    }
}
