//! Connecting the members of a group: which rank connects to which, and how unknown and late callers are
//! refused.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use antdt_core::{Connections, Doorway, DoorwayLimits, LogLimit, Rank};
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;

use super::config::{TcpConfig, is_within_host};
use super::hello::{HELLO_LEN, Hello, connect_tag};
use super::link::Link;
use crate::error::CollectiveError;
use crate::group::{Group, JobToken};
use crate::runtime::abort::AbortHandle;
use crate::runtime::connection::{BulkListener, BulkStream, Dialling};
use crate::runtime::wait::wait;

/// Connections of memberships that this process has not reached yet. Each costs a descriptor; the oldest goes when
/// another comes.
const WAITING_MAX: usize = Group::WORLD_MAX;

/// The listening TCP socket at which other members reach this process. A process has one for all its groups.
#[derive(Debug)]
pub struct Listener {
    socket: BulkListener,
    job: JobToken,
    opened: Instant,
    waiting: Mutex<Waiting>,
}

/// Callers that no group has taken yet. They outlive a meeting that fails: the next one may be theirs.
#[derive(Debug)]
struct Waiting {
    // Have not identified themselves.
    callers: Doorway<Greeting>,
    errors: LogLimit,
    // Belong to a membership that this process has not reached.
    early: Vec<(Hello, BulkStream)>,
}

impl Default for Waiting {
    fn default() -> Self {
        let callers = Doorway::new(DoorwayLimits::default());
        Self { callers, errors: LogLimit::default(), early: Vec::new() }
    }
}

/// A connection whose hello is on its way in.
#[derive(Debug)]
struct Greeting {
    stream: BulkStream,
    bytes: [u8; HELLO_LEN],
    filled: usize,
}

enum Heard {
    Nothing,
    Hello(Hello),
    Closed,
}

impl Greeting {
    const fn new(stream: BulkStream) -> Self {
        Self { stream, bytes: [0; HELLO_LEN], filled: 0 }
    }

    // What comes after the hello stays in the socket.
    fn listen(&mut self) -> Heard {
        while self.filled < HELLO_LEN {
            match self.stream.read(&mut self.bytes[self.filled..]) {
                Ok(0) => return Heard::Closed,
                Ok(read) => self.filled += read,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Heard::Nothing,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Heard::Closed,
            }
        }
        Hello::decode(&self.bytes).map_or(Heard::Closed, Heard::Hello)
    }
}

/// How far a connection to a higher rank is.
#[derive(Debug)]
enum Call {
    Dialling(Dialling),
    Answering(Greeting),
    /// The network has no way to it, or it does not listen yet: dialled again then.
    Unreachable(Instant),
}

/// How long a member that could not be called is left alone. A link that was cut and is whole again stays unreachable for as
/// long as the system remembers that.
const REDIAL: Duration = Duration::from_millis(100);

impl Listener {
    /// Listens at `address`; port 0 takes any free port.
    ///
    /// # Errors
    /// If the address is in use or does not belong to this host.
    pub fn bind(address: SocketAddr, job: JobToken) -> Result<Self, CollectiveError> {
        Self::bind_with(address, job, Connections::default())
    }

    /// Listens as [`bind`](Self::bind) does. The process makes and accepts all its connections with other members as
    /// `connections` says, and so must they.
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn bind_with(
        address: SocketAddr,
        job: JobToken,
        connections: Connections,
    ) -> Result<Self, CollectiveError> {
        let socket = BulkListener::bind(address, connections)
            .map_err(|e| CollectiveError::io(&format!("listening at {address}"), &e))?;
        Ok(Self { socket, job, opened: Instant::now(), waiting: Mutex::default() })
    }

    /// Returns the address at which this process listens.
    pub const fn local_address(&self) -> SocketAddr {
        self.socket.local_address()
    }

