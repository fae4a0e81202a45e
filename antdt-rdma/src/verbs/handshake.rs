//! How the connection manager of the RDMA stack connects the members of a group: which member calls which, how a caller identifies itself,
//! and what the member does after each event of the manager.
//!
//! Of two members, the one of higher rank calls. The caller asks for the address, then for the way there, then calls, and
//! confirms when it is answered. The other one answers a request only if it comes from the queue pair that the caller named
//! over the group's own connections before: any other caller is refused.

use antdt_core::Rank;

/// Data of a caller in its connection request, by which the other member checks the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Greeting {
    /// Version of the caller's membership.
    pub membership: u64,
    /// Rank of the member that requests the connection.
    pub from: Rank,
    /// Rank of the member that is called.
    pub to: Rank,
}

impl Greeting {
    /// Length of an encoded greeting, in bytes. A connection request has room for 56.
    pub const LEN: usize = 20;

    /// Encodes the greeting for the wire.
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.membership.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.to.0.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..16]);
        bytes[16..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Decodes the first bytes of a connection request; `None` if they are not a greeting.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.first_chunk()?;
        let u32_at = |at: usize| bytes[at..at + 4].try_into().map(u32::from_le_bytes).ok();
        let membership = bytes[..8].try_into().map(u64::from_le_bytes).ok()?;
        let greeting = Self { membership, from: Rank(u32_at(8)?), to: Rank(u32_at(12)?) };
        (u32_at(16)? == crc32c::crc32c(&bytes[..16])).then_some(greeting)
    }
}

/// Event that the connection manager of the RDMA stack reports about the connection with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeReport {
    /// The peer's address was resolved to an adapter.
    Address,
    /// The route to the peer was resolved.
    Way,
    /// The peer has answered this member's request.
    Answered,
    /// The peer has confirmed this member's answer.
    Confirmed,
    /// The connection with the peer ended.
    Ended,
}

/// Next step of a member on its connection with a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandshakeStep {
    /// Resolve the route to the peer.
    AskWay,
    /// Send the connection request to the peer.
    Call,
    /// Connect the queue pair, and confirm the peer's answer.
    Confirm,
    /// Nothing is to be done.
    Nothing,
}

/// Reason why a connection with a peer could not be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The peer ended the connection before it was made.
    #[error("it ended the connection before it was made")]
    Ended,
    /// The connection manager reported an event that is impossible in the present state.
    #[error("the connection manager reported {0:?} out of turn")]
    OutOfTurn(HandshakeReport),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Of this member itself.
    Own,
    /// This member asked for the address.
    Address,
    /// It asked for the way.
    Way,
    /// It called.
    Called,
    /// It waits to be called.
    Awaited,
    /// It answered.
    Answered,
    Connected,
}

/// The connections of a member with all other members, while the connection manager of the RDMA stack makes
/// them.
#[derive(Debug, Clone)]
pub struct Handshakes {
    membership: u64,
    me: Rank,
    // By rank; of this member 0.
    queue_pairs: Vec<u32>,
    states: Vec<State>,
}

impl Handshakes {
    /// Returns the state of member `me` before any connection is made. `queue_pairs` holds the number of each
    /// peer's queue pair, in order of rank.
    pub fn new(membership: u64, me: Rank, queue_pairs: Vec<u32>) -> Self {
        let state = |rank: u32| match Rank(rank) {
            rank if rank == me => State::Own,
            rank if rank < me => State::Address,
            _ => State::Awaited,
        };
        let states = (0..).zip(&queue_pairs).map(|(rank, _)| state(rank)).collect();
        Self { membership, me, queue_pairs, states }
    }

    /// Returns the ranks that this member calls; it resolves their addresses first.
    pub fn calls(&self) -> impl Iterator<Item = Rank> + use<> {
        (0..self.me.0).map(Rank)
    }

    /// Returns the greeting that this member sends in its request to member `to`.
    pub const fn greeting(&self, to: Rank) -> Greeting {
        Greeting { membership: self.membership, from: self.me, to }
    }

    /// Handles a connection request with the greeting `said` from the queue pair `queue_pair`. Returns the
    /// rank of the member to answer; `None` if the request must be refused.
    pub fn requested(&mut self, said: &[u8], queue_pair: u32) -> Option<Rank> {
        let Greeting { membership, from, to } = Greeting::decode(said)?;
        let known = *self.queue_pairs.get(from.0 as usize)? == queue_pair;
        let state = &mut self.states[from.0 as usize];
        if (membership, to) != (self.membership, self.me) || !known || *state != State::Awaited {
            return None;
        }
        *state = State::Answered;
        Some(from)
    }

