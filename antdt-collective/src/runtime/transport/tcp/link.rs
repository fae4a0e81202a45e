//! One connection to one peer, with the messages that are half sent and half received.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::time::Instant;

use antdt_core::{Holder, Rank};

use super::hello::{HELLO_LEN, Hello};
use super::progress::Progress;
use crate::error::CollectiveError;
use crate::frame::notice::{self, AbortNotice};
use crate::frame::{FrameKind, Header, Tag, Timeliness};
use crate::runtime::connection::BulkStream;
use crate::runtime::transport::{Sink, Transfer};

/// Bytes per frame. Long enough that a header and two system calls are nothing against it (half as much cost an all-reduce
/// of 1 MiB a twentieth of its time, twice as much gained nothing); short enough that what was begun can be ended when a
/// rank fails, and that what is checksummed is still in the cache when the kernel copies it. A multiple of 64, so that no
/// element is cut in two.
pub(super) const SEGMENT_BYTES: usize = 512 << 10;

/// Bytes of a message after which its sender is told that it is being taken, if its first segment does not end before.
/// Shorter messages are over as soon.
const ANNOUNCE_BYTES: usize = 256 << 10;

/// Bytes read at a time on their way into a fold. They are folded while they are still in the second level of the
/// cache; half as much costs more system calls than it saves, and four times as much falls out of the cache.
pub(super) const SCRATCH_BYTES: usize = 128 << 10;

/// Bytes of headers and short messages that are read at once. A long message is copied once more up to this length.
const INBOX_BYTES: usize = 8 << 10;

/// Pieces of a message are folded in multiples of this.
const GRAIN: usize = 64;

/// The connection ended, or the peer's end of it.
#[derive(Debug)]
pub(super) struct Gone;

/// Why a link stops.
#[derive(Debug)]
pub(super) enum Stop {
    /// The peer has closed the connection.
    Gone,
    /// The peer has aborted; [`Link::told`] is its reason.
    Told,
    /// The call cannot continue, because of what was received.
    Failed(CollectiveError),
}

impl From<Gone> for Stop {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) stream: BulkStream,
    pub(super) peer: Holder,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The peer has shut its side, or is gone: nothing more will come.
    pub(super) closed: bool,
    /// Nothing more can be sent.
    pub(super) mute: bool,
    /// What the peer said when it gave up.
    pub(super) told: Option<AbortNotice>,
    /// The call and round in which a member reported a timeout.
    pub(super) told_at: (u64, u32),
    /// The connection's progress when it was looked at last.
    progress: Progress,
    checksums: bool,
    // The call and round whose message the peer has said that it takes.
    taking: Option<(u64, u32)>,
    // Whole frames, and the rest of one that was begun; they go before anything else does.
    outbox: Vec<u8>,
    outbox_sent: usize,
    inbox: Inbox,
    body: Body,
}

/// Where the bytes after the last header go.
#[derive(Debug)]
enum Body {
    /// A header is expected next.
    None,
    /// The payload goes into this round's message. `crc` is that of the bytes received so far.
    Wanted { header: Header, got: usize, crc: u32, carry: Carry },
    /// The payload is dropped: the message belongs to an earlier call.
    Dropped { left: usize },
    /// The payload is the reason for which the peer aborted.
    Notice { header: Header, bytes: Vec<u8> },
    /// The payload belongs to a later round or to another membership: the header is kept, and nothing is read
    /// until then.
    Later,
}

/// Bytes at the end of a piece that are too few to be folded in yet.
#[derive(Debug)]
struct Carry {
    bytes: [u8; GRAIN],
    len: usize,
}

/// Bytes that came and have not been looked at.
#[derive(Debug)]
struct Inbox {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Inbox {
    fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    fn header(&self) -> Option<&[u8; Header::LEN]> {
        self.waiting().first_chunk()
    }

    fn skip(&mut self, len: usize) {
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.end - self.start);
        into[..len].copy_from_slice(&self.bytes[self.start..][..len]);
        self.skip(len);
        len
    }

    // Room behind what is waiting, for a whole header at least.
    fn room(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.end < Header::LEN {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        &mut self.bytes[self.end..]
    }
}

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

