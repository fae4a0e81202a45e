//! `antdt` with the launcher `crowd`, which starts no processes: the benchmark `cluster` plays the nodes of its jobs.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use antdt::JobBuilder;
use antdt::core::registry::Setting;
use antdt::core::{Holder, NodeId};
use antdt::launch::runtime::Entry;
use antdt::launch::{LaunchError, LaunchStatus, Launcher, LauncherEvent, NodeExit, NodeSpec, Outlets};

/// As in the `antdt` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

struct CrowdLauncher {
    per_host: u32,
    outlets: Outlets,
    nodes: BTreeMap<Holder, LaunchStatus>,
}

impl Launcher for CrowdLauncher {
    fn place(&mut self, node: NodeId) -> Option<String> {
        Some(format!("host-{}", node.index / self.per_host))
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        let holder = spec.holder;
        self.nodes.insert(holder, LaunchStatus::Running);
        (self.outlets.events)(LauncherEvent::Started { holder });
        Ok(())
    }

    fn end(&mut self, holder: Holder, _: Duration) -> bool {
        let exit = NodeExit::default();
        let ended = self.nodes.insert(holder, LaunchStatus::Gone(exit)) == Some(LaunchStatus::Running);
        if ended {
            (self.outlets.events)(LauncherEvent::Gone { holder, exit, tail: Vec::new() });
        }
        ended
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.nodes.get(&holder).copied()
    }
}

const CROWD: Entry = Entry {
    name: "crowd",
    about: "nodes that another program plays",
    settings: || vec![Setting::new("per-host", 4, "workers of a host")],
    build: |settings| {
        let per_host: u32 = settings.value("per-host", 4, "a number of workers")?;
        if per_host == 0 {
            return Err(settings.refuse("per-host", per_host, "at least 1"));
        }
        Ok(Arc::new(move |outlets| Box::new(CrowdLauncher { per_host, outlets, nodes: BTreeMap::new() })))
    },
};

fn main() -> ExitCode {
    JobBuilder::new().launcher(CROWD).main()
}
