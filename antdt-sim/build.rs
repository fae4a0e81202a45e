//! Says which source this simulator is built from, so that a calibration of another one is not shown beside its figures.

use std::path::{Path, PathBuf};

/// Simulator, policies and machines: where a change can change a simulated figure.
const CRATES: [&str; 7] = [
    "antdt-core",
    "antdt-shard",
    "antdt-monitor",
    "antdt-controller",
    "antdt-agent",
    "antdt-job",
    "antdt-sim",
];

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let beside = here.parent().expect("a crate lies in a folder");
    let mut files = Vec::new();
    for krate in CRATES {
        let folder = beside.join(krate).join("src");
        println!("cargo::rerun-if-changed={}", folder.display());
        // A crate that was taken from a registry stands alone: the source counts as another one.
        collect(&folder, &mut files);
    }
    files.sort();
    // FNV-1a with 64 bits: it must tell versions apart, not withstand anybody.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        let name = file.strip_prefix(beside).unwrap_or(&file).to_string_lossy().into_owned();
        let text = std::fs::read(&file).unwrap_or_default();
        for byte in name.bytes().chain([0]).chain(text).chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    println!("cargo::rustc-env=ANTDT_SIM_SOURCE={hash:016x}");
}

/// The sources below `folder` but for tests, which change no figure.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_test = path.file_stem().is_some_and(|stem| stem == "tests" || stem == "testing");
        if is_test {
            continue;
        }
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
