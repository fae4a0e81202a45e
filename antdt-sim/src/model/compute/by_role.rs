//! Workers by one model, servers by another.

use std::time::Duration;

use antdt_core::{DetRng, DeviceClass, Holder, JobTime, NodeId, Role};

use crate::model::{Compute, Host};

/// Compute model with one model for workers' gradients and one for the time that servers take for a request.
#[derive(Debug, Clone)]
pub struct ByRole<W, S> {
    /// Model of the workers' gradients.
    pub workers: W,
    /// Model of the time that a server takes for a request: a push of a gradient, or a pull of parameters.
    pub servers: S,
}

impl<W: Compute, S: Compute> Compute for ByRole<W, S> {
    fn time(&mut self, at: JobTime, holder: Holder, samples: u64, rng: &mut DetRng) -> Duration {
        match holder.node.role {
            Role::Worker => self.workers.time(at, holder, samples, rng),
            Role::Server => self.servers.time(at, holder, samples, rng),
        }
    }

    fn device(&self, node: NodeId) -> DeviceClass {
        match node.role {
            Role::Worker => self.workers.device(node),
            Role::Server => self.servers.device(node),
        }
    }

    fn batch_size_max(&self, node: NodeId) -> Option<u32> {
        match node.role {
            Role::Worker => self.workers.batch_size_max(node),
            Role::Server => None,
        }
    }

    fn moved(&mut self, node: NodeId, host: Host) {
        match node.role {
            Role::Worker => self.workers.moved(node, host),
            Role::Server => self.servers.moved(node, host),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::compute::Constant;
    use crate::model::compute::testing::{SECOND, time_of, worker};

    #[test]
    fn each_role_has_its_own_model() {
        let mut compute = ByRole { workers: SECOND, servers: Constant::default() };
        let server = Holder { node: NodeId::server(0), ..worker(0, 0) };
        assert_eq!(time_of(&mut compute, worker(0, 0), 0, 5), Duration::from_secs(1));
        assert_eq!(time_of(&mut compute, server, 0, 5), Duration::ZERO);
    }
}
