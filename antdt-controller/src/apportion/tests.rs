use antdt_core::Seed;
use proptest::prelude::*;

use super::*;

fn share(index: u32, sample_time: u64, min: u32, max: u32) -> Share {
    Share::new(NodeId::worker(index), Duration::from_nanos(sample_time), min, max)
}

fn sizes(solution: &Apportionment) -> Vec<u32> {
    solution.batch_sizes.values().copied().collect()
}

/// The least step time, by trying everything.
fn brute_force(total: u32, granularity: u32, shares: &[Share]) -> Option<Duration> {
    let Some((first, others)) = shares.split_first() else {
        return (total == 0).then_some(Duration::ZERO);
    };
    (first.min..=first.max.min(total))
        .step_by(granularity as usize)
        .filter_map(|x| Some(brute_force(total - x, granularity, others)?.max(first.time(x))))
        .min()
}

fn shares() -> impl Strategy<Value = Vec<Share>> {
    let one = (0_u64..4, 1_u64..40, 0_u32..5, 0_u32..15)
        .prop_map(|(fixed, time, min, span)| (fixed * 30, time, min, span));
    prop::collection::vec(one, 1..5).prop_map(|all| {
        all.into_iter()
            .zip(0..)
            .map(|((fixed, time, min, span), index)| Share {
                fixed: Duration::from_nanos(fixed),
                ..share(index, time, min, min + span)
            })
            .collect()
    })
}

/// The least step time with micro-batches, by trying every number of samples in every number of micro-batches.
fn brute_force_in_pieces(total: u32, granularity: u32, shares: &[Share]) -> Option<Duration> {
    let Some((first, others)) = shares.split_first() else {
        return (total == 0).then_some(Duration::ZERO);
    };
    let batch = |x: u32| {
        let counts = 1..=first.micro_batches_max;
        let fits = |count: &u32| x / count >= first.min && x.div_ceil(*count) <= first.max;
        counts.filter(fits).map(|count| first.fixed * count + first.sample_time * x).min()
    };
    // The last one takes what is left.
    let from = if others.is_empty() { total.max(first.min) } else { first.min };
    let is_whole = |x: &u32| (x - first.min).is_multiple_of(granularity);
    (from..=total.min(first.max * first.micro_batches_max))
        .filter(is_whole)
        .filter_map(|x| Some(batch(x)?.max(brute_force_in_pieces(total - x, granularity, others)?)))
        .min()
}

