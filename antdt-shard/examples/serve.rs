//! The shard service by itself: `cargo run -p antdt-shard --example serve -- FOLDER ADDRESS [NAME:SAMPLES:SHARD_LEN]...`
//!
//! The logs of its data sets are kept below FOLDER, one folder each, and those that are there are served again. Clients may
//! open more data sets than those that are named. Ctrl-C ends it when all that was acknowledged is durable; after anything else, `kill -9` included, it
//! goes on where it was.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use antdt_rt::{CancellationToken, JobClock};
use antdt_shard::DatasetSpec;
use antdt_shard::runtime::{Catalog, FileStoreOptions, ShardServer};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let result = match arguments() {
        Ok((folder, address, datasets)) => serve(&folder, &address, datasets).await,
        Err(error) => Err(error),
    };
    let Err(error) = result else { return ExitCode::SUCCESS };
    let (mut line, mut cause) = (format!("error: {error}"), error.source());
    while let Some(error) = cause {
        line = format!("{line}: {error}");
        cause = error.source();
    }
    eprintln!("{line}");
    ExitCode::FAILURE
}

async fn serve(folder: &Path, address: &str, datasets: Vec<DatasetSpec>) -> Result<(), Failure> {
    let catalog = Catalog::in_folder(folder, FileStoreOptions::default(), JobClock::start());
    catalog.reopen(folder).await?; // what was served before
    for spec in datasets {
        catalog.open(spec).await?;
    }
    let listener =
        TcpListener::bind(address).await.map_err(|e| format!("cannot listen on {address}: {e}"))?;
    println!("serving {:?} on {}", catalog.names(), listener.local_addr()?);

    let (incoming, stop) = (TcpIncoming::from(listener).with_nodelay(Some(true)), CancellationToken::new());
    let service = ShardServer::new().with_catalog(catalog.clone()).into_service();
    let server = Server::builder().add_service(service);
    let serving = tokio::spawn(server.serve_with_incoming_shutdown(incoming, stop.clone().cancelled_owned()));
    tokio::signal::ctrl_c().await?;
    catalog.shutdown().await?; // all state is durable, and waiting workers are answered
    stop.cancel();
    serving.await??;
    Ok(())
}

fn arguments() -> Result<(PathBuf, String, Vec<DatasetSpec>), Failure> {
    let mut arguments = std::env::args().skip(1);
    let (Some(folder), Some(address)) = (arguments.next(), arguments.next()) else {
        return Err("usage: serve FOLDER ADDRESS [NAME:SAMPLES:SHARD_LEN]...".into());
    };
    let dataset = |text: String| {
        let refused = || format!("{text:?} is no data set; write NAME:SAMPLES:SHARD_LEN");
        let parts: Vec<&str> = text.rsplitn(3, ':').collect();
        let [shard_len, samples, name] = parts[..] else { return Err(refused()) };
        let (Ok(samples), Ok(shard_len)) = (samples.parse(), shard_len.parse()) else {
            return Err(refused());
        };
        Ok(DatasetSpec::new(name, samples, shard_len))
    };
    Ok((folder.into(), address, arguments.map(dataset).collect::<Result<_, _>>()?))
}
