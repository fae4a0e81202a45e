use std::thread;

use antdt_core::Seed;
use proptest::prelude::*;

use super::*;
use crate::compress::TopK;
use crate::runtime::testing::{mem_members, on_all};

const PATIENT: std::time::Duration = std::time::Duration::from_secs(60);

fn top_k(share: f64) -> Compression {
    Compression::TopK(TopK::new(share).unwrap())
}

/// How a test's members reduce their gradients.
#[derive(Debug, Clone, Copy)]
enum Method {
    Plain,
    Kept(Compression),
    Forgotten(Compression),
}

const WORKERS: usize = 4;
const DIM: usize = 200;
const SAMPLES: usize = 64;

/// Logistic regression. What the members' data say differs by feature, and most of it cancels over all members.
struct Problem {
    features: Vec<f32>,
    labels: Vec<f32>,
}

impl Problem {
    fn generate(rank: usize) -> Self {
        let mut rng = Seed(11).derive_number(rank as u64).rng();
        let mut truth = Seed(12).rng();
        let truth: Vec<f64> = (0..DIM).map(|_| truth.normal()).collect();
        let (mut features, mut labels) = (Vec::new(), Vec::new());
        for _ in 0..SAMPLES {
            let x: Vec<f64> = (0..DIM).map(|_| rng.normal()).collect();
            let score: f64 = x.iter().zip(&truth).map(|(x, w)| x * w).sum();
            labels.push(if score > 0.0 { 1.0 } else { -1.0 });
            features.extend(x.iter().map(|x| *x as f32));
        }
        // Two features that are large and of opposite sign on two pairs of members: their gradients cancel.
        for (index, label) in labels.iter().enumerate() {
            features[index * DIM] = label * if rank.is_multiple_of(2) { 4.0 } else { -4.0 };
            features[index * DIM + 1] = -features[index * DIM];
        }
        Self { features, labels }
    }

    /// The loss, and its gradient summed over the samples.
    fn gradient(&self, weights: &[f32]) -> (f64, Vec<f32>) {
        let (mut loss, mut gradient) = (0.0, vec![0.0; DIM]);
        for (x, label) in self.features.chunks(DIM).zip(&self.labels) {
            let margin = label * x.iter().zip(weights).map(|(x, w)| x * w).sum::<f32>();
            loss += f64::from(-margin).exp().ln_1p();
            let factor = -label / (1.0 + margin.exp());
            gradient.iter_mut().zip(x).for_each(|(sum, x)| *sum += factor * x);
        }
        (loss, gradient)
    }
}

/// The mean loss over all members after so many steps.
fn train(method: Method, steps: usize) -> f64 {
    let losses = on_all(mem_members(WORKERS as u32).0, PATIENT, |me, communicator| {
        let problem = Problem::generate(me.0 as usize);
        let mut weights = vec![0.0_f32; DIM];
        let mut compressor = match method {
            Method::Plain => None,
            Method::Kept(form) | Method::Forgotten(form) => Some(Compressor::new(form)),
        };
        for _ in 0..steps {
            let mut gradient = problem.gradient(&weights).1;
            match &mut compressor {
                None => communicator.all_reduce(&mut gradient, crate::ReduceOp::Sum).unwrap(),
                Some(compressor) => {
                    compressor.all_reduce(communicator, &mut gradient).unwrap();
                    if let Method::Forgotten(form) = method {
                        *compressor = Compressor::new(form);
                    }
                }
            }
            weights.iter_mut().zip(&gradient).for_each(|(w, g)| *w -= 5e-4 * g);
        }
        let mut loss = [problem.gradient(&weights).0];
        communicator.all_reduce(&mut loss, crate::ReduceOp::Sum).unwrap();
        loss[0] / (WORKERS * SAMPLES) as f64
    });
    assert!(losses.iter().all(|loss| loss.to_bits() == losses[0].to_bits()), "{losses:?}");
    losses[0]
}

#[test]
fn error_feedback_makes_training_reach_the_loss_of_plain_training_and_nothing_else_does() {
    const STEPS: usize = 400;
    let plain = train(Method::Plain, STEPS);
    let start = std::f64::consts::LN_2;
    assert!(plain < start / 4.0, "there is something to learn: {plain}");
    let bf16 = train(Method::Kept(Compression::Bf16), STEPS);
    assert!((bf16 - plain).abs() < 0.01 * start, "bf16: {bf16}, plain: {plain}");
    let kept = train(Method::Kept(top_k(0.01)), STEPS);
    assert!((kept - plain).abs() < 0.05 * start, "one in a hundred: {kept}, plain: {plain}");
    let forgotten = train(Method::Forgotten(top_k(0.01)), STEPS);
    assert!(forgotten > plain + 0.5 * start, "without what is kept: {forgotten}, plain: {plain}");
}

#[test]
fn bf16_is_within_its_bound_of_the_exact_sum_for_any_number_of_ranks() {
    for world in 1..=6 {
        for len in [0, 1, 5, 64, 101] {
            let gradient = |rank: u32| -> Vec<f32> {
                let mut rng = Seed(u64::from(rank)).rng();
                (0..len).map(|_| rng.normal() as f32).collect()
            };
            let results = on_all(mem_members(world).0, PATIENT, |me, communicator| {
                let mut data = gradient(me.0);
                Compressor::new(Compression::Bf16).all_reduce(communicator, &mut data).unwrap();
                data
            });
            for i in 0..len {
                let all: Vec<f64> = (0..world).map(|rank| f64::from(gradient(rank)[i])).collect();
                let (exact, magnitude) = (all.iter().sum::<f64>(), all.iter().map(|x| x.abs()).sum::<f64>());
                // Each operand is rounded once, and the total once, by 1/256 of itself each.
                let error = (f64::from(results[0][i]) - exact).abs();
                assert!(error <= magnitude / 126.0, "{error} of {magnitude}, {world} ranks");
                assert!(results.iter().all(|data| data[i].to_bits() == results[0][i].to_bits()));
            }
        }
    }
}

