//! A job over several hosts, each of which runs the same command, as torchrun is called: the first host opens a gate and has the master,
//! the others join through it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use antdt_core::registry::BuildError;
use antdt_core::text::format_duration;
use antdt_core::{Connections, InvalidValue};
use antdt_launch::runtime as launcher;
use antdt_launch::runtime::join::{
    GateConfig, HostConfig, HostGate, HostJoinError, HostNotice, HostWatch, join,
};
use antdt_launch::runtime::source::{self, HostEvent, HostSource, SourceContext, SourceFactory, SourceParts};
use antdt_rt::CancellationToken;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::job::JobSpec;
use crate::{host, net, protection, secret};

/// Port of the gate unless the endpoint names one: torchrun's.
const PORT: u16 = 29400;

/// How long the job waits for more hosts once there are enough; torchrun's last call.
const LAST_CALL: Duration = Duration::from_secs(30);

/// How often it says for what it waits.
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// The part of this process in such a job.
#[derive(Debug)]
pub(crate) enum Part {
    /// It opens the gate at this address, joins as this host, and has the master.
    First(SocketAddr, HostConfig),
    /// It joins.
    Guest(HostConfig),
}

/// Returns the part of this process; `None` if the job is of this host alone. Waits for the file with the secret of the job, which the
/// first host writes if there is none.
///
/// # Errors
/// If the settings do not fit together, or a file of them cannot be read.
pub(crate) fn part(spec: &JobSpec, say: impl Fn(&str)) -> Result<Option<Part>, InvalidValue> {
    let Some(endpoint) = &spec.rdzv_endpoint else {
        if spec.nnodes.most > 1 {
            let expected =
                format!("given with --nnodes {}: HOST:PORT of the first host, the same on all", spec.nnodes);
            return Err(InvalidValue::new("--rdzv-endpoint", "(nothing)", expected));
        }
        return Ok(None);
    };
    if spec.launcher != launcher::DEFAULT {
        let expected = "left out with --rdzv-endpoint: the hosts that join start the nodes";
        return Err(InvalidValue::new("--launcher", &spec.launcher, expected));
    }
    let endpoint = with_port(endpoint)?;
    let address = net::resolve(&endpoint, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let provided = spec.built_host_source().map_err(|error| refused(spec, &error))?;
    let are_provided = provided.is_some_and(|source| (source.names)(spec.nnodes.most).is_some());
    let is_first = match spec.node_rank {
        Some(rank) => rank == 0,
        None => are_provided || address.as_ref().is_ok_and(|address| is_ours_and_free(*address)),
    };
    check_trust(spec, address.as_ref().ok())?;
    let file = spec.rdzv_secret_file.as_deref();
    if !is_first {
        let secret = file.map(|file| secret::await_made(file, spec.rdzv_timeout, say)).transpose()?;
        return Ok(Some(Part::Guest(guest(spec, endpoint, secret)?)));
    }
    let unknown = |error: io::Error| {
        let expected = format!("the address or a name of this host, which is the first one ({error})");
        InvalidValue::new("--rdzv-endpoint", &endpoint, expected)
    };
    let address = address.map_err(unknown)?;
    check_reachable(spec, &endpoint, address)?;
    let secret = file.map(secret::read_or_make).transpose()?;
    Ok(Some(Part::First(address, guest(spec, endpoint, secret)?)))
}

fn refused(spec: &JobSpec, error: &BuildError) -> InvalidValue {
    match error {
        BuildError::Setting(error) => error.clone(),
        other => InvalidValue::new(
            "--host-source",
            spec.host_source.as_deref().unwrap_or_default(),
            other.to_string(),
        ),
    }
}

/// Returns how this host joins the running job at its endpoint, which grows by it.
///
/// # Errors
/// If the settings do not fit together, or a file of them cannot be read.
pub(crate) fn added(spec: &JobSpec) -> Result<HostConfig, InvalidValue> {
    let endpoint = with_port(spec.rdzv_endpoint.as_deref().unwrap_or_default())?;
    let address = net::resolve(&endpoint, IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    check_trust(spec, address.as_ref().ok())?;
    let secret = spec.rdzv_secret_file.as_deref().map(secret::read).transpose()?;
    Ok(HostConfig { adds: true, ..guest(spec, endpoint, secret)? })
}

/// A name of the first host that leads to its loopback interface there, as `/etc/hosts` of some systems has it, leads no other host to it.
fn check_reachable(spec: &JobSpec, endpoint: &str, address: SocketAddr) -> Result<(), InvalidValue> {
    let is_meant = endpoint.starts_with("localhost:") || endpoint.parse::<SocketAddr>().is_ok();
    if spec.nnodes.most == 1 || !address.ip().is_loopback() || is_meant {
        return Ok(());
    }
    let expected = format!(
        "an address at which the others reach this host; here the name leads to {}: give an address, or another name",
        address.ip()
    );
    Err(InvalidValue::new("--rdzv-endpoint", endpoint, expected))
}

/// Whoever has no secret of the job must have said that none is wanted.
fn check_trust(spec: &JobSpec, endpoint: Option<&SocketAddr>) -> Result<(), InvalidValue> {
    let is_loopback = endpoint.is_some_and(|address| address.ip().is_loopback());
    if spec.insecure || is_loopback || spec.rdzv_secret_file.is_some() {
        return Ok(());
    }
    let expected = "given, a file with the same secret on all hosts, or --insecure to trust whoever reaches or has the port";
    Err(InvalidValue::new("--rdzv-secret-file", "(nothing)", expected))
}

/// `HOST:PORT`, with torchrun's port if none is named.
fn with_port(endpoint: &str) -> Result<String, InvalidValue> {
    let (name, port) = match endpoint.rsplit_once(':') {
        // An IPv6 address has several colons, and brackets before a port.
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            let expected = "HOST:PORT, such as 10.0.0.1:29400 or node-0:29400";
            let port = port.parse().map_err(|_| InvalidValue::new("--rdzv-endpoint", endpoint, expected))?;
            (name, port)
        }
        _ => (endpoint, PORT),
    };
    Ok(net::join(&net::host("--rdzv-endpoint", name)?, port))
}

/// Whether an address is one of this machine, with nobody at the port.
fn is_ours_and_free(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_ok()
}

fn guest(spec: &JobSpec, gate: String, secret: Option<String>) -> Result<HostConfig, InvalidValue> {
    let program = std::env::current_exe().map_err(|error| {
        InvalidValue::new("the program", "(unknown)", format!("found by the system ({error})"))
    })?;
    let connections = match &secret {
        Some(secret) if !spec.insecure => protection::by_secret(secret)?,
        _ => Connections::default(),
    };
    Ok(HostConfig {
        gate,
        name: spec.host_name.clone().unwrap_or_else(host::name),
        address: spec.local_addr.clone(),
        slots: spec.workers,
        rank: spec.node_rank,
        adds: false,
        connections,
        secret: secret.unwrap_or_default(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        program,
        patience: spec.rdzv_timeout,
    })
}

/// Takes part in a job that another host has begun, until it is over or `stop` is cancelled.
///
/// # Errors
/// See [`join`].
pub(crate) async fn visit(
    config: HostConfig,
    grace: Duration,
    stop: CancellationToken,
    say: impl Fn(&str),
) -> Result<(), HostJoinError> {
    let HostConfig { gate, name, slots, .. } = config.clone();
    say(&format!("host {name} joins the job at {gate} with {slots} workers"));
    let leave = async move {
        stop.cancelled().await;
        grace
    };
    let notice = |notice| match notice {
        HostNotice::Joined { address } => {
            say(&format!("joined; workers of this host are reached at {address}"));
        }
        HostNotice::Away { why } => say(&format!(
            "{gate} is out of reach: {why}; the workers of this host go on, and it is tried again"
        )),
    };
    join(config, leave, notice).await
}

/// Says a line of a job to its user.
pub(crate) type Say = Arc<dyn Fn(&str) + Send + Sync>;

/// The first host of a job, with the others.
pub(crate) struct Gathered {
    pub(crate) gate: HostGate,
    hosts: HostWatch,
    /// This host, as one of those that have joined; `None` if it takes no workers.
    here: Option<JoinHandle<Result<(), HostJoinError>>>,
    /// What starts hosts, with the token that ends it.
    kept: Option<(JoinHandle<Box<dyn HostSource>>, CancellationToken)>,
    /// Why no host can be started, once that is so.
    failed: watch::Receiver<Option<String>>,
}

/// The names of hosts that a source provides, with the workers of each, and whether they come by themselves for the first time.
type Sought = (BTreeMap<String, u32>, bool);

impl Gathered {
    /// Opens the gate, joins through it unless all hosts come from a source, and waits for the hosts that the settings ask for.
    ///
    /// # Errors
    /// If the port cannot be opened, or too few hosts have come in time; `None` if `stop` is cancelled meanwhile.
    pub(crate) async fn open(
        spec: &JobSpec,
        (address, here): (SocketAddr, HostConfig),
        stop: &CancellationToken,
        say: &Say,
    ) -> anyhow::Result<Option<Self>> {
        let source = spec.built_host_source()?;
        let HostConfig { secret, connections, version, program, .. } = here.clone();
        let opened = HostGate::open(address, GateConfig { secret, connections, version, program }).await;
        let gate = opened.map_err(|error| {
            let expected = "an address of this host and a free port";
            InvalidValue::new("--rdzv-endpoint", format!("{address}: {error}"), expected)
        })?;
        let local = gate.local().to_string();
        let provided = source.as_ref().and_then(|source| (source.names)(spec.nnodes.most));
        let here = provided.is_none().then(|| {
            let rank = Some(spec.node_rank.unwrap_or(0));
            let here = HostConfig { gate: local.clone(), rank, ..here };
            tokio::spawn(join(here, std::future::pending(), |_| {}))
        });
        let failed = watch::channel(None).1;
        let mut gathered = Self { hosts: gate.watch(), gate, here, kept: None, failed };
        if let (Some(SourceParts { factory, .. }), Some(names)) = (&source, provided) {
            let hosts = names.into_iter().map(|name| (name, spec.workers)).collect();
            gathered.keep(factory, (spec, stop), (hosts, false), say)?;
        }
        let ready = tokio::select! {
            ready = gathered.wait(spec, &local, say) => Some(ready),
            () = stop.cancelled() => None,
        };
        let Some(Ok(())) = ready else {
            gathered.close().await;
            return ready.transpose().map(|_| None);
        };
        gathered.gate.begin(spec.nnodes.most);
        if let Some(SourceParts { factory, .. }) = source.filter(|_| gathered.kept.is_none()) {
            let hosts = gathered.hosts.hosts().into_iter().collect();
            gathered.keep(&factory, (spec, stop), (hosts, true), say)?;
        }
        Ok(Some(gathered))
    }

    async fn wait(&self, spec: &JobSpec, local: &str, say: &Say) -> anyhow::Result<()> {
        let (count, began) = (spec.nnodes, Instant::now());
        let (mut said, mut said_at, mut enough_since) = (u32::MAX, began, None);
        loop {
            let there = u32::try_from(self.hosts.hosts().len()).unwrap_or(u32::MAX);
            if there >= count.most {
                return Ok(());
            }
            enough_since = if there >= count.least { enough_since.or(Some(Instant::now())) } else { None };
            if enough_since.is_some_and(|since| since.elapsed() >= LAST_CALL) {
                return Ok(());
            }
            if let Some(why) = self.failed.borrow().clone() {
                return Err(anyhow::Error::msg(why));
            }
            if began.elapsed() >= spec.rdzv_timeout {
                let waited = format_duration(spec.rdzv_timeout);
                let remedy = match &self.here {
                    Some(_) => "start the same command on the others, and see that they reach the port",
                    None => "see above for what the others wait, and that they reach the port",
                };
                let why = format!(
                    "{there} of {count} hosts have come to {local} within {waited} (--rdzv-timeout); {remedy}"
                );
                return Err(io::Error::new(io::ErrorKind::TimedOut, why).into());
            }
            // This host itself takes a moment.
            if there > 0 && there != said || said_at.elapsed() >= SAY_AGAIN {
                (said, said_at) = (there, Instant::now());
                let awaited =
                    if self.here.is_some() { "the same command on the others" } else { "the others" };
                say(&format!("{there} of {count} hosts are at {local}; waiting for {awaited}"));
            }
            self.hosts.changed().await;
        }
    }

    /// The settings of the job over the hosts that are there.
    pub(crate) fn spec(&self, spec: &JobSpec) -> JobSpec {
        // One more is a spare, also if it has come before the job began.
        let hosts = self.hosts.hosts().into_iter().take(spec.nnodes.most as usize);
        let workers = hosts.map(|(_, slots)| slots).sum();
        let bind = match spec.bind == JobSpec::default().bind {
            true => self.gate.local().ip().to_string(),
            false => spec.bind.clone(),
        };
        let least = spec.workers.saturating_mul(spec.nnodes.least).min(workers);
        // What is said of a number of hosts is of this start alone.
        let JobSpec { nnodes, rdzv_endpoint, node_rank, host_source, .. } = JobSpec::default();
        let min_workers = spec.min_workers.max(least);
        JobSpec { workers, min_workers, bind, nnodes, rdzv_endpoint, node_rank, host_source, ..spec.clone() }
    }

    /// Has a source start hosts that are away.
    fn keep(
        &mut self,
        factory: &SourceFactory,
        (spec, stop): (&JobSpec, &CancellationToken),
        sought: Sought,
        say: &Say,
    ) -> Result<(), InvalidValue> {
        let (sink, events) = mpsc::unbounded_channel();
        let (fail, failed) = watch::channel(None);
        self.failed = failed;
        let source = factory(SourceContext {
            endpoint: self.gate.local().to_string(),
            secret: spec.rdzv_secret_file.clone(),
            events: Arc::new(move |event| {
                if let HostEvent::Failed { why } = &event {
                    fail.send_replace(Some(why.clone()));
                }
                drop(sink.send(event));
            }),
        })?;
        let (over, say) = (CancellationToken::new(), Arc::clone(say));
        let tokens = (stop.clone(), over.clone());
        let kept = source::keep((self.hosts.clone(), source), events, sought, tokens, move |line| say(line));
        self.kept = Some((tokio::spawn(kept), over));
        Ok(())
    }

    /// One line on the hosts.
    pub(crate) fn line(&self) -> String {
        let hosts: Vec<String> =
            self.hosts.hosts().into_iter().map(|(name, slots)| format!("{name} ({slots})")).collect();
        format!("workers by host: {}", hosts.join(", "))
    }

    /// Tells all hosts that the job is over, and stops what was started on them.
    pub(crate) async fn close(self) {
        let source = match self.kept {
            Some((kept, over)) => {
                over.cancel();
                kept.await.ok()
            }
            None => None,
        };
        self.gate.close().await;
        if let Some(source) = source {
            source.close().await;
        }
        // It has been told, too; its nodes have ended with the job.
        if let Some(here) = self.here {
            here.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn spec(settings: &[(&str, &str)]) -> JobSpec {
        let mut spec = JobSpec::default();
        for (name, text) in settings {
            spec.set(name, text).unwrap();
        }
        spec
    }

    #[test]
    fn endpoint_has_torchruns_port_unless_it_names_one() {
        for (text, expected) in [
            ("node-0", "node-0:29400"),
            ("node-0:7", "node-0:7"),
            ("10.0.0.1:7", "10.0.0.1:7"),
            ("::1", "[::1]:29400"),
            ("[::1]:7", "[::1]:7"),
        ] {
            assert_eq!(with_port(text).unwrap(), expected);
        }
        for text in ["node-0:x", "node-0:70000", "", ":7", "two words:7"] {
            assert!(with_port(text).unwrap_err().to_string().starts_with("--rdzv-endpoint"), "{text}");
        }
    }

    #[test]
    fn part_follows_from_the_rank_or_from_whose_address_the_endpoint_is() {
        let endpoint = ("rdzv-endpoint", "127.0.0.1:0");
        let is_first = |settings: &[(&str, &str)]| match part(&spec(settings), |_| {}).unwrap() {
            Some(Part::First(..)) => Some(true),
            Some(Part::Guest(_)) => Some(false),
            None => None,
        };
        assert_eq!(is_first(&[]), None);
        assert_eq!(is_first(&[endpoint]), Some(true));
        assert_eq!(is_first(&[endpoint, ("node-rank", "0")]), Some(true));
        assert_eq!(is_first(&[endpoint, ("node-rank", "1")]), Some(false));
        // An address of documentation (RFC 5737).
        assert_eq!(is_first(&[("rdzv-endpoint", "192.0.2.1:7"), ("insecure", "true")]), Some(false));
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(is_first(&[("rdzv-endpoint", &taken.local_addr().unwrap().to_string())]), Some(false));
    }

    #[test]
    fn name_that_leads_others_to_themselves_is_refused_by_its_address() {
        let address = "127.0.1.1:7".parse().unwrap();
        let two = spec(&[("nnodes", "2")]);
        let error = check_reachable(&two, "n1:7", address).unwrap_err().to_string();
        assert!(error.contains("the name leads to 127.0.1.1"), "{error}");
        for (spec, endpoint) in [(&two, "127.0.1.1:7"), (&two, "localhost:7"), (&spec(&[]), "n1:7")] {
            assert_eq!(check_reachable(spec, endpoint, address), Ok(()));
        }
        assert_eq!(check_reachable(&two, "n1:7", "10.0.0.1:7".parse().unwrap()), Ok(()));
    }

    #[test]
    fn settings_of_hosts_that_do_not_fit_together_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let empty = folder.path().join("empty");
        std::fs::write(&empty, " \n").unwrap();
        std::fs::set_permissions(&empty, Permissions::from_mode(0o600)).unwrap();
        let endpoint = ("rdzv-endpoint", "127.0.0.1:0");
        for (settings, says) in [
            (&[("nnodes", "2")][..], "--rdzv-endpoint = (nothing): must be given with --nnodes 2"),
            (&[endpoint, ("launcher", "ssh")], "--launcher = ssh: must be left out with --rdzv-endpoint"),
            (
                &[("rdzv-endpoint", "0.0.0.0:0"), ("node-rank", "0")],
                "--rdzv-secret-file = (nothing): must be given",
            ),
            (&[("rdzv-endpoint", "192.0.2.1:7")], "--rdzv-secret-file = (nothing): must be given"),
            (&[endpoint, ("rdzv-secret-file", empty.to_str().unwrap())], "a file with a secret in it"),
            (
                &[("rdzv-endpoint", "no-such-host.invalid:7"), ("node-rank", "0"), ("insecure", "true")],
                "a name of this host",
            ),
        ] {
            let error = part(&spec(settings), |_| {}).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
