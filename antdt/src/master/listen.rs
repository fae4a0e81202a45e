//! Opens the port of a job's master, and finds the address at which nodes reach it.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use antdt_core::{Connections, NodeId};
use antdt_launch::Launcher;
use antdt_proto::Token;
use tokio::net::{TcpListener, TcpStream};

use super::JobError;
use super::prepare::Prepared;
use crate::job::JobSpec;
use crate::{net, protection, random};

/// How long the answer of a name service may take, and a connection to the advertised address to be made.
const REACH_LIMIT: Duration = Duration::from_secs(5);

/// How long the advertised name may be unknown: where a platform starts a job, its name follows.
const NAME_LIMIT: Duration = Duration::from_secs(30);

/// Pause between two questions for a name.
const NAME_PAUSE: Duration = Duration::from_millis(500);

/// The open port of a master, which answers no call yet.
pub(super) struct Listening {
    pub(super) listener: TcpListener,
    pub(super) local: SocketAddr,
    /// The master as nodes address it.
    pub(super) master: String,
    /// The secret that nodes show.
    pub(super) token: Token,
    /// Whether its nodes encrypt what they send, by that secret.
    pub(super) tls: bool,
    /// What wraps the connections that it takes.
    pub(super) connections: Connections,
    /// Whether the job's last master was elsewhere. Nodes know one address; those of a master elsewhere cannot find this one.
    pub(super) moved: bool,
}

/// Opens the port.
pub(super) async fn listen(
    prepared: &Prepared,
    launcher: &mut dyn Launcher,
    of_program: &Connections,
) -> Result<Listening, JobError> {
    let Prepared { begun, taken, .. } = prepared;
    let spec = &begun.spec;
    let port = taken.as_ref().map_or(spec.master_port, |taken| taken.file.port);
    let listen = |source| refused(spec, port, source);
    let ip = net::bind_address(&spec.bind).map_err(listen)?;
    let listener = match TcpListener::bind(&spec.ports(ip, port)[..]).await {
        // The last master was put out by etcd, and its process has not ended yet.
        Err(error) if error.kind() == ErrorKind::AddrInUse && taken.is_some() && spec.elect.is_some() => {
            TcpListener::bind((ip, 0)).await.map_err(listen)?
        }
        bound => bound.map_err(listen)?,
    };
    let local = listener.local_addr().map_err(listen)?;
    let master = match &spec.advertise {
        Some(host) => {
            // A successor has the address of the master before it.
            if taken.is_none() {
                let machine = crate::host::name();
                let is_here = |worker| launcher.place(NodeId::worker(worker)).as_ref() == Some(&machine);
                let here = (0..spec.workers).all(is_here);
                reach(host, local, here).await?;
            }
            net::join(host, local.port())
        }
        None if ip.is_unspecified() => return Err(JobError::Advertise { bind: spec.bind.clone() }),
        None => local.to_string(),
    };
    let moved = taken.as_ref().is_some_and(|taken| taken.address != master);
    let token = match taken {
        None => secret()?,
        Some(taken) => taken.token.clone(),
    };
    let tls = *of_program == Connections::default() && protection::is_due(spec, ip);
    let connections = if tls { protection::by_secret(token.text())? } else { of_program.clone() };
    Ok(Listening { listener, local, master, token, tls, connections, moved })
}

/// Why this process cannot listen at a port that it wants; 0 is any that the job may have.
pub(super) fn refused(spec: &JobSpec, port: u16, source: io::Error) -> JobError {
    match spec.port_range {
        Some(range) if port == 0 && source.kind() == ErrorKind::AddrInUse => JobError::PortsTaken { range },
        _ => JobError::Listen { address: net::join(&spec.bind, port), source },
    }
}

/// Checks that nodes can reach this master, which listens at `local`, as `host`. Nodes of other machines may take a way that this
/// one does not have, so that a failure to connect is a warning unless all nodes are `here`.
async fn reach(host: &str, local: SocketAddr, here: bool) -> Result<(), JobError> {
    let refused = |why: String| JobError::Unreachable { host: host.to_owned(), why };
    // Without nodes elsewhere no platform is still to make the name known.
    let patience = if here { Duration::ZERO } else { NAME_LIMIT };
    let address = known(host, local, patience).await.map_err(refused)?;
    if !here && address.ip().is_loopback() && !local.ip().is_loopback() {
        return Err(refused(format!(
            "it is {} on this machine, where nodes of other machines reach themselves; advertise an address that they reach, or correct the name in /etc/hosts",
            address.ip()
        )));
    }
    let why = match tokio::time::timeout(REACH_LIMIT, TcpStream::connect(address)).await {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(error)) => format!("this machine does not reach its own port at {address}: {error}"),
        Err(_) => format!("this machine does not reach its own port at {address} within {REACH_LIMIT:?}"),
    };
    if here {
        return Err(refused(why));
    }
    tracing::warn!("--advertise = {host}: {why}; the nodes of other machines may");
    Ok(())
}

/// Resolves a name that may not be known yet, for which it asks again until `patience` is over.
async fn known(host: &str, local: SocketAddr, patience: Duration) -> Result<SocketAddr, String> {
    let began = tokio::time::Instant::now();
    let mut is_said = false;
    loop {
        let address = net::join(host, local.port());
        let resolve = tokio::task::spawn_blocking(move || net::resolve(&address, local.ip()));
        let why = match tokio::time::timeout(REACH_LIMIT, resolve).await {
            Ok(Ok(Ok(found))) => return Ok(found),
            Ok(Ok(Err(error))) => format!("it has no address: {error}"),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it was not resolved within {REACH_LIMIT:?}"),
        };
        if began.elapsed() + NAME_PAUSE >= patience {
            return Err(why);
        }
        if !std::mem::replace(&mut is_said, true) {
            tracing::warn!("--advertise = {host}: {why}; asking again for up to {patience:?}");
        }
        tokio::time::sleep(NAME_PAUSE).await;
    }
}

/// A new secret.
fn secret() -> Result<Token, JobError> {
    let text = random::hex::<16>();
    let text =
        text.map_err(|error| JobError::Master(format!("the system gives no random bytes: {error}")))?;
    Ok(Token::new(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_of_this_machine_alone_is_refused_where_nodes_are_elsewhere() {
        let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
        let local = listener.local_addr().unwrap();
        let why = reach("localhost", local, false).await.unwrap_err().to_string();
        assert!(why.contains("localhost") && why.contains("it is 127.0.0.1 on this machine"), "{why}");
        reach("localhost", local, true).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn master_asks_for_an_unknown_name_until_its_patience_is_over() {
        let local = "127.0.0.1:80".parse().unwrap();
        let began = tokio::time::Instant::now();
        let why = known("no-such-host.invalid", local, NAME_LIMIT).await.unwrap_err();
        assert!(why.starts_with("it has no address: ") || why.contains("not resolved"), "{why}");
        assert!(began.elapsed() + NAME_PAUSE >= NAME_LIMIT, "of the paused clock");
    }
}
