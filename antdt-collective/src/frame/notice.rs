//! Abort notices: what a member that gives up tells the others.

use std::borrow::Cow;

use antdt_core::Holder;
use serde::{Deserialize, Serialize};

use crate::error::CollectiveError;

/// Longest text sent; a longer one is cut.
const TEXT_MAX: usize = 1024;

/// Length of the longest notice, in bytes: two flags, two members, two texts with their lengths.
pub const NOTICE_MAX: usize = 2 + 2 * (1 + HOLDER_MAX) + 2 * (2 + TEXT_MAX);

/// Length of a member at most: its node by name, and a number of 32 bits in groups of seven.
const HOLDER_MAX: usize = 1 + "worker-4294967295".len() + 5;

/// A notice on the wire.
#[derive(Serialize, Deserialize)]
enum Sent<'a> {
    Aborted { suspects: bool, by: Option<Holder>, culprit: Option<Holder>, reason: Cow<'a, str> },
    Mismatch { peer: Holder, theirs: Cow<'a, str>, ours: Cow<'a, str> },
}

/// Message of a member that aborts its group, as another member decodes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbortNotice {
    /// Error with which the receiving member's call fails.
    pub error: CollectiveError,
    /// Whether the culprit is only the member that the sender was waiting for. That member may itself be
    /// waiting for another one, and then says so in a notice of its own.
    pub suspects: bool,
}

/// Returns the error of a member that learns from `by` that its call failed with `error`. A mismatch stays a
/// mismatch; every other error becomes an abort that names the culprit.
pub fn told(by: Holder, error: &CollectiveError) -> CollectiveError {
    match error {
        CollectiveError::Mismatch { .. } => error.clone(),
        CollectiveError::Aborted { by: origin, culprit, reason } => {
            CollectiveError::Aborted { by: origin.or(Some(by)), culprit: *culprit, reason: reason.clone() }
        }
        error => {
            CollectiveError::Aborted { by: Some(by), culprit: error.culprit(), reason: error.to_string() }
        }
    }
}

/// Returns the payload of an abort frame from member `me`, whose call failed with `error`. See
/// [`AbortNotice`] for `suspects`.
pub fn encode(me: Holder, error: &CollectiveError, suspects: bool) -> Vec<u8> {
    let told = told(me, error);
    let sent = match &told {
        CollectiveError::Mismatch { peer, theirs, ours } => {
            Sent::Mismatch { peer: *peer, theirs: cut(theirs), ours: cut(ours) }
        }
        CollectiveError::Aborted { by, culprit, reason } => {
            Sent::Aborted { suspects, by: *by, culprit: *culprit, reason: cut(reason) }
        }
        // `told` makes one of the two of every error.
        other => Sent::Aborted {
            suspects,
            by: Some(me),
            culprit: other.culprit(),
            reason: Cow::Owned(cut(&other.to_string()).into_owned()),
        },
    };
    postcard::to_stdvec(&sent).expect("a notice has a form as bytes")
}

/// Decodes the payload of an abort frame from `sender`; `None` if it is malformed.
pub fn decode(sender: Holder, bytes: &[u8]) -> Option<AbortNotice> {
    let (sent, rest) = postcard::take_from_bytes(bytes).ok()?;
    let notice = match sent {
        Sent::Aborted { suspects, by, culprit, reason } => {
            let (by, reason) = (by.or(Some(sender)), reason.into_owned());
            AbortNotice { error: CollectiveError::Aborted { by, culprit, reason }, suspects }
        }
        Sent::Mismatch { peer, theirs, ours } => {
            let (theirs, ours) = (theirs.into_owned(), ours.into_owned());
            AbortNotice { error: CollectiveError::Mismatch { peer, theirs, ours }, suspects: false }
        }
    };
    rest.is_empty().then_some(notice)
}

fn cut(text: &str) -> Cow<'_, str> {
    Cow::Borrowed(&text[..text.floor_char_boundary(TEXT_MAX)])
}

#[cfg(test)]
mod tests {
    use antdt_core::{Incarnation, NodeId};

    use super::*;

    fn holder(index: u32) -> Holder {
        Holder::new(NodeId::worker(index), Incarnation(2))
    }

    #[test]
    fn a_notice_names_the_rank_that_gave_up_and_its_culprit() {
        let error = CollectiveError::Corrupt { peer: holder(3), what: "ä".repeat(2000) };
        let bytes = encode(holder(1), &error, false);
        assert!(bytes.len() <= NOTICE_MAX);
        let Some(AbortNotice { error: CollectiveError::Aborted { by, culprit, reason }, suspects: false }) =
            decode(holder(1), &bytes)
        else {
            panic!()
        };
        assert_eq!((by, culprit), (Some(holder(1)), Some(holder(3))));
        assert!(reason.contains("damaged data from worker-3#2"));
    }

    #[test]
    fn the_longest_notice_is_no_longer_than_is_taken() {
        let far = Holder::new(NodeId::server(u32::MAX), Incarnation(u32::MAX));
        let text = "x".repeat(2 * TEXT_MAX);
        let (by, culprit) = (Some(far), Some(far));
        for error in [
            CollectiveError::Aborted { by, culprit, reason: text.clone() },
            CollectiveError::Mismatch { peer: far, theirs: text.clone(), ours: text },
        ] {
            let bytes = encode(far, &error, true);
            assert!(bytes.len() <= NOTICE_MAX, "{}", bytes.len());
            assert!(decode(holder(1), &bytes).is_some());
        }
    }

    #[test]
    fn a_mismatch_stays_one_and_a_passed_on_abort_keeps_its_origin() {
        let mismatch = CollectiveError::Mismatch { peer: holder(0), theirs: "a".into(), ours: "b".into() };
        let firm = |error: &CollectiveError| Some(AbortNotice { error: error.clone(), suspects: false });
        assert_eq!(decode(holder(1), &encode(holder(1), &mismatch, false)), firm(&mismatch));
        let abort = CollectiveError::Aborted { by: Some(holder(5)), culprit: None, reason: "stop".into() };
        assert_eq!(decode(holder(1), &encode(holder(1), &abort, false)), firm(&abort));
    }

    #[test]
    fn a_suspicion_reads_back_as_one() {
        let error = CollectiveError::Corrupt { peer: holder(3), what: "x".into() };
        let heard = decode(holder(1), &encode(holder(1), &error, true)).unwrap();
        assert!(heard.suspects, "{heard:?}");
        assert_eq!(heard.error.culprit(), Some(holder(3)));
    }

    #[test]
    fn senseless_notices_are_none_and_never_a_panic() {
        let bytes = encode(holder(1), &CollectiveError::Invalid { what: "text".into() }, false);
        for len in 0..bytes.len() {
            assert_eq!(decode(holder(1), &bytes[..len]), None, "{len} bytes");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] = 0xff;
            let _ = decode(holder(1), &damaged);
        }
    }
}
