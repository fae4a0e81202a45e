//! What tests of jobs on emulated devices share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use antdt::checkpoint::Folder;
use antdt::report::{Outcome, Report};

/// Bound on any one job here; all take seconds.
const LIMIT: Duration = Duration::from_secs(240);

/// What the example needs, besides what the tests are built with.
pub(crate) fn has_compiler() -> bool {
    let asked = Command::new("g++").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    let has = asked.is_ok_and(|status| status.success());
    if !has {
        println!("skipped, not here: no g++");
    }
    has
}

/// `run` of the example with the emulated device, or of the program without any.
pub(crate) fn run(example: Option<&str>, folder: &Path, args: &[&str]) -> Command {
    let antdt = PathBuf::from(env!("CARGO_BIN_EXE_antdt"));
    let mut command = match example {
        Some(example) => Command::new(antdt.parent().unwrap().join("examples").join(example)),
        None => Command::new(antdt),
    };
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.args(["run", "--report-dir", folder.to_str().unwrap()]).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

pub(crate) fn finish(mut child: Child) -> Output {
    wait_for("the end of a job", || child.try_wait().unwrap());
    child.wait_with_output().unwrap()
}

/// The report of a job that trained all of its samples, and what it said.
pub(crate) fn completed(folder: &Path, output: &Output, samples: u64) -> (Report, String) {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let text = std::fs::read_to_string(folder.join("report.json")).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    assert_eq!(report.outcome, Outcome::Completed);
    assert!(report.samples.is_exact() && report.samples.committed == samples, "{:?}", report.samples);
    (report, said)
}

/// All numbers of each checkpoint that was kept, to the bit, by the samples behind it.
pub(crate) fn checkpoints(report_dir: &Path) -> BTreeMap<u64, Vec<u32>> {
    let folder = Folder::open(report_dir.join("run/checkpoints")).unwrap();
    let mut all = BTreeMap::new();
    // One that a worker was writing when its epoch was over has no manifest.
    for found in folder.list().unwrap().into_iter().filter(|found| found.manifest.is_ok()) {
        let checkpoint = folder.open_checkpoint(found.checkpoint).unwrap();
        let mut bits = Vec::new();
        for portion in checkpoint.portions() {
            let portion = portion.unwrap();
            let tables =
                portion.tables.iter().flat_map(|table| std::iter::once(&table.values).chain(&table.state));
            let parts = std::iter::once(&portion.dense).chain(&portion.dense_state).chain(tables);
            bits.extend(parts.flatten().map(|number| number.to_bits()));
            let rows = portion.tables.iter().flat_map(|table| &table.rows);
            bits.extend(rows.map(|row| u32::try_from(*row).unwrap()));
        }
        all.insert(checkpoint.manifest().ledger.acked, bits);
    }
    all
}
