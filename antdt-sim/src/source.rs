//! Which source a simulator is built from, as a hash, so that a calibration of another one is not shown beside its figures.
//!
//! The build script computes it, and hands it over as `ANTDT_SIM_SOURCE`; only its tests are part of the crate.

use std::path::{Path, PathBuf};

/// Simulator, policies and machines: where a change can change a simulated figure. All crates of ours that this one is
/// built from.
pub(crate) const CRATES: [&str; 10] = [
    "antdt-core",
    "antdt-shard",
    "antdt-monitor",
    "antdt-controller",
    "antdt-agent",
    "antdt-collective",
    "antdt-cost",
    "antdt-groups",
    "antdt-job",
    "antdt-sim",
];

/// Returns the hash of the sources of [`CRATES`] in `beside`, the folder that has a folder of each.
pub(crate) fn hash(beside: &Path) -> String {
    let mut files = Vec::new();
    for krate in CRATES {
        // A crate that was taken from a registry stands alone: the source counts as another one.
        collect(&beside.join(krate).join("src"), &mut files);
    }
    files.sort();
    // FNV-1a with 64 bits: it must tell versions apart, not withstand an attacker.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for file in files {
        let name = file.strip_prefix(beside).unwrap_or(&file).to_string_lossy().into_owned();
        let text = std::fs::read(&file).unwrap_or_default();
        for byte in name.bytes().chain([0]).chain(text).chain([0]) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    format!("{hash:016x}")
}

/// Adds the sources below `folder` but for tests, which change no figure.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    #[test]
    fn the_source_is_that_of_every_crate_of_ours_that_the_simulator_is_built_from() {
        let manifest: toml::Table = include_str!("../Cargo.toml").parse().unwrap();
        // Groups are formed within antdt-job, and the rest of a job is predicted within antdt-controller.
        let names = manifest["dependencies"].as_table().unwrap().keys().map(String::as_str);
        let ours: BTreeSet<&str> = names
            .filter(|name| name.starts_with("antdt-"))
            .chain(["antdt-sim", "antdt-groups", "antdt-cost"])
            .collect();
        assert_eq!(BTreeSet::from(CRATES), ours);
    }

    #[test]
    fn a_change_of_any_source_is_another_source_and_one_of_a_test_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| {
            let file = folder.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        for krate in CRATES {
            write(&format!("{krate}/src/lib.rs"), "mod part;");
            write(&format!("{krate}/src/part/mod.rs"), "fn f() -> u32 { 1 }");
            write(&format!("{krate}/src/part/tests.rs"), "");
        }
        let before = hash(folder.path());
        assert_eq!(before, hash(folder.path()));
        for krate in CRATES {
            let part = format!("{krate}/src/part/mod.rs");
            write(&part, "fn f() -> u32 { 2 }");
            assert_ne!(before, hash(folder.path()), "{part}");
            write(&part, "fn f() -> u32 { 1 }");
            write(&format!("{krate}/src/part/tests.rs"), "fn t() {}");
            write(&format!("{krate}/README.md"), "words");
            assert_eq!(before, hash(folder.path()), "{krate}");
        }
        fs::rename(folder.path().join("antdt-job/src/part"), folder.path().join("antdt-job/src/other"))
            .unwrap();
        assert_ne!(before, hash(folder.path()), "a module moved");
    }
}
