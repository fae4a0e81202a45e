//! The model beside one on the host, over the kernels that are built for this machine.

use antdt_collective::runtime::flat::FlatShape;
use antdt_core::{ParamGroup, ParamLayout, Seed, TableSpec};
use antdt_gpu::runtime::flat::testing::{EmulatedGpu, EmulatedTensor};
use antdt_gpu::runtime::rows::testing::HostKernels;

use super::*;
use crate::gradient::SparseGradient;
use crate::optimizer::{Optimizer, REGISTRY, Update};
use crate::rule::UpdateRule;
use crate::runtime::hot::{Dense, DenseSums, HotReplica};

const ROWS: u64 = 12;
const DIM: usize = 3;

fn kernels() -> Option<HostKernels> {
    HostKernels::build().map_err(|why| println!("skipped, not here: {why}")).ok()
}

/// Groups of all kinds.
fn layout() -> ParamLayout {
    let groups = vec![
        ParamGroup::trainable("w", 40),
        ParamGroup::trainable("bias", 3).without_decay(),
        ParamGroup::state("mean", 7),
        ParamGroup::trainable("v", 150),
    ];
    ParamLayout::new(groups, vec![TableSpec::new("table", ROWS, DIM, 0.5)]).unwrap()
}

fn rule(name: &str, settings: &[(&str, &str)]) -> UpdateRule {
    let settings = settings.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    let optimizer = REGISTRY.build(name, &settings).unwrap();
    UpdateRule { rate: 0.1, decay: 0.003, full_batch: Some(20), ..UpdateRule::new(optimizer) }
}

fn replica(rule: &UpdateRule) -> Replica {
    let layout = layout();
    // Some are so small that they are dropped where they decay and have no gradient.
    let small = |at: usize| if at.is_multiple_of(2) { 1e-38 } else { 0.25 - at as f32 / 64.0 };
    let dense = (0..layout.dense_len()).map(small).collect();
    Replica::new(&layout, rule, Seed(9), dense).unwrap()
}

/// Sums of all sizes, some 0, some beyond what floats hold.
fn sums(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = Seed(seed).rng();
    let mut number = || match rng.below(14) {
        0 => 0.0,
        1 => 1e-41,
        2 => 1e30,
        3 => -1e-38,
        _ => rng.normal() as f32 * 16.0,
    };
    (0..len).map(|_| number()).collect()
}

