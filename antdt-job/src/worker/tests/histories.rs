//! Any sequence of legal replies: no panic, no sample left out or in the model twice, and nothing acknowledged that is
//! not in the model. [`Outside`] checks after every call.

use antdt_agent::BeatReply;
use antdt_core::{AckOutcome, FetchOutcome};
use proptest::prelude::*;

use super::outside::{Outside, plan};
use super::*;

/// What else a call may be answered with, or `None`. `pick` chooses.
fn trouble(outside: &mut Outside, pick: u8) -> Option<Reply> {
    let choice = pick / 3;
    match outside.call.clone() {
        Call::Join(standing) => {
            let commit = standing.prepared.is_some() && choice.is_multiple_of(2);
            let mut joined = outside.joined(commit);
            if outside.membership > 1 && choice.is_multiple_of(3) {
                // The answer to a question of before the last group.
                outside.membership -= 1;
                joined.membership = MembershipVersion(outside.membership);
            }
            Some(Reply::Joined(Box::new(joined)))
        }
        Call::Enter(_) | Call::Combine { .. } | Call::Agree(_) => Some(Reply::Broken),
        Call::Register(_) => Some(outside.adopt(usize::from(choice % 3))),
        Call::Exchange { acks, want, .. } => Some(match choice % 5 {
            0 => Reply::ServiceRestarted,
            1 => {
                let fetched = (want > 0).then_some(FetchOutcome::AtLimit);
                let outcomes = vec![AckOutcome::Accepted; acks.len()].into();
                Reply::Exchanged(Exchanged { outcomes, fetched, ..Exchanged::default() })
            }
            2 => {
                let fetched = (want > 0).then_some(FetchOutcome::Wait { retry_after: Duration::ZERO });
                let outcomes = vec![AckOutcome::StaleLease; acks.len()].into();
                Reply::Exchanged(Exchanged { outcomes, fetched, ..Exchanged::default() })
            }
            _ => {
                let recalled = outside.leases();
                let Reply::Exchanged(exchanged) = outside.answer() else { unreachable!() };
                Reply::Exchanged(Exchanged { recalled, ..exchanged })
            }
        }),
        Call::Release(_) | Call::Fail { .. } => Some(Reply::ServiceRestarted),
        call @ (Call::Load(_) | Call::LoadPiece(..)) => {
            let (batch, micro) = call.loads()?;
            let batch = batch.piece(micro);
            let len = usize::try_from(batch.len()).unwrap();
            let sample = batch.samples().nth(usize::from(choice) % len.max(1))?;
            Some(Reply::Unreadable { sample, why: "torn".to_owned() })
        }
        _ => None,
    }
}

/// What the master may order between two calls.
fn order(outside: &mut Outside, pick: u8) {
    let version = outside.plan.version.0 + 1;
    match pick % 16 {
        0 => outside.order(BeatReply { reform: true, ..BeatReply::default() }),
        1 => {
            let pieces = [(outside.worker.holder().node, u32::from(pick / 16 % 5))].into_iter().collect();
            outside.plan = plan(version, outside.membership, u32::from(pick / 16)).with_accumulation(pieces);
            outside.order(BeatReply { plan: Some(outside.plan.clone()), ..BeatReply::default() });
        }
        2 if pick > 240 => outside.order(BeatReply { drain: true, ..BeatReply::default() }),
        _ => {}
    }
}

proptest! {
    #[test]
    fn i30_nothing_is_acknowledged_that_is_not_in_the_model(
        mode in 0..MODES.len(),
        shards in prop::collection::vec(1_u64..12, 0..6),
        batch_size in 0_u32..9,
        picks in prop::collection::vec((any::<u8>(), any::<u8>()), 0..300),
    ) {
        let samples = shards.iter().sum::<u64>();
        let mut outside = Outside::new(MODES[mode], &shards, batch_size);
        for (pick, ordered) in picks {
            if let Call::Stop(end) = &outside.call {
                let legal = match end {
                    End::Failed(why) => why.contains("restarted 9 times"),
                    End::EndOfData { .. } | End::Drained => true,
                };
                prop_assert!(legal, "{:?}", end);
                break;
            }
            order(&mut outside, ordered);
            let trouble = if pick % 3 == 0 { trouble(&mut outside, pick) } else { None };
            let reply = trouble.unwrap_or_else(|| outside.answer());
            outside.say(&reply);
        }
        prop_assert!(outside.trained() <= samples);
    }
}
