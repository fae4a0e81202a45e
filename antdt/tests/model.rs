//! `antdt model` as a process: what it prints, what it writes, and its exit codes.
#![allow(clippy::unwrap_used, reason = "a failure here is the test's")]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use antdt::checkpoint::{DataIdentity, Folder, JobIdentity, Manifest};
use antdt::core::{CheckpointId, Generation, ParamLayout, Seed, TableSpec};
use antdt::model::{Replica, SparseGradient, UpdateRule};
use antdt::shard::{DatasetSpec, ShardLedger};

/// Exit code, standard output, standard error.
fn antdt(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_antdt")).args(args).stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Takes checkpoint `id` of a small model into a folder.
fn take(folder: &Path, id: u64) {
    let id = CheckpointId(id);
    let layout = ParamLayout::dense(3).with_table(TableSpec::new("rows", 100, 2, 0.1)).unwrap();
    let rule = UpdateRule::named("adam", 0.1).unwrap();
    let mut model = Replica::new(&layout, &rule, Seed(8), vec![0.0; 3]).unwrap();
    let rows = SparseGradient { rows: vec![7], values: vec![1.0, 2.0] };
    model.apply(&[1.0, 2.0, 3.0], &rows, 10).unwrap();
    let cut =
        ShardLedger::new(DatasetSpec::new("clicks", 100, 10), Generation(1)).unwrap().cut(id, 0).unwrap();
    let folder = Folder::create(folder).unwrap();
    let part = folder.write_part(id, "replica", &layout, &model.portion()).unwrap();
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
        created_unix_s: 1_800_000_000,
        job: JobIdentity { workload: "deepfm".to_owned(), layout, seed: 1, rows_seed: 8, data },
        trained: model.trained(),
        optimizer: rule.identity(),
        ledger: cut.binding(),
        mode: "allreduce".to_owned(),
        workers: 1,
        servers: 0,
        epochs: 1,
        shard_len: 10,
        plan: [].into(),
        extra: [].into(),
        files: vec![part],
    };
    folder.commit(manifest, &cut).unwrap();
}

#[test]
fn checkpoints_are_listed_and_exported_from_a_run_directory() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoints = dir.path().join("run/checkpoints");
    take(&checkpoints, 1);
    take(&checkpoints, 2);
    let run = dir.path().join("run").display().to_string();
    let out = dir.path().join("model.safetensors");
    let out_name = out.display().to_string();

    let (code, text, error) = antdt(&["model", "list", &run]);
    assert_eq!((code, error.as_str(), text.lines().count()), (0, "", 3), "{text}");
    let newest = text.lines().nth(1).unwrap();
    for says in [" 2  2027-01-15T08:00:00Z", "deepfm, adam (beta1=0.9"] {
        assert!(newest.contains(says), "{text}");
    }

    let (code, text, error) = antdt(&["model", "export", &run, "--out", &out_name]);
    assert_eq!((code, error.as_str()), (0, ""));
    let expected = "deepfm of checkpoint 2 (1 steps, 10 samples): 2 tensors, 203 values, ";
    assert!(text.starts_with(expected), "{text}");
    let bytes = fs::read(&out).unwrap();

    let (code, text, error) = antdt(&["model", "export", &run, "--out", &out_name]);
    assert_eq!((code, text.as_str()), (2, ""));
    assert!(error.contains("it exists; name another file, or replace it with --force"), "{error}");

    let first = checkpoints.join("00000000000000000001").display().to_string();
    let (code, text, error) = antdt(&["model", "export", &first, "--out", &out_name, "--force"]);
    assert!(code == 0 && text.starts_with("deepfm of checkpoint 1 "), "{text}{error}");
    let (code, text, error) = antdt(&["model", "list", &first]);
    assert_eq!((code, error.as_str(), text.lines().count()), (0, "", 2), "the one that is named: {text}");
    assert!(text.lines().nth(1).unwrap().contains(" 1  2027-01-15T08:00:00Z"), "{text}");
    let both = ["model", "export", &first, "--checkpoint", "2", "--out", &out_name, "--force"];
    let (code, _, error) = antdt(&both);
    let says = "error: --checkpoint = 2: must be left out with the folder of checkpoint 1, or be its number";
    assert!(code == 2 && error.starts_with(says), "{error}");

    // The newest is damaged: the one before is taken, which is said; asked for by name, it is refused.
    let part = checkpoints.join("00000000000000000002/replica.safetensors");
    let torn = fs::read(&part).unwrap();
    fs::write(&part, &torn[..torn.len() - 1]).unwrap();
    let (code, text, _) = antdt(&["model", "export", &run, "--out", &out_name, "--force"]);
    assert_eq!((code, text.lines().count()), (0, 2), "{text}");
    assert!(text.starts_with("checkpoint 2 is passed over: ") && text.contains("it is torn"), "{text}");
    assert!(text.contains("deepfm of checkpoint 1 "), "{text}");
    assert_eq!(fs::read(&out).unwrap().len(), bytes.len());
    let (code, text, _) = antdt(&["model", "list", &run]);
    assert!(code == 0 && text.lines().nth(1).unwrap().contains("cannot be used"), "{text}");
    for (args, says) in [
        (&["--checkpoint", "2"][..], "it is torn"),
        (&["--checkpoint", "9"], "has no checkpoint 9; `antdt model list` shows those there are"),
    ] {
        let all = [&["model", "export", &run, "--out", &out_name, "--force"], args].concat();
        let (code, _, error) = antdt(&all);
        assert_eq!((code, error.lines().count()), (2, 1), "{error}");
        assert!(error.starts_with("error: ") && error.contains(says), "{error}");
    }
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2, "nothing is left over");
}

#[test]
fn folders_without_checkpoints_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, out) = (dir.path().display().to_string(), dir.path().join("m").display().to_string());
    let missing = dir.path().join("none").display().to_string();
    let (code, text, _) = antdt(&["model", "list", &empty]);
    assert!(code == 0 && text.ends_with("has no checkpoints\n"), "{text}");
    for args in [
        &["model", "list", &missing][..],
        &["model", "export", &missing, "--out", &out],
        &["model", "export", &empty, "--out", &out],
    ] {
        let (code, text, error) = antdt(args);
        assert_eq!((code, text.as_str(), error.lines().count()), (2, "", 1), "{error}");
        assert!(error.contains("; name the folder"), "{error}");
    }
}
