//! [`Due`]: all that can happen next in a simulated job.

use std::time::Duration;

use antdt_agent::BeatReply;
use antdt_core::{CheckpointId, Generation, MembershipVersion, RollbackId};
use antdt_job::{HeadAnswer, HeadEvent};
use antdt_shard::Event as LedgerEvent;

use super::checkpoints::Copied;
use super::life::LifeId;
use crate::model::Fault;

/// What is due.
#[derive(Debug)]
pub(super) enum Due {
    /// A deadline of the head.
    Deadline,
    /// The policy is asked.
    Tick,
    /// A process has read its data and registers.
    Start(LifeId),
    /// A life says that it is alive.
    Beat(LifeId),
    /// A message from a life arrives at the head; for what the training thread asks, the number of its call.
    ToHead(LifeId, u64, Message),
    /// A message from a life arrives at the head once more; no caller waits for the answer.
    Copied(Message),
    /// The answer to a heartbeat arrives.
    Beaten(LifeId, Box<BeatReply>),
    /// A question arrives at the shard service.
    ToLedger(LifeId, u64, Question),
    /// A question arrives once more at the shard service of this generation; no caller waits for the answer.
    AskedAgain(Question, Generation),
    /// A kept question is given up.
    Unkept(LifeId, u64),
    /// The training thread gets a reply to this call.
    Reply(LifeId, u64, Answered),
    /// What the training thread did by itself is over.
    Over(LifeId, u64, Work),
    /// The head's answer to a registration or a farewell arrives.
    Told(LifeId, u64, Box<HeadAnswer>),
    /// What was lost on its way is sent again.
    Again(LifeId, u64, Box<Lost>),
    /// A parked call may have to be repeated.
    Reask(LifeId),
    /// The result of a group's operation arrives.
    Done(MembershipVersion, u64),
    /// Members of a group may have waited too long.
    Late(MembershipVersion),
    /// The launcher reaches the host of a process that shall end, or tries to.
    Kill(LifeId),
    /// The process was ordered to end, or ends by itself.
    Dies(LifeId, i32, i32),
    /// The launcher's word.
    ToLauncher(Box<HeadEvent>),
    /// Something goes wrong.
    Fault(Box<Fault>),
    /// Another master goes on with the job.
    TakeOver,
    /// The ledger goes back to the newest checkpoint, or to the start of the job.
    Restore(RollbackId),
    /// The copy of the model for a checkpoint exists, of the worker that made this call.
    Copy(LifeId, u64, CheckpointId),
    /// The ledger is to be cut for a copy of the model.
    Cut(Copied),
    /// The copies for a checkpoint are written, of which this worker has had one made.
    Written(LifeId, CheckpointId),
}

/// A message to the head that is on its way: its place among all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Message(pub(super) usize);

/// A question to the shard service that is on its way: its place among all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question(pub(super) usize);

/// A reply to a training thread that is on its way: its place among all of them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered(pub(super) usize);

/// What the training thread does by itself: all that comes of it is that it is done.
#[derive(Debug, Clone, Copy)]
pub(super) enum Work {
    Begin,
    Sleep,
    Load,
    Pull,
    Compute,
    /// To begin to compute beside other calls.
    Begun,
    /// To compute beside other calls.
    Beside,
    Apply,
    Advance,
    Revert,
    Push,
    /// To tell the servers what counts.
    Count,
    /// To find out that the group broke.
    Break,
}

/// A message that did not arrive.
#[derive(Debug)]
pub(super) enum Lost {
    Head(HeadEvent),
    Ledger(LedgerEvent, Duration),
}
