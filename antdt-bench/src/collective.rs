//! The benchmark `collective`: compares all-reduces of `f32` with gloo, Open MPI and the bounds of the
//! machine.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::path::Path as Folder;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use serde::de::DeserializeOwned;

use crate::arguments::Peer;
use crate::entry::State;
use crate::meter::Others;
use crate::{Entry, Rows, Settings, meter};

pub mod crew;
pub mod order;
pub mod peers;

mod bounds;
mod case;
mod deaths;
mod kernels;
mod memory;
mod overlap;
mod rank;
mod seam;
mod series;
mod terms;

pub use rank::run as rank;
pub use terms::enter as enter_network;

use bounds::{Duplex, Floor, Least, Took, Work};
use case::{Path, Plan, SIZES, WORLDS};
use crew::Crew;
use order::{Buffer, Medium, Prepared, Times};
use peers::Installed;
use series::{Column, Series};
use terms::{Network, Terms};

/// Share of the cores that others may take before a missed target counts as not measured. Two ranks have both cores of a
/// small machine to themselves; what takes a tenth of them is in every median.
const OTHERS_MAX: f64 = 0.1;

/// How much is measured and how much noise is forgiven.
struct Scale {
    /// Rounds of the kernels.
    rounds: usize,
    /// Steps of a backward pass with its reduction.
    steps: usize,
    /// Ranks that die, one after the other.
    deaths: u32,
    /// How far ratios may be off: others may be at work on the machine.
    slack: f64,
    /// How many times longer than the target a time may be.
    slack_time: f64,
}

impl Scale {
    const FULL: Self = Self { rounds: 31, steps: 31, deaths: 48, slack: 1.0, slack_time: 1.0 };
    /// Done within 90 s without peers.
    const QUICK: Self = Self { rounds: 7, steps: 7, deaths: 12, slack: 1.5, slack_time: 4.0 };
}

/// Runs the benchmark `collective`, one measurement after the other; systems that are compared take turns.
/// Adds its rows to `rows`.
///
/// # Errors
/// If a rank of this project does not run. A missed target is a row that says so, and so is another system
/// that is not installed, stalls or dies.
pub fn run(settings: &Settings, rows: &mut Rows) -> Result<()> {
    let scale = if settings.quick { Scale::QUICK } else { Scale::FULL };
    let wanted = |title: &str| settings.asks_for(title);
    if !titles().iter().any(|title| wanted(title)) {
        bail!(
            "--only = {}: no row begins so; rows begin with `kernel`, `{}`, `{}`, or such as `tcp, 2 ranks, 64 MiB`, with \
             `: memory` or `: death` after it",
            settings.only.join(", "),
            overlap::OVERLAP,
            seam::SEAM
        );
    }
    let network = Network::here();
    let installed = find_peers(settings, &network, rows);
    let start = |medium, world| Crew::ours(&settings.antdt_bench, medium, world, &settings.report_dir);
    if wanted(KERNEL) {
        progress("kernels");
        kernels::kernels(scale.rounds, scale.slack, rows);
    }
    for world in WORLDS {
        let mut crews = Crews {
            settings,
            installed: &installed,
            network: &network,
            world,
            running: BTreeMap::new(),
            ended: BTreeMap::new(),
        };
        crews.all_reduces(scale.slack, rows)?;
        rows.extend(crews.idle());
    }
    if wanted(overlap::OVERLAP) {
        progress("overlap");
        overlap::overlap(scale.steps, rows)?;
    }
    if wanted(seam::SEAM) {
        progress("seams");
        seam::seam(scale.steps, scale.slack, rows)?;
    }
    for path in Path::ALL {
        for world in WORLDS {
            let title = title(path, world, 64 << 20);
            if wanted(&format!("{title}: memory")) {
                progress("memory");
                memory::added(start, &title, (path.medium, path.buffer, world), rows)?;
            }
        }
        let world = 4;
        if path.buffer == Buffer::Heap && wanted(&format!("{}: death", path.title(world))) {
            progress("deaths");
            let title = path.title(world);
            let ours = || start(path.medium, world);
            deaths::deaths(ours, &title, scale.deaths, scale.slack_time, rows)?;
        }
    }
    Ok(())
}

/// What the rows of the kernels begin with.
const KERNEL: &str = "kernel";

fn title(path: Path, world: u32, bytes: usize) -> String {
    format!("{}, {}", path.title(world), case::size(bytes))
}

