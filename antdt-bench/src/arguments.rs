//! [`Arguments`]: the command line of the benchmarks.
//!
//! `cargo xtask` also compiles this file, so that it refuses wrong arguments before the benchmarks are built.
//! This file therefore uses nothing else of this crate.

use std::ffi::OsString;
use std::fmt;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};

/// Name of a benchmark. A new one is added here, and in the table of the functions that run them (`bench`) of its package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// whole jobs of four workers, with and without a straggler, compared with their ideal times
    Job,
    /// all-reduces beside gloo, Open MPI and the machine's bounds
    Collective,
    /// training scripts of PyTorch beside torchrun with gloo: step, start, a straggler, kills
    Pytorch,
    /// the shard service: ledger, journal, and calls over gRPC
    Shard,
    /// the simulator: events a second, large jobs, memory
    Sim,
    /// real jobs compared with their simulation: simulated figures count only if it passes
    Calibrate,
    /// every policy on every kind of straggler, beside doing nothing and an oracle with perfect foresight: up to 20 minutes
    Policies,
    /// jobs whose nodes are killed, stopped and scaled: pauses, and an exact count by the model
    Survive,
    /// what many hosts cost: their start beside torchrun's, a master of 4,000 workers, links of 1 Gb/s, encryption
    Cluster,
    /// parameter servers, all-reduce, AD-PSGD and Ripples beside AntDT's policy: time to a fixed loss, throughput, hypotheses
    Baselines,
}

impl Name {
    /// Returns the package whose program runs the benchmark: `antdt-bench` for those that users run, `antdt-lab` for those that measure
    /// parts of AntDT, which take more to build.
    pub const fn package(self) -> &'static str {
        match self {
            Self::Job | Self::Collective | Self::Pytorch => "antdt-bench",
            Self::Shard
            | Self::Sim
            | Self::Calibrate
            | Self::Policies
            | Self::Survive
            | Self::Cluster
            | Self::Baselines => "antdt-lab",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no benchmark is hidden");
        f.write_str(value.get_name())
    }
}

/// A peer: another project's library of collectives, which the benchmark `collective` measures beside this project's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Peer {
    /// gloo, which PyTorch uses on CPUs.
    Gloo,
    /// Open MPI.
    Openmpi,
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gloo => "gloo",
            Self::Openmpi => "Open MPI",
        })
    }
}

/// Benchmarks of AntDT; run by `cargo xtask bench`.
#[derive(Debug, Parser)]
#[command(bin_name = "cargo xtask bench")]
pub struct Arguments {
    /// The benchmark to run.
    #[arg(default_value = "job")]
    pub name: Name,
    /// Be done within four minutes (policies and cluster: three, without the real contention of disks, links and other processes).
    #[arg(long)]
    pub quick: bool,
    /// Run six jobs and hurt each once, in half a minute: counts are judged and times only shown, so that debug builds and busy
    /// machines pass. `cargo xtask verify` runs this with its debug build (survive).
    #[arg(long, conflicts_with_all = ["quick", "full"])]
    pub smoke: bool,
    /// Measure the whole matrix (baselines), all counts of the targets (survive), or more seeds, longer jobs and more real processes
    /// (policies); takes hours.
    #[arg(long, conflicts_with = "quick")]
    pub full: bool,
    /// Keep the results of an earlier `--full` run, and measure only the combinations of settings that it lacks (baselines, policies,
    /// survive).
    #[arg(long = "continue", requires = "full")]
    pub go_on: bool,
    /// Also write the table as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where reports and logs go [default: target/bench/NAME].
    #[arg(long, value_name = "DIR")]
    pub report_dir: Option<PathBuf>,
    /// Name the benchmarks and exit.
    #[arg(long)]
    pub list: bool,
    /// Build what is measured and what measures it, and exit.
    #[arg(long)]
    pub no_run: bool,
    /// Also measure this peer, another project's library of collectives, if it is installed (collective). May be given several times.
    #[arg(long, value_name = "NAME")]
    pub peer: Vec<Peer>,
    /// Do not fail if a peer that `--peer` names is not installed (collective).
    #[arg(long)]
    pub allow_missing: bool,
    /// Seconds that a peer may take for one order; one that takes longer is ended and its row says `stalled` (collective).
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub peer_limit: u64,
    /// Measure only what has this text in its name, such as `tcp, 2 ranks, 64 MiB` (collective), `overlap` (job), `kill` and `slower` (pytorch), `recording` (shard), the
    /// parts `replay`, `headline` and `contention` (policies), `start`, `control` and `links` (cluster), or `kills`, `master` and `ps-bsp` (survive). May be given several times.
    #[arg(long, value_name = "TEXT")]
    pub only: Vec<String>,
    /// Address from which a rank of the benchmark `collective` gets its orders.
    #[arg(long, hide = true)]
    pub control: Option<SocketAddr>,
    /// Number of this rank in the benchmark `collective`.
    #[arg(long, hide = true, default_value_t = 0)]
    pub rank: u32,
    /// The program under test; given by `cargo xtask bench`.
    #[arg(long, hide = true, default_value = "antdt")]
    pub antdt: PathBuf,
}

