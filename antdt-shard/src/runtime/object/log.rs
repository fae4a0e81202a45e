//! The state of a log in an object store, the records gathered for its next piece, and how both are read and
//! written.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use tokio::time::{Instant, sleep};

use super::bucket::{Bucket, Created};
use super::{ObjectError, ObjectLogOptions};
use crate::error::RecoverError;
use crate::journal::piece::{LogPiece, PieceError, write_piece};
use crate::journal::urgent;
use crate::ledger::{Record, Recovery};
use crate::spec::DatasetSpec;
use crate::store::SyncPolicy;

/// Pieces after which the log is replaced by a snapshot, however short they are: reading it takes a request for each.
const PIECES_MAX: u64 = 512;

/// Pieces that are asked for at the same time when the log is read.
const READS: usize = 16;

/// How often a log is listed anew because a listed piece is gone: another service is replacing it by a snapshot. Each
/// time a whole snapshot must have come between, so that more than one is rare.
const LISTINGS: u32 = 5;

#[derive(Debug)]
pub(super) struct Log {
    bucket: Bucket,
    spec: DatasetSpec,
    options: ObjectLogOptions,
    writer: u128,
    /// What the records say so far, gathered ones too.
    state: Recovery,
    /// Whether the log was read, and nothing failed since; all below means something only then.
    read: bool,
    place: Place,
    /// Records that no piece holds yet, as bytes.
    gathered: Vec<u8>,
    /// When the first of them came.
    since: Option<Instant>,
}

/// Where the log ends.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Number of the next piece.
    next: u64,
    /// The piece that all begins with.
    base: u64,
    /// Bytes of that piece, if it is a snapshot.
    base_len: u64,
    /// Bytes of all after it.
    len: u64,
}

impl Place {
    const START: Self = Self { next: 1, base: 1, base_len: 0, len: 0 };
}

/// A piece on its way.
#[derive(Debug)]
pub(super) struct Sealed {
    bucket: Bucket,
    number: u64,
    base: u64,
    bytes: Vec<u8>,
}

/// A piece that is there.
#[derive(Debug)]
pub(super) struct Written {
    number: u64,
    base: u64,
    len: u64,
}

impl Sealed {
    /// Writes it, if it is the next one and no other service has written since.
    pub(super) async fn write(self) -> Result<Written, ObjectError> {
        let Self { bucket, number, base, bytes } = self;
        let len = bytes.len() as u64;
        let created = bucket.create(number, bytes).await?;
        // The name may have been free only because another service wrote a piece of that name, and a snapshot later,
        // and removed what the snapshot replaced. Then that snapshot, or a later one, is there.
        if created == Created::Taken || !bucket.list(Some(number)).await?.is_empty() {
            return Err(ObjectError::Taken { path: bucket.path(number) });
        }
        Ok(Written { number, base, len })
    }
}

/// What the log looked like from its last piece.
enum Folded {
    Whole(Box<(Recovery, Place)>),
    /// A piece was listed, or must exist, and is missing.
    Gone(u64),
}

impl Log {
    pub(super) fn new(
        bucket: Bucket,
        spec: DatasetSpec,
        options: ObjectLogOptions,
        writer: u128,
    ) -> Result<Self, ObjectError> {
        let state = Recovery::new(spec.clone())
            .map_err(|source| ObjectError::Unfit { path: bucket.path(1), source })?;
        let (place, gathered) = (Place::START, Vec::new());
        Ok(Self { bucket, spec, options, writer, state, read: false, place, gathered, since: None })
    }

    /// Reads the log from its last snapshot on. Also says which pieces are left over from before it.
    pub(super) async fn load(&mut self, recovery: Recovery) -> Result<(Recovery, Vec<u64>), ObjectError> {
        self.forget();
        if recovery.spec() != &self.spec {
            let source = RecoverError::SpecMismatch { name: recovery.spec().name.clone() };
            return Err(ObjectError::Unfit { path: self.bucket.path(1), source });
        }
        let mut listings = 0;
        loop {
            let numbers = self.bucket.list(None).await?;
            let folded = match numbers.last() {
                Some(newest) => self.fold(*newest, &numbers, recovery.clone()).await?,
                None => Folded::Whole(Box::new((recovery.clone(), Place::START))),
            };
            match folded {
                Folded::Whole(whole) => {
                    let (recovery, place) = *whole;
                    (self.place, self.read) = (place, true);
                    self.state = recovery.clone();
                    let left_over = numbers.into_iter().filter(|number| *number < place.base);
                    return Ok((recovery, left_over.collect()));
                }
                Folded::Gone(number) => {
                    listings += 1;
                    if listings == LISTINGS {
                        return Err(ObjectError::Missing { path: self.bucket.path(number) });
                    }
                    sleep(Duration::from_millis(50 * u64::from(listings))).await;
                }
            }
        }
    }

