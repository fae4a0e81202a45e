//! What the protocol needs of a GPU.

use antdt_collective::runtime::region::DevicePlace;

use super::kernel::Work;
use crate::device::Statement;
use crate::runtime::device::bulk::BulkError;

/// A point of a stream, which a peer can have its own stream wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mark {
    /// What this member brings to a reduction lies in its memory.
    Filled,
    /// This member's part of the reduction lies in the memory of all.
    Reduced,
}

/// Where memory of a member begins, as addresses of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// What the member brings.
    pub(super) from: u64,
    /// What it gets.
    pub(super) into: u64,
}

/// A stream of a GPU with a window: memory that the other members of one communicator can open. What is asked of it is done
/// in order, later.
pub(super) trait Card: Send + 'static {
    /// What another member has offered, opened. It is closed when it is dropped.
    type Peer: Send + 'static;

    /// Bytes of each half of a window.
    const WINDOW: usize;

    /// What the others need to open the window.
    fn offer(&mut self) -> Result<Vec<u8>, BulkError>;

    /// Opens the window of another process of this host.
    fn open(&mut self, offer: &[u8]) -> Result<Self::Peer, BulkError>;

    /// The window of this member.
    fn window(&self) -> Window;

    /// The window of another.
    fn window_of(peer: &Self::Peer) -> Window;

    /// What the others need to open memory of this GPU that lies elsewhere than in the window.
    fn share(&mut self, place: &DevicePlace) -> Result<Vec<u8>, BulkError>;

    /// Opens memory that another member has shared, for as long as its window is open; returns its address here.
    fn reach(&mut self, peer: &mut Self::Peer, shared: &[u8]) -> Result<u64, BulkError>;

    /// Does what is asked for from now on behind what wrote this memory.
    fn follow(&mut self, place: &DevicePlace) -> Result<(), BulkError>;

    /// Copies host memory to the window, from its beginning. Nothing is under way.
    fn fill(&mut self, data: &[u8]) -> Result<(), BulkError>;

    /// Sets a mark behind what was asked for so far.
    fn mark(&mut self, mark: Mark) -> Result<(), BulkError>;

    /// Does what is asked for from now on only when the other member's stream has come to its last such mark, which it has
    /// set.
    fn wait(&mut self, peer: &Self::Peer, mark: Mark) -> Result<(), BulkError>;

    /// Reduces.
    fn reduce(&mut self, work: &Work<'_>) -> Result<(), BulkError>;

    /// Copies bytes that the window got to host memory.
    fn fetch(&mut self, at: usize, len: usize) -> Result<(), BulkError>;

    /// Whether all is done.
    fn is_idle(&mut self) -> Result<bool, BulkError>;

    /// Waits for what is under way, not forever. `false`: it may still read and write the windows.
    fn settle(&mut self) -> bool;

    /// The host memory of what was fetched, when all is done.
    fn fetched(&mut self) -> &[u8];
}

/// A GPU of this process.
pub(super) trait Gpu: Send {
    /// Its streams.
    type Card: Card;

    /// What this member says of itself, without the communicator that it may have.
    fn statement(&self) -> Statement;

    /// Makes a stream with a window.
    fn card(&mut self) -> Result<Self::Card, BulkError>;
}