/// A step on both, with the same sums, which lie on the GPU for the one.
fn step(gpu: &EmulatedGpu, lifted: &mut HotReplica, plain: &mut Replica, seed: u64, samples: u64) {
    let layout = layout();
    let dense = sums(seed, layout.dense_len());
    let touched: Vec<u64> = (0..ROWS).filter(|row| (row + seed).is_multiple_of(3)).collect();
    let rows = SparseGradient { values: sums(seed + 1, touched.len() * DIM), rows: touched };
    // Each group apart, as they lie in buckets.
    let tensors: Vec<_> = layout
        .ranges()
        .map(|(place, _)| {
            let tensor = gpu.tensor(place.len()).unwrap();
            tensor.compute(&dense[place]).unwrap();
            tensor
        })
        .collect();
    let addresses: Vec<u64> = tensors.iter().map(EmulatedTensor::address).collect();
    lifted.apply_part(DenseSums::Device(&addresses), &rows, samples, None).unwrap();
    plain.apply(&dense, &rows, samples).unwrap();
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_model_whose_flat_vector_is_on_a_gpu_has_the_bits_of_one_on_the_host() {
    let Some(kernels) = kernels() else { return };
    for (name, settings) in [
        ("sgd", &[][..]),
        ("momentum", &[("nesterov", "true")]),
        ("adagrad", &[]),
        ("adam", &[]),
        ("adamw", &[]),
    ] {
        let gpu = EmulatedGpu::start(&kernels, true).unwrap();
        let rule = rule(name, settings);
        let (mut plain, mut lifted) = (replica(&rule), HotReplica::from(replica(&rule)));
        lifted.lift(gpu.flat(lifted.flat_shape().unwrap()).unwrap()).unwrap();
        let mut kept = None;
        for number in 0..24_u64 {
            // A last batch is small, and one without samples changes nothing.
            step(&gpu, &mut lifted, &mut plain, number, [32, 20, 7, 0][number as usize % 4]);
            if number % 5 == 2 || number == 0 {
                assert_eq!(bits(lifted.dense().unwrap()), bits(plain.dense()), "{name}, step {number}");
            }
            if number == 7 {
                assert!(
                    lifted.settle().unwrap().export() == plain.export(),
                    "{name}: what is settled differs"
                );
                kept = Some((plain.portion(), plain.trained(), plain.clone()));
            }
            if number == 12 {
                let (portion, trained, at) = kept.clone().unwrap();
                lifted.restore(&portion, true).unwrap();
                lifted.set_trained(trained);
                plain = at;
            }
            if number == 17 {
                let (_, _, at) = kept.clone().unwrap();
                lifted.replace(at.clone()).unwrap();
                plain = at;
            }
            lifted.set_rate_share(1.0 + number as f32 / 8.0);
            plain.set_rate_share(1.0 + number as f32 / 8.0);
        }
        let mut ours = Vec::new();
        lifted.gather(&[0, 3, 5], &mut ours).unwrap();
        let mut theirs = Vec::new();
        plain.gather(&[0, 3, 5], &mut theirs).unwrap();
        assert_eq!(bits(&ours), bits(&theirs), "{name}");
        assert!(lifted.into_settled().unwrap().export() == plain.export(), "{name}: the end differs");
        assert_eq!(gpu.gradients_copied(), 0, "{name}");
    }
}

#[test]
fn a_norm_on_a_gpu_has_the_bits_of_one_on_the_host_at_any_length() {
    let Some(kernels) = kernels() else { return };
    let gpu = EmulatedGpu::start(&kernels, true).unwrap();
    let longest = 3 * 8192 + 17;
    let flat = gpu.flat(FlatShape { len: longest, state_per_value: 0 }).unwrap();
    // Within a strand, at its end, at the end of a block, and beyond it.
    for len in [0, 1, 15, 16, 17, 511, 8191, 8192, 8193, 2 * 8192, longest] {
        let tensor = gpu.tensor(len).unwrap();
        for seed in 0..3 {
            let values = sums(seed, len);
            tensor.compute(&values).unwrap();
            let ours = flat.square_sum(tensor.address(), len).unwrap();
            assert_eq!(ours.to_bits(), square_sum(&values).to_bits(), "{len} values");
        }
    }
    // What is no number is none on either side.
    for wrong in [f32::NAN, f32::INFINITY] {
        let tensor = gpu.tensor(40).unwrap();
        let values: Vec<f32> = (0..40).map(|at| if at == 33 { wrong } else { 1.0 }).collect();
        tensor.compute(&values).unwrap();
        let (ours, theirs) = (flat.square_sum(tensor.address(), 40).unwrap(), square_sum(&values));
        assert!(ours.is_nan() && theirs.is_nan() || ours == theirs, "{ours}, {theirs}");
    }
}

#[test]
fn a_gradient_is_clipped_on_a_gpu_as_on_the_host_and_none_of_it_is_copied() {
    let Some(kernels) = kernels() else { return };
    // Sums of 1e30 among the others: beyond every limit; and a limit that no gradient comes to.
    for (limit, clips) in [(0.5, true), (f32::MAX, false)] {
        let gpu = EmulatedGpu::start(&kernels, true).unwrap();
        let clipped = UpdateRule { clip_norm: Some(limit), ..rule("adam", &[]) };
        let (mut plain, mut lifted) = (replica(&clipped), HotReplica::from(replica(&clipped)));
        let mut free = replica(&rule("adam", &[]));
        lifted.lift(gpu.flat(lifted.flat_shape().unwrap()).unwrap()).unwrap();
        for number in 0..8_u64 {
            let samples = [32, 0][number as usize % 2];
            step(&gpu, &mut lifted, &mut plain, number, samples);
            free.apply(&sums(number, layout().dense_len()), &SparseGradient::default(), samples).unwrap();
            assert_eq!(bits(lifted.dense().unwrap()), bits(plain.dense()), "step {number}");
        }
        assert_eq!(plain.dense() != free.dense(), clips, "{limit}");
        assert!(lifted.into_settled().unwrap().export() == plain.export(), "{limit}");
        assert_eq!(gpu.gradients_copied(), 0);
    }
}

#[test]
fn rows_count_in_a_norm_on_a_gpu_and_statistics_do_not() {
    let Some(kernels) = kernels() else { return };
    let gpu = EmulatedGpu::start(&kernels, true).unwrap();
    let clipped = UpdateRule { clip_norm: Some(0.5), ..rule("sgd", &[]) };
    let (mut plain, mut lifted) = (replica(&clipped), HotReplica::from(replica(&clipped)));
    lifted.lift(gpu.flat(lifted.flat_shape().unwrap()).unwrap()).unwrap();
    // Either would change the norm by far more than what is rounded.
    let rows = SparseGradient { rows: vec![2], values: vec![40.0; DIM] };
    let mut dense = vec![1.0; layout().dense_len()];
    let tensors: Vec<_> = layout()
        .ranges()
        .map(|(place, group)| {
            let value = if group.kind == GroupKind::State { 70.0 } else { 1.0 };
            dense[place.clone()].fill(value);
            let tensor = gpu.tensor(place.len()).unwrap();
            tensor.compute(&vec![value; place.len()]).unwrap();
            tensor
        })
        .collect();
    let addresses: Vec<u64> = tensors.iter().map(EmulatedTensor::address).collect();
    lifted.apply_part(DenseSums::Device(&addresses), &rows, 4, None).unwrap();
    plain.apply(&dense, &rows, 4).unwrap();
    assert!(lifted.into_settled().unwrap().export() == plain.export());
}

#[test]
fn rows_that_are_hot_and_a_flat_vector_that_is_lifted_take_one_step() {
    let Some(kernels) = kernels() else { return };
    let gpu = EmulatedGpu::start(&kernels, true).unwrap();
    let rule = rule("adam", &[]);
    let (mut plain, mut lifted) = (replica(&rule), HotReplica::from(replica(&rule)));
    lifted.lift(gpu.flat(lifted.flat_shape().unwrap()).unwrap()).unwrap();
    lifted.heat(kernels.rows(lifted.shape().unwrap(), 5).unwrap()).unwrap();
    for number in 0..6 {
        let mut batch = Vec::new();
        lifted.load(&[1, 2, 7], &mut batch).unwrap();
        let (dense, rows) = lifted.parameters();
        assert!(matches!(dense, Dense::Device(_)) && rows.is_some() && batch.is_empty());
        step(&gpu, &mut lifted, &mut plain, number, 32);
    }
    assert!(lifted.settle().unwrap().export() == plain.export());
}

/// Steps that no kernel takes.
#[derive(Debug)]
struct Own;

impl Optimizer for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    fn settings(&self) -> std::collections::BTreeMap<String, String> {
        std::collections::BTreeMap::new()
    }

    fn defaults(&self) -> crate::optimizer::Defaults {
        crate::optimizer::Defaults { rate: 0.1, decay: 0.0 }
    }

    fn state_per_value(&self) -> usize {
        0
    }

    fn begin(&self, _: UpdateStep) -> Update<'_> {
        Box::new(|_, _, _| {})
    }
}

