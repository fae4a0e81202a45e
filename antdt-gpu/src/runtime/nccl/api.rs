//! The functions of NCCL that are used, looked up in the library when it is loaded.
//!
//! The types are those of cudarc's bindings, the look-up is that of `library`. Numbers of C's enumerations stay numbers, since a newer library may return one that the bindings do not know.
#![allow(unsafe_code, reason = "declares functions of a library, and calls them")]

use std::ffi::{c_int, c_uint, c_void};

use antdt_collective::element::ElementType;
use antdt_collective::op::ReduceOp;
use cudarc::nccl::sys::{ncclComm_t, ncclConfig_t, ncclUniqueId};

use super::error::NcclError;
use crate::device::Abilities;
use crate::runtime::device::bulk::BulkError;
use crate::runtime::library::{LoadError, functions};

/// Names of the library, most specific first: packages for development add the second.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The oldest library that is used: it has communicators whose calls do not block, and settings for those that are made of
/// others.
const VERSION_MIN: c_int = 21_800;

/// Number of a result (`ncclResult_t`).
type Status = c_uint;

const SUCCESS: Status = 0;
const IN_PROGRESS: Status = 7;

/// Of an argument of a configuration that is not given (`NCCL_CONFIG_UNDEF_INT`).
const UNDEFINED: c_int = c_int::MIN;

/// Of a member that is in no part (`NCCL_SPLIT_NOCOLOR`).
const NO_PART: c_int = -1;

/// A stream of the CUDA driver.
pub(super) type Stream = *mut c_void;

// As in the header of NCCL 2.32, and in the versions before.
functions! {
    Api -> Status, "ncclGetErrorString";
    needed {
        get_version = "ncclGetVersion": (*mut c_int);
        get_unique_id = "ncclGetUniqueId": (*mut ncclUniqueId);
        init = "ncclCommInitRankConfig": (*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t);
        async_error = "ncclCommGetAsyncError": (ncclComm_t, *mut Status);
        abort = "ncclCommAbort": (ncclComm_t);
        group_start = "ncclGroupStart": ();
        group_end = "ncclGroupEnd": ();
        all_reduce = "ncclAllReduce": (*const c_void, *mut c_void, usize, c_uint, c_uint, ncclComm_t, Stream);
        reduce = "ncclReduce": (*const c_void, *mut c_void, usize, c_uint, c_uint, c_int, ncclComm_t, Stream);
        broadcast = "ncclBroadcast": (*const c_void, *mut c_void, usize, c_uint, c_int, ncclComm_t, Stream);
        send = "ncclSend": (*const c_void, usize, c_uint, c_int, ncclComm_t, Stream);
        recv = "ncclRecv": (*mut c_void, usize, c_uint, c_int, ncclComm_t, Stream);
    }
    optional {
        shrink = "ncclCommShrink": (ncclComm_t, *mut c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t, c_int);
        revoke = "ncclCommRevoke": (ncclComm_t, c_int);
        grow = "ncclCommGrow": (ncclComm_t, c_int, *const ncclUniqueId, c_int, *mut ncclComm_t, *mut ncclConfig_t);
        split = "ncclCommSplit": (ncclComm_t, c_int, c_int, *mut ncclComm_t, *mut ncclConfig_t);
        grow_id = "ncclCommGetUniqueId": (ncclComm_t, *mut ncclUniqueId);
    }
}

/// A communicator of the library; its owner may use it from one thread at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Raw(ncclComm_t);

// SAFETY: the library binds a communicator to no thread.
unsafe impl Send for Raw {}

/// Where the library writes a communicator. Its few bytes are never freed: they may be written after the call returned.
#[derive(Debug)]
pub(super) struct Child(*mut ncclComm_t);

impl Child {
    fn new() -> Self {
        Self(Box::leak(Box::new(std::ptr::null_mut())))
    }

    /// The communicator that was written.
    pub(super) fn made(&self) -> Result<Raw, BulkError> {
        // SAFETY: the place lives forever, and the library has said that it is done with it.
        let comm = unsafe { self.0.read_volatile() };
        if comm.is_null() {
            return Err(BulkError::Failed("the library made no communicator".to_owned()));
        }
        Ok(Raw(comm))
    }
}

/// Bytes on the GPU that a call reads or writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place(pub(super) u64);

impl Place {
    const fn read(self) -> *const c_void {
        self.0 as *const c_void
    }

    const fn write(self) -> *mut c_void {
        self.0 as *mut c_void
    }
}

/// One call within a group of them.
#[derive(Debug, Clone, Copy)]
pub(super) enum Call {
    /// So many elements, combined on all ranks.
    AllReduce(Place, Place, usize, ElementType, ReduceOp),
    /// The same on one rank.
    Reduce(Place, Place, usize, ElementType, ReduceOp, u32),
    /// So many bytes from one rank to all.
    Broadcast(Place, Place, usize, u32),
    /// So many bytes to a rank.
    Send(Place, usize, u32),
    /// So many bytes from a rank.
    Receive(Place, usize, u32),
}