    /// One connection to each other member, in order of rank; `None` for this process. Those of `kept` stay if the peer
    /// keeps its end as well; for the others, the lower rank calls. Without `kept`, this process is new, and others may not
    /// listen yet.
    pub(super) fn meet(
        &self,
        group: &Group,
        kept: Option<Vec<Option<Link>>>,
        config: TcpConfig,
        deadline: Instant,
        abort: &AbortHandle,
        scratch: &mut [u8],
    ) -> Result<Vec<Option<Link>>, CollectiveError> {
        let mut meeting = Meeting {
            listener: self,
            group,
            config,
            abort,
            scratch,
            started: Instant::now(),
            deadline,
            met: (0..group.world()).map(|_| None).collect(),
            is_new: kept.is_none(),
            kept: kept.unwrap_or_else(|| (0..group.world()).map(|_| None).collect()),
            calls: BTreeMap::new(),
            waiting: std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        let result = meeting.run();
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = meeting.waiting;
        result.map(|()| meeting.met)
    }
}

struct Meeting<'a> {
    listener: &'a Listener,
    group: &'a Group,
    config: TcpConfig,
    abort: &'a AbortHandle,
    // For unwanted bytes.
    scratch: &'a mut [u8],
    started: Instant,
    deadline: Instant,
    met: Vec<Option<Link>>,
    // Whether members that do not listen may be about to start.
    is_new: bool,
    // Connections of an older membership whose peers have not been heard in this one.
    kept: Vec<Option<Link>>,
    calls: BTreeMap<Rank, Call>,
    waiting: Waiting,
}

