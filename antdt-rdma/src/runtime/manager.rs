//! Connecting the queue pairs of a group by the connection manager of the RDMA stack. What is to be done when is decided by
//! `verbs::Handshakes`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use antdt_collective::runtime::transport::tcp::{Ended, TcpTransport};
use antdt_collective::runtime::transport::{Exchange, Transport};
use antdt_collective::{AbortHandle, CollectiveError, Group};
use antdt_core::Rank;

use super::adapter::Adapter;
use super::plane::failed;
use super::result::VerbsError;
use super::safe::{Connection, ConnectionKey, Event, Events, QueuePair};
use crate::verbs::{Endpoint, HandshakeStep, Handshakes, Mtu, Retries, ip_of};

/// The place where this member takes calls.
pub(super) struct Manager {
    events: Arc<Events>,
    at: IpAddr,
    /// The number that callers need besides the adapter's address.
    pub(super) service: u16,
    _calls: Connection,
}

/// A queue pair that is ready to be connected, and the peer's.
pub(super) struct Ends<'a> {
    pub(super) rank: Rank,
    pub(super) pair: &'a QueuePair,
    pub(super) remote: Endpoint,
    /// The longest packet that both adapters take.
    pub(super) mtu: Mtu,
}

/// The connections of a group in the making.
struct Making<'a> {
    manager: &'a Manager,
    adapter: &'a Adapter,
    group: &'a Group,
    ends: &'a [Ends<'a>],
    retry: Retries,
    deadline: Instant,
    handshakes: Handshakes,
    // By rank.
    connections: Vec<Option<Connection>>,
}

/// Why a connection does not come about.
enum Trouble {
    /// The manager says so of the connection with this member.
    Refused(Rank, String),
    Failed(CollectiveError),
}

impl From<CollectiveError> for Trouble {
    fn from(error: CollectiveError) -> Self {
        Self::Failed(error)
    }
}

impl Manager {
    /// Takes calls of so many members at the address of an adapter.
    ///
    /// # Errors
    /// If the system has no manager, or the adapter no address that it knows.
    pub(super) fn listen(adapter: &Adapter, members: u32) -> Result<Self, VerbsError> {
        let at = adapter.port.ethernet.then(|| ip_of(adapter.address.gid)).flatten();
        let at = at.ok_or_else(|| VerbsError::NoManager {
            why: format!(
                "{} has no IP address that other hosts reach; give its interface one, or choose `rdma`",
                adapter.device.name()
            ),
        })?;
        let events = Events::open()?;
        let calls = Connection::new(&events)?;
        let service = calls.listen(at, members)?;
        Ok(Self { events, at, service, _calls: calls })
    }

    /// Connects all queue pairs. They stay connected as long as what is returned lives, and until they are given up.
    pub(super) fn connect(
        &self,
        tcp: &mut TcpTransport,
        call: &Exchange,
        abort: &AbortHandle,
        adapter: &Adapter,
        ends: &[Ends<'_>],
        retry: Retries,
    ) -> Result<Vec<Connection>, CollectiveError> {
        let group = tcp.group().clone();
        let mut queue_pairs = vec![0; group.world() as usize];
        for end in ends {
            queue_pairs[end.rank.0 as usize] = end.remote.queue_pair;
        }
        let mut making = Making {
            manager: self,
            adapter,
            group: &group,
            ends,
            retry,
            deadline: call.deadline,
            handshakes: Handshakes::new(group.membership().0, group.me(), queue_pairs),
            connections: (0..group.world()).map(|_| None).collect(),
        };
        match making.run(tcp, call, abort) {
            Ok(()) => Ok(making.connections.into_iter().flatten().collect()),
            Err(ended) => {
                let late = making.handshakes.missing().next().unwrap_or(group.me());
                let late = CollectiveError::Timeout {
                    peer: group.holder(late),
                    at: call.tag,
                    waited: call.started.elapsed(),
                    missing: 0,
                };
                let ended = tcp.settle(call, ended, late);
                Err(tcp.conclude_beside(call, ended))
            }
        }
    }

    #[cfg(test)]
    pub(super) const fn address(&self) -> SocketAddr {
        SocketAddr::new(self.at, self.service)
    }

    #[cfg(test)]
    pub(super) const fn events(&self) -> &Arc<Events> {
        &self.events
    }
}

impl Making<'_> {
    fn run(&mut self, tcp: &mut TcpTransport, call: &Exchange, abort: &AbortHandle) -> Result<(), Ended> {
        tcp.begin_beside(call);
        self.begin()?;
        loop {
            while let Some(event) = self.manager.events.next().map_err(|error| self.error(None, &error))? {
                match self.take(event) {
                    Ok(()) => {}
                    Err(Trouble::Failed(error)) => return Err(error.into()),
                    Err(Trouble::Refused(rank, why)) => {
                        // A peer that is gone may have said why.
                        return Err(tcp.hears_why(rank).unwrap_or_else(|| {
                            let what =
                                format!("connecting with {} by librdmacm: {why}", self.group.holder(rank));
                            let kind = std::io::ErrorKind::ConnectionRefused;
                            Ended::Failed(CollectiveError::Io { what, kind })
                        }));
                    }
                }
            }
            let Some(missing) = self.handshakes.missing().next() else { return Ok(()) };
            if let Some(error) = abort.error() {
                return Err(error.into());
            }
            if let Some(gone) = self.handshakes.missing().find(|rank| tcp.is_closed(*rank)) {
                return Err(Ended::Gone(gone));
            }
            if Instant::now() >= call.deadline {
                return Err(Ended::Silent(CollectiveError::Timeout {
                    peer: self.group.holder(missing),
                    at: call.tag,
                    waited: call.started.elapsed(),
                    missing: 0,
                }));
            }
            tcp.sleep_beside(call, call.deadline, self.manager.events.descriptor())?;
        }
    }