#[test]
fn members_that_disagree_all_fail_and_change_nothing() {
    for (usual, odd, odd_len) in [
        (Compression::Bf16, Compression::Bf16, 11),
        (top_k(0.5), top_k(0.5), 11),
        (Compression::Bf16, top_k(0.5), 10),
    ] {
        let results = on_all(mem_members(3).0, PATIENT, |me, communicator| {
            let (form, len) = if me.0 == 1 { (odd, odd_len) } else { (usual, 10) };
            let (mut data, mut compressor) = (vec![1.0; len], Compressor::new(form));
            let result = compressor.all_reduce(communicator, &mut data);
            assert_eq!((data, compressor), (vec![1.0; len], Compressor::new(form)));
            result
        });
        let told = |result: &Result<(), _>| matches!(result, Err(CollectiveError::Mismatch { .. }));
        assert!(results.iter().all(told), "{results:?}");
    }
}

#[test]
fn residuals_move_to_the_next_group_and_a_lost_member_changes_nothing() {
    let mut compressors: Vec<Compressor> = vec![Compressor::new(top_k(0.5)); 3];
    let run = |compressors: &mut [Compressor], lost: bool| -> Vec<Result<Vec<f32>, CollectiveError>> {
        let (transports, _aborts) = mem_members(compressors.len() as u32);
        thread::scope(|scope| {
            let members: Vec<_> = transports
                .into_iter()
                .zip(compressors)
                .map(|(transport, compressor)| {
                    scope.spawn(move || {
                        let mut communicator =
                            crate::ScheduledCommunicator::new(transport, Default::default());
                        let mut data = vec![2.0, 1.0];
                        if lost && communicator.group().me().0 == 0 {
                            return Ok(data);
                        }
                        compressor.all_reduce(&mut communicator, &mut data).map(|()| data)
                    })
                })
                .collect();
            members.into_iter().map(|member| member.join().unwrap()).collect()
        })
    };
    assert!(run(&mut compressors, false).into_iter().all(|data| data == Ok(vec![6.0, 0.0])));
    let kept: Vec<Compressor> = compressors.clone();
    assert!(kept.iter().all(|compressor| compressor.feedback().residual() == [0.0, 1.0]));
    let results = run(&mut compressors, true);
    assert!(results[1..].iter().all(Result::is_err), "{results:?}");
    assert_eq!(compressors, kept);
    assert!(run(&mut compressors[1..], false).into_iter().all(|data| data == Ok(vec![4.0, 0.0])));
    // The third time the places that were never sent are as large as those that are; the first wins.
    let last = run(&mut compressors[..1], false);
    assert_eq!(last[0], Ok(vec![2.0, 2.0]), "alone, all that was kept comes out");
}

#[test]
fn a_weighted_mean_counts_samples_and_without_any_nothing_is_lost() {
    let results = on_all(mem_members(3).0, PATIENT, |me, communicator| {
        let mut compressor = Compressor::new(Compression::Bf16);
        let mut data = [if me.0 == 0 { f32::NAN } else { me.0 as f32 * 8.0 }; 4];
        let none = compressor.weighted_mean(communicator, &mut data, 0.0).unwrap();
        assert_eq!(none, WeightedMean::NoWeight);
        let mean = compressor.weighted_mean(communicator, &mut data, f64::from(me.0)).unwrap();
        assert_eq!(mean, WeightedMean::Averaged { total: 3.0 });
        let wrong = if me.0 == 2 { -1.0 } else { 1.0 };
        assert!(compressor.weighted_mean(communicator, &mut [1.0; 4], wrong).is_err());
        data
    });
    // (1·8 + 2·16) / 3, and 40 has few enough bits.
    assert!(results.iter().all(|data| *data == [40.0 / 3.0; 4]), "{results:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn sums_received_and_residuals_kept_add_up_to_all_gradients(
        world in 1_u32..6,
        len in 0_usize..40,
        steps in 1_usize..12,
        seed in any::<u64>(),
    ) {
        for form in [Compression::Bf16, top_k(0.1)] {
            let gradient = |rank: u32, step: usize| -> Vec<f32> {
                let mut rng = Seed(seed).derive_number(u64::from(rank)).derive_number(step as u64).rng();
                (0..len).map(|_| rng.normal() as f32).collect()
            };
            let results = on_all(mem_members(world).0, PATIENT, |me, communicator| {
                let (mut compressor, mut received) = (Compressor::new(form), vec![0.0_f64; len]);
                for step in 0..steps {
                    let mut data = gradient(me.0, step);
                    compressor.all_reduce(communicator, &mut data).unwrap();
                    received.iter_mut().zip(&data).for_each(|(sum, value)| *sum += f64::from(*value));
                }
                (received, compressor.feedback().residual().to_vec())
            });
            for i in 0..len {
                let kept: f64 = results.iter().map(|(_, kept)| f64::from(kept[i])).sum();
                let exact: f64 =
                    (0..world).map(|r| (0..steps).map(|s| f64::from(gradient(r, s)[i])).sum::<f64>()).sum();
                let error = (results[0].0[i] + kept - exact).abs();
                prop_assert!(error < 1e-5 * f64::from(world) * steps as f64, "{:?}: {}", form, error);
            }
            prop_assert!(results.iter().all(|(received, _)| *received == results[0].0));
        }
    }
}
