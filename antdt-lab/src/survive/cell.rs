//! [`Cell`]: one thing that is done to a job, and what was [`Measured`] of it.

use std::fmt;
use std::time::Duration;

use antdt_chaos::ChaosReport;
use antdt_job::SyncMode;
use serde::{Deserialize, Serialize};

use super::soak::Soak;

/// What is done to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum What {
    /// So many workers of a job in this mode are killed, one after the other.
    Kills(String, u32),
    /// A worker is stopped.
    Stop,
    /// A training thread hangs.
    Hang,
    /// A server is killed.
    Server(String),
    /// The number of servers is changed, up and down again.
    ScaleServers(String),
    /// A server is slow, and gets a smaller share of the parameters.
    Repartition,
    /// All workers are killed.
    AllWorkers,
    /// The master is killed, and another one started.
    Master(String),
    /// The master is killed, and another one waits for that.
    Standby(String),
    /// The master is killed, and another one waits, which etcd elects.
    Elected(String),
    /// The master is stopped until etcd has elected another one, and then goes on.
    Deposed(String),
    /// Master and nodes are killed at once, and the job is resumed.
    Whole,
    /// The job of one worker gets so many, and then fewer.
    Scale(u32),
    /// All processes of so many simulated jobs end at a random event, and the jobs are resumed with another number of workers.
    Points(u32),
    /// Master and nodes are killed at a random moment, and the job is resumed with another number of workers.
    Crash(String),
    /// Chaos.
    Soak(String, Soak),
    /// Chaos with a fault a minute, beside the same job without faults.
    Goodput(Duration),
    /// So many members ask for a group at once.
    Round(u32),
    /// A model of so many bytes is kept.
    Keep(u64),
    /// A model of so many bytes goes to a worker that joins.
    Join(u64),
}

/// The name by which `--only` asks for it.
impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kills(mode, _) => write!(f, "kills, {mode}"),
            Self::Stop => f.write_str("stop, allreduce"),
            Self::Hang => f.write_str("hang, allreduce"),
            Self::Server(mode) => write!(f, "server, {mode}"),
            Self::ScaleServers(mode) => write!(f, "scale servers, {mode}"),
            Self::Repartition => f.write_str("repartition, ps-bsp"),
            Self::AllWorkers => f.write_str("all workers, allreduce"),
            Self::Master(mode) => write!(f, "master, {mode}"),
            Self::Standby(mode) => write!(f, "standby, {mode}"),
            Self::Elected(mode) => write!(f, "elected, {mode}"),
            Self::Deposed(mode) => write!(f, "deposed, {mode}"),
            Self::Whole => f.write_str("everything, allreduce"),
            Self::Scale(_) => f.write_str("scale, allreduce"),
            Self::Points(_) => f.write_str("simulated crashes"),
            Self::Crash(mode) => write!(f, "crash, {mode}"),
            Self::Soak(mode, _) => write!(f, "chaos, {mode}"),
            Self::Goodput(_) => f.write_str("goodput, allreduce"),
            Self::Round(members) => write!(f, "rounds of {members} members"),
            Self::Keep(bytes) => write!(f, "checkpoints of {} MiB", bytes >> 20),
            Self::Join(bytes) => write!(f, "{} MiB to a worker that joins", bytes >> 20),
        }
    }
}

/// One cell of the benchmark.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) what: What,
    /// Counts the cells in which the same is done.
    pub(super) number: u32,
}

/// What a cell has shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) cell: Cell,
    /// Jobs that were run to their end and counted.
    pub(super) jobs: u32,
    /// Why some of them are not exact.
    pub(super) inexact: Vec<String>,
    /// What was measured, in the order of the cell's rows: times in seconds, shares.
    pub(super) figures: Vec<f64>,
    /// Nodes that live through it, and those of them whose process was another afterwards.
    pub(super) survivors: u32,
    pub(super) replaced: u32,
    /// What is said beside the figures.
    pub(super) beside: String,
    pub(super) chaos: Option<ChaosReport>,
    /// Share of the cores that others had.
    pub(super) others: Option<f64>,
}

