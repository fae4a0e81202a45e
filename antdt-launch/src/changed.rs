//! [`Changed`]: a launcher that changes what another one starts.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::Duration;

use antdt_core::{Holder, NodeId};

use crate::launcher::{LaunchError, LaunchStatus, Launcher, NodeSpec};

/// A launcher that starts nodes by another one, with another program, other arguments or another environment: in a container, or with a
/// lower priority.
pub struct Changed<L> {
    launcher: L,
    change: Box<dyn Fn(NodeSpec) -> NodeSpec + Send>,
}

impl<L: Launcher> Changed<L> {
    /// Returns a launcher that gives each node to `launcher` as `change` returns it. The node that it is must stay the same.
    pub fn new(launcher: L, change: impl Fn(NodeSpec) -> NodeSpec + Send + 'static) -> Self {
        Self { launcher, change: Box::new(change) }
    }
}

impl<L: fmt::Debug> fmt::Debug for Changed<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changed").field("launcher", &self.launcher).finish_non_exhaustive()
    }
}

impl<L: Launcher> Launcher for Changed<L> {
    fn place(&mut self, node: NodeId) -> Option<String> {
        self.launcher.place(node)
    }

    fn hosts(&self) -> BTreeSet<String> {
        self.launcher.hosts()
    }

    fn avoid(&mut self, hosts: &BTreeSet<String>) {
        self.launcher.avoid(hosts);
    }

    fn launch(&mut self, spec: &NodeSpec) -> Result<(), LaunchError> {
        self.launcher.launch(&(self.change)(spec.clone()))
    }

    fn end(&mut self, holder: Holder, grace: Duration) -> bool {
        self.launcher.end(holder, grace)
    }

    fn status(&self, holder: Holder) -> Option<LaunchStatus> {
        self.launcher.status(holder)
    }

    fn outlive(&mut self, folder: &Path) -> bool {
        self.launcher.outlive(folder)
    }

    fn ends_with_host(&self) -> bool {
        self.launcher.ends_with_host()
    }

    fn handle(&self, holder: Holder) -> Option<String> {
        self.launcher.handle(holder)
    }

    fn lives(&self, handle: &str) -> bool {
        self.launcher.lives(handle)
    }

    fn adopt(&mut self, holder: Holder, handle: &str) -> Result<(), LaunchError> {
        self.launcher.adopt(holder, handle)
    }
}
