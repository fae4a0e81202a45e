//! The service: calls per second over gRPC, what the journal costs, and what bounds it.

use std::path::Path;
use std::time::Duration;

use antdt_core::Connections;
use antdt_proto::{Bearer, connection};
use antdt_shard::NullStore;
use antdt_shard::runtime::{
    ClientOptions, FileStore, FileStoreOptions, LocalSource, ShardClient, SyncPolicy,
};
use antdt_tls::JobTls;
use anyhow::Result;
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;

use super::host::Host;
use super::meter::median;
use super::puller::{Puller, Round, round};
use super::{DLROVER, NAME, Scale, spec};
use crate::{Entry, Rows};

pub(super) const CLIENTS: u32 = 16;
const BATCH: u32 = 16;
/// How long a connection over loopback may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Of the data set: enough that no round comes near the end of an epoch, where grants are fewer.
pub(super) const SHARDS: u64 = 1_000_000_000;

/// A group of pullers and what it did in each round.
pub(super) struct Team<S> {
    pullers: Vec<Puller<S>>,
    rounds: Vec<Round>,
}

impl<S: antdt_core::port::ShardSource + 'static> Team<S> {
    pub(super) fn new(runtime: &Runtime, want: u32, source: impl Fn() -> Result<S>) -> Result<Self> {
        let mut pullers = Vec::new();
        for index in 0..CLIENTS {
            pullers.push(runtime.block_on(Puller::begin(source()?, index, want))?);
        }
        Ok(Self { pullers, rounds: Vec::new() })
    }

    pub(super) fn play(&mut self, runtime: &Runtime, length: Duration) -> Result<()> {
        self.rounds.push(round(runtime, &mut self.pullers, length)?);
        Ok(())
    }

    /// What each round of this team took, over what that of the other one just before it or after it did.
    pub(super) fn ratios<T>(&self, to: &Team<T>, what: impl Fn(&Round) -> f64) -> Vec<f64> {
        self.rounds.iter().zip(&to.rounds).map(|(round, other)| what(round) / what(other)).collect()
    }

    pub(super) fn median(&self, what: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(what))
    }

    fn rate(&self) -> f64 {
        self.median(Round::rate)
    }
}

/// The teams that are compared: with the journal off, on, durable before each answer, and with requests of `BATCH` shards; the second and the
/// third over TLS; of an echo; and within this process.
struct Teams {
    off: Team<ShardClient>,
    on: Team<ShardClient>,
    each: Team<ShardClient>,
    on_tls: Team<ShardClient>,
    each_tls: Team<ShardClient>,
    on_batched: Team<ShardClient>,
    echo: Team<ShardClient>,
    echo_batched: Team<ShardClient>,
    local: Team<LocalSource>,
}

/// All of it, in rounds that take turns.
pub(super) fn service(scale: &Scale, folder: &Path, rows: &mut Rows) -> Result<()> {
    let host = Host::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let file = |name: &str, sync| {
        let options = FileStoreOptions { sync, ..FileStoreOptions::default() };
        FileStore::open(folder.join(name), spec(SHARDS), options)
    };
    let group = FileStoreOptions::default().sync;
    let (off, _) = host.serve(spec(SHARDS), NullStore)?;
    let (on, _) = host.serve(spec(SHARDS), file("on", group)?)?;
    let (each, _) = host.serve(spec(SHARDS), file("each", SyncPolicy::Each)?)?;
    let (on_batched, _) = host.serve(spec(SHARDS), file("on-batched", group)?)?;
    let (_, local) = host.serve(spec(SHARDS), file("local", group)?)?;
    let tls = Connections::wrapped(JobTls::of_secret(NAME.as_bytes())?);
    let on_tls = host.serve_wrapped(spec(SHARDS), file("on-tls", group)?, &tls)?;
    let each_tls = host.serve_wrapped(spec(SHARDS), file("each-tls", SyncPolicy::Each)?, &tls)?;
    let echo = host.echo()?;
    let team = |address: &str, want| {
        Team::new(&runtime, want, || {
            // A channel is a task of the runtime from the start.
            let _guard = runtime.enter();
            Ok(ShardClient::connect(address, NAME, ClientOptions::default())?)
        })
    };
    let wrapped = |address: &str| {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?;
        Team::new(&runtime, 1, || {
            let _guard = runtime.enter();
            let channel = connection::channel(&endpoint, CONNECT_LIMIT, tls.clone());
            Ok(ShardClient::over(Bearer::default().over(channel), NAME, ClientOptions::default()))
        })
    };
    let mut teams = Teams {
        off: team(&off, 1)?,
        on: team(&on, 1)?,
        each: team(&each, 1)?,
        on_tls: wrapped(&on_tls)?,
        each_tls: wrapped(&each_tls)?,
        on_batched: team(&on_batched, BATCH)?,
        echo: team(&echo, 1)?,
        echo_batched: team(&echo, BATCH)?,
        local: Team::new(&runtime, 1, || Ok(LocalSource::new(local.clone())))?,
    };
    for _ in 0..scale.rounds {
        let Teams { off, on, each, on_tls, each_tls, on_batched, echo, echo_batched, local } = &mut teams;
        // Those that are compared with each other one after the other.
        for team in [echo, off, on, on_tls, each, each_tls, on_batched, echo_batched] {
            team.play(&runtime, scale.round)?;
        }
        local.play(&runtime, scale.round)?;
    }
    show(&teams, scale, rows);
    drop(teams);
    host.end();
    Ok(())
}