impl Measured {
    /// Nothing yet.
    pub(super) const fn of(cell: Cell) -> Self {
        Self {
            cell,
            jobs: 0,
            inexact: Vec::new(),
            figures: Vec::new(),
            survivors: 0,
            replaced: 0,
            beside: String::new(),
            chaos: None,
            others: None,
        }
    }
}

/// How often each thing is done.
#[derive(Debug, Clone)]
pub(super) struct Scale {
    /// Jobs of each mode whose workers are killed, and kills in each of them.
    pub(super) jobs: u32,
    pub(super) kills: u32,
    /// Jobs in which a worker is stopped.
    pub(super) stops: u32,
    /// Jobs in which a training thread hangs, a server is slow, all workers or everything is killed.
    pub(super) others: u32,
    /// Jobs of each of two modes whose server, or master, is killed.
    pub(super) servers: u32,
    pub(super) masters: u32,
    pub(super) standbys: u32,
    /// The same where etcd elects masters: jobs whose master is killed, or stopped for a while.
    pub(super) elected: u32,
    pub(super) deposed: u32,
    /// Jobs of each of two modes whose number of servers is changed.
    pub(super) handed_over: u32,
    /// Jobs in which a slow server gets a smaller share.
    pub(super) repartitions: u32,
    /// Most workers of the job that is scaled.
    pub(super) workers: u32,
    /// Simulated jobs of which all processes end at a random event.
    pub(super) points: u32,
    /// Jobs that are killed whole at a random moment.
    pub(super) crashes: u32,
    /// Modes of the jobs under chaos.
    pub(super) soaked: &'static [&'static str],
    pub(super) soak: Soak,
    /// How long the job is whose goodput is measured.
    pub(super) goodput: Option<Duration>,
    /// Size of the large model.
    pub(super) bytes: u64,
}

impl Scale {
    pub(super) const QUICK: Self = Self {
        jobs: 1,
        kills: 1,
        stops: 1,
        others: 1,
        servers: 1,
        masters: 1,
        standbys: 1,
        elected: 0,
        deposed: 0,
        handed_over: 1,
        repartitions: 0,
        workers: 8,
        points: 200,
        crashes: 0,
        soaked: &["ps-bsp"],
        soak: Soak::QUICK,
        goodput: None,
        bytes: 256 << 20,
    };
    /// About 20 minutes: of that, kills of workers 4, the soaks 5, the goodput 4.
    pub(super) const CORE: Self = Self {
        jobs: 1,
        kills: 6,
        stops: 5,
        others: 3,
        servers: 3,
        masters: 3,
        standbys: 3,
        elected: 3,
        deposed: 2,
        handed_over: 3,
        repartitions: 3,
        workers: 16,
        points: 1000,
        crashes: 6,
        soaked: &["ps-bsp", "allreduce", "ad-psgd"],
        soak: Soak::CORE,
        goodput: Some(Duration::from_secs(180)),
        bytes: 1 << 30,
    };
    /// As often as the targets say: at least 500 kills of workers, which are 550 in ten jobs of each of eleven modes, 200 of masters,
    /// 100 of servers, 50 crashes beside 1,000 simulated ones.
    pub(super) const WHOLE: Self = Self {
        jobs: 10,
        kills: 5,
        stops: 20,
        others: 10,
        servers: 50,
        masters: 50,
        standbys: 50,
        elected: 50,
        deposed: 10,
        handed_over: 10,
        repartitions: 10,
        crashes: 50,
        soaked: &["ps-bsp", "allreduce"],
        soak: Soak::FULL,
        goodput: Some(Duration::from_secs(20 * 60)),
        ..Self::CORE
    };