    /// Applies the pieces that the newest one builds on, and itself.
    async fn fold(
        &self,
        newest: u64,
        numbers: &[u64],
        mut recovery: Recovery,
    ) -> Result<Folded, ObjectError> {
        let Some(last) = self.bucket.get(newest).await? else { return Ok(Folded::Gone(newest)) };
        let unreadable = |number, source| ObjectError::Piece { path: self.bucket.path(number), source };
        let base = LogPiece::read(&last, &self.spec).map_err(|source| unreadable(newest, source))?.base;
        if let Some(gone) = (base..=newest).find(|number| numbers.binary_search(number).is_err()) {
            return Ok(Folded::Gone(gone));
        }
        let mut place = Place { next: newest + 1, base, base_len: 0, len: 0 };
        let mut pieces = futures_util::stream::iter(base..=newest)
            .map(async |number| self.bucket.get(number).await.map(|bytes| (number, bytes)))
            .buffered(READS);
        while let Some((number, bytes)) = pieces.try_next().await? {
            let Some(bytes) = bytes else { return Ok(Folded::Gone(number)) };
            let piece = LogPiece::read(&bytes, &self.spec).map_err(|source| unreadable(number, source))?;
            if (piece.number, piece.base) != (number, base) {
                let source = PieceError::Misplaced { number: piece.number, base: piece.base };
                return Err(unreadable(number, source));
            }
            piece.fold(&mut recovery).map_err(|source| unreadable(number, source))?;
            if number == base && base > 1 {
                place.base_len = bytes.len() as u64;
            } else {
                place.len += bytes.len() as u64;
            }
        }
        Ok(Folded::Whole(Box::new((recovery, place))))
    }

    pub(super) const fn is_read(&self) -> bool {
        self.read
    }

    /// The data set with nothing applied.
    pub(super) fn fresh(&self) -> Recovery {
        Recovery::new(self.spec.clone()).expect("the same was made when the log was opened")
    }

    /// What is there must be read again: something failed, or nothing was read yet.
    pub(super) fn forget(&mut self) {
        (self.read, self.since) = (false, None);
        self.gathered.clear();
    }

    /// Gathers records for the next piece, and says whether it must be written before they are answered. If one does
    /// not follow, none is gathered, and the log must be [forgotten](Self::forget) once those before are written.
    pub(super) fn gather(&mut self, records: &[Record]) -> Result<bool, ObjectError> {
        let before = self.gathered.len();
        for record in records {
            if let Err(source) = self.state.apply(record) {
                self.gathered.truncate(before);
                return Err(ObjectError::Unfit { path: self.bucket.path(self.place.next), source });
            }
            record.encode(&mut self.gathered);
        }
        self.since.get_or_insert_with(Instant::now);
        Ok(self.options.sync == SyncPolicy::Each || records.iter().any(urgent))
    }

    /// Bytes that no piece holds yet.
    pub(super) const fn gathered(&self) -> usize {
        self.gathered.len()
    }

    /// When what was gathered must be on its way.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.options.sync {
            SyncPolicy::Each => self.since,
            SyncPolicy::Every(after) => self.since.map(|since| since + after),
        }
    }

    /// The next piece: what was gathered, or a snapshot if there is much to read before it. One at a time.
    pub(super) fn seal(&mut self) -> Sealed {
        let Place { next, base, base_len, len } = self.place;
        let much = len >= self.options.segment_bytes.max(base_len) || next - base >= PIECES_MAX;
        let base = if much && next > base + 1 { next } else { base };
        if base == next {
            // It holds what was gathered too.
            self.gathered.clear();
            Record::Base(Box::new(self.state.snapshot())).encode(&mut self.gathered);
        }
        let bytes = write_piece(&self.spec, (next, base), self.writer, &self.gathered);
        self.gathered.clear();
        self.since = None;
        Sealed { bucket: self.bucket.clone(), number: next, base, bytes }
    }

    /// The piece is there. If it is a snapshot, what is before it can be [swept](Self::sweep).
    pub(super) fn landed(&mut self, written: &Written) -> bool {
        let Written { number, base, len } = *written;
        let place = &mut self.place;
        place.next = number + 1;
        if base == number && base > 1 {
            *place = Place { next: number + 1, base, base_len: len, len: 0 };
        } else {
            place.len += len;
        }
        place.base == number && number > 1
    }

    /// Removes the pieces before the base. What is left of them costs room and nothing else.
    pub(super) fn sweep(&self, left_over: Option<Vec<u64>>) -> impl Future<Output = ()> + 'static {
        let (bucket, base) = (self.bucket.clone(), self.place.base);
        async move {
            let swept = async {
                let numbers = match left_over {
                    Some(numbers) => numbers,
                    None => bucket.list(None).await?.into_iter().filter(|number| *number < base).collect(),
                };
                bucket.remove(&numbers).await
            };
            if let Err(error) = swept.await {
                tracing::warn!(%error, "old pieces of the journal cannot be removed; it will be tried again");
            }
        }
    }
}
