//! Connections that librdmacm makes, the connection manager of the RDMA stack. It knows nothing of the queue pairs: they are
//! connected by the attributes that it hands out.
#![allow(unsafe_code, reason = "as in the module above")]

use std::ffi::CStr;
use std::fmt;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use socket2::SockAddr;

use super::super::result::{Result, VerbsError, object, zero};
use super::super::sys;
use super::queue_pair::Way;
use crate::verbs::{HandshakeReport, Mtu};

/// How often a caller repeats a request that a peer's queue pair does not take. Its queue pairs have retries of their own.
const RETRIES: u8 = 6;

/// What the manager tells.
pub(in super::super) enum Event {
    /// Something happened to a connection.
    Of(ConnectionKey, HandshakeReport),
    /// A connection does not come about, for this reason.
    Failed(ConnectionKey, String),
    /// A call: the connection, the bytes that the caller sent, and the number of its queue pair.
    Request(Connection, Vec<u8>, u32),
    /// An event without a receiver.
    Other,
}

/// Tells connections apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct ConnectionKey(usize);

/// Where the manager tells what happened. Never waits.
pub(in super::super) struct Events {
    channel: NonNull<sys::rdma_event_channel>,
}

// SAFETY: the library's calls may come from any thread.
unsafe impl Send for Events {}
// SAFETY: as above; the library has a lock of its own.
unsafe impl Sync for Events {}

impl Events {
    /// Opens a channel to the manager.
    ///
    /// # Errors
    /// If the system has no manager.
    pub(in super::super) fn open() -> Result<Arc<Self>> {
        // SAFETY: it has no requirements.
        let channel = unsafe { sys::rdma_create_event_channel() };
        let why = |e: VerbsError| VerbsError::NoManager { why: format!("{e}; load it: modprobe rdma_ucm") };
        let made = Self { channel: object("rdma_create_event_channel", channel).map_err(why)? };
        let flags = fcntl_getfl(made.descriptor());
        let set = flags.and_then(|flags| fcntl_setfl(made.descriptor(), flags | OFlags::NONBLOCK));
        set.map_err(|e| VerbsError::Call { verb: "fcntl", source: e.into() })?;
        Ok(Arc::new(made))
    }

    /// Returns the descriptor that is readable when an event waits.
    pub(in super::super) fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel has a descriptor, which stays open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.channel.as_ref().fd) }
    }

    /// Takes the next event, if there is one.
    pub(in super::super) fn next(self: &Arc<Self>) -> Result<Option<Event>> {
        let mut event = ptr::null_mut();
        // SAFETY: the channel is alive, and the place outlives the call.
        let got = unsafe { sys::rdma_get_cm_event(self.channel.as_ptr(), &raw mut event) };
        match zero("rdma_get_cm_event", got) {
            Err(VerbsError::Call { source, .. }) if source.kind() == io::ErrorKind::WouldBlock => {
                return Ok(None);
            }
            result => result?,
        }
        let event = object("rdma_get_cm_event", event)?;
        // SAFETY: an event lives until it is acknowledged below.
        let taken = self.read(unsafe { event.as_ref() });
        // A connection with an event that is not acknowledged cannot be given up.
        // SAFETY: acknowledged once; nothing of it is kept.
        zero("rdma_ack_cm_event", unsafe { sys::rdma_ack_cm_event(event.as_ptr()) })?;
        Ok(Some(taken))
    }

    fn read(self: &Arc<Self>, event: &sys::rdma_cm_event) -> Event {
        use sys::rdma_cm_event_type as kind;
        let key = ConnectionKey(event.id.addr());
        match event.event {
            kind::RDMA_CM_EVENT_CONNECT_REQUEST => {
                let Some(id) = NonNull::new(event.id) else { return Event::Other };
                // SAFETY: a request on a connection for streams has these parameters.
                let param = unsafe { &event.param.conn };
                let said = if param.private_data.is_null() {
                    Vec::new()
                } else {
                    let len = usize::from(param.private_data_len);
                    // SAFETY: so many bytes of the event, which lives.
                    unsafe { std::slice::from_raw_parts(param.private_data.cast::<u8>(), len) }.to_vec()
                };
                Event::Request(Connection { id, _events: self.clone() }, said, param.qp_num)
            }
            kind::RDMA_CM_EVENT_ADDR_RESOLVED => Event::Of(key, HandshakeReport::Address),
            kind::RDMA_CM_EVENT_ROUTE_RESOLVED => Event::Of(key, HandshakeReport::Way),
            kind::RDMA_CM_EVENT_CONNECT_RESPONSE => Event::Of(key, HandshakeReport::Answered),
            kind::RDMA_CM_EVENT_ESTABLISHED => Event::Of(key, HandshakeReport::Confirmed),
            kind::RDMA_CM_EVENT_DISCONNECTED => Event::Of(key, HandshakeReport::Ended),
            kind::RDMA_CM_EVENT_ADDR_ERROR
            | kind::RDMA_CM_EVENT_ROUTE_ERROR
            | kind::RDMA_CM_EVENT_CONNECT_ERROR
            | kind::RDMA_CM_EVENT_UNREACHABLE
            | kind::RDMA_CM_EVENT_REJECTED
            | kind::RDMA_CM_EVENT_DEVICE_REMOVAL => {
                // SAFETY: the library returns a constant text for any number.
                let text = unsafe { CStr::from_ptr(sys::rdma_event_str(event.event)) };
                Event::Failed(key, format!("{} ({})", text.to_string_lossy(), event.status))
            }
            _ => Event::Other,
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: connections hold an `Arc` of it, and are gone.
        unsafe { sys::rdma_destroy_event_channel(self.channel.as_ptr()) };
    }
}