impl Meeting<'_> {
    fn run(&mut self) -> Result<(), CollectiveError> {
        let me = self.group.me();
        for rank in (0..self.group.world()).map(Rank).filter(|rank| *rank != me) {
            let hello = self.hello(rank).encode();
            match &mut self.kept[rank.0 as usize] {
                Some(link) => link.greet(&hello),
                None if rank > me => self.dial(rank)?,
                None => {}
            }
        }
        let mut index = 0;
        while let Some((hello, _)) = self.waiting.early.get(index) {
            if hello.membership > self.group.membership() {
                index += 1;
            } else {
                let (hello, stream) = self.waiting.early.remove(index);
                self.answer(hello, stream)?;
            }
        }
        loop {
            if let Some(error) = self.abort.error() {
                return Err(error);
            }
            self.advance_kept()?;
            self.advance_calls()?;
            // Heard before others come, for whom they might have to go.
            self.hear_callers()?;
            self.accept();
            self.flush_met()?;
            // A greeting that still waits behind the rest of an older message is never sent once this is over, and its
            // member would wait for it.
            let is_missing =
                |rank: &Rank| *rank != me && self.met[rank.0 as usize].as_ref().is_none_or(Link::has_mail);
            let Some(missing) = (0..self.group.world()).map(Rank).find(is_missing) else { return Ok(()) };
            if Instant::now() >= self.deadline {
                return Err(CollectiveError::Timeout {
                    peer: self.group.holder(missing),
                    at: connect_tag(self.group.membership()),
                    waited: self.started.elapsed(),
                    missing: HELLO_LEN as u64,
                });
            }
            self.sleep()?;
        }
    }

    fn closed(&self, rank: Rank) -> CollectiveError {
        let at = connect_tag(self.group.membership());
        CollectiveError::PeerClosed { peer: self.group.holder(rank), at }
    }

    fn hello(&self, to: Rank) -> Hello {
        Hello {
            membership: self.group.membership(),
            job: self.listener.job,
            fingerprint: self.group.fingerprint(),
            from: self.group.me(),
            to,
        }
    }

    fn dial(&mut self, rank: Rank) -> Result<(), CollectiveError> {
        let address = self.group.members()[rank.0 as usize].address;
        let dialling = match self.listener.socket.dial(address) {
            Ok(dialling) => dialling,
            Err(e) if self.may_pass(&e) => {
                self.dial_later(rank);
                return Ok(());
            }
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Err(self.closed(rank)),
            Err(e) => return Err(CollectiveError::io(&format!("connecting to {address}"), &e)),
        };
        self.calls.insert(rank, Call::Dialling(dialling));
        Ok(())
    }

    // Whether a member that cannot be called now may be reached later: one to which the network has no way, which passes when
    // a link is repaired, or one that has not started.
    fn may_pass(&self, error: &io::Error) -> bool {
        match error.kind() {
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => true,
            io::ErrorKind::ConnectionRefused => self.is_new,
            _ => false,
        }
    }

    fn dial_later(&mut self, rank: Rank) {
        self.calls.insert(rank, Call::Unreachable(Instant::now() + REDIAL));
    }

    // A peer that does not keep its end closes it, and calls or is called like a new one.
    fn advance_kept(&mut self) -> Result<(), CollectiveError> {
        let (me, tag) = (self.group.me(), connect_tag(self.group.membership()));
        for rank in (0..self.group.world()).map(Rank) {
            let Some(mut link) = self.kept[rank.0 as usize].take() else { continue };
            link.socket.writable = true;
            match link.flush().and_then(|()| link.greeting(&tag, self.scratch)) {
                Ok(Some(hello)) => {
                    self.agree(rank, &hello)?;
                    self.met[rank.0 as usize] = Some(link);
                }
                Ok(None) => self.kept[rank.0 as usize] = Some(link),
                Err(_) if rank > me => self.dial(rank)?,
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn flush_met(&mut self) -> Result<(), CollectiveError> {
        let mut gone = None;
        for (rank, link) in (0_u32..).map(Rank).zip(&mut self.met) {
            let Some(link) = link.as_mut().filter(|link| link.has_mail()) else { continue };
            link.socket.writable = true;
            if link.flush().is_err() {
                gone = Some(rank);
            }
        }
        gone.map_or(Ok(()), |rank| Err(self.closed(rank)))
    }

    fn link(&self, rank: Rank, stream: BulkStream) -> Link {
        let checksums = self.config.checksums(stream.socket());
        Link::new(stream, self.group.holder(rank), checksums)
    }

    fn advance_calls(&mut self) -> Result<(), CollectiveError> {
        for (rank, call) in std::mem::take(&mut self.calls) {
            let call = match call {
                Call::Dialling(dialling) => match self.listener.socket.dialled(dialling) {
                    Ok(Ok(mut stream)) => {
                        if prepare(&stream).and_then(|()| say(&mut stream, &self.hello(rank))).is_err() {
                            return Err(self.closed(rank));
                        }
                        Call::Answering(Greeting::new(stream))
                    }
                    Ok(Err(dialling)) => Call::Dialling(dialling),
                    Err(e) if self.may_pass(&e) => {
                        self.dial_later(rank);
                        continue;
                    }
                    Err(_) => return Err(self.closed(rank)),
                },
                Call::Unreachable(until) if Instant::now() >= until => {
                    self.dial(rank)?;
                    continue;
                }
                waiting @ (Call::Answering(_) | Call::Unreachable(_)) => waiting,
            };
            let Call::Answering(mut greeting) = call else {
                self.calls.insert(rank, call);
                continue;
            };
            match greeting.listen() {
                Heard::Nothing => {
                    self.calls.insert(rank, Call::Answering(greeting));
                }
                Heard::Closed => return Err(self.closed(rank)),
                Heard::Hello(hello) => {
                    self.agree(rank, &hello)?;
                    self.met[rank.0 as usize] = Some(self.link(rank, greeting.stream));
                }
            }
        }
        Ok(())
    }

    // Whether the member at the other end means the same group.
    fn agree(&self, rank: Rank, theirs: &Hello) -> Result<(), CollectiveError> {
        let ours = self.hello(rank);
        if theirs.membership > ours.membership {
            return Err(CollectiveError::StaleMembership {
                ours: ours.membership,
                theirs: theirs.membership,
            });
        }
        let expected = Hello { from: rank, to: ours.from, ..ours };
        if *theirs == expected {
            return Ok(());
        }
        let name = |hello: &Hello| {
            format!("membership {}, list {:016x}, rank {}", hello.membership, hello.fingerprint, hello.from)
        };
        let peer = self.group.holder(rank);
        Err(CollectiveError::Mismatch { peer, theirs: name(theirs), ours: name(&ours) })
    }

    // Time of the doorway.
    fn now(&self) -> Duration {
        self.listener.opened.elapsed()
    }

    fn accept(&mut self) {
        while self.waiting.callers.opens_at() <= self.now() {
            match self.listener.socket.accept() {
                Ok((stream, _)) => {
                    if prepare(&stream).is_ok() {
                        let now = self.now();
                        self.waiting.callers.enter(now, Greeting::new(stream));
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // The caller hung up before it was heard.
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted) => {}
                // For lack of descriptors, most often, and for the moment: members that called wait as long.
                Err(error) => {
                    let now = self.now();
                    self.waiting.callers.starved(now);
                    if let Some(times) = self.waiting.errors.due(now) {
                        tracing::error!(%error, times, "a connection cannot be accepted; trying again");
                    }
                }
            }
        }
    }

    fn hear_callers(&mut self) -> Result<(), CollectiveError> {
        let heard: Vec<_> = (self.waiting.callers.connections_mut())
            .map(|(caller, greeting)| (caller, greeting.listen()))
            .filter(|(_, heard)| !matches!(heard, Heard::Nothing))
            .collect();
        for (caller, heard) in heard {
            let Some(greeting) = self.waiting.callers.pass(caller) else { continue };
            if let Heard::Hello(hello) = heard {
                self.answer(hello, greeting.stream)?;
            }
        }
        // Only now: what came while no group met is heard before it is late.
        while self.waiting.callers.expire(self.now()).is_some() {}
        Ok(())
    }

    fn answer(&mut self, hello: Hello, mut stream: BulkStream) -> Result<(), CollectiveError> {
        let (ours, me) = (self.group.membership(), self.group.me());
        if hello.job != self.listener.job {
            // Another job's process: the port was another job's before.
            return Ok(());
        }
        if hello.membership > ours {
            if self.waiting.early.len() >= WAITING_MAX {
                self.waiting.early.remove(0);
            }
            self.waiting.early.push((hello, stream));
            return Ok(());
        }
        // A caller of an older membership learns from the answer that it is over.
        let said = say(&mut stream, &self.hello(hello.from));
        if hello.membership < ours {
            return Ok(());
        }
        if hello.from >= me || hello.from.0 >= self.group.world() {
            let peer = self.group.holder(Rank(hello.from.0.min(self.group.world() - 1)));
            let theirs = format!("a call from rank {} to rank {}", hello.from, hello.to);
            return Err(CollectiveError::Mismatch { peer, theirs, ours: format!("rank {me} of this group") });
        }
        self.agree(hello.from, &hello)?;
        // A caller that hung up meanwhile may call again.
        if said.is_ok() {
            self.kept[hello.from.0 as usize] = None;
            self.met[hello.from.0 as usize] = Some(self.link(hello.from, stream));
        }
        Ok(())
    }

    fn sleep(&mut self) -> Result<(), CollectiveError> {
        let mut fds = vec![PollFd::from_borrowed_fd(self.abort.descriptor(), PollFlags::IN)];
        let mut until = self.deadline;
        let callers = &self.waiting.callers;
        let is_open = callers.opens_at() <= self.now();
        if is_open {
            fds.push(PollFd::from_borrowed_fd(self.listener.socket.as_fd(), PollFlags::IN));
        }
        let looks = [callers.deadline(), (!is_open).then(|| callers.opens_at())];
        for look in looks.into_iter().flatten() {
            until = until.min(self.listener.opened + look);
        }
        for call in self.calls.values() {
            match call {
                Call::Dialling(dialling) => fds.push(PollFd::new(dialling, PollFlags::OUT)),
                Call::Answering(greeting) => fds.push(PollFd::new(&greeting.stream, PollFlags::IN)),
                Call::Unreachable(again) => until = until.min(*again),
            }
        }
        fds.extend(callers.connections().map(|caller| PollFd::new(&caller.stream, PollFlags::IN)));
        fds.extend(self.kept.iter().flatten().map(|link| {
            let mut events = PollFlags::IN;
            events.set(PollFlags::OUT, link.has_mail());
            PollFd::new(&link.socket.stream, events)
        }));
        let connected_from = fds.len();
        let ranks = || (0_u32..).map(Rank).zip(&self.met);
        let connected = || ranks().filter_map(|(rank, link)| Some((rank, link.as_ref()?)));
        fds.extend(connected().map(|(_, link)| {
            let mut events = PollFlags::RDHUP;
            events.set(PollFlags::OUT, link.has_mail());
            PollFd::new(&link.socket.stream, events)
        }));
        wait(&mut fds, until).map_err(|e| CollectiveError::io("waiting for connections", &e))?;
        // A member that hung up has given up on this group, or died: no member need wait for the rest.
        let gone = fds[connected_from..]
            .iter()
            .zip(connected())
            .find(|(fd, _)| fd.revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR));
        match gone.map(|(_, (rank, _))| rank) {
            Some(rank) => Err(self.closed(rank)),
            None => Ok(()),
        }
    }
}

fn prepare(stream: &BulkStream) -> io::Result<()> {
    suit_host(stream.socket());
    // Finds a host that vanished without a word, within a minute, when nothing else is being sent.
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(3);
    socket2::SockRef::from(stream.socket()).set_tcp_keepalive(&keepalive)
}

// Inside a host there is no link that could be congested, and a control that paces what it sends (BBR) loses an eighth of
// the time of a long message there, and half of that of a short one. Reno never paces, and every process may take it.
// Where it is refused, what the system takes by default is as right, and slower.
fn suit_host(stream: &TcpStream) {
    if is_within_host(stream) {
        let _ = sockopt::set_tcp_congestion(stream, "reno");
    }
}

// A hello is the first thing written, so the socket's buffer takes it whole.
fn say(stream: &mut BulkStream, hello: &Hello) -> io::Result<()> {
    let bytes = hello.encode();
    match stream.write(&bytes) {
        Ok(written) if written == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(e) => Err(e),
    }
}
