//! The systems that are measured beside ours, where they are installed.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::crew::{Control, Crew};
use super::order::Medium;
use crate::arguments::Peer;
use crate::run;

const GLOO: &str = include_str!("gloo.py");
const OPENMPI: &str = include_str!("openmpi.c");
/// What finding out whether a peer is there may take. PyTorch needs seconds to be imported.
const LOOK: Duration = Duration::from_secs(60);

/// A peer that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Installed {
    /// A Python that has PyTorch, and the script of a rank.
    Gloo {
        /// The interpreter.
        python: PathBuf,
        /// The script.
        script: PathBuf,
    },
    /// The program of a rank.
    Openmpi {
        /// Built by `mpicc`.
        program: PathBuf,
    },
}

impl Installed {
    /// Looks for a peer and builds what its ranks run, in `folder`.
    ///
    /// # Errors
    /// If it is not there; says what is missing.
    pub fn find(peer: Peer, folder: &Path) -> Result<Self> {
        match peer {
            Peer::Gloo => {
                let script = written(folder, "gloo.py", GLOO)?;
                let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
                    let asks = "import torch.distributed as d; raise SystemExit(not d.is_available())";
                    succeeds(Command::new(python).args(["-c", asks])).is_ok()
                });
                let python =
                    python.context("no python3 imports torch.distributed; install python3-torch")?.into();
                Ok(Self::Gloo { python, script })
            }
            Peer::Openmpi => {
                let source = written(folder, "openmpi.c", OPENMPI)?;
                let program = folder.join("openmpi-rank");
                succeeds(Command::new("mpirun").arg("--version")).context("install openmpi-bin")?;
                let arguments = ["-O2".as_ref(), "-o".as_ref(), program.as_os_str(), source.as_os_str()];
                let built = succeeds(Command::new("mpicc").args::<_, &OsStr>(arguments));
                built.context("install libopenmpi-dev and a C compiler")?;
                Ok(Self::Openmpi { program: fs::canonicalize(&program)? })
            }
        }
    }

    /// Which peer it is.
    pub const fn peer(&self) -> Peer {
        match self {
            Self::Gloo { .. } => Peer::Gloo,
            Self::Openmpi { .. } => Peer::Openmpi,
        }
    }

    /// Starts its ranks. `medium` is for those that can choose.
    ///
    /// # Errors
    /// If they don't start.
    pub fn start(&self, medium: Medium, world: u32, folder: &Path) -> Result<Crew> {
        let control = Control::new()?;
        let (host, port) = (control.address.ip().to_string(), control.address.port().to_string());
        match self {
            Self::Gloo { python, script } => {
                // They find each other by a file that must not exist before.
                let store = tempfile::Builder::new().prefix("gloo-").tempdir()?;
                let commands = (0..world).map(|rank| {
                    let mut command = Command::new(python);
                    command.arg(script).args([&host, &port, &rank.to_string(), &world.to_string()]);
                    command.arg(store.path().join("store"));
                    command
                });
                Crew::start(format!("gloo {world}"), commands, &control, world, folder)
            }
            Self::Openmpi { program } => {
                let mut command = Command::new("mpirun");
                command.args(["-np", &world.to_string(), "--oversubscribe"]);
                if rustix::process::geteuid().is_root() {
                    command.arg("--allow-run-as-root");
                }
                // Not another layer that chooses its own transports.
                command.args(["--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1"]);
                command.args(match medium {
                    Medium::Tcp => &["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"][..],
                    Medium::Shm => &["--mca", "btl", "self,vader"],
                });
                command.arg(program).args([&host, &port]);
                Crew::start(format!("Open MPI {medium} {world}"), [command], &control, world, folder)
            }
        }
    }
}

fn written(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let file = folder.join(name);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

fn succeeds(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let status = run::wait(child.with_context(|| format!("cannot start {name}"))?, LOOK)?;
    if !status.success() {
        bail!("{name}: {status}");
    }
    Ok(())
}