    /// Handles an event of the connection manager about the connection with `rank`. Returns the member's next
    /// step.
    ///
    /// # Errors
    /// If the connection cannot be made.
    pub fn reported(&mut self, rank: Rank, report: HandshakeReport) -> Result<HandshakeStep, HandshakeError> {
        let state = &mut self.states[rank.0 as usize];
        let (next, step) = match (*state, report) {
            (State::Address, HandshakeReport::Address) => (State::Way, HandshakeStep::AskWay),
            (State::Way, HandshakeReport::Way) => (State::Called, HandshakeStep::Call),
            (State::Called, HandshakeReport::Answered) => (State::Connected, HandshakeStep::Confirm),
            (State::Answered, HandshakeReport::Confirmed) => (State::Connected, HandshakeStep::Nothing),
            // Its end is told by the group's own connection as well.
            (State::Connected, HandshakeReport::Ended) => (State::Connected, HandshakeStep::Nothing),
            (_, HandshakeReport::Ended) => return Err(HandshakeError::Ended),
            (_, report) => return Err(HandshakeError::OutOfTurn(report)),
        };
        *state = next;
        Ok(step)
    }

    /// Returns the ranks that are not connected yet.
    pub fn missing(&self) -> impl Iterator<Item = Rank> {
        let missing = |state: &State| !matches!(state, State::Own | State::Connected);
        (0..).map(Rank).zip(&self.states).filter(move |(_, state)| missing(state)).map(|(rank, _)| rank)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet, VecDeque};

    use proptest::prelude::*;

    use super::*;

    const fn pair_of(of: u32, with: u32) -> u32 {
        100 * of + with
    }

    fn handshakes(me: u32, world: u32) -> Handshakes {
        let pairs = (0..world).map(|rank| if rank == me { 0 } else { pair_of(rank, me) });
        Handshakes::new(7, Rank(me), pairs.collect())
    }

    #[test]
    fn a_caller_asks_calls_and_confirms_and_the_called_answers() {
        let (mut low, mut high) = (handshakes(0, 2), handshakes(1, 2));
        assert_eq!(low.calls().count(), 0);
        assert_eq!(high.calls().collect::<Vec<_>>(), [Rank(0)]);
        let greeting = high.greeting(Rank(0));
        assert_eq!(high.reported(Rank(0), HandshakeReport::Address), Ok(HandshakeStep::AskWay));
        assert_eq!(high.reported(Rank(0), HandshakeReport::Way), Ok(HandshakeStep::Call));
        assert_eq!(low.requested(&greeting.encode(), pair_of(1, 0)), Some(Rank(1)));
        assert_eq!(high.reported(Rank(0), HandshakeReport::Answered), Ok(HandshakeStep::Confirm));
        assert_eq!((high.missing().count(), low.missing().count()), (0, 1));
        assert_eq!(low.reported(Rank(1), HandshakeReport::Confirmed), Ok(HandshakeStep::Nothing));
        assert_eq!(low.missing().count(), 0);
        assert_eq!(low.reported(Rank(1), HandshakeReport::Ended), Ok(HandshakeStep::Nothing));
    }

