//! Says which source this simulator is built from, so that a calibration of another one is not shown beside its figures.

use std::path::PathBuf;

#[path = "src/source.rs"]
mod source;

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let beside = here.parent().expect("a crate lies in a folder");
    println!("cargo::rerun-if-changed=build.rs");
    for krate in source::CRATES {
        println!("cargo::rerun-if-changed={}", beside.join(krate).join("src").display());
    }
    println!("cargo::rustc-env=ANTDT_SIM_SOURCE={}", source::hash(beside));
}
