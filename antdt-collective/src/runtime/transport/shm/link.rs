//! The link between this member and one peer of the same host, in both directions, with the progress of its
//! messages.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use antdt_core::{Holder, Rank};

use super::arena::{Arena, Place, Regions};
use super::memory::{RingReader, RingWriter, Segment, Shared, SlotHeader, Slots};
use super::record::{Body, Record, TagBytes, tag_of};
use crate::error::CollectiveError;
use crate::frame::{Tag, Timeliness};
use crate::handover::{Damaged, Offer};
use crate::kernel;
use crate::runtime::transport::tcp::Ended;
use crate::runtime::transport::{Exchange, Piece, Sink};

/// Bytes put into a ring, or folded out of one, at a time: a quarter of it, so that both ends are at work at once.
const PIECE: usize = super::arena::RING_BYTES / 4;

/// Bytes folded out of a peer's region at a time, with a look at the abort handle between: less than 2 ms of work, and
/// long enough to go past the caches.
pub(super) const LENT_PIECE: usize = 8 << 20;

/// From this length on a message that lies in a region is offered where it is. A shorter one is copied into the ring: the
/// sender need not wait until it was read.
const OFFER_MIN: usize = 16 << 10;

/// Regions of one peer that stay mapped; when another comes, the one goes that was not needed for longest. A training loop
/// goes round its buckets, of two regions each: with one region more than stay mapped, every call would map one anew, and fault
/// its pages in. So many are buckets for 3 GiB of gradients at their default size; each costs address space and page tables.
const LENT_MAX: usize = 256;

/// Both ways to one peer.
#[derive(Debug)]
pub(in crate::runtime::transport) struct Link {
    pub(super) rank: Rank,
    pub(super) peer: Holder,
    pub(super) arena: Arena,
    pub(super) slots: Slots,
    out: RingWriter,
    out_offer: Offer<Shared<AtomicU64>>,
    out_read: Shared<AtomicU64>,
    // The offers made to this peer; whether the last one stands; the bytes of those before it.
    offers: u64,
    stands: bool,
    offered: u64,
    inn: RingReader,
    in_offer: Offer<Shared<AtomicU64>>,
    in_read: Shared<AtomicU64>,
    read: u64,
    // In the order in which they were needed last.
    lent: Vec<Lent>,
    // Of a message without a waiter: bytes still in the ring.
    dropped: u64,
}

/// A region of a peer that stays mapped.
#[derive(Debug)]
struct Lent {
    region: u64,
    region_len: u64,
    segment: Segment,
}

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Sending<'a> {
    what: What<'a>,
    stage: Stage,
}

/// What is sent.
#[derive(Debug, Clone, Copy)]
enum What<'a> {
    Bytes(&'a [u8]),
    /// The message is offered in place, and memory is reserved for its answer.
    Loan {
        len: usize,
        place: Place,
        answer: Place,
    },
}

#[derive(Debug, Clone, Copy)]
enum Stage {
    Record,
    Ring { done: usize, taken_before: u64 },
    Offered { number: u64 },
    Done,
}

impl<'a> Sending<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { what: What::Bytes(bytes), stage: Stage::Record }
    }

    /// One that is answered.
    pub(super) const fn lent(len: usize, place: Place, answer: Place) -> Self {
        Self { what: What::Loan { len, place, answer }, stage: Stage::Record }
    }

    const fn len(&self) -> usize {
        match self.what {
            What::Bytes(bytes) => bytes.len(),
            What::Loan { len, .. } => len,
        }
    }

    pub(super) const fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }
}

/// A message on its way in.
#[derive(Debug)]
pub(super) struct Receiving<'a, 'b> {
    end: End<'a, 'b>,
    len: usize,
    done: usize,
    body: Option<Body>,
}

/// Where a message ends up.
#[derive(Debug)]
enum End<'a, 'b> {
    Sink(&'a mut Sink<'b>),
    /// The message is merged when those of all others are there: from where it lies, if it was offered, and
    /// from here otherwise.
    Together(Vec<u8>),
}

impl<'a, 'b> Receiving<'a, 'b> {
    pub(super) fn new(sink: &'a mut Sink<'b>) -> Self {
        let len = sink.len_bytes();
        Self { end: End::Sink(sink), len, done: 0, body: None }
    }

    /// One of several that are taken together.
    pub(super) const fn together(len: usize) -> Self {
        Self { end: End::Together(Vec::new()), len, done: 0, body: None }
    }

