//! Messages that are half sent and half received.

use std::io::IoSlice;
use std::time::Instant;

use super::inbox::{Inbox, Socket};
use crate::frame::{FrameError, FrameKind, Header, Tag};
use crate::runtime::transport::Sink;

/// Bytes per frame. Long enough that a header and two system calls are nothing against it (half as much cost an all-reduce
/// of 1 MiB a twentieth of its time, twice as much gained nothing); short enough that what was begun can be ended when a
/// rank fails, and that what is checksummed is still in the cache when the kernel copies it. A multiple of 64, so that no
/// element is cut in two.
pub(super) const SEGMENT_BYTES: usize = 512 << 10;

/// Bytes of a message after which its sender is told that it is being taken, if its first segment does not end before.
/// Shorter messages are over as soon.
const ANNOUNCE_BYTES: usize = 256 << 10;

/// Pieces of a message are folded in multiples of this.
const GRAIN: usize = 64;

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Sending<'a> {
    /// When the socket last took some of it.
    pub(super) moved: Instant,
    bytes: &'a [u8],
    tag: Tag,
    // Of the segments before this one.
    done: usize,
    segment: u32,
    header: [u8; Header::LEN],
    // Of this segment, header included; 0 if it was not begun.
    sent: usize,
}

impl<'a> Sending<'a> {
    pub(super) fn new(tag: Tag, bytes: &'a [u8], now: Instant) -> Self {
        Self { moved: now, bytes, tag, done: 0, segment: 0, header: [0; Header::LEN], sent: 0 }
    }

    fn payload(&self) -> &'a [u8] {
        let rest = &self.bytes[self.done..];
        &rest[..rest.len().min(SEGMENT_BYTES)]
    }

    pub(super) const fn is_done(&self) -> bool {
        self.done == self.bytes.len()
    }

    /// Bytes not yet handed to the system, to the segment.
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

    /// Makes the header of a segment of which nothing has gone out.
    pub(super) fn begin_segment(&mut self, checksums: bool) {
        let (payload, tag) = (self.payload(), self.tag);
        let header = if checksums {
            Header::of(FrameKind::Data, tag, self.segment, payload)
        } else {
            Header::plain(FrameKind::Data, tag, self.segment, payload.len())
        };
        self.header = header.encode();
    }

    /// Whether nothing of the next segment has gone out.
    pub(super) const fn is_between(&self) -> bool {
        self.sent == 0
    }

    /// What is left of the segment.
    pub(super) fn slices(&self) -> [IoSlice<'_>; 2] {
        [
            IoSlice::new(&self.header[self.sent.min(Header::LEN)..]),
            IoSlice::new(&self.payload()[self.sent.saturating_sub(Header::LEN)..]),
        ]
    }

    /// So many more bytes have gone out.
    pub(super) fn sent(&mut self, bytes: usize) {
        self.sent += bytes;
        let len = self.payload().len();
        if self.sent == Header::LEN + len {
            self.done += len;
            self.segment += 1;
            self.sent = 0;
        }
    }
}

/// A message on its way in.
#[derive(Debug)]
pub(super) struct Receiving<'a, 'b> {
    /// When some of it last came; `None` before the first byte.
    pub(super) moved: Option<Instant>,
    sink: &'a mut Sink<'b>,
    len: usize,
    done: usize,
    segment: u32,
    /// Whether the peer is still to be told that its message is being taken, if it is a long one.
    announces: bool,
}

impl<'a, 'b> Receiving<'a, 'b> {
    pub(super) fn new(sink: &'a mut Sink<'b>, announces: bool) -> Self {
        let len = sink.len_bytes();
        Self { moved: None, sink, len, done: 0, segment: 0, announces }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.done == self.len
    }

    /// Bytes not yet taken, to the segment.
    pub(super) const fn missing(&self) -> usize {
        self.len - self.done
    }

    pub(super) const fn segment(&self) -> u32 {
        self.segment
    }

    /// Whether a segment is the next one: they come in order and cut no element in two.
    pub(super) fn fits(&self, header: &Header) -> bool {
        let (len, missing) = (header.len as usize, self.missing());
        header.segment == self.segment && len > 0 && (len == missing || (len < missing && len % GRAIN == 0))
    }

    /// Whether it is time to tell the peer that its message is being taken, now that some of a segment is here, which may be all
    /// of it. Once a message.
    pub(super) fn announces(&mut self, arriving: &Arriving) -> bool {
        let taken = self.done + arriving.got;
        let now = self.announces && taken < self.len && (arriving.has_ended() || taken >= ANNOUNCE_BYTES);
        self.announces &= !now;
        now
    }

    /// Takes what has come of a segment, a piece of `scratch`'s length at most where it is folded; the number of bytes.
    pub(super) fn take(
        &mut self,
        arriving: &mut Arriving,
        socket: &mut Socket,
        inbox: &mut Inbox,
        scratch: &mut [u8],
    ) -> usize {
        let Arriving { header, got, crc, carry } = arriving;
        let (len, at) = (header.len as usize, self.done);
        let read = match self.sink {
            Sink::Place(bytes) => {
                let read = socket.take(inbox, &mut bytes[at + *got..at + len]);
                if header.crc.is_some() {
                    *crc = crc32c::crc32c_append(*crc, &bytes[at + *got..][..read]);
                }
                read
            }
            Sink::Fold(fold) => {
                let kept = carry.len;
                let most = scratch.len().min(kept + len - *got);
                scratch[..kept].copy_from_slice(&carry.bytes[..kept]);
                let read = socket.take(inbox, &mut scratch[kept..most]);
                if header.crc.is_some() {
                    *crc = crc32c::crc32c_append(*crc, &scratch[kept..][..read]);
                }
                let ready = kept + read;
                let whole = if *got + read == len { ready } else { ready - ready % GRAIN };
                if whole > 0 {
                    fold.fold(at + *got - kept, &scratch[..whole]);
                }
                carry.len = ready - whole;
                carry.bytes[..carry.len].copy_from_slice(&scratch[whole..ready]);
                read
            }
        };
        *got += read;
        read
    }

    /// A segment is there.
    pub(super) fn end(&mut self, arriving: &Arriving) -> Result<(), FrameError> {
        arriving.header.verify_crc(arriving.crc)?;
        self.done += arriving.got;
        self.segment += 1;
        Ok(())
    }
}

/// A segment of a message on its way in.
#[derive(Debug)]
pub(super) struct Arriving {
    header: Header,
    got: usize,
    // Of the bytes that are here.
    crc: u32,
    carry: Carry,
}

impl Arriving {
    pub(super) const fn new(header: Header) -> Self {
        Self { header, got: 0, crc: 0, carry: Carry { bytes: [0; GRAIN], len: 0 } }
    }

    pub(super) const fn missing(&self) -> usize {
        self.header.len as usize - self.got
    }

    pub(super) const fn has_ended(&self) -> bool {
        self.missing() == 0
    }
}

/// Bytes at the end of a piece that are too few to be folded in yet.
#[derive(Debug)]
struct Carry {
    bytes: [u8; GRAIN],
    len: usize,
}
