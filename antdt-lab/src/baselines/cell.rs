//! [`Cell`]: one job of the matrix, and what was [`Measured`] of it.

use antdt::report::Report;
use serde::{Deserialize, Serialize};

use super::loss::{Smooth, began_s, throughput};
use super::setting::{LATENCY, Setting};

/// A way to train.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Scheme {
    AllReduce,
    AllReduceNd,
    PsBspOne,
    PsBspFair,
    PsAspOne,
    PsAspFair,
    AdPsgd,
    AdPsgdOverlap,
    RipplesSmart,
    RipplesDivision,
    RipplesBuffer,
    RipplesUnfiltered,
    DiLoCo,
    DiLoCoNd,
    Auto,
    RipplesStatic,
    RipplesStaticNd,
    DPsgd,
}

impl Scheme {
    pub(super) const QUICK: [Self; 7] = [
        Self::AllReduce,
        Self::AllReduceNd,
        Self::PsBspOne,
        Self::PsBspFair,
        Self::AdPsgd,
        Self::RipplesSmart,
        Self::RipplesStatic,
    ];
    pub(super) const ALL: [Self; 18] = [
        Self::AllReduce,
        Self::AllReduceNd,
        Self::PsBspOne,
        Self::PsBspFair,
        Self::PsAspOne,
        Self::PsAspFair,
        Self::AdPsgd,
        Self::AdPsgdOverlap,
        Self::RipplesSmart,
        Self::RipplesDivision,
        Self::RipplesStatic,
        Self::RipplesStaticNd,
        Self::DPsgd,
        Self::RipplesBuffer,
        Self::RipplesUnfiltered,
        Self::DiLoCo,
        Self::DiLoCoNd,
        Self::Auto,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "allreduce",
            Self::AllReduceNd => "allreduce, nd",
            Self::PsBspOne => "ps-bsp, 1 server",
            Self::PsBspFair => "ps-bsp, a server per node",
            Self::PsAspOne => "ps-asp, 1 server",
            Self::PsAspFair => "ps-asp, a server per node",
            Self::AdPsgd => "ad-psgd",
            Self::AdPsgdOverlap => "ad-psgd=overlap",
            Self::RipplesSmart => "ripples=smart",
            Self::RipplesDivision => "ripples=division",
            Self::RipplesBuffer => "ripples=buffer",
            Self::RipplesUnfiltered => "ripples=smart, filter off",
            Self::DiLoCo => "diloco=4",
            Self::DiLoCoNd => "diloco=4, nd+lr",
            Self::Auto => "auto",
            Self::RipplesStatic => "ripples-static",
            Self::RipplesStaticNd => "ripples-static, nd+lr",
            Self::DPsgd => "d-psgd",
        }
    }

    pub(super) fn sync(self, setting: &Setting) -> String {
        match self {
            Self::AllReduce | Self::AllReduceNd => "allreduce".to_owned(),
            Self::PsBspOne | Self::PsBspFair => "ps-bsp".to_owned(),
            Self::PsAspOne | Self::PsAspFair => "ps-asp".to_owned(),
            Self::RipplesStatic | Self::RipplesStaticNd => format!("ripples-static={}", setting.per_host),
            Self::RipplesUnfiltered => "ripples=smart:filter=off".to_owned(),
            Self::DiLoCoNd => Self::DiLoCo.name().to_owned(),
            // It may take what is fast here by the other rows.
            Self::Auto => {
                format!("auto=allreduce,ripples-static={},ripples=division,ad-psgd", setting.per_host)
            }
            Self::AdPsgd
            | Self::AdPsgdOverlap
            | Self::RipplesSmart
            | Self::RipplesDivision
            | Self::RipplesBuffer
            | Self::DPsgd
            | Self::DiLoCo => self.name().to_owned(),
        }
    }

    pub(super) const fn policy(self) -> &'static str {
        match self {
            Self::AllReduceNd => "nd",
            // Each worker steps alone: a batch that was made small must move its model less.
            Self::RipplesStaticNd | Self::DiLoCoNd => "nd+lr",
            _ => "none",
        }
    }

    /// Servers, and whether they share the cards of the workers.
    pub(super) fn servers(self, setting: &Setting) -> Option<(u32, bool)> {
        match self {
            Self::PsBspOne | Self::PsAspOne => Some((1, false)),
            Self::PsBspFair | Self::PsAspFair => Some((setting.hosts(), true)),
            _ => None,
        }
    }
}