    /// Whether all of it has come. What is offered to be taken together has.
    pub(super) const fn is_done(&self) -> bool {
        self.done == self.len
    }

    /// Bytes not yet taken.
    pub(super) const fn missing(&self) -> usize {
        self.len - self.done
    }

    /// Whether its first byte is there. Of one to be taken together, that all of it is there says nothing of the peer: it
    /// may wait for another one.
    pub(super) const fn has_begun(&self) -> bool {
        self.body.is_some() && !(self.is_done() && matches!(self.end, End::Together(_)))
    }

    fn take(&mut self, bytes: &[u8]) {
        match &mut self.end {
            End::Sink(Sink::Place(place)) => {
                kernel::copy(&mut place[self.done..self.done + bytes.len()], bytes);
            }
            End::Sink(Sink::Fold(fold)) => fold.fold(self.done, bytes),
            End::Together(kept) => kept.extend_from_slice(bytes),
        }
        self.done += bytes.len();
    }
}

impl Lent {
    fn holds(&self, place: &Place) -> bool {
        (self.region, self.region_len) == (place.region, place.region_len)
    }
}

// Of the byte `at` of an offer, in its region.
#[allow(clippy::cast_possible_truncation, reason = "less than the length of a mapping")]
const fn offset(place: &Place, at: usize) -> usize {
    place.offset as usize + at
}

impl Link {
    /// The link from rank `me`, whose memory is `ours`, to `rank`, whose memory is `theirs`.
    pub(super) fn new(
        (me, ours): (Rank, &Arena),
        (rank, theirs): (Rank, Arena),
        peer: Holder,
    ) -> io::Result<Self> {
        let (out, inn) = (ours.way(rank.0 as usize)?, theirs.way(me.0 as usize)?);
        Ok(Self {
            rank,
            peer,
            slots: theirs.slots(),
            arena: theirs,
            out: RingWriter::new(out.ring),
            out_offer: out.offer,
            out_read: out.read,
            offers: 0,
            stands: false,
            offered: 0,
            inn: RingReader::new(inn.ring),
            in_offer: inn.offer,
            in_read: inn.read,
            read: 0,
            lent: Vec::new(),
            dropped: 0,
        })
    }

    fn damaged(&self) -> impl Fn(Damaged) -> CollectiveError + use<> {
        let peer = self.peer;
        move |damaged| CollectiveError::Corrupt { peer, what: damaged.to_string() }
    }

    /// Moves a message on, as far as goes without waiting; whether anything moved.
    pub(super) fn send(
        &mut self,
        sending: &mut Sending<'_>,
        tag: &TagBytes,
        regions: &Regions,
    ) -> Result<bool, CollectiveError> {
        let (len, damaged) = (sending.len(), self.damaged());
        let bytes = match sending.what {
            What::Bytes(bytes) => bytes,
            What::Loan { .. } => &[],
        };
        let moved = match sending.stage {
            Stage::Done => false,
            Stage::Offered { number } => {
                let taken = self.out_offer.is_taken(number);
                if taken {
                    self.stands = false;
                    sending.stage = Stage::Done;
                }
                // Nothing that the peer waits for.
                return Ok(taken);
            }
            Stage::Record => {
                let offered = match sending.what {
                    What::Loan { place, answer, .. } => Some((place, Some(answer))),
                    What::Bytes(_) if len < OFFER_MIN => None,
                    What::Bytes(bytes) => regions.find(bytes).map(|place| (place, None)),
                };
                let number = self.offers + 1;
                let body =
                    offered.map_or(Body::Ring, |(place, answer)| Body::Offer { number, place, answer });
                let taken_before = self.out.taken();
                let record = Record { len: len as u64, body }.encode(tag);
                if offered.is_some() {
                    // Before the record, whose way through the ring orders it for the peer.
                    self.out_offer.post(number);
                }
                if self.out.write(&record, Record::LEN).map_err(&damaged)? == 0 {
                    false
                } else if offered.is_some() {
                    self.offered += len as u64;
                    (self.offers, self.stands) = (number, true);
                    sending.stage = Stage::Offered { number };
                    true
                } else {
                    let done = self.out.write(bytes, PIECE).map_err(&damaged)?;
                    sending.stage = Stage::Ring { done, taken_before };
                    true
                }
            }
            Stage::Ring { done, taken_before } => {
                let written = self.out.write(&bytes[done..], PIECE).map_err(&damaged)?;
                sending.stage = Stage::Ring { done: done + written, taken_before };
                written > 0
            }
        };
        if matches!(sending.stage, Stage::Ring { done, .. } if done == len) {
            sending.stage = Stage::Done;
        }
        if moved {
            self.arena.ring();
        }
        Ok(moved)
    }