impl Arguments {
    /// Parses a command line, whose first word is the program, and checks that its flags belong to the benchmark.
    ///
    /// # Errors
    /// If there is no such benchmark or flag, or the flag is not for that benchmark.
    pub fn checked<W: Into<OsString> + Clone>(
        words: impl IntoIterator<Item = W>,
    ) -> Result<Self, clap::Error> {
        let arguments = Self::try_parse_from(words)?;
        let name = arguments.name;
        let refuse = |what: String| Err(clap::Error::raw(ErrorKind::ArgumentConflict, what + "\n"));
        if !arguments.peer.is_empty() && name != Name::Collective {
            return refuse(format!("--peer is for `collective`; leave it out with `{name}`"));
        }
        if arguments.allow_missing && arguments.peer.is_empty() {
            return refuse(
                "--allow-missing is about peers; name them with --peer, or leave it out".to_owned(),
            );
        }
        if arguments.full && ![Name::Baselines, Name::Policies, Name::Survive].contains(&name) {
            return refuse(format!(
                "--full is for `baselines`, `policies` and `survive`; leave it out with `{name}`"
            ));
        }
        if arguments.smoke && name != Name::Survive {
            return refuse(format!("--smoke is for `survive`; leave it out with `{name}`"));
        }
        let with_parts = [
            Name::Job,
            Name::Collective,
            Name::Pytorch,
            Name::Shard,
            Name::Policies,
            Name::Survive,
            Name::Cluster,
        ];
        if !arguments.only.is_empty() && !with_parts.contains(&name) {
            return refuse(format!(
                "--only is for `job`, `collective`, `pytorch`, `shard`, `policies`, `survive` and `cluster`; leave it out with `{name}`"
            ));
        }
        Ok(arguments)
    }
}

/// Returns the list of all benchmarks, one line each.
pub fn list() -> String {
    Name::value_variants().iter().filter_map(ValueEnum::to_possible_value).fold(
        String::new(),
        |mut list, value| {
            let about = value.get_help().map(ToString::to_string).unwrap_or_default();
            writeln!(list, "{:<12} {about}", value.get_name()).expect("a string takes any text");
            list
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(words: &str) -> Result<Arguments, String> {
        Arguments::checked(words.split(' ')).map_err(|error| error.to_string())
    }

    #[test]
    fn arguments_are_understood() {
        assert_eq!(checked("bench").unwrap().name, Name::Job);
        assert_eq!(["bench", "bench --no-run"].map(|words| checked(words).unwrap().no_run), [false, true]);
        let asked = checked("bench collective --peer gloo --peer openmpi --quick --only tcp").unwrap();
        assert_eq!(
            (asked.name, asked.peer, asked.quick),
            (Name::Collective, vec![Peer::Gloo, Peer::Openmpi], true)
        );
        let asked = checked("bench survive --smoke --only server").unwrap();
        assert_eq!((asked.name, asked.smoke, asked.only), (Name::Survive, true, vec!["server".to_owned()]));
    }

    #[test]
    fn a_name_or_a_flag_that_does_not_exist_or_fit_is_refused_with_the_known_ones() {
        for (words, said) in [
            ("bench colective", "collective"),
            ("bench shard --quik", "--quick"),
            ("bench collective --peer mpich", "openmpi"),
            ("bench sim --peer gloo", "--peer is for `collective`"),
            ("bench collective --allow-missing", "name them with --peer"),
            ("bench collective --peer gloo --peer-limit 0", "--peer-limit"),
            ("bench job --full", "--full is for `baselines`, `policies` and `survive`"),
            ("bench job --full --continue", "--full is for `baselines`, `policies` and `survive`"),
            ("bench policies --continue", "--full"),
            ("bench baselines --full --quick", "--quick"),
            ("bench baselines --continue", "--full"),
            (
                "bench sim --only tcp",
                "--only is for `job`, `collective`, `pytorch`, `shard`, `policies`, `survive` and `cluster`",
            ),
            ("bench policies --smoke", "--smoke is for `survive`"),
            ("bench survive --smoke --quick", "--quick"),
            ("bench survive --smoke --full", "--full"),
        ] {
            let error = checked(words).unwrap_err();
            assert!(error.contains(said), "{words}: {error}");
        }
    }

    #[test]
    fn every_benchmark_is_listed_with_its_subject() {
        let list = list();
        assert_eq!(list.lines().count(), Name::value_variants().len());
        assert!(list.lines().all(|line| line.split_whitespace().count() > 4), "{list}");
    }
}
