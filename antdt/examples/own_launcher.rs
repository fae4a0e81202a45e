//! `antdt` with a launcher of one's own: nodes run by `nice`, so that other programs of the machine come first.
//! `cargo run -p antdt --example own_launcher -- run --launcher nice --nproc-per-node 2 --data synthetic:10000`
use std::sync::Arc;
use std::time::Duration;

use antdt::JobBuilder;
use antdt::core::registry::Setting;
use antdt::core::{Holder, NodeId};
use antdt::launch::runtime::{Entry, process::ProcessLauncher};
use antdt::launch::{LaunchError, LaunchStatus, Launcher, NodeSpec};

struct NiceLauncher {
    level: u8,
    processes: ProcessLauncher,
}

impl Launcher for NiceLauncher {
    fn place(&mut self, node: NodeId) -> Option<String> {
        self.processes.place(node)
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        let words = ["-n".into(), self.level.to_string().into(), spec.program.clone().into()];
        let args = words.into_iter().chain(spec.args.iter().cloned()).collect();
        self.processes.launch(&NodeSpec { program: "nice".into(), args, ..spec.clone() })
    }

    fn end(&mut self, holder: Holder, grace: Duration) -> bool {
        self.processes.end(holder, grace)
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.processes.status(holder)
    }
}

const NICE: Entry = Entry {
    name: "nice",
    about: "processes of this machine that let other programs come first",
    settings: || vec![Setting::new("level", 10, "niceness of a node, 0 to 19")],
    build: |settings| {
        let level: u8 = settings.value("level", 10, "0 to 19")?;
        if level > 19 {
            return Err(settings.refuse("level", level, "0 to 19"));
        }
        Ok(Arc::new(move |outlets| {
            Box::new(NiceLauncher { level, processes: ProcessLauncher::new(outlets) })
        }))
    },
};

fn main() -> std::process::ExitCode {
    JobBuilder::new().launcher(NICE).main()
}
