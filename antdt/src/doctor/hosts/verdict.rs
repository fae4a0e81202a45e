//! What the figures of hosts and links mean. Pure.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use antdt_core::text::format_duration;
use serde::Serialize;

use super::wire::{HostFacts, LinkFigures};

/// A host is slow below this part of the median speed.
const SLOW_HOST: f64 = 0.8;

/// A link is slow below this part of what is typical: the median, over the hosts, of the best link of each. Where one host of three has a slow
/// card, the median over all links is that of the slow ones.
const SLOW_LINK: f64 = 0.5;

/// A link is far above so many times the median round trip, and this one at least, in seconds.
const FAR_LINK: (f64, f64) = (5.0, 0.001);

/// Most notes on single links.
const LINKS_MAX: usize = 10;

/// A clock that differs by more is named, in seconds.
const CLOCK: f64 = 1.0;

/// A host with what was measured of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct HostFigures {
    #[serde(flatten)]
    pub(crate) facts: HostFacts,
    /// Speed of one core, as a part of the median host's.
    pub(crate) speed: f64,
    /// How far its clock is before that of the first host, in seconds.
    pub(crate) clock: f64,
}

/// A pair of hosts, by their names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct LinkOutcome {
    pub(crate) a: String,
    pub(crate) b: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) figures: Option<LinkFigures>,
    /// Why there are no figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
}

/// All that was found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct HostsVerdict {
    pub(crate) hosts: Vec<HostFigures>,
    pub(crate) links: Vec<LinkOutcome>,
    /// What makes jobs slow.
    pub(crate) notes: Vec<String>,
    /// What makes jobs fail.
    pub(crate) faults: Vec<String>,
}

