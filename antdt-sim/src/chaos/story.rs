//! What happened in a case that failed, cut down to what the failure is about.

use std::collections::BTreeSet;
use std::fmt;

use antdt_core::{FetchOutcome, JobTime, LeaseId};
use antdt_job::{Call, HeadAnswer, HeadEffect, HeadEvent, Note, Reply};
use antdt_shard::ledger::{Answer, Event};

use super::CaseError;
use crate::Violation;
use crate::happening::{Happening, Observer};

/// Lines shown at most: the last ones say most.
const LINES_MAX: usize = 60;

/// The history of a failed case, reduced to the nodes, leases and shards that its failure names. `Display`
/// prints it.
#[derive(Debug, Clone, PartialEq)]
pub struct Story {
    lines: Vec<(JobTime, String)>,
    /// Lines that say nothing about them, and older ones.
    left_out: usize,
    error: Option<CaseError>,
}

impl Story {
    pub(super) fn new(lines: Vec<(JobTime, String)>, error: Option<CaseError>) -> Self {
        let all = lines.len();
        let mut names = error.as_ref().map(|error| names(&error.to_string())).unwrap_or_default();
        let about = |line: &str, names: &BTreeSet<String>| words(line).any(|word| names.contains(word));
        // The holder of a lease on the shard, or the shard of the lease, is part of it.
        let more: Vec<String> = lines
            .iter()
            .filter(|(_, line)| line.contains("granted") && about(line, &names))
            .flat_map(|(_, line)| words(line).filter(|word| is_name(word)).map(str::to_owned))
            .collect();
        if names.len() + more.len() <= 12 {
            names.extend(more);
        }
        let general = |line: &str| line.starts_with('!');
        let mut lines: Vec<(JobTime, String)> = lines
            .into_iter()
            .filter(|(_, line)| names.is_empty() || general(line) || about(line, &names))
            .collect();
        lines.drain(..lines.len().saturating_sub(LINES_MAX));
        Self { left_out: all - lines.len(), lines, error }
    }

    /// Returns the reason for which the case failed; `None` if it passed.
    pub const fn error(&self) -> Option<&CaseError> {
        self.error.as_ref()
    }
}

impl fmt::Display for Story {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.left_out > 0 {
            writeln!(f, "  ({} entries about others, or earlier ones)", self.left_out)?;
        }
        for (at, line) in &self.lines {
            writeln!(f, "  {at} {line}")?;
        }
        match &self.error {
            Some(error) => write!(f, "{error}"),
            None => f.write_str("every invariant holds"),
        }
    }
}

/// What happens, one line each.
#[derive(Debug, Default)]
pub(super) struct Lines(pub(super) Vec<(JobTime, String)>);

impl Observer for Lines {
    fn saw(&mut self, at: JobTime, what: &Happening<'_>) -> Result<(), Violation> {
        self.0.extend(line(what).map(|line| (at, line)));
        Ok(())
    }
}

/// Words of a line; `lease 1.7` and `shard 3/0` are known by their numbers.
fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split([' ', ',', ';', ':', '(', ')', '[', ']'])
}

fn is_name(word: &str) -> bool {
    let lease =
        || word.split_once('.').is_some_and(|(a, b)| a.parse::<u64>().is_ok() && b.parse::<u64>().is_ok());
    let shard =
        || word.split_once('/').is_some_and(|(a, b)| a.parse::<u64>().is_ok() && b.parse::<u64>().is_ok());
    word.starts_with("worker-") || word.starts_with("server-") || lease() || shard()
}

/// The nodes, leases and shards that a text names.
fn names(text: &str) -> BTreeSet<String> {
    let mut names: BTreeSet<String> = words(text).filter(|word| is_name(word)).map(str::to_owned).collect();
    // As the invariants say it: `shard 3 of epoch 0`.
    let all: Vec<&str> = words(text).collect();
    for window in all.windows(5) {
        if let ["shard", index, "of", "epoch", epoch] = window {
            names.insert(format!("{index}/{epoch}"));
        }
    }
    // A life stands for its node, whose other lives may be part of it.
    let nodes: Vec<String> =
        names.iter().filter_map(|name| Some(name.split_once('#')?.0.to_owned())).collect();
    names.extend(nodes);
    names
}

