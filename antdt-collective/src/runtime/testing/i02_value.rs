//! I2: a reduction is as exact as its type allows.

use super::case::{Case, Number, cases, for_each, in_order, numbers, with_element};
use super::members::{AnyTransport, Make, PATIENT, on_all};
use crate::op::ReduceOp;
use crate::schedule::Choice;

/// Checks invariant I2: sums and products differ from the `f64` result by at most the rounding errors of one
/// operation per member; integers, minima, maxima and means of equal numbers are exact; and one NaN or
/// infinity reaches all members.
///
/// # Panics
/// If the invariant is broken.
pub fn i02_value(make: &Make<'_>) {
    for_each(64, &cases(), |case| with_element!(case.element, E => within_bounds::<E>(make, &case)));
    for world in 1..=8 {
        spreads(make(world).0);
    }
    for world in [1, 2, 4, 8] {
        on_all(make(world).0, PATIENT, |_, communicator| {
            for choice in Choice::ALL {
                // With bits to spare, so that no partial sum is rounded.
                let same: Vec<f32> = (1..=67_u8).map(|i| f32::from(i) / 64.0).collect();
                let mut data = same.clone();
                communicator.all_reduce_by(choice, &mut data, ReduceOp::Mean).expect("all members reduce");
                assert_eq!(data, same, "{choice}: the mean of {world} equal numbers");
            }
        });
    }
}

fn within_bounds<E: Number>(make: &Make<'_>, case: &Case) {
    let results = on_all(make(case.world).0, PATIENT, |me, communicator| {
        Choice::ALL.map(|choice| {
            let mut data = numbers::<E>(case, me.0);
            communicator.all_reduce_by(choice, &mut data, case.op).expect("all members reduce");
            data
        })
    });
    let exact = in_order::<E>(case, numbers);
    let operands: Vec<Vec<E>> = (0..case.world).map(|rank| numbers(case, rank)).collect();
    let rounds = E::EPSILON > 0.0 && !matches!(case.op, ReduceOp::Min | ReduceOp::Max);
    for (choice, result) in results.iter().flat_map(|of_rank| Choice::ALL.into_iter().zip(of_rank)) {
        assert_eq!(result.len(), case.len);
        for (i, value) in result.iter().enumerate() {
            if !rounds {
                assert_eq!(*value, exact[i], "{choice}: element {i} of {case:?}");
                continue;
            }
            let column = || operands.iter().map(|operand| operand[i].value());
            let (reference, scale) = match case.op {
                ReduceOp::Prod => (column().product::<f64>(), column().product::<f64>().abs()),
                ReduceOp::Mean => {
                    let world = f64::from(case.world);
                    (column().sum::<f64>() / world, column().map(f64::abs).sum::<f64>() / world)
                }
                _ => (column().sum::<f64>(), column().map(f64::abs).sum::<f64>()),
            };
            let bound = f64::from(case.world) * 2.0 * (E::EPSILON * scale + E::TINY);
            let off = (value.value() - reference).abs();
            assert!(off <= bound, "{choice}: element {i} is {value:?}, not {reference} in {case:?}");
        }
    }
}

// A number that is none, and an infinity, at one member.
fn spreads(transports: Vec<AnyTransport>) {
    let world = transports.len();
    on_all(transports, PATIENT, |me, communicator| {
        for choice in Choice::ALL {
            for op in ReduceOp::ALL {
                for odd in [0, world - 1] {
                    let mut data = vec![1.0_f32; 2 * world + 1];
                    if me.0 as usize == odd {
                        data[world - 1] = f32::NAN;
                        data[2 * world] = if op == ReduceOp::Min { f32::NEG_INFINITY } else { f32::INFINITY };
                    }
                    communicator.all_reduce_by(choice, &mut data, op).expect("all members reduce");
                    for (i, value) in data.iter().enumerate() {
                        let right = match i {
                            i if i == world - 1 => value.is_nan(),
                            i if i == 2 * world => value.is_infinite(),
                            _ => value.is_finite(),
                        };
                        assert!(right, "{choice} {op} of {world}: element {i} is {value}");
                    }
                }
            }
        }
    });
}
