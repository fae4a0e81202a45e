//! [`Installed`]: the other systems that are measured, where they are installed.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
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
/// Not another layer that chooses its own transports, and ranks that share a core hand it over.
const OPENMPI_FLAGS: [&str; 7] =
    ["--oversubscribe", "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1"];

const fn openmpi_btl(medium: Medium) -> &'static [&'static str] {
    match medium {
        Medium::Tcp => &["--mca", "btl", "self,tcp", "--mca", "btl_tcp_if_include", "lo"],
        Medium::Shm => &["--mca", "btl", "self,vader"],
    }
}

/// A peer, another project's library of collectives, that is installed on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Installed {
    /// PyTorch with gloo: a Python interpreter that has PyTorch.
    Gloo {
        /// Path of the Python interpreter.
        python: PathBuf,
        /// Path of the script that a rank runs.
        script: PathBuf,
        /// Versions of PyTorch and Python.
        version: String,
    },
    /// Open MPI with its compiler `mpicc`.
    Openmpi {
        /// Path of the program that a rank runs, built by `mpicc`.
        program: PathBuf,
        /// Version, as `mpirun` prints it.
        version: String,
    },
}

impl Installed {
    /// Looks for a peer on this machine, and builds in `folder` the program that its ranks run.
    ///
    /// # Errors
    /// If the peer is not installed; the error says what is missing.
    pub fn find(peer: Peer, folder: &Path) -> Result<Self> {
        match peer {
            Peer::Gloo => {
                let script = written(folder, "gloo.py", GLOO)?;
                let found = ["python3", "/usr/bin/python3"].into_iter().find_map(|python| {
                    let asks = "import platform, torch, torch.distributed as d; d.is_available() or exit(1); \
                                print('PyTorch', torch.__version__, 'in Python', platform.python_version())";
                    Some((python.into(), says(Command::new(python).args(["-c", asks])).ok()?))
                });
                let (python, version) =
                    found.context("no python3 imports torch.distributed; install python3-torch")?;
                Ok(Self::Gloo { python, script, version })
            }
            Peer::Openmpi => {
                let source = written(folder, "openmpi.c", OPENMPI)?;
                let program = folder.join("openmpi-rank");
                let version = says(Command::new("mpirun").arg("--version")).context("install openmpi-bin")?;
                let arguments = ["-O2".as_ref(), "-o".as_ref(), program.as_os_str(), source.as_os_str()];
                let built = says(Command::new("mpicc").args::<_, &OsStr>(arguments));
                built.context("install libopenmpi-dev and a C compiler")?;
                Ok(Self::Openmpi { program: fs::canonicalize(&program)?, version })
            }
        }
    }

    /// Returns which other system this is.
    pub const fn peer(&self) -> Peer {
        match self {
            Self::Gloo { .. } => Peer::Gloo,
            Self::Openmpi { .. } => Peer::Openmpi,
        }
    }

    /// Returns the version of the other system, and how it is run over a medium.
    pub fn about(&self, medium: Medium) -> String {
        match self {
            Self::Gloo { version, .. } => format!("{version}, one thread a rank, GLOO_SOCKET_IFNAME=lo"),
            Self::Openmpi { version, .. } => {
                format!("{version}, {} {}", OPENMPI_FLAGS.join(" "), openmpi_btl(medium).join(" "))
            }
        }
    }

    /// Starts `world` ranks of the other system, which may take `limit` for an order. `medium` has an effect
    /// only on systems that can choose it.
    ///
    /// # Errors
    /// If a rank does not start.
    pub fn start(&self, medium: Medium, (world, limit): (u32, Duration), folder: &Path) -> Result<Crew> {
        let control = Control::new()?;
        let (host, port) = (control.address.ip().to_string(), control.address.port().to_string());
        match self {
            Self::Gloo { python, script, .. } => {
                let store = store(folder, &port)?;
                let _ = fs::remove_file(&store);
                let commands = (0..world).map(|rank| {
                    let mut command = Command::new(python);
                    command.arg(script).args([&host, &port, &rank.to_string(), &world.to_string()]);
                    command.arg(&store);
                    command
                });
                Crew::start(format!("gloo {world}"), commands, &control, (world, limit), folder)
            }
            Self::Openmpi { program, .. } => {
                let mut command = Command::new("mpirun");
                command.args(["-np", &world.to_string()]);
                if rustix::process::geteuid().is_root() {
                    command.arg("--allow-run-as-root");
                }
                command.args(OPENMPI_FLAGS).args(openmpi_btl(medium));
                command.arg(program).args([&host, &port]);
                Crew::start(format!("Open MPI {medium} {world}"), [command], &control, (world, limit), folder)
            }
        }
    }
}

/// The file by which ranks of gloo find each other, which must not exist before. They take it as part of a URL, that is, from the root.
fn store(folder: &Path, port: &str) -> Result<PathBuf> {
    Ok(std::path::absolute(folder.join(format!("gloo-store-{port}")))?)
}

fn written(folder: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let file = folder.join(name);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(file)
}

/// The first line that a program prints, if it succeeds.
fn says(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = child.with_context(|| format!("cannot start {name}"))?;
    let out = child.stdout.take();
    let status = run::wait(child, LOOK)?;
    if !status.success() {
        bail!("{name}: {status}");
    }
    let mut text = String::new();
    // It has ended, and what it printed is shorter than a pipe.
    out.map_or(Ok(0), |out| out.take(4096).read_to_string(&mut text))?;
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_gloo_meet_in_the_folder_of_the_benchmark_when_that_is_named_from_where_it_runs() {
        let file = store(Path::new("target/bench"), "7").unwrap();
        assert_eq!(file, std::env::current_dir().unwrap().join("target/bench/gloo-store-7"));
    }
}
