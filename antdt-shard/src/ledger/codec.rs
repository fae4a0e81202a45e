//! Records and snapshots as bytes, and back. Little-endian throughout; nothing is aligned or padded. By hand, since the journal is read by
//! later versions: its format must not follow from a type.
//!
//! Record: a kind (`u8`), then its fields in the order of the type.
//!
//! Snapshot:
//!
//! | bytes | what |
//! |---|---|
//! | 4 | `ADSN` |
//! | 2 | format version |
//! | 8 | fingerprint of the data set's settings |
//! | 8 | length of the body |
//! | … | body: generation, fences, shares, quarantined shards, sample accounts |
//! | 4 | CRC-32C of all before |
//!
//! Whatever is accepted is a state that a ledger can be in: everything a ledger takes for granted is checked here, the
//! sample accounts by counting again. So what is accepted is also written back as the same bytes.
//!
//! Source: our design.

use std::collections::BTreeMap;

use antdt_core::{Counts, Delivery, Epoch, Generation, Incarnation, NodeId, Role, ShardKey};

use super::account::Account;
use super::book::{Book, GivenUp, Place};
use super::pass::{Begun, Pass};
use super::ranges::RangeSet;
use super::reader::Reader;
use super::record::Record;
use super::snapshot::LedgerSnapshot;
use crate::error::DecodeError;
use crate::spec::{Assignment, Cut, DatasetSpec, Epochs, OnQuarantine, Shuffle};

const MAGIC: [u8; 4] = *b"ADSN";
const VERSION: u16 = 2;
/// Bytes of a snapshot before its body.
const HEAD: usize = 4 + 2 + 8 + 8;

impl Record {
    /// Appends this record, encoded as bytes, to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::GenerationStarted { generation } => {
                out.push(1);
                put_u64(out, generation.0);
            }
            Self::EpochOpened { share, epoch } => {
                out.push(2);
                put_u32(out, *share);
                put_u32(out, epoch.0);
            }
            Self::Acked { epoch, position, offset } => {
                out.push(3);
                put_u32(out, epoch.0);
                put_u64(out, *position);
                put_u64(out, *offset);
            }
            Self::Failed { epoch, position } => {
                out.push(4);
                put_u32(out, epoch.0);
                put_u64(out, *position);
            }
            Self::Fenced { node, through } => {
                out.push(5);
                put_node(out, *node);
                put_u32(out, through.0);
            }
            Self::Restored(snapshot) => {
                out.push(6);
                snapshot.encode(out);
            }
            Self::Base(snapshot) => {
                out.push(7);
                snapshot.encode(out);
            }
        }
    }

    /// Decodes a record; `bytes` must hold exactly one. [`Recovery`](crate::Recovery) checks whether it
    /// follows from earlier records.
    ///
    /// # Errors
    /// If the bytes are not a record, or hold a snapshot that is refused.
    pub fn decode(bytes: &[u8], spec: &DatasetSpec) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let record = Self::read(&mut reader, spec)?;
        reader.finish()?;
        Ok(record)
    }

    /// Reads the next record.
    pub(crate) fn read(reader: &mut Reader<'_>, spec: &DatasetSpec) -> Result<Self, DecodeError> {
        let at = reader.at;
        Ok(match reader.u8()? {
            1 => Self::GenerationStarted { generation: Generation(reader.u64()?) },
            2 => Self::EpochOpened { share: reader.u32()?, epoch: Epoch(reader.u32()?) },
            3 => Self::Acked { epoch: Epoch(reader.u32()?), position: reader.u64()?, offset: reader.u64()? },
            4 => Self::Failed { epoch: Epoch(reader.u32()?), position: reader.u64()? },
            5 => Self::Fenced { node: reader.node()?, through: Incarnation(reader.u32()?) },
            6 => Self::Restored(Box::new(LedgerSnapshot::read(reader, spec)?)),
            7 => Self::Base(Box::new(LedgerSnapshot::read(reader, spec)?)),
            value => return Err(DecodeError::Unknown { what: "record kind", value, at }),
        })
    }
}