impl Api {
    /// Loads the library. Also returns its version.
    ///
    /// # Errors
    /// If it is not there, too old, or lacks a function.
    pub(super) fn load() -> Result<(Self, u32), NcclError> {
        let api = Self::open(&NAMES).map_err(|error| match error {
            LoadError::Absent(why) => NcclError::NoLibrary { why },
            LoadError::Function(name) => NcclError::Function(name),
        })?;
        let mut version = 0;
        // SAFETY: it writes one number.
        let status = unsafe { (api.get_version)(&raw mut version) };
        api.done("ncclGetVersion", status).map_err(|error| NcclError::Call(error.to_string()))?;
        if version < VERSION_MIN {
            return Err(NcclError::Old { version });
        }
        Ok((api, version.unsigned_abs()))
    }

    /// What it offers for the next group.
    pub(super) const fn abilities(&self) -> Abilities {
        Abilities {
            shrink: self.shrink.is_some(),
            grow: self.grow.is_some() && self.grow_id.is_some(),
            revoke: self.revoke.is_some(),
            split: self.split.is_some(),
        }
    }

    fn done(&self, call: &str, status: Status) -> Result<(), BulkError> {
        match status {
            // The caller asks for operations under way where it needs them.
            SUCCESS | IN_PROGRESS => Ok(()),
            status => Err(self.failed(call, status)),
        }
    }

    fn failed(&self, call: &str, status: Status) -> BulkError {
        BulkError::Failed(format!("{call}: {} ({status})", self.text_of(status)))
    }

    /// Makes the identity of a new communicator.
    pub(super) fn identity(&self) -> Result<Vec<u8>, BulkError> {
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: it writes one identity.
        let status = unsafe { (self.get_unique_id)(&raw mut id) };
        self.done("ncclGetUniqueId", status)?;
        Ok(bytes_of(&id))
    }

    /// Makes the identity by which new members find one that grows.
    pub(super) fn identity_to_grow(&self, comm: Raw) -> Result<Vec<u8>, BulkError> {
        let grow_id = self.grow_id.ok_or_else(|| lacks("ncclCommGetUniqueId"))?;
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: the communicator lives, and one identity is written.
        let status = unsafe { grow_id(comm.0, &raw mut id) };
        self.done("ncclCommGetUniqueId", status)?;
        Ok(bytes_of(&id))
    }

    /// Begins to join a new communicator.
    pub(super) fn begin(&self, identity: &[u8], world: u32, rank: u32) -> Result<Raw, BulkError> {
        let id = read_identity(identity)?;
        let (comm, mut config) = (Child::new(), config());
        // SAFETY: the place of the communicator lives forever, and the settings through the call, which copies them.
        let status = unsafe { (self.init)(comm.0, number(world), id, number(rank), &raw mut config) };
        self.done("ncclCommInitRankConfig", status)?;
        comm.made()
    }

    /// Begins to stop what a communicator has under way.
    pub(super) fn begin_revoke(&self, comm: Raw) -> Result<(), BulkError> {
        let revoke = self.revoke.ok_or_else(|| lacks("ncclCommRevoke"))?;
        // SAFETY: the communicator lives.
        self.done("ncclCommRevoke", unsafe { revoke(comm.0, 0) })
    }

    /// Begins to make a communicator of another one without some of its ranks. The other one says when it is made.
    pub(super) fn begin_shrink(&self, comm: Raw, excluded: &[u32], abort: bool) -> Result<Child, BulkError> {
        let shrink = self.shrink.ok_or_else(|| lacks("ncclCommShrink"))?;
        let mut list: Vec<c_int> = excluded.iter().map(|rank| number(*rank)).collect();
        let child = Child::new();
        let count = number(u32::try_from(list.len()).unwrap_or(u32::MAX));
        // Without a configuration it inherits that of the other one.
        let config = std::ptr::null_mut();
        // SAFETY: the communicator lives, the list has so many ranks, and the place of the child lives forever.
        let status = unsafe { shrink(comm.0, list.as_mut_ptr(), count, child.0, config, c_int::from(abort)) };
        self.done("ncclCommShrink", status)?;
        Ok(child)
    }

    /// Begins to cut a communicator in parts. It says itself when they are made; a member that is in none gets none.
    pub(super) fn begin_split(&self, comm: Raw, part: Option<u32>, me: u32) -> Result<Child, BulkError> {
        let split = self.split.ok_or_else(|| lacks("ncclCommSplit"))?;
        let child = Child::new();
        // Without a configuration they inherit that of the other one.
        let config = std::ptr::null_mut();
        // SAFETY: the communicator lives, and the place of the child lives forever.
        let status = unsafe { split(comm.0, part.map_or(NO_PART, number), number(me), child.0, config) };
        self.done("ncclCommSplit", status)?;
        Ok(child)
    }

