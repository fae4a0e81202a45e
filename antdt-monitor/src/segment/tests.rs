use antdt_core::{DetRng, Seed};

use super::*;

/// Time of a batch of this many times the usual one, with noise.
fn time(slowness: f64, spread: f64, rng: &mut DetRng) -> SampleTime {
    let factor = slowness * (spread * rng.normal()).exp();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time in picoseconds")]
    SampleTime((1e9 * factor) as u64)
}

fn rng(seed: u64) -> DetRng {
    Seed(seed).rng()
}

fn slowness(segment: &Segment, noise: &Noise) -> f64 {
    segment.estimate(noise).map_or(0.0, |estimate| estimate.sample_time.as_secs_f64() / 1e-3)
}

#[test]
fn a_worker_that_becomes_four_times_slower_is_seen_after_few_batches_under_any_noise() {
    for (spread, most) in [(0.02, 2), (0.1, 2), (0.2, 3), (0.3, 6)] {
        let mut delays = Vec::new();
        for seed in 0..100 {
            let (mut rng, mut segment, mut noise) = (rng(seed), Segment::default(), Noise::default());
            for _ in 0..40 {
                segment.push(time(1.0, spread, &mut rng), &mut noise);
            }
            let delay = (1..20).find(|_| {
                segment.push(time(4.0, spread, &mut rng), &mut noise);
                slowness(&segment, &noise) > 2.0
            });
            delays.push(delay.unwrap_or(20));
        }
        delays.sort_unstable();
        println!("spread {spread}: median {}, 95 % {}", delays[50], delays[95]);
        assert!(delays[95] <= most, "spread {spread}: {delays:?}");
    }
}

#[test]
fn noise_cuts_a_segment_no_more_often_than_stated() {
    for spread in [0.05, 0.2, 0.4] {
        let (mut cuts, mut batches) = (0, 0);
        for seed in 0..20 {
            let (mut rng, mut segment, mut noise) = (rng(seed), Segment::default(), Noise::default());
            let mut before = 0;
            for _ in 0..2_000 {
                segment.push(time(1.0, spread, &mut rng), &mut noise);
                cuts += u32::from(segment.times.len() < before);
                before = segment.times.len();
                batches += 1;
            }
        }
        println!("spread {spread}: {cuts} in {batches}");
        // 10,000 batches between two; four false ones are expected of 40,000, and twelve are as good as impossible.
        assert!(cuts < 12, "spread {spread}: {cuts} of {batches}");
    }
}

#[test]
fn one_batch_however_long_changes_nothing_and_the_second_does() {
    let (mut rng, mut segment, mut noise) = (rng(1), Segment::default(), Noise::default());
    for _ in 0..40 {
        segment.push(time(1.0, 0.05, &mut rng), &mut noise);
    }
    segment.push(time(1000.0, 0.05, &mut rng), &mut noise);
    assert!((slowness(&segment, &noise) - 1.0).abs() < 0.05);
    segment.push(time(1000.0, 0.05, &mut rng), &mut noise);
    assert!(slowness(&segment, &noise) > 900.0);
}

#[test]
fn a_worker_that_recovers_is_seen_as_fast_as_one_that_becomes_slow() {
    let (mut rng, mut segment, mut noise) = (rng(2), Segment::default(), Noise::default());
    for slow in [1.0, 4.0, 1.0] {
        for _ in 0..40 {
            segment.push(time(slow, 0.1, &mut rng), &mut noise);
        }
        assert!((slowness(&segment, &noise) / slow - 1.0).abs() < 0.1);
    }
}

#[test]
fn the_spread_is_that_of_the_batches_and_high_before_there_are_any() {
    for spread in [0.05, 0.2, 0.4] {
        let (mut rng, mut segment, mut noise) = (rng(3), Segment::default(), Noise::default());
        for batches in 0..200 {
            segment.push(time(1.0, spread, &mut rng), &mut noise);
            if batches == 3 && spread < 0.2 {
                assert!(segment.estimate(&noise).unwrap().spread > 1.5 * spread, "too few to know");
            }
        }
        let seen = segment.estimate(&noise).unwrap();
        assert!((seen.spread / spread - 1.0).abs() < 0.3, "{seen:?} with {spread}");
        assert_eq!(seen.batches, 64);
    }
}

#[test]
fn a_node_that_leaves_takes_its_part_of_the_noise_along() {
    let (mut rng, mut noise) = (rng(4), Noise::default());
    let mut segments = [Segment::default(), Segment::default()];
    for _ in 0..50 {
        segments[0].push(time(1.0, 0.05, &mut rng), &mut noise);
        segments[1].push(time(1.0, 0.8, &mut rng), &mut noise);
    }
    assert!(noise.variance().sqrt() > 0.3);
    segments[1].leave(&mut noise);
    assert!(noise.variance().sqrt() < 0.12, "{noise:?}");
}

#[test]
fn the_spread_around_the_median_is_looked_at_now_and_then_in_a_long_life_too() {
    let (mut rng, mut segment, mut noise) = (rng(1), Segment::default(), Noise::default());
    let mut looks: Vec<usize> = Vec::new();
    for batch in 0..20 * NEWEST {
        let before = segment.around;
        segment.push(time(1.0, 0.1, &mut rng), &mut noise);
        if segment.around.to_bits() != before.to_bits() {
            looks.push(batch);
        }
    }
    assert!(looks.len() > 10 * NEWEST / LOOK, "{looks:?}");
    assert!(looks.windows(2).all(|pair| (pair[1] - pair[0]).is_multiple_of(LOOK)), "{looks:?}");
}
