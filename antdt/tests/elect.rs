//! Masters that elect through etcd: one that is killed, one that stands still, one that etcd does not hear, and one that alone is cut
//! off from it.
//!
//! What was trained is counted apart from the ledger, by the model of `examples/counting.rs`. Without an `etcd` in the path the
//! tests say that they are skipped.
#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "a failure here is the test's")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use antdt::checkpoint::Folder;
use antdt::report::Report;

/// Bound on any one wait here; all take seconds.
const LIMIT: Duration = Duration::from_secs(120);

const SAMPLES: u64 = 1_200;
const EPOCHS: u64 = 4;

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn signal(&self, signal: &str) {
        let pid = self.0.id().to_string();
        let sent = Command::new("kill").args([signal, &pid]).stderr(Stdio::null()).status();
        assert!(sent.unwrap().success());
    }

    /// Waits for its end. Returns whether it did well, and what it said on standard error.
    fn end(mut self) -> (bool, String) {
        let status = wait_for("the end of a process", || self.0.try_wait().unwrap());
        let mut said = String::new();
        let mut pipe = self.0.stderr.take().unwrap();
        pipe.read_to_string(&mut said).unwrap();
        (status.success(), said)
    }
}

fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(10));
    }
}

/// An etcd of one member, and its address.
fn etcd(folder: &Path) -> Option<(Process, String)> {
    const ANY: &str = "http://127.0.0.1:0";
    let mut command = Command::new("etcd");
    command.arg("--data-dir").arg(folder.join("etcd"));
    for flag in ["listen-client", "advertise-client", "listen-peer", "initial-advertise-peer"] {
        command.args([format!("--{flag}-urls"), ANY.to_owned()]);
    }
    command.args(["--initial-cluster", &format!("default={ANY}")]);
    command.args(["--election-timeout", "500", "--heartbeat-interval", "50"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = match command.spawn() {
        Ok(child) => Process(child),
        Err(error) => {
            eprintln!("skipped: etcd cannot be started: {error}");
            return None;
        }
    };
    let mut lines = BufReader::new(process.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let address = lines.by_ref().find_map(|line| {
        let (_, rest) = line.split_once("serving insecure client requests on ")?;
        Some(rest.split(',').next()?.to_owned())
    });
    // It goes on saying things.
    std::thread::spawn(move || lines.for_each(drop));
    Some((process, address.expect("etcd says where it listens")))
}

/// The counting program, which is `antdt` with one trainer more.
fn program(words: &[&str]) -> Process {
    let antdt = PathBuf::from(env!("CARGO_BIN_EXE_antdt"));
    let mut command = Command::new(antdt.parent().unwrap().join("examples/counting"));
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ANTDT_")) {
        command.env_remove(name);
    }
    command.env("XDG_STATE_HOME", env!("CARGO_TARGET_TMPDIR")).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Process(command.spawn().unwrap())
}

fn job(folder: &Path, etcd: &str, mode: &[&str]) -> Process {
    let (dir, elect, epochs) = (folder.join("report"), format!("etcd://{etcd}"), EPOCHS.to_string());
    let counting = ["run", "--workload", "counting", "--optimizer", "sums", "--global-batch-size", "24"];
    let rest = ["--policy", "none", "--emulate-speed", "100", "--checkpoint-every", "4steps", "--quiet"];
    let own = ["--report-dir", dir.to_str().unwrap(), "--elect", &elect, "--epochs", &epochs];
    program(&[&counting[..], &rest, &own, mode].concat())
}

/// A master in waiting, once it waits.
fn standby(folder: &Path) -> Process {
    let mut next = program(&["master", "--standby", folder.join("report").to_str().unwrap()]);
    let mut said = [0_u8; 11];
    next.0.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"waiting for");
    next
}

/// Number of the job's master, its process, and where it is.
fn master(folder: &Path) -> Option<(u64, u64, String)> {
    let text = std::fs::read_to_string(folder.join("report/run/master.json")).ok()?;
    let file: serde_json::Value = serde_json::from_str(&text).ok()?;
    Some((file["generation"].as_u64()?, file["pid"].as_u64()?, file["address"].as_str()?.to_owned()))
}

fn has_checkpoint(folder: &Path) -> Option<()> {
    Folder::open(folder.join("report/run/checkpoints")).ok()?.newest().ok()?.checkpoint.map(drop)
}

/// The master with this number, which another process is than the one before.
fn next_master(folder: &Path, number: u64, before: &Process) -> (u64, u64, String) {
    let found = wait_for("the next master", || master(folder).filter(|(now, ..)| *now == number));
    assert_ne!(found.1, u64::from(before.0.id()));
    found
}

/// The job ended well, and every sample is in the model once for each epoch.
fn is_exact(folder: &Path, last: Process) {
    let (good, said) = last.end();
    assert!(good, "{said}");
    let text = std::fs::read_to_string(folder.join("report/report.json")).unwrap();
    let report: Report = serde_json::from_str(&text).unwrap();
    assert!(
        report.samples.is_exact() && report.samples.committed == EPOCHS * SAMPLES,
        "{:?}",
        report.samples
    );
    let newest = Folder::open(folder.join("report/run/checkpoints")).unwrap().newest().unwrap();
    for portion in newest.checkpoint.unwrap().portions() {
        assert!(portion.unwrap().dense.iter().all(|count| *count == EPOCHS as f32));
    }
}

const MODES: [&[&str]; 2] = [
    &["--sync", "ps-bsp", "--servers", "2", "--nproc-per-node", "2"],
    &["--sync", "allreduce", "--nproc-per-node", "3"],
];

#[test]
fn a_master_that_is_killed_is_followed_by_one_that_etcd_elects() {
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let Some((_etcd, address)) = etcd(folder) else { return };
        let first = job(folder, &address, mode);
        wait_for("a checkpoint", || has_checkpoint(folder));
        let (one, two) = (standby(folder), standby(folder));
        let (_, _, at) = master(folder).unwrap();
        first.signal("-KILL");
        let (_, pid, moved) = next_master(folder, 2, &first);
        assert_eq!(at, moved, "nodes find it where the first one was");
        let (second, third) = if u64::from(one.0.id()) == pid { (one, two) } else { (two, one) };
        second.signal("-KILL");
        next_master(folder, 3, &second);
        is_exact(folder, third);
    }
}

