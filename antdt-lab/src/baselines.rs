//! The benchmark `baselines`: compares parameter servers, all-reduce, AD-PSGD, D-PSGD and Ripples with
//! AntDT's policy, by real processes and gradients with emulated computing times and links.
//!
//! The first figure is the time to a fixed loss, the second the throughput. Each is held against the hypotheses of a faithful
//! reproduction of Ripples, whose verdicts follow from the cells alone.

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::entry::State;
use crate::meter::Others;
use crate::store::Store;
use crate::{Entry, Rows, Settings};

mod cell;
mod hypothesis;
mod kernel;
mod loss;
mod ours;
pub(crate) mod pacer;
mod page;
mod setting;
mod simulated;

use cell::{Cell, LOAD_MAX, Measured, Scheme, Slow};
use hypothesis::{CLAIMS, Cells, Verdict};
use loss::Smooth;
use setting::Setting;

/// Time of a gradient: scheduling noise must be small against it.
const COMPUTE: Duration = Duration::from_millis(100);

const QUICK: Setting = Setting { workers: 4, per_host: 2, steps: 24, compute: COMPUTE };
const CORE: Setting = Setting { workers: 8, per_host: 4, steps: 48, compute: COMPUTE };
const FULL: Setting = Setting { workers: 16, per_host: 4, steps: 96, compute: Duration::from_millis(200) };

/// Share of its samples after which an even all-reduce has the loss that all schemes have to reach.
const REFERENCE_SHARE: f64 = 0.6;

/// A job that takes longer is ended.
const LIMIT: Duration = Duration::from_secs(600);

/// The cells of a run, the reference of each seed before the others of that seed.
fn cells(settings: &Settings) -> Vec<Cell> {
    let (schemes, sigmas, ratios, seeds): (&[Scheme], &[f64], &[f64], u64) = match () {
        () if settings.quick => (&Scheme::QUICK, &[1.0, 5.0], &[0.5], 1),
        () if settings.full => (&Scheme::ALL, &[1.0, 2.0, 5.0], &[0.5, 0.1], 5),
        () => (&Scheme::ALL, &[1.0, 5.0], &[0.5], 1),
    };
    let mut cells = Vec::new();
    for seed in 1..=seeds {
        for ratio in ratios {
            for sigma in sigmas {
                cells.extend(schemes.iter().map(|scheme| Cell::one_slow(*scheme, *sigma, *ratio, seed)));
            }
            for slow in [Slow::Several, Slow::Host, Slow::Transient] {
                let of = |scheme: &Scheme| Cell { slow, ..Cell::one_slow(*scheme, 5.0, *ratio, seed) };
                cells.extend(schemes.iter().map(of).filter(|_| settings.full));
            }
        }
    }
    cells
}

/// Runs the benchmark `baselines` and adds its rows to `rows`.
///
/// # Errors
/// If a job cannot be run, or the cells that an earlier run has stored cannot be read.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let setting = match () {
        () if settings.quick => QUICK,
        () if settings.full => FULL,
        () => CORE,
    };
    println!("{}; a model of {} bytes", setting.name(), Setting::model_bytes());
    rows.push(pacer::row(setting.bandwidth(0.5), LOAD_MAX)?);
    let job = settings.report_dir.join("job.toml");
    fs::write(&job, setting::WORKLOAD).with_context(|| format!("cannot write {}", job.display()))?;
    rows.push(kernel::row(settings, &setting, &job)?);
    let mut store = Store::open(&settings.report_dir.join("cells.jsonl"), settings.go_on)?;
    for cell in cells(settings) {
        let measured = match find(store.cells(), &cell) {
            Some(known) => known.clone(),
            None => {
                let loss = loss_of(store.cells(), cell.seed);
                let measured = measure(settings, &setting, &job, cell, loss)?;
                store.push(measured.clone())?;
                measured
            }
        };
        rows.extend(of_cell(&setting, &measured));
    }
    rows.extend(ours::rows(store.cells()));
    rows.extend(simulated::rows(&setting, store.cells(), &settings.report_dir)?);
    let mut lines = Vec::new();
    let mut ratios: Vec<f64> = store.cells().iter().map(|it| it.cell.ratio).collect();
    ratios.sort_by(f64::total_cmp);
    ratios.dedup();
    for ratio in ratios {
        let cells = Cells { ratio, all: store.cells() };
        rows.extend(cells.published());
        for ((number, claim), verdict) in CLAIMS.iter().zip(cells.verdicts(&setting)) {
            let name = format!("R_e {ratio}: {number}, {claim}");
            lines.push(format!("{name}: {verdict}"));
            rows.push(of_verdict(name, &verdict));
        }
    }
    let file = settings.report_dir.join("baselines.html");
    fs::write(&file, page::page(&setting.name(), store.cells(), &lines))
        .with_context(|| format!("cannot write {}", file.display()))?;
    println!("charts in {}", file.display());
    Ok(())
}

