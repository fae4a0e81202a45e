//! The connection to one peer, with the messages that are half sent and half received.
#![allow(unsafe_code, reason = "memory that adapters read and write; `safe` says whose it is when")]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use antdt_collective::CollectiveError;
use antdt_collective::frame::{FrameKind, Header, Tag, Timeliness};
use antdt_collective::runtime::transport::{Exchange, Sink};
use antdt_core::{Holder, Rank};

use super::plane::Regions;
use super::result::{VerbsError, WorkStatus};
use super::safe::{Arrival, Completion, Gather, MemoryRegion, QueuePair, Remote};
use crate::verbs::{Control, Endpoint, Immediate, Landing, Owed, Shape, Window};

/// Pieces of a message end at multiples of this, or at its end: no element is cut in two.
const GRAIN: usize = 64;

/// Longest piece that is written where it belongs. Long enough that a completion is nothing against it, short enough that
/// a peer that stalls is noticed.
const PLACED_MAX: usize = 1 << 20;

/// Bytes still to come from which it pays to name their place: an answer that crosses the pieces on their way.
const PLACE_MIN: usize = 64 << 10;

/// Payload from which it is sent from where it lies, if that is registered. A shorter one is copied sooner than its
/// completion is waited for.
const BORROW_MIN: usize = 4 << 10;

/// What the number of a work request says: the peer, and which of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    Piece,
    Control,
    Receive(u32),
}

impl Request {
    pub(super) const fn id(self, rank: Rank) -> u64 {
        let low = match self {
            Self::Piece => 0,
            Self::Control => 1,
            Self::Receive(index) => 2 + index,
        };
        (rank.0 as u64) << 32 | low as u64
    }

    #[allow(clippy::cast_possible_truncation, reason = "both halves have 32 bits")]
    pub(super) const fn of(id: u64) -> (Rank, Self) {
        let request = match id as u32 {
            0 => Self::Piece,
            1 => Self::Control,
            receive => Self::Receive(receive - 2),
        };
        (Rank((id >> 32) as u32), request)
    }
}

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Sending<'a> {
    bytes: &'a [u8],
    // The registered memory that it lies in.
    home: Option<Arc<MemoryRegion>>,
    done: usize,
    segment: u32,
    // Numbers of its pieces.
    pieces: Range<u64>,
    // Whether an adapter reads the caller's bytes until its pieces complete.
    borrowed: bool,
}

impl<'a> Sending<'a> {
    pub(super) fn new(bytes: &'a [u8], regions: &Regions) -> Self {
        let home = if bytes.len() >= BORROW_MIN { regions.home(bytes) } else { None };
        Self { bytes, home, done: 0, segment: 0, pieces: 0..0, borrowed: false }
    }
}

/// A message on its way in.
#[derive(Debug)]
pub(super) struct Receiving<'a, 'b> {
    sink: &'a mut Sink<'b>,
    len: usize,
    done: usize,
    segment: u32,
    // Number of its first piece.
    first: Option<u64>,
    // Whether the peer was told where the rest belongs.
    placed: bool,
}

impl<'a, 'b> Receiving<'a, 'b> {
    pub(super) fn new(sink: &'a mut Sink<'b>) -> Self {
        let len = sink.len_bytes();
        Self { sink, len, done: 0, segment: 0, first: None, placed: false }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.done == self.len
    }

    /// Bytes not yet taken.
    pub(super) const fn missing(&self) -> usize {
        self.len - self.done
    }

    pub(super) const fn has_begun(&self) -> bool {
        self.done > 0
    }
}

/// A place that the peer named for the rest of a message.
#[derive(Debug, Clone, Copy)]
struct Place {
    first: u64,
    address: u64,
    len: u64,
    key: u32,
}

/// A part of registered memory.
#[derive(Debug, Clone)]
pub(super) struct Part {
    pub(super) region: Arc<MemoryRegion>,
    pub(super) at: usize,
}

impl Part {
    fn gather(&self, offset: usize, len: usize) -> Gather {
        Gather::of(&self.region, self.at + offset, u32::try_from(len).expect("pieces are short"))
    }
}

