//! How well the monitor finds slow links: seeded traces whose labels are fixed by hindsight, and simulated jobs whose network card is slow for a
//! while.
//!
//! In a trace the workers of a ring report twice a second what went to the next one. A link **is** slow while each of its bytes takes `SLOW`
//! times as long and more, if that lasts `LASTS` windows. A verdict is wrong if the link was within `LIKE` of healthy for two windows.
//! In half of the traces a worker is slow instead, which all wait for: then any verdict is wrong.

use std::time::Duration;

use antdt_core::{DetRng, JobTime, LinkReport, NodeId, Seed};
use antdt_job::EventKind;
use antdt_monitor::links::WINDOW;
use antdt_monitor::{LinkChange, LinkWatch};
use anyhow::Result;

use super::detection::{Found, told};
use super::job::{Job, named};
use super::spread::spread;
use super::{SPEED, START, WORKERS, trace};
use crate::{Entry, Rows};

/// Slowness of a link that is to be found: the threshold of the verdict, with a margin for what is added to each report.
const SLOW: f64 = 3.0;
/// Slowness up to which a link is like the others.
const LIKE: f64 = 1.1;
/// Windows that a slowdown must last to count.
const LASTS: usize = 2;

const REPORTS: usize = 200;
const PERIOD: Duration = Duration::from_millis(500);
const BYTES: u64 = 8 << 20;
/// Seconds of the bytes of a report over a healthy link.
const TIME: f64 = 0.04;

/// A link that is slow between two reports.
#[derive(Debug, Clone, Copy)]
struct Slowdown {
    link: u32,
    slow: f64,
    from: usize,
    to: usize,
}

/// One link after the other is slow for a while, some of them for too short to count.
fn slowdowns(rng: &mut DetRng) -> Vec<Slowdown> {
    let (mut slowdowns, mut from) = (Vec::new(), 20);
    loop {
        let length = usize::try_from(4 + rng.below(40)).unwrap_or_default();
        if from + length > REPORTS {
            return slowdowns;
        }
        let link = u32::try_from(rng.below(u64::from(WORKERS))).unwrap_or_default();
        slowdowns.push(Slowdown { link, slow: SLOW + 9.0 * rng.unit(), from, to: from + length });
        from += length + 30;
    }
}

/// Puts a trace to the monitor. `carries` is the number of bytes of a report.
fn detect(slowdowns: &[Slowdown], noise: f64, carries: impl Fn(usize) -> u64, rng: &mut DetRng) -> Found {
    let mut watch = LinkWatch::default();
    let mut found = Found::default();
    let slowness = |link: u32, at: usize| {
        let on = slowdowns.iter().find(|it| it.link == link && (it.from..it.to).contains(&at));
        on.map_or(1.0, |it| it.slow)
    };
    let counts = |it: &&Slowdown| it.to - it.from >= LASTS * WINDOW;
    let mut verdicts = Vec::new();
    for at in 0..REPORTS {
        let now = JobTime::ZERO + PERIOD * u32::try_from(at + 1).unwrap_or(u32::MAX);
        for from in 0..WORKERS {
            let bytes = carries(at);
            #[allow(clippy::cast_precision_loss, reason = "a number of bytes")]
            let healthy = TIME * bytes as f64 / BYTES as f64;
            let time = healthy * slowness(from, at) * (noise * rng.normal()).exp();
            let report = LinkReport {
                to: NodeId::worker((from + 1) % WORKERS),
                bytes,
                time: Duration::from_secs_f64(time),
            };
            for change in watch.reported(now, NodeId::worker(from), false, &report) {
                if let LinkChange::Slow(link) = change {
                    verdicts.push((link.from.index, at));
                }
            }
        }
    }
    for it in slowdowns.iter().filter(counts) {
        let first = verdicts.iter().find(|(link, at)| *link == it.link && (it.from..it.to).contains(at));
        #[allow(clippy::cast_precision_loss, reason = "a number of reports")]
        let delay = first.map(|(_, at)| (at - it.from + 1) as f64 / WINDOW as f64);
        found.label(delay);
    }
    let is_wrong = |(link, at): &&(u32, usize)| {
        (at.saturating_sub(2 * WINDOW)..=*at).all(|at| slowness(*link, at) <= LIKE)
    };
    found.accuse(verdicts.iter().filter(is_wrong).count());
    found
}

