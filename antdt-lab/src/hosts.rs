//! [`Hosts`]: hosts of a job that are network namespaces of this machine, with links that the kernel limits.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio, id};
use std::time::Duration;

use antdt::report::Report;
use anyhow::{Context, Result};

/// Bytes that may pass a limited link at once, and time that one may wait in its queue.
const BURST: u32 = 10_000;
const QUEUE: &str = "200ms";

/// What the token bucket counts of a full segment, over what it carries: headers of Ethernet, IP and TCP with its timestamps.
const FRAMING: f64 = 1514.0 / 1448.0;

/// Network namespaces on a bridge of their own; they go with it.
pub(crate) struct Hosts {
    hub: String,
    names: Vec<String>,
}

impl Hosts {
    /// So many hosts with links that nothing limits.
    ///
    /// # Errors
    /// The reason, in words, why there can be none: it takes root and `ip`.
    pub(crate) fn new(count: u32) -> Result<Self, String> {
        let hub = format!("antdt-bench-{}-hub", id());
        let names = (0..count).map(|host| format!("antdt-bench-{}-{host}", id())).collect();
        let hosts = Self { hub, names };
        system("ip", &["netns", "add", &hosts.hub])?;
        system("ip", &["-n", &hosts.hub, "link", "add", "bridge", "type", "bridge"])?;
        system("ip", &["-n", &hosts.hub, "link", "set", "bridge", "up"])?;
        for (index, name) in hosts.names.iter().enumerate() {
            let (hub, port) = (&hosts.hub, format!("port{index}"));
            system("ip", &["netns", "add", name])?;
            let pair = ["type", "veth", "peer", "name", "eth0", "netns", name];
            system("ip", &[&["-n", hub, "link", "add", &port], &pair[..]].concat())?;
            system("ip", &["-n", hub, "link", "set", &port, "master", "bridge", "up"])?;
            let address = format!("{}/24", Self::address(index));
            system("ip", &["-n", name, "address", "add", &address, "dev", "eth0"])?;
            for device in ["lo", "eth0"] {
                system("ip", &["-n", name, "link", "set", device, "up"])?;
            }
        }
        Ok(hosts)
    }

    /// Lets no more than so many bytes of data a second leave a host.
    ///
    /// # Errors
    /// The reason, in words, why it cannot: it takes `tc`.
    pub(crate) fn limit(&self, host: usize, bandwidth: f64) -> Result<(), String> {
        let (rate, burst) = (format!("{:.0}bit", 8.0 * bandwidth * FRAMING), BURST.to_string());
        let bucket = ["tbf", "rate", &rate, "burst", &burst, "latency", QUEUE];
        let device = ["-n", &self.names[host], "qdisc", "add", "dev", "eth0", "root"];
        system("tc", &[&device, &bucket[..]].concat())
    }

    fn address(index: usize) -> String {
        format!("10.214.0.{}", index + 1)
    }

    /// Runs a job with so many workers on each host, whose master is on the first one. The settings of the launcher go into a copy of
    /// the job file that the arguments name, if they name one.
    ///
    /// # Errors
    /// If a job file cannot be read or written; then as [`crate::run::run`].
    pub(crate) fn run(
        &self,
        antdt: &Path,
        per_host: u32,
        arguments: &[String],
        folder: &Path,
        limit: Duration,
    ) -> Result<Report> {
        let mut arguments = arguments.to_vec();
        let mut settings = String::new();
        if let Some(at) = arguments.iter().position(|word| word == "--job") {
            let words: Vec<String> = arguments.drain(at..arguments.len().min(at + 2)).collect();
            let file = words.get(1).context("--job names no file")?;
            settings = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
        }
        settings += &self.launcher(per_host);
        fs::create_dir_all(folder)?;
        let job = folder.join("hosts.toml");
        fs::write(&job, settings).with_context(|| format!("cannot write {}", job.display()))?;
        arguments.extend(["--job".to_owned(), job.display().to_string()]);
        if !arguments.iter().any(|word| word == "--data-plane") {
            // As the peers that it is measured beside.
            arguments.push("--insecure".to_owned());
        }
        arguments.extend(["--bind".to_owned(), Self::address(0)]);
        let before = ["netns", "exec", &self.names[0], &antdt.display().to_string()].map(str::to_owned);
        crate::run::run_by("ip", &before, &arguments, folder, limit)
    }

    /// The table of a job file by which nodes are started on these hosts.
    fn launcher(&self, per_host: u32) -> String {
        let places = self.names.iter().enumerate();
        let places: Vec<String> =
            places.map(|(index, name)| format!("{name}={}", Self::address(index))).collect();
        format!(
            "\n[launcher.ssh]\nhosts = \"{}\"\nper-host = {per_host}\ncommand = \"ip netns exec {{host}} sh -s\"\n",
            places.join(",")
        )
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in self.names.iter().chain([&self.hub]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_reach_each_other_and_are_gone_afterwards() {
        let hosts = match Hosts::new(2) {
            Ok(hosts) => hosts,
            Err(why) => return println!("skipped: {why}"),
        };
        let names = hosts.names.clone();
        hosts.limit(1, 1e6).unwrap();
        let has = |name: &str| Path::new("/run/netns").join(name).exists();
        assert!(names.iter().all(|name| has(name)) && has(&hosts.hub));
        let told =
            Command::new("tc").args(["-n", &names[1], "qdisc", "show", "dev", "eth0"]).output().unwrap();
        let told = String::from_utf8_lossy(&told.stdout).into_owned();
        assert!(
            told.contains("tbf") && told.contains("rate 836"),
            "8 Mbit/s of data with their headers: {told}"
        );
        let hub = hosts.hub.clone();
        drop(hosts);
        assert!(!names.iter().chain([&hub]).any(|name| has(name)));
    }
}