    #[test]
    fn a_caller_that_is_not_the_member_it_claims_gets_no_answer() {
        let good = Greeting { membership: 7, from: Rank(2), to: Rank(1) };
        let answered = |greeting: Greeting, queue_pair: u32| {
            handshakes(1, 3).requested(&greeting.encode(), queue_pair).is_some()
        };
        assert!(answered(good, pair_of(2, 1)));
        assert!(!answered(good, pair_of(2, 1) + 1), "another queue pair");
        assert!(!answered(Greeting { membership: 6, ..good }, pair_of(2, 1)), "another group");
        assert!(!answered(Greeting { to: Rank(0), ..good }, pair_of(2, 1)), "another member is meant");
        assert!(
            !answered(Greeting { from: Rank(0), ..good }, pair_of(0, 1)),
            "it is called, and does not call"
        );
        assert!(!answered(Greeting { from: Rank(1), ..good }, 0), "this member itself");
        assert!(!answered(Greeting { from: Rank(3), ..good }, pair_of(3, 1)), "no such member");
        let mut twice = handshakes(1, 3);
        assert!(twice.requested(&good.encode(), pair_of(2, 1)).is_some());
        assert!(twice.requested(&good.encode(), pair_of(2, 1)).is_none(), "a second call");
        let bytes = good.encode();
        assert_eq!(Greeting::decode(&[&bytes[..], &[0; 36]].concat()), Some(good));
        assert_eq!(Greeting::decode(&bytes[..Greeting::LEN - 1]), None);
        for bit in 0..8 * Greeting::LEN {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Greeting::decode(&damaged), None, "bit {bit}");
        }
    }

    #[test]
    fn an_end_or_a_report_out_of_turn_is_an_error_until_the_connection_is_made() {
        let mut high = handshakes(1, 2);
        assert_eq!(
            high.reported(Rank(0), HandshakeReport::Way),
            Err(HandshakeError::OutOfTurn(HandshakeReport::Way))
        );
        assert_eq!(high.reported(Rank(0), HandshakeReport::Ended), Err(HandshakeError::Ended));
        let mut low = handshakes(0, 2);
        let out_of_turn = Err(HandshakeError::OutOfTurn(HandshakeReport::Confirmed));
        assert_eq!(low.reported(Rank(1), HandshakeReport::Confirmed), out_of_turn, "before it was called");
    }

    /// What a manager tells a member, or takes to it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Sent {
        Told(HandshakeReport),
        Request(Greeting),
    }

    /// Members and their managers, which take any order.
    struct World {
        members: Vec<Handshakes>,
        // What is under way, by receiver and sender: in order between two of them.
        wires: BTreeMap<(u32, u32), VecDeque<Sent>>,
        /// Errors, by member and peer; nothing more comes about between the two.
        errors: BTreeMap<(u32, u32), HandshakeError>,
        dead: Option<u32>,
        answered: u32,
    }

    impl World {
        fn new(world: u32) -> Self {
            let members: Vec<Handshakes> = (0..world).map(|me| handshakes(me, world)).collect();
            let mut wires = BTreeMap::new();
            for (me, member) in (0..).zip(&members) {
                let told = || VecDeque::from([Sent::Told(HandshakeReport::Address)]);
                wires.extend(member.calls().map(|to| ((me, to.0), told())));
                wires.extend((me + 1..world).map(|from| ((me, from), VecDeque::new())));
            }
            Self { members, wires, errors: BTreeMap::new(), dead: None, answered: 0 }
        }

        fn busy(&self) -> Vec<(u32, u32)> {
            self.wires.iter().filter(|(_, wire)| !wire.is_empty()).map(|(ends, _)| *ends).collect()
        }

        /// Takes the next message of a wire to its member.
        fn deliver(&mut self, (me, peer): (u32, u32)) {
            let Some(sent) = self.wires.get_mut(&(me, peer)).and_then(VecDeque::pop_front) else { return };
            if self.dead == Some(me) || self.errors.contains_key(&(me, peer)) {
                return;
            }
            let member = &mut self.members[me as usize];
            let next = match sent {
                Sent::Told(report) => match member.reported(Rank(peer), report) {
                    Ok(HandshakeStep::AskWay) => Some(((me, peer), Sent::Told(HandshakeReport::Way))),
                    Ok(HandshakeStep::Call) => Some(((peer, me), Sent::Request(member.greeting(Rank(peer))))),
                    Ok(HandshakeStep::Confirm) => Some(((peer, me), Sent::Told(HandshakeReport::Confirmed))),
                    Ok(HandshakeStep::Nothing) => None,
                    Err(error) => {
                        self.errors.insert((me, peer), error);
                        None
                    }
                },
                Sent::Request(greeting) => match member.requested(&greeting.encode(), pair_of(peer, me)) {
                    Some(caller) => {
                        assert_eq!(caller, Rank(peer));
                        self.answered += 1;
                        Some(((peer, me), Sent::Told(HandshakeReport::Answered)))
                    }
                    None => None,
                },
            };
            if let Some((wire, sent)) = next {
                self.wires.get_mut(&wire).unwrap().push_back(sent);
            }
        }

        /// Takes all that is under way to its members.
        fn settle(&mut self) {
            while let Some(ends) = self.busy().first() {
                self.deliver(*ends);
            }
        }

        /// A member's process dies. What it sent before arrives; then the managers of the others say that it ended.
        fn kill(&mut self, member: u32) {
            self.dead = Some(member);
            for ((_, from), wire) in &mut self.wires {
                if *from == member {
                    wire.push_back(Sent::Told(HandshakeReport::Ended));
                }
            }
        }

        fn missing(&self, me: u32) -> Vec<u32> {
            self.members[me as usize].missing().map(|rank| rank.0).collect()
        }
    }

    type Picks = Vec<prop::sample::Index>;

    fn picks() -> impl Strategy<Value = Picks> {
        proptest::collection::vec(any::<prop::sample::Index>(), 200)
    }

    proptest! {
        // Whatever order the managers of the members take: all pairs are connected, by one call each.
        #[test]
        fn all_members_are_connected_in_every_order(world in 2_u32..6, picks in picks()) {
            let mut all = World::new(world);
            for pick in picks {
                let busy = all.busy();
                if busy.is_empty() {
                    break;
                }
                all.deliver(busy[pick.index(busy.len())]);
            }
            // Five steps for each pair, and 15 pairs at most.
            prop_assert!((0..world).all(|me| all.missing(me).is_empty()));
            prop_assert_eq!((all.answered, all.errors.len()), (world * (world - 1) / 2, 0));
        }

        // Wherever a member dies: the others are connected with each other, and with it those that had come so far; all others
        // are told that it ended, and miss no one else.
        #[test]
        fn a_member_that_dies_meanwhile_is_missed_by_those_it_was_not_connected_with(
            world in 2_u32..6, who: prop::sample::Index, when in 0_usize..80, picks in picks(),
        ) {
            let mut all = World::new(world);
            let who = who.index(world as usize) as u32;
            for pick in picks.into_iter().take(when) {
                let busy = all.busy();
                if busy.is_empty() {
                    break;
                }
                all.deliver(busy[pick.index(busy.len())]);
            }
            all.kill(who);
            all.settle();
            for me in (0..world).filter(|me| *me != who) {
                let missing = all.missing(me);
                let error = all.errors.get(&(me, who));
                prop_assert!(missing.is_empty() || missing == [who], "{} misses {:?}", me, missing);
                prop_assert_eq!(error, (!missing.is_empty()).then_some(&HandshakeError::Ended));
            }
            prop_assert!(all.errors.keys().all(|(_, peer)| *peer == who));
        }

        // The manager repeats what is lost. A call whose answer was late comes twice, and is answered once.
        #[test]
        fn a_call_that_is_repeated_is_answered_once(
            world in 2_u32..6, picks in picks(), again in proptest::collection::vec(any::<bool>(), 200),
        ) {
            let mut all = World::new(world);
            for (pick, again) in picks.into_iter().zip(again) {
                let busy = all.busy();
                if busy.is_empty() {
                    break;
                }
                let ends = busy[pick.index(busy.len())];
                let wire = all.wires.get_mut(&ends).unwrap();
                if let Some(request @ Sent::Request(_)) = wire.front().copied().filter(|_| again) {
                    wire.push_back(request);
                }
                all.deliver(ends);
            }
            all.settle();
            prop_assert!((0..world).all(|me| all.missing(me).is_empty()));
            prop_assert_eq!((all.answered, all.errors.len()), (world * (world - 1) / 2, 0));
        }

        // Messages that are lost for good: the two members miss each other, but for a caller whose confirmation is lost; when the
        // managers give up, each of those that miss is told. All other pairs are connected.
        #[test]
        fn a_pair_with_a_lost_message_misses_each_other_and_no_one_else(
            world in 2_u32..6, picks in picks(), lost in proptest::collection::vec(0_u8..6, 200),
        ) {
            let mut all = World::new(world);
            // By member and peer: those that wait for what does not come.
            let mut waits = BTreeSet::new();
            for (pick, lost) in picks.into_iter().zip(lost) {
                let busy = all.busy();
                if busy.is_empty() {
                    break;
                }
                let (me, peer) = busy[pick.index(busy.len())];
                let next = all.wires[&(me, peer)].front().copied();
                match next.filter(|_| lost == 0) {
                    Some(Sent::Request(_) | Sent::Told(HandshakeReport::Answered)) => {
                        waits.extend([(me, peer), (peer, me)]);
                    }
                    Some(Sent::Told(HandshakeReport::Confirmed)) => {
                        waits.insert((me, peer));
                    }
                    _ => {
                        all.deliver((me, peer));
                        continue;
                    }
                }
                all.wires.get_mut(&(me, peer)).unwrap().clear();
            }
            for me in 0..world {
                let expected: Vec<u32> = (0..world).filter(|peer| waits.contains(&(me, *peer))).collect();
                prop_assert_eq!(all.missing(me), expected, "{}", me);
            }
            for wire in all.wires.values_mut() {
                wire.push_back(Sent::Told(HandshakeReport::Ended));
            }
            all.settle();
            prop_assert!(all.errors.keys().eq(&waits));
            prop_assert!(all.errors.values().all(|error| *error == HandshakeError::Ended));
        }
    }
}
