//! What `--record` costs: the service over gRPC with all that its ledger is told and does written to a trace, and without.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use antdt_core::trace::TraceHeader;
use antdt_rt::{Packing, TraceWriter};
use antdt_shard::NullStore;
use antdt_shard::runtime::{ClientOptions, ShardClient};
use anyhow::{Context, Result, ensure};

use super::host::Host;
use super::puller::Round;
use super::service::{CLIENTS, SHARDS, Team};
use super::{NAME, Scale, spec};
use crate::{Entry, Rows};

/// Rounds without, with, and with a compressed trace take turns. As many calls as the cores can do: a real job asks a
/// thousandth of that, and records as little.
pub(super) fn recording(scale: &Scale, folder: &Path, rows: &mut Rows) -> Result<()> {
    let host = Host::new()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let team = |address: &str| {
        Team::new(&runtime, 1, || {
            // A channel is a task of the runtime from the start.
            let _guard = runtime.enter();
            Ok(ShardClient::connect(address, NAME, ClientOptions::default())?)
        })
    };
    let record = |name: &str| -> Result<_> {
        let path = folder.join(name);
        let trace = TraceWriter::start(
            name,
            Box::new(File::create(&path)?),
            Packing::of(&path),
            &TraceHeader::new("bench", NAME),
        )?;
        let (address, _) = host.serve_watched(spec(SHARDS), NullStore, trace.recorder("ledger"))?;
        Ok((team(&address)?, trace))
    };
    let mut off = team(&host.serve(spec(SHARDS), NullStore)?.0)?;
    let (mut plain, plain_trace) = record("trace")?;
    let (mut packed, packed_trace) = record("trace.gz")?;
    for _ in 0..scale.rounds {
        for team in [&mut off, &mut plain, &mut packed] {
            team.play(&runtime, scale.round)?;
            // What still waits is not written in another round.
            std::thread::sleep(Duration::from_millis(200));
        }
    }
    for (name, team, trace) in
        [("recording", &plain, plain_trace), ("recording, compressed", &packed, packed_trace)]
    {
        let ended = trace.finish(Duration::from_secs(60)).context("the disk does not take the recording")?;
        ensure!(ended.end.dropped == 0, "the disk is too slow to measure what a recording costs");
        let mut ratios = team.ratios(&off, Round::cost);
        ratios.sort_by(f64::total_cmp);
        let percent = |ratio: Option<&f64>| 100.0 * (ratio.copied().unwrap_or(f64::NAN) - 1.0);
        #[allow(clippy::cast_precision_loss, reason = "a mean")]
        let bytes = ended.bytes as f64 / ended.end.entries as f64;
        let beside = format!(
            "{:.1} to {:.1} % by round; {CLIENTS} clients at {:.0} calls/s, {:.0} without; {:.1} us a call on the cores, {:.1} without; \
             {bytes:.0} bytes an entry",
            percent(ratios.first()),
            percent(ratios.last()),
            team.median(Round::rate),
            off.median(Round::rate),
            1e6 * team.median(Round::cost),
            1e6 * off.median(Round::cost),
        );
        let cost = percent(ratios.get(ratios.len() / 2));
        rows.push(Entry::shown(format!("{name}, cost on the cores"), cost, "%").beside(beside));
    }
    drop((off, plain, packed));
    host.end();
    Ok(())
}
