//! Comparison of optimizers with plain implementations in double precision.

use antdt_core::Seed;

use super::{Optimizer, UpdateStep};

/// A parameter and what a plain model keeps for it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Model {
    pub(crate) value: f64,
    pub(crate) first: f64,
    pub(crate) second: f64,
}

/// Takes 60 steps with random sums of gradients over 16 samples. Returns the parameters of both.
pub(crate) fn follow(
    optimizer: &dyn Optimizer,
    rate: f32,
    decay: f32,
    step: impl Fn(&mut Model, f64, f64, f64, u64),
) -> Vec<(f32, f64)> {
    const LEN: usize = 37;
    let mut rng = Seed(1).rng();
    let mut values: Vec<f32> = (0..LEN).map(|_| rng.normal() as f32).collect();
    let mut models: Vec<Model> =
        values.iter().map(|value| Model { value: f64::from(*value), ..Model::default() }).collect();
    let kept = |number: usize| if optimizer.state_per_value() > number { LEN } else { 0 };
    let (mut first, mut second) = (vec![0.0; kept(0)], vec![0.0; kept(1)]);
    for number in 1..=60 {
        let sums: Vec<f32> = (0..LEN).map(|_| rng.normal() as f32 * 16.0).collect();
        let update = optimizer.begin(UpdateStep { number, rate, scale: 1.0 / 16.0, decay });
        update(&mut values, [&mut first, &mut second], &sums);
        for (model, sum) in models.iter_mut().zip(&sums) {
            step(model, f64::from(*sum) / 16.0, f64::from(rate), f64::from(decay), number);
        }
    }
    values.into_iter().zip(models.into_iter().map(|model| model.value)).collect()
}

/// Checks that both agree to single precision.
pub(crate) fn close(values: &[(f32, f64)]) {
    for (value, model) in values {
        assert!((f64::from(*value) - model).abs() < 1e-5, "{value} {model}");
    }
}
