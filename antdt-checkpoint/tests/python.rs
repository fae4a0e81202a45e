//! The program in `docs/export.md` loads an exported model: it is run as it stands there.
//!
//! Needs `python3` with the packages `safetensors` and `numpy`; without them the test says that it is skipped.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::process::Command;

use antdt_checkpoint::{DataIdentity, Folder, JobIdentity, Manifest, export};
use antdt_core::{CheckpointId, Generation, ParamGroup, ParamLayout, Seed, TableSpec};
use antdt_model::{Portion, TablePortion, Trained, initial_rows};
use antdt_shard::{DatasetSpec, ShardLedger};

/// The first program in Python of the document.
fn program() -> &'static str {
    let document = include_str!("../../docs/export.md");
    document.split("```python\n").nth(1).unwrap().split("```").next().unwrap()
}

/// Why Python cannot load such a file here.
fn missing() -> Option<&'static str> {
    let probe = Command::new("python3").args(["-c", "import numpy, safetensors"]).output();
    match probe {
        Err(_) => Some("there is no python3"),
        Ok(output) if !output.status.success() => {
            Some("python3 lacks a package; pip install safetensors numpy")
        }
        Ok(_) => None,
    }
}

#[test]
fn the_document_shows_how_python_loads_a_model() {
    if let Some(why) = missing() {
        println!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let groups = vec![ParamGroup::trainable("deep.0.weight", 3), ParamGroup::state("mean", 1)];
    let layout = ParamLayout::new(groups, vec![TableSpec::new("clicks", 5, 2, 0.5)]).unwrap();
    let table = TablePortion { rows: vec![4], values: vec![8.0, 16.0], state: vec![vec![0.5; 2]] };
    let portion = Portion {
        dense_from: 0,
        dense: vec![1.0, 2.0, 4.0, 0.25],
        dense_state: vec![vec![0.5; 4]],
        tables: vec![table],
    };
    let id = CheckpointId(3);
    let spec = DatasetSpec::new("clicks", 100, 10);
    let cut = ShardLedger::new(spec, Generation(1)).unwrap().cut(id, 0).unwrap();
    let folder = Folder::create(dir.path().join("checkpoints")).unwrap();
    let file = folder.write_part(id, "replica", &layout, &portion).unwrap();
    let data = DataIdentity {
        name: "synthetic:100".to_owned(),
        rows: 100,
        evaluation: "0".to_owned(),
        fingerprint: None,
    };
    let manifest = Manifest {
        format: Manifest::FORMAT,
        antdt: "0.1.0".to_owned(),
        checkpoint: id,
        created_unix_s: 1,
        job: JobIdentity {
            workload: "deepfm".to_owned(),
            layout: layout.clone(),
            seed: 1,
            rows_seed: 9,
            data,
        },
        trained: Trained { steps: 12, samples: 0 },
        optimizer: "adagrad".to_owned(),
        ledger: cut.binding(),
        mode: "allreduce".to_owned(),
        workers: 1,
        servers: 0,
        epochs: 1,
        shard_len: 10,
        plan: [].into(),
        extra: [].into(),
        files: vec![file],
    };
    folder.commit(manifest, &cut).unwrap();
    let out = dir.path().join("model.safetensors");
    export(&folder.open_checkpoint(id).unwrap(), &out, false).unwrap();

    let output = Command::new("python3").args(["-c", program()]).arg(&out).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["steps"], 12);
    let shapes = serde_json::json!({"deep.0.weight": [3], "mean": [1], "clicks": [5, 2]});
    assert_eq!(said["shapes"], shapes);
    let mut rows = Vec::new();
    initial_rows(&layout, Seed(9), 0, 0..4, &mut rows);
    let untouched: f64 = rows.iter().map(|value| f64::from(*value)).sum();
    for (name, sum) in [("deep.0.weight", 7.0), ("mean", 0.25), ("clicks", untouched + 24.0)] {
        assert!((said["sums"][name].as_f64().unwrap() - sum).abs() < 1e-5, "{name}: {said}");
    }
}