/// The memory of a link.
#[derive(Debug)]
pub(super) struct Memory {
    /// Slots that the peer writes.
    pub(super) landing: Part,
    /// As many, from which pieces are sent.
    pub(super) staging: Part,
    /// Buffers for the peer's control messages.
    pub(super) messages: Part,
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: Rank,
    pub(super) peer: Holder,
    pub(super) pair: Arc<QueuePair>,
    /// How the connection broke.
    pub(super) broken: Option<WorkStatus>,
    memory: Memory,
    shape: Shape,
    inline_bytes: usize,
    remote: Endpoint,
    window: Window,
    owed: Owed,
    // Pieces that came, and that are not taken: each with its bytes, if they lie where they belong.
    arrived: VecDeque<Option<u64>>,
    came: u64,
    place: Option<Place>,
    // Control messages that could not be sent yet, and those that the adapter has.
    controls: VecDeque<Control>,
    controls_out: u32,
    // What the peer did that no member does.
    nonsense: Option<String>,
}

impl Link {
    pub(super) fn new(
        (rank, peer): (Rank, Holder),
        pair: Arc<QueuePair>,
        memory: Memory,
        shape: Shape,
        inline_bytes: u32,
        remote: Endpoint,
    ) -> Self {
        Self {
            rank,
            peer,
            pair,
            broken: None,
            memory,
            shape,
            inline_bytes: inline_bytes as usize,
            remote,
            window: Window::new(shape.slots),
            owed: Owed::new(shape.slots),
            arrived: VecDeque::new(),
            came: 0,
            place: None,
            controls: VecDeque::new(),
            controls_out: 0,
            nonsense: None,
        }
    }

    /// Posts a receive with its buffer, before the connection is made or once the last message in it was read.
    pub(super) fn post_receive(
        pair: &QueuePair,
        messages: &Part,
        rank: Rank,
        index: u32,
    ) -> Result<(), VerbsError> {
        let into = messages.gather(index as usize * Control::LEN, Control::LEN);
        // SAFETY: each buffer belongs to one receive at a time: it is posted anew only after it completed.
        unsafe { pair.receive(Request::Receive(index).id(rank), into) }
    }

    /// Takes note of a work request that ended.
    pub(super) fn complete(&mut self, request: Request, completion: &Completion) {
        if !completion.status.is_success() {
            // Those behind the first are only dropped.
            self.broken.get_or_insert(completion.status);
            return;
        }
        match (request, completion.arrival) {
            (Request::Piece, _) => self.window.complete(),
            (Request::Control, _) => self.controls_out -= 1,
            (Request::Receive(index), arrival) => {
                match arrival {
                    Some(Arrival::Write(len, bits)) => self.note(len, Immediate::from_bits(bits)),
                    Some(Arrival::Message(len)) => self.hear(index, len as usize),
                    None => self.nonsense = Some("a receive without an arrival".to_owned()),
                }
                // Fails on a connection that breaks, which shows elsewhere.
                let _ = Self::post_receive(&self.pair, &self.memory.messages, self.rank, index);
            }
        }
    }

    fn note(&mut self, len: u32, immediate: Immediate) {
        if !immediate.is(self.came) || self.arrived.len() >= self.shape.slots as usize {
            self.nonsense = Some(format!("{immediate:?} where piece {} was due", self.came));
            return;
        }
        self.came += 1;
        self.arrived.push_back((immediate.landing == Landing::Placed).then_some(u64::from(len)));
    }

    fn hear(&mut self, index: u32, len: usize) {
        let Part { region, at } = &self.memory.messages;
        let at = at + index as usize * Control::LEN;
        // SAFETY: the receive of this buffer has completed and is not posted anew yet.
        let bytes = unsafe { region.bytes(at, len.min(Control::LEN)) };
        match Control::decode(bytes) {
            Some(Control::Taken(taken)) if self.window.credit(taken) => {}
            Some(Control::Place { first, address, len, key }) => {
                self.place = Some(Place { first, address, len, key });
            }
            other => self.nonsense = Some(format!("a control message {other:?}")),
        }
    }