/// What rows can begin with, for `--only`.
fn titles() -> Vec<String> {
    let mut titles = vec![KERNEL.to_owned(), overlap::OVERLAP.to_owned(), seam::SEAM.to_owned()];
    for (path, world) in Path::ALL.into_iter().flat_map(|path| WORLDS.map(|world| (path, world))) {
        let sizes = SIZES.into_iter().filter(|bytes| path.takes(*bytes));
        titles.extend(sizes.map(|bytes| title(path, world, bytes)));
        titles.push(format!("{}: memory", title(path, world, 64 << 20)));
        titles.push(format!("{}: death", path.title(world)));
    }
    titles
}

fn progress(what: &str) {
    println!("{what} ...");
}

/// The peers that were asked for and are there. Each gets a row that says what it is and how it is run, or what is missing.
fn find_peers(settings: &Settings, network: &Network, rows: &mut Rows) -> Vec<Installed> {
    let mut peers = settings.peers.clone();
    peers.sort_unstable();
    peers.dedup();
    let mut found = Vec::new();
    for peer in &peers {
        match Installed::find(*peer, &settings.report_dir) {
            Ok(installed) => {
                let mut how = installed.about(Medium::Tcp);
                if *peer == Peer::Openmpi {
                    how += &format!("; over shm: {}", installed.about(Medium::Shm));
                }
                rows.push(Entry::without(peer.to_string(), State::Ok, how));
                found.push(installed);
            }
            Err(e) => rows.push(Entry::without(peer.to_string(), State::NotCompared, format!("{e:#}"))),
        }
    }
    if !found.is_empty() {
        let name = "congestion control";
        rows.push(match network {
            Network::Own { host } => {
                let how = format!(
                    "ours choose {}; of the peers {host}, and once more {}",
                    terms::OURS,
                    terms::OURS
                );
                Entry::without(name, State::Ok, how)
            }
            Network::Same => Entry::without(name, State::Ok, format!("{} of all sockets", terms::OURS)),
            Network::Shared(why) => {
                let why = format!("no peer was measured under {}, which ours choose: {why}", terms::OURS);
                Entry::without(name, State::NotCompared, why)
            }
        });
    }
    found
}

/// What runs the processes of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum System {
    Ours(Medium),
    Gloo(Terms),
    Openmpi(Medium, Terms),
}

impl System {
    /// The terms on which its sockets are made. Ours choose for themselves.
    const fn terms(self) -> Terms {
        match self {
            Self::Ours(_) => Terms::Installed,
            Self::Gloo(terms) | Self::Openmpi(_, terms) => terms,
        }
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(medium) => write!(f, "ours over {medium}"),
            Self::Gloo(terms) => write!(f, "{}{terms}", Peer::Gloo),
            Self::Openmpi(medium, terms) => write!(f, "{} over {medium}{terms}", Peer::Openmpi),
        }
    }
}

impl Column {
    const fn system(self) -> Option<System> {
        match self {
            Self::Ours(path) => Some(System::Ours(path.medium)),
            Self::Gloo(terms) => Some(System::Gloo(terms)),
            Self::Openmpi(medium, terms) => Some(System::Openmpi(medium, terms)),
            Self::Duplex | Self::Bare | Self::Kept | Self::Frugal | Self::Floor | Self::Copies => None,
        }
    }

    const fn buffer(self) -> Buffer {
        match self {
            Self::Ours(path) => path.buffer,
            _ => Buffer::Heap,
        }
    }
}

/// Times that a peer that stalled or died is started again for the rows that are left, for one number of ranks.
const AGAIN_MAX: u32 = 1;

/// The processes of all systems for one number of ranks. They live until all sizes are done, or until one of them stalls or
/// dies.
struct Crews<'a> {
    settings: &'a Settings,
    installed: &'a [Installed],
    network: &'a Network,
    world: u32,
    running: BTreeMap<System, Running>,
    /// How often a peer stalled or died.
    ended: BTreeMap<System, u32>,
}

struct Running {
    crew: Crew,
    /// Time on the cores while others were measured, all ranks together.
    idle_cpu_s: f64,
    since: Instant,
}

/// A column of which nothing is known, and why.
type Lost = (Column, String);

/// What came of some columns.
struct Measured {
    series: Vec<Series>,
    lost: Vec<Lost>,
    /// Share of the cores that foreign processes took meanwhile.
    others: Option<f64>,
}

