//! The benchmark `survive`: measures what the death of a process costs in real jobs, whose workers, servers
//! or masters are killed, stopped or hang, and whose number of workers changes; and what membership rounds
//! and checkpoints cost.
//!
//! The jobs train the counting model of `antdt/examples/counting.rs`: parameter `n` of the trained model is the number of times that
//! sample `n` was trained, so that the model itself shows whether the job trained each sample exactly once, whatever the ledger
//! says. Crashes after any event are simulated as well. Times come from the job's report. Only the benchmark knows when it stopped a
//! process, and measures that itself.

use std::mem::discriminant;

use anyhow::Result;

use crate::store::Store;
use crate::{Rows, Settings};

mod cell;
mod etcd;
mod harness;
mod job;
mod large;
mod pause;
mod points;
mod round;
mod soak;
mod table;

use cell::{Cell, Measured, Scale};
use harness::Bench;

/// Runs the benchmark `survive` and adds its rows to `rows`.
///
/// # Errors
/// If a job cannot be run, or does not end as it should.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let scale = match (settings.quick, settings.full) {
        (true, _) => Scale::QUICK,
        (false, false) => Scale::CORE,
        (false, true) => Scale::WHOLE,
    };
    let mut bench = Bench::new(settings)?;
    let mut store = Store::open(&settings.report_dir.join("cells.jsonl"), settings.go_on)?;
    let cells = scale.cells();
    for alike in cells.chunk_by(|one, other| discriminant(&one.what) == discriminant(&other.what)) {
        for cell in alike {
            if find(store.cells(), cell).is_none() {
                let measured = bench.measure(cell)?;
                store.push(measured)?;
            }
        }
        rows.extend(table::rows(&of(store.cells(), alike)));
    }
    rows.push(table::exactness(&of(store.cells(), &cells)));
    Ok(())
}

fn find<'a>(measured: &'a [Measured], cell: &Cell) -> Option<&'a Measured> {
    measured.iter().find(|it| it.cell == *cell)
}

/// What was measured of these cells.
fn of<'a>(measured: &'a [Measured], cells: &[Cell]) -> Vec<&'a Measured> {
    cells.iter().filter_map(|cell| find(measured, cell)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_benchmark_has_stored_is_no_part_of_this_one() {
        let (quick, whole) = (Scale::QUICK.cells(), Scale::WHOLE.cells());
        let stored: Vec<Measured> = quick.iter().cloned().map(Measured::of).collect();
        let kept = of(&stored, &whole);
        assert!(kept.iter().all(|it| whole.contains(&it.cell)));
        assert!(kept.len() < quick.len(), "a soak of another length is another cell");
        assert_eq!(of(&stored, &quick).len(), quick.len());
    }
}