    /// What the peer did that no member does, as an error.
    pub(super) fn check(&self) -> Result<(), CollectiveError> {
        match &self.nonsense {
            Some(what) => Err(CollectiveError::Corrupt { peer: self.peer, what: what.clone() }),
            None => Ok(()),
        }
    }

    /// Sends the control messages that wait, and says what was taken if it is time.
    pub(super) fn flush(&mut self) -> Result<(), CollectiveError> {
        if self.broken.is_some() {
            return Ok(());
        }
        // Half of the queue is for pieces.
        while self.controls_out < self.shape.sends() - self.shape.slots {
            let control = match (self.controls.front(), self.owed.due()) {
                (Some(control), _) => *control,
                (None, Some(taken)) => Control::Taken(taken),
                (None, None) => return Ok(()),
            };
            match self.pair.send(Request::Control.id(self.rank), &control.encode()) {
                Ok(()) => self.controls_out += 1,
                Err(VerbsError::Full) => return Ok(()),
                Err(error) => return Err(self.refused(&error)),
            }
            if self.controls.pop_front().is_none() {
                self.owed.tell();
            }
        }
        Ok(())
    }

    /// Sends what can be sent; whether anything was.
    pub(super) fn send(&mut self, sending: &mut Sending<'_>, tag: &Tag) -> Result<bool, CollectiveError> {
        let mut moved = false;
        while self.broken.is_none() && sending.done < sending.bytes.len() {
            let Some(number) = self.window.next() else { break };
            if sending.done == 0 {
                sending.pieces = number..number;
                self.place = None;
            }
            let place = self.place.filter(|place| {
                place.first == sending.pieces.start && place.len == sending.bytes.len() as u64
            });
            let len = match place {
                Some(place) if sending.done > 0 => self.send_placed(sending, number, place),
                _ => self.send_slot(sending, number, tag),
            };
            match len {
                Ok(len) => sending.done += len,
                Err(VerbsError::Full) => break,
                Err(error) => return Err(self.refused(&error)),
            }
            self.window.send();
            sending.pieces.end = number + 1;
            moved = true;
        }
        Ok(moved)
    }

    // A piece behind its header into the peer's slot; its length.
    fn send_slot(&self, sending: &mut Sending<'_>, number: u64, tag: &Tag) -> Result<usize, VerbsError> {
        let offset = usize::try_from(self.shape.offset(number)).expect("slots lie in memory");
        let rest = &sending.bytes[sending.done..];
        let payload = &rest[..rest.len().min(self.shape.slot_bytes as usize - Header::LEN)];
        let header = Header::plain(FrameKind::Data, *tag, sending.segment, payload.len()).encode();
        let to = Remote { address: self.remote.slots + offset as u64, key: self.remote.key };
        let immediate = Immediate::new(number, Landing::Slot).bits();
        let id = Request::Piece.id(self.rank);
        let whole = Header::LEN + payload.len();
        let Part { region, at } = &self.memory.staging;
        // SAFETY: the window gives out a number only when the piece that had this slot before is complete.
        let slot = unsafe { region.bytes_mut(at + offset, self.shape.slot_bytes as usize) };
        slot[..Header::LEN].copy_from_slice(&header);
        let home = sending.home.as_ref().filter(|_| payload.len() >= BORROW_MIN);
        if let Some(home) = home {
            let from = [self.memory.staging.gather(offset, Header::LEN), lying_in(home, payload)];
            // SAFETY: the slot as above; the caller's bytes are borrowed by `sending`, which is not done before its
            // pieces are complete, and a call that fails gives the queue pair up.
            unsafe { self.pair.write(id, &from, to, immediate) }?;
            sending.borrowed = true;
        } else {
            slot[Header::LEN..whole].copy_from_slice(payload);
            if whole <= self.inline_bytes {
                self.pair.write_inline(id, &slot[..whole], to, immediate)?;
            } else {
                let from = [self.memory.staging.gather(offset, whole)];
                // SAFETY: the slot as above.
                unsafe { self.pair.write(id, &from, to, immediate) }?;
            }
        }
        sending.segment += 1;
        Ok(payload.len())
    }

