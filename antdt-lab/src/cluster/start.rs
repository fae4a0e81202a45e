//! From the start of the command on every host to that of the last program, beside torchrun's rendezvous.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use antdt_bench::entry::State;
use antdt_bench::pytorch::TORCHRUN;
use anyhow::{Context, Result, ensure};

use super::super::meter::median;
use super::super::run::{program_with, wait};
use super::Scale;
use crate::{Entry, Rows, Settings};

/// No start takes as long.
const LIMIT: Duration = Duration::from_secs(300);

/// What every host runs: it writes down when it begins.
const PROGRAM: &str = "date +%s.%N > \"$0/$RANK\"";

/// Interpreters that may have torch.
const INTERPRETERS: [&str; 2] = ["python3", "/usr/bin/python3"];

/// What starts the program on all hosts, which are processes of this machine.
struct Starter<'a> {
    program: PathBuf,
    /// Its arguments on a host, before the program.
    words: &'a dyn Fn(u32, u32, &str) -> Vec<String>,
}

pub(super) fn start(settings: &Settings, scale: &Scale, rows: &mut Rows) -> Result<()> {
    let words = |hosts: u32, host: u32, endpoint: &str| {
        let words = format!(
            "run --nnodes {hosts} --nproc-per-node 1 --node-rank {host} --host-name h{host} --rdzv-endpoint {endpoint} --quiet"
        );
        words.split(' ').map(str::to_owned).collect()
    };
    let ours = Starter { program: settings.antdt.clone(), words: &words };
    let folder = std::path::absolute(settings.report_dir.join("start"))?;
    let many = ours.time(scale.many_hosts, &folder.join("many"))?;
    let name = format!("start of {} hosts, to the last program", scale.many_hosts);
    rows.push(Entry::shown(name, many, "s").beside("processes of this machine, each with its host agent"));
    let name = format!("start of {} hosts, over torchrun's", scale.hosts);
    let Some(python) = python() else {
        rows.push(Entry::without(name, State::NotCompared, "install python3-torch"));
        return Ok(());
    };
    fs::create_dir_all(&folder)?;
    let script = folder.join("torchrun.py");
    fs::write(&script, TORCHRUN).with_context(|| format!("cannot write {}", script.display()))?;
    let torchrun = |hosts: u32, host: u32, endpoint: &str| {
        // Older versions know no dashes in these flags.
        let words = format!(
            "{} --nnodes {hosts} --nproc_per_node 1 --node_rank {host} --rdzv_backend c10d --rdzv_id bench \
             --rdzv_endpoint {endpoint} --no_python",
            script.display()
        );
        words.split(' ').map(str::to_owned).collect()
    };
    let torchrun = Starter { program: python, words: &torchrun };
    let (mut times, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..scale.rounds {
        let folder = folder.join(round.to_string());
        times.push(ours.time(scale.hosts, &folder.join("antdt"))?);
        theirs.push(torchrun.time(scale.hosts, &folder.join("torchrun"))?);
    }
    let ratios = times.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs);
    let beside = format!("{:.2} s, torchrun {:.2} s", median(times.clone()), median(theirs.clone()));
    rows.push(Entry::shown(name, median(ratios), "x").at_most(1.0).beside(beside));
    Ok(())
}

/// An interpreter with torch.
fn python() -> Option<PathBuf> {
    let has_torch = |python: &str| {
        let asked = std::process::Command::new(python).args(["-c", "import torch.distributed.run"]).output();
        asked.is_ok_and(|output| output.status.success())
    };
    INTERPRETERS.into_iter().find(|python| has_torch(python)).map(PathBuf::from)
}

impl Starter<'_> {
    /// Seconds from the start of the first command to that of the last program.
    fn time(&self, hosts: u32, folder: &Path) -> Result<f64> {
        let _ = fs::remove_dir_all(folder);
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        // Somebody else may take the port before the first host does; then the run fails, and says so.
        let endpoint = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let began = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let mut children: Vec<Child> = Vec::new();
        for host in 0..hosts {
            let mut words = (self.words)(hosts, host, &endpoint);
            if self.program.file_name().is_some_and(|name| name == "antdt") {
                let report = folder.join("report").display().to_string();
                words.extend(["--report-dir".to_owned(), report, "--".to_owned()]);
            }
            words.extend(["sh", "-c", PROGRAM].map(str::to_owned));
            words.push(folder.display().to_string());
            let log = folder.join(format!("host-{host}.log"));
            let out = File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
            children.push(program_with(&self.program, &words, out)?);
        }
        for child in children {
            let status = wait(child, LIMIT)?;
            ensure!(status.success(), "a host has failed: see {}", folder.display());
        }
        let mut last = 0.0_f64;
        for rank in 0..hosts {
            let file = folder.join(rank.to_string());
            let text = fs::read_to_string(&file).with_context(|| format!("no {}", file.display()))?;
            last = last.max(text.trim().parse().with_context(|| format!("{} is no time", file.display()))?);
        }
        Ok(last - began)
    }
}
