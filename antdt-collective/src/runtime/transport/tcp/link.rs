//! One connection to one peer: what is half sent, what is half received.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;

use antdt_core::Holder;

use crate::error::CollectiveError;
use crate::frame::{Arrival, FrameKind, Header, Tag, notice};
use crate::runtime::transport::Sink;

/// Bytes per frame. Long enough that a header and two system calls are nothing against it, short enough that a
/// received segment is still in the cache when it is folded in. A multiple of 64, so that no element is cut in two.
pub(super) const SEGMENT_BYTES: usize = 256 << 10;

#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: TcpStream,
    pub(super) peer: Holder,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The peer has shut its side, or is gone.
    pub(super) closed: bool,
    header: [u8; Header::LEN],
    header_filled: usize,
    body: Body,
    // Segments that are not received into place; 8-byte aligned.
    scratch: Vec<u64>,
}

/// Where the bytes after the last header go.
#[derive(Debug)]
enum Body {
    /// The next header comes first.
    None,
    /// Into this round's message.
    Wanted { header: Header, got: usize },
    /// Nowhere: the message belongs to the past.
    Dropped { left: usize },
    /// Why the peer gave up.
    Notice { header: Header, bytes: Vec<u8> },
    /// To a later round's message: nothing is read until then.
    Early { header: Header },
}

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Sending<'a> {
    bytes: &'a [u8],
    tag: Tag,
    // Of the segments before this one.
    done: usize,
    segment: u32,
    header: [u8; Header::LEN],
    // Of this segment, header included.
    sent: usize,
}

impl<'a> Sending<'a> {
    pub(super) fn new(tag: Tag, bytes: &'a [u8]) -> Self {
        let mut sending = Self { bytes, tag, done: 0, segment: 0, header: [0; Header::LEN], sent: 0 };
        sending.begin_segment();
        sending
    }

    fn begin_segment(&mut self) {
        let payload = self.payload();
        self.header = Header::of(FrameKind::Data, self.tag, self.segment, payload).encode();
        self.sent = 0;
    }

    fn payload(&self) -> &'a [u8] {
        let rest = &self.bytes[self.done..];
        &rest[..rest.len().min(SEGMENT_BYTES)]
    }

    pub(super) const fn is_done(&self) -> bool {
        self.done == self.bytes.len()
    }

    /// Bytes not yet handed to the system.
    pub(super) const fn missing(&self) -> usize {
        self.bytes.len() - self.done
    }

    /// What must still go out before another frame may: the rest of a segment that was begun.
    pub(super) fn begun(&self) -> Vec<u8> {
        if self.is_done() || self.sent == 0 {
            return Vec::new();
        }
        let mut rest = self.header[self.sent.min(Header::LEN)..].to_vec();
        rest.extend_from_slice(&self.payload()[self.sent.saturating_sub(Header::LEN)..]);
        rest
    }
}

/// A message on its way in.
#[derive(Debug)]
pub(super) struct Receiving<'a, 'b> {
    pub(super) sink: &'a mut Sink<'b>,
    len: usize,
    done: usize,
    segment: u32,
}

impl<'a, 'b> Receiving<'a, 'b> {
    pub(super) fn new(sink: &'a mut Sink<'b>) -> Self {
        let len = sink.len_bytes();
        Self { sink, len, done: 0, segment: 0 }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.done == self.len
    }

    /// Bytes not yet taken.
    pub(super) const fn missing(&self) -> usize {
        self.len - self.done
    }
}

impl Link {
    pub(super) fn new(stream: TcpStream, peer: Holder) -> Self {
        Self {
            stream,
            peer,
            readable: false,
            writable: false,
            closed: false,
            header: [0; Header::LEN],
            header_filled: 0,
            body: Body::None,
            scratch: Vec::new(),
        }
    }

    /// Whether reading now could yield anything but a message for later.
    pub(super) const fn listens(&self) -> bool {
        !self.closed && !matches!(self.body, Body::Early { .. })
    }

    /// Another round has begun: what came early may be due.
    pub(super) fn begin_round(&mut self) {
        self.readable = true;
        self.writable = true;
        if let Body::Early { header } = self.body {
            self.body = Body::None;
            self.header = header.encode();
            self.header_filled = Header::LEN;
        }
    }

    /// Sends as much as the socket takes. `Ok(false)`: the peer is gone.
    pub(super) fn send(&mut self, sending: &mut Sending<'_>) -> Result<bool, CollectiveError> {
        while self.writable && !sending.is_done() {
            let payload = sending.payload();
            let written = if sending.sent < Header::LEN {
                let slices = [IoSlice::new(&sending.header[sending.sent..]), IoSlice::new(payload)];
                self.stream.write_vectored(&slices)
            } else {
                self.stream.write(&payload[sending.sent - Header::LEN..])
            };
            match written {
                Ok(0) => return Ok(false),
                Ok(written) => sending.sent += written,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Ok(false),
            }
            if sending.sent == Header::LEN + payload.len() {
                sending.done += payload.len();
                sending.segment += 1;
                if !sending.is_done() {
                    sending.begin_segment();
                }
                // One segment at a time, so that sending and receiving take turns.
                return Ok(true);
            }
        }
        Ok(true)
    }