    /// Whether it is time to tell the peer that its message is being taken, now that `got` bytes of a segment are here, which
    /// may be all of it. Once a message.
    fn announces(&mut self, got: usize, segment_ends: bool) -> bool {
        let taken = self.done + got;
        let now = self.announces && taken < self.len && (segment_ends || taken >= ANNOUNCE_BYTES);
        self.announces &= !now;
        now
    }
}

impl Link {
    pub(super) fn new(stream: BulkStream, peer: Holder, checksums: bool) -> Self {
        Self {
            stream,
            peer,
            readable: false,
            writable: false,
            closed: false,
            mute: false,
            told: None,
            told_at: (0, 0),
            progress: Progress::default(),
            checksums,
            taking: None,
            outbox: Vec::new(),
            outbox_sent: 0,
            inbox: Inbox { bytes: vec![0; INBOX_BYTES].into(), start: 0, end: 0 },
            body: Body::None,
        }
    }

    /// What went over the connection since the last look; `None` if nothing did, or the system does not say.
    pub(super) fn transfer(&mut self, to: Rank) -> Option<Transfer> {
        let progress = Progress::of(self.stream.socket())?;
        let Progress { bytes, time } = progress.since(std::mem::replace(&mut self.progress, progress));
        (bytes > 0).then_some(Transfer { to, bytes, time })
    }

    /// Whether reading now could yield anything but a message for later.
    pub(super) const fn listens(&self) -> bool {
        !self.closed && !matches!(self.body, Body::Later)
    }

    /// Whether frames wait that no call sends by itself.
    pub(super) const fn has_mail(&self) -> bool {
        !self.mute && self.outbox_sent < self.outbox.len()
    }

    /// Whether the peer has said that it takes the message of this round.
    pub(super) fn takes(&self, tag: &Tag) -> bool {
        self.taking == Some((tag.sequence, tag.round))
    }

    /// Another round has begun: what came early may be due.
    pub(super) fn begin_round(&mut self) {
        self.readable = true;
        self.writable = true;
        if matches!(self.body, Body::Later) {
            self.body = Body::None;
        }
    }

    /// Puts a frame behind what was begun.
    pub(super) fn post(&mut self, begun: &[u8], header: &Header, payload: &[u8]) {
        self.outbox.drain(..std::mem::take(&mut self.outbox_sent));
        // What was begun is never begun before the outbox is empty.
        self.outbox.extend_from_slice(begun);
        self.outbox.extend_from_slice(&header.encode());
        self.outbox.extend_from_slice(payload);
    }

    /// Puts the greeting of another membership behind all that is still to go.
    pub(super) fn greet(&mut self, hello: &[u8; HELLO_LEN]) {
        self.outbox.drain(..std::mem::take(&mut self.outbox_sent));
        self.outbox.extend_from_slice(hello);
        self.writable = true;
    }

    /// Sends what was posted, as far as the socket takes it.
    pub(super) fn flush(&mut self) -> Result<(), Gone> {
        while self.has_mail() && self.writable {
            let slices = [IoSlice::new(&self.outbox[self.outbox_sent..])];
            self.outbox_sent += write(&mut self.stream, &mut self.writable, &mut self.mute, &slices)?;
        }
        if !self.has_mail() {
            self.outbox.clear();
            self.outbox_sent = 0;
        }
        Ok(())
    }

    /// Sends up to the end of a segment, so that sending and receiving take turns. Whether anything went out.
    pub(super) fn send(&mut self, sending: &mut Sending<'_>) -> Result<bool, Gone> {
        if sending.sent == 0 {
            self.flush()?;
            if self.has_mail() {
                return Ok(false);
            }
            let (payload, tag) = (sending.payload(), sending.tag);
            let header = if self.checksums {
                Header::of(FrameKind::Data, tag, sending.segment, payload)
            } else {
                Header::plain(FrameKind::Data, tag, sending.segment, payload.len())
            };
            sending.header = header.encode();
        }
        let payload = sending.payload();
        let slices = [
            IoSlice::new(&sending.header[sending.sent.min(Header::LEN)..]),
            IoSlice::new(&payload[sending.sent.saturating_sub(Header::LEN)..]),
        ];
        let slices = &slices[usize::from(sending.sent >= Header::LEN)..];
        let written = write(&mut self.stream, &mut self.writable, &mut self.mute, slices)?;
        sending.sent += written;
        if sending.sent == Header::LEN + payload.len() {
            sending.done += payload.len();
            sending.segment += 1;
            sending.sent = 0;
        }
        Ok(written > 0)
    }