/// Adds the rows of the rounds that were played.
fn show(teams: &Teams, scale: &Scale, rows: &mut Rows) {
    let Teams { off, on, each, on_tls, each_tls, on_batched, echo, echo_batched, local } = teams;
    let calls = "gRPC, 16 clients, journal on: acks and fetches";
    let bound = format!("{:.0} % of the echo; {DLROVER} 1,860/s", 100.0 * on.rate() / echo.rate());
    rows.push(Entry::shown(calls, on.rate(), "calls/s").at_least(scale.floor(20_000.0)).beside(bound));
    let [p50, p99] =
        [|r: &Round| r.p50, |r: &Round| r.p99].map(|time| on.median(|r| time(r).as_secs_f64() * 1e3));
    let peer = format!("p50 {p50:.3} ms; {DLROVER} p99 21 to 41 ms");
    rows.push(Entry::shown(format!("{calls}, p99"), p99, "ms").at_most(scale.ceiling(10.0)).beside(peer));
    let batched = f64::from(BATCH) * on_batched.rate();
    let peer = format!("{:.0} % of the echo", 100.0 * on_batched.rate() / echo_batched.rate());
    rows.push(
        Entry::shown("gRPC, 16 clients, journal on, batched by 16", batched, "shards/s")
            .at_least(scale.floor(200_000.0))
            .beside(peer),
    );
    let ratio = |what: fn(&Round) -> f64| on.median(what) / off.median(what);
    let cores = format!(
        "{:.1} us a call on the cores, {:.1} without",
        1e6 * on.median(Round::cost),
        1e6 * off.median(Round::cost)
    );
    rows.push(
        Entry::shown("journal, cost on the cores", 100.0 * (ratio(Round::cost) - 1.0), "%")
            .at_most(30.0)
            .beside(cores),
    );
    let rates = Entry::shown("journal, cost in calls/s", 100.0 * (1.0 - ratio(Round::rate)), "%")
        .beside(format!("{:.0} calls/s without", off.rate()));
    // In short rounds on a busy machine this says more about the machine.
    rows.push(if scale.slack > 1.0 { rates } else { rates.at_most(30.0) });
    rows.push(Entry::shown("gRPC, journal durable before each answer", each.rate(), "calls/s"));
    let over_tls = |tls: &Team<ShardClient>, plain| median(tls.ratios(plain, Round::rate));
    let beside = format!("{:.1} us a call on the cores", 1e6 * each_tls.median(Round::cost));
    rows.push(
        Entry::shown("the same over TLS, rate", over_tls(each_tls, each), "of plain")
            .at_least(0.9)
            .beside(beside),
    );
    let beside = format!(
        "{:.1} us a call on the cores, {:.1} without",
        1e6 * on_tls.median(Round::cost),
        1e6 * on.median(Round::cost)
    );
    rows.push(Entry::shown("journal on, over TLS, rate", over_tls(on_tls, on), "of plain").beside(beside));
    rows.push(Entry::shown("in this process, journal on", local.rate(), "calls/s"));
    rows.push(Entry::shown("bound: gRPC echo of the same messages", echo.rate(), "calls/s").beside(format!(
        "{:.1} us on the cores, the service {:.1}",
        1e6 * echo.median(Round::cost),
        1e6 * on.median(Round::cost)
    )));
    let shards = f64::from(BATCH) * echo_batched.rate();
    rows.push(Entry::shown("bound: gRPC echo, batched by 16", shards, "shards/s").beside(format!(
        "{:.1} us on the cores a call, the service {:.1}",
        1e6 * echo_batched.median(Round::cost),
        1e6 * on_batched.median(Round::cost)
    )));
    let cores = on.median(|round| round.took.cpu.as_secs_f64() / round.took.wall.as_secs_f64());
    rows.push(Entry::shown("cores that the machine gave to these rounds", cores, "cores"));
}