/// Runs the job of a cell. Without a loss to reach it is the reference, which says it.
fn measure(
    settings: &Settings,
    setting: &Setting,
    job: &Path,
    cell: Cell,
    loss: Option<f64>,
) -> Result<Measured> {
    let name = cell.name();
    print!("{name:<56}");
    // Progress only.
    let _ = io::stdout().flush();
    let mut arguments = vec!["--job".to_owned(), job.display().to_string()];
    arguments.extend(cell.arguments(setting));
    let folder = settings.report_dir.join(name.replace(", ", "-").replace([' ', '='], "-"));
    let watched = Others::watch();
    let report = crate::run::run(&settings.antdt, &arguments, &folder, LIMIT)?;
    let load = watched.load();
    let expected = report.samples.expected;
    let loss = loss
        .or_else(|| Smooth::of(report.loss_curve.points(), expected).after(REFERENCE_SHARE, expected))
        .context("the reference job reports no losses")?;
    let measured = Measured::read(cell, &report, loss, load);
    println!(" {:>6.1} s, load {:.0} %", report.job_completion_time_s, 100.0 * load.unwrap_or_default());
    Ok(measured)
}

/// The rows of a cell: the time to the loss, and the throughput.
fn of_cell(setting: &Setting, measured: &Measured) -> Vec<Entry> {
    let name = format!("{}, {}", measured.cell.name(), setting.name());
    let load = measured.load.map_or_else(|| "unknown".to_owned(), |load| format!("{:.0} %", 100.0 * load));
    if measured.is_overloaded() {
        let why = format!("load {load}: above {:.0} %", 100.0 * LOAD_MAX);
        return vec![Entry::without(name, State::NotMeasured, why)];
    }
    let held_out = measured.held_out.map(|loss| format!(", held out {loss:.3}")).unwrap_or_default();
    let spread = measured.spread.map(|spread| format!(", model spread {spread:.1e}")).unwrap_or_default();
    let slow = measured.slow_steps.map(|part| format!(", worker 1 takes {part:.2} of the others' steps"));
    let said = format!("load {load}{held_out}{spread}{}", slow.unwrap_or_default());
    let time = format!("{name}: time to loss {:.3}", measured.loss);
    let time = match (measured.time_to_loss_s, measured.samples_to_loss) {
        (Some(seconds), Some(samples)) => {
            Entry::shown(time, seconds, "s").beside(format!("{samples} samples; {said}"))
        }
        _ => Entry::without(time, State::Ok, format!("not reached within its samples; {said}")),
    };
    vec![time, Entry::shown(format!("{name}: throughput"), measured.throughput, "samples/s")]
}

fn of_verdict(name: String, verdict: &Verdict) -> Entry {
    // What fails is a finding about the method, not a defect of the run: it is said, and fails nothing.
    let state = if matches!(verdict, Verdict::NotMeasured(_)) { State::NotMeasured } else { State::Ok };
    Entry::without(name, state, verdict.to_string())
}

/// A cell that was measured; one of an overloaded machine is measured again.
fn find<'a>(cells: &'a [Measured], cell: &Cell) -> Option<&'a Measured> {
    cells.iter().find(|it| it.cell == *cell && !it.is_overloaded())
}

/// The loss to reach with this seed, once the reference has said it.
fn loss_of(cells: &[Measured], seed: u64) -> Option<f64> {
    cells.iter().find(|it| it.cell.seed == seed).map(|it| it.loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(quick: bool, full: bool) -> Settings {
        Settings { quick, full, ..Settings::default() }
    }

    #[test]
    fn the_reference_of_each_seed_comes_first_and_no_cell_twice() {
        for (quick, full) in [(true, false), (false, false), (false, true)] {
            let cells = cells(&settings(quick, full));
            let mut seeds = Vec::new();
            for cell in &cells {
                if !seeds.contains(&cell.seed) {
                    seeds.push(cell.seed);
                    assert!(cell.scheme == Scheme::AllReduce && cell.is_one_slow(1.0), "{cell:?}");
                }
                assert_eq!(cells.iter().filter(|it| *it == cell).count(), 1, "{cell:?}");
            }
        }
    }

    #[test]
    fn a_cell_of_an_overloaded_machine_is_measured_again() {
        let of = |scheme| Measured::of(Cell::one_slow(scheme, 1.0, 0.5, 3));
        let busy = Measured { load: Some(0.9), ..of(Scheme::AdPsgd) };
        let cells = [of(Scheme::AllReduce), busy];
        assert!(find(&cells, &of(Scheme::AllReduce).cell).is_some());
        assert!(find(&cells, &of(Scheme::AdPsgd).cell).is_none(), "the machine was overloaded");
        assert_eq!((loss_of(&cells, 3), loss_of(&cells, 4)), (Some(1.0), None));
    }

    #[test]
    fn an_overloaded_cell_shows_no_figure() {
        let cell = Cell::one_slow(Scheme::AllReduce, 1.0, 0.5, 1);
        let busy = Measured { throughput: 100.0, load: Some(0.9), ..Measured::of(cell) };
        let rows = of_cell(&CORE, &busy);
        assert!(rows.iter().all(|row| row.value.is_none() && row.state == State::NotMeasured), "{rows:?}");
        let calm = Measured { time_to_loss_s: Some(2.0), samples_to_loss: Some(9), load: Some(0.1), ..busy };
        let values: Vec<_> = of_cell(&CORE, &calm).iter().map(|row| row.value).collect();
        assert_eq!(values, [Some(2.0), Some(100.0)]);
    }
}
