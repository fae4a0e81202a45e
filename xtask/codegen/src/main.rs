//! Generates the code of the wire schema, without a `protoc` on the machine: `antdt-codegen ROOT` writes it to standard output.
//!
//! A program of its own, because its generators take longer to build than all else that `cargo xtask` needs.
#![forbid(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const PROTO_ROOT: &str = "antdt-proto/proto";

fn main() -> Result<()> {
    let root = PathBuf::from(std::env::args_os().nth(1).context("which workspace? give its folder")?);
    io::stdout().write_all(generate(&root)?.as_bytes()).context("the code cannot be written")
}

/// The code for the schema in this workspace.
fn generate(root: &Path) -> Result<String> {
    let protos = protos(root)?;
    let descriptors =
        protox::compile(&protos, [root.join(PROTO_ROOT)]).context("the schema does not compile")?;
    let out = tempfile::tempdir().context("there is no folder for the code")?;
    tonic_prost_build::configure()
        .build_client(true)
        .build_server(true)
        // Shared by the replies to all members of a group.
        .bytes(".antdt.v1.JoinReply.joined")
        .out_dir(out.path())
        .compile_fds(descriptors)
        .context("the generator failed")?;
    fs::read_to_string(out.path().join("antdt.v1.rs")).context("the generator wrote no antdt.v1.rs")
}

/// The schema's files in a fixed order.
fn protos(root: &Path) -> Result<Vec<PathBuf>> {
    let folder = root.join(PROTO_ROOT).join("antdt/v1");
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "proto") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
