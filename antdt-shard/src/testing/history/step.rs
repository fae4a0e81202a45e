//! The steps of a history.

use serde::{Deserialize, Serialize};

/// One step of a history. Its numbers are valid in every state, so that a history without one of its steps is
/// a history too.
///
/// A `life` of 0 is the incarnation that may take part: the live one, or the next one if that has ended; -1
/// is the one before it. A step that finds nothing to act on, such as an ack before any grant, is skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// A worker registers, and presents leases.
    Register {
        /// Index of the worker.
        node: u32,
        /// Incarnation, relative to the newest one.
        life: i8,
        /// Leases that the worker presents to the service.
        held: Vec<Presented>,
    },
    /// A worker acknowledges samples and asks for shards. A worker that must register first does that
    /// instead, unless `forgetful` is set.
    Exchange {
        /// Index of the worker.
        node: u32,
        /// Incarnation, relative to the newest one.
        life: i8,
        /// Request to send: 0 is a new request, 1 repeats the last one, a higher number repeats an older one.
        back: u8,
        /// Generation in the request: 0 is the current generation, 1 the one before it, and so on.
        generations_back: u8,
        /// Whether the worker asks without having registered.
        forgetful: bool,
        /// Leases with the offsets that are acknowledged.
        acks: Vec<(Lease, Offset)>,
        /// Largest number of shards that the worker asks for.
        want: u32,
    },
    /// A worker asks for one shard, as with [`Step::Exchange`], without acks.
    Fetch {
        /// Index of the worker.
        node: u32,
        /// Incarnation, relative to the newest one.
        life: i8,
        /// Request to send, as in [`Step::Exchange`].
        back: u8,
        /// Generation in the request, as in [`Step::Exchange`].
        generations_back: u8,
    },
    /// A call that was made before arrives once more.
    Again {
        /// Call that is repeated: 0 is the last call, 1 the one before it.
        back: u8,
    },
    /// A call is made now and arrives only after some other events.
    Late {
        /// Number of events that arrive before the delayed call.
        by: u8,
        /// Step whose call is delayed.
        step: Box<Step>,
    },
    /// A call about leases (ack, release or data fault) is made, most often by the worker that holds them.
    Say {
        /// Kind of call.
        what: Saying,
        /// Index of the worker.
        node: u32,
        /// The leases, each with the offset that is reported.
        of: Vec<(Lease, Offset)>,
        /// Worker that makes the call.
        by: Speaker,
    },
    /// A worker gives back the leases that the service asked it to give back.
    Obey,
    /// The master declares an incarnation lost.
    Lose {
        /// Index of the worker.
        node: u32,
        /// Incarnation, relative to the newest one.
        life: i8,
    },
    /// The number of workers changes: workers with an index of `workers` or more are lost, and new ones
    /// register.
    Resize {
        /// Number of workers afterwards.
        workers: u8,
    },
    /// Grants stop until a time.
    Freeze {
        /// Job time in seconds at which the ledger grants shards again.
        until: u64,
    },
    /// The clock advances.
    Tick {
        /// New job time in seconds.
        now: u64,
    },
    /// Grants resume.
    Thaw,
    /// A snapshot is taken and kept.
    Keep,
    /// A consistent cut is taken and kept.
    Cut {
        /// Number of samples in the model beyond the acknowledged ones; a cut succeeds only if this is 0.
        off: i8,
    },
    /// The ledger is restored to a snapshot or cut that was kept.
    Restore {
        /// Index among the kept snapshots and cuts.
        which: u8,
    },
    /// The service ends and starts again.
    Restart {
        /// Number of records at the end of the log that are lost, capped at the number that may be lost. A
        /// user's own store ignores it and decides itself which records it keeps.
        lost: u8,
        /// Number of records at the beginning of the log that are compacted before the restart. A user's own
        /// store ignores it.
        compacted: Option<u16>,
    },
}

/// A kind of call about leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Saying {
    /// Acknowledges samples.
    Ack,
    /// Acknowledges samples, and gives the rest back.
    Release,
    /// Acknowledges samples, and reports that the rest cannot be read.
    Fail,
}

/// Choice of a lease that a step is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lease {
    /// One of the worker's live leases, by its index among them.
    Live(u8),
    /// Any lease that was ever granted, to any worker, in any generation.
    Any(u16),
}

/// Choice of an offset that a step reports for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offset {
    /// The end of the shard: all samples are done.
    All,
    /// The current offset, plus some of the samples that are left.
    Part(u64),
    /// Any offset, up to one sample beyond the end.
    Wild(u64),
}

/// Choice of the worker that makes a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// The worker that holds the first lease.
    Owner,
    /// Another worker, by number.
    Another(u32),
    /// The holder's node in another incarnation, relative to the holder's own.
    Life(i8),
}

/// Choice of a lease that a worker presents when it registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presented {
    /// One of the leases that the worker had when the last generation ended, with its true offset.
    True(u8),
    /// A lease that the worker had when the last generation ended, presented with another offset.
    Off(u8, Offset),
    /// Any lease that was ever granted, to any worker, in any generation.
    Any(u16, Offset),
}
