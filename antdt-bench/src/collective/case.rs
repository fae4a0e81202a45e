//! The all-reduces that are measured: their buffers, numbers of ranks and media, how often each is timed, and
//! the rows and targets that follow.

use std::fmt;

use super::order::{Buffer, Medium};
use super::series::{Column, Series};
use super::terms::Terms;
use crate::Entry;
use crate::arguments::Peer;
use crate::entry::State;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Sizes of groups.
pub(super) const WORLDS: [u32; 2] = [2, 4];
/// Bytes of a buffer.
pub(super) const SIZES: [usize; 11] =
    [8, 64, KIB, 4 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB, 256 * MIB];
/// Buffers up to this are about latency.
const SHORT: usize = 4 * KIB;
/// Where time on the cores is compared.
const CPU_AT: usize = 64 * MIB;

/// Peers as users have them.
const GLOO: Column = Column::Gloo(Terms::Installed);
const OPENMPI_TCP: Column = Column::Openmpi(Medium::Tcp, Terms::Installed);
const OPENMPI_SHM: Column = Column::Openmpi(Medium::Shm, Terms::Installed);

/// Over what ours reduces, and whose buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Path {
    pub(super) medium: Medium,
    pub(super) buffer: Buffer,
}

impl Path {
    pub(super) const ALL: [Self; 4] = [
        Self { medium: Medium::Tcp, buffer: Buffer::Heap },
        Self { medium: Medium::Tcp, buffer: Buffer::Own },
        Self { medium: Medium::Shm, buffer: Buffer::Own },
        Self { medium: Medium::Shm, buffer: Buffer::Heap },
    ];

    /// Whether buffers of so many bytes are measured over it.
    pub(super) const fn takes(self, bytes: usize) -> bool {
        match (self.medium, self.buffer) {
            (Medium::Tcp, Buffer::Heap) => bytes <= SHORT || bytes >= MIB,
            (Medium::Tcp, Buffer::Own) => bytes >= MIB,
            (Medium::Shm, Buffer::Heap) => bytes != 4 * MIB,
            // The latency of a call is that of a buffer from anywhere.
            (Medium::Shm, Buffer::Own) => bytes > SHORT && bytes != 4 * MIB,
        }
    }

    /// The least that an all-reduce over sockets does. One in the caller's own buffer needs a way back; the communicator's
    /// are exchanged for the results.
    const fn bare(self) -> Column {
        match self.buffer {
            Buffer::Heap => Column::Kept,
            Buffer::Own => Column::Bare,
        }
    }

    /// Its name in the table, with the number of ranks.
    pub(super) fn title(self, world: u32) -> String {
        format!("{self}, {world} ranks")
    }

    /// Peers that reduce the same bytes, and the bounds of the machine.
    pub(super) fn columns(self, world: u32, bytes: usize) -> Vec<Column> {
        let mut columns = vec![Column::Ours(self)];
        columns.extend([Column::Gloo(Terms::Installed), Column::Openmpi(self.medium, Terms::Installed)]);
        // Latency is that of a socket with nothing in its way, whatever its control.
        if self.medium == Medium::Tcp && bytes > SHORT {
            columns.extend([Column::Gloo(Terms::Ours), Column::Openmpi(self.medium, Terms::Ours)]);
        }
        match self.medium {
            Medium::Tcp if world == 2 && bytes > SHORT => columns.extend([Column::Duplex, self.bare()]),
            Medium::Shm if bytes >= 16 * MIB => {
                columns.push(Column::Floor);
                if self.buffer == Buffer::Heap {
                    columns.push(Column::Copies);
                }
            }
            _ => {}
        }
        if self.medium == Medium::Tcp && bytes == CPU_AT {
            columns.push(Column::Frugal);
        }
        columns
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.medium, self.buffer) {
            (Medium::Tcp, Buffer::Heap) => "tcp",
            (Medium::Tcp, Buffer::Own) => "tcp, own buffer",
            (Medium::Shm, Buffer::Own) => "shm",
            (Medium::Shm, Buffer::Heap) => "shm, heap buffer",
        })
    }
}