    /// Bytes of a message that the peer has not taken, as far as is known here.
    pub(super) fn unsent(&self, sending: &Sending<'_>) -> usize {
        let len = sending.len();
        match sending.stage {
            Stage::Record => len,
            Stage::Ring { done, .. } => len - done,
            Stage::Offered { .. } => {
                let before = self.offered - len as u64;
                let read = self.out_read.load(Ordering::Relaxed).saturating_sub(before);
                // The last word is the peer's, even when it has read everything.
                len.saturating_sub(usize::try_from(read).unwrap_or(len)).max(1)
            }
            Stage::Done => 0,
        }
    }

    /// Whether the peer has begun to take a message.
    pub(super) fn is_being_taken(&self, sending: &Sending<'_>) -> bool {
        match sending.stage {
            Stage::Ring { taken_before, .. } => self.out.taken() != taken_before,
            Stage::Offered { .. } => self.unsent(sending) < sending.len(),
            Stage::Record | Stage::Done => false,
        }
    }

    /// Takes what has come of a message, as far as goes without waiting; whether anything moved.
    pub(super) fn receive(
        &mut self,
        receiving: &mut Receiving<'_, '_>,
        call: &Exchange,
        tag: &TagBytes,
    ) -> Result<bool, Ended> {
        if receiving.is_done() {
            return Ok(false);
        }
        let Some(body) = receiving.body else { return self.begin(receiving, call, tag) };
        let damaged = self.damaged();
        match body {
            Body::Ring => {
                let bytes = self.inn.read(PIECE.min(receiving.missing())).map_err(damaged)?;
                let len = bytes.len();
                if len == 0 {
                    return Ok(false);
                }
                receiving.take(bytes);
                self.inn.release(len);
            }
            Body::Offer { number, place, .. } => {
                // No short rest: the last piece may be twice as long.
                let missing = receiving.missing();
                let len = if missing < 2 * LENT_PIECE { missing } else { LENT_PIECE };
                receiving.take(self.lent(&place, receiving.done, len));
                self.has_read(number, len, receiving.is_done())?;
            }
        }
        self.arena.ring();
        Ok(true)
    }