    // A piece to where it belongs; its length.
    fn send_placed(&self, sending: &mut Sending<'_>, number: u64, place: Place) -> Result<usize, VerbsError> {
        let rest = &sending.bytes[sending.done..];
        let to = Remote { address: place.address + sending.done as u64, key: place.key };
        let immediate = Immediate::new(number, Landing::Placed).bits();
        let id = Request::Piece.id(self.rank);
        if let Some(home) = &sending.home {
            let payload = &rest[..rest.len().min(PLACED_MAX)];
            // SAFETY: as in `send_slot`.
            unsafe { self.pair.write(id, &[lying_in(home, payload)], to, immediate) }?;
            sending.borrowed = true;
            return Ok(payload.len());
        }
        let offset = usize::try_from(self.shape.offset(number)).expect("slots lie in memory");
        let payload = &rest[..rest.len().min(self.shape.slot_bytes as usize)];
        let Part { region, at } = &self.memory.staging;
        // SAFETY: as in `send_slot`.
        let slot = unsafe { region.bytes_mut(at + offset, payload.len()) };
        slot.copy_from_slice(payload);
        // SAFETY: as in `send_slot`.
        unsafe { self.pair.write(id, &[self.memory.staging.gather(offset, payload.len())], to, immediate) }?;
        Ok(payload.len())
    }

    /// Whether a message was handed over: all of it is under way, and none of it is read from the caller's memory.
    pub(super) const fn is_sent(&self, sending: &Sending<'_>) -> bool {
        sending.done == sending.bytes.len()
            && (!sending.borrowed || self.window.completed() >= sending.pieces.end)
    }

    /// Bytes of a message that are not handed over, as far as is known here.
    pub(super) fn unsent(&self, sending: &Sending<'_>) -> usize {
        if self.is_sent(sending) { 0 } else { (sending.bytes.len() - sending.done).max(1) }
    }

    /// Whether the peer has begun to take a message.
    pub(super) const fn is_being_taken(&self, sending: &Sending<'_>) -> bool {
        sending.done > 0 && self.window.taken() > sending.pieces.start
    }

    /// Pieces that are under way, of all messages.
    pub(super) const fn under_way(&self) -> u64 {
        self.window.sent() - self.window.completed()
    }

    /// Pieces that were sent, of all messages.
    #[cfg(test)]
    pub(super) const fn pieces_sent(&self) -> u64 {
        self.window.sent()
    }

    /// The tag of the first message that came and is not taken.
    pub(super) fn waiting_tag(&self) -> Result<Option<Tag>, CollectiveError> {
        match self.arrived.front() {
            Some(None) => self.header().map(|header| Some(header.tag)),
            Some(Some(_)) | None => Ok(None),
        }
    }

    // Of the piece that came first, which lies in a slot.
    fn header(&self) -> Result<Header, CollectiveError> {
        let bytes = self.slot(Header::LEN);
        let header = bytes.first_chunk().map(Header::decode).expect("a slot is longer than a header");
        let header = header.map_err(|e| self.corrupt(&e.to_string()))?;
        let fits = header.len as usize <= self.shape.slot_bytes as usize - Header::LEN;
        if fits { Ok(header) } else { Err(self.corrupt("a piece longer than its slot")) }
    }

    // The slot of the piece that came first.
    fn slot(&self, len: usize) -> &[u8] {
        let first = self.came - self.arrived.len() as u64;
        let offset = usize::try_from(self.shape.offset(first)).expect("slots lie in memory");
        let Part { region, at } = &self.memory.landing;
        // SAFETY: the peer writes the slot again only after it was told that the piece is taken.
        unsafe { region.bytes(at + offset, len) }
    }

    // The piece that came first is taken, and its slot free.
    fn release(&mut self) {
        self.arrived.pop_front();
        self.owed.take();
    }