/// One line for what matters; what concerns all begins with `!`.
fn line(what: &Happening<'_>) -> Option<String> {
    match what {
        Happening::Ledger(event, answer) => ledger(event, answer),
        Happening::Record(record) => {
            Some(format!("! record {record:?}")).filter(|line| line.contains("Gener"))
        }
        Happening::Head(event, answer) => head(event, answer),
        Happening::HeadDeadline | Happening::Wake | Happening::Beat(..) | Happening::Overtaken(_) => None,
        Happening::Effect(effect) => self::effect(effect),
        Happening::Worker(holder, reply, call) => worker(reply, call).map(|text| format!("{holder} {text}")),
        Happening::Born(holder) => Some(format!("{holder} begins to run")),
        Happening::Died(holder) => Some(format!("{holder} ends")),
        Happening::Fault(fault) => Some(format!("! fault {fault:?}")),
        Happening::MasterEnded(until) => Some(format!("! the master ends; another one goes on at {until}")),
        Happening::TakenOver => Some("! another master goes on".to_owned()),
        Happening::Copied(holder, checkpoint) => {
            Some(format!("{holder} has a copy of the model for checkpoint {checkpoint}"))
        }
        Happening::Cut(checkpoint) => Some(format!("the ledger is cut for checkpoint {checkpoint}")),
        Happening::Kept(checkpoint) => Some(format!("checkpoint {checkpoint} is whole")),
        Happening::Lost(holder) => Some(format!("a message of {holder} is lost")),
        Happening::AllCrashed => Some("! all processes end".to_owned()),
        Happening::Resumed(committed) => Some(format!("! resumed with {committed}")),
        Happening::Calm => Some("! calm from here".to_owned()),
        Happening::Ended(result) => Some(format!("! the job ends: {result:?}")),
    }
}

fn acks(acks: &[antdt_core::Ack]) -> String {
    let texts: Vec<String> = acks.iter().map(|ack| format!("{} to {}", ack.lease, ack.offset)).collect();
    texts.join(", ")
}

fn ledger(event: &Event, answer: &Answer) -> Option<String> {
    Some(match (event, answer) {
        (Event::Exchange { holder, acks: done, .. }, Answer::Exchange(Ok(exchanged))) => {
            let mut text = format!("ledger: {holder} acknowledges [{}]", acks(done));
            for grant in exchanged.grants() {
                let key = grant.key;
                let (lease, at): (LeaseId, u64) = (grant.lease, grant.resume_at);
                text += &format!(" granted {lease} on {}/{} from {at}", key.index, key.epoch);
            }
            match exchanged.fetched {
                Some(FetchOutcome::EndOfData) => text += " end of data",
                Some(FetchOutcome::Wait { .. }) => text += " wait",
                _ => {}
            }
            if exchanged.outcomes.contains(&antdt_core::AckOutcome::StaleLease) {
                text += &format!(" outcomes {:?}", exchanged.outcomes);
            }
            text
        }
        (Event::Settle { holder, acks: done }, answer) => {
            format!("ledger: settle {holder} [{}]: {answer:?}", acks(done))
        }
        (Event::Release { holder, acks: done }, answer) => {
            format!("ledger: {holder} releases [{}]: {answer:?}", acks(done))
        }
        (Event::Register { holder, held }, answer) => {
            format!("ledger: {holder} registers with {} leases: {answer:?}", held.len())
        }
        (Event::WorkerLost { holder }, _) => format!("ledger: {holder} is lost"),
        (Event::Status, _) => return None,
        (event, answer) => format!("ledger: {event:?}: {answer:?}"),
    })
}

fn head(event: &HeadEvent, answer: &HeadAnswer) -> Option<String> {
    let word = match answer {
        HeadAnswer::Fenced => "fenced",
        HeadAnswer::Refused(_) => "refused",
        HeadAnswer::Parked => "parked",
        _ => "heard",
    };
    Some(match event {
        HeadEvent::Register(registration) => {
            format!("master: {} registers: {word}", registration.info.holder)
        }
        HeadEvent::Heartbeat { holder, .. } if matches!(answer, HeadAnswer::Fenced) => {
            format!("master: {holder} beats: fenced")
        }
        HeadEvent::Join { holder, standing } => {
            let step = |result: &Option<antdt_core::StepResult>| result.as_ref().map(|result| result.step);
            let (applied, prepared) = (step(&standing.applied), step(&standing.prepared));
            let group = standing.group;
            format!(
                "master: {holder} joins from group {group} with applied {applied:?}, prepared {prepared:?}: {word}"
            )
        }
        HeadEvent::Ready { holder, step, readiness } => {
            let (samples, due) = (readiness.samples, acks(&readiness.acks));
            format!("master: {holder} is ready for step {step} with {samples} samples [{due}]: {word}")
        }
        HeadEvent::Leave { holder, end_of_data, .. } => {
            format!("master: {holder} leaves, end of data {end_of_data}: {word}")
        }
        HeadEvent::Rest { holder, checkpoint } => {
            format!("{holder} stands still for checkpoint {checkpoint}")
        }
        HeadEvent::Checkpoint(None) => format!("master: asked for a checkpoint: {word}"),
        HeadEvent::Checkpoint(Some(checkpoint)) => {
            format!("master: asked what became of checkpoint {checkpoint}: {word}")
        }
        HeadEvent::Scale { workers } => format!("master: asked for {workers} workers: {word}"),
        HeadEvent::Restart(node) => format!("master: asked for another life of {node}: {word}"),
        HeadEvent::ScaleServers { servers } => format!("master: asked for {servers} servers: {word}"),
        HeadEvent::Stalled { holder, stall } => {
            format!(
                "master: {holder} has been {} for {:?} and does not get on: {word}",
                stall.work, stall.lasts
            )
        }
        HeadEvent::Preempted(holder) => format!("master: {holder} is told to leave by its platform: {word}"),
        HeadEvent::Exited(holder, exit, _) => format!("master: {holder} ended ({exit})"),
        HeadEvent::LaunchFailed(holder, why) => format!("master: {holder} could not be started: {why}"),
        HeadEvent::Begin
        | HeadEvent::Heartbeat { .. }
        | HeadEvent::Loaded { .. }
        | HeadEvent::Transferred { .. }
        | HeadEvent::Averaged { .. }
        | HeadEvent::Evaluated { .. }
        | HeadEvent::Cut { .. }
        | HeadEvent::Stored { .. }
        | HeadEvent::Kept { .. }
        | HeadEvent::RolledBack { .. }
        | HeadEvent::Started(_)
        | HeadEvent::Placed { .. }
        | HeadEvent::Tick(_)
        | HeadEvent::Diagnose
        | HeadEvent::Stop(_) => return None,
    })
}

