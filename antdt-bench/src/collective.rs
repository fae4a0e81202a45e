//! All-reduces of f32 beside gloo, Open MPI and what the machine can do.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::fmt;
use std::path::Path as Folder;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::arguments::Peer;
use crate::{Entry, Settings, meter};

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
mod series;

pub use rank::run as rank;

use bounds::{Duplex, Floor, Least, Took, Work};
use case::{Path, Plan, SIZES, WORLDS};
use crew::Crew;
use order::{Buffer, Medium, Prepared, Times};
use peers::Installed;
use series::{Column, Series};

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

/// Measures everything, one thing after the other; what is compared takes turns.
///
/// # Errors
/// If something does not run; what misses its target is an entry that is not ok, and a peer that isn't installed is
/// said and left out.
pub fn run(settings: &Settings) -> Result<Vec<Entry>> {
    let scale = if settings.quick { Scale::QUICK } else { Scale::FULL };
    let wanted =
        |title: &str| settings.only.is_empty() || settings.only.iter().any(|text| title.contains(text));
    let installed = find_peers(settings);
    let start = |medium, world| Crew::ours(&settings.antdt_bench, medium, world, &settings.report_dir);
    let mut entries = Vec::new();
    if wanted("kernel") {
        progress("kernels");
        kernels::kernels(scale.rounds, scale.slack, &mut entries);
    }
    for world in WORLDS {
        let mut crews = Crews { settings, installed: &installed, world, running: BTreeMap::new() };
        for bytes in SIZES {
            let paths: Vec<Path> = Path::ALL
                .into_iter()
                .filter(|path| path.takes(bytes))
                .filter(|path| wanted(&format!("{}, {}", path.title(world), case::size(bytes))))
                .collect();
            if paths.is_empty() {
                continue;
            }
            progress(&format!("{world} ranks, {}", case::size(bytes)));
            let all = crews.measure(&paths, bytes, Plan::of(bytes, settings.quick))?;
            for path in paths {
                entries.extend(case::entries(path, world, bytes, &all, scale.slack));
            }
        }
        entries.extend(crews.idle());
    }
    if wanted(overlap::OVERLAP) {
        progress("overlap");
        overlap::overlap(scale.steps, &mut entries)?;
    }
    for path in Path::ALL {
        for world in WORLDS {
            let title = format!("{}, 64 MiB", path.title(world));
            if wanted(&format!("{title}: memory")) {
                progress("memory");
                memory::added(start, &title, (path.medium, path.buffer, world), &mut entries)?;
            }
        }
        let world = 4;
        if path.buffer == Buffer::Heap && wanted(&format!("{}: death", path.title(world))) {
            progress("deaths");
            let title = path.title(world);
            let ours = || start(path.medium, world);
            deaths::deaths(ours, &title, scale.deaths, scale.slack_time, &mut entries)?;
        }
    }
    if entries.is_empty() {
        let only = settings.only.join(", ");
        bail!(
            "--only = {only}: no row begins so; rows begin with `kernel`, `{}`, or such as `tcp, 2 ranks, 64 MiB`, with \
             `: memory` or `: death` after it",
            overlap::OVERLAP
        );
    }
    Ok(entries)
}

fn progress(what: &str) {
    println!("{what} ...");
}

/// The peers that were asked for and are there.
fn find_peers(settings: &Settings) -> Vec<Installed> {
    let mut peers = settings.peers.clone();
    peers.sort_unstable();
    peers.dedup();
    let mut found = Vec::new();
    for peer in peers {
        match Installed::find(peer, &settings.report_dir) {
            Ok(installed) => found.push(installed),
            Err(e) => println!("no columns of {peer}: {e:#}"),
        }
    }
    found
}

/// Who runs the processes of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum System {
    Ours(Medium),
    Gloo,
    Openmpi(Medium),
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ours(medium) => write!(f, "ours over {medium}"),
            Self::Gloo => Peer::Gloo.fmt(f),
            Self::Openmpi(medium) => write!(f, "{} over {medium}", Peer::Openmpi),
        }
    }
}