#[test]
fn a_master_that_stands_still_is_followed_and_can_do_no_harm_when_it_goes_on() {
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let Some((_etcd, address)) = etcd(folder) else { return };
        let first = job(folder, &address, mode);
        wait_for("a checkpoint", || has_checkpoint(folder));
        let next = standby(folder);
        first.signal("-STOP");
        next_master(folder, 2, &first);
        first.signal("-CONT");
        let (good, said) = first.end();
        assert!(!good && said.contains("could not renew its lead"), "{said}");
        is_exact(folder, next);
    }
}

#[test]
fn a_master_that_etcd_does_not_hear_ends_by_itself_and_another_one_follows_once_it_does() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let Some((etcd, address)) = etcd(folder) else { return };
    let first = job(folder, &address, MODES[0]);
    wait_for("a checkpoint", || has_checkpoint(folder));
    let next = standby(folder);
    etcd.signal("-STOP");
    let (good, said) = first.end();
    assert!(!good && said.contains("could not renew its lead"), "{said}");
    assert_eq!(master(folder).unwrap().0, 1, "nobody leads whom etcd has not elected");
    etcd.signal("-CONT");
    wait_for("the next master", || master(folder).filter(|(number, ..)| *number == 2));
    is_exact(folder, next);
}

/// A way to etcd through this process.
struct Way {
    address: String,
    /// Nothing gets through any more over as many of its first connections.
    cut: Arc<AtomicUsize>,
    taken: Arc<AtomicUsize>,
}

impl Way {
    fn to(etcd: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let [cut, taken] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let (etcd, of) = (etcd.to_owned(), (Arc::clone(&cut), Arc::clone(&taken)));
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let number = of.1.fetch_add(1, Ordering::SeqCst);
                let Ok(far) = TcpStream::connect(&etcd) else { continue };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let cut = Arc::clone(&of.0);
                    std::thread::spawn(move || carry(from, to, || number < cut.load(Ordering::SeqCst)));
                }
            }
        });
        Self { address, cut, taken }
    }

    /// Connected clients hear nothing of etcd any more, and it not of them; later ones do.
    fn cut(&self) {
        self.cut.store(self.taken.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// Carries bytes one way, and drops them once the way is cut.
fn carry(mut from: TcpStream, mut to: TcpStream, is_cut: impl Fn() -> bool) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if !is_cut() && to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    if !is_cut() {
        // The other way has ended already, or ends by this.
        let _ = to.shutdown(Shutdown::Both);
    }
}

#[test]
fn a_master_that_alone_is_cut_off_from_etcd_ends_by_itself_and_another_one_goes_on() {
    for mode in MODES {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let Some((_etcd, address)) = etcd(folder) else { return };
        let way = Way::to(&address);
        let first = job(folder, &way.address, mode);
        wait_for("a checkpoint", || has_checkpoint(folder));
        let next = standby(folder);
        way.cut();
        let (good, said) = first.end();
        assert!(!good && said.contains("could not renew its lead"), "{said}");
        wait_for("the next master", || master(folder).filter(|(number, ..)| *number == 2));
        is_exact(folder, next);
    }
}

#[test]
fn a_job_whose_masters_cannot_elect_one_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    // Nothing listens there.
    let (good, said) = job(folder.path(), "127.0.0.1:1", MODES[0]).end();
    assert!(
        !good && said.starts_with("error: --elect: etcd at etcd://127.0.0.1:1/antdt does not answer"),
        "{said}"
    );
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}
