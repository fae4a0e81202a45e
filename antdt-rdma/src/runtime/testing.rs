//! Groups over RDMA adapters, for tests. Feature `testing`.

use antdt_collective::runtime::testing::{Members, met_members};

use super::{RdmaConfig, RdmaTransport};

/// Returns a group whose members communicate over their RDMA adapters, with these settings.
///
/// # Panics
/// If they cannot be connected.
pub fn rdma_members(world: u32, config: &RdmaConfig) -> Members<RdmaTransport> {
    let config = RdmaConfig { fallback: false, ..config.clone() };
    met_members(world, |listener, group, timeout, abort| {
        RdmaTransport::connect_with(listener, group, timeout, abort, config.clone())
    })
}
