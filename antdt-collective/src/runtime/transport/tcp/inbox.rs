//! The bytes of one connection: those that came and wait, and the socket that they come from.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use antdt_core::MembershipVersion;

use crate::frame::{FrameError, FrameKind, Header, notice};
use crate::runtime::connection::BulkStream;

/// Bytes of headers and short messages that are read at once. A long message is copied once more up to this length.
const INBOX_BYTES: usize = 8 << 10;

/// Most bytes that are kept of what a peer sends early while the reason why it gave up is looked for behind them. A failing
/// rank ends the segment that it began; a message that is longer than this, and of which nothing is taken yet, hides the reason
/// until it is.
const AHEAD_BYTES: usize = 16 << 20;

/// The connection ended, or the peer's end of it.
#[derive(Debug)]
pub(super) struct Gone;

/// Bytes that came and have not been looked at.
#[derive(Debug)]
pub(super) struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    // Bytes of whole frames, from `start` on, among which is no reason for giving up. The last one may not be all there.
    searched: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; INBOX_BYTES], start: 0, end: 0, searched: 0 }
    }

    pub(super) fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn header(&self) -> Option<&[u8; Header::LEN]> {
        self.waiting().first_chunk()
    }

    pub(super) fn skip(&mut self, len: usize) {
        self.start += len;
        self.searched = 0;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > INBOX_BYTES {
                self.bytes = vec![0; INBOX_BYTES];
            }
        }
    }

    fn take(&mut self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.end - self.start);
        if len > 0 {
            into[..len].copy_from_slice(&self.bytes[self.start..][..len]);
            self.skip(len);
        }
        len
    }

    // Room behind what is waiting, for a whole header at least.
    fn room(&mut self) -> &mut [u8] {
        if self.bytes.len() - self.end < Header::LEN {
            self.pack();
            if self.bytes.len() - self.end < Header::LEN {
                self.bytes.resize(self.end + INBOX_BYTES, 0);
            }
        }
        &mut self.bytes[self.end..]
    }

    fn pack(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
    }

    // More room, as long as little is kept. Whether there is any.
    fn grow(&mut self) -> bool {
        if self.end == self.bytes.len() {
            self.pack();
            let len = self.bytes.len();
            if self.end == len && len < AHEAD_BYTES {
                self.bytes.resize((2 * len).min(AHEAD_BYTES), 0);
            }
        }
        self.end < self.bytes.len()
    }

    /// The first reason for giving up among the frames of a membership that wait; `None` if there is none, or not all of it.
    fn reason(&mut self, membership: MembershipVersion) -> Result<Option<(Header, &[u8])>, FrameError> {
        let waiting = &self.bytes[self.start..self.end];
        while let Some(bytes) = waiting.get(self.searched..).and_then(<[u8]>::first_chunk) {
            let header = Header::decode(bytes)?;
            if header.tag.membership > membership {
                return Ok(None);
            }
            let (len, payload) = (header.len as usize, self.searched + Header::LEN);
            let tells = header.kind == FrameKind::Abort && header.tag.membership == membership;
            if tells && len <= notice::NOTICE_MAX {
                return Ok(waiting.get(payload..payload + len).map(|payload| (header, payload)));
            }
            self.searched = payload + len;
        }
        Ok(None)
    }
}

/// The socket of a connection, and what is known about it.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) stream: BulkStream,
    pub(super) readable: bool,
    pub(super) writable: bool,
    /// The peer has shut its side, or is gone: nothing more will come.
    pub(super) closed: bool,
    /// Nothing more can be sent.
    pub(super) mute: bool,
    /// The connection ended otherwise than by the peer's shutting its side.
    pub(super) broken: bool,
    // As `closed`, with frames before it that came early.
    ended: bool,
}

impl Socket {
    pub(super) const fn new(stream: BulkStream) -> Self {
        Self {
            stream,
            readable: false,
            writable: false,
            closed: false,
            mute: false,
            broken: false,
            ended: false,
        }
    }

    /// Whether the end of what the peer sends has been seen.
    pub(super) const fn has_ended(&self) -> bool {
        self.closed || self.ended
    }