impl Crews<'_> {
    /// Measures the buffers of all sizes that were asked for.
    fn all_reduces(&mut self, slack: f64, rows: &mut Rows) -> Result<()> {
        let (settings, world) = (self.settings, self.world);
        for bytes in SIZES {
            let paths: Vec<Path> = Path::ALL
                .into_iter()
                .filter(|path| path.takes(bytes))
                .filter(|path| settings.asks_for(&title(*path, world, bytes)))
                .collect();
            if paths.is_empty() {
                continue;
            }
            progress(&format!("{world} ranks, {}", case::size(bytes)));
            let Measured { series, lost, others } =
                self.measure(&paths, bytes, Plan::of(bytes, settings.quick))?;
            for path in paths {
                let entries = case::entries(path, world, bytes, &series, slack);
                rows.extend(entries.into_iter().map(|entry| entry.unless_overloaded(others, OTHERS_MAX)));
                rows.extend(case::stalled(path, world, bytes, &lost));
            }
        }
        Ok(())
    }

    /// Whether a column can be measured here.
    fn has(&self, column: Column) -> bool {
        let (needs, terms) = match column {
            Column::Gloo(terms) => (Peer::Gloo, terms),
            Column::Openmpi(_, terms) => (Peer::Openmpi, terms),
            _ => return true,
        };
        let told_apart = terms == Terms::Installed || self.network.tells_terms_apart();
        told_apart && self.installed.iter().any(|installed| installed.peer() == needs)
    }

    fn crew(&mut self, system: System) -> Result<&mut Running> {
        match self.running.entry(system) {
            Slot::Occupied(slot) => Ok(slot.into_mut()),
            Slot::Vacant(slot) => {
                let times = self.ended.get(&system).copied().unwrap_or_default();
                ensure!(times <= AGAIN_MAX, "it stalled or died before, and is not started again");
                let crew = start(self.settings, self.installed, system, self.world)?;
                Ok(slot.insert(Running { crew, idle_cpu_s: 0.0, since: Instant::now() }))
            }
        }
    }

    /// What a system answers. One of ours that does not answer is an error; a peer is ended, with all its processes, and
    /// the others go on.
    fn order<T: DeserializeOwned>(&mut self, system: System, order: &str) -> Result<Result<Vec<T>, String>> {
        self.network.set(system.terms())?;
        let answers = self.crew(system).and_then(|running| running.crew.order(order));
        match (system, answers) {
            (_, Ok(answers)) => Ok(Ok(answers)),
            (System::Ours(_), Err(error)) => Err(error),
            (_, Err(error)) => {
                self.running.remove(&system);
                *self.ended.entry(system).or_default() += 1;
                let why = format!("{error:#}");
                println!("{system}: {why}");
                let mut lines = why.lines();
                let first = lines.next().unwrap_or_default();
                // The last thing that it printed says most.
                Ok(Err(lines.next_back().map_or_else(|| first.to_owned(), |last| format!("{first} {last}"))))
            }
        }
    }

    /// Every column of some paths, in turns, and those that were lost.
    fn measure(&mut self, paths: &[Path], bytes: usize, plan: Plan) -> Result<Measured> {
        let mut columns: Vec<Column> =
            paths.iter().flat_map(|path| path.columns(self.world, bytes)).filter(|c| self.has(*c)).collect();
        columns.sort_unstable();
        columns.dedup();
        let mut bounds = Bounds { exchanges: BTreeMap::new(), floor: None };
        let (mut all, mut lost): (Vec<Series>, Vec<Lost>) = (Vec::new(), Vec::new());
        for column in columns {
            match column.system() {
                Some(system) => {
                    let order = format!("prepare {} {bytes}", column.buffer());
                    match self.order::<Prepared>(system, &order)? {
                        Ok(_) => all.push(Series::new(column)),
                        Err(why) => lost.push((column, why)),
                    }
                }
                None => {
                    bounds.prepare(column, self.world, bytes)?;
                    all.push(Series::new(column));
                }
            }
        }
        let watched = Others::than(self.running.values().flat_map(|running| running.crew.pids()).collect());
        for round in 0..plan.rounds {
            let turns = all.len();
            for turn in 0..turns {
                let series = &mut all[(turn + round) % turns];
                if lost.iter().any(|(column, _)| *column == series.column) {
                    continue;
                }
                if let Err(why) = self.turn(series, &mut bounds, plan)? {
                    lost.push((series.column, format!("in round {}: {why}", round + 1)));
                }
            }
        }
        all.retain(|series| !lost.iter().any(|(column, _)| *column == series.column));
        Ok(Measured { series: all, lost, others: watched.share() })
    }

    fn turn(&mut self, series: &mut Series, bounds: &mut Bounds, plan: Plan) -> Result<Result<(), String>> {
        let Plan { calls, repetitions, warm, .. } = plan;
        let Some(system) = series.column.system() else {
            let one = |_| bounds.time(series.column);
            let all = (0..warm + repetitions).map(one).collect::<Result<Vec<Took>>>()?;
            series.seconds.push(meter::median(all[warm..].iter().map(|took| took.seconds)));
            series.cpu.push(meter::median(all[warm..].iter().map(|took| took.cpu)));
            return Ok(Ok(()));
        };
        let order = format!("time {} {calls} {repetitions} {warm}", series.column.buffer());
        let ranks: Vec<Times> = match self.order(system, &order)? {
            Ok(ranks) => ranks,
            Err(why) => return Ok(Err(why)),
        };
        if let Some(running) = self.running.get_mut(&system) {
            running.idle_cpu_s += ranks.iter().map(|rank| rank.idle_cpu_s).sum::<f64>();
        }
        series.seconds.push(meter::median(order::slowest(&ranks)));
        series.cpu.push(ranks.iter().map(|rank| rank.cpu_s).sum());
        Ok(Ok(()))
    }

    /// How much of a core a rank took while it had nothing to do. It was taken from those that were measured.
    fn idle(&self) -> Option<Entry> {
        let share = |running: &Running| {
            100.0 * running.idle_cpu_s / running.since.elapsed().as_secs_f64() / f64::from(self.world)
        };
        let shares = self.running.iter().map(|(system, running)| (share(running), system));
        let (most, system) = shares.max_by(|a, b| a.0.total_cmp(&b.0))?;
        let title = format!("{} ranks: share of a core that an idle rank takes", self.world);
        Some(Entry::shown(title, most, "%").at_most(1.0).beside(format!("the most: {system}")))
    }
}

