//! [`Reader`]: reads numbers from bytes that nobody vouches for.

use antdt_core::{Counts, Generation, NodeId, Role};

use crate::error::DecodeError;

/// Bytes that are read from front to back. Nothing is taken on trust, least of all a length.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    pub(crate) fn finish(&self) -> Result<(), DecodeError> {
        match self.rest().len() {
            0 => Ok(()),
            extra => Err(DecodeError::Trailing { extra }),
        }
    }

    fn truncated(&self, needed: u64) -> DecodeError {
        DecodeError::Truncated { at: self.at, needed, left: self.rest().len() }
    }

    pub(super) fn inconsistent(&self, what: &'static str) -> DecodeError {
        DecodeError::Inconsistent { what, at: self.at }
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let taken = self.rest().get(..len).ok_or_else(|| self.truncated(len as u64))?;
        self.at += len;
        Ok(taken)
    }

    pub(super) fn take_u64(&mut self, len: u64) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(len).map_err(|_| self.truncated(len))?;
        self.take(len)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        Ok(self.take(N)?.try_into().expect("as many bytes were taken"))
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A number of entries of at least `entry` bytes each: never more than can follow.
    pub(super) fn count(&mut self, entry: usize) -> Result<usize, DecodeError> {
        let count = self.u64()?;
        let most = self.rest().len() / entry;
        let needed = count.saturating_mul(entry as u64);
        usize::try_from(count).ok().filter(|count| *count <= most).ok_or_else(|| self.truncated(needed))
    }

    pub(super) fn node(&mut self) -> Result<NodeId, DecodeError> {
        let at = self.at;
        let role = match self.u8()? {
            0 => Role::Worker,
            1 => Role::Server,
            value => return Err(DecodeError::Unknown { what: "role", value, at }),
        };
        Ok(NodeId { role, index: self.u32()? })
    }

    pub(super) fn generation(&mut self) -> Result<Option<Generation>, DecodeError> {
        match (self.u8()?, Generation(self.u64()?)) {
            (0, Generation(0)) => Ok(None),
            (1, generation) => Ok(Some(generation)),
            _ => Err(self.inconsistent("a generation is neither there nor absent")),
        }
    }

    pub(super) fn counts(&mut self) -> Result<Counts, DecodeError> {
        let [total, acked, todo, quarantined] = [self.u64()?, self.u64()?, self.u64()?, self.u64()?];
        Ok(Counts { total, acked, todo, doing: 0, quarantined })
    }
}
