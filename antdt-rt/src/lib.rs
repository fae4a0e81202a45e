#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod clock;
pub mod drive;
pub mod inbox;
pub mod record;
pub mod retry;
#[cfg(feature = "signal")]
pub mod signal;
#[cfg(feature = "stream")]
pub mod stream;

pub use clock::JobClock;
pub use drive::{Runner, drive, drive_recorded};
pub use inbox::{Closed, Inbox, Mailbox, mailbox};
pub use record::Recorder;
#[cfg(feature = "record")]
pub use record::{MachineRecorder, PackedFile, Packing, Recorded, TraceSink, TraceWriter, open_trace};
pub use retry::backoff;
#[cfg(feature = "signal")]
pub use signal::cancel_on_signal;
#[cfg(feature = "stream")]
pub use stream::WrappedStream;
pub use tokio_util::sync::CancellationToken;
