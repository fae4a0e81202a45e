//! What can happen in a history.

use serde::{Deserialize, Serialize};

/// What can happen, chosen by numbers that mean something in every state: an event that is left out leaves a history.
///
/// A `life` of 0 is the one that may take part, the live one or the next if that has ended; -1 is the one before it.
/// An event that has nothing to talk about, such as an ack before any grant, is skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// A life registers, and presents leases.
    Register {
        /// Number of the worker.
        node: u32,
        /// Incarnation, relative to the newest one.
        life: i8,
        /// Leases that it presents.
        held: Vec<Presented>,
    },
    /// A life says what is done and asks for shards. If it has to register it does that instead, unless it is forgetful.
    Exchange {
        /// Number of the worker.
        node: u32,
        /// Incarnation, relative to the newest one.
        life: i8,
        /// 0 is a fresh request, 1 the last one again, more an older one.
        back: u8,
        /// 0 is this generation, more an earlier one.
        generations_back: u8,
        /// It asks though it is not registered.
        forgetful: bool,
        /// Offsets that are acknowledged.
        acks: Vec<(Lease, Offset)>,
        /// Shards it asks for.
        want: u32,
    },
    /// As that, without acks, for one shard.
    Fetch {
        /// Number of the worker.
        node: u32,
        /// Incarnation, relative to the newest one.
        life: i8,
        /// As in [`Step::Exchange`].
        back: u8,
        /// As in [`Step::Exchange`].
        generations_back: u8,
    },
    /// A call that a worker made before arrives once more.
    Again {
        /// 0 is the last call, 1 the one before it.
        back: u8,
    },
    /// A call is made now and arrives after so many other events.
    Late {
        /// Number of steps.
        by: u8,
        /// The call.
        step: Box<Step>,
    },
    /// Something is said about leases, most often by a node about its own.
    Say {
        /// The event that is reported.
        what: Saying,
        /// Number of the worker.
        node: u32,
        /// The leases.
        of: Vec<(Lease, Offset)>,
        /// The speaker.
        by: Speaker,
    },
    /// A holder that was called upon to give leases back does so.
    Obey,
    /// The master declares a life lost.
    Lose {
        /// Number of the worker.
        node: u32,
        /// Incarnation, relative to the newest one.
        life: i8,
    },
    /// Sets the number of workers that take part: the others are lost, and new ones register.
    Resize {
        /// Number of workers.
        workers: u8,
    },
    /// Nothing is granted until a time.
    Freeze {
        /// In seconds.
        until: u64,
    },
    /// Time passes.
    Tick {
        /// In seconds.
        now: u64,
    },
    /// Grants go on.
    Thaw,
    /// A snapshot is kept.
    Keep,
    /// A cut is kept.
    Cut {
        /// Samples that the model has more than were acknowledged.
        off: i8,
    },
    /// The ledger is set back to a snapshot or cut that was kept.
    Restore {
        /// Index among them.
        which: u8,
    },
    /// The service ends and begins again.
    Restart {
        /// Records at the end of the log that are lost, as many as are at risk at most. A store of yours decides itself
        /// what it keeps.
        lost: u8,
        /// Where the log is compacted before. A store of yours decides itself.
        compacted: Option<u16>,
    },
}

/// What is said about leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Saying {
    /// So much is done.
    Ack,
    /// So much is done, and the rest is given back.
    Release,
    /// So much is done, and the rest cannot be read.
    Fail,
}

/// A lease that is spoken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lease {
    /// One of the node's live leases.
    Live(u8),
    /// Any lease there ever was, of anybody, in any generation.
    Any(u16),
}

/// How far a shard is said to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Offset {
    /// All samples of the lease.
    All,
    /// With some of what is left.
    Part(u64),
    /// Anywhere, up to one sample beyond the end.
    Wild(u64),
}

/// Sender of a call in a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Speaker {
    /// The holder of the first lease.
    Owner,
    /// Another worker.
    Another(u32),
    /// The owner's node in another life.
    Life(i8),
}

/// A lease that a worker says it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presented {
    /// One of those that the node had when the last generation ended, with what it had done of it.
    True(u8),
    /// The same, with more or less.
    Off(u8, Offset),
    /// Any lease there ever was, of anybody, in any generation.
    Any(u16, Offset),
}
