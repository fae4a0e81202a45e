use antdt_core::TableSpec;

use super::*;
use crate::optimizer::REGISTRY;

fn adagrad() -> UpdateRule {
    UpdateRule::named("adagrad", 0.1).unwrap()
}

fn sgd() -> UpdateRule {
    UpdateRule::named("sgd", 0.1).unwrap()
}

fn layout(table: bool) -> ParamLayout {
    let tables = table.then(|| TableSpec::new("table", 1000, 3, 0.1)).into_iter().collect();
    ParamLayout::new(ParamLayout::dense(5).groups().to_vec(), tables).unwrap()
}

fn trained(rule: &UpdateRule, table: bool) -> Replica {
    let mut replica = Replica::new(&layout(table), rule, Seed(4), vec![0.5; 5]).unwrap();
    for step in 0..3_u16 {
        let rows = if table { vec![7, 500 + u64::from(step), 999] } else { Vec::new() };
        let values = vec![f32::from(step) - 0.5; rows.len() * 3];
        replica.apply(&[1.0, -2.0, 0.0, 3.0, 4.0], &SparseGradient { rows, values }, 8).unwrap();
    }
    replica
}

fn rows_of(replica: &Replica, rows: &[u64]) -> Vec<f32> {
    let mut values = Vec::new();
    replica.gather(rows, &mut values).unwrap();
    values
}

#[test]
fn an_imported_replica_goes_on_bit_for_bit_like_the_exporter() {
    for name in REGISTRY.names() {
        let rule = &UpdateRule::named(name, 0.1).unwrap();
        for table in [false, true] {
            let mut original = trained(rule, table);
            let mut copy = Replica::import(&original.export(), &layout(table), rule, Seed(4)).unwrap();
            let rows: Vec<u64> = if table { (0..1000).collect() } else { Vec::new() };
            let gradient = SparseGradient { values: vec![0.25; rows.len() * 3], rows };
            for replica in [&mut original, &mut copy] {
                replica.apply(&[1.0; 5], &gradient, 3).unwrap();
            }
            assert_eq!(original.dense(), copy.dense());
            assert_eq!(rows_of(&original, &gradient.rows), rows_of(&copy, &gradient.rows));
            assert_eq!(original.export(), copy.export());
        }
    }
}

#[test]
fn a_replica_whose_arrays_are_copied_into_its_outline_is_the_original() {
    for name in REGISTRY.names() {
        let rule = &UpdateRule::named(name, 0.1).unwrap();
        for table in [false, true] {
            let original = trained(rule, table);
            let outline = original.outline();
            let mut copy = Replica::from_outline(&outline, &layout(table), rule, Seed(4)).unwrap();
            assert_ne!(original.export(), copy.export());
            for (into, array) in copy.arrays_mut().into_iter().zip(original.arrays()) {
                into.copy_from_slice(array);
            }
            assert_eq!(original.export(), copy.export());
            let refused = Replica::import(&outline, &layout(table), rule, Seed(4)).unwrap_err();
            assert_eq!(refused, ImportError::Format, "an outline is no model");
            let refused = Replica::from_outline(&original.export(), &layout(table), rule, Seed(4));
            assert!(matches!(refused, Err(ImportError::Format)));
        }
    }
}

#[test]
fn a_damaged_or_foreign_model_is_refused() {
    let bytes = trained(&adagrad(), true).export();
    for len in 0..bytes.len() {
        assert!(Replica::import(&bytes[..len], &layout(true), &adagrad(), Seed(4)).is_err(), "{len} bytes");
    }
    for bit in (0..bytes.len() * 8).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Replica::import(&damaged, &layout(true), &adagrad(), Seed(4)).is_err(), "bit {bit}");
    }
    let error = Replica::import(&bytes, &layout(false), &adagrad(), Seed(4)).unwrap_err();
    assert!(matches!(error, ImportError::Shape { field: "table rows", .. }), "{error}");
}

#[test]
fn a_well_checksummed_model_with_senseless_rows_is_refused() {
    let bytes = trained(&adagrad(), true).export();
    let (head, rest) = postcard::take_from_bytes::<Head<'_>>(&bytes[8..]).unwrap();
    let forge = |head: &Head<'_>, first_row: u64| {
        let head = postcard::to_stdvec(head).unwrap();
        let mut bytes = [&bytes[..8], &head, &rest[..rest.len() - 4]].concat();
        let at = 8 + head.len() + 5 * 4 * 2;
        bytes[at..at + 8].copy_from_slice(&first_row.to_le_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        Replica::import(&bytes, &layout(true), &adagrad(), Seed(4)).map(|replica| replica.export())
    };
    let first_row = u64::from_le_bytes(rest[5 * 4 * 2..][..8].try_into().unwrap());
    assert_eq!(forge(&head, first_row), Ok(bytes.clone()));
    for stored in [0, head.stored - 1, head.stored + 1, u64::MAX] {
        let refused = forge(&Head { stored, ..head }, first_row);
        assert!(matches!(refused, Err(ImportError::Damaged { .. })), "{stored} rows");
    }
    for row in [1000, 600, u64::MAX] {
        assert!(matches!(forge(&head, row), Err(ImportError::Damaged { .. })), "row {row}");
    }
}

#[test]
fn i25_a_step_without_samples_or_with_wrong_lengths_changes_nothing() {
    let mut replica = trained(&adagrad(), true);
    let before = replica.export();
    let gradient = SparseGradient { rows: vec![1], values: vec![1.0; 3] };
    assert_eq!(replica.apply(&[9.0; 5], &gradient, 0), Ok(()));
    assert!(replica.apply(&[9.0; 4], &gradient, 1).is_err());
    let unfit = SparseGradient { rows: vec![1], values: vec![1.0; 2] };
    assert!(replica.apply(&[9.0; 5], &unfit, 1).is_err());
    assert_eq!(replica.export(), before);
}