/// A connection in the making, or made; or the place where calls are taken.
pub(in super::super) struct Connection {
    id: NonNull<sys::rdma_cm_id>,
    _events: Arc<Events>,
}

// SAFETY: as for `Events`.
unsafe impl Send for Connection {}
// SAFETY: as for `Events`.
unsafe impl Sync for Connection {}

impl Connection {
    /// Makes one that is nowhere yet.
    pub(in super::super) fn new(events: &Arc<Events>) -> Result<Self> {
        let mut id = ptr::null_mut();
        let space = sys::rdma_port_space::RDMA_PS_TCP;
        // SAFETY: the channel is alive, and kept so by what is returned; the place outlives the call.
        let made =
            unsafe { sys::rdma_create_id(events.channel.as_ptr(), &raw mut id, ptr::null_mut(), space) };
        zero("rdma_create_id", made)?;
        Ok(Self { id: object("rdma_create_id", id)?, _events: events.clone() })
    }

    pub(in super::super) fn key(&self) -> ConnectionKey {
        ConnectionKey(self.id.as_ptr().addr())
    }

    /// Takes calls at an address of this host, for as many at once; returns the number that callers need besides.
    pub(in super::super) fn listen(&self, at: IpAddr, at_once: u32) -> Result<u16> {
        let at = SockAddr::from(SocketAddr::new(at, 0));
        // SAFETY: the connection is alive; the address is read only, and outlives the call.
        let bound = unsafe { sys::rdma_bind_addr(self.id.as_ptr(), at.as_ptr().cast_mut().cast()) };
        zero("rdma_bind_addr", bound)?;
        let at_once = i32::try_from(at_once).unwrap_or(i32::MAX);
        // SAFETY: the connection is alive.
        zero("rdma_listen", unsafe { sys::rdma_listen(self.id.as_ptr(), at_once) })?;
        // SAFETY: the connection is alive.
        Ok(u16::from_be(unsafe { sys::rdma_get_src_port(self.id.as_ptr()) }))
    }

    /// Asks which adapter leads to a peer.
    pub(in super::super) fn ask_address(&self, from: IpAddr, to: SocketAddr, within: Duration) -> Result<()> {
        let (from, to) = (SockAddr::from(SocketAddr::new(from, 0)), SockAddr::from(to));
        let (from, to) = (from.as_ptr().cast_mut().cast(), to.as_ptr().cast_mut().cast());
        // SAFETY: the connection is alive; the addresses are read only, and outlive the call.
        let asked = unsafe { sys::rdma_resolve_addr(self.id.as_ptr(), from, to, millis(within)) };
        zero("rdma_resolve_addr", asked)
    }