    /// Drops pieces of earlier calls; whether there were any.
    pub(super) fn drop_old(&mut self, tag: &Tag) -> Result<bool, CollectiveError> {
        let mut moved = false;
        while let Some(theirs) = self.waiting_tag()? {
            if tag.judge(&theirs) != Timeliness::Old {
                break;
            }
            self.release();
            moved = true;
        }
        Ok(moved)
    }

    /// Takes what has come of a message; whether anything moved.
    pub(super) fn receive(
        &mut self,
        receiving: &mut Receiving<'_, '_>,
        call: &Exchange,
        regions: &Regions,
    ) -> Result<bool, CollectiveError> {
        let mut moved = false;
        while !receiving.is_done() {
            match self.arrived.front() {
                None => break,
                Some(Some(len)) => {
                    // The adapter has written them already.
                    let len = usize::try_from(*len).unwrap_or(usize::MAX);
                    if !receiving.placed || len > receiving.missing() {
                        return Err(self.corrupt("bytes for a place that was not named"));
                    }
                    receiving.done += len;
                    self.release();
                }
                Some(None) => self.take_slot(receiving, call, regions)?,
            }
            moved = true;
        }
        Ok(moved)
    }

    fn take_slot(
        &mut self,
        receiving: &mut Receiving<'_, '_>,
        call: &Exchange,
        regions: &Regions,
    ) -> Result<(), CollectiveError> {
        let header = self.header()?;
        match call.tag.judge(&header.tag) {
            Timeliness::Old => {
                self.release();
                return Ok(());
            }
            Timeliness::Expected if fits(&header, receiving) => {}
            Timeliness::Expected
            | Timeliness::Early
            | Timeliness::Different
            | Timeliness::NewerMembership => {
                let theirs = format!("{}, segment {} of {} bytes", header.tag, header.segment, header.len);
                return Err(self.mismatch(call, theirs));
            }
        }
        let first = *receiving.first.get_or_insert(self.came - self.arrived.len() as u64);
        let (len, at) = (header.len as usize, receiving.done);
        let bytes = &self.slot(Header::LEN + len)[Header::LEN..];
        match receiving.sink {
            Sink::Place(place) => place[at..at + len].copy_from_slice(bytes),
            Sink::Fold(fold) => fold.fold(at, bytes),
        }
        receiving.done += len;
        receiving.segment += 1;
        self.release();
        if let Sink::Place(place) = &mut *receiving.sink
            && !receiving.placed
            && receiving.len - receiving.done >= PLACE_MIN
            && let Some(home) = regions.home(place)
        {
            let address = place.as_mut_ptr().expose_provenance() as u64;
            let key = home.remote_key();
            self.controls.push_back(Control::Place { first, address, len: receiving.len as u64, key });
            receiving.placed = true;
        }
        Ok(())
    }

    pub(super) fn mismatch(&self, call: &Exchange, theirs: String) -> CollectiveError {
        CollectiveError::Mismatch { peer: self.peer, theirs, ours: call.tag.to_string() }
    }

    fn corrupt(&self, what: &str) -> CollectiveError {
        CollectiveError::Corrupt { peer: self.peer, what: what.to_owned() }
    }

    fn refused(&self, error: &VerbsError) -> CollectiveError {
        CollectiveError::Io {
            what: format!("sending to {}: {error}", self.peer),
            kind: std::io::ErrorKind::Other,
        }
    }
}

// Bytes of the caller's, in registered memory.
fn lying_in(home: &MemoryRegion, bytes: &[u8]) -> Gather {
    let len = u32::try_from(bytes.len()).expect("pieces are short");
    Gather { address: bytes.as_ptr().expose_provenance() as u64, len, key: home.local_key() }
}

// Segments come in order and cut no element in two.
fn fits(header: &Header, receiving: &Receiving<'_, '_>) -> bool {
    let (len, missing) = (header.len as usize, receiving.missing());
    header.kind == FrameKind::Data
        && header.segment == receiving.segment
        && len > 0
        && (len == missing || (len < missing && len.is_multiple_of(GRAIN)))
}
