//! The connections of gRPC: the one place where clients of a job open theirs and its master accepts them, and where a
//! program may [wrap](Connections) them.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use antdt_core::{Connections, StreamEnd};
use antdt_rt::WrappedStream;
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
    stream: WrappedStream,
    /// For a connection that was accepted.
    admission: Option<door::Admission>,
}

impl GrpcStream {
    fn new(socket: TcpStream, end: StreamEnd, connections: &Connections) -> Self {
        Self { stream: WrappedStream::new(socket, end, connections), admission: None }
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
        let Self { stream, admission } = self.get_mut();
        if admission.as_mut().is_some_and(|admission| admission.is_closed(cx)) {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(stream).poll_read(cx, into)
    }
}

impl AsyncWrite for GrpcStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