impl Column {
    const fn system(self) -> Option<System> {
        match self {
            Self::Ours(path) => Some(System::Ours(path.medium)),
            Self::Gloo => Some(System::Gloo),
            Self::Openmpi(medium) => Some(System::Openmpi(medium)),
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

/// The processes of all systems for one number of ranks. They live until all sizes are done.
struct Crews<'a> {
    settings: &'a Settings,
    installed: &'a [Installed],
    world: u32,
    running: BTreeMap<System, Running>,
}

struct Running {
    crew: Crew,
    /// Time on the cores while others were measured, all ranks together.
    idle_cpu_s: f64,
    since: Instant,
}

impl Crews<'_> {
    /// Whether a column can be measured here.
    fn has(&self, column: Column) -> bool {
        let needs = match column {
            Column::Gloo => Peer::Gloo,
            Column::Openmpi(_) => Peer::Openmpi,
            _ => return true,
        };
        self.installed.iter().any(|installed| installed.peer() == needs)
    }

    fn crew(&mut self, system: System) -> Result<&mut Running> {
        match self.running.entry(system) {
            Slot::Occupied(slot) => Ok(slot.into_mut()),
            Slot::Vacant(slot) => {
                let crew = start(self.settings, self.installed, system, self.world)?;
                Ok(slot.insert(Running { crew, idle_cpu_s: 0.0, since: Instant::now() }))
            }
        }
    }

    /// Every column of some paths, in turns.
    fn measure(&mut self, paths: &[Path], bytes: usize, plan: Plan) -> Result<Vec<Series>> {
        let mut columns: Vec<Column> =
            paths.iter().flat_map(|path| path.columns(self.world, bytes)).filter(|c| self.has(*c)).collect();
        columns.sort_unstable();
        columns.dedup();
        let mut bounds = Bounds { exchanges: BTreeMap::new(), floor: None };
        for column in &columns {
            match column.system() {
                Some(system) => {
                    let order = format!("prepare {} {bytes}", column.buffer());
                    let _: Vec<Prepared> = self.crew(system)?.crew.order(&order)?;
                }
                None => bounds.prepare(*column, self.world, bytes)?,
            }
        }
        let mut all: Vec<Series> = columns.into_iter().map(Series::new).collect();
        for round in 0..plan.rounds {
            let turns = all.len();
            for turn in 0..turns {
                self.turn(&mut all[(turn + round) % turns], &mut bounds, plan)?;
            }
        }
        Ok(all)
    }

    fn turn(&mut self, series: &mut Series, bounds: &mut Bounds, plan: Plan) -> Result<()> {
        let Plan { calls, repetitions, warm, .. } = plan;
        let Some(system) = series.column.system() else {
            let one = |_| bounds.time(series.column);
            let all = (0..warm + repetitions).map(one).collect::<Result<Vec<Took>>>()?;
            series.seconds.push(meter::median(all[warm..].iter().map(|took| took.seconds)));
            series.cpu.push(meter::median(all[warm..].iter().map(|took| took.cpu)));
            return Ok(());
        };
        let running = self.crew(system)?;
        let order = format!("time {} {calls} {repetitions} {warm}", series.column.buffer());
        let ranks: Vec<Times> = running.crew.order(&order)?;
        running.idle_cpu_s += ranks.iter().map(|rank| rank.idle_cpu_s).sum::<f64>();
        series.seconds.push(meter::median(order::slowest(&ranks)));
        series.cpu.push(ranks.iter().map(|rank| rank.cpu_s).sum());
        Ok(())
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
        System::Gloo => (Peer::Gloo, Medium::Tcp),
        System::Openmpi(medium) => (Peer::Openmpi, medium),
    };
    let found = installed.iter().find(|installed| installed.peer() == peer);
    found.with_context(|| format!("{peer} is not installed"))?.start(medium, world, folder)
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
