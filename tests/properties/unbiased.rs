//! Backup workers bias no gradient: the weights of a step's samples add up to one, and the expected gradient
//! of a step is that of the whole data set, whichever workers come too late, as long as the time of a batch has nothing to do with its samples.
//!
//! The test is one of statistics. Each world says by how much the mean gradient of its first steps differs from that of the data set;
//! over many worlds the mean difference is compared with its standard error. [`ALARM`] and [`POWER`] are quantiles of the normal
//! distribution: an unbiased machine fails once in 10,000 runs of other seeds (these seeds are fixed), and a bias of
//! [`BIAS`] is found with a probability of 99 %, which the test checks of its own standard error. Planted biases show that it finds some.

use std::sync::LazyLock;

use antdt_core::Seed;
use antdt_tests::{BackupSetup, BackupStep, BackupWorld, Steps};

/// Standard errors from which on a difference is a bias: exceeded by chance once in 10,000 tests.
const ALARM: f64 = 3.89;

/// Standard errors below which an estimate falls in 1 of 100 cases.
const POWER: f64 = 2.33;

/// The bias that is found with 99 %: this many standard deviations of one sample's gradient.
const BIAS: f64 = 0.02;

const SAMPLES: u64 = 1920;
const WORLDS: u64 = 400;

/// Steps of each world that are looked at: the first ones, about two thirds of the epoch. Over a whole epoch each sample
/// counts once anyway.
const STEPS: usize = 50;

/// Gradients of all samples: one coordinate, with mean 1 and standard deviation 1.
static GRADIENTS: LazyLock<Vec<f64>> =
    LazyLock::new(|| (0..SAMPLES).map(|sample| 1.0 + Seed(7).derive_number(sample).rng().normal()).collect());

fn gradient(sample: u64) -> f64 {
    GRADIENTS[sample as usize]
}

fn mean(samples: &[u64]) -> f64 {
    samples.iter().map(|sample| gradient(*sample)).sum::<f64>() / samples.len() as f64
}

/// The bias of the mean gradient of a step, and its standard error, both in standard deviations of one sample's gradient.
fn bias(setup: BackupSetup<'_>, of_step: fn(&BackupStep) -> f64) -> (f64, f64) {
    let all: Vec<u64> = (0..SAMPLES).collect();
    let whole = mean(&all);
    let variance = all.iter().map(|sample| (gradient(*sample) - whole).powi(2)).sum::<f64>() / SAMPLES as f64;
    let differences: Vec<f64> = (0..WORLDS)
        .map(|seed| {
            let steps = BackupWorld::new(seed, setup).run();
            let first = &steps[..STEPS];
            first.iter().map(of_step).sum::<f64>() / STEPS as f64 - whole
        })
        .collect();
    let n = WORLDS as f64;
    let mean = differences.iter().sum::<f64>() / n;
    let squares: f64 = differences.iter().map(|difference| (difference - mean).powi(2)).sum();
    let error = (squares / (n - 1.0) / n).sqrt();
    (mean / variance.sqrt(), error / variance.sqrt())
}

/// What the servers, or all workers, make of a step: the sum of its gradients over the divisor.
fn served(step: &BackupStep) -> f64 {
    step.samples.iter().map(|sample| gradient(*sample)).sum::<f64>() / step.divisor as f64
}

/// Four workers of batches as these, of which a step does not wait for one.
fn setup<'a>(steps: Steps, workers: &'a [(u64, f64)]) -> BackupSetup<'a> {
    BackupSetup { steps, samples: SAMPLES, backups: 1, workers, longer: |_| 1.0, loses_late: false }
}

const WAYS: [Steps; 2] = [Steps::Servers, Steps::AllReduce];

const EVEN: [(u64, f64); 4] = [(8, 1.0); 4];
const ONE_SLOW: [(u64, f64); 4] = [(8, 4.0), (8, 1.0), (8, 1.0), (8, 1.0)];
const UNEQUAL: [(u64, f64); 4] = [(3, 2.0), (6, 1.2), (10, 0.8), (13, 0.7)];

#[test]
fn the_weights_of_a_step_with_backups_add_up_to_one_and_every_sample_counts_once() {
    for (way, workers) in WAYS.into_iter().flat_map(|way| [EVEN, ONE_SLOW, UNEQUAL].map(|it| (way, it))) {
        let mut dropped = 0;
        for seed in 0..50 {
            for step in BackupWorld::new(seed, setup(way, &workers)).run() {
                assert_eq!(step.divisor, step.samples.len() as u64, "{step:?}");
                assert!(step.divisor <= step.assigned);
                dropped += u64::from(step.divisor < step.assigned);
            }
        }
        assert!(dropped > 1000, "{way:?} {workers:?}: backups are dropped: in {dropped} steps");
    }
}

#[test]
fn backup_drops_bias_no_gradient() {
    for (way, workers) in WAYS.into_iter().flat_map(|way| [EVEN, ONE_SLOW, UNEQUAL].map(|it| (way, it))) {
        let (bias, error) = bias(setup(way, &workers), served);
        let what = format!("{way:?} {workers:?}: the standard error is {error}");
        assert!((ALARM + POWER) * error <= BIAS, "{what}: too weak");
        assert!(bias.abs() <= ALARM * error, "{what}: a bias of {bias}");
    }
}

#[test]
fn a_planted_bias_is_found() {
    // A mean over the samples that were assigned, and not over those that came: a quarter is missing.
    let of_assigned = |step: &BackupStep| served(step) * step.divisor as f64 / step.assigned as f64;
    // What comes too late is dropped for good, and samples of large gradients take longer.
    for way in WAYS {
        let even = setup(way, &EVEN);
        let loses = BackupSetup { longer: |samples| (0.3 * mean(samples)).exp(), loses_late: true, ..even };
        for (what, (bias, error), is_below) in
            [("assigned", bias(even, of_assigned), -0.2), ("lost", bias(loses, served), -BIAS)]
        {
            assert!(
                bias < -ALARM * error,
                "{way:?} {what}: a bias of {bias} is not found, the standard error is {error}"
            );
            assert!(bias < is_below, "{way:?} {what}: {bias}");
        }
    }
}

#[test]
fn samples_that_are_slow_by_their_content_are_taken_again_and_bias_no_epoch() {
    for way in WAYS {
        let slow = BackupSetup { longer: |samples| (0.3 * mean(samples)).exp(), ..setup(way, &EVEN) };
        let (bias, error) = bias(slow, served);
        assert!(bias.abs() <= ALARM * error, "{way:?}: a bias of {bias}, the standard error is {error}");
    }
}
