//! Three hosts with two workers each, whose cards the kernel limits to 1 Gb/s: all-reduce that knows of hosts beside a ring that does not,
//! and encrypted connections beside plain ones.

use std::fs;
use std::path::Path;
use std::time::Duration;

use antdt_bench::entry::State;
use anyhow::{Context, Result};

use super::super::meter::median;
use super::super::run::batch_time_s;
use super::Scale;
use crate::hosts::Hosts;
use crate::{Entry, Rows, Settings};

const HOSTS: usize = 3;
const PER_HOST: u32 = 2;

/// Bytes a second of each card.
const BANDWIDTH: f64 = 125e6;

/// 1.3 million parameters, whose gradients take longer on the links than on the cores.
const MODEL: &str = "[workload.mlp]\nhidden = \"1024,1024\"\n";

/// No job takes as long.
const LIMIT: Duration = Duration::from_secs(240);

/// Rounds in which the jobs take turns.
const ROUNDS: usize = 3;

/// A job: its name and its own settings.
type Variant = (&'static str, &'static [&'static str]);

const RING: Variant = ("ring", &["--algorithm", "ring"]);
const HIERARCHICAL: Variant = ("hierarchical", &[]);
const ENCRYPTED: Variant = ("encrypted", &["--data-plane", "tls"]);

pub(super) fn links(settings: &Settings, scale: &Scale, rows: &mut Rows) -> Result<()> {
    let limited = Hosts::new(u32::try_from(HOSTS)?)
        .and_then(|hosts| (0..HOSTS).try_for_each(|host| hosts.limit(host, BANDWIDTH)).map(|()| hosts));
    let hosts = match limited {
        Ok(hosts) => hosts,
        Err(why) => {
            let row = |name: &str| Entry::without(name, State::NotCompared, &*why);
            rows.push(row("3 hosts over 1 Gb/s: a ring, over hierarchical"));
            rows.push(row("3 hosts over 1 Gb/s: TLS, over plain"));
            return Ok(());
        }
    };
    let mut times = [const { Vec::new() }; 3];
    for round in 0..ROUNDS {
        for ((name, own), times) in [RING, HIERARCHICAL, ENCRYPTED].into_iter().zip(&mut times) {
            let folder = settings.report_dir.join(format!("links/{name}-{round}"));
            times.push(step(settings, &hosts, scale, own, &folder)?);
        }
    }
    let ratio = |a: usize, b: usize| median(times[a].iter().zip(&times[b]).map(|(a, b)| a / b));
    let [ring, hierarchical, encrypted] = [0, 1, 2].map(|at| 1e3 * median(times[at].clone()));
    // Each card carries 2 (n - 1) / n times the gradient, of six ranks or of three hosts.
    let bound = (5.0 / 6.0) / (2.0 / 3.0);
    rows.push(
        Entry::shown(
            "3 hosts over 1 Gb/s: a ring in the order of the hosts, over hierarchical",
            ratio(0, 1),
            "x",
        )
        .beside(format!(
            "{ring:.0} ms a step and {hierarchical:.0} ms; the bytes of a card alone make {bound:.2}x"
        )),
    );
    rows.push(
        Entry::shown("3 hosts over 1 Gb/s: a step with TLS, over plain", ratio(2, 1), "x").beside(format!(
            "{encrypted:.0} ms and {hierarchical:.0} ms; six workers on this machine's cores"
        )),
    );
    Ok(())
}

/// Seconds of a step, once the job has settled.
fn step(settings: &Settings, hosts: &Hosts, scale: &Scale, own: &[&str], folder: &Path) -> Result<f64> {
    let samples = scale.steps * 6 * 4;
    let words = format!(
        "--workload mlp --data synthetic:{samples} --global-batch-size 24 --nproc-per-node {} --sync allreduce --policy none \
         --job",
        HOSTS * PER_HOST as usize
    );
    fs::create_dir_all(folder)?;
    let model = folder.join("model.toml");
    fs::write(&model, MODEL).with_context(|| format!("cannot write {}", model.display()))?;
    let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    words.push(model.display().to_string());
    words.extend(own.iter().map(|word| (*word).to_owned()));
    let report = hosts.run(&settings.antdt, PER_HOST, &words, folder, LIMIT)?;
    let from = report.job_completion_time_s / 4.0;
    batch_time_s(&report.workers, from).context("no step of the job was timed")
}