fn shares_in_pieces() -> impl Strategy<Value = Vec<Share>> {
    let one = (0_u64..5, 1_u64..40, 0_u32..4, 0_u32..9, 1_u32..6);
    let one = one.prop_map(|(fixed, time, min, span, counts)| {
        let max = (2 * min).saturating_sub(1).max(min).max(1) + span;
        let fixed = Duration::from_nanos(fixed * 37);
        Share { fixed, micro_batches_max: counts, ..share(0, time, min, max) }
    });
    let one = prop_oneof![4 => one.clone(), 1 => one.prop_map(|it| Share { micro_batches_max: 1, ..it })];
    prop::collection::vec(one, 1..5)
        .prop_map(|all| (0..).zip(all).map(|(index, it)| Share { id: NodeId::worker(index), ..it }).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12_000))]

    #[test]
    fn i29_with_micro_batches_the_answer_is_feasible_and_optimal_or_there_is_none(
        total in 1_u32..48, granularity in prop::sample::select(vec![1_u32, 1, 2, 4]), shares in shares_in_pieces()
    ) {
        let expected = brute_force_in_pieces(total, granularity, &shares);
        match apportion(total, granularity, &shares) {
            Err(e) => prop_assert_eq!(expected, None, "{}", e),
            Ok(solution) => {
                prop_assert_eq!(solution.batch_sizes.values().sum::<u32>(), total);
                let mut slowest = Duration::ZERO;
                for share in &shares {
                    let x = solution.batch_sizes[&share.id];
                    let count = solution.accumulation.get(&share.id).copied().unwrap_or(1);
                    prop_assert!(count <= share.micro_batches_max);
                    prop_assert!(x / count >= share.min && x.div_ceil(count) <= share.max);
                    prop_assert!((x - share.min) % granularity == 0);
                    prop_assert_eq!(share.time(x), share.fixed * count + share.sample_time * x);
                    slowest = slowest.max(share.time(x));
                }
                prop_assert_eq!(solution.step_time, slowest, "it says what it is");
                prop_assert_eq!(Some(slowest), expected, "optimal");
                // What fits at once may be computed in micro-batches too: that is never worse.
                let at_once: Vec<Share> = shares.iter().map(|it| Share { micro_batches_max: 1, ..*it }).collect();
                if let Ok(at_once) = apportion(total, granularity, &at_once) {
                    prop_assert!(solution.step_time <= at_once.step_time);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12_000))]

    #[test]
    fn i28_the_answer_is_feasible_and_optimal_or_there_is_none(
        total in 1_u32..45, granularity in prop::sample::select(vec![1_u32, 1, 2, 4]), shares in shares()
    ) {
        let expected = brute_force(total, granularity, &shares);
        match apportion(total, granularity, &shares) {
            Err(e) => prop_assert_eq!(expected, None, "{}", e),
            Ok(solution) => {
                prop_assert_eq!(solution.batch_sizes.values().sum::<u32>(), total);
                let mut slowest = Duration::ZERO;
                for share in &shares {
                    let x = solution.batch_sizes[&share.id];
                    prop_assert!(share.min <= x && x <= share.max && (x - share.min) % granularity == 0);
                    slowest = slowest.max(share.time(x));
                }
                prop_assert_eq!(solution.step_time, slowest, "it says what it is");
                prop_assert_eq!(Some(slowest), expected, "optimal");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn i28_the_order_of_the_workers_does_not_matter(
        total in 1_u32..45, shares in shares(), seed in any::<u64>()
    ) {
        let mut shuffled = shares.clone();
        let mut rng = Seed(seed).rng();
        shuffled.sort_by_cached_key(|_| rng.next_u64());
        prop_assert_eq!(apportion(total, 1, &shares), apportion(total, 1, &shuffled));
    }

    #[test]
    fn i28_the_unit_of_time_does_not_matter(total in 1_u32..45, shares in shares(), scale in 1_u32..100_000) {
        let scaled: Vec<Share> = shares
            .iter()
            .map(|s| Share { fixed: s.fixed * scale, sample_time: s.sample_time * scale, ..*s })
            .collect();
        let (plain, scaled) = (apportion(total, 1, &shares), apportion(total, 1, &scaled));
        prop_assert_eq!(plain.map(|s| s.batch_sizes), scaled.map(|s| s.batch_sizes));
    }

    #[test]
    fn i28_integers_cost_at_most_one_sample_of_the_slowest(
        total in 1000_u32..100_000, times in prop::collection::vec(1_u64..1_000_000, 1..40)
    ) {
        let shares: Vec<Share> = times.iter().zip(0..).map(|(t, i)| share(i, *t, 0, u32::MAX)).collect();
        let relaxed = f64::from(total) / times.iter().map(|t| 1.0 / *t as f64).sum::<f64>();
        let found = apportion(total, 1, &shares).unwrap().step_time.as_nanos() as f64;
        let slowest = *times.iter().max().unwrap() as f64;
        prop_assert!(found >= relaxed * (1.0 - 1e-9) && found <= relaxed * (1.0 + 1e-9) + slowest);
    }
}

#[test]
fn one_slow_worker_of_four_gets_a_thirteenth() {
    let shares: Vec<Share> = (0..4).map(|i| share(i, if i == 3 { 4000 } else { 1000 }, 1, 1000)).collect();
    let solution = apportion(256, 1, &shares).unwrap();
    assert_eq!(sizes(&solution), [79, 79, 79, 19]);
    // (s(n - 1) + 1) / n = 3.25 times faster than 64 each, but for rounding.
    assert_eq!(solution.step_time, Duration::from_micros(79));
}

#[test]
fn fast_devices_take_several_micro_batches_where_one_does_not_fit() {
    // Four of 20 ms and 2.5 ms a sample, four of 25 ms and 6 ms; 128 and 96 samples fit.
    let device = |index, fixed, sample_time, max| Share {
        fixed: Duration::from_millis(fixed),
        micro_batches_max: 16,
        ..Share::new(NodeId::worker(index), Duration::from_micros(sample_time), 32, max)
    };
    let fast = (0..4).map(|index| device(index, 20, 2500, 128));
    let shares: Vec<Share> = fast.chain((4..8).map(|index| device(index, 25, 6000, 96))).collect();
    for (total, fast, slow, step) in [
        (512, (1, 91), (1, 37), 248),
        (768, (2, 134), (1, 58), 375),
        (1024, (2, 179), (1, 77), 488),
        (1536, (3, 270), (2, 114), 735),
    ] {
        let solution = apportion(total, 1, &shares).unwrap();
        let of = |index: u32| {
            let id = NodeId::worker(index);
            (solution.accumulation.get(&id).copied().unwrap_or(1), solution.batch_sizes[&id])
        };
        assert_eq!((of(0), of(4)), (fast, slow), "{total}");
        let ms = solution.step_time.as_secs_f64() * 1e3;
        assert!((ms - f64::from(step)).abs() < 1.0, "{total}: {ms}");
    }
}

#[test]
fn ties_go_to_the_lowest_ids() {
    let shares: Vec<Share> = (0..4).map(|i| share(i, 1000, 1, 100)).collect();
    assert_eq!(sizes(&apportion(10, 1, &shares).unwrap()), [3, 3, 2, 2]);
}

#[test]
fn an_even_split_obeys_the_bounds() {
    let bounds = [(NodeId::worker(0), 1, 2), (NodeId::worker(1), 1, 100), (NodeId::worker(2), 1, 100)];
    let split = apportion_evenly(11, bounds).unwrap();
    assert_eq!(split.into_values().collect::<Vec<_>>(), [2, 5, 4]);
}

#[test]
fn i28_every_impossible_input_has_its_error() {
    use ApportionError as E;
    let node = NodeId::worker(0);
    let one = |min, max| vec![share(0, 10, min, max)];
    let cases = [
        (0, 1, one(1, 9), E::NothingToShare),
        (5, 0, one(1, 9), E::ZeroGranularity),
        (5, 1, vec![], E::NoWorkers { total: 5 }),
        (5, 1, vec![share(0, 10, 1, 9); 2], E::Duplicate { node }),
        (5, 1, vec![share(0, 0, 1, 9)], E::ZeroSampleTime { node }),
        (5, 1, one(7, 3), E::BoundsCrossed { node, min: 7, max: 3 }),
        (5, 1, one(6, 9), E::TooFew { total: 5, least: 6 }),
        (15, 1, one(1, 9), E::TooMany { total: 15, most: 9 }),
        // The upper bound counts in whole quanta: 1, 5, 9 are reachable, 10 is not.
        (10, 4, one(1, 10), E::TooMany { total: 10, most: 9 }),
        (7, 4, one(1, 9), E::NotDivisible { total: 7, rest: 6, granularity: 4 }),
    ];
    for (total, granularity, shares, expected) in cases {
        assert_eq!(apportion(total, granularity, &shares), Err(expected));
    }
    let alike = Share { micro_batches_max: 2, ..share(0, 10, 6, 10) };
    assert_eq!(apportion(7, 1, &[alike]), Err(E::MicroBatchesTooAlike { node, min: 6, max: 10 }));
    let late = Share::new(node, TIME_MAX * 2, 1, 9);
    assert!(matches!(apportion(5, 1, &[late]), Err(E::TimeTooLong { .. })));
}

#[test]
fn extreme_but_legal_numbers_are_solved() {
    let shares = [
        Share { fixed: TIME_MAX, ..Share::new(NodeId::worker(0), TIME_MAX, 0, u32::MAX) },
        share(1, 1, 0, u32::MAX),
    ];
    let solution = apportion(u32::MAX, 1, &shares).unwrap();
    assert_eq!(sizes(&solution), [0, u32::MAX]);
}
