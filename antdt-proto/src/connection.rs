//! The connections of gRPC: the one place where clients of a job open theirs and its master accepts them, and where a
//! program may [wrap](Connections) them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use antdt_core::{CodecBuffers, Connections, StreamEnd};
pub use door::{Caller, Incoming};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tonic::codegen::http::Uri;
use tonic::codegen::{Service, StdError};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};

mod door;

/// Returns a channel to `endpoint`, whose first call makes the connection, within `timeout`. Must be called within a
/// tokio runtime.
pub fn channel(endpoint: &Endpoint, timeout: Duration, connections: Connections) -> Channel {
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    // Without it every call may wait 40 ms for the next one.
    http.set_nodelay(true);
    // Not the endpoint's own timeout, after which a call would not fail as unavailable.
    http.set_connect_timeout(Some(timeout));
    endpoint.connect_with_connector_lazy(tower::service_fn(move |uri: Uri| {
        let (socket, connections) = (http.call(uri), connections.clone());
        async move {
            let stream = GrpcStream::new(socket.await?.into_inner(), StreamEnd::Opened, &connections);
            Ok::<_, StdError>(TokioIo::new(stream))
        }
    }))
}

/// A TCP connection that carries calls.
#[derive(Debug)]
pub struct GrpcStream {
    socket: TcpStream,
    codec: Option<Box<CodecBuffers>>,
    /// For a connection that was accepted.
    admission: Option<door::Admission>,
}

impl GrpcStream {
    fn new(socket: TcpStream, end: StreamEnd, connections: &Connections) -> Self {
        Self { socket, codec: connections.codec(end), admission: None }
    }
}

impl Connected for GrpcStream {
    type ConnectInfo = Option<Caller>;

    fn connect_info(&self) -> Option<Caller> {
        self.admission.as_ref().map(door::Admission::caller)
    }
}

impl AsyncRead for GrpcStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { socket, codec, admission } = self.get_mut();
        if admission.as_mut().is_some_and(|admission| admission.is_closed(cx)) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        let Some(codec) = codec else { return Pin::new(socket).poll_read(cx, into) };
        let read = codec.read(&mut Polled(socket, cx), into.initialize_unfilled());
        polled(read).map_ok(|read| into.advance(read))
    }
}

impl AsyncWrite for GrpcStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { socket, codec, .. } = self.get_mut();
        match codec {
            None => Pin::new(socket).poll_write(cx, bytes),
            Some(codec) => polled(codec.write(&mut Polled(socket, cx), bytes)),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = slices.iter().find(|slice| !slice.is_empty()).map_or(&[][..], |slice| slice);
        match &self.codec {
            None => Pin::new(&mut self.get_mut().socket).poll_write_vectored(cx, slices),
            Some(_) => self.poll_write(cx, first),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.codec.is_none() && self.socket.is_write_vectored()
    }

    // What is written is with the system.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }
}

/// A socket in the form that a codec reads and writes. One that is not ready wakes the task later.
struct Polled<'a, 'b>(&'a mut TcpStream, &'a mut Context<'b>);

impl io::Read for Polled<'_, '_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut into = ReadBuf::new(into);
        match Pin::new(&mut *self.0).poll_read(self.1, &mut into) {
            Poll::Ready(done) => done.map(|()| into.filled().len()),
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}

impl io::Write for Polled<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match Pin::new(&mut *self.0).poll_write(self.1, bytes) {
            Poll::Ready(done) => done,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn polled<T>(done: io::Result<T>) -> Poll<io::Result<T>> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        done => Poll::Ready(done),
    }
}