/// What was found in so many traces with slow links, and in as many with a slow worker.
fn seeded(seeds: u64) -> Result<(Found, Found)> {
    let (mut slow, mut node) = (Found::default(), Found::default());
    let seeds: Vec<u64> = (0..seeds).collect();
    let found = spread(&seeds, |seed| {
        let rng = &mut Seed(*seed).derive("links").rng();
        let noise = [0.1, 0.2, 0.4][(seed % 3) as usize];
        let of_links = detect(&slowdowns(rng), noise, |_| BYTES, rng);
        // All send a fifth as often while they wait for it.
        let (from, to) = (REPORTS / 4, REPORTS * 3 / 4);
        let carries = |at: usize| if (from..to).contains(&at) { BYTES / 5 } else { BYTES };
        Ok((of_links, detect(&[], noise, carries, rng)))
    })?;
    for (of_links, of_node) in found {
        slow.add(of_links);
        node.add(of_node);
    }
    Ok((slow, node))
}

/// Verdicts on links in a simulated job: of those to and from the host whose card is slow, and of others; and the seconds from the beginning
/// of the slowness to the later one of the first two.
fn simulated(job: &Job) -> Result<(Vec<f64>, u32)> {
    let (_, length) = job.slow_link;
    let began = START.as_secs_f64() + length / 3.0;
    let events = job.run(job.sync, named("none")?)?.events;
    let (mut right, mut wrong) = (Vec::new(), 0);
    for event in events.iter().filter(|event| event.kind == EventKind::SlowLink) {
        // The ring's links to and from the first worker.
        let sender = event.node.map(|node| node.index);
        match [Some(0), Some(WORKERS - 1)].contains(&sender) && event.at.as_secs_f64() >= began {
            true => right.push(event.at.as_secs_f64() - began),
            false => wrong += 1,
        }
    }
    Ok((right, wrong))
}

/// Puts so many seeded traces to the monitor, and simulates `jobs` jobs of `steps` steps.
///
/// # Errors
/// If a job cannot be simulated.
pub(super) fn run(seeds: u64, jobs: u64, steps: u32, rows: &mut Rows) -> Result<()> {
    let (slow, node) = seeded(seeds)?;
    let about = format!(
        "{seeds} traces of {WORKERS} workers in a ring and {REPORTS} reports, noise 10, 20 and 40 %; {} slowdowns of {SLOW}x and more",
        slow.to_find()
    );
    rows.extend(told("slow links of seeded traces", &slow, &about));
    let row =
        Entry::shown("detection, traces with a slow worker: links called slow", f64::from(node.wrong()), "");
    rows.push(row.at_most(0.0).beside(format!("{seeds} traces, noise 10, 20 and 40 %")));
    let (mut delays, mut wrong) = (Vec::new(), 0);
    let length = f64::from(steps * super::BATCH) / SPEED;
    let Some(trace) = trace::ALL.into_iter().find(|it| it.slow_link > 1.0) else { return Ok(()) };
    let simulations: Vec<Job> = (0..jobs).map(|seed| Job::of(&trace, steps, length, Seed(seed))).collect();
    for (right, others) in spread(&simulations, simulated)? {
        delays.extend(right);
        wrong += others;
    }
    #[allow(clippy::cast_precision_loss, reason = "a small number")]
    let share = delays.len() as f64 / (2 * jobs) as f64;
    let longest = delays.iter().copied().fold(0.0, f64::max);
    rows.push(
        Entry::shown("simulated slow link: links found, of the two of the slow card", share, "")
            .within(0.0, 1.0)
            .beside(format!("{jobs} jobs; the last one after {longest:.1} s")),
    );
    rows.push(
        Entry::shown("simulated slow link: other links called slow", f64::from(wrong), "").at_most(0.0),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_with_one_slow_link_has_one_verdict_and_a_slow_worker_has_none() {
        let rng = &mut Seed(1).rng();
        let slow = [Slowdown { link: 3, slow: 6.0, from: 50, to: 90 }];
        let found = detect(&slow, 0.1, |_| BYTES, rng);
        assert_eq!((found.to_find(), found.wrong()), (1, 0), "{found:?}");
        let [precision, recall, delay] = told("x", &found, "");
        assert_eq!((precision.value, recall.value), (Some(1.0), Some(1.0)));
        assert!(delay.value.is_some_and(|delay| delay <= 1.0), "{found:?}");
        let found = detect(&[], 0.4, |at| if at > 50 { BYTES / 5 } else { BYTES }, rng);
        assert!(found.is_empty() && found.wrong() == 0, "{found:?}");
    }

    #[test]
    fn a_simulated_slow_card_is_found_at_both_of_its_links_and_a_job_without_one_has_none() {
        let trace = trace::ALL.into_iter().find(|it| it.slow_link > 1.0).unwrap();
        let job = Job::of(&trace, 240, f64::from(240 * super::super::BATCH) / SPEED, Seed(7));
        let (right, wrong) = simulated(&job).unwrap();
        assert_eq!((right.len(), wrong), (2, 0), "{right:?}");
        let job = Job { slow_link: (1.0, job.slow_link.1), ..job };
        assert_eq!(simulated(&job).unwrap(), (vec![], 0));
    }
}