    // Asks for the addresses of all that are to be called.
    fn begin(&mut self) -> Result<(), CollectiveError> {
        for rank in self.handshakes.calls() {
            let Endpoint { gid, service, .. } = self.end(rank).remote;
            let to = ip_of(gid).ok_or_else(|| CollectiveError::Corrupt {
                peer: self.group.holder(rank),
                what: "an address without a meaning for the connection manager".to_owned(),
            })?;
            let connection =
                Connection::new(&self.manager.events).map_err(|error| self.error(Some(rank), &error))?;
            connection
                .ask_address(self.manager.at, SocketAddr::new(to, service), self.left())
                .map_err(|error| self.error(Some(rank), &error))?;
            self.connections[rank.0 as usize] = Some(connection);
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<(), Trouble> {
        match event {
            Event::Other => {}
            Event::Request(connection, said, queue_pair) => {
                let Some(rank) = self.handshakes.requested(&said, queue_pair) else {
                    connection.refuse();
                    return Ok(());
                };
                self.attach(rank, &connection)?;
                let own = self.end(rank).pair.number();
                connection.answer(own).map_err(|error| self.error(Some(rank), &error))?;
                self.connections[rank.0 as usize] = Some(connection);
            }
            Event::Failed(key, why) => {
                let refused = self.rank_of(key).filter(|rank| self.is_missing(*rank));
                return refused.map_or(Ok(()), |rank| Err(Trouble::Refused(rank, why)));
            }
            Event::Of(key, report) => {
                let Some(rank) = self.rank_of(key) else { return Ok(()) };
                let step = self.handshakes.reported(rank, report);
                let step = step.map_err(|error| Trouble::Refused(rank, error.to_string()))?;
                self.go(rank, step)?;
            }
        }
        Ok(())
    }

    fn go(&self, rank: Rank, step: HandshakeStep) -> Result<(), CollectiveError> {
        let Some(connection) = &self.connections[rank.0 as usize] else { return Ok(()) };
        let end = self.end(rank);
        let done = match step {
            HandshakeStep::Nothing => Ok(()),
            HandshakeStep::AskWay => connection.ask_way(self.left()),
            HandshakeStep::Call => {
                let greeting = self.handshakes.greeting(rank);
                connection.call(end.pair.number(), &greeting.encode())
            }
            HandshakeStep::Confirm => {
                self.attach(rank, connection)?;
                connection.confirm()
            }
        };
        done.map_err(|error| self.error(Some(rank), &error))
    }

    // Connects the queue pair: the peer may write from now on.
    fn attach(&self, rank: Rank, connection: &Connection) -> Result<(), CollectiveError> {
        let end = self.end(rank);
        let name = self.adapter.device.name();
        // The manager chooses by the system's routes.
        match connection.adapter() {
            Some((device, port)) if (&*device, port) == (name, self.adapter.port.number) => {}
            other => {
                let peer = self.group.holder(rank);
                let other = other
                    .map_or_else(|| "none".to_owned(), |(device, port)| format!("{device}, port {port}"));
                let what = format!("librdmacm reaches {peer} through {other}, and this member chose {name}");
                return Err(CollectiveError::Io { what, kind: std::io::ErrorKind::NotFound });
            }
        }
        let connected = connection.way().and_then(|mut way| {
            way.mtu = way.mtu.of_path(end.mtu);
            end.pair.connect(&way, self.retry)
        });
        connected.map_err(|error| self.error(Some(rank), &error))
    }

    fn end(&self, rank: Rank) -> &Ends<'_> {
        self.ends.iter().find(|end| end.rank == rank).expect("a queue pair for every other member")
    }

    fn rank_of(&self, key: ConnectionKey) -> Option<Rank> {
        let same = |connection: &Connection| connection.key() == key;
        let mut ranks = (0..).map(Rank).zip(&self.connections);
        ranks.find(|(_, made)| made.as_ref().is_some_and(same)).map(|(rank, _)| rank)
    }

    fn is_missing(&self, rank: Rank) -> bool {
        self.handshakes.missing().any(|missing| missing == rank)
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn error(&self, with: Option<Rank>, error: &VerbsError) -> CollectiveError {
        match with {
            Some(rank) => failed(&format!("connecting with {} by librdmacm", self.group.holder(rank)), error),
            None => failed("asking librdmacm", error),
        }
    }
}
