//! The benchmark `survive`: measures what the death of a process costs in real jobs, whose workers, servers
//! or masters are killed, stopped or hang, and whose numbers of workers and servers and whose servers' shares change; and what
//! membership rounds and checkpoints cost.
//!
//! The jobs train the counting model of `antdt/examples/counting.rs`: parameter `n` of the trained model is the number of times that
//! sample `n` was trained, so that the model itself shows whether the job trained each sample exactly once, whatever the ledger
//! says. Crashes after any event are simulated as well. Times come from the job's report. Only the benchmark knows when it stopped a
//! process, and measures that itself.

use std::mem::discriminant;

use anyhow::{Result, ensure};

use crate::store::Store;
use crate::tree;
use crate::{Entry, Rows, Settings};

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
    let cells = chosen(settings)?;
    let mut bench = Bench::new(settings)?;
    let mut store = Store::open(&settings.report_dir.join("cells.jsonl"), settings.go_on)?;
    let mut failed = Vec::new();
    for alike in cells.chunk_by(|one, other| discriminant(&one.what) == discriminant(&other.what)) {
        for cell in alike {
            if find(store.cells(), cell).is_none() {
                // One job that does not end as it should costs no other one its row.
                match bench.measure(cell) {
                    Ok(measured) => store.push(measured)?,
                    Err(error) => {
                        println!("failed");
                        // What is left of its job would disturb the next one.
                        tree::end();
                        failed.push(format!("{}: {error:#}", cell.what));
                    }
                }
            }
        }
        let measured = table::rows(&of(store.cells(), alike));
        rows.extend(if settings.smoke { untimed(measured) } else { measured });
    }
    rows.push(table::exactness(&of(store.cells(), &cells)));
    ensure!(failed.is_empty(), "{} of {} parts failed:\n{}", failed.len(), cells.len(), failed.join("\n"));
    Ok(())
}

/// The cells that the settings ask for.
///
/// # Errors
/// If they name none.
fn chosen(settings: &Settings) -> Result<Vec<Cell>> {
    let all = match (settings.smoke, settings.quick, settings.full) {
        (true, _, _) => cell::smoke(),
        (false, true, _) => Scale::QUICK.cells(),
        (false, false, false) => Scale::CORE.cells(),
        (false, false, true) => Scale::WHOLE.cells(),
    };
    let mut names: Vec<String> = all.iter().map(|cell| cell.what.to_string()).collect();
    names.dedup();
    let cells: Vec<Cell> = all.into_iter().filter(|cell| settings.asks_for(&cell.what.to_string())).collect();
    ensure!(
        !cells.is_empty(),
        "--only = {}: no part has that in its name; the parts are: {}",
        settings.only.join(", "),
        names.join("; ")
    );
    Ok(cells)
}

/// The same rows, of which those that are times are only shown: a debug build on a busy machine misses any target of a time.
fn untimed(rows: Vec<Entry>) -> Vec<Entry> {
    rows.into_iter().map(|row| if row.unit == "s" { row.without_target() } else { row }).collect()
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
    use crate::entry::State;

    fn settings(smoke: bool, only: &[&str]) -> Settings {
        let only = only.iter().map(|text| (*text).to_owned()).collect();
        Settings { only, smoke, quick: !smoke, ..Settings::default() }
    }

    #[test]
    fn only_the_parts_that_are_asked_for_are_measured_and_a_text_of_none_is_refused_with_the_names() {
        let names = |smoke, only: &[&str]| -> Vec<String> {
            let cells = chosen(&settings(smoke, only)).unwrap();
            cells.iter().map(|cell| cell.what.to_string()).collect()
        };
        let smoke = [
            "kills, allreduce",
            "kills, ps-bsp",
            "stop, allreduce",
            "server, ps-bsp",
            "master, ps-bsp",
            "everything, allreduce",
        ];
        assert_eq!(names(true, &[]), smoke);
        assert_eq!(names(true, &["master", "stop"]), ["stop, allreduce", "master, ps-bsp"]);
        assert_eq!(names(false, &["kills, ps-b"]), ["kills, ps-bsp", "kills, ps-backup=1"]);
        let refused = chosen(&settings(true, &["scale"])).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!("--only = scale: no part has that in its name; the parts are: {}", smoke.join("; "))
        );
    }

    #[test]
    fn in_a_smoke_run_a_time_fails_nothing_but_a_count_does() {
        let time = Entry::shown("until it is ended", 9.0, "s").at_most(2.0);
        let count = Entry::shown("survivors that keep their process", 50.0, "%").at_least(100.0);
        let rows = untimed(vec![time, count]);
        assert_eq!(rows.iter().map(|row| row.state).collect::<Vec<_>>(), [State::Ok, State::Failed]);
    }

    #[test]
    fn cells_of_another_benchmark_are_no_part_of_this_one() {
        let (quick, whole) = (Scale::QUICK.cells(), Scale::WHOLE.cells());
        let stored: Vec<Measured> = quick.iter().cloned().map(Measured::of).collect();
        let kept = of(&stored, &whole);
        assert!(kept.iter().all(|it| whole.contains(&it.cell)));
        assert!(kept.len() < quick.len(), "a soak of another length is another cell");
        assert_eq!(of(&stored, &quick).len(), quick.len());
    }
}
