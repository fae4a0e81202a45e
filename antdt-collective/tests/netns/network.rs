//! A bridge in a network namespace of its own, and one namespace for each member, so that the host's network stays as
//! it is.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{self, Command, Stdio};

/// Before the number of the process that made a namespace.
const PREFIX: &str = "antdt-test-";

/// Namespaces that go with it.
pub(crate) struct Network {
    names: Vec<String>,
    hub: String,
}

impl Network {
    /// One namespace for each of `world` members; what tests that were killed have left is removed.
    ///
    /// # Errors
    /// If this process may not, or the system cannot: says why.
    ///
    /// # Panics
    /// If namespaces can be made and then not be connected.
    pub(crate) fn of(world: u32) -> Result<Self, String> {
        let me = fs::metadata("/proc/self").map_err(|error| format!("no /proc: {error}"))?;
        if me.uid() != 0 {
            return Err("network namespaces need root".to_owned());
        }
        ip(&["-V"])?;
        for name in present() {
            let pid = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
                // One that was stopped did not notice that its test was gone.
                for left in ip(&["netns", "pids", &name])?.split_whitespace() {
                    // Fails if it has just ended.
                    let _ = Command::new("sh").args(["-c", &format!("kill -KILL {left}")]).output();
                }
                ip(&["netns", "del", &name])?;
            }
        }
        let hub = format!("{PREFIX}{}-hub", process::id());
        let mut network = Self { names: Vec::new(), hub: hub.clone() };
        network.add(&hub)?;
        ip(&["-n", &hub, "link", "add", "bridge", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "bridge", "up"])?;
        for rank in 0..world {
            if let Err(error) = network.connect(rank) {
                panic!("namespaces can be made, but rank {rank} gets none: {error}");
            }
        }
        Ok(network)
    }

    fn add(&mut self, name: &str) -> Result<(), String> {
        ip(&["netns", "add", name])?;
        self.names.push(name.to_owned());
        Ok(())
    }

    fn connect(&mut self, rank: u32) -> Result<(), String> {
        let (hub, port, name) = (self.hub.clone(), Self::port(rank), Self::name(rank));
        self.add(&name)?;
        ip(&["-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name])?;
        ip(&["-n", &hub, "link", "set", &port, "master", "bridge", "up"])?;
        ip(&["-n", &name, "address", "add", &format!("{}/24", Self::address(rank)), "dev", "eth0"])?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        ip(&["-n", &name, "link", "set", "eth0", "up"])?;
        Ok(())
    }

    /// Nothing reaches this member, and nothing that it sends reaches others, from now on.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn cut(&self, rank: u32) -> Result<(), String> {
        ip(&["-n", &self.hub, "link", "set", &Self::port(rank), "down"])?;
        Ok(())
    }

    /// Ends what [`cut`](Self::cut) did.
    ///
    /// # Errors
    /// If the system refuses it.
    pub(crate) fn heal(&self, rank: u32) -> Result<(), String> {
        ip(&["-n", &self.hub, "link", "set", &Self::port(rank), "up"])?;
        Ok(())
    }

    /// The namespaces.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The namespace of a member.
    pub(crate) fn name(rank: u32) -> String {
        format!("{PREFIX}{}-{rank}", process::id())
    }

    /// The address of a member.
    pub(crate) fn address(rank: u32) -> String {
        format!("10.213.0.{}", rank + 1)
    }

    fn port(rank: u32) -> String {
        format!("port{rank}")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            // The test looks whether any is left.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

/// All namespaces that this test made, in this or another process.
pub(crate) fn present() -> BTreeSet<String> {
    let Ok(entries) = fs::read_dir("/run/netns") else { return BTreeSet::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}

// What it printed.
fn ip(arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("ip");
    let output = command.args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("ip cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("ip {} says: {}", arguments.join(" "), said.trim()))
}