    /// Fills `into` as far as there is something: from the inbox first, then from the stream, together with the header
    /// behind it.
    pub(super) fn take(&mut self, inbox: &mut Inbox, into: &mut [u8]) -> usize {
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

    /// Reads headers and whatever short comes with them. Whether anything came.
    pub(super) fn fill(&mut self, inbox: &mut Inbox) -> bool {
        let read = self.read(&mut [IoSliceMut::new(inbox.room())]);
        inbox.end += read;
        read > 0
    }

    /// Reads on behind frames that came early, which stay, until there is a peer's reason for giving up; `None` if none has come.
    pub(super) fn look_ahead<'a>(
        &mut self,
        inbox: &'a mut Inbox,
        membership: MembershipVersion,
    ) -> Result<Option<(Header, &'a [u8])>, FrameError> {
        while inbox.reason(membership)?.is_none() && !self.has_ended() && inbox.grow() {
            self.readable = true;
            let read = self.read(&mut [IoSliceMut::new(&mut inbox.bytes[inbox.end..])]);
            inbox.end += read;
            // A reader of what waits finds the end behind it.
            self.ended |= std::mem::take(&mut self.closed);
            if read == 0 {
                break;
            }
        }
        inbox.reason(membership)
    }

    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> usize {
        let room: usize = into.iter().map(|slice| slice.len()).sum();
        while self.readable {
            match self.stream.read_vectored(into) {
                Ok(0) => (self.closed, self.readable) = (true, false),
                Ok(read) => {
                    // Less than asked for was all there was.
                    self.readable = read == room;
                    return read;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // Reset by a peer that died, or on the way.
                Err(_) => (self.closed, self.readable, self.broken) = (true, false, true),
            }
        }
        0
    }

    pub(super) fn write(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Gone> {
        let len: usize = slices.iter().map(|slice| slice.len()).sum();
        while self.writable && !self.mute {
            match self.stream.write_vectored(slices) {
                Ok(written) => {
                    self.writable = written == len;
                    return Ok(written);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    self.mute = true;
                    // A peer that has shut its side answers what still comes so.
                    self.broken |= e.kind() != io::ErrorKind::BrokenPipe;
                }
            }
        }
        if self.mute { Err(Gone) } else { Ok(0) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::runtime::transport::tcp::hello::connect_tag;

    const OURS: MembershipVersion = MembershipVersion(5);

    fn frame(kind: FrameKind, membership: u64, len: usize) -> Vec<u8> {
        let payload = vec![membership as u8; len];
        let header = Header::of(kind, connect_tag(MembershipVersion(membership)), 0, &payload);
        [&header.encode()[..], &payload].concat()
    }

    // The length of the first reason in an inbox that gets these bytes piece by piece.
    fn found(bytes: &[u8], pieces: usize) -> Result<Option<usize>, FrameError> {
        let mut inbox = Inbox::new();
        for piece in bytes.chunks(bytes.len().div_ceil(pieces).max(1)) {
            let mut piece = piece;
            while !piece.is_empty() {
                assert!(inbox.grow(), "these are few");
                let room = &mut inbox.bytes[inbox.end..];
                let len = room.len().min(piece.len());
                room[..len].copy_from_slice(&piece[..len]);
                (inbox.end, piece) = (inbox.end + len, &piece[len..]);
            }
            if let Some((_, reason)) = inbox.reason(OURS)? {
                return Ok(Some(reason.len()));
            }
            assert_eq!(inbox.waiting().first(), bytes.first(), "what came early stays");
        }
        Ok(None)
    }

    proptest! {
        #[test]
        fn the_first_reason_behind_early_frames_is_found_however_they_come(
            frames in prop::collection::vec((0..4_usize, 4..7_u64, 0..30_000_usize), 1..12),
            pieces in 1..20_usize,
            cut in any::<prop::sample::Index>(),
        ) {
            let kinds = [FrameKind::Data, FrameKind::Abort, FrameKind::Hello, FrameKind::Taking];
            // Nothing is looked for behind a newer membership.
            let (mut bytes, mut reason, mut is_over) = (Vec::new(), None, false);
            for (kind, membership, len) in frames {
                let len = if kinds[kind] == FrameKind::Abort { len % 2 * notice::NOTICE_MAX } else { len };
                bytes.extend(frame(kinds[kind], membership, len));
                is_over |= membership > OURS.0;
                if kinds[kind] == FrameKind::Abort && membership == OURS.0 && !is_over {
                    reason = reason.or(Some((len, bytes.len())));
                }
            }
            prop_assert_eq!(found(&bytes, pieces), Ok(reason.map(|(len, _)| len)));
            let cut = &bytes[..cut.index(bytes.len())];
            let there = reason.filter(|(_, end)| *end <= cut.len());
            prop_assert_eq!(found(cut, pieces), Ok(there.map(|(len, _)| len)));
        }

        #[test]
        fn early_bytes_of_any_kind_are_searched_without_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..1000),
            (len, change, at) in (0..2000_usize, any::<u8>(), any::<prop::sample::Index>()),
        ) {
            let _ = found(&bytes, 3);
            let mut frames = [frame(FrameKind::Data, 5, len), frame(FrameKind::Abort, 5, 10)].concat();
            let at = at.index(frames.len());
            frames[at] ^= change;
            let _ = found(&frames, 3);
        }
    }

    #[test]
    fn inbox_keeps_early_frames_up_to_its_bound_and_gives_their_room_back() {
        let mut inbox = Inbox::new();
        while inbox.grow() {
            inbox.end = inbox.bytes.len();
        }
        assert_eq!(inbox.waiting().len(), AHEAD_BYTES);
        inbox.skip(AHEAD_BYTES);
        assert_eq!(inbox.bytes.len(), INBOX_BYTES);
    }
}
