//! What rows, and a flat vector of parameters, on a GPU need of it.

use antdt_collective::runtime::region::DevicePlace;

use super::RowsError;
use super::kernel::{RowKernel, Work};

/// Memory of a GPU with a stream. What is asked of it is done in order; only [`down`](Self::down) and
/// [`finish`](Self::finish) wait.
pub(in crate::runtime) trait Card: Send {
    /// Zeroed memory, which begins at a multiple of 8 bytes.
    fn allocate(&mut self, len_bytes: usize) -> Result<u64, RowsError>;

    /// Gives memory back. Nothing is under way.
    fn release(&mut self, address: u64);

    /// Where memory that was allocated lies.
    fn place(&self, address: u64) -> DevicePlace;

    /// Copies from the host.
    fn up(&mut self, address: u64, bytes: &[u8]) -> Result<(), RowsError>;

    /// Starts a kernel.
    fn start(&mut self, kernel: RowKernel, work: &Work) -> Result<(), RowsError>;

    /// Whether the address is in its memory, allocated by any library.
    fn holds(&mut self, address: u64) -> Result<bool, RowsError>;

    /// Copies within its memory.
    fn copy(&mut self, from: u64, to: u64, len_bytes: usize) -> Result<(), RowsError>;

    /// Copies to the host, and waits for it.
    fn down(&mut self, address: u64, into: &mut [u8]) -> Result<(), RowsError>;

    /// Waits for all that was asked for.
    fn finish(&mut self) -> Result<(), RowsError>;
}
