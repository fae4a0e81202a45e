//! In which order links are measured: all pairs, several at once, and no host in two of them at once.

/// The rounds of a tournament of so many players: each pair once, each player at most once a round.
pub(super) fn rounds(players: usize) -> Vec<Vec<(usize, usize)>> {
    // One player stands still and the others go round; with an odd number, who would meet the one that is not there has a rest.
    let seats = players + players % 2;
    let seat = |round: usize, at: usize| if at == 0 { 0 } else { 1 + (at - 1 + round) % (seats - 1) };
    let pairs = |round: usize| {
        let pair = |at: usize| (seat(round, at), seat(round, seats - 1 - at));
        (0..seats / 2).map(pair).filter(|(a, b)| *a < players && *b < players).collect()
    };
    (0..seats.saturating_sub(1)).map(pairs).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_pair_meets_once_and_nobody_twice_in_a_round() {
        for players in 0..20 {
            let rounds = rounds(players);
            let mut met = BTreeSet::new();
            for round in &rounds {
                let mut there = BTreeSet::new();
                for (a, b) in round {
                    assert!(there.insert(*a) && there.insert(*b), "{players}: {round:?}");
                    assert!(met.insert((*a.min(b), *a.max(b))), "{players}: {a} and {b} again");
                }
            }
            assert_eq!(met.len(), players * players.saturating_sub(1) / 2, "{players}");
            assert!(rounds.len() <= players, "{players}");
        }
    }
}
