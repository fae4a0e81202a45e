//! A table whose hot rows lie on the first GPU: `hot_rows check` takes the same steps on one that stays in the host's memory, and
//! compares all bits; `hot_rows speed` measures the kernels beside the GPU's own copies. Where this host lacks something, the only
//! line says so.

use std::error::Error;
use std::sync::Arc;

use antdt_collective::runtime::rows::{self, RowsError};
use antdt_core::{Seed, TableSpec};
use antdt_model::optimizer::{Optimizer, REGISTRY, UpdateStep};
use antdt_model::{HotTable, SparseTable};

/// Of the table; a batch touches a part of them.
const ROWS: u64 = 100_000;

/// Rows that may be hot.
const SLOTS: u32 = 4_000;

/// Values of a row: that of DeepFM.
const DIM: usize = 9;

const STEPS: u64 = 200;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words[..] {
        ["check"] => ["sgd", "momentum", "adagrad", "adam", "adamw"].into_iter().try_for_each(check),
        ["speed"] => speed(),
        _ => return Err("check, or speed".into()),
    };
    match done {
        Err(error) if matches!(error.downcast_ref(), Some(RowsError::None(_))) => {
            println!("skipped, not here: {error}");
            Ok(())
        }
        done => done,
    }
}

fn check(name: &str) -> Result<(), Box<dyn Error>> {
    let optimizer: Arc<dyn Optimizer> = REGISTRY.by_name(name)?.into();
    let spec = TableSpec::new("table", ROWS, DIM, 0.05);
    let mut plain = SparseTable::new(spec, &*optimizer, Seed(3), 0, 1)?;
    let memory = rows::on_gpu(0, HotTable::shape(DIM, &*optimizer), SLOTS)?;
    let mut hot = HotTable::new(plain.clone(), Arc::clone(&optimizer), memory)?;
    let mut rng = Seed(5).rng();
    for number in 1..=STEPS {
        // The use of a row falls as one over its rank.
        let mut batch: Vec<u64> =
            (0..3_000).map(|_| (rng.unit() * (ROWS as f64).ln()).exp() as u64 % ROWS).collect();
        batch.sort_unstable();
        batch.dedup();
        hot.batch(&batch)?;
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        hot.gathered(&mut ours)?;
        plain.gather(&batch, &mut theirs)?;
        same(&ours, &theirs).map_err(|why| format!("{name}: step {number}: {why}"))?;
        let sums: Vec<f32> = (0..batch.len() * DIM).map(|_| rng.normal() as f32 * 8.0).collect();
        let step = UpdateStep { number, rate: 0.02, scale: 1.0 / 256.0, decay: 0.003 };
        hot.apply(&batch, &sums, step)?;
        plain.apply(&batch, &sums, &optimizer.begin(step))?;
    }
    let all: Vec<u64> = (0..ROWS).collect();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    hot.settle()?.gather(&all, &mut ours)?;
    plain.gather(&all, &mut theirs)?;
    same(&ours, &theirs).map_err(|why| format!("{name}: at the end: {why}"))?;
    println!("{name}: {STEPS} steps, {} of {ROWS} rows on the GPU, every bit as on the host", hot.hot_rows());
    Ok(())
}

fn same(ours: &[f32], theirs: &[f32]) -> Result<(), String> {
    let differ = ours.iter().zip(theirs).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    if ours.len() == theirs.len() && differ == 0 {
        Ok(())
    } else {
        Err(format!("{differ} of {} values differ", theirs.len()))
    }
}

fn speed() -> Result<(), Box<dyn Error>> {
    let speeds = rows::measure(0, 1 << 20)?;
    let copy = speeds[0].bytes_per_s;
    for speed in &speeds[1..] {
        println!(
            "{}: {:.0} GB/s on 2^20 rows of 16 values, {:.0} % of a copy's {:.0} GB/s",
            speed.name,
            speed.bytes_per_s / 1e9,
            100.0 * speed.bytes_per_s / copy,
            copy / 1e9
        );
    }
    Ok(())
}
