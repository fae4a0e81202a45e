//! Closes a job that is over: ends its nodes and its tasks, and says what became of it.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use antdt_core::Counts;
use antdt_core::text::format_duration;
use antdt_job::{EventKind, SyncMode};
use antdt_launch::{LaunchStatus, NodeExit};

use super::again::{Before, as_scaled, sum};
use super::outcome::{balance, report};
use super::runner::{Ended, Nodes};
use super::sink::JobNote;
use super::start::{Running, Shared, Tasks};
use super::{INTERRUPTED, JobError, lock, record};
use crate::job::EvalEvery;
use crate::report::{LiveProgress, Outcome, Report, SampleBalance};

/// How long nodes may take to exit by themselves after the job is over.
const EXIT_PATIENCE: Duration = Duration::from_secs(3);

/// How long a node that was asked to exit may take where the job does not say: a built-in trainer keeps nothing then, and a user's program
/// may write a checkpoint of its own.
const GRACE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(30)];

/// How much later than its grace ends a node is killed, so that it is named while it lives.
const NAMED: Duration = Duration::from_millis(200);

/// How often nodes are looked at that end.
const POLL: Duration = Duration::from_millis(10);

/// How long the launcher may take to end the nodes that were killed, before the master gives up waiting.
const KILL_PATIENCE: Duration = Duration::from_secs(30);

/// Closes the job. Returns the mode that it is to go on in, if it is to, and what it then has behind it.
pub(super) async fn close(
    running: Running,
    ended: Ended,
) -> Result<(Report, Option<(SyncMode, Before)>), JobError> {
    let (outcome, next) = match ended {
        Ended::Over(outcome) => (outcome, None),
        Ended::GoesOn(mode) => (Err(format!("goes on with --sync {mode}")), Some(mode)),
    };
    // Until the end of this function other jobs are kept out.
    let Running { spec, job, shared, ledger, shards, before, trace, notes, tasks, own: _own, .. } = running;
    shared.parked.clear();
    // Nothing is started any more.
    let nodes = lock(&shared.nodes).take();
    let mut outcome = outcome;
    if let Some(nodes) = nodes {
        if outcome.is_ok() && spec.has_own_model() {
            outcome = finish_programs(&nodes, &shared).await;
        }
        let grace = spec.grace.unwrap_or(GRACE[usize::from(spec.program.is_some())]);
        end_nodes(nodes, outcome.is_ok(), grace).await;
    }
    let Tasks { mut others, head, stop_servers, stop_head, stop_ledger } = tasks;
    stop_servers.cancel();
    // Of a job that ended early the epochs that it did not begin are not missing.
    let early = lock(&shared.recorder).ended_early_after();
    let epochs = (early.unwrap_or(spec.epochs), early.is_some());
    let (counts, missing) = match &shared.ledger {
        Some(ledger) => balance(epochs, ledger).await.map_err(JobError::master)?,
        None => (Counts::default(), Vec::new()),
    };
    stop_head.cancel();
    head.await.map_err(JobError::master)?;
    stop_ledger.cancel();
    if let Some(ledger) = ledger {
        ledger.join().await.map_err(JobError::master)?;
    }
    if let Some(trace) = trace {
        // Nothing happens any more: all that did is in it.
        record::finish(trace);
    }
    others.shutdown().await;
    let watch = std::mem::take(&mut *lock(&shards));
    let leases = watch.shards();
    let recorder = lock(&shared.recorder).clone();
    let outcome = if next.is_none() { recorder.ended(outcome, counts.acked) } else { outcome };
    let now = shared.clock.now();
    let Before { mut shards, samples, duplicated, took: earlier, job_start, sinks, .. } = before;
    let took = earlier + now.since_start();
    let in_start = watch.duplicated();
    let duplicated = duplicated + in_start;
    let (spans, in_mode) = watch.finish(now);
    let samples = sum(samples, in_mode);
    shards.extend(spans.into_iter().map(|span| span.later(earlier)));
    let [workers, servers] = [&shared.workers, &shared.servers].map(|count| count.load(Ordering::Relaxed));
    let spec = if spec.eval_every == EvalEvery::End { spec } else { as_scaled(spec, workers, servers) };
    let next = next.map(|mode| {
        let (recorder, shards, samples) = (recorder.clone(), shards.clone(), samples.clone());
        let sinks = sinks.clone();
        (mode, Before { recorder, sinks, shards, samples, duplicated, workers, servers, took, job_start })
    });
    let (_, loss) = recorder.pulse();
    let mut report =
        report(&spec, job, outcome, (&counts, missing), recorder, (shards, samples, duplicated), took);
    if let Some(fault) = shared.ledger.as_ref().and_then(|ledger| ledger.first_fault())
        && let Outcome::Failed { why } | Outcome::Incomplete { why } = &mut report.outcome
        && counts.quarantined > 0
    {
        *why += &format!("; the first that could not be read: {fault}");
    }
    if next.is_none() {
        let of_ledger = LiveProgress {
            loss,
            workers: workers as usize,
            waiting: counts.todo,
            leased: counts.doing,
            duplicated: in_start,
            shards: leases,
            ..LiveProgress::default()
        };
        notes.tell(now, JobNote::Progress(last_progress(&report, of_ledger)));
        notes.tell(now, JobNote::Ended(report.outcome.clone()));
        sinks.finish();
    }
    Ok((report, next))
}