/// Which workers are slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Slow {
    /// Worker 1, all the time.
    One,
    /// A quarter of the workers, on all hosts.
    Several,
    /// All workers of host 0.
    Host,
    /// Worker 1, from 3 s to 9 s after the start of the job's clock.
    Transient,
}

/// One job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) scheme: Scheme,
    pub(super) slow: Slow,
    /// How many times slower.
    pub(super) sigma: f64,
    /// Time of the model over a link, in times of a gradient.
    pub(super) ratio: f64,
    pub(super) seed: u64,
}

impl Cell {
    pub(super) const fn one_slow(scheme: Scheme, sigma: f64, ratio: f64, seed: u64) -> Self {
        Self { scheme, slow: Slow::One, sigma, ratio, seed }
    }

    pub(super) fn is_one_slow(&self, sigma: f64) -> bool {
        self.slow == Slow::One && (self.sigma - sigma).abs() < 1e-9
    }

    pub(super) fn name(&self) -> String {
        format!("{}, {}, R_e {}, seed {}", self.scheme.name(), self.slowness(), self.ratio, self.seed)
    }

    /// The slow workers, and their slowness.
    pub(super) fn slowness(&self) -> String {
        match self.slow {
            _ if self.is_one_slow(1.0) => "even".to_owned(),
            Slow::One => format!("one slow {}x", self.sigma),
            Slow::Several => format!("a quarter slow {}x", self.sigma),
            Slow::Host => format!("a host slow {}x", self.sigma),
            Slow::Transient => format!("one slow {}x for 6 s", self.sigma),
        }
    }

    pub(super) fn slow_workers(&self, setting: &Setting) -> Vec<u32> {
        match self.slow {
            _ if self.is_one_slow(1.0) => Vec::new(),
            Slow::One | Slow::Transient => vec![1],
            Slow::Several => (0..setting.workers).filter(|worker| worker % 4 == 1).collect(),
            Slow::Host => (0..setting.per_host).collect(),
        }
    }

    /// What `antdt run` is told besides the job file.
    pub(super) fn arguments(&self, setting: &Setting) -> Vec<String> {
        let mut text = format!(
            "--nproc-per-node {} --sync {} --policy {} --data synthetic:{} --epochs 1 --seed {} --eval-fraction 0.05 \
             --learning-rate 0.3 --global-batch-size {} --shard-len 32 --emulate-speed {} --quiet",
            setting.workers,
            self.scheme.sync(setting),
            self.scheme.policy(),
            setting.samples(),
            self.seed,
            setting.global_batch_size(),
            setting.speed(),
        );
        let servers = self.scheme.servers(setting);
        text += &format!(
            " --emulate-network bandwidth={:.0}B/s,latency={}ms,per-host={}{}",
            setting.bandwidth(self.ratio),
            LATENCY.as_millis(),
            setting.per_host,
            if servers.is_some_and(|(_, beside)| beside) { ",servers=beside" } else { "" },
        );
        if let Some((servers, _)) = servers {
            text += &format!(" --servers {servers}");
        }
        for worker in self.slow_workers(setting) {
            let span = if self.slow == Slow::Transient { ",from=3s,to=9s" } else { "" };
            text += &format!(" --straggler worker={worker},slow={}{span}", self.sigma);
        }
        text.split_whitespace().map(str::to_owned).collect()
    }
}

/// Share of the cores above which a job is not judged: emulated times are late then.
pub(super) const LOAD_MAX: f64 = 0.6;

/// What a job has shown. Times are since its first losses arrived.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) cell: Cell,
    /// The loss that it had to reach.
    pub(super) loss: f64,
    pub(super) time_to_loss_s: Option<f64>,
    pub(super) samples_to_loss: Option<u64>,
    /// Samples per second, without the first step.
    pub(super) throughput: f64,
    /// Loss of the model of the job on samples held out.
    pub(super) held_out: Option<f64>,
    /// Steps of worker 1 over the mean of those of the others.
    pub(super) slow_steps: Option<f64>,
    /// Distance of the models to their mean, where there are several.
    pub(super) spread: Option<f64>,
    /// Share of the cores that were busy.
    pub(super) load: Option<f64>,
}

impl Measured {
    #[cfg(test)]
    pub(super) fn of(cell: Cell) -> Self {
        Self {
            cell,
            loss: 1.0,
            time_to_loss_s: None,
            samples_to_loss: None,
            throughput: 0.0,
            held_out: None,
            slow_steps: None,
            spread: None,
            load: None,
        }
    }