/// So many bytes, in words.
pub(super) fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= MIB => format!("{} MiB", bytes / MIB),
        bytes if bytes >= KIB => format!("{} KiB", bytes / KIB),
        bytes => format!("{bytes} B"),
    }
}

/// How often something is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Turns that each column gets.
    pub(super) rounds: usize,
    /// Reductions behind one reading of the clock.
    pub(super) calls: u32,
    /// Readings in a turn, whose median is its result.
    pub(super) repetitions: usize,
    /// Reductions before them, for caches that another column has filled and cores that its ranks had.
    pub(super) warm: usize,
}

impl Plan {
    pub(super) const fn of(bytes: usize, quick: bool) -> Self {
        let rounds = match (quick, bytes) {
            (false, _) => 30,
            // The fewest that have an interval.
            (true, bytes) if bytes > 64 * MIB => 6,
            (true, _) => 9,
        };
        match bytes {
            bytes if bytes <= SHORT => Self { rounds, calls: 200, repetitions: 1, warm: 1 },
            bytes if bytes <= MIB => Self { rounds, calls: 1, repetitions: 9, warm: 5 },
            bytes if bytes <= 4 * MIB => Self { rounds, calls: 1, repetitions: 5, warm: 3 },
            bytes if bytes <= 64 * MIB => Self { rounds, calls: 1, repetitions: 1, warm: 1 },
            _ => Self { rounds, calls: 1, repetitions: 1, warm: 0 },
        }
    }
}

/// What came out for one path and one size, as lines of the table. Ratios are forgiven `slack`.
pub(super) fn entries(path: Path, world: u32, bytes: usize, series: &[Series], slack: f64) -> Vec<Entry> {
    let ours = series.iter().find(|series| series.column == Column::Ours(path));
    let Some(ours) = ours else { return Vec::new() };
    let title = format!("{}, {}", path.title(world), size(bytes));
    let results = Results { path, bytes, title, series, ours };
    let mut entries = vec![results.time()];
    for (column, least) in targets(path, bytes) {
        entries.extend(results.against(column, least / slack));
    }
    entries.extend(results.passes());
    entries.extend(results.bare());
    if bytes == CPU_AT {
        entries.extend(results.cores(slack));
    }
    entries
}

/// How many times as long as ours the columns are to take.
fn targets(path: Path, bytes: usize) -> Vec<(Column, f64)> {
    match (path.medium, path.buffer) {
        // The targets are for buffers from anywhere, as the peers' are.
        (Medium::Tcp, Buffer::Own) => Vec::new(),
        (Medium::Tcp, Buffer::Heap) if bytes <= SHORT => vec![(OPENMPI_TCP, 1.0)],
        (Medium::Tcp, Buffer::Heap) => vec![
            (GLOO, 1.2),
            (OPENMPI_TCP, 1.2),
            (Column::Gloo(Terms::Ours), 1.2),
            (Column::Openmpi(Medium::Tcp, Terms::Ours), 1.2),
            (Column::Duplex, 0.85),
        ],
        (Medium::Shm, _) if bytes <= SHORT => vec![(OPENMPI_SHM, 0.5), (GLOO, 10.0)],
        (Medium::Shm, _) if bytes < 16 * MIB => vec![(OPENMPI_SHM, 1.2)],
        (Medium::Shm, Buffer::Own) => vec![(OPENMPI_SHM, 3.0), (GLOO, 5.0), (Column::Floor, 1.0 / 1.5)],
        (Medium::Shm, Buffer::Heap) => vec![(OPENMPI_SHM, 1.5)],
    }
}

/// What was measured for one path and one size.
struct Results<'a> {
    path: Path,
    bytes: usize,
    title: String,
    series: &'a [Series],
    ours: &'a Series,
}

