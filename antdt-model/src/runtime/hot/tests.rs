//! The table beside one that was never hot, over the kernels that are built for this machine.

use antdt_collective::runtime::rows::testing::HostKernels;
use antdt_core::{Seed, TableSpec};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::*;
use crate::optimizer::{Defaults, REGISTRY, Update};

const ROWS: u64 = 40;
const DIM: usize = 5;

fn table(optimizer: &dyn Optimizer) -> SparseTable {
    SparseTable::new(TableSpec::new("table", ROWS, DIM, 0.5), optimizer, Seed(9), 0, 1).unwrap()
}

/// All that a table keeps, to the bit.
fn bits(table: &SparseTable) -> Vec<(u64, Vec<u32>, Vec<u32>)> {
    let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect();
    table.stored().map(|(row, values, state)| (row, bits(values), bits(state))).collect()
}

#[derive(Debug, Clone, Copy)]
struct Step {
    seed: u32,
    number: u64,
    /// What else happens after it.
    then: u8,
}

/// Takes steps on both, and compares them.
fn follow(kernels: &HostKernels, name: &str, settings: &[(&str, &str)], slots: u32, steps: &[Step]) {
    let settings = settings.iter().map(|(key, text)| ((*key).to_owned(), (*text).to_owned())).collect();
    let optimizer: Arc<dyn Optimizer> = REGISTRY.build(name, &settings).unwrap().into();
    let memory = kernels.rows(HotTable::shape(DIM, &*optimizer), slots).unwrap();
    let mut plain = table(&*optimizer);
    let mut hot = HotTable::new(plain.clone(), Arc::clone(&optimizer), memory).unwrap();
    for Step { seed, number, then } in steps.iter().copied() {
        let mut rng = Seed(u64::from(seed)).rng();
        let mut some = |one_of: u64| -> Vec<u64> { (0..ROWS).filter(|_| rng.below(one_of) == 0).collect() };
        // Some rows are touched in most steps.
        let mut touched: Vec<u64> = some(6).into_iter().chain(0..5).collect();
        touched.sort_unstable();
        touched.dedup();
        let (changed, set) = (some(3), some(8));
        hot.batch(&touched).unwrap();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        hot.gathered(&mut ours).unwrap();
        plain.gather(&touched, &mut theirs).unwrap();
        let differ = |(a, b): (&f32, &f32)| a.to_bits() != b.to_bits();
        assert_eq!(ours.len(), theirs.len());
        assert!(!ours.iter().zip(&theirs).any(differ), "{name}: a batch differs");
        // Sums of all sizes, some 0, some beyond what floats hold.
        let mut number_of = |_| match rng.below(12) {
            0 => 0.0,
            1 => 1e-41,
            2 => 1e30,
            _ => rng.normal() as f32 * 16.0,
        };
        let sums: Vec<f32> = (0..changed.len() * DIM).map(&mut number_of).collect();
        let step = UpdateStep { number, rate: 0.1, scale: 1.0 / 48.0, decay: 0.003 };
        hot.apply(&changed, &sums, step).unwrap();
        plain.apply(&changed, &sums, &optimizer.begin(step)).unwrap();
        match then % 5 {
            0 => assert_eq!(bits(hot.settle().unwrap()), bits(&plain), "{name}: the settled table differs"),
            1 => {
                let values: Vec<f32> = (0..set.len() * DIM).map(&mut number_of).collect();
                hot.set_rows(&set, &values).unwrap();
                plain.set_rows(&set, &values).unwrap();
            }
            2 => {
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                hot.gather(&set, &mut ours).unwrap();
                plain.gather(&set, &mut theirs).unwrap();
                assert!(!ours.iter().zip(&theirs).any(differ), "{name}: rows read on the host differ");
            }
            _ => {}
        }
    }
    assert_eq!(bits(hot.settle().unwrap()), bits(&plain), "{name}: the table at the end differs");
    assert!(hot.hot_rows() <= slots as usize);
}

#[test]
fn a_table_with_hot_rows_has_the_bits_of_one_without_after_any_steps() {
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
    let step = (any::<u32>(), 1_u64..1000, any::<u8>());
    let step = step.prop_map(|(seed, number, then)| Step { seed, number, then });
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
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let kernels = match HostKernels::build() {
        Ok(kernels) => kernels,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    let adagrad: Arc<dyn Optimizer> = REGISTRY.by_name("adagrad").unwrap().into();
    let memory = || kernels.rows(HotTable::shape(DIM, &*adagrad), 3).unwrap();
    let step = UpdateStep { number: 1, rate: 0.1, scale: 1.0, decay: 0.0 };
    let mut hot = HotTable::new(table(&*adagrad), Arc::clone(&adagrad), memory()).unwrap();
    hot.batch(&[1, 2]).unwrap();
    hot.apply(&[1, 9], &[1.0; 2 * DIM], step).unwrap();
    let before = bits(hot.settle().unwrap());
    let refused = [
        hot.batch(&[1, ROWS]).map(drop),
        hot.batch(&[2, 1]).map(drop),
        hot.apply(&[1, 1], &[1.0; 2 * DIM], step),
        hot.apply(&[1, 2], &[1.0; DIM], step),
        hot.gather(&[ROWS], &mut Vec::new()),
        hot.set_rows(&[1, 2], &[1.0; DIM]),
    ];
    for refused in refused {
        assert!(matches!(refused, Err(HotError::Table(_))), "{refused:?}");
    }
    assert_eq!(bits(hot.settle().unwrap()), before);

    let part = SparseTable::new(TableSpec::new("table", ROWS, DIM, 0.5), &*adagrad, Seed(9), 0, 2).unwrap();
    let said = HotTable::new(part, Arc::clone(&adagrad), memory()).unwrap_err().to_string();
    assert_eq!(said, "hot rows of = a partition: must be a whole table");
    let adam: Arc<dyn Optimizer> = REGISTRY.by_name("adam").unwrap().into();
    let said = HotTable::new(table(&*adam), adam, memory()).unwrap_err().to_string();
    assert!(said.starts_with("shape of slots = "), "{said}");
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
    let kernels = match HostKernels::build() {
        Ok(kernels) => kernels,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    let memory = kernels.rows(HotTable::shape(DIM, &Own), 3).unwrap();
    let said = HotTable::new(table(&Own), Arc::new(Own), memory).unwrap_err().to_string();
    assert!(said.starts_with("optimizer = own: must be one with a kernel"), "{said}");
}
