//! Wrapping of the byte streams between the processes of a job: encryption, for example.
//!
//! A wrapper computes only. The streams belong to the crates that open them, which pass every byte of a wrapped
//! stream through its [`StreamCodec`] and wait for the socket themselves.

use std::fmt::Debug;
use std::io::{self, Read, Write};
use std::sync::Arc;

/// Plain bytes that are encoded at a time. What a stream holds back while its socket is full stays as short, and
/// so does what is decoded before it is wanted.
const PIECE: usize = 64 << 10;

/// Makes the codec of every stream between the processes of a job. All processes of the job need the same.
pub trait StreamWrapper: Debug + Send + Sync {
    /// Returns the codec of a new stream, at its end in this process.
    fn codec(&self, end: StreamEnd) -> Box<dyn StreamCodec>;
}

/// End of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamEnd {
    /// The process that opened the stream.
    Opened,
    /// The process that accepted it.
    Accepted,
}

/// Translates the bytes of one stream, at one end of it.
///
/// After an error the stream is closed: an end that finds no sense in what the other one sends returns one, and a
/// peer without the wrapper is refused.
pub trait StreamCodec: Debug + Send {
    /// Appends to `wire` what is to be sent for the next plain bytes. A codec may keep them until more has been
    /// [decoded](Self::decode), if the two ends have to agree on something first.
    ///
    /// # Errors
    /// If the bytes cannot be encoded.
    fn encode(&mut self, plain: &[u8], wire: &mut Vec<u8>) -> io::Result<()>;

    /// Appends to `plain` what the next received bytes mean, and to `reply` what must be sent in answer.
    ///
    /// # Errors
    /// If the bytes are not what the other end's codec sends.
    fn decode(&mut self, wire: &[u8], plain: &mut Vec<u8>, reply: &mut Vec<u8>) -> io::Result<()>;
}

/// How the processes of a job connect with each other: over plain streams, which is the default, or over wrapped
/// ones.
#[derive(Debug, Clone, Default)]
pub struct Connections(Option<Arc<dyn StreamWrapper>>);

impl Connections {
    /// Returns connections all of whose streams are wrapped.
    pub fn wrapped(wrapper: impl StreamWrapper + 'static) -> Self {
        Self(Some(Arc::new(wrapper)))
    }

    /// Returns the codec of a new stream, boxed because most streams have none.
    pub fn codec(&self, end: StreamEnd) -> Option<Box<CodecBuffers>> {
        self.0.as_ref().map(|wrapper| Box::new(CodecBuffers::new(wrapper.codec(end))))
    }
}

impl PartialEq for Connections {
    /// Whether both are plain, or clones of each other.
    fn eq(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// The codec of one stream, with the bytes that are half sent and half read. The socket is an argument of each
/// call; it may be one that does not block, and then the calls do not block either.
#[derive(Debug)]
pub struct CodecBuffers {
    codec: Box<dyn StreamCodec>,
    // Decoded, and read up to `taken`.
    plain: Vec<u8>,
    taken: usize,
    // Encoded, and sent up to `sent`.
    wire: Vec<u8>,
    sent: usize,
    // The first byte of the next write is encoded already.
    owes: bool,
    received: Box<[u8]>,
}

impl CodecBuffers {
    fn new(codec: Box<dyn StreamCodec>) -> Self {
        let received = vec![0; PIECE].into();
        Self { codec, plain: Vec::new(), taken: 0, wire: Vec::new(), sent: 0, owes: false, received }
    }

    /// Reads plain bytes until `into` is full, the socket has no more, or the stream ends; returns their number,
    /// which is 0 at the end of the stream.
    ///
    /// # Errors
    /// Those of the socket if there is no byte, `WouldBlock` among them; that of the codec.
    pub fn read(&mut self, socket: &mut (impl Read + Write), into: &mut [u8]) -> io::Result<usize> {
        let mut read = 0;
        loop {
            let len = (self.plain.len() - self.taken).min(into.len() - read);
            into[read..read + len].copy_from_slice(&self.plain[self.taken..][..len]);
            self.taken += len;
            read += len;
            if read == into.len() {
                return Ok(read);
            }
            match self.receive(socket) {
                // The next call says so again.
                Ok(0) | Err(_) if read > 0 => return Ok(read),
                Ok(0) => return Ok(0),
                Ok(len) => self.decode(len, socket)?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns whether plain bytes can be read without the socket, which may then have none.
    pub const fn holds(&self) -> bool {
        self.taken < self.plain.len()
    }

    /// Reads from the socket until there is a plain byte to be [read](Self::read); false at the end of the stream.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn fill(&mut self, socket: &mut (impl Read + Write)) -> io::Result<bool> {
        while !self.holds() {
            match self.receive(socket)? {
                0 => return Ok(false),
                len => self.decode(len, socket)?,
            }
        }
        Ok(true)
    }

    fn receive(&mut self, socket: &mut impl Read) -> io::Result<usize> {
        loop {
            match socket.read(&mut self.received) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                received => return received,
            }
        }
    }

    // All that was decoded before is taken.
    fn decode(&mut self, len: usize, socket: &mut impl Write) -> io::Result<()> {
        self.plain.clear();
        self.taken = 0;
        let decoded = self.codec.decode(&self.received[..len], &mut self.plain, &mut self.wire);
        // A reply that does not go now goes with the next read or write. One that never can is of no use to what was
        // read. After an error it tells the other end why.
        let _ = self.flush(socket);
        decoded
    }

    /// Writes plain bytes; returns how many the stream has taken. While the socket does not take all that they
    /// became, their last one counts as not taken: the caller offers the rest again when the socket is ready, as
    /// it does with any socket, and so knows when all has left this process.
    ///
    /// # Errors
    /// Those of the socket, also `WouldBlock`, if no byte was taken; that of the codec.
    pub fn write(&mut self, socket: &mut impl Write, plain: &[u8]) -> io::Result<usize> {
        self.flush(socket)?;
        let mut taken = 0;
        while taken < plain.len() {
            let piece = &plain[taken..][..PIECE.min(plain.len() - taken)];
            let skipped = usize::from(std::mem::take(&mut self.owes));
            self.codec.encode(&piece[skipped..], &mut self.wire)?;
            taken += piece.len();
            match self.flush(socket) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.owes = true;
                    return if taken == 1 { Err(error) } else { Ok(taken - 1) };
                }
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }

    /// Sends what is encoded.
    ///
    /// # Errors
    /// Those of the socket; `WouldBlock` if some of it is left.
    pub fn flush(&mut self, socket: &mut impl Write) -> io::Result<()> {
        while self.sent < self.wire.len() {
            match socket.write(&self.wire[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.wire.clear();
        self.sent = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