impl LedgerSnapshot {
    /// Encodes the snapshot. Equal states give equal bytes on every platform. O(outstanding leases + holes).
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.encode(&mut out);
        out
    }

    /// Decodes a snapshot; `bytes` must hold exactly one.
    ///
    /// O(outstanding leases + holes).
    ///
    /// # Errors
    /// If they are damaged, of a later format, of another data set, or of a state that no ledger can be in.
    ///
    /// ```
    /// use antdt_core::Generation;
    /// use antdt_shard::{DatasetSpec, LedgerSnapshot, ShardLedger};
    ///
    /// let spec = DatasetSpec::new("clicks", 1_000, 100);
    /// let bytes = ShardLedger::new(spec.clone(), Generation(1))?.snapshot().to_bytes();
    /// assert_eq!(LedgerSnapshot::from_bytes(&bytes, &spec)?.counts().todo, 1_000);
    /// assert!(LedgerSnapshot::from_bytes(&bytes[1..], &spec).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn from_bytes(bytes: &[u8], spec: &DatasetSpec) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let snapshot = Self::read(&mut reader, spec)?;
        reader.finish()?;
        Ok(snapshot)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend(MAGIC);
        out.extend(VERSION.to_le_bytes());
        put_u64(out, fingerprint(&self.book.spec));
        put_u64(out, 0);
        let body = out.len();
        put_book(out, &self.book);
        let len = (out.len() - body) as u64;
        out[body - 8..body].copy_from_slice(&len.to_le_bytes());
        let sum = crc32c::crc32c(&out[start..]);
        put_u32(out, sum);
    }

    fn read(reader: &mut Reader<'_>, spec: &DatasetSpec) -> Result<Self, DecodeError> {
        let whole = reader.rest();
        if reader.take(4)? != MAGIC {
            return Err(DecodeError::NotASnapshot);
        }
        let version = reader.u16()?;
        if version != VERSION {
            return Err(DecodeError::UnknownVersion { version, newest: VERSION });
        }
        let of = reader.u64()?;
        let len = reader.u64()?;
        let at = reader.at;
        let body = reader.take_u64(len)?;
        let found = reader.u32()?;
        let expected = crc32c::crc32c(&whole[..HEAD + body.len()]);
        if found != expected {
            return Err(DecodeError::Checksum { found, expected });
        }
        if of != fingerprint(spec) {
            return Err(DecodeError::SpecMismatch { name: spec.name.clone() });
        }
        let mut inner = Reader { bytes: &reader.bytes[..at + body.len()], at };
        let book = read_book(&mut inner, spec)?;
        inner.finish()?;
        Ok(Self { book })
    }
}

/// A number for the settings of a data set: equal settings have equal ones, others most likely do not (FNV-1a).
pub(crate) fn fingerprint(spec: &DatasetSpec) -> u64 {
    // Every field must be named here, so that a new one cannot be forgotten.
    let DatasetSpec {
        name,
        num_samples,
        cut,
        epochs,
        shuffle,
        seed,
        epoch_overlap,
        delivery,
        max_data_faults,
        on_quarantine,
        max_leases_per_holder,
        assignment,
    } = spec;
    let mut bytes = Vec::with_capacity(name.len() + 80);
    put_u64(&mut bytes, name.len() as u64);
    bytes.extend(name.as_bytes());
    put_u64(&mut bytes, *num_samples);
    match cut {
        Cut::Every(len) => put_u64(&mut bytes, *len),
        Cut::At(ends) => {
            // No shard is so long.
            put_u64(&mut bytes, u64::MAX);
            put_u64(&mut bytes, ends.len() as u64);
            ends.iter().for_each(|end| put_u64(&mut bytes, *end));
        }
    }
    let (tag, value) = match epochs {
        Epochs::Finite(epochs) => (0, *epochs),
        Epochs::Infinite => (1, 0),
    };
    bytes.push(tag);
    put_u32(&mut bytes, value);
    bytes.push(match shuffle {
        Shuffle::None => 0,
        Shuffle::Shards => 1,
        Shuffle::ShardsAndSamples => 2,
    });
    put_u64(&mut bytes, seed.0);
    put_u32(&mut bytes, *epoch_overlap);
    bytes.push(match delivery {
        Delivery::AtLeastOnce => 0,
        Delivery::AtMostOnce => 1,
    });
    put_u32(&mut bytes, *max_data_faults);
    let (tag, value) = match on_quarantine {
        OnQuarantine::FailJob => (0, 0),
        OnQuarantine::Continue { max_samples } => (1, *max_samples),
    };
    bytes.push(tag);
    put_u64(&mut bytes, value);
    put_u32(&mut bytes, *max_leases_per_holder);
    let (tag, value) = match assignment {
        Assignment::Dynamic => (0, 0),
        Assignment::Static { workers } => (1, *workers),
    };
    bytes.push(tag);
    put_u32(&mut bytes, value);
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_le_bytes());
}