    /// All cells, those of one kind after each other.
    pub(super) fn cells(&self) -> Vec<Cell> {
        let mut all = Vec::new();
        let mut add = |what: What, times: u32| {
            all.extend((0..times).map(|number| Cell { what: what.clone(), number }));
        };
        for members in [64, 256] {
            add(What::Round(members), 1);
        }
        add(What::Keep(self.bytes), 1);
        add(What::Join(self.bytes), 1);
        let modes: Vec<String> = SyncMode::examples().iter().map(counted).collect();
        for mode in &modes {
            add(What::Kills(mode.clone(), self.kills), self.jobs);
        }
        add(What::Stop, self.stops);
        add(What::Hang, self.others);
        for mode in ["ps-bsp", "ps-asp"] {
            add(What::Server(mode.to_owned()), self.servers);
        }
        for mode in ["ps-bsp", "ps-asp"] {
            add(What::ScaleServers(mode.to_owned()), self.handed_over);
        }
        add(What::Repartition, self.repartitions);
        add(What::AllWorkers, self.others);
        for mode in ["ps-bsp", "allreduce"] {
            add(What::Master(mode.to_owned()), self.masters);
        }
        for mode in ["ps-bsp", "allreduce"] {
            add(What::Standby(mode.to_owned()), self.standbys);
        }
        for mode in ["ps-bsp", "allreduce"] {
            add(What::Elected(mode.to_owned()), self.elected);
        }
        for mode in ["ps-bsp", "allreduce"] {
            add(What::Deposed(mode.to_owned()), self.deposed);
        }
        add(What::Whole, self.others);
        add(What::Scale(self.workers), 1);
        add(What::Points(self.points), 1);
        for (number, mode) in (0..self.crashes).zip(modes.iter().cycle()) {
            all.push(Cell { what: What::Crash(mode.clone()), number });
        }
        let mut add = |what: What| all.push(Cell { what, number: 0 });
        for mode in self.soaked {
            add(What::Soak((*mode).to_owned(), self.soak));
        }
        if let Some(lasting) = self.goodput {
            add(What::Goodput(lasting));
        }
        all
    }
}

/// Six jobs of a few seconds, each hurt once in one of the ways that are easiest to break: what `cargo xtask verify` has time for.
pub(super) fn smoke() -> Vec<Cell> {
    let [allreduce, ps_bsp] = ["allreduce", "ps-bsp"].map(str::to_owned);
    let all = [
        What::Kills(allreduce, 1),
        What::Kills(ps_bsp.clone(), 1),
        What::Stop,
        What::Server(ps_bsp.clone()),
        What::Master(ps_bsp),
        What::Whole,
    ];
    all.into_iter().map(|what| Cell { what, number: 0 }).collect()
}

/// A mode whose model is a count: momentum of the averages would carry it further than what was trained.
fn counted(mode: &SyncMode) -> String {
    if mode.outer().is_some() { format!("{mode}:rate=1:momentum=0") } else { mode.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_benchmark_has_the_counts_of_the_targets_and_no_cell_twice() {
        let cells = Scale::WHOLE.cells();
        let times =
            |is: fn(&What) -> Option<u32>| cells.iter().filter_map(|cell| is(&cell.what)).sum::<u32>();
        assert!(times(|what| if let What::Kills(_, kills) = what { Some(*kills) } else { None }) >= 500);
        assert!(
            times(|what| matches!(what, What::Master(_) | What::Standby(_)).then_some(1)) >= 200,
            "of masters"
        );
        assert!(times(|what| matches!(what, What::Elected(_)).then_some(1)) >= 100, "of elected masters");
        assert!(times(|what| matches!(what, What::Server(_)).then_some(1)) >= 100);
        assert!(times(|what| matches!(what, What::Crash(_)).then_some(1)) >= 50);
        assert_eq!(times(|what| if let What::Points(points) = what { Some(*points) } else { None }), 1000);
        assert!(Scale::WHOLE.soak.work() >= Duration::from_secs(20 * 60));
        for scale in [Scale::QUICK, Scale::CORE, Scale::WHOLE] {
            let cells = scale.cells();
            for (at, cell) in cells.iter().enumerate() {
                assert!(!cells[..at].contains(cell), "{cell:?}");
            }
            let modes = SyncMode::examples().len();
            let killed = cells.iter().filter(|cell| matches!(cell.what, What::Kills(..))).count();
            assert_eq!(killed, modes * scale.jobs as usize, "every mode");
        }
    }
}