    /// Reads what has come, a piece of `scratch`'s length or a segment at most: into `receiving` what belongs there,
    /// notices at any time. Whether any of the message came.
    pub(super) fn receive(
        &mut self,
        tag: &Tag,
        mut receiving: Option<&mut Receiving<'_, '_>>,
        scratch: &mut [u8],
    ) -> Result<bool, Stop> {
        loop {
            match &mut self.body {
                Body::Later => return Ok(false),
                Body::None if self.inbox.header().is_some() => {
                    self.route(tag, receiving.as_deref()).map_err(Stop::Failed)?;
                }
                Body::None => {
                    if !self.read_on() {
                        return Ok(false);
                    }
                }
                Body::Dropped { .. } => {
                    if !self.drop_on(scratch) {
                        return Ok(false);
                    }
                }
                Body::Notice { .. } => {
                    return match self.hear_notice() {
                        Some(Ok(())) => Err(Stop::Told),
                        Some(Err(error)) => Err(Stop::Failed(error)),
                        None => Ok(false),
                    };
                }
                Body::Wanted { header, got, crc, carry } => {
                    let Some(receiving) = receiving.as_deref_mut() else {
                        // A round ends only when its messages are complete.
                        return Err(Stop::Failed(self.corrupt("a segment that outlived its round")));
                    };
                    let socket = &mut Socket {
                        stream: &mut self.stream,
                        readable: &mut self.readable,
                        closed: &mut self.closed,
                    };
                    let (len, at) = (header.len as usize, receiving.done);
                    let read = match receiving.sink {
                        Sink::Place(bytes) => {
                            let read = socket.take(&mut self.inbox, &mut bytes[at + *got..at + len]);
                            if header.crc.is_some() {
                                *crc = crc32c::crc32c_append(*crc, &bytes[at + *got..][..read]);
                            }
                            read
                        }
                        Sink::Fold(fold) => {
                            let kept = carry.len;
                            let most = scratch.len().min(kept + len - *got);
                            scratch[..kept].copy_from_slice(&carry.bytes[..kept]);
                            let read = socket.take(&mut self.inbox, &mut scratch[kept..most]);
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
                    let announces = receiving.announces(*got, *got == len);
                    if *got == len {
                        let intact = header.verify_crc(*crc);
                        self.body = Body::None;
                        intact.map_err(|e| Stop::Failed(self.corrupt(&e.to_string())))?;
                        receiving.done += len;
                        receiving.segment += 1;
                    }
                    if announces {
                        self.post(&[], &Header::plain(FrameKind::Taking, *tag, 0, 0), &[]);
                    }
                    return Ok(read > 0);
                }
            }
        }
    }

    /// Reads and drops whatever comes, notices apart, up to what belongs to another membership. For when the call has
    /// failed and only its reason still counts.
    pub(super) fn drain(&mut self, tag: &Tag, scratch: &mut [u8]) {
        loop {
            match &self.body {
                Body::Wanted { header, got, .. } => {
                    self.body = Body::Dropped { left: header.len as usize - got };
                }
                Body::Later => {
                    let header = self.inbox.header().and_then(|header| Header::decode(header).ok());
                    if header.is_none_or(|header| header.tag.membership > tag.membership) {
                        return;
                    }
                    self.body = Body::None;
                }
                Body::None => {
                    let Some(header) = self.inbox.header() else {
                        if self.read_on() {
                            continue;
                        }
                        return;
                    };
                    match Header::decode(header) {
                        Ok(header) if header.tag.membership > tag.membership => self.body = Body::Later,
                        Ok(header) => self.open(header),
                        Err(_) => return self.give_up(),
                    }
                }
                Body::Dropped { .. } => {
                    if !self.drop_on(scratch) {
                        return;
                    }
                }
                Body::Notice { .. } => match self.hear_notice() {
                    Some(Ok(())) => {}
                    Some(Err(_)) => return self.give_up(),
                    None => return,
                },
            }
        }
    }

    /// The peer's greeting in the membership `ours`, behind whatever is left of older ones; `None` if it is not there
    /// yet. A greeting of a newer membership is returned as well.
    pub(super) fn greeting(&mut self, ours: &Tag, scratch: &mut [u8]) -> Result<Option<Hello>, Gone> {
        // All that is older than the greeting belongs to memberships before.
        let mut older = *ours;
        older.membership.0 -= 1;
        self.readable = true;
        self.drain(&older, scratch);
        if !matches!(self.body, Body::Later) {
            return if self.closed { Err(Gone) } else { Ok(None) };
        }
        while self.inbox.waiting().len() < HELLO_LEN {
            if !self.read_on() {
                return if self.closed { Err(Gone) } else { Ok(None) };
            }
        }
        let hello = self.inbox.waiting().first_chunk().and_then(Hello::decode).ok_or(Gone)?;
        self.inbox.skip(HELLO_LEN);
        self.body = Body::None;
        self.told = None;
        self.taking = None;
        Ok(Some(hello))
    }

    /// Whether the peer could still be greeted over this connection.
    pub(super) const fn is_whole(&self) -> bool {
        !self.closed && !self.mute
    }

    // The stream makes no sense any more.
    fn give_up(&mut self) {
        (self.closed, self.readable) = (true, false);
    }

    // Reads headers and whatever short comes with them. Whether anything came.
    fn read_on(&mut self) -> bool {
        let socket =
            &mut Socket { stream: &mut self.stream, readable: &mut self.readable, closed: &mut self.closed };
        let read = socket.read(&mut [IoSliceMut::new(self.inbox.room())]);
        self.inbox.end += read;
        read > 0
    }

    // Drops more of what is to be dropped. Whether anything moved.
    fn drop_on(&mut self, scratch: &mut [u8]) -> bool {
        let Body::Dropped { left } = &mut self.body else { return false };
        let most = scratch.len().min(*left);
        let socket =
            &mut Socket { stream: &mut self.stream, readable: &mut self.readable, closed: &mut self.closed };
        let dropped = if most == 0 { 0 } else { socket.take(&mut self.inbox, &mut scratch[..most]) };
        *left -= dropped;
        let over = *left == 0;
        if over {
            self.body = Body::None;
        }
        over || dropped > 0
    }

    // Reads more of a notice; `None` until it is complete.
    fn hear_notice(&mut self) -> Option<Result<(), CollectiveError>> {
        let Body::Notice { header, bytes } = &mut self.body else { return None };
        let (len, got) = (header.len as usize, bytes.len());
        bytes.resize(len, 0);
        let socket =
            &mut Socket { stream: &mut self.stream, readable: &mut self.readable, closed: &mut self.closed };
        let mut filled = got;
        while filled < len {
            match socket.take(&mut self.inbox, &mut bytes[filled..]) {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        if filled < len {
            return None;
        }
        let at = (header.tag.sequence, header.tag.round);
        let heard = header.verify(bytes).ok().and_then(|()| notice::decode(self.peer, bytes));
        self.body = Body::None;
        Some(match heard {
            Some(heard) => {
                if self.told.is_none() {
                    (self.told, self.told_at) = (Some(heard), at);
                }
                Ok(())
            }
            None => Err(self.corrupt("its reason for giving up")),
        })
    }

    // Begins a frame of which only a notice counts.
    fn open(&mut self, header: Header) {
        let len = header.len as usize;
        self.body = match header.kind {
            FrameKind::Abort if len <= notice::NOTICE_MAX => Body::Notice { header, bytes: Vec::new() },
            FrameKind::Data | FrameKind::Hello | FrameKind::Abort | FrameKind::Taking => {
                Body::Dropped { left: len }
            }
        };
        self.inbox.skip(Header::LEN);
    }

    // Decides where the body of the header that has come goes.
    fn route(&mut self, tag: &Tag, receiving: Option<&Receiving<'_, '_>>) -> Result<(), CollectiveError> {
        let Some(bytes) = self.inbox.header() else { return Ok(()) };
        let header = Header::decode(bytes).map_err(|e| self.corrupt(&e.to_string()))?;
        let len = header.len as usize;
        let (ours, theirs) = (tag.membership, header.tag.membership);
        if theirs > ours && receiving.is_none_or(Receiving::is_done) {
            // A member that has gone on to a newer group has sent all that this rank needs of it.
            self.body = Body::Later;
            return Ok(());
        }
        if theirs > ours {
            return Err(CollectiveError::StaleMembership { ours, theirs });
        }
        match header.kind {
            FrameKind::Hello if theirs == ours => return Err(self.corrupt("a second greeting")),
            FrameKind::Abort if len > notice::NOTICE_MAX => return Err(self.corrupt("too long a reason")),
            FrameKind::Abort if theirs == ours => self.open(header),
            FrameKind::Taking => {
                if theirs == ours {
                    self.taking = Some((header.tag.sequence, header.tag.round));
                }
                self.body = Body::Dropped { left: len };
                self.inbox.skip(Header::LEN);
            }
            FrameKind::Hello | FrameKind::Abort => {
                self.body = Body::Dropped { left: len };
                self.inbox.skip(Header::LEN);
            }
            FrameKind::Data => {
                self.body = match (tag.judge(&header.tag), receiving) {
                    (Timeliness::Old, _) => Body::Dropped { left: len },
                    (Timeliness::Early, waiting) if waiting.is_none_or(Receiving::is_done) => {
                        self.body = Body::Later;
                        return Ok(());
                    }
                    (Timeliness::Expected, Some(waiting)) if header.segment < waiting.segment => {
                        Body::Dropped { left: len }
                    }
                    (Timeliness::Expected, Some(waiting)) if fits(&header, waiting) => {
                        Body::Wanted { header, got: 0, crc: 0, carry: Carry { bytes: [0; GRAIN], len: 0 } }
                    }
                    _ => {
                        let theirs = format!("{}, segment {} of {len} bytes", header.tag, header.segment);
                        let (peer, ours) = (self.peer, tag.to_string());
                        return Err(CollectiveError::Mismatch { peer, theirs, ours });
                    }
                };
                self.inbox.skip(Header::LEN);
            }
        }
        Ok(())
    }

    fn corrupt(&self, what: &str) -> CollectiveError {
        CollectiveError::Corrupt { peer: self.peer, what: what.to_owned() }
    }
}

// Segments come in order and cut no element in two.
fn fits(header: &Header, receiving: &Receiving<'_, '_>) -> bool {
    let (len, missing) = (header.len as usize, receiving.missing());
    header.segment == receiving.segment && len > 0 && (len == missing || (len < missing && len % GRAIN == 0))
}

/// A stream to be read, and what is known about it.
struct Socket<'a> {
    stream: &'a mut BulkStream,
    readable: &'a mut bool,
    closed: &'a mut bool,
}

impl Socket<'_> {
    /// Fills `into` as far as there is something: from the inbox first, then from the stream, together with the header
    /// behind it.
    fn take(&mut self, inbox: &mut Inbox, into: &mut [u8]) -> usize {
        let waiting = inbox.take(into);
        if waiting > 0 {
            return waiting;
        }
        let len = into.len();
        let behind = &mut inbox.room()[..Header::LEN];
        let read = self.read(&mut [IoSliceMut::new(into), IoSliceMut::new(behind)]);
        inbox.end += read.saturating_sub(len);
        read.min(len)
    }

    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> usize {
        let room: usize = into.iter().map(|slice| slice.len()).sum();
        while *self.readable {
            match self.stream.read_vectored(into) {
                Ok(0) => (*self.closed, *self.readable) = (true, false),
                Ok(read) => {
                    // Less than asked for was all there was.
                    *self.readable = read == room;
                    return read;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => *self.readable = false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Reset by a peer that died.
                Err(_) => (*self.closed, *self.readable) = (true, false),
            }
        }
        0
    }
}

fn write(
    stream: &mut BulkStream,
    writable: &mut bool,
    mute: &mut bool,
    slices: &[IoSlice<'_>],
) -> Result<usize, Gone> {
    let len: usize = slices.iter().map(|slice| slice.len()).sum();
    while *writable && !*mute {
        match stream.write_vectored(slices) {
            Ok(written) => {
                *writable = written == len;
                return Ok(written);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => *writable = false,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => *mute = true,
        }
    }
    if *mute { Err(Gone) } else { Ok(0) }
}
