//! RDMA over Ethernet: RoCE v2, in an adapter or in software (the kernel's `rdma_rxe`).

use super::{Address, Kind};
use crate::runtime::safe::{Device, Port};
use crate::verbs::choose;

#[derive(Debug)]
pub(super) struct Roce;

impl Kind for Roce {
    fn drives(&self, port: &Port) -> bool {
        port.ethernet
    }

    fn address(&self, device: &Device, port: &Port) -> Result<Address, String> {
        let gid = choose(&device.gids(port))
            .ok_or("it has no address of RoCE v2; give its network interface an IP address")?;
        Ok(Address { port: port.number, gid: gid.address, gid_index: gid.index, lid: 0, global: true })
    }
}