/// State of a job that is over, as its report has it.
const fn last_progress(report: &Report, of_ledger: LiveProgress) -> LiveProgress {
    let SampleBalance { committed, expected, quarantined, lost, .. } = report.samples;
    LiveProgress { step: report.steps, committed, expected, quarantined, lost, ..of_ledger }
}

/// Waits for what programs do after the training, such as to evaluate and write their model, for as long as that takes. Returns how the
/// job ended with it.
async fn finish_programs(nodes: &Nodes, shared: &Shared) -> Result<(), String> {
    while nodes.any_left() {
        if shared.stop.is_cancelled() {
            return Err(format!("{INTERRUPTED} after the training, while its programs ran on"));
        }
        tokio::time::sleep(POLL).await;
    }
    // A worker that was retired or given up before has said how it ended.
    let trained: BTreeSet<String> = {
        let recorder = lock(&shared.recorder);
        let finished = recorder.events.iter().filter(|event| event.kind == EventKind::Finished.name());
        finished.map(|event| event.node.clone()).collect()
    };
    let failed = nodes.latest().into_iter().find_map(|node| match node.status {
        LaunchStatus::Gone(exit)
            if exit.code != Some(0) && trained.contains(&node.holder.node.to_string()) =>
        {
            Some((node.holder, exit))
        }
        _ => None,
    });
    match failed {
        Some((holder, NodeExit { code: Some(code), .. })) => {
            Err(format!("{holder} ended with exit code {code} after the training"))
        }
        Some((holder, exit)) => {
            let signal = exit.signal.map_or_else(String::new, |signal| format!(" by signal {signal}"));
            Err(format!("{holder} was killed{signal} after the training"))
        }
        None => Ok(()),
    }
}

/// Waits until all nodes are gone. Nodes of a job that went well exit by themselves: workers are done, servers are told
/// with their next heartbeat. All others are asked to, and then killed.
async fn end_nodes(mut nodes: Nodes, went_well: bool, grace: Duration) {
    if went_well && wait_until_gone(&mut nodes, EXIT_PATIENCE).await {
        return;
    }
    nodes.end_all(grace.saturating_add(NAMED));
    if wait_until_gone(&mut nodes, grace).await {
        return;
    }
    let left: Vec<String> = nodes.left().map(|life| life.node.to_string()).collect();
    tracing::warn!(
        "{} did not exit within --grace = {}; they are killed",
        left.join(", "),
        format_duration(grace)
    );
    if !wait_until_gone(&mut nodes, NAMED + KILL_PATIENCE).await {
        tracing::error!(
            ?nodes,
            "the launcher could not end all nodes; they end by themselves after --master-grace"
        );
    }
}

/// Returns whether all nodes are gone, at the latest when `patience` is over.
async fn wait_until_gone(nodes: &mut Nodes, patience: Duration) -> bool {
    let deadline = tokio::time::Instant::now() + patience;
    while nodes.any_left() {
        if tokio::time::Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(POLL).await;
    }
    true
}