#[test]
fn a_flat_vector_that_must_stay_on_the_host_says_why() {
    let Some(kernels) = kernels() else { return };
    let gpu = EmulatedGpu::start(&kernels, true).unwrap();
    let sgd = rule("sgd", &[]);
    let said = |replica: Replica| HotReplica::from(replica).flat_shape().unwrap_err().to_string();
    let own = said(replica(&UpdateRule::new(Box::new(Own))));
    assert!(own.contains("optimizer = own: must be one with a kernel"), "{own}");
    let empty = said(Replica::new(&ParamLayout::dense(0), &sgd, Seed(1), Vec::new()).unwrap());
    assert!(empty.contains("dense parameters of the model = 0"), "{empty}");

    let mut model = HotReplica::from(replica(&sgd));
    let wrong = model.lift(gpu.flat(FlatShape { len: 3, state_per_value: 0 }).unwrap());
    assert!(wrong.unwrap_err().to_string().contains("shape of the vector"));
    let none = SparseGradient::default();
    assert!(matches!(
        model.apply_part(DenseSums::Device(&[]), &none, 1, None),
        Err(HotError::Flat(FlatError::None(_)))
    ));
    let shape = model.flat_shape().unwrap();
    model.lift(gpu.flat(shape).unwrap()).unwrap();
    assert!(model.lift(gpu.flat(shape).unwrap()).unwrap_err().to_string().contains("a second one"));
    // Sums must come from where the vector is, for all groups.
    let dense = vec![0.0; layout().dense_len()];
    assert!(matches!(
        model.apply_part(DenseSums::Host(&dense), &none, 1, None),
        Err(HotError::Flat(FlatError::None(_)))
    ));
    let groups = layout().groups().len();
    for sums in [vec![], vec![0; groups - 1], vec![0; groups + 1]] {
        let refused = model.apply_part(DenseSums::Device(&sums), &none, 1, None);
        assert!(matches!(refused, Err(HotError::Flat(FlatError::Length { .. }))), "{sums:?}: {refused:?}");
    }
    assert!(model.settle().unwrap().export() == replica(&sgd).export(), "nothing has changed");
}
