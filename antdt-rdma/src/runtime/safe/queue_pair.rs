//! Queue pairs: one end of a reliable connection.
#![allow(unsafe_code, reason = "as in the module above")]

use std::fmt;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::super::adapter::Address;
use super::super::result::{Result, object, posted, zero};
use super::super::sys;
use super::completion::CompletionQueue;
use super::device::ProtectionDomain;
use super::memory::MemoryRegion;
use crate::verbs::{Endpoint, Mtu, Retries};

/// Parts of memory that one write collects at most: a header and a payload.
const GATHER_MAX: usize = 2;

/// How often a sender asks again a peer that has no receive posted, and code of the pause that such a peer asks for:
/// 10 ms. Credits keep a member from ever needing either; without a bound it would wait for ever.
const NOT_READY_RETRIES: u8 = 6;
const NOT_READY_PAUSE: u8 = 20;

/// Routers that a packet may pass.
const HOPS_MAX: u8 = 64;

/// Length of a queue pair's queues.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Limits {
    pub(in super::super) sends: u32,
    pub(in super::super) receives: u32,
    /// Bytes that a work request carries itself.
    pub(in super::super) inline: u32,
}

/// The two ends of a connection, as their members named them.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Path {
    pub(in super::super) from: Address,
    pub(in super::super) to: Endpoint,
    pub(in super::super) mtu: Mtu,
    /// Number of the first packet that this end sends.
    pub(in super::super) packet: u32,
}

impl Path {
    /// Returns the way from one to the other.
    pub(in super::super) fn way(&self) -> Way {
        // SAFETY: all zeros is a value of this structure of numbers.
        let mut address: sys::ibv_ah_attr = unsafe { mem::zeroed() };
        address.port_num = self.from.port;
        address.dlid = self.to.lid;
        address.is_global = u8::from(self.from.global);
        address.grh.dgid = sys::ibv_gid { raw: self.to.gid };
        address.grh.sgid_index = self.from.gid_index;
        address.grh.hop_limit = HOPS_MAX;
        let (queue_pair, expects) = (self.to.queue_pair, self.to.packet);
        Way { address, mtu: self.mtu, queue_pair, expects, packet: self.packet }
    }
}

/// The way to a peer's queue pair.
#[derive(Clone, Copy)]
pub(in super::super) struct Way {
    pub(super) address: sys::ibv_ah_attr,
    pub(in super::super) mtu: Mtu,
    /// Number of the peer's queue pair.
    pub(super) queue_pair: u32,
    /// Numbers of the first packets that the peer sends, and this end.
    pub(super) expects: u32,
    pub(super) packet: u32,
}

/// Bytes that a work request reads or fills.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Gather {
    pub(in super::super) address: u64,
    pub(in super::super) len: u32,
    pub(in super::super) key: u32,
}

impl Gather {
    /// Bytes of registered memory.
    pub(in super::super) fn of(region: &MemoryRegion, at: usize, len: u32) -> Self {
        Self { address: region.address(at), len, key: region.local_key() }
    }

    const fn raw(self) -> sys::ibv_sge {
        sys::ibv_sge { addr: self.address, length: self.len, lkey: self.key }
    }
}

/// Memory of a peer.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Remote {
    pub(in super::super) address: u64,
    pub(in super::super) key: u32,
}

/// One end of a reliable connection.
pub(in super::super) struct QueuePair {
    pair: NonNull<sys::ibv_qp>,
    _completions: Arc<CompletionQueue>,
    _domain: Arc<ProtectionDomain>,
}

