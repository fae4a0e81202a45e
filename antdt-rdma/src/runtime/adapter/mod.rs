//! Kinds of adapters: what differs between them, and the choice among those of a host.
//!
//! An adapter is judged by what it can do. A kind that needs more than these is a file beside this one and a line in
//! `KINDS`.

mod infiniband;
mod roce;

use std::fmt::Debug;
use std::sync::Arc;

use super::result::{Result, VerbsError};
use super::safe::{Device, Port};

/// Address of a port, as queue pairs need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Address {
    /// Number of the port.
    pub(super) port: u8,
    /// Its address.
    pub(super) gid: [u8; 16],
    /// Index of that address in the port's table.
    pub(super) gid_index: u8,
    /// Its address on an InfiniBand subnet; 0 on Ethernet.
    pub(super) lid: u16,
    /// Whether packets carry the GID.
    pub(super) global: bool,
}

/// What differs between kinds of adapters.
pub(super) trait Kind: Debug + Sync {
    /// Returns whether a port is of this kind.
    fn drives(&self, port: &Port) -> bool;

    /// Returns the address under which others reach a port of this kind.
    ///
    /// # Errors
    /// If it has none, in words.
    fn address(&self, device: &Device, port: &Port) -> std::result::Result<Address, String>;

    /// Returns the bytes that a work request should carry itself. A device that takes fewer refuses the queue pair.
    fn inline_bytes(&self) -> u32 {
        // A header and as much again; what every driver at hand accepts.
        128
    }
}

/// All kinds, the more special ones first.
const KINDS: &[&dyn Kind] = &[&roce::Roce, &infiniband::Infiniband];

/// An adapter that was chosen: a port of an open device.
#[derive(Debug, Clone)]
pub(super) struct Adapter {
    pub(super) device: Arc<Device>,
    pub(super) port: Port,
    pub(super) address: Address,
    pub(super) inline_bytes: u32,
}

impl Adapter {
    /// Chooses among the adapters of this host: the device of that name, or else the fastest active port of a kind that
    /// is known.
    pub(super) fn choose(name: Option<&str>) -> Result<Self> {
        let names = match name {
            Some(name) => vec![name.to_owned()],
            None => Device::names(),
        };
        if names.is_empty() {
            return Err(VerbsError::NoAdapter);
        }
        let (mut usable, mut lacks) = (Vec::new(), Vec::new());
        for name in names {
            let device = match Device::open(&name) {
                Ok(device) => device,
                Err(error @ VerbsError::NoSuchAdapter { .. }) => return Err(error),
                Err(error) => {
                    lacks.push(format!("{name}: {error}"));
                    continue;
                }
            };
            for port in device.ports() {
                match Self::of(&device, *port) {
                    Ok(adapter) => usable.push(adapter),
                    Err(why) => lacks.push(format!("{name}, port {}: {why}", port.number)),
                }
            }
        }
        // The first of equals, so that the same host chooses the same every time.
        let best = usable.into_iter().rev().max_by_key(|adapter| adapter.port.speed);
        best.ok_or_else(|| VerbsError::Unusable { why: lacks.join("; ") })
    }

    fn of(device: &Arc<Device>, port: Port) -> std::result::Result<Self, String> {
        if !port.active {
            return Err("it is not connected".to_owned());
        }
        let kind = KINDS.iter().find(|kind| kind.drives(&port)).ok_or("its link layer is unknown")?;
        let address = kind.address(device, &port)?;
        Ok(Self { device: device.clone(), port, address, inline_bytes: kind.inline_bytes() })
    }
}
