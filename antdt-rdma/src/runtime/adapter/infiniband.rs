//! InfiniBand: ports that a subnet manager gave an address.

use super::{Address, Kind};
use crate::runtime::safe::{Device, Port};

#[derive(Debug)]
pub(super) struct Infiniband;

impl Kind for Infiniband {
    fn drives(&self, port: &Port) -> bool {
        !port.ethernet
    }

    fn address(&self, device: &Device, port: &Port) -> Result<Address, String> {
        if port.lid == 0 {
            return Err("no subnet manager gave it an address; start one, such as opensm".to_owned());
        }
        let gid = device.first_gid(port).map_err(|error| error.to_string())?;
        // Within a subnet, packets go by the short address.
        Ok(Address { port: port.number, gid, gid_index: 0, lid: port.lid, global: false })
    }
}