fn effect(effect: &HeadEffect) -> Option<String> {
    Some(match effect {
        HeadEffect::Launch(holder) => format!("master: launch {holder}"),
        HeadEffect::Kill(holder) => format!("master: kill {holder}"),
        HeadEffect::Order(values) => format!("master: the cluster is told {values:?}"),
        HeadEffect::Settle(contribution) => {
            format!("master: settle {} [{}]", contribution.holder, acks(&contribution.acks))
        }
        HeadEffect::LedgerLost(holder) => format!("master: {holder} is given up"),
        HeadEffect::Joined(holder, joined) => {
            let members: Vec<String> = joined.members.iter().map(|(member, _)| member.to_string()).collect();
            format!(
                "master: {holder} may go on in group {} of [{}] with step {}, commit prepared {}, plan {}",
                joined.membership,
                members.join(", "),
                joined.next_step,
                joined.commit_prepared,
                joined.plan.version
            )
        }
        HeadEffect::Committed(holder, commit) => {
            format!("master: step {} of {} samples is committed for {holder}", commit.step, commit.samples)
        }
        HeadEffect::Note { note: Note::Action { kind, target, reason }, .. } => {
            format!("master: {kind} {target}: {reason}")
        }
        HeadEffect::Note { note: Note::Published(plan), .. } => format!("! plan {plan:?}"),
        HeadEffect::Undone(holder) => format!("master: the step of {holder} is undone"),
        HeadEffect::RollBack(rollback) => format!("master: the job goes back, rollback {rollback}"),
        HeadEffect::Epochs(epochs) => format!("master: the data end after epoch {epochs} for now"),
        HeadEffect::Servers(servers) => format!("master: the job has {servers} servers from now on"),
        HeadEffect::Weights(weights) => {
            format!("master: the weights of the servers are {weights} from now on")
        }
        HeadEffect::Rested { holder, checkpoint, keep: true, .. } => {
            format!("master: {holder} takes the copies of checkpoint {checkpoint}")
        }
        HeadEffect::Rested { holder, checkpoint, keep: false, .. } => {
            format!("master: {holder} goes on after checkpoint {checkpoint}")
        }
        HeadEffect::GoOn(mode) => format!("master: the job goes on with --sync {mode}"),
        HeadEffect::Record(_) | HeadEffect::End(_) | HeadEffect::Note { .. } => return None,
    })
}

fn worker(reply: &Reply, call: &Call) -> Option<String> {
    let said = match reply {
        Reply::Broken => "hears that its group broke; ",
        Reply::ServiceRestarted => "hears that the service was restarted; ",
        Reply::Committed(_) => "hears of the commit; ",
        Reply::Agreed(_) => "has agreed; ",
        Reply::Joined(_) => "is in a group; ",
        _ => "",
    };
    let does = match call {
        Call::Load(batch) if !batch.fragments.is_empty() => {
            let fragment = |f: &antdt_core::Fragment| format!("{} {}..{}", f.grant.lease, f.from, f.to);
            let fragments: Vec<String> = batch.fragments.iter().map(fragment).collect();
            format!("loads [{}]", fragments.join(", "))
        }
        Call::Combine { step, samples, acks: due, .. } => {
            format!("combines {samples} samples in step {step} [{}]", acks(due))
        }
        Call::Apply => "applies".to_owned(),
        Call::LoadPiece(batch, micro) => {
            let (samples, number) = (batch.piece(*micro).len(), micro.index + 1);
            format!("loads {samples} samples, micro-batch {number} of {}", micro.count)
        }
        Call::Push { step, samples } => format!("pushes {samples} samples of step {step}"),
        Call::Stop(end) => format!("stops: {end:?}"),
        Call::Fail { at, why } => format!("cannot read {}: {why}", at.lease),
        _ if !said.is_empty() => "goes on".to_owned(),
        _ => return None,
    };
    Some(format!("{said}{does}"))
}