fn put_node(out: &mut Vec<u8>, node: NodeId) {
    out.push(match node.role {
        Role::Worker => 0,
        Role::Server => 1,
    });
    put_u32(out, node.index);
}

fn put_book(out: &mut Vec<u8>, book: &Book) {
    for generation in [book.generation, book.restored] {
        out.push(u8::from(generation.is_some()));
        put_u64(out, generation.unwrap_or_default().0);
    }

    put_u64(out, book.fences.len() as u64);
    for (node, through) in &book.fences {
        put_node(out, *node);
        put_u32(out, through.0);
    }

    put_u64(out, book.shares.len() as u64);
    for share in &book.shares {
        put_u32(out, share.opened);
        put_u64(out, share.open.len() as u64);
        for pass in &share.open {
            put_u32(out, pass.epoch().0);
            put_u64(out, pass.untouched.run_count() as u64);
            for (start, end) in pass.untouched.runs() {
                put_u64(out, start);
                put_u64(out, end);
            }
            put_u64(out, pass.begun.len() as u64);
            for (position, begun) in &pass.begun {
                put_u64(out, *position);
                put_u64(out, begun.offset);
                put_u32(out, begun.faults);
            }
        }
    }

    put_u64(out, book.quarantined.len() as u64);
    for (place, given_up) in &book.quarantined {
        put_u32(out, place.epoch.0);
        put_u64(out, place.position);
        put_u64(out, given_up.offset);
    }

    let account = &book.account;
    put_u64(out, account.epochs.len() as u64);
    for (epoch, counts) in &account.epochs {
        put_u32(out, epoch.0);
        put_counts(out, *counts);
    }
    put_counts(out, account.job);
}

fn put_counts(out: &mut Vec<u8>, counts: Counts) {
    // Nothing is `doing` in a snapshot.
    let Counts { total, acked, todo, doing: _, quarantined } = counts;
    for value in [total, acked, todo, quarantined] {
        put_u64(out, value);
    }
}

fn read_book(reader: &mut Reader<'_>, spec: &DatasetSpec) -> Result<Book, DecodeError> {
    let mut book = Book::new(spec.clone())?;
    book.generation = reader.generation()?;
    book.restored = reader.generation()?;
    if book.restored > book.generation {
        return Err(reader.inconsistent("a restore made generations void that never were"));
    }

    for _ in 0..reader.count(1 + 4 + 4)? {
        let (node, through) = (reader.node()?, Incarnation(reader.u32()?));
        if book.fences.last_key_value().is_some_and(|(last, _)| *last >= node) {
            return Err(reader.inconsistent("the fences are not in order"));
        }
        book.fences.insert(node, through);
    }

    let shares = reader.count(4 + 8)?;
    if shares != book.shares.len() {
        return Err(reader.inconsistent("the number of shares is not that of the data set"));
    }
    for share in 0..shares {
        read_share(reader, &mut book, share)?;
    }
    book.unfinished = 0;
    for share in &book.shares {
        book.unfinished += u32::from(share.opened < spec.epoch_limit() || !share.open.is_empty());
    }

    for _ in 0..reader.count(4 + 8 + 8)? {
        read_quarantined(reader, &mut book)?;
    }

    let mut epochs = BTreeMap::new();
    let declared = reader.count(4 + 4 * 8)?;
    for _ in 0..declared {
        let (epoch, counts) = (Epoch(reader.u32()?), reader.counts()?);
        if epochs.last_key_value().is_some_and(|(last, _)| *last >= epoch) {
            return Err(reader.inconsistent("the accounts of the epochs are not in order"));
        }
        epochs.insert(epoch, counts);
    }
    let job = reader.counts()?;
    book.account = Account::count(&book, declared).map_err(|what| reader.inconsistent(what))?;
    if book.account.epochs != epochs || book.account.job != job {
        return Err(reader.inconsistent("the sample accounts do not add up"));
    }
    Ok(book)
}