    /// Reads what has come, one segment at most: into `receiving` what belongs there, notices at any time.
    pub(super) fn receive(
        &mut self,
        tag: &Tag,
        mut receiving: Option<&mut Receiving<'_, '_>>,
    ) -> Result<(), CollectiveError> {
        loop {
            match &mut self.body {
                Body::None if self.header_filled == Header::LEN => self.route(tag, receiving.as_deref())?,
                Body::None => {
                    if !fill(
                        &mut self.stream,
                        &mut self.readable,
                        &mut self.closed,
                        &mut self.header,
                        &mut self.header_filled,
                    ) {
                        return Ok(());
                    }
                }
                Body::Early { .. } => return Ok(()),
                Body::Dropped { left: 0 } => self.next_frame(),
                Body::Dropped { left } => {
                    self.scratch.resize(SEGMENT_BYTES / 8, 0);
                    let scratch: &mut [u8] = bytemuck::cast_slice_mut(&mut self.scratch);
                    let most = scratch.len().min(*left);
                    let mut got = 0;
                    fill(
                        &mut self.stream,
                        &mut self.readable,
                        &mut self.closed,
                        &mut scratch[..most],
                        &mut got,
                    );
                    *left -= got;
                    if got == 0 {
                        return Ok(());
                    }
                }
                Body::Notice { header, bytes } => {
                    let mut got = bytes.len();
                    bytes.resize(header.len as usize, 0);
                    let complete =
                        fill(&mut self.stream, &mut self.readable, &mut self.closed, bytes, &mut got);
                    bytes.truncate(got);
                    if !complete {
                        return Ok(());
                    }
                    let error = header.verify(bytes).ok().and_then(|()| notice::decode(self.peer, bytes));
                    return Err(error.unwrap_or_else(|| self.corrupt("its reason for giving up")));
                }
                Body::Wanted { header, got } => {
                    let Some(receiving) = receiving.as_deref_mut() else {
                        // A round ends only when its messages are complete.
                        return Err(self.corrupt("a segment that outlived its round"));
                    };
                    let (at, len) = (receiving.done, header.len as usize);
                    let (stream, readable, closed) = (&mut self.stream, &mut self.readable, &mut self.closed);
                    let complete = match receiving.sink {
                        Sink::Place(bytes) => {
                            let place = &mut bytes[at..at + len];
                            fill(stream, readable, closed, place, got).then(|| header.verify(place))
                        }
                        Sink::Fold(fold) => {
                            self.scratch.resize(self.scratch.len().max(len.div_ceil(8)), 0);
                            let place: &mut [u8] = &mut bytemuck::cast_slice_mut(&mut self.scratch)[..len];
                            fill(stream, readable, closed, place, got).then(|| {
                                header.verify(place)?;
                                fold.fold(at, place);
                                Ok(())
                            })
                        }
                    };
                    match complete {
                        None => return Ok(()),
                        Some(Err(e)) => return Err(self.corrupt(&e.to_string())),
                        Some(Ok(())) => {}
                    }
                    receiving.done += len;
                    receiving.segment += 1;
                    self.next_frame();
                    return Ok(());
                }
            }
        }
    }

    fn next_frame(&mut self) {
        self.body = Body::None;
        self.header_filled = 0;
    }

    // Decides where the body of the header just read goes.
    fn route(&mut self, tag: &Tag, receiving: Option<&Receiving<'_, '_>>) -> Result<(), CollectiveError> {
        let header = Header::decode(&self.header).map_err(|e| self.corrupt(&e.to_string()))?;
        let len = header.len as usize;
        self.body = match header.kind {
            FrameKind::Hello => return Err(self.corrupt("a second greeting")),
            FrameKind::Abort if len > notice::NOTICE_MAX => return Err(self.corrupt("too long a reason")),
            FrameKind::Abort => Body::Notice { header, bytes: Vec::new() },
            FrameKind::Data => match (tag.judge(&header.tag), receiving) {
                (Arrival::Old, _) => Body::Dropped { left: len },
                (Arrival::NewerMembership, _) => {
                    let (ours, theirs) = (tag.membership, header.tag.membership);
                    return Err(CollectiveError::StaleMembership { ours, theirs });
                }
                (Arrival::Early, waiting) if waiting.is_none_or(Receiving::is_done) => Body::Early { header },
                (Arrival::Expected, Some(waiting)) if header.segment < waiting.segment => {
                    Body::Dropped { left: len }
                }
                (Arrival::Expected, Some(waiting)) if fits(&header, waiting) => {
                    Body::Wanted { header, got: 0 }
                }
                (Arrival::Expected | Arrival::Early | Arrival::Different, _) => {
                    let theirs = format!("{}, segment {} of {len} bytes", header.tag, header.segment);
                    return Err(CollectiveError::Mismatch { peer: self.peer, theirs, ours: tag.to_string() });
                }
            },
        };
        Ok(())
    }

    fn corrupt(&self, what: &str) -> CollectiveError {
        CollectiveError::Corrupt { peer: self.peer, what: what.to_owned() }
    }
}

// Segments come in order and cut no element in two.
fn fits(header: &Header, receiving: &Receiving<'_, '_>) -> bool {
    let (len, missing) = (header.len as usize, receiving.missing());
    header.segment == receiving.segment && len > 0 && (len == missing || (len < missing && len % 64 == 0))
}

/// Reads into `into` from `filled` on. Whether it is full.
fn fill(
    stream: &mut TcpStream,
    readable: &mut bool,
    closed: &mut bool,
    into: &mut [u8],
    filled: &mut usize,
) -> bool {
    while *filled < into.len() && *readable {
        match stream.read(&mut into[*filled..]) {
            Ok(0) => (*closed, *readable) = (true, false),
            Ok(read) => *filled += read,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => *readable = false,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            // Reset by a peer that died.
            Err(_) => (*closed, *readable) = (true, false),
        }
    }
    *filled == into.len()
}
