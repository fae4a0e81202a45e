use antdt_core::{Holder, Incarnation, Iteration, NodeId, Phase};

use super::*;

const STEP: Duration = Duration::from_millis(100);

/// A batch of 10 samples that took `compute` of a step of `wall`.
fn batch(plan: u64, compute: Duration, wall: Duration) -> BatchReport {
    BatchReport {
        holder: Holder::new(NodeId::worker(0), Incarnation(0)),
        sequence: 1,
        iteration: Iteration(0),
        plan: PlanVersion(plan),
        phase: Phase::Train,
        samples: 10,
        data_wait: Duration::ZERO,
        compute,
        communicate: wall.saturating_sub(compute),
        barrier_wait: Duration::ZERO,
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn filled(batches: u32, compute: Duration) -> ShortWindow {
    let mut window = ShortWindow::new(WindowConfig::default());
    for _ in 0..batches {
        window.push(&batch(1, compute, STEP));
    }
    window
}

#[test]
fn a_window_speaks_when_it_is_full_and_a_plan_may_rest_on_half_of_it() {
    assert_eq!(filled(24, ms(50)).sample_time(STEP), None, "5 of warm-up and 19");
    assert_eq!(filled(25, ms(50)).sample_time(STEP).map(SampleTime::duration), Some(ms(5)));
    assert_eq!(filled(9, ms(50)).sample_time_under(PlanVersion(1), STEP), None, "4 and the warm-up");
    assert!(filled(10, ms(50)).sample_time_under(PlanVersion(1), STEP).is_some());
    assert_eq!(filled(25, ms(50)).sample_time_under(PlanVersion(2), STEP), None, "all of an older plan");
}

#[test]
fn after_a_later_plan_half_a_window_is_needed_in_full() {
    let mut window = filled(30, ms(50));
    for _ in 0..9 {
        window.push(&batch(2, ms(70), STEP));
    }
    assert_eq!(window.sample_time_under(PlanVersion(2), STEP), None);
    window.push(&batch(2, ms(70), STEP));
    assert_eq!(window.sample_time_under(PlanVersion(2), STEP).map(SampleTime::duration), Some(ms(7)));
}

#[test]
fn slow_first_batches_do_not_count() {
    let mut window = ShortWindow::new(WindowConfig::default());
    for _ in 0..5 {
        window.push(&batch(1, ms(5000), ms(5000)));
    }
    for _ in 0..10 {
        window.push(&batch(1, ms(50), STEP));
    }
    assert_eq!(window.sample_time_under(PlanVersion(1), STEP).map(SampleTime::duration), Some(ms(5)));
}

#[test]
fn the_median_flips_only_when_more_than_half_the_window_is_slow() {
    for slow in 0..=20 {
        let mut window = filled(60, ms(50));
        for _ in 0..slow {
            window.push(&batch(1, ms(90), STEP));
        }
        let expected = if slow > 10 { ms(9) } else { ms(5) };
        assert_eq!(window.sample_time(STEP).map(SampleTime::duration), Some(expected), "{slow} slow batches");
    }
}

#[test]
fn windows_of_nodes_with_different_step_times_cover_the_same_time() {
    // Under ASP a node four times slower makes a quarter of the batches.
    let mut slow = ShortWindow::new(WindowConfig::default());
    for _ in 0..9 {
        slow.push(&batch(1, ms(400), ms(400)));
    }
    assert_eq!(slow.sample_time(STEP), None, "5 of warm-up and 4");
    slow.push(&batch(1, ms(400), ms(400)));
    assert_eq!(
        slow.sample_time(STEP).map(SampleTime::duration),
        Some(ms(40)),
        "5 batches of 400 ms are 20 of 100 ms"
    );

    let mut fast = ShortWindow::new(WindowConfig::default());
    for _ in 0..44 {
        fast.push(&batch(1, ms(50), ms(50)));
    }
    assert_eq!(fast.sample_time(STEP), None, "39 batches of 50 ms are not 20 of 100 ms");
    fast.push(&batch(1, ms(50), ms(50)));
    assert!(fast.sample_time(STEP).is_some());
}

#[test]
fn memory_is_bounded_however_long_the_job() {
    let mut window = ShortWindow::new(WindowConfig::default());
    let mut long = LongWindow::new(&WindowConfig::default());
    for _ in 0..10_000 {
        window.push(&batch(1, ms(1), ms(1)));
        long.push(SampleTime(1), 1.0, true);
    }
    assert_eq!(window.batches.len(), 80);
    assert_eq!(long.beats.len(), 40);
}

#[test]
fn times_below_a_nanosecond_are_kept_apart() {
    assert_eq!(SampleTime::of(ms(1), 4_000_000), Some(SampleTime(250)));
    assert_eq!(SampleTime::of(ms(1), 0), None);
}

#[test]
fn throughput_is_samples_over_wall_time() {
    let rate = filled(25, ms(50)).samples_per_second(STEP);
    assert!((rate - 100.0).abs() < 1e-9, "{rate}");
    assert_eq!(filled(0, ms(50)).samples_per_second(STEP), 0.0);
}

#[test]
fn a_batch_without_samples_says_nothing() {
    let mut window = filled(24, ms(50));
    window.push(&BatchReport { samples: 0, ..batch(1, Duration::ZERO, STEP) });
    assert_eq!(window.sample_time(STEP), None, "the window is still one batch short");
}

#[test]
fn the_unknown_part_of_the_long_window_counts_as_not_slow() {
    let mut long = LongWindow::new(&WindowConfig::default());
    for _ in 0..31 {
        long.push(SampleTime(4), 4.0, true);
    }
    assert!(long.slow_fraction() < 0.8);
    long.push(SampleTime(4), 4.0, true);
    assert!(long.slow_fraction() >= 0.8);
    assert_eq!(long.slowness_ratio(), Some(4.0));
    assert_eq!(long.sample_time(), Some(SampleTime(4)));
}
