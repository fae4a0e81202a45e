//! Devices, their ports and their protection domains.
#![allow(unsafe_code, reason = "as in the module above")]

use std::ffi::CStr;
use std::fmt;
use std::fs;
use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;

use super::super::result::{Result, VerbsError, object, zero};
use super::super::sys;
use crate::verbs::{Gid, Mtu};

/// Entries of an address table that are looked at.
const GIDS_MAX: u32 = 128;

/// A port of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Port {
    /// Its number, from 1.
    pub(in super::super) number: u8,
    /// Whether it is connected.
    pub(in super::super) active: bool,
    /// Whether it is an Ethernet port.
    pub(in super::super) ethernet: bool,
    /// The longest packet that goes through it now.
    pub(in super::super) mtu: Mtu,
    /// Its address on an InfiniBand subnet; 0 on Ethernet.
    pub(in super::super) lid: u16,
    /// Its speed, in units without a meaning but for comparison.
    pub(in super::super) speed: u32,
    // Entries of its address table.
    gids: u32,
}

/// An open device.
pub(in super::super) struct Device {
    context: NonNull<sys::ibv_context>,
    name: String,
    ports: Vec<Port>,
    queue_depth_max: u32,
    completions_max: u32,
}

// SAFETY: a context may be used by several threads at once; so the library's documentation says.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Returns the names of all devices of this host.
    pub(in super::super) fn names() -> Vec<String> {
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let list = unsafe { sys::ibv_get_device_list(&mut count) };
        if list.is_null() {
            // No driver is loaded: as good as no device.
            return Vec::new();
        }
        let names = (0..usize::try_from(count).unwrap_or(0)).map(|index| {
            // SAFETY: the list has `count` devices, each with a name, until it is freed below.
            let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(*list.add(index))) };
            name.to_string_lossy().into_owned()
        });
        let names = names.collect();
        // SAFETY: the list came from the library and is freed once.
        unsafe { sys::ibv_free_device_list(list) };
        names
    }

    /// Opens the device of that name.
    ///
    /// # Errors
    /// If there is none, or this process may not use it.
    pub(in super::super) fn open(name: &str) -> Result<Arc<Self>> {
        let there = Self::names();
        let Some(index) = there.iter().position(|known| known == name) else {
            let there = if there.is_empty() { "none".to_owned() } else { there.join(", ") };
            return Err(VerbsError::NoSuchAdapter { asked: name.to_owned(), there });
        };
        let mut count = 0;
        // SAFETY: `count` outlives the call.
        let list = object("ibv_get_device_list", unsafe { sys::ibv_get_device_list(&mut count) })?;
        let inside = usize::try_from(count).is_ok_and(|count| index < count);
        let context = if inside {
            // SAFETY: the list has `count` devices, and is freed below.
            object("ibv_open_device", unsafe { sys::ibv_open_device(*list.as_ptr().add(index)) })
        } else {
            Err(VerbsError::NoAdapter)
        };
        // SAFETY: the list came from the library and is freed once; an open device does not need it.
        unsafe { sys::ibv_free_device_list(list.as_ptr()) };
        let context = context?;
        let mut device = Self {
            context,
            name: name.to_owned(),
            ports: Vec::new(),
            queue_depth_max: 0,
            completions_max: 0,
        };
        device.inspect()?;
        Ok(Arc::new(device))
    }

    // What it can do.
    fn inspect(&mut self) -> Result<()> {
        // SAFETY: all zeros is a value of this structure of numbers.
        let mut attributes: sys::ibv_device_attr = unsafe { mem::zeroed() };
        // SAFETY: the device is open, the structure exclusively borrowed.
        zero("ibv_query_device", unsafe { sys::ibv_query_device(self.context.as_ptr(), &mut attributes) })?;
        self.queue_depth_max = u32::try_from(attributes.max_qp_wr).unwrap_or(0);
        self.completions_max = u32::try_from(attributes.max_cqe).unwrap_or(0);
        for number in 1..=attributes.phys_port_cnt {
            // SAFETY: as above.
            let mut port: sys::ibv_port_attr = unsafe { mem::zeroed() };
            // SAFETY: the device is open, and the structure zeroed.
            zero("ibv_query_port", unsafe { sys::query_port(self.context.as_ptr(), number, &mut port) })?;
            let Some(mtu) = Mtu::from_code(port.active_mtu) else { continue };
            self.ports.push(Port {
                number,
                active: port.state == sys::ibv_port_state::IBV_PORT_ACTIVE,
                ethernet: port.link_layer == sys::LINK_LAYER_ETHERNET,
                mtu,
                lid: port.lid,
                speed: u32::from(port.active_speed) * u32::from(port.active_width),
                gids: u32::try_from(port.gid_tbl_len).unwrap_or(0).min(GIDS_MAX),
            });
        }
        Ok(())
    }

    /// Returns its name.
    pub(in super::super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns its ports.
    pub(in super::super) fn ports(&self) -> &[Port] {
        &self.ports
    }

    /// Returns the longest queue of work requests that it makes.
    pub(in super::super) const fn queue_depth_max(&self) -> u32 {
        self.queue_depth_max
    }

    /// Returns the longest queue of completions that it makes.
    pub(in super::super) const fn completions_max(&self) -> u32 {
        self.completions_max
    }

    /// Returns the addresses of a port, as sysfs has them: the library's call for their protocols is not declared.
    pub(in super::super) fn gids(&self, port: &Port) -> Vec<Gid> {
        let folder = format!("/sys/class/infiniband/{}/ports/{}", self.name, port.number);
        let read = |path: String| fs::read_to_string(path).ok();
        let entry = |index: u8| {
            let address = read(format!("{folder}/gids/{index}"))?;
            // Cannot be read for an entry that is empty.
            let kind = read(format!("{folder}/gid_attrs/types/{index}"))?;
            Gid::parse(index, &address, &kind)
        };
        (0..port.gids).filter_map(|index| entry(u8::try_from(index).ok()?)).collect()
    }

    /// Returns the first address of a port.
    ///
    /// # Errors
    /// If the device does not say.
    pub(in super::super) fn first_gid(&self, port: &Port) -> Result<[u8; 16]> {
        let mut gid = sys::ibv_gid { raw: [0; 16] };
        // SAFETY: the device is open, the union exclusively borrowed.
        let asked = unsafe { sys::ibv_query_gid(self.context.as_ptr(), port.number, 0, &mut gid) };
        zero("ibv_query_gid", asked)?;
        // SAFETY: any bytes are valid for `raw`.
        Ok(unsafe { gid.raw })
    }

    pub(super) const fn context(&self) -> *mut sys::ibv_context {
        self.context.as_ptr()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything made from it holds an `Arc` of it, and is gone.
        unsafe { sys::ibv_close_device(self.context.as_ptr()) };
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name).field("ports", &self.ports).finish_non_exhaustive()
    }
}

/// A protection domain: memory and queue pairs that may be used together.
pub(in super::super) struct ProtectionDomain {
    domain: NonNull<sys::ibv_pd>,
    device: Arc<Device>,
}

// SAFETY: as for devices.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as for devices.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Makes one on a device.
    ///
    /// # Errors
    /// If the device has no more.
    pub(in super::super) fn new(device: &Arc<Device>) -> Result<Arc<Self>> {
        // SAFETY: the device is open.
        let domain = object("ibv_alloc_pd", unsafe { sys::ibv_alloc_pd(device.context()) })?;
        Ok(Arc::new(Self { domain, device: device.clone() }))
    }

    /// Returns its device.
    pub(in super::super) const fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(super) const fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.domain.as_ptr()
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything made in it holds an `Arc` of it, and is gone.
        unsafe { sys::ibv_dealloc_pd(self.domain.as_ptr()) };
    }
}

impl fmt::Debug for ProtectionDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProtectionDomain").field("device", &self.device.name()).finish_non_exhaustive()
    }
}
