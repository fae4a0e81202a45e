//! The means to inject faults that this machine and this job have.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use antdt_core::Seed;
use tokio::net::TcpListener;

use super::cgroup::{Controller, Place};
use super::clock::Clock;
use super::disk::Disks;
use super::link::Links;
use super::rpc::{BoxError, Calls};
use super::{ChaosError, ChaosRun};
use crate::ChaosKind;

/// The means by which faults are carried out.
#[derive(Debug)]
pub(super) struct Tools {
    pub(super) cpu: Option<Place>,
    pub(super) memory: Option<Place>,
    pub(super) links: Option<Links>,
    pub(super) calls: Option<Calls>,
    pub(super) disks: Option<Disks>,
    pub(super) clock: Option<Clock>,
    /// Kinds that cannot occur, and why.
    pub(super) missing: BTreeMap<ChaosKind, String>,
    /// Folder of what this process needs, which is removed.
    folder: PathBuf,
}

/// What the job must be told for the tools to take hold.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) arguments: Vec<String>,
    pub(super) variables: Vec<(&'static str, String)>,
    /// Its run directory, if it is not the usual one.
    pub(super) run_dir: Option<PathBuf>,
}

impl Tools {
    /// Gets ready what the kinds of `chaos` need.
    pub(super) async fn prepare(chaos: &ChaosRun) -> Result<(Self, Told), ChaosError> {
        let folder = std::env::temp_dir().join(format!("antdt-chaos-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|source| ChaosError::File { path: folder.clone(), source })?;
        let missing = BTreeMap::new();
        let (cpu, memory, links, calls, disks, clock) = (None, None, None, None, None, None);
        let mut tools = Self { cpu, memory, links, calls, disks, clock, missing, folder };
        let mut told = Told::default();
        tools.of_the_job(chaos);
        tools.cpu = tools.get(chaos, &[ChaosKind::SlowCpu], |_| Place::find(Controller::Cpu));
        tools.memory = tools.get(chaos, &[ChaosKind::OutOfMemory], |_| Place::find(Controller::Memory));
        // Without a limit it is killed as the kernel would.
        tools.missing.remove(&ChaosKind::OutOfMemory);
        tools.clock = tools.get(chaos, &[ChaosKind::ClockJump], |folder| Clock::find(&folder.join("clock")));
        told.variables.extend(tools.clock.iter().flat_map(Clock::variables));
        let own = |name: &str| match chaos.given.contains(name) {
            true => Err(format!("the job has a --{name} of its own")),
            false => Ok(()),
        };
        tools.disks = tools.get(chaos, &[ChaosKind::DiskFull, ChaosKind::DiskReadOnly], |folder| {
            own("run-dir").and_then(|()| own("checkpoint-dir"))?;
            Disks::mount(&folder.join("run"))
                .map_err(|error| format!("no file system can be mounted: {error}"))
        });
        if tools.disks.is_some() {
            let run_dir = tools.folder.join("run");
            told.arguments.extend(["--run-dir".to_owned(), run_dir.display().to_string()]);
            told.run_dir = Some(run_dir);
        }
        const NETWORK: [ChaosKind; 8] = [
            ChaosKind::SlowLink,
            ChaosKind::LossyLink,
            ChaosKind::CutLink,
            ChaosKind::HalfReset,
            ChaosKind::BlackHole,
            ChaosKind::CorruptFrame,
            ChaosKind::DuplicateRpc,
            ChaosKind::ReorderRpc,
        ];
        tools.links = tools.get(chaos, &NETWORK, |_| {
            ["bind", "advertise", "master-port"].into_iter().try_for_each(own)?;
            Links::open(Seed(chaos.plan.seed))
                .map_err(|error| format!("no network interface (TUN) can be made: {error}"))
        });
        if let Some(links) = &tools.links {
            match take_calls(links, Seed(chaos.plan.seed)).await {
                Ok((calls, port)) => {
                    let (here, there) = (links.here().to_string(), links.there().to_string());
                    let port = port.to_string();
                    let told_too = [("--bind", here), ("--advertise", there), ("--master-port", port)];
                    told.arguments
                        .extend(told_too.into_iter().flat_map(|(name, text)| [name.to_owned(), text]));
                    // What is damaged on the way is to arrive so.
                    told.arguments.push("--insecure".to_owned());
                    if own("transport").is_ok() {
                        // Shared memory has no packets.
                        told.arguments.extend(["--transport", "tcp"].map(str::to_owned));
                    }
                    tools.calls = Some(calls);
                }
                Err(error) => {
                    tools.links = None;
                    let why = format!("calls cannot be taken: {error}");
                    tools.missing.extend(NETWORK.map(|kind| (kind, why.clone())));
                }
            }
        }
        Ok((tools, told))
    }

    /// Gets a tool if a kind that needs it is wanted; the kinds are missing if it cannot be had.
    fn get<T>(
        &mut self,
        chaos: &ChaosRun,
        kinds: &[ChaosKind],
        find: impl FnOnce(&Path) -> Result<T, String>,
    ) -> Option<T> {
        if !kinds.iter().any(|kind| chaos.plan.kinds.contains(kind)) {
            return None;
        }
        match find(&self.folder) {
            Ok(tool) => Some(tool),
            Err(why) => {
                self.missing.extend(kinds.iter().map(|kind| (*kind, why.clone())));
                None
            }
        }
    }

    /// What cannot happen to a job of this kind.
    fn of_the_job(&mut self, chaos: &ChaosRun) {
        let spec = &chaos.spec;
        if spec.servers == 0 {
            self.missing.insert(ChaosKind::ServerKill, "the job has no servers".to_owned());
        }
        if spec.program.is_some() {
            let why = "a program of the user's own has no model to go back to";
            for kind in [ChaosKind::MasterKill, ChaosKind::AllWorkersKill] {
                self.missing.insert(kind, why.to_owned());
            }
        } else if spec.emulate_network.is_some() {
            let why = "a job with --emulate-network ends with its master";
            self.missing.insert(ChaosKind::MasterKill, why.to_owned());
        }
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        // The disks are in it.
        self.disks = None;
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Puts the proxy of calls between nodes and master. Returns it, and the port that the master is to listen at.
async fn take_calls(links: &Links, seed: Seed) -> Result<(Calls, u16), BoxError> {
    let listener = TcpListener::bind((links.here(), 0)).await?;
    let taken = listener.local_addr()?.port();
    let port = free_port(links.here()).await?;
    let calls = Calls::serve(listener, SocketAddr::from((links.here(), port)), seed)?;
    links.take_calls(port, taken);
    Ok((calls, port))
}

/// A port that is free now.
async fn free_port(address: Ipv4Addr) -> io::Result<u16> {
    Ok(TcpListener::bind((address, 0)).await?.local_addr()?.port())
}
