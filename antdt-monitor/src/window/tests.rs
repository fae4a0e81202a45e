use antdt_core::{Holder, Incarnation, Iteration, NodeId, Phase};
use proptest::prelude::*;

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
        micro_batches: 1,
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
    assert_eq!(long.slow.len(), 40);
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

proptest! {
    /// Against the batches themselves; `own` is a step that makes the window a longer or shorter one than the nominal.
    #[test]
    fn throughput_is_that_of_the_newest_batches_of_the_window(
        batches in prop::collection::vec((1_u64..1000, 1_u64..200), 0..120),
        own in 20_u64..400,
    ) {
        let config = WindowConfig { warmup_batches: 0, ..WindowConfig::default() };
        let mut window = ShortWindow::new(config);
        for (at, (samples, wall)) in batches.iter().enumerate() {
            window.push(&BatchReport { samples: *samples, ..batch(1, ms(1), ms(*wall)) });
            for step in [window.step_time().unwrap(), ms(own)] {
                let newest = batches[..=at].iter().rev().take(window.span(step) as usize);
                let (samples, wall) = newest.fold((0, 0), |(n, ms), (samples, wall)| (n + samples, ms + wall));
                prop_assert_eq!(window.samples_per_second(step), samples as f64 / ms(wall).as_secs_f64());
            }
        }
    }
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

/// The definition of a lower median.
fn middle<T: Copy>(mut values: Vec<T>, order: impl Fn(&T, &T) -> Ordering) -> Option<T> {
    values.sort_by(order);
    values.get(values.len().saturating_sub(1) / 2).copied()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Asked in any order, after any batch, a window says what a sort of its batches says.
    #[test]
    fn a_window_keeps_the_medians_that_a_sort_finds(
        batches in prop::collection::vec((1_u64..200, 1_u64..200, 0_u64..4, any::<bool>()), 0..150),
        short_batches in prop_oneof![4_u32..24, Just(100)],
    ) {
        let config = WindowConfig { short_batches, warmup_batches: 2, ..WindowConfig::default() };
        let mut window = ShortWindow::new(config);
        let mut all: Vec<BatchReport> = Vec::new();
        let mut plan = 1;
        for (compute, wait, newer, asked) in batches {
            plan += u64::from(newer == 0);
            let report = batch(plan, ms(compute), ms(compute + wait));
            window.push(&report);
            all.push(report);
            if !asked || all.len() <= 2 {
                continue;
            }
            let kept = &all[2.max(all.len().saturating_sub(4 * short_batches as usize))..];
            let newest = |count: usize| kept.iter().rev().take(count);
            let walls = newest(short_batches as usize).map(|b| b.compute + b.communicate).collect();
            let own = middle(walls, Duration::cmp).unwrap();
            prop_assert_eq!(window.step_time(), Some(own));
            for step in [own, own * 2, STEP, own] {
                let nominal = u128::from(short_batches) * step.as_nanos();
                let span = ((nominal + own.as_nanos() / 2) / own.as_nanos())
                    .clamp(u128::from(BATCHES_MIN.min(short_batches)), u128::from(4 * short_batches)) as usize;
                let of = |reports: &mut dyn Iterator<Item = &BatchReport>| {
                    let times = reports.map(|b| SampleTime::of(b.compute, b.samples).unwrap()).collect();
                    middle(times, SampleTime::cmp)
                };
                let full = (kept.len() >= span).then(|| of(&mut newest(span))).flatten();
                prop_assert_eq!(window.sample_time(step), full);
                for asked in [plan, plan - 1, plan + 1] {
                    let under = || newest(span).take_while(|b| b.plan.0 >= asked);
                    let count = under().count();
                    let credit = if count == kept.len() { 2 } else { 0 };
                    let enough = count >= BATCHES_MIN.min(short_batches) as usize
                        && count + credit >= span.div_ceil(2);
                    let expected = enough.then(|| of(&mut under())).flatten();
                    prop_assert_eq!(window.sample_time_under(PlanVersion(asked), step), expected);
                }
            }
        }
    }

    #[test]
    fn the_long_window_counts_and_orders_its_entries(
        beats in prop::collection::vec((0_u64..50, 0.1_f64..9.0, any::<bool>()), 0..100)
    ) {
        let mut long = LongWindow::new(&WindowConfig::default());
        for at in 0..beats.len() {
            let (time, ratio, slow) = beats[at];
            long.push(SampleTime(time), ratio, slow);
            let kept = &beats[(at + 1).saturating_sub(40)..=at];
            prop_assert_eq!(long.slow_fraction(), kept.iter().filter(|b| b.2).count() as f64 / 40.0);
            let times = kept.iter().map(|b| SampleTime(b.0)).collect();
            prop_assert_eq!(long.sample_time(), middle(times, SampleTime::cmp));
            let ratios = kept.iter().map(|b| b.1).collect();
            prop_assert_eq!(long.slowness_ratio(), middle(ratios, f64::total_cmp));
        }
    }
}
