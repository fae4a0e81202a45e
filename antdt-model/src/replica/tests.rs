use antdt_core::TableSpec;

use super::*;

const ADAGRAD: OptimizerSpec = OptimizerSpec::Adagrad { learning_rate: 0.1, epsilon: 1e-8 };
const SGD: OptimizerSpec = OptimizerSpec::Sgd { learning_rate: 0.1 };

fn layout(table: bool) -> ParamLayout {
    let table = table.then_some(TableSpec { rows: 1000, dim: 3, init_scale: 0.1 });
    ParamLayout { dense_len: 5, table }
}

fn trained(optimizer: OptimizerSpec, table: bool) -> Replica {
    let mut replica = Replica::new(&layout(table), optimizer, Seed(4), vec![0.5; 5]).unwrap();
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
    for optimizer in [ADAGRAD, SGD] {
        for table in [false, true] {
            let mut original = trained(optimizer, table);
            let mut copy = Replica::import(&original.export(), &layout(table), optimizer, Seed(4)).unwrap();
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
fn a_damaged_or_foreign_model_is_refused() {
    let bytes = trained(ADAGRAD, true).export();
    for len in 0..bytes.len() {
        assert!(Replica::import(&bytes[..len], &layout(true), ADAGRAD, Seed(4)).is_err(), "{len} bytes");
    }
    for bit in (0..bytes.len() * 8).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Replica::import(&damaged, &layout(true), ADAGRAD, Seed(4)).is_err(), "bit {bit}");
    }
    for (other_layout, optimizer) in [(layout(false), ADAGRAD), (layout(true), SGD)] {
        let error = Replica::import(&bytes, &other_layout, optimizer, Seed(4)).unwrap_err();
        assert!(matches!(error, ImportError::Shape { .. }), "{error}");
    }
}

#[test]
fn a_well_checksummed_model_with_senseless_rows_is_refused() {
    let bytes = trained(ADAGRAD, true).export();
    let forge = |at: usize, value: u64| {
        let mut bytes = bytes.clone();
        bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let end = bytes.len() - 4;
        let checksum = crc32c::crc32c(&bytes[..end]);
        bytes[end..].copy_from_slice(&checksum.to_le_bytes());
        Replica::import(&bytes, &layout(true), ADAGRAD, Seed(4)).unwrap_err()
    };
    let stored_at = Replica::HEAD_LEN - 8;
    assert!(matches!(forge(stored_at, u64::MAX), ImportError::Damaged { .. }));
    let first_row = Replica::HEAD_LEN + 5 * 4 * 2;
    for row in [1000, 600, u64::MAX] {
        assert!(matches!(forge(first_row, row), ImportError::Damaged { .. }), "row {row}");
    }
}

#[test]
fn a_step_without_samples_or_with_wrong_lengths_changes_nothing() {
    let mut replica = trained(ADAGRAD, true);
    let before = replica.export();
    let gradient = SparseGradient { rows: vec![1], values: vec![1.0; 3] };
    assert_eq!(replica.apply(&[9.0; 5], &gradient, 0), Ok(()));
    assert!(replica.apply(&[9.0; 4], &gradient, 1).is_err());
    let unfit = SparseGradient { rows: vec![1], values: vec![1.0; 2] };
    assert!(replica.apply(&[9.0; 5], &unfit, 1).is_err());
    assert_eq!(replica.export(), before);
}