fn start(settings: &Settings, installed: &[Installed], system: System, world: u32) -> Result<Crew> {
    let folder: &Folder = &settings.report_dir;
    let (peer, medium) = match system {
        System::Ours(medium) => return Crew::ours(&settings.antdt_bench, medium, world, folder),
        System::Gloo(_) => (Peer::Gloo, Medium::Tcp),
        System::Openmpi(medium, _) => (Peer::Openmpi, medium),
    };
    let found = installed.iter().find(|installed| installed.peer() == peer);
    let found = found.with_context(|| format!("{peer} is not installed"))?;
    found.start(medium, (world, settings.peer_limit), folder)
}

/// What the machine can do, at this size.
struct Bounds {
    exchanges: BTreeMap<Column, (Duplex, f64)>,
    floor: Option<Floor>,
}

impl Bounds {
    fn prepare(&mut self, column: Column, world: u32, bytes: usize) -> Result<()> {
        let exchange = match column {
            Column::Duplex => Duplex::best(bytes, Work::Move, Least::Time)?,
            Column::Bare => Duplex::best(bytes, Work::Sum, Least::Time)?,
            Column::Kept => Duplex::best(bytes, Work::SumAndKeep, Least::Time)?,
            Column::Frugal => Duplex::best(bytes, Work::Sum, Least::Cpu)?,
            _ => {
                self.floor.get_or_insert_with(|| Floor::new(world, bytes));
                return Ok(());
            }
        };
        // All ranks together send and sum so many times the bytes that two do.
        self.exchanges.insert(column, (exchange, f64::from(world - 1)));
        Ok(())
    }

    /// Of memory, no time on the cores.
    fn time(&mut self, column: Column) -> Result<Took> {
        let of_memory = |seconds| Ok(Took { seconds, cpu: 0.0 });
        match (column, self.exchanges.get_mut(&column), &mut self.floor) {
            (_, Some((exchange, times)), _) => {
                let took = exchange.time()?;
                Ok(Took { seconds: took.seconds, cpu: took.cpu * *times })
            }
            (Column::Floor, _, Some(floor)) => of_memory(floor.time()),
            (Column::Copies, _, Some(floor)) => of_memory(floor.copies()),
            _ => bail!("{column} is not a bound that was prepared"),
        }
    }
}
