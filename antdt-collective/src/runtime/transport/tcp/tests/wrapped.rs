//! Ranks whose connections are wrapped, and ranks whose connections are not.

use antdt_core::Connections;
use antdt_core::testing::Mask;

use super::*;
use crate::runtime::testing::{SHORT, at_once, listener_over, masked_members};
use crate::runtime::transport::Sink;

#[test]
fn a_rank_without_the_wrapper_of_the_others_is_refused_and_no_rank_hangs() {
    for masked in [0, 1] {
        let wrapper = |rank| {
            if rank == masked { Connections::wrapped(Mask::default()) } else { Connections::default() }
        };
        let listeners = [0, 1].map(|rank| listener_over(wrapper(rank)));
        let addresses = listeners.each_ref().map(Listener::local_address);
        let errors = at_once([0, 1], |rank: u32| {
            let group = group(1, &addresses, rank);
            TcpTransport::connect(&listeners[rank as usize], &group, SHORT, &abort()).unwrap_err()
        });
        // Rank 0 calls and is hung up on; for rank 1 it was a stranger.
        assert!(
            matches!(errors[0], CollectiveError::PeerClosed { peer, .. } if peer == holder(1)),
            "{errors:?}"
        );
        assert!(
            matches!(errors[1], CollectiveError::Timeout { peer, .. } if peer == holder(0)),
            "{errors:?}"
        );
    }
}

#[test]
fn a_rank_sleeps_over_nothing_that_its_codec_holds() {
    // Rank 1 sends rank 0 a message and, behind it, why it has failed. The end of the one and the other are decoded at
    // once, so that the socket is empty while rank 0 waits for rank 2, which is silent.
    let (mut transports, _) = masked_members(3);
    let _silent = transports.pop();
    let (mut second, mut first) = (transports.pop().unwrap(), transports.pop().unwrap());
    let now = Instant::now();
    let call = Exchange { tag: reduce_tag(1, 1, 0), started: now, deadline: now + PATIENT, stall: PATIENT };
    let failed = CollectiveError::Invalid { what: "a test".to_owned() };
    second.exchange(&call, &[Outgoing { to: Rank(0), bytes: &[7; 100_000] }], &mut []).unwrap();
    second.fail(failed);
    let mut places = [[0; 100_000]; 2];
    let [one, other] = &mut places;
    let mut receives = [
        Incoming { from: Rank(1), sink: Sink::Place(one) },
        Incoming { from: Rank(2), sink: Sink::Place(other) },
    ];
    let error = first.exchange(&call, &[], &mut receives).unwrap_err();
    assert!(!matches!(error, CollectiveError::Timeout { .. }), "{error}");
    assert!(places[0] == [7; 100_000]);
}