    /// Begins to grow a communicator, or to join one that grows. The one that there is, if any, says when it is made.
    pub(super) fn begin_grow(
        &self,
        comm: Option<Raw>,
        identity: &[u8],
        world: u32,
        rank: u32,
    ) -> Result<Child, BulkError> {
        let grow = self.grow.ok_or_else(|| lacks("ncclCommGrow"))?;
        let id = read_identity(identity)?;
        let (child, mut config) = (Child::new(), config());
        // As its header says: a member that has it passes -1, and the identity only as rank 0.
        let id = if comm.is_none() || rank == 0 { &raw const id } else { std::ptr::null() };
        let (parent, rank) = comm.map_or((std::ptr::null_mut(), number(rank)), |comm| (comm.0, -1));
        let config = if parent.is_null() { &raw mut config } else { std::ptr::null_mut() };
        // SAFETY: the communicator lives, so does the place of the child, forever, and the other pointers are to values that
        // live through the call, or null where the header allows it.
        let status = unsafe { grow(parent, number(world), id, rank, child.0, config) };
        self.done("ncclCommGrow", status)?;
        Ok(child)
    }

    /// Whether a communicator has done what it was last asked for.
    pub(super) fn is_done(&self, comm: Raw) -> Result<bool, BulkError> {
        let mut state = SUCCESS;
        // SAFETY: the communicator lives, and one number is written.
        let status = unsafe { (self.async_error)(comm.0, &raw mut state) };
        self.done("ncclCommGetAsyncError", status)?;
        match state {
            SUCCESS => Ok(true),
            IN_PROGRESS => Ok(false),
            state => Err(self.failed("a call that was under way", state)),
        }
    }

    /// Gives a communicator up, with what it has under way. May take its time.
    pub(super) fn abort(&self, comm: Raw) {
        // SAFETY: the communicator lives, and its owner uses it no more. There is nothing to be done about an error.
        let _ = unsafe { (self.abort)(comm.0) };
    }

    /// Puts calls on a stream, as one group.
    pub(super) fn submit(&self, comm: Raw, stream: Stream, calls: &[Call]) -> Result<(), BulkError> {
        // SAFETY: it only counts, for this thread.
        self.done("ncclGroupStart", unsafe { (self.group_start)() })?;
        let mut put = Ok(());
        for call in calls {
            put = put.and_then(|()| self.put(comm, stream, *call));
        }
        // SAFETY: ends what was begun above, whatever became of the calls.
        let ended = self.done("ncclGroupEnd", unsafe { (self.group_end)() });
        put.and(ended)
    }

    fn put(&self, comm: Raw, stream: Stream, call: Call) -> Result<(), BulkError> {
        let Raw(comm) = comm;
        // SAFETY: the communicator and the stream live. The owner of the memory made the places for these lengths, and frees
        // them only when the stream is done or never.
        let (name, status) = unsafe {
            match call {
                Call::AllReduce(from, into, len, element, op) => (
                    "ncclAllReduce",
                    (self.all_reduce)(
                        from.read(),
                        into.write(),
                        len,
                        type_of(element),
                        op_of(op),
                        comm,
                        stream,
                    ),
                ),
                Call::Reduce(from, into, len, element, op, root) => {
                    let (element, op) = (type_of(element), op_of(op));
                    let (from, into) = (from.read(), into.write());
                    ("ncclReduce", (self.reduce)(from, into, len, element, op, number(root), comm, stream))
                }
                Call::Broadcast(from, into, len, root) => {
                    let byte = type_of(ElementType::U8);
                    let (from, into) = (from.read(), into.write());
                    ("ncclBroadcast", (self.broadcast)(from, into, len, byte, number(root), comm, stream))
                }
                Call::Send(from, len, rank) => {
                    let byte = type_of(ElementType::U8);
                    ("ncclSend", (self.send)(from.read(), len, byte, number(rank), comm, stream))
                }
                Call::Receive(into, len, rank) => {
                    let byte = type_of(ElementType::U8);
                    ("ncclRecv", (self.recv)(into.write(), len, byte, number(rank), comm, stream))
                }
            }
        };
        self.done(name, status)
    }
}

