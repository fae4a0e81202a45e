//! Fate of an all-reduce that some members finished and others did not.
//!
//! In a unanimous call every member first makes the result, out of place, then tells the others that it has
//! it, and commits it once all have told. So a member that committed knows that all members have the result.
//! A member whose call breaks off after it has made its result cannot know more: its call is open. The next
//! group decides: if any of its members committed the result, all that hold it do; if none did, all drop it,
//! and the call is made again. A member that died, or was left out, may have decided otherwise; it comes back
//! as a new incarnation without history.
//!
//! Source: two-phase commit without a coordinator among the members that are alive; our design.

/// Progress of a member's unanimous calls, which the member reports when a new group is formed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallState {
    /// Number of calls whose result the member has committed; `None` for a member without history.
    pub committed: Option<u64>,
    /// Whether the member holds the result of the next call and does not know whether the others committed
    /// it.
    pub open: bool,
}

/// Fate of a member's last unanimous call, as the next group decides it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resolution {
    /// No call is open, and all members have committed the same calls.
    Level,
    /// The open call counts: this member must adopt the call's result.
    Committed,
    /// The open call counts on no member: the caller must make it again.
    RolledBack,
    /// Other members have committed results that this member does not hold: it must copy their state.
    Behind {
        /// Number of calls that this member missed.
        missed: u64,
    },
}

impl CallState {
    /// Length of the encoded state in bytes.
    pub const LEN: usize = 16;

    /// Encodes the state for the wire.
    pub fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.committed.unwrap_or(0).to_le_bytes());
        bytes[8] = u8::from(self.committed.is_some()) | u8::from(self.open) << 1;
        bytes
    }

    /// Decodes a state that [`encode`](Self::encode) wrote.
    pub fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let (count, _) = bytes.split_first_chunk().expect("there are 16 bytes");
        let committed = (bytes[8] & 1 != 0).then_some(u64::from_le_bytes(*count));
        Self { committed, open: bytes[8] & 2 != 0 }
    }
}

/// Decides, when the members of a new group meet, the fate of the last call of the member whose state is
/// `mine`, and the number of committed calls from now on. `all` holds the states of all members, `mine` among
/// them.
pub fn resolve(mine: CallState, all: &[CallState]) -> (Resolution, u64) {
    let last = all.iter().filter_map(|state| state.committed).max().unwrap_or(0);
    let resolution = match mine.committed {
        // Without a past there is nothing to miss where no member has one.
        None if last == 0 => Resolution::Level,
        None => Resolution::Behind { missed: last },
        Some(mine_last) => match (last - mine_last, mine.open) {
            (0, true) => Resolution::RolledBack,
            (0, false) => Resolution::Level,
            (1, true) => Resolution::Committed,
            (missed, _) => Resolution::Behind { missed },
        },
    };
    (resolution, last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn state(committed: u64, open: bool) -> CallState {
        CallState { committed: Some(committed), open }
    }

    const NEW: CallState = CallState { committed: None, open: false };

    #[test]
    fn one_that_took_the_result_over_decides_for_all_that_hold_it() {
        let all = [state(4, true), state(5, false), state(4, true), NEW];
        assert_eq!(resolve(all[0], &all), (Resolution::Committed, 5));
        assert_eq!(resolve(all[1], &all), (Resolution::Level, 5));
        assert_eq!(resolve(NEW, &all), (Resolution::Behind { missed: 5 }, 5));
    }

    #[test]
    fn a_result_that_no_member_took_over_counts_nowhere() {
        let all = [state(4, true), state(4, false), NEW];
        assert_eq!(resolve(all[0], &all), (Resolution::RolledBack, 4));
        assert_eq!(resolve(all[1], &all), (Resolution::Level, 4));
        assert_eq!(resolve(NEW, &[NEW, NEW]), (Resolution::Level, 0));
    }

    #[test]
    fn a_member_that_missed_more_than_it_holds_is_told() {
        let all = [state(4, true), state(6, false)];
        assert_eq!(resolve(all[0], &all), (Resolution::Behind { missed: 2 }, 6));
        let all = [state(4, false), state(5, false)];
        assert_eq!(resolve(all[0], &all), (Resolution::Behind { missed: 1 }, 5));
    }

    // The protocol, small: members make calls one after the other; in each, all of them finish the data phase before
    // any takes the result over; the network breaks at any point, and any of them die. A survivor has taken over
    // the same calls after the next group was formed.
    proptest! {
        #[test]
        fn survivors_agree_at_any_point_where_a_call_broke_off(
            calls in prop::collection::vec((0_usize..4, prop::collection::vec(0_u8..4, 4), 1_u8..16), 1..20),
        ) {
            let mut committed = [0_u64; 4];
            for (breaks, progress, alive) in calls {
                // 0: before the result, 1: has it, 2 and 3: took it over, which needs that all have it.
                let whole = breaks == 0;
                let all_hold = whole || progress.iter().all(|p| *p >= 1);
                let states: Vec<CallState> = (0..4)
                    .map(|i| {
                        let takes = whole || all_hold && progress[i] >= 2;
                        CallState {
                            committed: Some(committed[i] + u64::from(takes)),
                            open: !takes && progress[i] >= 1,
                        }
                    })
                    .collect();
                let survivors: Vec<usize> = (0..4).filter(|i| alive >> i & 1 == 1).collect();
                let met: Vec<CallState> = survivors.iter().map(|i| states[*i]).collect();
                let before = committed[survivors[0]];
                let mut resolutions = Vec::new();
                for state in &met {
                    let (resolution, last) = resolve(*state, &met);
                    let taken = state.committed.unwrap() + u64::from(resolution == Resolution::Committed);
                    prop_assert_eq!(taken, last, "{:?}", resolution);
                    let is_behind = matches!(resolution, Resolution::Behind { .. });
                    prop_assert!(!is_behind, "{:?}", met);
                    resolutions.push(last);
                }
                prop_assert!(resolutions.iter().all(|last| *last == resolutions[0] && *last <= before + 1));
                // The dead come back with the survivors' state.
                committed = [resolutions[0]; 4];
            }
        }

        #[test]
        fn a_call_state_reads_back(count in any::<u64>(), past in any::<bool>(), open in any::<bool>()) {
            let state = CallState { committed: past.then_some(count), open };
            prop_assert_eq!(CallState::decode(&state.encode()), state);
        }
    }
}
