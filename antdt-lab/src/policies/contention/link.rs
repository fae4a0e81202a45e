//! A host whose network card is limited by the kernel: workers in network namespaces, one of them behind `tc`'s token bucket.
//!
//! Its ring goes through five hosts: with three, the two links of a slow card are most of all, and nothing can be said. No policy
//! reacts to a slow link: the monitor has to name those of the card, and no other.

use std::collections::BTreeSet;

use anyhow::Result;

use super::LIMIT;
use crate::entry::State;
use crate::hosts::Hosts;
use crate::meter::Others;
use crate::{Entry, Rows, Settings};

/// Hosts, each with one worker.
const HOSTS: u32 = 5;
/// The host behind the token bucket: not that of the master.
const SLOW: usize = 1;
/// Bytes a second that leave it. A step's 110 kB take as long as its gradient.
const BANDWIDTH: f64 = 1e6;

/// Samples of a worker's batch, and of each per second: gradients of 100 ms.
const BATCH: u32 = 32;
const SPEED: u32 = 320;

/// The perceptron of the benchmark `baselines`: 68,904 bytes.
const WORKLOAD: &str = "[workload]\nname = \"mlp\"\n\n[workload.mlp]\nfeatures = 64\nhidden = \"128,64\"\n";

/// Two rows: how many links of the slow card were named, and how many others.
///
/// # Errors
/// If the job fails over the links that there are.
pub(super) fn run(settings: &Settings, steps: u32, rows: &mut Rows) -> Result<()> {
    let about = format!(
        "real contention, card of one of {HOSTS} hosts limited by tc to {:.0} MB/s, {steps} steps",
        BANDWIDTH / 1e6
    );
    let name = format!("{about}: links of it called slow");
    let limited = Hosts::new(HOSTS).and_then(|hosts| hosts.limit(SLOW, BANDWIDTH).map(|()| hosts));
    let hosts = match limited {
        Ok(hosts) => hosts,
        Err(why) => {
            rows.push(Entry::without(name, State::NotCompared, format!("skipped: {why}")));
            return Ok(());
        }
    };
    let job = settings.report_dir.join("contention-link.toml");
    std::fs::write(&job, WORKLOAD)?;
    let text = format!(
        "--job {} --nproc-per-node {HOSTS} --sync allreduce --policy nd --epochs 1 --seed 1 --quiet \
         --data synthetic:{} --global-batch-size {} --emulate-speed {SPEED}",
        job.display(),
        u64::from(steps) * u64::from(BATCH * HOSTS),
        BATCH * HOSTS
    );
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let folder = settings.report_dir.join("contention-link-nd");
    let others = Others::watch();
    let report = hosts.run(&settings.antdt, 1, &words, &folder, LIMIT)?;
    let others = others.share();
    let named: BTreeSet<(&str, bool)> = report
        .events
        .iter()
        .filter(|event| event.kind == "slow-link")
        .map(|event| (event.text.as_str(), of_the_card(&event.text)))
        .collect();
    let count = |of_it: bool| {
        #[allow(clippy::cast_precision_loss, reason = "a number of links")]
        let count = named.iter().filter(|(_, is_of_it)| *is_of_it == of_it).count() as f64;
        count
    };
    let took = format!("the job took {:.1} s", report.job_completion_time_s);
    rows.push(
        Entry::shown(name, count(true), "")
            .at_least(1.0)
            .unless_overloaded(others, super::super::OTHERS_MAX)
            .beside(
                named.iter().map(|(text, _)| (*text).to_owned()).chain([took]).collect::<Vec<_>>().join("; "),
            ),
    );
    rows.push(
        Entry::shown(format!("{about}: other links called slow"), count(false), "")
            .at_most(0.0)
            .unless_overloaded(others, super::super::OTHERS_MAX),
    );
    Ok(())
}

/// Whether the text of an event is about a link of the worker on the slow host.
fn of_the_card(text: &str) -> bool {
    let worker = format!("worker-{SLOW}");
    text.split([' ', ',']).any(|word| word == worker)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_of_the_card_if_one_of_its_ends_is_the_worker_there() {
        let text = |from: u32, to: u32| {
            format!(
                "the network takes 7.90x the usual time per byte from worker-{from} to worker-{to}, 42 % of the time of worker-{from} more"
            )
        };
        assert!(of_the_card(&text(1, 2)) && of_the_card(&text(0, 1)));
        assert!(!of_the_card(&text(2, 3)) && !of_the_card(&text(11, 0)) && !of_the_card(&text(0, 10)));
    }
}