impl Results<'_> {
    fn of(&self, column: Column) -> Option<&Series> {
        self.series.iter().find(|series| series.column == column)
    }

    /// A time in the unit of its size.
    fn text(&self, seconds: f64) -> String {
        let (unit, units) = self.unit();
        format!("{} {unit}", digits(seconds * units))
    }

    const fn unit(&self) -> (&'static str, f64) {
        if self.bytes <= SHORT { ("us", 1e6) } else { ("ms", 1e3) }
    }

    fn time(&self) -> Entry {
        let (unit, units) = self.unit();
        let name = format!("{} ({} rounds)", self.title, self.ours.seconds.len());
        let [low, high] = self.ours.quartiles().map(|seconds| digits(seconds * units));
        Entry::shown(name, self.ours.median() * units, unit)
            .beside(format!("half of them {low} to {high} {unit}"))
    }

    /// The time of a column over ours.
    fn against(&self, column: Column, least: f64) -> Option<Entry> {
        let peer = self.of(column)?;
        let (ratio, within) = peer.over(self.ours);
        let row = Entry::shown(format!("{}: {column} / ours", self.title), ratio, "x");
        let beside = format!("{} {}", peer.column, self.text(peer.median()));
        Some(row.interval_at_least(within, least).beside(beside))
    }

    /// A bound of the machine over ours, and what Open MPI takes over it.
    fn bound(&self, what: impl fmt::Display, least: f64) -> Entry {
        let peer = self.of(Column::Openmpi(self.path.medium, Terms::Installed));
        let most = peer.map_or(String::new(), |peer| {
            format!(", {} times faster than Open MPI", digits(peer.median() / least))
        });
        Entry::shown(format!("{}: {what} / ours", self.title), least / self.ours.median(), "x")
            .beside(format!("{}{most}", self.text(least)))
    }

    /// What memory allows where, unlike with a caller's own buffer, the copies come on top.
    fn passes(&self) -> Option<Entry> {
        let is_copied = self.path.buffer == Buffer::Heap && self.path.medium == Medium::Shm;
        let floor = self.of(Column::Floor).filter(|_| is_copied)?;
        let least = floor.median() + self.of(Column::Copies)?.median();
        Some(self.bound(format_args!("{} and {}", Column::Floor, Column::Copies), least))
    }

    /// What sockets allow.
    fn bare(&self) -> Option<Entry> {
        let bare = self.of(self.path.bare()).filter(|_| self.path.medium == Medium::Tcp)?;
        Some(self.bound(bare.column, bare.median()))
    }

    /// Time on the cores.
    fn cores(&self, slack: f64) -> Vec<Entry> {
        let (title, ours) = (&self.title, self.ours);
        let per_gib = |series: &Series| series.cpu_median() / (self.bytes as f64 / f64::from(1 << 30));
        let name = format!("{title}: time on the cores a GiB");
        let mut entries = vec![Entry::shown(name, per_gib(ours), "s")];
        let gloo = self.of(GLOO);
        if let Some(least) = self.of(Column::Frugal).filter(|_| self.path.medium == Medium::Tcp) {
            let share = gloo.map(|gloo| least.cpu_median() / gloo.cpu_median());
            let share = share.map_or(String::new(), |share| format!(", {} of gloo's", digits(share)));
            let name = format!("{title}: {} / ours", least.column);
            entries.push(
                Entry::shown(name, least.cpu_median() / ours.cpu_median(), "x")
                    .beside(format!("{} s a GiB{share}", digits(per_gib(least)))),
            );
        }
        if let Some(gloo) = gloo {
            let (ratio, within) = ours.cpu_over(gloo);
            let name = format!("{title}: time on the cores, ours / {}", Peer::Gloo);
            entries.push(
                Entry::shown(name, ratio, "x")
                    .interval_at_most(within, 0.6 * slack)
                    .beside(format!("gloo {} s a GiB", digits(per_gib(gloo)))),
            );
        }
        entries
    }
}

/// Rows of the peers of one path and one size that stalled or died, each with what is known of it.
pub(super) fn stalled(path: Path, world: u32, bytes: usize, lost: &[(Column, String)]) -> Vec<Entry> {
    let columns = path.columns(world, bytes);
    let lost = lost.iter().filter(|(column, _)| columns.contains(column));
    let title = format!("{}, {}", path.title(world), size(bytes));
    lost.map(|(column, why)| Entry::without(format!("{title}: {column} / ours"), State::Stalled, why))
        .collect()
}

