//! [`Etcd`]: the etcd by which the masters of a job elect one.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run::last_lines;
use crate::tree::starting;

/// How long it may take to serve.
const LIMIT: Duration = Duration::from_secs(30);

/// Pause between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// What comes before the address at which it serves, in what it says.
const SERVES: &str = "serving insecure client requests on ";

/// An etcd of one member, which ends with this value. Its leases last a second, the least that a master asks for.
#[derive(Debug)]
pub(super) struct Etcd {
    child: Child,
    pub(super) address: String,
}

impl Etcd {
    /// Starts one that keeps its data in a folder, which is emptied before; `None` if there is no etcd in the path.
    ///
    /// # Errors
    /// If it does not serve.
    pub(super) fn start(folder: &Path) -> Result<Option<Self>> {
        const ANY: &str = "http://127.0.0.1:0";
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        fs::create_dir_all(folder)?;
        let log = folder.join("log.txt");
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(folder.join("data"));
        for flag in ["listen-client", "advertise-client", "listen-peer", "initial-advertise-peer"] {
            command.args([format!("--{flag}-urls"), ANY.to_owned()]);
        }
        command.args(["--initial-cluster", &format!("default={ANY}")]);
        command.args(["--election-timeout", "500", "--heartbeat-interval", "50"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let started = {
            let _may = starting();
            command.spawn()
        };
        let child = match started {
            Ok(child) => child,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context("cannot start etcd"),
        };
        let mut etcd = Self { child, address: String::new() };
        let deadline = Instant::now() + LIMIT;
        while Instant::now() < deadline {
            if let Some(address) = serves(&fs::read_to_string(&log)?) {
                etcd.address = address;
                return Ok(Some(etcd));
            }
            if let Some(status) = etcd.child.try_wait()? {
                bail!("etcd ended: {status}\n{}", last_lines(&log));
            }
            thread::sleep(LOOK);
        }
        bail!("etcd does not serve after {LIMIT:?}; see {}", log.display())
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        // It may have ended, and what it kept is of no use any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in a whole line of what etcd says.
fn serves(said: &str) -> Option<String> {
    let lines = said.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let (_, rest) = lines.filter_map(|line| line.split_once(SERVES)).next()?;
    Some(rest.split(',').next()?.trim_end_matches(['\n', '"']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_that_of_a_whole_line() {
        let line = "x | serving insecure client requests on 127.0.0.1:4321, this is insecure\n";
        assert_eq!(serves(&format!("a\n{line}b")), Some("127.0.0.1:4321".to_owned()));
        assert_eq!(serves(line.trim_end()), None);
        assert_eq!(serves(""), None);
    }
}
