//! One connection to one peer, with the frames that are half sent and half received.

use std::io::IoSlice;

use antdt_core::{Holder, MembershipVersion, Rank};

use super::close;
use super::hello::{HELLO_LEN, Hello};
use super::inbox::{Gone, Inbox, Socket};
use super::message::{Arriving, Receiving, Sending};
use super::progress::Progress;
use crate::error::CollectiveError;
use crate::frame::notice::{self, AbortNotice};
use crate::frame::{FrameKind, Header, Tag, Timeliness};
use crate::runtime::connection::BulkStream;
use crate::runtime::transport::Transfer;

/// Bytes read at a time on their way into a fold. They are folded while they are still in the second level of the
/// cache; half as much costs more system calls than it saves, and four times as much falls out of the cache.
pub(super) const SCRATCH_BYTES: usize = 128 << 10;

/// Why a link stops.
#[derive(Debug)]
pub(super) enum Stop {
    /// The peer has aborted; [`Link::told`] is its reason.
    Told,
    /// The call cannot continue, because of what was received.
    Failed(CollectiveError),
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: Socket,
    pub(super) peer: Holder,
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
    // Bytes sent behind the last message of this membership, which a peer that leaves need not have. Without a message, none
    // counts.
    behind: usize,
}

/// Where the bytes after the last header go.
#[derive(Debug)]
enum Body {
    /// A header is expected next.
    None,
    /// The payload goes into this round's message.
    Wanted(Arriving),
    /// The payload is dropped: the message belongs to an earlier call.
    Dropped { left: usize },
    /// The payload is the reason for which the peer aborted.
    Notice { header: Header, bytes: Vec<u8> },
    /// The payload belongs to a later round or to another membership: the header is kept, and nothing is read
    /// until then.
    Later,
}

impl Link {
    pub(super) fn new(stream: BulkStream, peer: Holder, checksums: bool) -> Self {
        Self {
            socket: Socket::new(stream),
            peer,
            told: None,
            told_at: (0, 0),
            progress: Progress::default(),
            checksums,
            taking: None,
            outbox: Vec::new(),
            outbox_sent: 0,
            inbox: Inbox::new(),
            behind: usize::MAX,
            body: Body::None,
        }
    }

    /// What went over the connection since the last look; `None` if nothing did, or the system does not say.
    pub(super) fn transfer(&mut self, to: Rank) -> Option<Transfer> {
        let progress = Progress::of(self.socket.stream.socket())?;
        let Progress { bytes, time } = progress.since(std::mem::replace(&mut self.progress, progress));
        (bytes > 0).then_some(Transfer { to, bytes, time })
    }

    /// Whether reading now could yield anything but a message for later.
    pub(super) const fn listens(&self) -> bool {
        !self.socket.closed && !matches!(self.body, Body::Later)
    }

    /// Whether something is to be read that does not make the socket readable: it came together with what was awaited, or a
    /// codec has it.
    pub(super) fn holds(&self) -> bool {
        let came = matches!(self.body, Body::None) && self.inbox.header().is_some();
        self.listens() && (came || self.socket.stream.holds())
    }

    /// Whether frames wait that no call sends by itself.
    pub(super) const fn has_mail(&self) -> bool {
        !self.socket.mute && self.outbox_sent < self.outbox.len()
    }

    /// Whether the peer has said that it takes the message of this round.
    pub(super) fn takes(&self, tag: &Tag) -> bool {
        self.taking == Some((tag.sequence, tag.round))
    }

    /// Another round has begun: what came early may be due.
    pub(super) fn begin_round(&mut self) {
        self.socket.readable = true;
        self.socket.writable = true;
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
        self.socket.writable = true;
    }

    /// Sends what was posted, as far as the socket takes it.
    pub(super) fn flush(&mut self) -> Result<(), Gone> {
        while self.has_mail() && self.socket.writable {
            let slices = [IoSlice::new(&self.outbox[self.outbox_sent..])];
            let written = self.socket.write(&slices)?;
            self.outbox_sent += written;
            self.behind = self.behind.saturating_add(written);
        }
        if !self.has_mail() {
            self.outbox.clear();
            self.outbox_sent = 0;
        }
        Ok(())
    }

    /// Sends up to the end of a segment, so that sending and receiving take turns. Whether anything went out.
    pub(super) fn send(&mut self, sending: &mut Sending<'_>) -> Result<bool, Gone> {
        if sending.is_between() {
            self.flush()?;
            if self.has_mail() {
                return Ok(false);
            }
            sending.begin_segment(self.checksums);
        }
        let written = self.socket.write(&sending.slices())?;
        self.behind = 0;
        sending.sent(written);
        Ok(written > 0)
    }

