//! Abort notices: what a member that gives up tells the others.

use antdt_core::{Holder, Incarnation, NodeId, Role};

use crate::error::CollectiveError;

/// Longest text sent; a longer one is cut.
const TEXT_MAX: usize = 1024;

/// Length of the longest notice, in bytes.
pub const NOTICE_MAX: usize = 1 + 2 * (1 + HOLDER_LEN) + 2 * (2 + TEXT_MAX);

const HOLDER_LEN: usize = 9;
const ABORTED: u8 = 0;
const MISMATCH: u8 = 1;
const SUSPECTED: u8 = 2;

/// Message of a member that gives up, as another member decodes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbortNotice {
    /// Error with which the receiving member's call fails.
    pub error: CollectiveError,
    /// Whether the culprit is only the member that the sender was waiting for. That one may itself be waiting
    /// for another member, and then says so in a notice of its own.
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
    let mut bytes = Vec::new();
    let aborted = if suspects { SUSPECTED } else { ABORTED };
    match told(me, error) {
        CollectiveError::Mismatch { peer, theirs, ours } => {
            bytes.push(MISMATCH);
            put_holder(&mut bytes, Some(me));
            put_holder(&mut bytes, Some(peer));
            put_text(&mut bytes, &theirs);
            put_text(&mut bytes, &ours);
        }
        CollectiveError::Aborted { by, culprit, reason } => {
            bytes.push(aborted);
            put_holder(&mut bytes, by);
            put_holder(&mut bytes, culprit);
            put_text(&mut bytes, &reason);
        }
        // `told` makes one of the two of every error.
        other => {
            bytes.push(aborted);
            put_holder(&mut bytes, Some(me));
            put_holder(&mut bytes, other.culprit());
            put_text(&mut bytes, &other.to_string());
        }
    }
    bytes
}

/// Decodes the payload of an abort frame from `sender`; `None` if it is malformed.
pub fn decode(sender: Holder, mut bytes: &[u8]) -> Option<AbortNotice> {
    let bytes = &mut bytes;
    let kind = take(bytes, 1)?[0];
    let (by, about) = (take_holder(bytes)?, take_holder(bytes)?);
    let text = take_text(bytes)?;
    let error = match kind {
        ABORTED | SUSPECTED => {
            CollectiveError::Aborted { by: by.or(Some(sender)), culprit: about, reason: text }
        }
        MISMATCH => CollectiveError::Mismatch { peer: about?, theirs: text, ours: take_text(bytes)? },
        _ => return None,
    };
    bytes.is_empty().then_some(AbortNotice { error, suspects: kind == SUSPECTED })
}

fn put_holder(bytes: &mut Vec<u8>, holder: Option<Holder>) {
    let Some(Holder { node, incarnation }) = holder else { return bytes.push(0) };
    bytes.push(1);
    bytes.push(match node.role {
        Role::Worker => 0,
        Role::Server => 1,
    });
    bytes.extend_from_slice(&node.index.to_le_bytes());
    bytes.extend_from_slice(&incarnation.0.to_le_bytes());
}

fn take_holder(bytes: &mut &[u8]) -> Option<Option<Holder>> {
    if take(bytes, 1)?[0] == 0 {
        return Some(None);
    }
    let role = match take(bytes, 1)?[0] {
        0 => Role::Worker,
        1 => Role::Server,
        _ => return None,
    };
    let (index, incarnation) = (take_u32(bytes)?, take_u32(bytes)?);
    Some(Some(Holder::new(NodeId { role, index }, Incarnation(incarnation))))
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    let mut len = text.len().min(TEXT_MAX);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    #[allow(clippy::cast_possible_truncation, reason = "at most TEXT_MAX")]
    bytes.extend_from_slice(&(len as u16).to_le_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..len]);
}

fn take_text(bytes: &mut &[u8]) -> Option<String> {
    let len = take(bytes, 2)?;
    let len = usize::from(u16::from_le_bytes([len[0], len[1]]));
    String::from_utf8(take(bytes, len)?.to_vec()).ok()
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    take(bytes, 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(index: u32) -> Holder {
        Holder::new(NodeId::worker(index), Incarnation(2))
    }

    #[test]
    fn a_notice_tells_who_gave_up_and_on_whose_account() {
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
