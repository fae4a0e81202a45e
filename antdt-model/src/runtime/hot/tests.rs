//! The model beside one that was never hot, over the kernels that are built for this machine.

use antdt_core::{ParamLayout, Seed, TableSpec};
use antdt_gpu::runtime::rows::testing::{FailingRows, HostKernels};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::optimizer::{Defaults, Optimizer, REGISTRY, Update};
use crate::rule::UpdateRule;

const ROWS: u64 = 40;
const DIM: usize = 5;
const DENSE: usize = 3;

fn layout() -> ParamLayout {
    ParamLayout::dense(DENSE).with_table(TableSpec::new("table", ROWS, DIM, 0.5)).unwrap()
}

fn rule(optimizer: Box<dyn Optimizer>) -> UpdateRule {
    UpdateRule { rate: 0.1, decay: 0.003, clip_norm: Some(40.0), ..UpdateRule::new(optimizer) }
}

fn replica(rule: &UpdateRule) -> Replica {
    Replica::new(&layout(), rule, Seed(9), vec![0.25; DENSE]).unwrap()
}

fn differ(ours: &[f32], theirs: &[f32]) -> bool {
    ours.len() != theirs.len() || ours.iter().zip(theirs).any(|(a, b)| a.to_bits() != b.to_bits())
}

fn on_host(dense: Dense<'_>) -> &[f32] {
    let Dense::Host(values) = dense else { panic!("the flat vector was not lifted") };
    values
}

#[derive(Debug, Clone, Copy)]
struct Step {
    seed: u32,
    /// What else happens after it.
    then: u8,
}

/// Takes steps on both, and compares them.
fn follow(kernels: &HostKernels, name: &str, settings: &[(&str, &str)], slots: u32, steps: &[Step]) {
    let settings = settings.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    let rule = rule(REGISTRY.build(name, &settings).unwrap());
    let mut plain = replica(&rule);
    let mut hot = HotReplica::from(plain.clone());
    hot.heat(kernels.rows(hot.shape().unwrap(), slots).unwrap()).unwrap();
    let (mut kept, first) = (plain.clone(), plain.clone());
    for Step { seed, then } in steps.iter().copied() {
        let mut rng = Seed(u64::from(seed)).rng();
        let mut some = |one_of: u64| -> Vec<u64> { (0..ROWS).filter(|_| rng.below(one_of) == 0).collect() };
        // Some rows are touched in most steps.
        let mut touched: Vec<u64> = some(6).into_iter().chain(0..5).collect();
        touched.sort_unstable();
        touched.dedup();
        let (rows, read) = (some(3), some(8));
        let (mut ours, mut theirs, mut none) = (Vec::new(), Vec::new(), Vec::new());
        hot.load(&touched, &mut none).unwrap();
        plain.gather(&touched, &mut theirs).unwrap();
        let (dense, batch) = hot.parameters();
        assert!(!differ(on_host(dense), plain.dense()), "{name}: the flat vector differs");
        let mut batch = batch.unwrap();
        assert_eq!(batch.len(), touched.len() * DIM);
        batch.read(&mut ours).unwrap();
        assert!(none.is_empty() && !differ(&ours, &theirs), "{name}: a batch differs");
        // Sums of all sizes, some 0, some beyond what floats hold.
        let mut number_of = |_| match rng.below(12) {
            0 => 0.0,
            1 => 1e-41,
            2 => 1e30,
            _ => rng.normal() as f32 * 16.0,
        };
        let dense: Vec<f32> = (0..DENSE).map(&mut number_of).collect();
        let values: Vec<f32> = (0..rows.len() * DIM).map(&mut number_of).collect();
        let (rows, samples) = (SparseGradient { rows, values }, u64::from(seed % 49));
        hot.apply_part(DenseSums::Host(&dense), &rows, samples, None).unwrap();
        plain.apply(&dense, &rows, samples).unwrap();
        match then % 7 {
            0 => {
                assert!(
                    hot.settle().unwrap().export() == plain.export(),
                    "{name}: the settled model differs"
                );
            }
            1 => {
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                hot.gather(&read, &mut ours).unwrap();
                plain.gather(&read, &mut theirs).unwrap();
                assert!(!differ(&ours, &theirs), "{name}: rows that the host reads differ");
            }
            2 => kept = plain.clone(),
            // As when a job goes back, or a model comes from another worker.
            3 => {
                hot.replace(kept.clone()).unwrap();
                plain = kept.clone();
            }
            // Rows that the portion does not have stay.
            4 => {
                let portion = kept.portion();
                assert_eq!(hot.restore(&portion, true).unwrap(), plain.restore(&portion, true).unwrap());
            }
            5 => {
                let portion = first.portion();
                assert_eq!(hot.restore(&portion, false).unwrap(), plain.restore(&portion, false).unwrap());
                hot.set_rate_share(0.5);
                plain.set_rate_share(0.5);
            }
            _ => {}
        }
    }
    assert!(hot.hot_rows() <= slots as usize);
    assert!(hot.into_settled().unwrap().export() == plain.export(), "{name}: the model at the end differs");
}

