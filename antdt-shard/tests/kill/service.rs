//! The process that is killed, and what a machine that is lost takes with it.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use antdt_core::{DetRng, Generation};
use antdt_rt::JobClock;
use antdt_shard::journal::Segment;
use antdt_shard::runtime::{
    Catalog, FileStore, FileStoreError, FileStoreOptions, ShardServer, dataset_folder,
};
use antdt_shard::{DatasetSpec, Epochs, LedgerStore, Record, Recovery, Shuffle};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::Failure;
use crate::world::ServiceWorld;

/// Set for the process that is the service: the folder of its logs.
const FOLDER: &str = "ANTDT_KILL_FOLDER";
/// Samples of an epoch.
const SAMPLES: &str = "ANTDT_KILL_SAMPLES";
/// The file in a data set's folder that says how much of which segment is durable.
const MARK: &str = "mark";
/// Such a file while it is written.
const MARK_PART: &str = "mark.part";

/// So small that the log is compacted several times in each life.
const OPTIONS: FileStoreOptions = {
    let sync = antdt_shard::SyncPolicy::Every(std::time::Duration::from_millis(100));
    FileStoreOptions { sync, segment_bytes: 2_048 }
};

/// What this process is to serve, if it is the service.
pub(crate) fn asked() -> Option<(PathBuf, DatasetSpec)> {
    let folder = std::env::var_os(FOLDER)?.into();
    let samples = std::env::var(SAMPLES).ok()?.parse().ok()?;
    Some((folder, spec(samples)))
}

/// The data set with so many samples in an epoch.
pub(crate) fn spec(samples: u64) -> DatasetSpec {
    DatasetSpec {
        epochs: Epochs::Finite(2),
        // So that what is missing of a shard says how far it is.
        shuffle: Shuffle::Shards,
        max_leases_per_holder: 4,
        ..DatasetSpec::new("kill", samples, 32)
    }
}

/// The service, until it is killed or its parent is gone.
pub(crate) async fn serve(folder: &Path, spec: DatasetSpec) -> Result<(), Failure> {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(1);
    });
    let root = folder.to_owned();
    let catalog = Catalog::new(JobClock::start(), move |spec| {
        let folder = dataset_folder(&root, &spec.name);
        Ok(Marked { inner: FileStore::open(&folder, spec.clone(), OPTIONS)?, folder })
    });
    catalog.open(spec).await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    let server = ShardServer::new().with_catalog(catalog).into_service();
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Ok(Server::builder().add_service(server).serve_with_incoming(incoming).await?)
}

/// Starts the service and waits for its address.
pub(crate) fn start(folder: &Path, spec: &DatasetSpec) -> Result<(Child, String), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(FOLDER, folder).env(SAMPLES, spec.num_samples.to_string());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let stdout = child.stdout.take().ok_or("the output is piped")?;
    let mut address = String::new();
    BufReader::new(stdout).read_line(&mut address)?;
    if address.is_empty() {
        return Err(format!("the service did not start: {}", child.wait()?).into());
    }
    Ok((child, address.trim().to_owned()))
}

/// A store that writes down what its contract says to be durable: when an append of a generation or a fence has
/// returned, all before it is.
struct Marked {
    inner: FileStore,
    folder: PathBuf,
}

impl LedgerStore for Marked {
    type Error = FileStoreError;

    async fn load(&mut self, recovery: Recovery) -> Result<Recovery, FileStoreError> {
        self.inner.load(recovery).await
    }

    async fn append(&mut self, records: &[Record]) -> Result<(), FileStoreError> {
        self.inner.append(records).await?;
        let urgent = |record: &Record| {
            matches!(record, Record::GenerationStarted { .. } | Record::Fenced { .. } | Record::Restored(_))
        };
        if records.iter().any(urgent)
            && let Some((segment, len)) = newest_segment(&self.folder)
        {
            // The mark before holds until this one is whole, whenever the process is killed.
            let (mark, part) = (self.folder.join(MARK), self.folder.join(MARK_PART));
            let _ = fs::write(&part, format!("{} {len}", segment.display()))
                .and_then(|()| fs::rename(part, mark));
        }
        Ok(())
    }
}

/// The segment with the highest number, and its length.
fn newest_segment(folder: &Path) -> Option<(PathBuf, u64)> {
    let entries = fs::read_dir(folder).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let segment = entries.filter(|path| path.extension().is_some_and(|e| e == "journal")).max()?;
    let len = fs::metadata(&segment).ok()?.len();
    Some((segment, len))
}

/// Bytes of a segment that are durable by all that was promised.
fn durable(folder: &Path, segment: &Path) -> Result<u64, Failure> {
    // The head says how much of it was, before it was used; see the table in `journal`.
    let mut head = [0; 22];
    File::open(segment)?.read_exact(&mut head)?;
    let base = u64::from_le_bytes(head[14..].try_into()?);
    let mark = fs::read_to_string(folder.join(MARK)).unwrap_or_default();
    let marked = match mark.split_whitespace().collect::<Vec<_>>()[..] {
        [path, len] if Path::new(path) == segment => len.parse()?,
        _ => 0,
    };
    Ok(base.max(marked))
}

/// The service was killed, and its machine with it: of what was not durable some is gone, from a random byte on, or is
/// something else. Nothing more is promised than what can still be read.
pub(crate) fn lose_machine(
    root: &Path,
    generation: Generation,
    world: &ServiceWorld,
    rng: &mut DetRng,
) -> Result<(), Failure> {
    let folder = dataset_folder(root, "kill");
    let (segment, len) = newest_segment(&folder).ok_or("the service has begun a segment")?;
    let durable = durable(&folder, &segment)?;
    let cut = durable + rng.below(len - durable + 1);
    let mut file = OpenOptions::new().write(true).open(&segment)?;
    file.set_len(cut)?;
    if rng.below(2) == 0 {
        file.seek(SeekFrom::End(0))?;
        let garbage: Vec<u8> = (cut..len).map(|_| rng.next_u64() as u8).collect();
        file.write_all(&garbage)?;
    }
    let (_, recovery) = Segment::fold(&fs::read(&segment)?, Recovery::new(world.spec().clone())?)?;
    world.take_back(generation, &recovery.finish(Generation(u64::MAX))?, len - cut)
}