    /// Reads a report.
    #[allow(clippy::cast_precision_loss, reason = "counts of samples and steps")]
    pub(super) fn read(cell: Cell, report: &Report, loss: f64, load: Option<f64>) -> Self {
        let curve = report.loss_curve.points();
        let smooth = Smooth::of(curve, report.samples.expected);
        let reached = smooth.until(loss);
        let steps: Vec<f64> = report
            .workers
            .iter()
            .map(|worker| worker.series.points().iter().map(|point| point.batches).sum::<u64>() as f64)
            .collect();
        let others = (steps.iter().sum::<f64>() - steps.get(1).copied().unwrap_or_default())
            / (steps.len().max(2) - 1) as f64;
        Self {
            cell,
            loss,
            time_to_loss_s: reached.map(|(time, _)| time - began_s(curve)),
            samples_to_loss: reached.map(|(_, samples)| samples),
            throughput: throughput(curve).unwrap_or_default(),
            held_out: report.final_quality.loss,
            slow_steps: steps.get(1).map(|slow| slow / others),
            spread: report.model_spread.as_ref().map(|spread| spread.rms),
            load,
        }
    }

    /// Whether the machine had so much to do that the figures say nothing.
    pub(super) fn is_overloaded(&self) -> bool {
        self.load.is_some_and(|load| load > LOAD_MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use antdt::job::JobSpec;

    use super::*;

    const SETTING: Setting =
        Setting { workers: 16, per_host: 4, steps: 48, compute: Duration::from_millis(100) };

    #[test]
    fn slow_workers_are_those_of_the_kind() {
        let of = |slow, sigma| {
            Cell { slow, ..Cell::one_slow(Scheme::AdPsgd, sigma, 0.5, 1) }.slow_workers(&SETTING)
        };
        assert!(of(Slow::One, 1.0).is_empty());
        assert_eq!(of(Slow::One, 5.0), [1]);
        assert_eq!(of(Slow::Several, 5.0), [1, 5, 9, 13]);
        assert_eq!(of(Slow::Host, 5.0), [0, 1, 2, 3]);
    }

    #[test]
    fn every_scheme_is_a_mode_that_exists_with_the_servers_that_it_needs() {
        for scheme in Scheme::ALL {
            let arguments = Cell::one_slow(scheme, 5.0, 0.5, 1).arguments(&SETTING);
            let value =
                |flag: &str| arguments.iter().position(|it| it == flag).map(|at| arguments[at + 1].clone());
            let mut spec = JobSpec::default();
            for flag in ["sync", "policy", "emulate-network", "straggler"] {
                let given = value(&format!("--{flag}")).unwrap();
                spec.set(flag, &given).unwrap_or_else(|error| panic!("{}: {error}", scheme.name()));
            }
            let needs = value("--sync").unwrap().starts_with("ps-");
            assert_eq!(value("--servers").is_some(), needs, "{}", scheme.name());
        }
        let fair = Cell::one_slow(Scheme::PsBspFair, 1.0, 0.5, 1).arguments(&SETTING).join(" ");
        assert!(fair.contains("servers=beside --servers 4"), "{fair}");
    }

    #[test]
    fn a_busy_machine_measures_nothing() {
        let of = |load| Measured { load, ..Measured::of(Cell::one_slow(Scheme::AllReduce, 1.0, 0.5, 1)) };
        assert!(of(Some(0.61)).is_overloaded());
        assert!(!of(Some(0.6)).is_overloaded() && !of(None).is_overloaded());
    }

    #[test]
    fn a_report_is_read_from_the_first_losses_on() {
        let mut report = Report::default();
        (report.samples.expected, report.samples.committed) = (100, 100);
        for batches in [4_u32, 1, 6] {
            let mut worker = antdt::report::WorkerEntry::default();
            (0..batches).for_each(|at| worker.series.push(5.0 + f64::from(at), 1.0, 1.0, 10, 10));
            report.workers.push(worker);
        }
        (1..=10_u32).for_each(|at| report.loss_curve.push(4.0 + f64::from(at), 10, f64::from(11 - at)));
        let cell = Cell::one_slow(Scheme::AllReduce, 5.0, 0.5, 1);
        let read = Measured::read(cell, &report, 6.0, Some(0.1));
        assert_eq!((read.time_to_loss_s, read.samples_to_loss), (Some(4.0), Some(50)));
        assert!((read.throughput - 10.0).abs() < 1e-9);
        assert_eq!(read.slow_steps, Some(0.2));
        assert_eq!(Measured::read(cell, &report, 0.5, None).time_to_loss_s, None);
    }
}
