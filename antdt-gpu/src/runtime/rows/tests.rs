//! The store over the kernels that are built for this machine; `antdt-model` compares them with its tables.

use antdt_collective::RowStep;

use super::testing::HostKernels;
use super::*;

const SGD: RowStep = RowStep::Sgd { rate: 0.5, scale: 2.0, decay: 0.0 };

fn numbers(len: usize, first: usize) -> Vec<f32> {
    (first..first + len).map(|number| number as f32).collect()
}

#[test]
fn rows_lie_in_their_slots_and_batches_take_guests_in_order() {
    let kernels = match HostKernels::build() {
        Ok(kernels) => kernels,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    let mut rows = kernels.rows(RowShape { dim: 3, state_per_value: 0 }, 5).unwrap();
    rows.write(&[4, 1], &[4.0, 4.25, 4.5, 1.0, 1.25, 1.5]).unwrap();
    let mut read = vec![9.0];
    rows.read(&[1, 0, 4, 1], &mut read).unwrap();
    assert_eq!(read, [9.0, 1.0, 1.25, 1.5, 0.0, 0.0, 0.0, 4.0, 4.25, 4.5, 1.0, 1.25, 1.5]);
    rows.gather(&[None, Some(4), None], &[7.0, 7.25, 7.5, 8.0, 8.25, 8.5]).unwrap();
    let mut batch = Vec::new();
    rows.gathered(&mut batch).unwrap();
    assert_eq!(batch, [7.0, 7.25, 7.5, 4.0, 4.25, 4.5, 8.0, 8.25, 8.5]);
    rows.update(&[4, 0], &[1.0, 2.0, 3.0, -1.0, 0.0, 1.0], &SGD).unwrap();
    read.clear();
    rows.read(&[0, 1, 4], &mut read).unwrap();
    assert_eq!(read, [1.0, 0.0, -1.0, 1.0, 1.25, 1.5, 3.0, 2.25, 1.5]);
    // A smaller batch, then none.
    for places in [vec![Some(1)], vec![]] {
        rows.gather(&places, &[]).unwrap();
        batch.clear();
        rows.gathered(&mut batch).unwrap();
        assert_eq!(batch, [1.0, 1.25, 1.5][..3 * places.len()]);
    }
}

#[test]
fn values_that_do_not_fit_are_refused_and_change_nothing() {
    let kernels = match HostKernels::build() {
        Ok(kernels) => kernels,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    let mut rows = kernels.rows(RowShape { dim: 2, state_per_value: 1 }, 3).unwrap();
    let momentum = RowStep::Momentum {
        rate: 1.0,
        scale: 1.0,
        decay: 0.0,
        momentum: 0.5,
        along_gradient: 0.0,
        along_sum: 1.0,
    };
    let beyond = RowsError::OutOfRange { slot: 3, slots: 3 };
    assert_eq!(rows.write(&[3], &numbers(4, 0)), Err(beyond.clone()));
    assert_eq!(rows.read(&[0, 3], &mut Vec::new()), Err(beyond.clone()));
    assert_eq!(rows.gather(&[Some(3)], &[]), Err(beyond.clone()));
    assert_eq!(rows.update(&[3], &[0.0; 2], &momentum), Err(beyond));
    assert_eq!(rows.write(&[2, 2], &numbers(8, 0)), Err(RowsError::Twice { slot: 2 }));
    assert_eq!(rows.update(&[1, 0, 1], &[0.0; 6], &momentum), Err(RowsError::Twice { slot: 1 }));
    assert_eq!(rows.write(&[0], &numbers(2, 0)), Err(RowsError::Length { values: 2, rows: 1, due: 4 }));
    assert_eq!(rows.gather(&[None], &[]), Err(RowsError::Length { values: 0, rows: 1, due: 2 }));
    assert_eq!(rows.update(&[0], &[0.0; 2], &SGD), Err(RowsError::State { kept: 1, due: 0 }));
    // Refused rows are not remembered as listed.
    rows.write(&[2, 1], &numbers(8, 1)).unwrap();
    let mut read = Vec::new();
    rows.read(&[0, 1, 2], &mut read).unwrap();
    assert_eq!(read, [0.0, 0.0, 0.0, 0.0, 5.0, 6.0, 7.0, 8.0, 1.0, 2.0, 3.0, 4.0]);
    for (shape, slots) in [
        (RowShape { dim: 0, state_per_value: 0 }, 1),
        (RowShape { dim: 1, state_per_value: 3 }, 1),
        (RowShape { dim: usize::MAX, state_per_value: 1 }, 1),
        (RowShape { dim: 1, state_per_value: 0 }, 0),
        (RowShape { dim: 1, state_per_value: 0 }, u32::MAX),
    ] {
        let refused = kernels.rows(shape, slots).unwrap_err().to_string();
        assert!(refused.starts_with("rows cannot lie on a GPU: "), "{refused}");
    }
}

#[test]
fn more_rows_than_go_at_a_time_go_in_parts() {
    let kernels = match HostKernels::build() {
        Ok(kernels) => kernels,
        Err(why) => return println!("skipped, not here: {why}"),
    };
    // Rows of so many values that three go at a time.
    let dim = store::STAGE / 4 / 3;
    let mut rows = kernels.rows(RowShape { dim, state_per_value: 0 }, 4).unwrap();
    let slots = [3, 0, 2, 1];
    rows.write(&slots, &slots.iter().flat_map(|slot| vec![*slot as f32; dim]).collect::<Vec<_>>()).unwrap();
    rows.update(&slots, &slots.iter().flat_map(|slot| vec![*slot as f32; dim]).collect::<Vec<_>>(), &SGD)
        .unwrap();
    let (mut read, mut batch) = (Vec::new(), Vec::new());
    rows.read(&[0, 1, 2, 3], &mut read).unwrap();
    assert!(read.iter().all(|value| *value == 0.0), "each row less itself");
    let guests = [vec![5.0; dim], vec![6.0; dim]].concat();
    rows.gather(&[None, Some(0), Some(1), Some(2), None], &guests).unwrap();
    rows.gathered(&mut batch).unwrap();
    let expected = [5.0, 0.0, 0.0, 0.0, 6.0];
    assert!(
        batch.chunks(dim).zip(expected).all(|(row, expected)| row.iter().all(|value| *value == expected))
    );
}

#[test]
fn an_argument_has_as_many_bytes_as_its_kernel_expects() {
    let work = kernel::Work::default();
    assert_eq!(work.bytes().len(), size_of_val(&work));
}