// SAFETY: as for devices.
unsafe impl Send for QueuePair {}
// SAFETY: as for devices.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// Makes a queue pair that may receive once it is [connected](Self::connect), and be posted receives before.
    pub(in super::super) fn new(
        domain: &Arc<ProtectionDomain>,
        completions: &Arc<CompletionQueue>,
        limits: Limits,
        port: u8,
    ) -> Result<Self> {
        // SAFETY: all zeros is a value of this structure of numbers and pointers.
        let mut initial: sys::ibv_qp_init_attr = unsafe { mem::zeroed() };
        initial.send_cq = completions.as_ptr();
        initial.recv_cq = completions.as_ptr();
        initial.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        initial.cap = sys::ibv_qp_cap {
            max_send_wr: limits.sends,
            max_recv_wr: limits.receives,
            max_send_sge: GATHER_MAX as u32,
            max_recv_sge: 1,
            max_inline_data: limits.inline,
        };
        // SAFETY: domain and completion queue are alive, and kept so by what is returned.
        let pair = object("ibv_create_qp", unsafe { sys::ibv_create_qp(domain.as_ptr(), &mut initial) })?;
        let made = Self { pair, _completions: completions.clone(), _domain: domain.clone() };
        let mut attributes = Self::to(sys::ibv_qp_state::IBV_QPS_INIT);
        attributes.port_num = port;
        attributes.qp_access_flags = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
        let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE
            | sys::ibv_qp_attr_mask::IBV_QP_PKEY_INDEX
            | sys::ibv_qp_attr_mask::IBV_QP_PORT
            | sys::ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS;
        made.modify("ibv_modify_qp to INIT", attributes, mask)?;
        Ok(made)
    }

    fn to(state: u32) -> sys::ibv_qp_attr {
        // SAFETY: all zeros is a value of this structure of numbers.
        let mut attributes: sys::ibv_qp_attr = unsafe { mem::zeroed() };
        attributes.qp_state = state;
        attributes
    }

    fn modify(
        &self,
        verb: &'static str,
        mut attributes: sys::ibv_qp_attr,
        mask: sys::ibv_qp_attr_mask,
    ) -> Result<()> {
        // SAFETY: the queue pair is alive, the structure exclusively borrowed.
        zero(verb, unsafe { sys::ibv_modify_qp(self.pair.as_ptr(), &mut attributes, mask.0 as i32) })
    }

    /// Returns its number, by which the peer addresses it.
    pub(in super::super) const fn number(&self) -> u32 {
        // SAFETY: alive until `drop`.
        unsafe { self.pair.as_ref().qp_num }
    }

    /// Connects it with the peer's queue pair.
    pub(in super::super) fn connect(&self, way: &Way, retry: Retries) -> Result<()> {
        let mut attributes = Self::to(sys::ibv_qp_state::IBV_QPS_RTR);
        attributes.path_mtu = way.mtu.code();
        attributes.dest_qp_num = way.queue_pair;
        attributes.rq_psn = way.expects;
        attributes.max_dest_rd_atomic = 1;
        attributes.min_rnr_timer = NOT_READY_PAUSE;
        attributes.ah_attr = way.address;
        let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE
            | sys::ibv_qp_attr_mask::IBV_QP_AV
            | sys::ibv_qp_attr_mask::IBV_QP_PATH_MTU
            | sys::ibv_qp_attr_mask::IBV_QP_DEST_QPN
            | sys::ibv_qp_attr_mask::IBV_QP_RQ_PSN
            | sys::ibv_qp_attr_mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp to RTR", attributes, mask)?;
        let mut attributes = Self::to(sys::ibv_qp_state::IBV_QPS_RTS);
        attributes.timeout = retry.exponent;
        attributes.retry_cnt = retry.count;
        attributes.rnr_retry = NOT_READY_RETRIES;
        attributes.sq_psn = way.packet;
        attributes.max_rd_atomic = 1;
        let mask = sys::ibv_qp_attr_mask::IBV_QP_STATE
            | sys::ibv_qp_attr_mask::IBV_QP_TIMEOUT
            | sys::ibv_qp_attr_mask::IBV_QP_RETRY_CNT
            | sys::ibv_qp_attr_mask::IBV_QP_RNR_RETRY
            | sys::ibv_qp_attr_mask::IBV_QP_SQ_PSN
            | sys::ibv_qp_attr_mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to RTS", attributes, mask)
    }

    /// Ends the connection: no more bytes of this process are read or written through it.
    pub(in super::super) fn give_up(&self) {
        let attributes = Self::to(sys::ibv_qp_state::IBV_QPS_ERR);
        // Cannot fail: every state leads there.
        let _ = self.modify("ibv_modify_qp to ERR", attributes, sys::ibv_qp_attr_mask::IBV_QP_STATE);
    }

    /// Posts a receive: `into` is filled by the peer's next message, or is left alone by its next one-sided write.
    ///
    /// # Safety
    /// Nothing else uses `into` until the receive completes.
    pub(in super::super) unsafe fn receive(&self, id: u64, into: Gather) -> Result<()> {
        let mut into = into.raw();
        let mut request =
            sys::ibv_recv_wr { wr_id: id, next: ptr::null_mut(), sg_list: &mut into, num_sge: 1 };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; the request is copied before the call returns; the memory is the caller's
        // promise.
        posted("ibv_post_recv", unsafe { sys::ibv_post_recv(self.pair.as_ptr(), &mut request, &mut bad) })
    }

    /// Sends a short message, which is copied into the request.
    pub(in super::super) fn send(&self, id: u64, bytes: &[u8]) -> Result<()> {
        let from = inline(bytes);
        // SAFETY: the bytes are copied before the call returns.
        unsafe { self.post(id, &[from], sys::ibv_wr_opcode::IBV_WR_SEND, true, None) }
    }

    /// Writes into the peer's memory, and tells it so with an immediate. The bytes are copied into the request.
    pub(in super::super) fn write_inline(
        &self,
        id: u64,
        bytes: &[u8],
        to: Remote,
        immediate: u32,
    ) -> Result<()> {
        let from = inline(bytes);
        let opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        // SAFETY: the bytes are copied before the call returns.
        unsafe { self.post(id, &[from], opcode, true, Some((to, immediate))) }
    }

    /// Writes into the peer's memory, and tells it so with an immediate.
    ///
    /// # Safety
    /// Nothing writes `from` until the write completes, or the queue pair was given up.
    pub(in super::super) unsafe fn write(
        &self,
        id: u64,
        from: &[Gather],
        to: Remote,
        immediate: u32,
    ) -> Result<()> {
        let opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        // SAFETY: the caller's promise.
        unsafe { self.post(id, from, opcode, false, Some((to, immediate))) }
    }

    /// # Safety
    /// As [`write`](Self::write), but for what goes inline.
    unsafe fn post(
        &self,
        id: u64,
        from: &[Gather],
        opcode: u32,
        inline: bool,
        write: Option<(Remote, u32)>,
    ) -> Result<()> {
        assert!(from.len() <= GATHER_MAX, "more parts than a queue pair was made for");
        let mut parts = [Gather { address: 0, len: 0, key: 0 }.raw(); GATHER_MAX];
        for (part, from) in parts.iter_mut().zip(from) {
            *part = from.raw();
        }
        // SAFETY: all zeros is a value of this structure of numbers and pointers.
        let mut request: sys::ibv_send_wr = unsafe { mem::zeroed() };
        request.wr_id = id;
        request.sg_list = parts.as_mut_ptr();
        request.num_sge = i32::try_from(from.len()).expect("at most two");
        request.opcode = opcode;
        request.send_flags = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        if inline {
            request.send_flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        if let Some((to, immediate)) = write {
            request.wr.rdma = sys::rdma_t { remote_addr: to.address, rkey: to.key };
            request.imm_data_invalidated_rkey_union =
                sys::imm_data_invalidated_rkey_union_t { imm_data: immediate.to_be() };
        }
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is alive; the request is copied before the call returns; the memory is the caller's
        // promise.
        posted("ibv_post_send", unsafe { sys::ibv_post_send(self.pair.as_ptr(), &mut request, &mut bad) })
    }
}

// Bytes that are copied, for which no key is needed.
fn inline(bytes: &[u8]) -> Gather {
    let len = u32::try_from(bytes.len()).expect("inline bytes are few");
    Gather { address: bytes.as_ptr().expose_provenance() as u64, len, key: 0 }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: nothing else has it.
        unsafe { sys::ibv_destroy_qp(self.pair.as_ptr()) };
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QueuePair({})", self.number())
    }
}
