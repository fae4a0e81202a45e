//! From one membership to the next over the same connections.

use antdt_core::Holder;

use super::*;
use crate::runtime::testing::Watchdog;

/// Processes with their listeners, whatever group they are in.
struct Processes {
    listeners: Vec<Listener>,
}

impl Processes {
    fn start(count: usize) -> Self {
        Self { listeners: (0..count).map(|_| loopback_listener()).collect() }
    }

    // The group of these processes as `me` sees it; the order is that of rank.
    fn group(&self, membership: u64, members: &[u32], me: u32) -> Group {
        let members: Vec<Member> = members
            .iter()
            .map(|process| Member {
                holder: holder(*process),
                address: self.listeners[*process as usize].local_address(),
            })
            .collect();
        let rank = members.iter().position(|member| member.holder == holder(me)).unwrap();
        Group::new(MembershipVersion(membership), members, Rank(rank as u32)).unwrap()
    }

    // All of `members` enter a membership, each from what it had before.
    fn enter(
        &self,
        membership: u64,
        members: &[u32],
        before: Vec<Option<TcpTransport>>,
    ) -> Vec<TcpTransport> {
        self.try_enter(membership, members, before, PATIENT).into_iter().map(Result::unwrap).collect()
    }

    fn try_enter(
        &self,
        membership: u64,
        members: &[u32],
        before: Vec<Option<TcpTransport>>,
        timeout: Duration,
    ) -> Vec<Result<TcpTransport, CollectiveError>> {
        thread::scope(|scope| {
            let threads: Vec<_> = members
                .iter()
                .zip(before)
                .map(|(me, before)| {
                    let (group, listener) =
                        (self.group(membership, members, *me), &self.listeners[*me as usize]);
                    scope.spawn(move || match before {
                        Some(before) => before.regroup(listener, &group, timeout, &abort()),
                        None => TcpTransport::connect(listener, &group, timeout, &abort()),
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }
}

// The connections by peer: both ends' addresses tell one connection from another.
fn connections(transport: &TcpTransport) -> Vec<(Holder, SocketAddr, SocketAddr)> {
    let links = transport.links.iter().flatten();
    links
        .map(|link| {
            (
                link.peer,
                link.socket.stream.socket().local_addr().unwrap(),
                link.socket.stream.socket().peer_addr().unwrap(),
            )
        })
        .collect()
}

// The sum over all members, by way of a buffer of many segments.
fn reduces(transports: Vec<TcpTransport>) {
    let world = transports.len();
    thread::scope(|scope| {
        for transport in transports {
            scope.spawn(move || {
                let mut data = vec![1.0_f32; 500_000];
                communicator(transport, PATIENT).all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert!(data.iter().all(|value| *value == world as f32));
            });
        }
    });
}

#[test]
fn survivors_keep_their_connections_while_one_leaves_and_one_joins() {
    let processes = Processes::start(4);
    let mut old = processes.enter(1, &[0, 1, 2], vec![None, None, None]);
    let kept: Vec<_> = old[1..].iter().map(connections).collect();
    let leaver = old.remove(0);
    let mut old: Vec<_> = old.into_iter().map(Some).collect();
    // The newcomer is rank 0, and the ranks of the others are what they were.
    old.insert(0, None);
    let new = processes.enter(2, &[3, 1, 2], old);
    for (before, transport) in kept.iter().zip(&new[1..]) {
        let survived = |(peer, ..): &&(Holder, SocketAddr, SocketAddr)| *peer != holder(0);
        let before: Vec<_> = before.iter().filter(survived).collect();
        let after = connections(transport);
        assert_eq!(before.len(), 1);
        assert!(before.iter().all(|connection| after.contains(connection)), "{before:?} {after:?}");
        assert_eq!(after.len(), 2);
    }
    reduces(new);
    let error = communicator(leaver, PATIENT).barrier().unwrap_err();
    assert!(matches!(error, CollectiveError::PeerClosed { .. }), "{error}");
}

#[test]
fn connections_outlive_a_call_that_was_aborted_within_a_segment_and_its_frames_reach_no_result() {
    let processes = Processes::start(3);
    let old = processes.enter(1, &[0, 1, 2], vec![None, None, None]);
    let kept: Vec<_> = old.iter().map(connections).collect();
    // Member 2 never comes: the other two stop in the middle of what they send to it.
    let old: Vec<Option<TcpTransport>> = thread::scope(|scope| {
        let threads: Vec<_> = old
            .into_iter()
            .map(|mut transport| {
                scope.spawn(move || {
                    let me = transport.group().me();
                    if me != Rank(2) {
                        let bytes = vec![9; 64 << 20];
                        let started = Instant::now();
                        let deadline = started + Duration::from_millis(100);
                        let call = Exchange { tag: reduce_tag(1, 1, 0), started, deadline, stall: PATIENT };
                        let sends = [Outgoing { to: Rank(2), bytes: &bytes }];
                        let error = transport.exchange(&call, &sends, &mut []).unwrap_err();
                        assert_eq!(error.culprit(), Some(holder(2)), "{error}");
                    }
                    Some(transport)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let new = processes.enter(2, &[0, 1, 2], old);
    assert_eq!(new.iter().map(connections).collect::<Vec<_>>(), kept);
    reduces(new);
}

#[test]
fn a_connection_that_ended_is_made_anew() {
    let processes = Processes::start(3);
    for (low, high) in [(0, 1), (1, 0)] {
        let old = processes.enter(1, &[0, 1, 2], vec![None, None, None]);
        let ended = old[low].links[high].as_ref().unwrap();
        ended.socket.stream.socket().shutdown(Shutdown::Both).unwrap();
        reduces(processes.enter(2, &[0, 1, 2], old.into_iter().map(Some).collect()));
    }
}

#[test]
fn a_member_that_died_is_named_by_all_that_regroup_with_it() {
    let processes = Processes::start(3);
    for dead in 0..3 {
        let mut old: Vec<_> =
            processes.enter(1, &[0, 1, 2], vec![None, None, None]).into_iter().map(Some).collect();
        old[dead] = None;
        let survivors: Vec<u32> = (0..3).filter(|process| *process != dead as u32).collect();
        thread::scope(|scope| {
            for me in survivors {
                let before = old[me as usize].take().unwrap();
                let processes = &processes;
                scope.spawn(move || {
                    let group = processes.group(2, &[0, 1, 2], me);
                    let listener = &processes.listeners[me as usize];
                    // Its listener lives on in this process, and does not answer.
                    let short = Duration::from_millis(300);
                    let error = before.regroup(listener, &group, short, &abort()).unwrap_err();
                    assert!(error.culprit().is_some(), "{error}");
                });
            }
        });
    }
}

#[test]
fn a_member_that_missed_the_new_membership_learns_of_it_in_its_next_call() {
    let processes = Processes::start(2);
    let mut old = processes.enter(1, &[0, 1], vec![None, None]);
    let stale = old.pop().unwrap();
    let first = old.pop().unwrap();
    thread::scope(|scope| {
        let late = scope.spawn(|| {
            let mut communicator = communicator(stale, PATIENT);
            communicator.barrier().unwrap_err()
        });
        let group = processes.group(2, &[0, 1], 0);
        let short = Duration::from_millis(300);
        let error = first.regroup(&processes.listeners[0], &group, short, &abort()).unwrap_err();
        // It gave up its connections, and its listener has no owner.
        assert!(
            matches!(error, CollectiveError::Timeout { .. } | CollectiveError::PeerClosed { .. }),
            "{error}"
        );
        let (ours, theirs) = (MembershipVersion(1), MembershipVersion(2));
        assert_eq!(late.join().unwrap(), CollectiveError::StaleMembership { ours, theirs });
    });
}

#[test]
fn a_member_that_went_on_to_a_newer_group_spoils_no_round_that_has_all_it_needs_from_it() {
    let (mut transports, _aborts) = tcp_members(3);
    let [_, second, third] = &mut transports[..] else { panic!("not three members") };
    let started = Instant::now();
    let call = |round, deadline| Exchange {
        tag: reduce_tag(1, 1, round),
        started,
        deadline: Instant::now() + deadline,
        stall: PATIENT,
    };
    fn from<'a>(rank: u32, place: &'a mut [u8]) -> Incoming<'a> {
        Incoming { from: Rank(rank), sink: crate::runtime::transport::Sink::Place(place) }
    }
    second.exchange(&call(0, PATIENT), &[Outgoing { to: Rank(2), bytes: &[7; 8] }], &mut []).unwrap();
    let mut place = [0; 8];
    third.exchange(&call(0, PATIENT), &[], &mut [from(1, &mut place)]).unwrap();
    assert_eq!(place, [7; 8]);
    // The second member greets the third one in the next group. That one still waits for the first one, and for none
    // else.
    let (job, fingerprint) = (JobToken::new("test"), 0);
    let hello =
        hello::Hello { membership: MembershipVersion(2), job, fingerprint, from: Rank(0), to: Rank(1) };
    let link = second.link(Rank(2));
    link.greet(&hello.encode());
    link.flush().unwrap();
    let waited = third.exchange(&call(1, Duration::from_millis(50)), &[], &mut [from(0, &mut place)]);
    let error = waited.unwrap_err();
    assert_eq!(error.culprit(), Some(holder(0)), "{error}");
}

#[test]
fn members_that_stay_fail_at_once_for_one_that_does_not_listen_any_more() {
    let mut processes = Processes::start(3);
    let old = processes.enter(1, &[0, 1], vec![None, None]);
    let gone = processes.group(2, &[0, 1, 2], 0).members()[2].address;
    drop(processes.listeners.pop());
    let members = |me| {
        let addresses =
            [processes.listeners[0].local_address(), processes.listeners[1].local_address(), gone];
        group(2, &addresses, me)
    };
    // Far longer than a test may take.
    let patience = Duration::from_secs(3600);
    let _watchdog = Watchdog::over("members that stay");
    thread::scope(|scope| {
        for (rank, transport) in (0..).zip(old) {
            let (listener, group) = (&processes.listeners[rank as usize], members(rank));
            scope.spawn(move || {
                let error = transport.regroup(listener, &group, patience, &abort()).unwrap_err();
                assert!(matches!(error, CollectiveError::PeerClosed { .. }), "{error}");
            });
        }
    });
}

#[test]
fn a_membership_that_is_not_newer_is_refused() {
    let processes = Processes::start(2);
    let mut old = processes.enter(3, &[0, 1], vec![None, None]);
    let group = processes.group(3, &[0, 1], 0);
    let error = old.remove(0).regroup(&processes.listeners[0], &group, PATIENT, &abort()).unwrap_err();
    assert!(matches!(error, CollectiveError::Invalid { .. }), "{error}");
}
