//! Credits: a sender never writes where a receiver has not made room.
//!
//! Both sides count the pieces of a connection from its beginning. A receiver says how many it has taken in all, so
//! that a message about it that is late or repeated does no harm.

/// The sender's side of flow control: how many pieces of messages may be in flight to the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    room: u64,
    sent: u64,
    completed: u64,
    taken: u64,
}

impl Window {
    /// Returns the window of a new connection to a receiver with `room` slots. A slot is a buffer for one piece of a message.
    pub const fn new(room: u32) -> Self {
        Self { room: room as u64, sent: 0, completed: 0, taken: 0 }
    }

    /// Returns the number of the next piece if it may be sent now: the receiver has a free slot for it, and
    /// the adapter has sent the piece that used the same buffer before.
    pub const fn next(&self) -> Option<u64> {
        let freed = if self.taken < self.completed { self.taken } else { self.completed };
        if self.sent - freed < self.room { Some(self.sent) } else { None }
    }

    /// Counts the piece that [`next`](Self::next) allowed as sent.
    ///
    /// # Panics
    /// If `next` does not allow a piece.
    pub const fn send(&mut self) {
        assert!(self.next().is_some(), "a piece beyond the receiver's room");
        self.sent += 1;
    }

    /// Counts one more piece as sent by the adapter; pieces complete in order.
    pub const fn complete(&mut self) {
        if self.completed < self.sent {
            self.completed += 1;
        }
    }

    /// Records that the receiver has taken `taken` pieces since the connection began. Returns `false` if that
    /// is impossible, because fewer were sent.
    pub const fn credit(&mut self, taken: u64) -> bool {
        if taken > self.sent {
            return false;
        }
        if taken > self.taken {
            self.taken = taken;
        }
        true
    }

    /// Returns the number of pieces sent since the connection began.
    pub const fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the number of pieces that the adapter has finished sending.
    pub const fn completed(&self) -> u64 {
        self.completed
    }

    /// Returns the number of pieces that the receiver has taken, according to its last message.
    pub const fn taken(&self) -> u64 {
        self.taken
    }
}

/// The receiver's side of flow control: how many pieces it has taken, and when to tell the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owed {
    room: u64,
    taken: u64,
    told: u64,
}

impl Owed {
    /// Returns the receiver's state at the beginning of a connection. The receiver has `room` slots, each a buffer for one
    /// piece of a message.
    pub const fn new(room: u32) -> Self {
        Self { room: room as u64, taken: 0, told: 0 }
    }

    /// Counts a piece as taken; its slot is free again.
    pub const fn take(&mut self) {
        self.taken += 1;
    }

    /// Returns the number of pieces taken since the connection began, if the sender should be told now: when
    /// half of the slots are free without the sender knowing it. A message for each piece would cost too
    /// much; a later one would make the sender wait.
    pub const fn due(&self) -> Option<u64> {
        let untold = self.taken - self.told;
        if untold > 0 && untold * 2 >= self.room { Some(self.taken) } else { None }
    }

    /// Records that the sender was told the number that [`due`](Self::due) returned.
    pub const fn tell(&mut self) {
        self.told = self.taken;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_sender_stops_where_the_room_ends_and_goes_on_with_a_credit() {
        let mut window = Window::new(2);
        assert_eq!(window.next(), Some(0));
        window.send();
        window.send();
        assert_eq!(window.next(), None);
        window.complete();
        window.complete();
        assert_eq!(window.next(), None, "the receiver has taken nothing");
        assert!(window.credit(1));
        assert_eq!(window.next(), Some(2));
        window.send();
        assert_eq!(window.next(), None);
    }

    #[test]
    fn a_place_is_not_used_before_the_adapter_is_done_with_it() {
        let mut window = Window::new(1);
        window.send();
        assert!(window.credit(1));
        assert_eq!(window.next(), None);
        window.complete();
        assert_eq!(window.next(), Some(1));
    }

    #[test]
    fn a_credit_that_is_late_changes_nothing_and_one_for_pieces_not_sent_is_refused() {
        let mut window = Window::new(4);
        window.send();
        window.send();
        assert!(window.credit(2));
        assert!(window.credit(1));
        assert_eq!(window.taken(), 2);
        assert!(!window.credit(3));
        assert_eq!(window.taken(), 2);
    }

    #[test]
    fn a_receiver_speaks_once_half_of_its_room_is_free() {
        let mut owed = Owed::new(4);
        owed.take();
        assert_eq!(owed.due(), None);
        owed.take();
        assert_eq!(owed.due(), Some(2));
        owed.tell();
        assert_eq!(owed.due(), None);
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Send,
        Complete,
        Arrive,
        Take,
        Hear,
    }

    proptest! {
        #[test]
        fn no_piece_overtakes_its_place_and_none_is_left_behind(
            room in 1..9_u32,
            steps in proptest::collection::vec(
                prop::sample::select(&[Step::Send, Step::Complete, Step::Arrive, Step::Take, Step::Hear][..]), 0..400),
        ) {
            let (mut window, mut owed) = (Window::new(room), Owed::new(room));
            let (mut flying, mut landed, mut credits) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
            let mut taken = 0;
            let all = [Step::Complete, Step::Arrive, Step::Take, Step::Hear].repeat(64);
            for step in steps.into_iter().chain(all) {
                match step {
                    Step::Send => if let Some(number) = window.next() {
                        flying.push_back(number);
                        window.send();
                    },
                    Step::Complete => window.complete(),
                    Step::Arrive => landed.extend(flying.pop_front()),
                    Step::Take => if let Some(number) = landed.pop_front() {
                        prop_assert_eq!(number, taken);
                        taken += 1;
                        owed.take();
                        if let Some(due) = owed.due() {
                            credits.push_back(due);
                            owed.tell();
                        }
                    },
                    Step::Hear => if let Some(credit) = credits.pop_front() {
                        prop_assert!(window.credit(credit));
                    },
                }
                prop_assert!(flying.len() + landed.len() <= room as usize);
                prop_assert!(credits.len() <= 2, "{} credits wait", credits.len());
            }
            prop_assert!(window.next().is_some(), "all was taken, and nothing may be sent: {:?} {:?}", window, owed);
        }
    }
}
