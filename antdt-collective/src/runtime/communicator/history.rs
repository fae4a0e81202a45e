//! State that a member carries from one group to the next.

use antdt_core::Rank;

use super::{CommunicatorConfig, ScheduledCommunicator};
use crate::element::Element;
use crate::error::CollectiveError;
use crate::frame::{Operation, OperationKind};
use crate::outcome::{CallState, Resolution, resolve};
use crate::patience::Patience;
use crate::runtime::region::Region;
use crate::runtime::transport::Transport;

/// State that a member carries from one group to the next: the unanimous calls that counted, the result of a
/// call that may count, and the usual durations of calls. A new member starts with the default.
#[derive(Debug, Default)]
pub struct History {
    committed: Option<u64>,
    open: bool,
    kept: Option<Region>,
    patience: Option<Patience>,
}

/// A new group failed before its members had exchanged their histories. The error returns the history, for
/// the next attempt.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct JoinError {
    /// Error that ended the attempt.
    pub error: CollectiveError,
    /// History to pass to [`ScheduledCommunicator::join`] with the next group.
    pub history: History,
}

impl History {
    fn state(&self) -> CallState {
        CallState { committed: self.committed, open: self.open }
    }
}

impl<T: Transport> ScheduledCommunicator<T> {
    /// Leaves the group; returns the transport and the history, both for use in the next group.
    pub fn leave(self) -> (T, History) {
        let history = History {
            committed: Some(self.committed),
            open: self.open,
            // Where the result of a call in place is, if it may count.
            kept: if self.open { self.target } else { None },
            patience: Some(self.patience),
        };
        (self.transport, history)
    }

    /// Returns the communicator of a new group, and the fate of this member's last unanimous call. Every
    /// member of the new group calls this first, new members with a default history.
    ///
    /// After [`Resolution::Committed`] the caller adopts the result: with [`adopt`](Self::adopt) if the call
    /// was in place, with [`CommunicatorBuffer::adopt`](super::CommunicatorBuffer::adopt) if it was on a
    /// buffer. A call with a separate place for the result has written it there.
    ///
    /// # Errors
    /// If the new group fails; the caller tries again with the next one.
    pub fn join(
        transport: T,
        config: CommunicatorConfig,
        mut history: History,
    ) -> Result<(Self, Resolution), Box<JoinError>> {
        let mut communicator = Self::new(transport, config);
        let state = history.state();
        let all = match communicator.states(state) {
            Ok(all) => all,
            Err(error) => return Err(Box::new(JoinError { error, history })),
        };
        let (resolution, committed) = resolve(state, &all);
        communicator.committed = committed;
        communicator.kept = history.kept.take().filter(|_| resolution == Resolution::Committed);
        if let Some(patience) = history.patience {
            communicator.patience = patience;
        }
        Ok((communicator, resolution))
    }

    /// Replaces `data` by the result of an in-place all-reduce that failed on this rank but counts. To be
    /// called once, after [`Resolution::Committed`].
    ///
    /// # Errors
    /// If there is no such result, or `data` is longer than it.
    pub fn adopt<E: Element>(&mut self, data: &mut [E]) -> Result<(), CollectiveError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        match self.kept.take() {
            Some(kept) if kept.len() >= bytes.len() => {
                bytes.copy_from_slice(&kept[..bytes.len()]);
                Ok(())
            }
            kept => {
                let there = kept.as_ref().map_or(0, |kept| kept.len());
                self.kept = kept;
                let what = format!(
                    "{} bytes of a result to take over, {there} are there; call adopt once, with the buffer of the call",
                    bytes.len()
                );
                Err(CollectiveError::Invalid { what })
            }
        }
    }

    fn states(&mut self, mine: CallState) -> Result<Vec<CallState>, CollectiveError> {
        let call = self.begin(Operation { root: Rank(0), ..Operation::plain(OperationKind::Regroup) }, 0);
        self.gather_blocks(&call, &mine.encode())?;
        let bytes: &[u8] = bytemuck::cast_slice(&self.blocks);
        let (states, _) = bytes.as_chunks::<{ CallState::LEN }>();
        Ok(states[..self.world() as usize].iter().map(CallState::decode).collect())
    }
}
