//! Slowdowns of workers that were recorded elsewhere, as stragglers of a simulated job: `t_s,worker,slowdown` files in the folder that
//! `ANTDT_DATA` names.

use std::io::Read;
use std::path::PathBuf;

use antdt_core::{JobTime, NodeId};
use antdt_sim::model::compute::{Slowdowns, Straggler, Who};
use anyhow::{Context, Result, anyhow};

/// A recorded series, and what is to be gained by it: the step of a barrier over that of shares known in advance, by its source.
pub(super) struct Series {
    pub(super) name: &'static str,
    pub(super) slowdowns: Slowdowns,
    /// Whether any action is a false alarm.
    pub(super) is_quiet: bool,
}

/// The files, and whether a straggler is in them: fixed by hindsight, by the values themselves. In `alibaba_job1` one worker takes 1.7 to 2.4
/// times as long for a minute, in `alibaba_job2` workers differ by up to 1.32 all the time, and in `bytedance_ST` by 1.7 %.
const FILES: [(&str, bool); 3] = [("alibaba_job1", false), ("alibaba_job2", false), ("bytedance_ST", true)];

/// All series; `None` without the data set.
///
/// # Errors
/// If one of them cannot be read.
pub(super) fn all() -> Result<Option<Vec<Series>>> {
    let Some(folder) = std::env::var_os("ANTDT_DATA").map(PathBuf::from) else { return Ok(None) };
    let mut series = Vec::new();
    for (name, is_quiet) in FILES {
        let file = folder.join("slowdown_series").join(format!("{name}.csv.gz"));
        let mut text = String::new();
        antdt_rt::open_trace(&file)
            .and_then(|mut it| it.read_to_string(&mut text))
            .with_context(|| format!("cannot read {}", file.display()))?;
        let slowdowns =
            antdt_sim::replay::read_slowdowns(&text).map_err(|error| anyhow!("{name}: {error}"))?;
        series.push(Series { name, slowdowns, is_quiet });
    }
    Ok(Some(series))
}

/// What a job of so many seconds meets: a straggler for each worker and each interval of the series, which begins anew at its end. A factor
/// counts over the smallest one of the series, so that no worker is faster than healthy.
pub(super) fn stragglers(slowdowns: &Slowdowns, length: f64) -> Vec<Straggler> {
    let workers = u32::try_from(slowdowns.workers()).unwrap_or(u32::MAX);
    let all = (0..workers).flat_map(|worker| slowdowns.entries(worker));
    let least = all.map(|(_, factor)| *factor).fold(f64::INFINITY, f64::min);
    let length = JobTime((length * 1e9) as u64);
    let mut stragglers = Vec::new();
    for worker in 0..workers {
        let entries = slowdowns.entries(worker);
        let mut begin = JobTime::ZERO;
        while begin < length {
            let anew = begin + slowdowns.period();
            for (at, (from, factor)) in entries.iter().enumerate() {
                // Before its first entry a worker is as slow as at that.
                let from = if at == 0 { begin } else { begin + from.since_start() };
                let to = entries.get(at + 1).map_or(anew, |(next, _)| begin + next.since_start());
                let slow = factor / least;
                // What changes nothing would be looked at in vain; equal neighbours are one.
                let longer = stragglers.last_mut().filter(|last: &&mut Straggler| {
                    last.who == Who::Node(NodeId::worker(worker)) && last.to == from && last.slow == slow
                });
                if let Some(last) = longer {
                    last.to = to;
                } else if slow > 1.0 {
                    let who = Who::Node(NodeId::worker(worker));
                    stragglers.push(Straggler { who, slow, from, to, cured_by_restart: false });
                }
            }
            begin = anew;
        }
    }
    stragglers
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn stragglers_are_as_slow_as_the_series_at_every_moment() {
        let second = |second: u64| JobTime(second * 1_000_000_000);
        let of = |entries: &[(u64, f64)]| entries.iter().map(|(at, slow)| (second(*at), *slow)).collect();
        let workers = vec![of(&[(0, 0.5), (10, 1.0), (20, 1.0)]), of(&[(5, 2.0), (15, 0.5)])];
        let slowdowns = Slowdowns::new(workers, Duration::from_secs(30)).unwrap();
        let stragglers = stragglers(&slowdowns, 50.0);
        for worker in 0..2 {
            for at in 0..50 {
                let who = Who::Node(NodeId::worker(worker));
                let active = stragglers
                    .iter()
                    .filter(|it| it.who == who && it.from <= second(at) && second(at) < it.to);
                let slow: f64 = active.map(|it| it.slow).product();
                let expected = slowdowns.at(worker, second(at)) / 0.5;
                assert!((slow - expected).abs() < 1e-12, "worker {worker} at {at}: {slow} and {expected}");
            }
        }
        assert_eq!(stragglers.len(), 4, "equal neighbours are one: {stragglers:?}");
    }
}