/// Three digits that count.
fn digits(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: Path = Path { medium: Medium::Tcp, buffer: Buffer::Heap };

    fn series(column: Column, seconds: f64, cpu: f64) -> Series {
        Series { column, seconds: vec![seconds; 6], cpu: vec![cpu; 6] }
    }

    #[test]
    fn a_peer_that_takes_longer_is_a_ratio_above_one() {
        let all = [
            series(Column::Ours(TCP), 0.040, 0.05),
            series(GLOO, 0.050, 0.10),
            series(OPENMPI_TCP, 0.044, 0.08),
            series(Column::Gloo(Terms::Ours), 0.048, 0.10),
            series(Column::Duplex, 0.030, 0.0),
        ];
        let rows = entries(TCP, 2, 64 * MIB, &all, 1.0);
        let row = |end: &str| rows.iter().find(|row| row.name.ends_with(end)).unwrap();
        assert_eq!(rows[0].name, "tcp, 2 ranks, 64 MiB (6 rounds)");
        let value = |end: &str| row(end).value.unwrap();
        assert!((rows[0].value.unwrap() - 40.0).abs() < 1e-9);
        assert!(row("gloo / ours").state == State::Ok && (value("gloo / ours") - 1.25).abs() < 1e-9);
        assert!((value("gloo under reno / ours") - 1.2).abs() < 1e-9);
        assert_eq!(row("Open MPI / ours").state, State::Failed, "1.1 is not 1.2");
        assert_eq!(row("ceiling / ours").state, State::Failed, "three quarters of what loopback carries");
        assert!(row("ours / gloo").state == State::Ok && (value("ours / gloo") - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_peer_that_varies_by_a_fifth_leaves_a_row_open_that_its_median_alone_would_fail() {
        let own = Path { medium: Medium::Shm, buffer: Buffer::Own };
        let of = |gloo: [f64; 6]| {
            let peer = Series { column: GLOO, seconds: gloo.map(|ms| ms / 1e3).to_vec(), cpu: vec![0.1; 6] };
            let rows = entries(own, 2, 64 * MIB, &[series(Column::Ours(own), 0.0114, 0.05), peer], 1.5);
            rows.into_iter().find(|row| row.name.ends_with("gloo / ours")).unwrap()
        };
        let varies = of([35.9, 36.3, 36.8, 37.2, 41.0, 44.2]);
        assert_eq!(varies.state, State::Unresolved, "{varies:?}");
        assert!(varies.value.unwrap() < 5.0 / 1.5, "{varies:?}");
        assert_eq!(of([35.9, 36.3, 36.8, 37.2, 37.1, 36.2]).state, State::Failed);
        assert_eq!(of([43.9, 44.3, 46.8, 39.2, 41.1, 42.2]).state, State::Ok);
    }

    #[test]
    fn a_peer_that_stalled_has_a_row_where_it_belongs_and_no_other() {
        let lost = [(OPENMPI_TCP, "no answer within 60s".to_owned())];
        let rows = stalled(TCP, 4, 256 * MIB, &lost);
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].name, "tcp, 4 ranks, 256 MiB: Open MPI / ours");
        assert_eq!((rows[0].state, rows[0].value), (State::Stalled, None));
        let shm = Path { medium: Medium::Shm, buffer: Buffer::Heap };
        assert!(stalled(shm, 4, 256 * MIB, &lost).is_empty());
    }

    #[test]
    fn a_peer_that_is_missing_has_no_row() {
        let rows = entries(TCP, 4, MIB, &[series(Column::Ours(TCP), 0.001, 0.0)], 1.0);
        assert_eq!(rows.len(), 1);
        assert!(rows[0].target.is_none());
    }

    #[test]
    fn a_full_run_has_thirty_rounds_of_everything() {
        assert!(SIZES.iter().all(|bytes| Plan::of(*bytes, false).rounds >= 30));
    }
}
