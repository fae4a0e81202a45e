//! A model whose hot rows and flat vector lie on the first GPU: `hot_rows check` takes the same steps on one that stays in the host's memory, and
//! compares all bits; `hot_rows speed` measures the kernels beside the GPU's own copies. Where this host lacks something, the only
//! line says so.

use std::error::Error;
use std::sync::Arc;

use antdt_collective::runtime::{FlatError, RowsError};
use antdt_core::{ParamLayout, Seed, TableSpec};
use antdt_gpu::{flat, rows};
use antdt_model::{DenseSums, HotReplica, Replica, SparseGradient, UpdateRule};

/// Of the table; a batch touches a part of them.
const ROWS: u64 = 100_000;

/// Rows that may be hot.
const SLOTS: u32 = 4_000;

/// Values of a row: that of DeepFM.
const DIM: usize = 9;

/// Values of the flat vector.
const DENSE: usize = 70_001;

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
        Err(error)
            if matches!(error.downcast_ref(), Some(RowsError::None(_)))
                || matches!(error.downcast_ref(), Some(FlatError::None(_))) =>
        {
            println!("skipped, not here: {error}");
            Ok(())
        }
        done => done,
    }
}

fn check(name: &str) -> Result<(), Box<dyn Error>> {
    // About the norm of a gradient here: some are clipped.
    let rule = UpdateRule { decay: 0.003, clip_norm: Some(9.0), ..UpdateRule::named(name, 0.02)? };
    let layout = ParamLayout::dense(DENSE).with_table(TableSpec::new("table", ROWS, DIM, 0.05))?;
    let mut plain = Replica::new(&layout, &rule, Seed(3), vec![0.5; DENSE])?;
    let mut hot = HotReplica::from(plain.clone());
    hot.heat(rows::on_gpu(0, hot.shape()?, SLOTS)?)?;
    let memory = flat::on_gpu(0, hot.flat_shape()?)?;
    let mut dense_sums = memory.region(DENSE * size_of::<f32>())?;
    let address = dense_sums.device().ok_or("the sums lie on the host")?.place().address;
    hot.lift(Arc::clone(&memory))?;
    let mut rng = Seed(5).rng();
    for number in 1..=STEPS {
        // The use of a row falls as one over its rank.
        let mut batch: Vec<u64> =
            (0..3_000).map(|_| (rng.unit() * (ROWS as f64).ln()).exp() as u64 % ROWS).collect();
        batch.sort_unstable();
        batch.dedup();
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        hot.load(&batch, &mut Vec::new())?;
        hot.parameters().1.ok_or("no row is hot")?.read(&mut ours)?;
        plain.gather(&batch, &mut theirs)?;
        same(&ours, &theirs).map_err(|why| format!("{name}: step {number}: {why}"))?;
        let values = (0..batch.len() * DIM).map(|_| rng.normal() as f32 * 8.0).collect();
        let sums = SparseGradient { rows: batch, values };
        let dense: Vec<f32> = (0..DENSE).map(|_| rng.normal() as f32 * 8.0).collect();
        memory.put(&dense, address)?;
        hot.apply_part(DenseSums::Device(&[address]), &sums, 256, None)?;
        plain.apply(&dense, &sums, 256)?;
    }
    if hot.settle()?.export() != plain.export() {
        return Err(format!("{name}: the models differ at the end").into());
    }
    println!(
        "{name}: {STEPS} steps, {} of {ROWS} rows and {DENSE} parameters on the GPU, every bit as on the host",
        hot.hot_rows()
    );
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