/// Of communicators whose calls return at once, otherwise as the library thinks best.
const fn config() -> ncclConfig_t {
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: 0xcafe_beef,
        // Of the header that has this structure.
        version: 23_000,
        blocking: 0,
        cgaClusterSize: UNDEFINED,
        minCTAs: UNDEFINED,
        maxCTAs: UNDEFINED,
        netName: std::ptr::null(),
        splitShare: UNDEFINED,
        trafficClass: UNDEFINED,
        commName: std::ptr::null(),
        collnetEnable: UNDEFINED,
        CTAPolicy: UNDEFINED,
        shrinkShare: UNDEFINED,
        nvlsCTAs: UNDEFINED,
        nChannelsPerNetPeer: UNDEFINED,
        nvlinkCentricSched: UNDEFINED,
        graphUsageMode: UNDEFINED,
        numRmaCtx: UNDEFINED,
        maxP2pPeers: UNDEFINED,
    }
}

fn lacks(function: &str) -> BulkError {
    BulkError::Failed(format!("this library has no {function}"))
}

#[allow(clippy::cast_possible_wrap, reason = "a group has at most 1024 members")]
const fn number(rank: u32) -> c_int {
    rank as c_int
}

fn bytes_of(id: &ncclUniqueId) -> Vec<u8> {
    id.internal.iter().map(|byte| byte.cast_unsigned()).collect()
}

fn read_identity(bytes: &[u8]) -> Result<ncclUniqueId, BulkError> {
    let mut id = ncclUniqueId { internal: [0; 128] };
    if bytes.len() != id.internal.len() {
        return Err(BulkError::Failed(format!("an identity of {} bytes, which has 128", bytes.len())));
    }
    for (place, byte) in id.internal.iter_mut().zip(bytes) {
        *place = byte.cast_signed();
    }
    Ok(id)
}

/// Number of an element type (`ncclDataType_t`).
const fn type_of(element: ElementType) -> c_uint {
    match element {
        ElementType::U8 => 1,
        ElementType::I32 => 2,
        ElementType::I64 => 4,
        ElementType::F16 => 6,
        ElementType::F32 => 7,
        ElementType::F64 => 8,
        ElementType::Bf16 => 9,
    }
}

/// Number of a reduction (`ncclRedOp_t`). A mean of what lies on the host is a sum that members divide themselves.
const fn op_of(op: ReduceOp) -> c_uint {
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Mean => 4,
    }
}

#[cfg(test)]
mod tests {
    use cudarc::nccl::sys::{ncclDataType_t, ncclRedOp_t};

    use super::*;

    #[test]
    fn types_and_reductions_have_the_numbers_of_the_header() {
        for (ours, theirs) in [
            (ElementType::U8, ncclDataType_t::ncclUint8),
            (ElementType::I32, ncclDataType_t::ncclInt32),
            (ElementType::I64, ncclDataType_t::ncclInt64),
            (ElementType::F16, ncclDataType_t::ncclFloat16),
            (ElementType::F32, ncclDataType_t::ncclFloat32),
            (ElementType::F64, ncclDataType_t::ncclFloat64),
            (ElementType::Bf16, ncclDataType_t::ncclBfloat16),
        ] {
            assert_eq!(type_of(ours), theirs as c_uint);
        }
        for (ours, theirs) in [
            (ReduceOp::Sum, ncclRedOp_t::ncclSum),
            (ReduceOp::Prod, ncclRedOp_t::ncclProd),
            (ReduceOp::Max, ncclRedOp_t::ncclMax),
            (ReduceOp::Min, ncclRedOp_t::ncclMin),
            (ReduceOp::Mean, ncclRedOp_t::ncclAvg),
        ] {
            assert_eq!(op_of(ours), theirs as c_uint);
        }
    }

    #[test]
    fn an_identity_travels_as_bytes_and_no_other_length_is_one() {
        let bytes: Vec<u8> = (0..128).map(|byte| 255 - byte).collect();
        assert_eq!(bytes_of(&read_identity(&bytes).unwrap()), bytes);
        assert!(read_identity(&bytes[1..]).unwrap_err().to_string().contains("127 bytes"));
    }

    // Also where there is no GPU: what the real library has, where there is one.
    #[test]
    fn the_library_is_loaded_with_its_functions_or_the_error_says_why() {
        match Api::load() {
            Ok((api, version)) => {
                assert!(version >= VERSION_MIN.unsigned_abs());
                println!("NCCL {version}: {}", api.abilities());
                let error = api.failed("a call", 5).to_string();
                assert!(error.starts_with("a call: ") && error.ends_with("(5)"), "{error}");
                let identity = api.identity().unwrap();
                assert_eq!(identity.len(), 128);
                if crate::runtime::cuda::gpus().is_err() {
                    // Without a GPU nothing is joined, and the library says so.
                    println!("{}", api.begin(&identity, 1, 0).unwrap_err());
                }
            }
            Err(error) => {
                assert!(matches!(error, NcclError::NoLibrary { .. }), "{error}");
                assert!(error.to_string().contains("libnccl.so.2"), "{error}");
                println!("skipped, not here: {error}");
            }
        }
    }
}
