//! [`Fuse`]: a memory of rows that is used no more once it has failed.

use antdt_collective::runtime::rows::{RowMemory, RowsError};

use super::HotError;

/// See the [module](self). What a memory holds that has failed is unknown, and so is which of its rows were
/// still to be written back: the next call must not read as if nothing were.
#[derive(Debug)]
pub(super) struct Fuse {
    memory: Box<dyn RowMemory>,
    /// Why it failed.
    blown: Option<RowsError>,
}

impl Fuse {
    pub(super) const fn new(memory: Box<dyn RowMemory>) -> Self {
        Self { memory, blown: None }
    }

    /// The memory, for what it was made with.
    pub(super) fn made(&self) -> &dyn RowMemory {
        &*self.memory
    }

    /// Does something with the memory. If it fails, nothing is done with it any more.
    pub(super) fn with<T>(
        &mut self,
        work: impl FnOnce(&mut dyn RowMemory) -> Result<T, RowsError>,
    ) -> Result<T, HotError> {
        if let Some(why) = &self.blown {
            return Err(HotError::Lost(why.clone()));
        }
        work(&mut *self.memory).map_err(|error| {
            // That is the affair of the caller that gave the address; the rows are where they were.
            if !matches!(error, RowsError::Elsewhere { .. }) {
                self.blown = Some(error.clone());
            }
            HotError::Memory(error)
        })
    }
}
