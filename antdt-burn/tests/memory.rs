//! The memory of a worker does not grow with its file. A test of its own process: it looks at the highest memory so far.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use antdt_agent::{Params, Trainer};
use antdt_burn::{Cache, ClickTrainer, DataSource, WorkloadSpec, model::deepfm};
use antdt_core::{Metrics, Permutation, SampleRange, Seed};

/// Rows that are generated; files repeat them.
const ROWS: u64 = 1000;
/// Samples of a shard, and of a batch.
const SHARD: u64 = 2560;
const BATCH: usize = 256;
/// Held-out samples evaluated at once: few, so that what each evaluation left behind would add up.
const EVAL_BATCH: usize = 16;
/// What the reader of each worker may hold.
const BUDGET_BYTES: usize = 4 << 20;

/// The most memory that this process has held so far, in bytes; `None` where the system does not say.
fn peak_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kilobytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes << 10)
}

/// Writes a file of at least `len_bytes`.
fn write(path: &Path, rows: &[u8], len_bytes: usize) {
    let mut file = BufWriter::new(File::create(path).unwrap());
    for _ in 0..len_bytes.div_ceil(rows.len()) {
        file.write_all(rows).unwrap();
    }
    file.flush().unwrap();
}

/// Opens a file as a worker does and loads shards from one end of it to the other, then evaluates the held-out rows.
fn work(path: &Path, cache: &Path) -> u64 {
    let mut spec = WorkloadSpec::new(deepfm::MODEL, DataSource::Path(path.into())).with("rows-per-field", 16);
    spec.cache = Some(Cache::at(cache));
    spec.read_budget_bytes = BUDGET_BYTES;
    let mut trainer = ClickTrainer::open(&spec, Seed(1)).unwrap();
    let samples = trainer.train_samples();
    let shards = samples / SHARD;
    let order = Permutation::new(Seed(2), shards);
    for shard in (0..shards).map(|at| order.at(at)) {
        let within = Permutation::new(Seed(3).derive_number(shard), SHARD);
        let shard: Vec<u64> = (0..SHARD).map(|at| shard * SHARD + within.at(at)).collect();
        for batch in shard.chunks(BATCH) {
            assert!(!trainer.load(batch).unwrap().is_empty());
        }
    }
    let held_out = trainer.eval_samples();
    let (dense, dim) = (trainer.initial_dense(Seed(4)), trainer.layout().tables()[0].dim);
    let mut metrics = Metrics::default();
    trainer.begin_evaluation();
    for start in (0..held_out).step_by(EVAL_BATCH) {
        let end = (start + EVAL_BATCH as u64).min(held_out);
        let touched = trainer.load_eval(SampleRange { start, end }).unwrap().len();
        trainer.evaluate(Params::host(&dense, &vec![0.0; touched * dim]), &mut metrics).unwrap();
    }
    trainer.end_evaluation(&mut metrics).unwrap();
    assert_eq!(trainer.scores().samples(), held_out);
    samples + held_out
}

#[test]
fn memory_does_not_grow_with_the_file() {
    if peak_bytes().is_none() {
        println!("skipped, not here: this system does not tell the memory of a process");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut rows = Vec::new();
    antdt_burn::write_tsv(ROWS, Seed(1), &mut rows).unwrap();
    let (small, large) = (folder.path().join("small.tsv"), folder.path().join("large.tsv"));
    write(&small, &rows, 4 * BUDGET_BYTES);
    write(&large, &rows, 16 * BUDGET_BYTES);

    let few = work(&small, folder.path());
    let after_small = peak_bytes().unwrap();
    let many = work(&large, folder.path());
    let after_large = peak_bytes().unwrap();
    assert!(many > 3 * few, "{many} rows against {few}");
    let grown = after_large - after_small;
    // What the readers hold at the highest moment of a run differs from run to run by as much as one of them may hold.
    assert!(grown < 2 * BUDGET_BYTES as u64, "{grown} bytes more for a file of {} bytes", 16 * BUDGET_BYTES);
}
