//! The same job over emulated links, and over links that the kernel limits: two network namespaces with `tc`'s token bucket between them.

use std::path::Path;
use std::process::{Command, Stdio, id};

use anyhow::{Context, Result};

use super::cell::{Cell, LOAD_MAX, Scheme};
use super::loss::throughput;
use super::{LIMIT, setting::Setting};
use crate::entry::State;
use crate::meter::Others;
use crate::{Entry, Settings};

/// Time of the model over a link, in times of a gradient.
const RATIO: f64 = 0.5;

/// How far the two throughputs may be from each other.
const PERCENT: f64 = 10.0;

/// What the token bucket counts of a full segment, over what it carries: headers of Ethernet, IP and TCP with its timestamps.
const FRAMING: f64 = 1514.0 / 1448.0;

/// Bytes that may pass at once, and time that one may wait in the queue.
const BURST: u32 = 10_000;
const QUEUE: &str = "200ms";

/// An even all-reduce between two hosts: its throughput over links of the kernel in times of that over emulated ones.
///
/// # Errors
/// If a job fails over the links that there are.
pub(super) fn row(settings: &Settings, setting: &Setting, job: &Path) -> Result<Entry> {
    let setting = &Setting { workers: 2 * setting.per_host, ..*setting };
    let bandwidth = setting.bandwidth(RATIO);
    let name =
        format!("emulated link: all-reduce of {} over links of the kernel, throughput", setting.name());
    let programs = settings.antdt.parent().context("the program under test has no folder")?;
    let launcher = programs.join("examples/own_launcher");
    if !launcher.is_file() {
        let why = "the example own_launcher is not beside antdt; `cargo xtask bench` builds it";
        return Ok(Entry::without(name, State::NotMeasured, why));
    }
    let hosts = match Hosts::new(bandwidth * FRAMING) {
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
    arguments.extend(["--bind", Hosts::ADDRESSES[0]].map(str::to_owned));
    let kernel = hosts.run(&launcher, setting, &arguments, &folder("of-the-kernel"))?;
    let speed = |report: &antdt::report::Report| {
        throughput(report.loss_curve.points()).context("a job reports no losses")
    };
    let (kernel, emulated) = (speed(&kernel)?, speed(&emulated)?);
    let row = Entry::shown(name, kernel / emulated, "x").within(PERCENT, 1.0);
    Ok(row
        .unless_overloaded(watched.load(), LOAD_MAX)
        .beside(format!("{kernel:.0} samples/s, emulated {emulated:.0} samples/s")))
}

/// Two network namespaces with a link between them; they go with it.
struct Hosts {
    names: [String; 2],
}

impl Hosts {
    const ADDRESSES: [&str; 2] = ["10.214.0.1", "10.214.0.2"];

    /// A link of so many bytes per second each way; or why there is none.
    fn new(bandwidth: f64) -> Result<Self, String> {
        let names = ["a", "b"].map(|host| format!("antdt-bench-{}-{host}", id()));
        let hosts = Self { names };
        let [a, b] = &hosts.names;
        for name in [a, b] {
            system("ip", &["netns", "add", name])?;
        }
        system("ip", &["-n", a, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", b])?;
        let rate = format!("{:.0}bit", 8.0 * bandwidth);
        for (name, address) in hosts.names.iter().zip(Self::ADDRESSES) {
            system("ip", &["-n", name, "address", "add", &format!("{address}/24"), "dev", "eth0"])?;
            for device in ["lo", "eth0"] {
                system("ip", &["-n", name, "link", "set", device, "up"])?;
            }
            let burst = BURST.to_string();
            let bucket = ["tbf", "rate", &rate, "burst", &burst, "latency", QUEUE];
            system("tc", &[&["-n", name, "qdisc", "add", "dev", "eth0", "root"], &bucket[..]].concat())?;
        }
        Ok(hosts)
    }

    /// Runs a job whose master is on the first host.
    fn run(
        &self,
        launcher: &Path,
        setting: &Setting,
        arguments: &[String],
        folder: &Path,
    ) -> Result<antdt::report::Report> {
        let places: Vec<String> = self
            .names
            .iter()
            .zip(Self::ADDRESSES)
            .map(|(name, address)| format!("{name}={address}"))
            .collect();
        let before = [
            "netns".to_owned(),
            "exec".to_owned(),
            self.names[0].clone(),
            "env".to_owned(),
            format!("OWN_HOSTS={}", places.join(" ")),
            format!("OWN_PER_HOST={}", setting.per_host),
            "OWN_SHELL=ip netns exec {host} sh -s".to_owned(),
            launcher.display().to_string(),
        ];
        crate::run::run_by("ip", &before, arguments, folder, LIMIT)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            // One that was not made cannot be removed.
            let _ = system("ip", &["netns", "del", name]);
        }
    }
}

/// Runs a program of the system.
fn system(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("`{program}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("`{program} {}`: {}", arguments.join(" "), said.trim()))
}