fn read_share(reader: &mut Reader<'_>, book: &mut Book, share: usize) -> Result<(), DecodeError> {
    let spec = &book.spec;
    let share = &mut book.shares[share];
    let limit = spec.epoch_limit();
    let opened = reader.u32()?;
    // An empty share counts as through with everything, from the start.
    if opened > limit || (share.start == share.end && opened != limit) {
        return Err(reader.inconsistent("a share opened more epochs than there are"));
    }
    share.opened = opened;
    let passes = reader.count(4 + 8 + 8)?;
    if passes > spec.epoch_overlap as usize + 1 {
        return Err(reader.inconsistent("more epochs are unclosed than may overlap"));
    }
    for _ in 0..passes {
        let epoch = Epoch(reader.u32()?);
        if epoch.0 >= opened || share.open.last().is_some_and(|last| last.epoch() >= epoch) {
            return Err(reader.inconsistent("the unclosed epochs are not in order, or not opened"));
        }
        let mut untouched = RangeSet::default();
        for _ in 0..reader.count(8 + 8)? {
            let (start, end) = (reader.u64()?, reader.u64()?);
            if start < share.start || end > share.end || !untouched.push(start, end) {
                return Err(reader.inconsistent("waiting shards overlap, or lie outside their share"));
            }
        }
        let order = spec.shard_order(epoch);
        let mut all_begun: BTreeMap<u64, Begun> = BTreeMap::new();
        for _ in 0..reader.count(8 + 8 + 4)? {
            let position = reader.u64()?;
            let begun = Begun { offset: reader.u64()?, faults: reader.u32()? };
            let outside = position < share.start || position >= share.end;
            if outside || all_begun.last_key_value().is_some_and(|(last, _)| *last >= position) {
                return Err(reader.inconsistent("begun shards are not in order, or lie outside their share"));
            }
            if untouched.contains(position) {
                return Err(reader.inconsistent("a shard is in two states"));
            }
            if begun.offset >= spec.shard(order.at(position)).len() || begun.faults >= spec.max_data_faults {
                return Err(reader.inconsistent("a shard that waits is done or given up"));
            }
            if begun == Begun::default() {
                return Err(reader.inconsistent("a shard that nobody touched is among the begun ones"));
            }
            all_begun.insert(position, begun);
        }
        let pass = Pass::resume(spec, epoch, untouched, all_begun);
        if pass.is_closed() {
            return Err(reader.inconsistent("an epoch without waiting shards is not closed"));
        }
        share.open.push(pass);
    }
    Ok(())
}

fn read_quarantined(reader: &mut Reader<'_>, book: &mut Book) -> Result<(), DecodeError> {
    let place = Place { epoch: Epoch(reader.u32()?), position: reader.u64()? };
    let offset = reader.u64()?;
    if book.quarantined.last_key_value().is_some_and(|(last, _)| *last >= place) {
        return Err(reader.inconsistent("the quarantined shards are not in order"));
    }
    let share = book.shares.partition_point(|share| share.end <= place.position);
    let Some(share) = book.shares.get(share).filter(|share| place.epoch.0 < share.opened) else {
        return Err(reader.inconsistent("a quarantined shard is of no opened epoch"));
    };
    let pass = share.open.iter().find(|pass| pass.epoch() == place.epoch);
    if pass.is_some_and(|p| p.untouched.contains(place.position) || p.begun.contains_key(&place.position)) {
        return Err(reader.inconsistent("a shard is in two states"));
    }
    let index = book.spec.shard_order(place.epoch).at(place.position);
    let len = book.spec.shard(index).len();
    if offset >= len {
        return Err(reader.inconsistent("a quarantined shard is done"));
    }
    let given_up = GivenUp { key: ShardKey { epoch: place.epoch, index }, offset, len };
    book.quarantined.insert(place, given_up);
    Ok(())
}

#[cfg(test)]
mod tests;