#[test]
fn a_model_with_hot_rows_has_the_bits_of_one_without_after_any_steps() {
    let kernels = match HostKernels::build() {
        Ok(kernels) => kernels,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    let optimizers: [(&str, &[(&str, &str)]); 6] = [
        ("sgd", &[]),
        ("momentum", &[]),
        ("momentum", &[("nesterov", "true"), ("momentum", "0.75")]),
        ("adagrad", &[]),
        ("adam", &[("beta2", "0.95")]),
        ("adamw", &[]),
    ];
    let step = (any::<u32>(), any::<u8>()).prop_map(|(seed, then)| Step { seed, then });
    let steps = (1_u32..ROWS as u32 + 5, proptest::collection::vec(step, 1..16));
    for (name, settings) in optimizers {
        let mut runner =
            TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
        let all = runner.run(&steps, |(slots, steps)| {
            follow(&kernels, name, settings, slots, &steps);
            Ok(())
        });
        all.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn values_that_do_not_fit_are_refused_and_change_nothing() {
    let kernels = match HostKernels::build() {
        Ok(kernels) => kernels,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    let adagrad = rule(REGISTRY.by_name("adagrad").unwrap());
    let mut hot = HotReplica::from(replica(&adagrad));
    let shape = hot.shape().unwrap();
    hot.heat(kernels.rows(shape, 3).unwrap()).unwrap();
    hot.load(&[1, 2], &mut Vec::new()).unwrap();
    let gradient = |rows: &[u64], len| SparseGradient { rows: rows.to_vec(), values: vec![1.0; len] };
    hot.apply_part(DenseSums::Host(&[1.0; DENSE]), &gradient(&[1, 9], 2 * DIM), 4, None).unwrap();
    let before = hot.settle().unwrap().export();
    let refused = [
        hot.load(&[1, ROWS], &mut Vec::new()),
        hot.load(&[2, 1], &mut Vec::new()),
        hot.apply_part(DenseSums::Host(&[1.0; DENSE]), &gradient(&[1, 1], 2 * DIM), 4, None),
        hot.apply_part(DenseSums::Host(&[1.0; DENSE]), &gradient(&[1, 2], DIM), 4, None),
        hot.apply_part(DenseSums::Host(&[1.0; DENSE + 1]), &gradient(&[1, 2], 2 * DIM), 4, None),
        hot.gather(&[ROWS], &mut Vec::new()),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(HotError::Table(_))), "{refused:?}");
    }
    assert!(hot.settle().unwrap().export() == before);
    let elsewhere = hot.parameters().1.unwrap().copy_to(0);
    assert_eq!(elsewhere, Err(HotError::Memory(RowsError::Elsewhere { address: 0 })));
    assert!(hot.settle().unwrap().export() == before);

    let other = RowShape { dim: DIM + 1, ..shape };
    let said = hot.heat(kernels.rows(other, 3).unwrap()).unwrap_err().to_string();
    assert!(said.starts_with("shape of slots = "), "{said}");
    let said = hot.heat(kernels.rows(shape, 3).unwrap()).unwrap_err().to_string();
    assert_eq!(said, "memories for hot rows = a second one: must be 1, which may have their newest values");
    let dense = Replica::new(&ParamLayout::dense(DENSE), &adagrad, Seed(9), vec![0.0; DENSE]).unwrap();
    let said = HotReplica::from(dense).shape().unwrap_err().to_string();
    assert_eq!(said, "tables of the model = 0: must be 1 for rows in the memory of a GPU");
}

#[test]
fn a_memory_that_failed_once_is_never_asked_again() {
    let kernels = match HostKernels::build() {
        Ok(kernels) => kernels,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    let rule = rule(REGISTRY.by_name("adagrad").unwrap());
    let gradient = SparseGradient { rows: vec![1, 2, 7], values: vec![1.0; 3 * DIM] };
    // All that a worker does, over fewer slots than it touches rows. Returns the first failure.
    let work = |hot: &mut HotReplica, seen: &mut Vec<f32>| -> Result<(), HotError> {
        for rows in [[1, 2, 3], [1, 4, 5], [2, 6, 7]] {
            hot.load(&rows, seen)?;
            if let (_, Some(mut batch)) = hot.parameters() {
                batch.read(seen)?;
            }
            hot.apply_part(DenseSums::Host(&[1.0; DENSE]), &gradient, 4, None)?;
        }
        hot.gather(&[1, 2], seen)?;
        hot.settle().map(|_| ())
    };
    let mut plain = HotReplica::from(replica(&rule));
    let mut due = Vec::new();
    work(&mut plain, &mut due).unwrap();
    let mut failures = 0;
    // More than it asks of the memory.
    for number in 0..20 {
        let mut hot = HotReplica::from(replica(&rule));
        let memory = kernels.rows(hot.shape().unwrap(), 2).unwrap();
        // One operation fails, and the next ones would not.
        hot.heat(Box::new(FailingRows::new(memory, number..number + 1))).unwrap();
        let mut seen = Vec::new();
        let Err(first) = work(&mut hot, &mut seen) else {
            assert!(!differ(&seen, &due));
            assert!(hot.settle().unwrap().export() == plain.settle().unwrap().export());
            continue;
        };
        failures += 1;
        let HotError::Memory(why @ RowsError::Device(_)) = first else { panic!("{first}") };
        let portion = replica(&rule).portion();
        let lost = HotError::Lost(why);
        assert!(lost.to_string().contains("the hot rows were lost"), "{lost}");
        assert_eq!(hot.load(&[1], &mut seen), Err(lost.clone()), "{number}");
        assert_eq!(hot.parameters().1.unwrap().read(&mut seen), Err(lost.clone()));
        assert_eq!(hot.parameters().1.unwrap().copy_to(0), Err(lost.clone()));
        assert_eq!(
            hot.apply_part(DenseSums::Host(&[1.0; DENSE]), &SparseGradient::default(), 4, None),
            Err(lost.clone())
        );
        assert_eq!(hot.gather(&[9], &mut seen), Err(lost.clone()));
        assert_eq!(hot.settle().map(|_| ()), Err(lost.clone()));
        assert!(hot.restore(&portion, true).unwrap_err().to_string().contains(&lost.to_string()));
        hot.replace(replica(&rule)).unwrap();
        assert_eq!(hot.load(&[1], &mut seen), Err(lost.clone()));
        assert_eq!(hot.into_settled().map(|_| ()), Err(lost));
    }
    assert!((10..20).contains(&failures), "{failures}");
}

/// An optimizer of a user's own, for which there is no kernel.
#[derive(Debug)]
struct Own;

impl Optimizer for Own {
    fn name(&self) -> &'static str {
        "own"
    }
    fn settings(&self) -> std::collections::BTreeMap<String, String> {
        std::collections::BTreeMap::new()
    }
    fn defaults(&self) -> Defaults {
        Defaults { rate: 0.1, decay: 0.0 }
    }
    fn state_per_value(&self) -> usize {
        0
    }
    fn begin(&self, _: UpdateStep) -> Update<'_> {
        Box::new(|_, _, _| {})
    }
}

#[test]
fn an_optimizer_without_a_kernel_keeps_its_rows_on_the_host() {
    let own = rule(Box::new(Own));
    let said = HotReplica::from(replica(&own)).shape().unwrap_err().to_string();
    assert!(said.starts_with("optimizer = own: must be one with a kernel"), "{said}");
    let kernels = match HostKernels::build() {
        Ok(kernels) => kernels,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    // A model that takes another one's place has its optimizer; a caller that breaks that gets an error, and nothing changes.
    let mut hot = HotReplica::from(replica(&rule(REGISTRY.by_name("sgd").unwrap())));
    hot.heat(kernels.rows(hot.shape().unwrap(), 3).unwrap()).unwrap();
    let other = replica(&own);
    hot.replace(other.clone()).unwrap();
    hot.load(&[1], &mut Vec::new()).unwrap();
    let gradient = SparseGradient { rows: vec![1, 2], values: vec![1.0; 2 * DIM] };
    assert_eq!(
        hot.apply_part(DenseSums::Host(&[1.0; DENSE]), &gradient, 4, None),
        Err(HotError::Optimizer("own"))
    );
    assert!(hot.settle().unwrap().export() == other.export());
}

#[test]
fn without_a_memory_each_call_is_the_models_own() {
    let rule = rule(REGISTRY.by_name("adam").unwrap());
    let (mut plain, mut cold) = (replica(&rule), HotReplica::from(replica(&rule)));
    let gradient = SparseGradient { rows: vec![3, 7], values: vec![2.0; 2 * DIM] };
    for samples in [8, 0, 3] {
        cold.apply_part(DenseSums::Host(&[1.0; DENSE]), &gradient, samples, None).unwrap();
        plain.apply(&[1.0; DENSE], &gradient, samples).unwrap();
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    cold.load(&[0, 3], &mut ours).unwrap();
    plain.gather(&[0, 3], &mut theirs).unwrap();
    assert_eq!(ours, theirs);
    let (dense, batch) = cold.parameters();
    assert!(batch.is_none() && !differ(on_host(dense), plain.dense()));
    assert_eq!(cold.hot_rows(), 0);
    assert!(cold.into_settled().unwrap().export() == plain.export());
}
