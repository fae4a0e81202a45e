use proptest::prelude::*;

use super::*;

fn sent(compression: Compression, values: &mut [f32]) -> Vec<f32> {
    let mut bytes = Vec::new();
    match compression {
        Compression::Bf16 => {
            bf16::encode(values, &mut bytes);
            bf16::decode(&bytes, values.len()).unwrap().collect()
        }
        Compression::TopK(top_k) => {
            top_k.encode(values, &mut bytes);
            let mut sent = vec![0.0; values.len()];
            top_k::add(&bytes, &mut sent).unwrap();
            sent
        }
    }
}

fn forms() -> [Compression; 3] {
    [
        Compression::Bf16,
        Compression::TopK(TopK::new(0.1).unwrap()),
        Compression::TopK(TopK::new(1.0).unwrap()),
    ]
}

#[test]
fn a_share_is_above_nothing_and_at_most_all() {
    for share in [0.0, -0.1, 1.1, f64::NAN] {
        assert!(TopK::new(share).is_err(), "{share}");
    }
    for (share, len, count) in
        [(0.01, 0, 0), (0.01, 1, 1), (0.01, 100, 1), (0.01, 101, 2), (1.0, 7, 7), (1e-9, 7, 1)]
    {
        assert_eq!(TopK::new(share).unwrap().count(len), count, "{share} of {len}");
    }
}

#[test]
fn the_first_among_equals_is_chosen_and_nan_before_all() {
    let half = TopK::new(0.5).unwrap();
    assert_eq!(half.choose(&[1.0, -1.0, 1.0, -1.0]), [0, 1]);
    assert_eq!(half.choose(&[0.5, -3.0, 2.0, 0.0]), [1, 2]);
    assert_eq!(half.choose(&[f32::INFINITY, 1.0, f32::NAN, -f32::INFINITY]), [0, 2]);
    assert_eq!(half.choose(&[]), [0_u32; 0]);
}

#[test]
fn bytes_that_are_no_gradient_are_refused() {
    let mut into = [0.0; 4];
    assert_eq!(top_k::add(&[0; 7], &mut into), Err(PayloadError::Entries { got: 7, entry: 8 }));
    let entry = |places: [u32; 2]| bytemuck::cast_slice::<u32, u8>(&[places[0], places[1], 0, 0]).to_vec();
    assert_eq!(top_k::add(&entry([0, 3]), &mut into), Ok(()));
    for (places, before) in [([1, 1], 1), ([2, 1], 2), ([0, 4], 0)] {
        let error = top_k::add(&entry(places), &mut into);
        assert_eq!(
            error,
            Err(PayloadError::Order { place: u64::from(places[1]), before: Some(before), len: 4 })
        );
    }
    assert!(matches!(bf16::decode(&[0; 7], 4).map(drop), Err(PayloadError::Length { got: 7, expected: 8 })));
}

#[test]
fn a_value_that_is_not_finite_spoils_one_step_only() {
    for form in forms() {
        let mut feedback = ErrorFeedback::default();
        let mut values = feedback.compensate(&[f32::NAN, f32::INFINITY, f32::MAX, 1.0]).unwrap();
        let out = sent(form, &mut values);
        assert!(out[0].is_nan(), "{form:?}");
        feedback.keep(values);
        assert!(feedback.residual().iter().all(|value| value.is_finite()), "{form:?}");
    }
}

#[test]
fn a_gradient_of_another_length_is_refused() {
    let mut feedback = ErrorFeedback::default();
    feedback.keep(vec![1.0; 3]);
    assert_eq!(feedback.compensate(&[1.0; 3]), Ok(vec![2.0; 3]));
    let error = feedback.compensate(&[1.0; 4]).unwrap_err();
    assert!(error.to_string().contains("4 after one of 3"), "{error}");
}

proptest! {
    #[test]
    fn sums_sent_and_residuals_add_up_to_all_gradients(
        steps in prop::collection::vec(prop::collection::vec(-100.0_f32..100.0, 30), 1..20),
    ) {
        for form in forms() {
            let mut feedback = ErrorFeedback::default();
            let (mut total_sent, mut total) = (vec![0.0_f64; 30], vec![0.0_f64; 30]);
            for gradient in &steps {
                let mut values = feedback.compensate(gradient).unwrap();
                let out = sent(form, &mut values);
                feedback.keep(values);
                for i in 0..30 {
                    total_sent[i] += f64::from(out[i]);
                    total[i] += f64::from(gradient[i]);
                }
            }
            for i in 0..30 {
                let error = total_sent[i] + f64::from(feedback.residual()[i]) - total[i];
                // Each step rounds one sum of two values below 2000.
                prop_assert!(error.abs() <= 1e-4 * steps.len() as f64, "{:?}: {}", form, error);
            }
        }
    }

    #[test]
    fn no_residual_is_larger_than_the_values_sent(values in prop::collection::vec(-9.0_f32..9.0, 1..50)) {
        let top_k = TopK::new(0.2).unwrap();
        let mut kept = values.clone();
        let out = sent(Compression::TopK(top_k), &mut kept);
        let chosen: Vec<usize> = top_k.choose(&values).into_iter().map(|place| place as usize).collect();
        prop_assert_eq!(chosen.len(), top_k.count(values.len()));
        let least = chosen.iter().map(|i| values[*i].abs()).fold(f32::INFINITY, f32::min);
        for i in 0..values.len() {
            prop_assert_eq!(out[i] + kept[i], values[i]);
            prop_assert!(kept[i].abs() <= least);
        }
        let mut kept = values.clone();
        for (sent, value) in sent(Compression::Bf16, &mut kept).into_iter().zip(&values) {
            prop_assert!((sent - value).abs() <= value.abs() / 256.0 + f32::MIN_POSITIVE);
        }
    }
}