#[test]
fn a_model_of_another_optimizer_is_refused_and_one_of_another_rate_is_not() {
    let bytes = trained(&adagrad(), true).export();
    let settings = [("epsilon".to_owned(), "0.5".to_owned())].into();
    let other_epsilon = UpdateRule::new(REGISTRY.build("adagrad", &settings).unwrap());
    for other in [sgd(), UpdateRule::named("momentum", 0.1).unwrap(), other_epsilon] {
        let error = Replica::import(&bytes, &layout(true), &other, Seed(4)).unwrap_err();
        let expected = ImportError::Optimizer { theirs: adagrad().identity(), ours: other.identity() };
        assert_eq!(error, expected);
    }
    let slower = UpdateRule { rate: 0.01, clip_norm: Some(1.0), decay: 0.1, ..adagrad() };
    Replica::import(&bytes, &layout(true), &slower, Seed(4)).unwrap();
}

#[test]
fn the_rate_and_the_bias_correction_go_on_where_the_exporter_was() {
    let schedule = "linear:warmup=10,total=60".parse().unwrap();
    let rule = UpdateRule { schedule, ..UpdateRule::named("adam", 0.1).unwrap() };
    let mut original = trained(&rule, true);
    assert_eq!(original.trained(), Trained { steps: 3, samples: 24 });
    let mut copy = Replica::import(&original.export(), &layout(true), &rule, Seed(4)).unwrap();
    assert_eq!(copy.trained(), original.trained());
    for replica in [&mut original, &mut copy] {
        replica.apply(&[1.0; 5], &SparseGradient::default(), 8).unwrap();
    }
    assert_eq!(original.export(), copy.export());
}

#[test]
fn a_step_is_clipped_by_the_norm_of_dense_parameters_and_rows_together() {
    let rule = UpdateRule { clip_norm: Some(1.0), ..sgd() };
    let mut replica = Replica::new(&layout(true), &rule, Seed(4), vec![0.5; 5]).unwrap();
    let before = rows_of(&replica, &[7]);
    // A mean of length 5, of which the rows have the larger part: shortened to 1.
    let rows = SparseGradient { rows: vec![7], values: vec![0.0, 8.0, 0.0] };
    replica.apply(&[6.0, 0.0, 0.0, 0.0, 0.0], &rows, 2).unwrap();
    assert!((replica.dense()[0] - (0.5 - 0.1 * 0.6)).abs() < 1e-6, "{:?}", replica.dense());
    let after = rows_of(&replica, &[7]);
    assert!((before[1] - after[1] - 0.1 * 0.8).abs() < 1e-6, "{before:?} {after:?}");
}

#[test]
fn weight_decay_reaches_dense_parameters_always_and_rows_when_they_are_touched() {
    for name in REGISTRY.names() {
        let rule = UpdateRule { decay: 0.5, ..UpdateRule::named(name, 0.001).unwrap() };
        let mut replica = Replica::new(&layout(true), &rule, Seed(4), vec![0.5; 5]).unwrap();
        let before = rows_of(&replica, &[7, 8]);
        replica.apply(&[0.0; 5], &SparseGradient { rows: vec![7], values: vec![0.0; 3] }, 2).unwrap();
        let after = rows_of(&replica, &[7, 8]);
        assert!(replica.dense().iter().all(|value| *value < 0.5), "{name}");
        assert!(after[..3].iter().zip(&before).all(|(after, before)| after.abs() < before.abs()), "{name}");
        assert_eq!(after[3..], before[3..], "{name}");
    }
}

#[test]
fn only_touched_rows_move_and_their_bias_is_corrected_by_the_steps_of_the_whole_model() {
    let rule = UpdateRule::named("adam", 0.1).unwrap();
    let mut replica = Replica::new(&layout(true), &rule, Seed(4), vec![0.5; 5]).unwrap();
    let touch = |row| SparseGradient { rows: vec![row], values: vec![1.0; 3] };
    replica.apply(&[1.0; 5], &touch(7), 1).unwrap();
    let before = rows_of(&replica, &[7, 8]);
    replica.apply(&[1.0; 5], &touch(8), 1).unwrap();
    let after = rows_of(&replica, &[7, 8]);
    assert_eq!(after[..3], before[..3], "its moments would go on moving a dense parameter");
    // In step 2: m = 0.1, v = 0.001, over 1 - 0.9² and 1 - 0.999².
    let expected = 0.1 * (0.1 / 0.19) / f64::sqrt(0.001 / 0.001_999);
    for (after, before) in after[3..].iter().zip(&before[3..]) {
        assert!((f64::from(before - after) - expected).abs() < 1e-5, "{before} {after} {expected}");
    }
}

#[test]
fn steps_are_taken_at_a_share_of_the_rate_until_another_is_set() {
    let rule = UpdateRule::named("sgd", 0.5).unwrap();
    let mut replica = Replica::new(&ParamLayout::dense(1), &rule, Seed(1), vec![0.0]).unwrap();
    let mut at = Vec::new();
    for share in [1.0, 0.5, 2.0, 0.0] {
        replica.set_rate_share(share);
        replica.apply(&[-4.0], &SparseGradient::default(), 4).unwrap();
        at.push(replica.dense()[0]);
    }
    assert_eq!(at, [0.5, 0.75, 1.75, 1.75]);
}
