//! Completion queues, with the descriptor on which a thread sleeps.
#![allow(unsafe_code, reason = "as in the module above")]

use std::fmt;
use std::mem;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use super::super::result::{Result, VerbsError, WorkStatus, object, zero};
use super::super::sys;
use super::device::Device;

/// Completions taken from a queue at a time.
const BATCH: usize = 16;

/// What a receive brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Arrival {
    /// A message in the buffer that was posted, with its length in bytes.
    Message(u32),
    /// A one-sided write elsewhere, with its length in bytes and its immediate.
    Write(u32, u32),
}

/// A work request that ended.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Completion {
    /// The number that was posted with it.
    pub(in super::super) id: u64,
    pub(in super::super) status: WorkStatus,
    /// What it brought, if it was a receive that succeeded.
    pub(in super::super) arrival: Option<Arrival>,
}

impl Completion {
    fn of(entry: &sys::ibv_wc) -> Self {
        let status = WorkStatus::new(entry.status);
        let arrival = match entry.opcode {
            _ if !status.is_success() => None,
            sys::ibv_wc_opcode::IBV_WC_RECV => Some(Arrival::Message(entry.byte_len)),
            sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => {
                // SAFETY: such a completion has an immediate; any bits are one.
                let bits = unsafe { entry.imm_data_invalidated_rkey_union.imm_data };
                Some(Arrival::Write(entry.byte_len, u32::from_be(bits)))
            }
            _ => None,
        };
        Self { id: entry.wr_id, status, arrival }
    }
}

/// A completion queue, and the channel that says when it is not empty.
pub(in super::super) struct CompletionQueue {
    queue: NonNull<sys::ibv_cq>,
    channel: NonNull<sys::ibv_comp_channel>,
    _device: Arc<Device>,
}

// SAFETY: as for devices; polling from several threads is serialised by the library.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Makes a queue for `len` completions.
    pub(in super::super) fn new(device: &Arc<Device>, len: u32) -> Result<Arc<Self>> {
        // SAFETY: the device is open.
        let channel = unsafe { sys::ibv_create_comp_channel(device.context()) };
        let channel = object("ibv_create_comp_channel", channel)?;
        let len = i32::try_from(len).unwrap_or(i32::MAX);
        // SAFETY: device and channel are alive; no context is passed.
        let queue =
            unsafe { sys::ibv_create_cq(device.context(), len, ptr::null_mut(), channel.as_ptr(), 0) };
        let queue = object("ibv_create_cq", queue).inspect_err(|_| {
            // SAFETY: made above, and not in use.
            unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) };
        })?;
        let made = Self { queue, channel, _device: device.clone() };
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

    /// Takes completions, in order for each queue pair, some at a time; whether there was one.
    pub(in super::super) fn poll(&self, mut take: impl FnMut(Completion)) -> Result<bool> {
        // SAFETY: all zeros is a value of these structures of numbers.
        let mut entries: [sys::ibv_wc; BATCH] = unsafe { mem::zeroed() };
        // SAFETY: the queue is alive, and there is room for `BATCH` entries.
        let count = unsafe { sys::ibv_poll_cq(self.queue.as_ptr(), BATCH as i32, entries.as_mut_ptr()) };
        let Ok(count) = usize::try_from(count) else {
            zero("ibv_poll_cq", count)?;
            return Ok(false);
        };
        entries[..count].iter().map(Completion::of).for_each(&mut take);
        Ok(count > 0)
    }

    pub(super) const fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.queue.as_ptr()
    }

    /// Asks for an event with the next completion. Those that came before must be polled for once more.
    pub(in super::super) fn arm(&self) -> Result<()> {
        // SAFETY: the queue is alive.
        zero("ibv_req_notify_cq", unsafe { sys::ibv_req_notify_cq(self.queue.as_ptr(), 0) })
    }

    /// Takes the events that wait; whether there was one.
    pub(in super::super) fn hear(&self) -> bool {
        let mut heard = false;
        loop {
            let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the channel is alive and does not block; both places outlive the call.
            let got = unsafe { sys::ibv_get_cq_event(self.channel.as_ptr(), &mut queue, &mut context) };
            if got != 0 {
                return heard;
            }
            heard = true;
            // A queue with an event that is not acknowledged cannot be destroyed.
            // SAFETY: the event was of the only queue of this channel.
            unsafe { sys::ibv_ack_cq_events(self.queue.as_ptr(), 1) };
        }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.hear();
        // SAFETY: queue pairs that use it hold an `Arc` of it, and are gone; no event is unacknowledged.
        unsafe {
            sys::ibv_destroy_cq(self.queue.as_ptr());
            sys::ibv_destroy_comp_channel(self.channel.as_ptr());
        }
    }
}

impl fmt::Debug for CompletionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompletionQueue").finish_non_exhaustive()
    }
}