    /// Part of a message that has come to be taken together with others.
    pub(super) fn piece<'a>(
        &'a mut self,
        receiving: &'a Receiving<'_, '_>,
        at: usize,
        len: usize,
    ) -> Piece<'a> {
        match (&receiving.end, receiving.body) {
            (_, Some(Body::Offer { place, answer: None, .. })) => Piece::Read(self.lent(&place, at, len)),
            (_, Some(Body::Offer { place, answer: Some(answer), .. })) => {
                let (there, back) = (self.mapped(&place), self.mapped(&answer));
                if there == back {
                    // And there the same bytes: that was checked when the offer was accepted.
                    return Piece::Within(self.lent[back].segment.lent_mut(offset(&answer, at), len));
                }
                let lent = self.lent.get_disjoint_mut([there, back]);
                let [there, back] = lent.expect("two places, both among those that are mapped");
                Piece::Apart {
                    from: there.segment.lent(offset(&place, at), len),
                    into: back.segment.lent_mut(offset(&answer, at), len),
                }
            }
            (End::Together(kept), _) => Piece::Read(&kept[at..at + len]),
            (End::Sink(_), _) => Piece::Read(&[]),
        }
    }

    /// A piece was taken together with those of others; whether it was the last one.
    pub(super) fn took(
        &mut self,
        receiving: &Receiving<'_, '_>,
        len: usize,
        last: bool,
    ) -> Result<(), Ended> {
        if let Some(Body::Offer { number, .. }) = receiving.body {
            self.has_read(number, len, last)?;
            self.arena.ring();
        }
        Ok(())
    }

    // Bytes of an offer whose region is mapped.
    fn lent(&self, place: &Place, at: usize, len: usize) -> &[u8] {
        self.lent[self.mapped(place)].segment.lent(offset(place, at), len)
    }

    // Where its region is among those that stay mapped.
    fn mapped(&self, place: &Place) -> usize {
        let found = self.lent.iter().position(|lent| lent.holds(place));
        found.expect("mapped when the offer was accepted")
    }

    fn has_read(&mut self, number: u64, len: usize, last: bool) -> Result<(), Ended> {
        self.read += len as u64;
        self.in_read.store(self.read, Ordering::Relaxed);
        if last && !self.in_offer.take(number) {
            // The peer has given up, and said why before it took the offer back.
            return Err(Ended::Gone(self.rank));
        }
        Ok(())
    }

    // Reads the record, if it is there.
    fn begin(
        &mut self,
        receiving: &mut Receiving<'_, '_>,
        call: &Exchange,
        tag: &TagBytes,
    ) -> Result<bool, Ended> {
        let damaged = self.damaged();
        if self.dropped > 0 {
            let most = usize::try_from(self.dropped).unwrap_or(PIECE).min(PIECE);
            let len = self.inn.read(most).map_err(damaged)?.len();
            self.inn.release(len);
            self.dropped -= len as u64;
            self.arena.ring();
            return Ok(len > 0);
        }
        let Some((theirs, record)) = self.next_record()? else { return Ok(false) };
        let arrival = if theirs == *tag {
            Timeliness::Expected
        } else {
            let theirs = tag_of(&theirs);
            let theirs =
                theirs.map_err(|e| CollectiveError::Corrupt { peer: self.peer, what: e.to_string() })?;
            match call.tag.judge(&theirs) {
                Timeliness::Old => Timeliness::Old,
                _ => return Err(self.mismatch(call, &theirs).into()),
            }
        };
        if arrival == Timeliness::Old {
            if record.body == Body::Ring {
                self.dropped = record.len;
            }
        } else if record.len == receiving.len as u64 {
            if let Body::Offer { number, place, answer } = &record.body {
                if let Err(error) = self.map_offer(place, answer.as_ref(), record.len) {
                    // A peer that gives up takes its offer back first, and then its memory.
                    let stands = self.in_offer.stands(*number);
                    return Err(if stands { error.into() } else { Ended::Gone(self.rank) });
                }
                if matches!(receiving.end, End::Together(_)) {
                    receiving.done = receiving.len;
                }
            }
            receiving.body = Some(record.body);
        } else {
            let theirs = format!("{}, a message of {} bytes", call.tag, record.len);
            let ours = format!("{}, waiting for one of {} bytes", call.tag, receiving.len);
            return Err(CollectiveError::Mismatch { peer: self.peer, theirs, ours }.into());
        }
        self.inn.release(Record::LEN);
        Ok(true)
    }

    fn next_record(&mut self) -> Result<Option<(TagBytes, Record)>, CollectiveError> {
        let damaged = self.damaged();
        let bytes = self.inn.read(Record::LEN).map_err(damaged)?;
        Ok(bytes.first_chunk().map(Record::decode))
    }

    /// What the peer's next message belongs to, where none is being received.
    pub(super) fn waiting_tag(&mut self) -> Result<Option<Tag>, CollectiveError> {
        if self.dropped > 0 {
            return Ok(None);
        }
        let Some((tag, _)) = self.next_record()? else { return Ok(None) };
        let tag = tag_of(&tag);
        tag.map(Some).map_err(|e| CollectiveError::Corrupt { peer: self.peer, what: e.to_string() })
    }

    /// What the peer shows in its slots as number `number`, if it does.
    pub(super) fn shown_tag(&self, number: u64) -> Result<Option<Tag>, CollectiveError> {
        let Some((header, _)) = self.slots.shown(number) else { return Ok(None) };
        let header: &SlotHeader = header;
        tag_of(header)
            .map(Some)
            .map_err(|e| CollectiveError::Corrupt { peer: self.peer, what: e.to_string() })
    }

    pub(super) fn mismatch(&self, call: &Exchange, theirs: &Tag) -> CollectiveError {
        if theirs.membership > call.tag.membership {
            let (ours, theirs) = (call.tag.membership, theirs.membership);
            return CollectiveError::StaleMembership { ours, theirs };
        }
        let (theirs, ours) = (theirs.to_string(), call.tag.to_string());
        CollectiveError::Mismatch { peer: self.peer, theirs, ours }
    }

    // Maps the regions of an offer of so many bytes and of its answer.
    fn map_offer(&mut self, place: &Place, answer: Option<&Place>, len: u64) -> Result<(), CollectiveError> {
        let Some(answer) = answer else { return self.map(place, len, false) };
        if answer != place && answer.region == place.region {
            let what =
                "an answer that is wanted in the region of its message, and not in its place".to_owned();
            return Err(CollectiveError::Corrupt { peer: self.peer, what });
        }
        if answer != place {
            self.map(place, len, false)?;
        }
        self.map(answer, len, true)
    }

    // Maps the region that so many bytes lie in.
    fn map(&mut self, place: &Place, len: u64, writable: bool) -> Result<(), CollectiveError> {
        if place.offset.checked_add(len).is_none_or(|end| end > place.region_len) {
            let what = format!("an offer of {len} bytes beyond the end of its region");
            return Err(CollectiveError::Corrupt { peer: self.peer, what });
        }
        if let Some(known) = self.lent.iter().position(|lent| lent.holds(place)) {
            let lent = self.lent.remove(known);
            if lent.segment.is_writable() || !writable {
                self.lent.push(lent);
                return Ok(());
            }
        }
        let segment = self.arena.region(place.region, place.region_len, writable);
        let segment = segment.map_err(|e| CollectiveError::Io {
            what: format!("mapping memory of {}: {e}", self.peer),
            kind: e.kind(),
        })?;
        if self.lent.len() >= LENT_MAX {
            self.lent.remove(0);
        }
        self.lent.push(Lent { region: place.region, region_len: place.region_len, segment });
        Ok(())
    }

    /// Takes back what the peer has not read yet: from now on the memory is the caller's again.
    pub(super) fn withdraw(&mut self) {
        if std::mem::take(&mut self.stands) {
            self.out_offer.withdraw(self.offers);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use antdt_core::MembershipVersion;

    use super::super::arena::Shape;
    use super::super::record::tag_bytes;
    use super::*;
    use crate::group::{Group, Member};
    use crate::runtime::testing::holder;

    fn opened(arena: &Arena) -> Arena {
        Arena::open(arena.descriptor().try_clone_to_owned().unwrap(), Shape::of_group(2)).unwrap()
    }

    #[test]
    fn a_receiver_takes_a_peer_that_gave_up_its_memory_for_gone() {
        const LEN: usize = 1 << 20;
        let [ours, theirs] = [(); 2].map(|()| Arena::create(Shape::of_group(2)).unwrap());
        let mut link = Link::new((Rank(0), &ours), (Rank(1), opened(&theirs)), holder(1)).unwrap();
        let mut peer = Link::new((Rank(1), &theirs), (Rank(0), opened(&ours)), holder(0)).unwrap();
        let mut regions = Regions::new(&theirs);
        let region = regions.make(LEN).unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let members = [0, 1].map(|rank| Member { holder: holder(rank), address });
        let group = Group::new(MembershipVersion(1), members.to_vec(), Rank(0)).unwrap();
        let call = Exchange::meeting(&group, Instant::now());
        let tag = tag_bytes(&call.tag);
        let moved = peer.send(&mut Sending::new(&region), &tag, &regions).unwrap();
        assert!(moved && peer.stands, "the message was not offered");
        peer.withdraw();
        drop(region);

        let mut received = vec![0; LEN];
        let mut sink = Sink::Place(&mut received);
        let ended = link.receive(&mut Receiving::new(&mut sink), &call, &tag).unwrap_err();
        assert!(matches!(ended, Ended::Gone(Rank(1))), "{ended:?}");
    }

    #[test]
    fn an_offer_that_ends_beyond_its_region_is_damage() {
        let [ours, file] = [(); 2].map(|()| Arena::create(Shape::of_group(2)).unwrap());
        let mut regions = Regions::new(&file);
        let region = regions.make(20_000).unwrap();
        let place = regions.find(&region).unwrap();
        let mut link = Link::new((Rank(0), &ours), (Rank(1), opened(&file)), holder(1)).unwrap();
        link.map(&place, place.region_len, false).unwrap();
        for (offset, len) in [(place.region_len, 1), (1, place.region_len), (u64::MAX, 1), (0, u64::MAX)] {
            let beyond = Place { offset, ..place };
            for (place, answer) in [(&beyond, None), (&beyond, Some(&beyond)), (&place, Some(&beyond))] {
                let error = link.map_offer(place, answer, len).unwrap_err();
                assert!(matches!(error, CollectiveError::Corrupt { .. }), "{offset}, {len}: {error}");
            }
        }
    }
}
