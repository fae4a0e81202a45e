//! TCP connections for bulk data, between the members of a group and with parameter servers: the one place where
//! they are opened and accepted, and where a program may [wrap](Connections) them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use antdt_core::{CodecBuffers, Connections, StreamEnd};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};
use socket2::{Domain, Socket, Type};

use super::transport::ChannelError;

/// A TCP connection for bulk data. Its calls do not block.
///
/// A plain stream costs one branch for each system call; no byte of it is copied. The bytes of a wrapped stream are
/// copied into its codec and out of it.
#[derive(Debug)]
pub struct BulkStream {
    socket: TcpStream,
    codec: Option<Box<CodecBuffers>>,
}

impl BulkStream {
    /// Connects to the process that listens at `address`.
    ///
    /// # Errors
    /// If no process listens there, the host cannot be reached before the deadline, or the operating system refuses
    /// the connection.
    pub fn open(
        address: SocketAddr,
        deadline: Instant,
        connections: &Connections,
    ) -> Result<Self, ChannelError> {
        // A process that listens is connected with by its system, at once.
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        let socket = TcpStream::connect_timeout(&address, left);
        let opened = socket.and_then(|socket| Self::new(socket, StreamEnd::Opened, connections));
        opened.map_err(|e| ChannelError::io("connecting", e))
    }

    /// Returns both ends of a connection between two threads of this process, the one that opened it first.
    ///
    /// # Errors
    /// If there is no loopback interface, or no file descriptor is left.
    pub fn pair(connections: &Connections) -> io::Result<[Self; 2]> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let opened = TcpStream::connect(listener.local_addr()?)?;
        let accepted = listener.accept()?.0;
        Ok([
            Self::new(opened, StreamEnd::Opened, connections)?,
            Self::new(accepted, StreamEnd::Accepted, connections)?,
        ])
    }

    fn new(socket: TcpStream, end: StreamEnd, connections: &Connections) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, codec: connections.codec(end) })
    }

    /// Returns a handle by which another thread ends this connection, at the cost of a descriptor: its
    /// [`shutdown`](TcpStream::shutdown). Nothing else must be done with it.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn hanging_up(&self) -> io::Result<TcpStream> {
        self.socket.try_clone()
    }

    /// The socket, of which nothing must be read and to which nothing must be written.
    pub(super) const fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Whether a codec makes other bytes of what is sent.
    pub(super) const fn is_wrapped(&self) -> bool {
        self.codec.is_some()
    }

    /// Whether bytes can be read although the socket may have none.
    pub(super) fn holds(&self) -> bool {
        self.codec.as_ref().is_some_and(|codec| codec.holds())
    }

    /// Looks whether a byte can be read; false at the end of the stream.
    pub(super) fn peek(&mut self) -> io::Result<bool> {
        match &mut self.codec {
            None => Ok(self.socket.peek(&mut [0])? > 0),
            Some(codec) => codec.fill(&mut &self.socket),
        }
    }
}

impl AsFd for BulkStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Read for BulkStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match &mut self.codec {
            None => self.socket.read(into),
            Some(codec) => codec.read(&mut &self.socket, into),
        }
    }

    fn read_vectored(&mut self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Some(codec) = &mut self.codec else { return self.socket.read_vectored(slices) };
        in_turn(slices, |slice| (slice.len(), codec.read(&mut &self.socket, slice)))
    }
}

impl Write for BulkStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Once all bytes are taken, the system has all of them.
    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(codec) = &mut self.codec else {
            // A connection that is gone is an answer here, not a signal.
            let sent =
                sendmsg(&self.socket, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
            return Ok(sent?);
        };
        in_turn(slices, |slice| (slice.len(), codec.write(&mut &self.socket, slice)))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// Moves the bytes of each slice until one is not moved whole.
fn in_turn<S>(
    slices: impl IntoIterator<Item = S>,
    mut step: impl FnMut(S) -> (usize, io::Result<usize>),
) -> io::Result<usize> {
    let mut moved = 0;
    for slice in slices {
        let (len, done) = step(slice);
        match done {
            Ok(done) if done == len => moved += len,
            Ok(done) => return Ok(moved + done),
            Err(_) if moved > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(moved)
}

/// A listening TCP socket for bulk data. Its calls do not block.
#[derive(Debug)]
pub struct BulkListener {
    socket: TcpListener,
    address: SocketAddr,
    connections: Connections,
}

impl BulkListener {
    /// Listens at `address`; port 0 takes any free port.
    ///
    /// # Errors
    /// If the address is in use or does not belong to this host.
    pub fn bind(address: SocketAddr, connections: Connections) -> io::Result<Self> {
        let socket = TcpListener::bind(address)?;
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address, connections })
    }

    /// Returns the address at which this process listens.
    pub const fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts a connection, of the process at the address that is returned with it.
    ///
    /// # Errors
    /// Those of the system, `WouldBlock` among them.
    pub fn accept(&self) -> io::Result<(BulkStream, SocketAddr)> {
        let (socket, peer) = self.socket.accept()?;
        Ok((BulkStream::new(socket, StreamEnd::Accepted, &self.connections)?, peer))
    }

    /// Begins to connect to another process.
    pub(super) fn dial(&self, address: SocketAddr) -> io::Result<Dialling> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        match socket.connect(&address.into()) {
            Err(e) if e.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Err(e),
            _ => Ok(Dialling(socket)),
        }
    }

    /// Returns the stream of a socket once it is connected; it can be written to then.
    pub(super) fn dialled(&self, Dialling(socket): Dialling) -> io::Result<Result<BulkStream, Dialling>> {
        // Connected: only now is there a peer.
        if socket.peer_addr().is_ok() {
            return BulkStream::new(socket.into(), StreamEnd::Opened, &self.connections).map(Ok);
        }
        socket.take_error()?.map_or(Ok(Err(Dialling(socket))), Err)
    }
}

impl AsFd for BulkListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A connection that is being made.
#[derive(Debug)]
pub(super) struct Dialling(Socket);

impl AsFd for Dialling {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