    /// Reads what has come, a piece of `scratch`'s length or a segment at most: into `receiving` what belongs there,
    /// notices at any time. Whether any of the message came.
    pub(super) fn receive(
        &mut self,
        tag: &Tag,
        receiving: Option<&mut Receiving<'_, '_>>,
        scratch: &mut [u8],
    ) -> Result<bool, Stop> {
        loop {
            match &mut self.body {
                Body::Later => return Ok(false),
                Body::None if self.inbox.header().is_some() => {
                    self.route(tag, receiving.as_deref()).map_err(Stop::Failed)?;
                }
                Body::None => {
                    if !self.socket.fill(&mut self.inbox) {
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
                Body::Wanted(arriving) => {
                    let Some(receiving) = receiving else {
                        // A round ends only when its messages are complete.
                        return Err(Stop::Failed(self.corrupt("a segment that outlived its round")));
                    };
                    let read = receiving.take(arriving, &mut self.socket, &mut self.inbox, scratch);
                    let announces = receiving.announces(arriving);
                    let ended = arriving.has_ended().then(|| receiving.end(arriving));
                    if ended.is_some() {
                        self.body = Body::None;
                    }
                    ended.unwrap_or(Ok(())).map_err(|e| Stop::Failed(self.corrupt(&e.to_string())))?;
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
                Body::Wanted(arriving) => self.body = Body::Dropped { left: arriving.missing() },
                Body::None | Body::Later => {
                    let Some(header) = self.inbox.header() else {
                        if self.socket.fill(&mut self.inbox) {
                            continue;
                        }
                        return;
                    };
                    match Header::decode(header) {
                        Ok(header) if header.tag.membership > tag.membership => {
                            self.body = Body::Later;
                            return;
                        }
                        Ok(header) => self.open(header, tag.membership),
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
        self.socket.readable = true;
        self.drain(&older, scratch);
        if !matches!(self.body, Body::Later) {
            return if self.socket.closed { Err(Gone) } else { Ok(None) };
        }
        while self.inbox.waiting().len() < HELLO_LEN {
            if !self.socket.fill(&mut self.inbox) {
                return if self.socket.closed { Err(Gone) } else { Ok(None) };
            }
        }
        let hello = self.inbox.waiting().first_chunk().and_then(Hello::decode).ok_or(Gone)?;
        self.inbox.skip(HELLO_LEN);
        self.body = Body::None;
        self.told = None;
        self.taking = None;
        self.behind = usize::MAX;
        Ok(Some(hello))
    }

    /// Whether the peer could still be greeted over this connection.
    pub(super) const fn is_whole(&self) -> bool {
        !self.socket.has_ended() && !self.socket.mute
    }

    /// Looks behind what came early for the reason why the peer gave up.
    pub(super) fn look_ahead(&mut self, tag: &Tag) -> Result<(), Stop> {
        if !matches!(self.body, Body::Later) {
            return Ok(());
        }
        match self.socket.look_ahead(&mut self.inbox, tag.membership) {
            Ok(None) => Ok(()),
            Ok(Some((header, payload))) => {
                let heard = heard(self.peer, &header, payload);
                self.learn(&header, heard).map_err(Stop::Failed)?;
                Err(Stop::Told)
            }
            Err(e) => Err(Stop::Failed(self.corrupt(&e.to_string()))),
        }
    }

    /// Whether the connection has ended, as far as was looked, in a way that a peer needs to hear of: not in order, or before the
    /// peer's system had this rank's messages. What it acknowledged before it said that it ends, it had.
    pub(super) fn is_lost(&self) -> bool {
        // What a codec makes of so many bytes is not known.
        let counts = self.socket.has_ended() && self.behind < usize::MAX && !self.socket.stream.is_wrapped();
        let unacknowledged = || close::unacknowledged(self.socket.stream.socket());
        self.socket.broken
            || counts && usize::try_from(unacknowledged()).is_ok_and(|bytes| bytes > self.behind)
    }

    // The stream makes no sense any more.
    fn give_up(&mut self) {
        (self.socket.closed, self.socket.readable) = (true, false);
    }

    // Drops more of what is to be dropped. Whether anything moved.
    fn drop_on(&mut self, scratch: &mut [u8]) -> bool {
        let Body::Dropped { left } = &mut self.body else { return false };
        let most = scratch.len().min(*left);
        let dropped = if most == 0 { 0 } else { self.socket.take(&mut self.inbox, &mut scratch[..most]) };
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
        let mut filled = got;
        while filled < len {
            match self.socket.take(&mut self.inbox, &mut bytes[filled..]) {
                0 => break,
                read => filled += read,
            }
        }
        bytes.truncate(filled);
        if filled < len {
            return None;
        }
        let header = *header;
        let heard = heard(self.peer, &header, bytes);
        self.body = Body::None;
        Some(self.learn(&header, heard))
    }

    // What the peer says first is what counts.
    fn learn(&mut self, header: &Header, heard: Option<AbortNotice>) -> Result<(), CollectiveError> {
        let heard = heard.ok_or_else(|| self.corrupt("its reason for giving up"))?;
        if self.told.is_none() {
            (self.told, self.told_at) = (Some(heard), (header.tag.sequence, header.tag.round));
        }
        Ok(())
    }

    // Begins a frame of which only a notice of this membership counts.
    fn open(&mut self, header: Header, ours: MembershipVersion) {
        let len = header.len as usize;
        let tells = header.kind == FrameKind::Abort && header.tag.membership == ours;
        self.body = if tells && len <= notice::NOTICE_MAX {
            Body::Notice { header, bytes: Vec::new() }
        } else {
            Body::Dropped { left: len }
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
            FrameKind::Taking | FrameKind::Hello | FrameKind::Abort => {
                if header.kind == FrameKind::Taking && theirs == ours {
                    self.taking = Some((header.tag.sequence, header.tag.round));
                }
                self.open(header, ours);
            }
            FrameKind::Data => {
                self.body = match (tag.judge(&header.tag), receiving) {
                    (Timeliness::Old, _) => Body::Dropped { left: len },
                    (Timeliness::Early, waiting) if waiting.is_none_or(Receiving::is_done) => {
                        self.body = Body::Later;
                        return Ok(());
                    }
                    (Timeliness::Expected, Some(waiting)) if header.segment < waiting.segment() => {
                        Body::Dropped { left: len }
                    }
                    (Timeliness::Expected, Some(waiting)) if waiting.fits(&header) => {
                        Body::Wanted(Arriving::new(header))
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

// The notice of a peer, if it is whole and makes sense.
fn heard(peer: Holder, header: &Header, payload: &[u8]) -> Option<AbortNotice> {
    header.verify(payload).ok().and_then(|()| notice::decode(peer, payload))
}