    /// Asks for the way to the peer.
    pub(in super::super) fn ask_way(&self, within: Duration) -> Result<()> {
        // SAFETY: the connection is alive.
        zero("rdma_resolve_route", unsafe { sys::rdma_resolve_route(self.id.as_ptr(), millis(within)) })
    }

    /// Calls the peer, for this queue pair.
    pub(in super::super) fn call(&self, queue_pair: u32, said: &[u8]) -> Result<()> {
        let mut param = Self::param(queue_pair, said);
        // SAFETY: the connection is alive; parameters and bytes are copied before the call returns.
        zero("rdma_connect", unsafe { sys::rdma_connect(self.id.as_ptr(), &raw mut param) })
    }

    /// Answers the peer that called, for this queue pair.
    pub(in super::super) fn answer(&self, queue_pair: u32) -> Result<()> {
        let mut param = Self::param(queue_pair, &[]);
        // SAFETY: as above.
        zero("rdma_accept", unsafe { sys::rdma_accept(self.id.as_ptr(), &raw mut param) })
    }

    /// Refuses the peer that called.
    pub(in super::super) fn refuse(&self) {
        // A member that is not told finds out when its patience ends.
        // SAFETY: the connection is alive.
        let _ = unsafe { sys::rdma_reject(self.id.as_ptr(), ptr::null(), 0) };
    }

    /// Confirms the answer of the peer that was called.
    pub(in super::super) fn confirm(&self) -> Result<()> {
        // SAFETY: the connection is alive.
        zero("rdma_establish", unsafe { sys::rdma_establish(self.id.as_ptr()) })
    }

    fn param(queue_pair: u32, said: &[u8]) -> sys::rdma_conn_param {
        // SAFETY: all zeros is a value of this structure of numbers and a pointer.
        let mut param: sys::rdma_conn_param = unsafe { mem::zeroed() };
        param.private_data = said.as_ptr().cast();
        param.private_data_len = u8::try_from(said.len()).expect("a greeting is short");
        (param.responder_resources, param.initiator_depth) = (1, 1);
        (param.retry_count, param.rnr_retry_count) = (RETRIES, RETRIES);
        param.qp_num = queue_pair;
        param
    }

    /// Returns the name and the port of the device that the connection goes through, once that is known.
    pub(in super::super) fn adapter(&self) -> Option<(String, u8)> {
        // SAFETY: the connection is alive.
        let id = unsafe { self.id.as_ref() };
        // SAFETY: an open device of the library, if there is one.
        let device = unsafe { id.verbs.as_ref() }?.device;
        // SAFETY: a device has a name.
        let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) };
        Some((name.to_string_lossy().into_owned(), id.port_num))
    }

    /// Returns the way to the peer that called, or that answered.
    pub(in super::super) fn way(&self) -> Result<Way> {
        let receiving = self.attributes(sys::ibv_qp_state::IBV_QPS_RTR)?;
        let sending = self.attributes(sys::ibv_qp_state::IBV_QPS_RTS)?;
        let mtu = Mtu::from_code(receiving.path_mtu).ok_or_else(|| VerbsError::NoManager {
            why: format!("it knows no length of packets ({})", receiving.path_mtu),
        })?;
        Ok(Way {
            address: receiving.ah_attr,
            mtu,
            queue_pair: receiving.dest_qp_num,
            expects: receiving.rq_psn,
            packet: sending.sq_psn,
        })
    }

    fn attributes(&self, state: u32) -> Result<sys::ibv_qp_attr> {
        // SAFETY: all zeros is a value of this structure of numbers.
        let mut attributes: sys::ibv_qp_attr = unsafe { mem::zeroed() };
        attributes.qp_state = state;
        let mut mask = 0;
        // SAFETY: the connection is alive, the places are exclusively borrowed.
        let asked = unsafe { sys::rdma_init_qp_attr(self.id.as_ptr(), &raw mut attributes, &raw mut mask) };
        zero("rdma_init_qp_attr", asked)?;
        Ok(attributes)
    }
}

fn millis(time: Duration) -> i32 {
    i32::try_from(time.as_millis()).unwrap_or(i32::MAX).max(1)
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: nothing else has it, and all of its events are acknowledged. The channel outlives it.
        unsafe { sys::rdma_destroy_id(self.id.as_ptr()) };
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("adapter", &self.adapter()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({:?})", self.descriptor())
    }
}