/// The middle of some numbers; 0 of none.
pub(super) fn median(numbers: impl IntoIterator<Item = f64>) -> f64 {
    let mut numbers: Vec<f64> = numbers.into_iter().collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

/// Judges the hosts, whose speed is still in units of their own.
pub(super) fn judge(mut hosts: Vec<HostFigures>, links: Vec<LinkOutcome>) -> HostsVerdict {
    let typical = median(hosts.iter().map(|host| host.speed));
    for host in &mut hosts {
        host.speed = if typical > 0.0 { host.speed / typical } else { 1.0 };
    }
    let (mut notes, mut faults) = (Vec::new(), Vec::new());
    for HostFigures { facts, speed, clock } in &hosts {
        let name = &facts.host;
        faults.extend(facts.findings.iter().map(|finding| format!("{name}: {finding}")));
        if *speed < SLOW_HOST {
            notes.push(format!("{name} is slow: {speed:.2} of the median speed of a core"));
        }
        if clock.abs() > CLOCK {
            notes.push(format!(
                "{name}: its clock is {} {} the first host's; lines of its nodes have other times",
                seconds(clock.abs()),
                if *clock > 0.0 { "before" } else { "behind" }
            ));
        }
    }
    let versions: BTreeMap<&str, &str> =
        hosts.iter().map(|host| (&*host.facts.version, &*host.facts.host)).collect();
    if versions.len() > 1 {
        let list: Vec<String> =
            versions.iter().map(|(version, host)| format!("{version} on {host}")).collect();
        faults.push(format!("hosts have different versions of antdt: {}", list.join(", ")));
    }
    judge_links(&hosts, &links, &mut notes, &mut faults);
    HostsVerdict { hosts, links, notes, faults }
}

fn judge_links(
    hosts: &[HostFigures],
    links: &[LinkOutcome],
    notes: &mut Vec<String>,
    faults: &mut Vec<String>,
) {
    let known: Vec<(&LinkOutcome, LinkFigures)> =
        links.iter().filter_map(|link| Some((link, link.figures?))).collect();
    let best = |name: &str| {
        let of_host = known.iter().filter(|(link, _)| link.a == name || link.b == name);
        of_host.map(|(_, figures)| slower(figures)).fold(0.0, f64::max)
    };
    let typical = median(hosts.iter().map(|host| best(&host.facts.host)));
    let near = median(known.iter().map(|(_, figures)| figures.round_trip));
    let is_slow = |figures: &LinkFigures| slower(figures) < SLOW_LINK * typical;
    // A host all of whose links are slow is named once.
    let names = hosts.iter().map(|host| &*host.facts.host);
    let slow_hosts: Vec<&str> = names.filter(|name| best(name) < SLOW_LINK * typical).collect();
    for name in &slow_hosts {
        let (best, typical) = (rate(best(name)), rate(typical));
        notes.push(format!("{name}: all its links are slow: {best} at most, where others have {typical}"));
    }
    let mut of_links = Vec::new();
    for (LinkOutcome { a, b, .. }, figures) in &known {
        let is_named = slow_hosts.iter().any(|name| name == a || name == b);
        if is_slow(figures) && !is_named {
            of_links.push(format!(
                "{a} to {b} is slow: {} there, {} back, where others have {}",
                rate(figures.to),
                rate(figures.from),
                rate(typical)
            ));
        }
        let (times, least) = FAR_LINK;
        if figures.round_trip > least && figures.round_trip > times * near {
            of_links.push(format!(
                "{a} to {b} is far: {} there and back, where the median is {}",
                seconds(figures.round_trip),
                seconds(near)
            ));
        }
    }
    let left = of_links.len().saturating_sub(LINKS_MAX);
    notes.extend(of_links.into_iter().take(LINKS_MAX));
    if left > 0 {
        notes.push(format!("{left} more findings on links; --json has the figures of all"));
    }
    for LinkOutcome { a, b, why, .. } in links {
        faults.extend(why.as_ref().map(|why| format!("{a} does not reach {b}: {why}")));
    }
}

/// The slower direction.
fn slower(figures: &LinkFigures) -> f64 {
    figures.to.min(figures.from)
}

impl HostsVerdict {
    /// Whether jobs can run over these hosts.
    pub(super) fn is_good(&self) -> bool {
        self.faults.is_empty()
    }

    /// A table of hosts, a line on the links, and a line for each finding.
    pub(super) fn render(&self) -> String {
        let width = self.hosts.iter().map(|host| host.facts.host.len()).max().unwrap_or(0).max(4);
        let mut text = format!("{:width$}  cores  speed   clock  GPUs  RDMA\n", "host");
        for HostFigures { facts, speed, clock } in &self.hosts {
            let _ = writeln!(
                text,
                "{:width$}  {:>5}  {speed:>5.2}  {clock:>+5.2}s  {:>4}  {:>4}",
                facts.host,
                facts.cores,
                facts.gpus.len(),
                facts.rdma.len()
            );
        }
        let known = || self.links.iter().filter_map(|link| link.figures);
        if known().next().is_some() {
            let rates: Vec<f64> = known().map(|figures| slower(&figures)).collect();
            let trips: Vec<f64> = known().map(|figures| figures.round_trip).collect();
            let least = |numbers: &[f64]| numbers.iter().copied().fold(f64::INFINITY, f64::min);
            let most = |numbers: &[f64]| numbers.iter().copied().fold(0.0, f64::max);
            let _ = writeln!(
                text,
                "{} links: bandwidth {} to {} (median {}), there and back {} to {} (median {})",
                rates.len(),
                rate(least(&rates)),
                rate(most(&rates)),
                rate(median(rates.iter().copied())),
                seconds(least(&trips)),
                seconds(most(&trips)),
                seconds(median(trips.iter().copied()))
            );
        }
        for (state, lines) in [("note ", &self.notes), ("FAULT", &self.faults)] {
            text.extend(lines.iter().map(|line| format!("{state}  {line}\n")));
        }
        if self.notes.is_empty() && self.faults.is_empty() {
            text += "ok     no slow host, no slow link\n";
        }
        text
    }
}

/// Bytes a second, in bits a second as links are sold.
fn rate(bytes: f64) -> String {
    match bytes * 8.0 {
        bits if bits >= 1e9 => format!("{:.1} Gb/s", bits / 1e9),
        bits => format!("{:.1} Mb/s", bits / 1e6),
    }
}

/// A time of two or three digits.
fn seconds(seconds: f64) -> String {
    let step = if seconds >= 1.0 { 1e-1 } else { 1e-6 };
    let rounded = (seconds / step).round() * step;
    format_duration(std::time::Duration::try_from_secs_f64(rounded).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, speed: f64, clock: f64) -> HostFigures {
        let facts = HostFacts {
            host: name.to_owned(),
            version: "1".to_owned(),
            cores: 8.0,
            gpus: Vec::new(),
            rdma: Vec::new(),
            findings: Vec::new(),
        };
        HostFigures { facts, speed, clock }
    }

    fn link(a: &str, b: &str, rate: f64, round_trip: f64) -> LinkOutcome {
        let figures = Some(LinkFigures { round_trip, to: rate, from: rate });
        LinkOutcome { a: a.to_owned(), b: b.to_owned(), figures, why: None }
    }

    #[test]
    fn equal_hosts_and_links_are_good() {
        let hosts = ["a", "b", "c"].map(|name| host(name, 7.0, 0.1));
        let links = vec![link("a", "b", 1e9, 1e-4), link("b", "c", 0.7e9, 2e-4), link("a", "c", 1e9, 1e-4)];
        let verdict = judge(hosts.to_vec(), links);
        assert!(verdict.is_good() && verdict.notes.is_empty(), "{verdict:?}");
        let text = verdict.render();
        assert!(text.contains("3 links: bandwidth 5.6 Gb/s to 8.0 Gb/s") && text.contains("ok "), "{text}");
    }

    #[test]
    fn slow_host_far_link_and_one_that_is_out_of_reach_are_named() {
        let mut hosts = ["a", "b", "c", "d"].map(|name| host(name, 10.0, 0.0)).to_vec();
        hosts[1].speed = 6.0;
        hosts[2].clock = -900.0;
        hosts[3].facts.version = "2".to_owned();
        let mut links: Vec<LinkOutcome> = [("a", "b"), ("a", "d"), ("b", "c"), ("b", "d"), ("c", "d")]
            .map(|(a, b)| link(a, b, 1e9, 1e-4))
            .to_vec();
        links[3].figures = Some(LinkFigures { round_trip: 2e-2, to: 1e9, from: 1e7 });
        let why = Some("connection refused".to_owned());
        links.push(LinkOutcome { a: "a".to_owned(), b: "c".to_owned(), figures: None, why });
        let text = judge(hosts, links).render();
        for says in [
            "b is slow: 0.60 of the median",
            "c: its clock is 15m behind",
            "b to d is slow: 8.0 Gb/s there, 80.0 Mb/s back, where others have 8.0 Gb/s",
            "b to d is far: 20ms there and back",
            "FAULT  a does not reach c: connection refused",
            "FAULT  hosts have different versions of antdt: 1 on c, 2 on d",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
    }

    #[test]
    fn host_whose_links_are_all_slow_is_named_once() {
        let hosts = ["a", "b", "c", "d"].map(|name| host(name, 1.0, 0.0)).to_vec();
        let rate = |a: &str, b: &str| if a == "d" || b == "d" { 1e7 } else { 1e9 };
        let pairs = [("a", "b"), ("a", "c"), ("b", "c"), ("a", "d"), ("b", "d"), ("c", "d")];
        let links = pairs.map(|(a, b)| link(a, b, rate(a, b), 1e-4)).to_vec();
        let notes = judge(hosts, links).notes;
        assert_eq!(notes, ["d: all its links are slow: 80.0 Mb/s at most, where others have 8.0 Gb/s"]);
        let hosts = ["a", "b", "d"].map(|name| host(name, 1.0, 0.0)).to_vec();
        let links = [("a", "b"), ("a", "d"), ("b", "d")].map(|(a, b)| link(a, b, rate(a, b), 1e-4)).to_vec();
        let notes = judge(hosts, links).notes;
        assert!(notes.len() == 1 && notes[0].starts_with("d: "), "of three hosts, too: {notes:?}");
    }

    #[test]
    fn links_of_racks_far_from_each_other_do_not_fill_the_screen() {
        let names: Vec<String> = (0..12).map(|index| format!("n{index:02}")).collect();
        let hosts = names.iter().map(|name| host(name, 1.0, 0.0)).collect();
        let is_near = |a: usize, b: usize| a / 6 == b / 6;
        let pairs = (0..12).flat_map(|a| (a + 1..12).map(move |b| (a, b)));
        let links =
            pairs.map(|(a, b)| link(&names[a], &names[b], if is_near(a, b) { 1e9 } else { 1e8 }, 1e-4));
        let notes = judge(hosts, links.collect()).notes;
        assert_eq!(
            (notes.len(), &*notes[10]),
            (11, "26 more findings on links; --json has the figures of all")
        );
    }
}
