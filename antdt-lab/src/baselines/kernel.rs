//! The same job over emulated links, and over links that the kernel limits: two network namespaces with `tc`'s token bucket on both sides.

use std::path::Path;

use anyhow::{Context, Result};

use super::cell::{Cell, LOAD_MAX, Scheme};
use super::loss::throughput;
use super::{LIMIT, setting::Setting};
use crate::entry::State;
use crate::hosts::Hosts;
use crate::meter::Others;
use crate::{Entry, Settings};

/// Time of the model over a link, in times of a gradient.
const RATIO: f64 = 0.5;

/// How far the two throughputs may be from each other.
const PERCENT: f64 = 10.0;

/// An even all-reduce between two hosts: its throughput over links of the kernel in times of that over emulated ones.
///
/// # Errors
/// If a job fails over the links that there are.
pub(super) fn row(settings: &Settings, setting: &Setting, job: &Path) -> Result<Entry> {
    let setting = &Setting { workers: 2 * setting.per_host, ..*setting };
    let bandwidth = setting.bandwidth(RATIO);
    let name =
        format!("emulated link: all-reduce of {} over links of the kernel, throughput", setting.name());
    let limited = Hosts::new(2).and_then(|hosts| {
        (0..2).try_for_each(|host| hosts.limit(host, bandwidth))?;
        Ok(hosts)
    });
    let hosts = match limited {
        Ok(hosts) => hosts,
        Err(why) => return Ok(Entry::without(name, State::NotMeasured, why)),
    };
    let watched = Others::watch();
    let mut arguments = vec!["--job".to_owned(), job.display().to_string()];
    arguments.extend(Cell::one_slow(Scheme::AllReduce, 1.0, RATIO, 1).arguments(setting));
    let network = arguments.iter().position(|word| word == "--emulate-network").context("no network")?;
    // The kernel here limits the bandwidth of a link, and delays nothing.
    let links = format!("bandwidth={bandwidth:.0}B/s,latency=0ms,per-host={}", setting.per_host);
    arguments[network + 1] = links;
    let folder = |kind: &str| settings.report_dir.join(format!("links-{kind}"));
    let emulated = crate::run::run(&settings.antdt, &arguments, &folder("emulated"), LIMIT)?;
    arguments.drain(network..network + 2);
    let kernel = hosts.run(&settings.antdt, setting.per_host, &arguments, &folder("of-the-kernel"), LIMIT)?;
    let speed = |report: &antdt::report::Report| {
        throughput(report.loss_curve.points()).context("a job reports no losses")
    };
    let (kernel, emulated) = (speed(&kernel)?, speed(&emulated)?);
    let row = Entry::shown(name, kernel / emulated, "x").within(PERCENT, 1.0);
    Ok(row
        .unless_overloaded(watched.load(), LOAD_MAX)
        .beside(format!("{kernel:.0} samples/s, emulated {emulated:.0} samples/s")))
}
