//! Groups of a few workers, which the master forms and commits: the two halves of a mode whose workers average their models in such
//! groups.

mod head;
mod worker;

pub(crate) use head::Head;
pub(crate) use worker::Worker;

/// How a worker asks for a partner, where averages run beside gradients; other modes know the first way only. It follows
/// from the number of the question: an even one, of which three in a row are of three ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seeks {
    /// It has steps that are in no average, and waits for a partner.
    Partner,
    /// It has no such steps, and waits for a worker that has.
    Others,
    /// It is to be told at once whether there is a partner.
    AtOnce,
}

impl Seeks {
    const ALL: [Self; 3] = [Self::Partner, Self::Others, Self::AtOnce];

    /// The way of this question.
    const fn of(question: u64) -> Self {
        Self::ALL[(question / 2 % 3) as usize]
    }

    /// The number of the next question of this way.
    fn next(self, asked: u64) -> u64 {
        let next = (1..=3).map(|ahead| asked + 2 * ahead).find(|question| Self::of(*question) == self);
        next.unwrap_or(asked + 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_even_and_count_up_and_say_how_they_are_asked() {
        for seeks in Seeks::ALL {
            for asked in (0..20).map(|half| 2 * half) {
                let next = seeks.next(asked);
                assert!(next > asked && next <= asked + 6 && next.is_multiple_of(2), "{asked} {next}");
                assert_eq!(Seeks::of(next), seeks);
            }
        }
    }
}
