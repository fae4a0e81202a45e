//! [`WrappedStream`]: a TCP connection through which a program's [`Connections`] pass every byte.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use antdt_core::{CodecBuffers, Connections, StreamEnd};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A TCP connection, wrapped if the program wants its connections to be. What is written is with the system when the write is done:
/// there is nothing to flush.
#[derive(Debug)]
pub struct WrappedStream {
    socket: TcpStream,
    codec: Option<Box<CodecBuffers>>,
}

impl WrappedStream {
    /// Wraps a connection of which this process has this end.
    pub fn new(socket: TcpStream, end: StreamEnd, connections: &Connections) -> Self {
        Self { socket, codec: connections.codec(end) }
    }
}

impl AsyncRead for WrappedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { socket, codec } = self.get_mut();
        let Some(codec) = codec else { return Pin::new(socket).poll_read(cx, into) };
        let read = codec.read(&mut Polled(socket, cx), into.initialize_unfilled());
        polled(read).map_ok(|read| into.advance(read))
    }
}

impl AsyncWrite for WrappedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Self { socket, codec } = self.get_mut();
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
