//! Messages that were damaged on the way, or made by another program, are refused or have a meaning.

#![forbid(unsafe_code)]

use antdt_core::{DetRng, Seed};
use antdt_proto::v1;
use prost::Message;

mod check;

fn grant(rng: &mut DetRng) -> v1::Grant {
    v1::Grant {
        lease: Some(v1::LeaseId { generation: rng.next_u64(), sequence: rng.below(9) }),
        epoch: rng.below(300) as u32,
        index: rng.next_u64(),
        start: rng.below(1_000),
        len: rng.below(1_000),
        resume_at: rng.below(1_000),
        seed: (rng.below(2) == 0).then(|| rng.next_u64()),
    }
}

fn ack(rng: &mut DetRng) -> v1::Ack {
    let lease =
        (rng.below(8) > 0).then(|| v1::LeaseId { generation: rng.below(4), sequence: rng.below(400) });
    v1::Ack { lease, offset: rng.next_u64() >> rng.below(64) }
}

/// A message of the service as bytes.
fn message(rng: &mut DetRng) -> Vec<u8> {
    let holder = Some(v1::Holder { role: rng.below(4) as i32, index: rng.below(9) as u32, incarnation: 1 });
    let dataset = String::from("clicks");
    let generation = rng.below(300);
    match rng.below(6) {
        0 => {
            let lease = Some(v1::LeaseId { generation, sequence: 7 });
            let held = vec![v1::Held { lease, epoch: 1, index: rng.next_u64(), offset: 3 }];
            v1::RegisterShardsRequest { dataset, holder, held }.encode_to_vec()
        }
        1 => {
            let adopted = vec![v1::Adoption { grant: None }, v1::Adoption { grant: Some(grant(rng)) }];
            v1::RegisterShardsReply { generation, adopted }.encode_to_vec()
        }
        2 => {
            let acks = vec![ack(rng), ack(rng)];
            let (request, want, wait_ns) = (rng.below(9), 16, rng.next_u64());
            v1::ExchangeRequest { dataset, holder, generation, request, acks, want, wait_ns }.encode_to_vec()
        }
        3 => {
            use v1::exchange_reply::Fetched;
            let fetched = match rng.below(5) {
                0 => Some(Fetched::Grant(grant(rng))),
                1 => Some(Fetched::Wait(v1::Wait { retry_after_ns: rng.next_u64() })),
                2 => Some(Fetched::EndOfData(v1::EndOfData {})),
                3 => Some(Fetched::AtLimit(v1::AtLimit {})),
                _ => None,
            };
            let (outcomes, more) = (vec![1, 2, rng.below(4) as i32], vec![grant(rng)]);
            let recalled = vec![v1::LeaseId { generation, sequence: 1 }];
            v1::ExchangeReply { outcomes, fetched, more, recalled }.encode_to_vec()
        }
        4 => {
            let acks = vec![ack(rng)];
            v1::ReleaseRequest { dataset, holder, generation, acks }.encode_to_vec()
        }
        _ => {
            let (ack, why) = (Some(ack(rng)), "page 7".into());
            v1::FailRequest { dataset, holder, generation, ack, why }.encode_to_vec()
        }
    }
}

#[test]
fn a_damaged_message_is_refused_or_comes_back_as_it_was_read() {
    let (mut refused, mut converted) = (0, 0);
    for seed in 0..60_000 {
        let mut rng = Seed(seed).rng();
        let mut bytes = message(&mut rng);
        for _ in 0..rng.below(4) {
            let at = rng.below(bytes.len().max(1) as u64) as usize;
            match rng.below(6) {
                0 if !bytes.is_empty() => drop(bytes.remove(at)),
                1 => bytes.insert(at, rng.next_u64() as u8),
                2 => bytes.truncate(at),
                3 => bytes.extend(message(&mut rng)),
                4 => bytes.splice(at..at, [0xff; 9]).for_each(drop),
                _ if !bytes.is_empty() => bytes[at] ^= 1 << rng.below(8),
                _ => {}
            }
        }
        match check::check(&bytes) {
            0 => refused += 1,
            _ => converted += 1,
        }
    }
    assert!(refused > 1_000 && converted > 10_000, "{refused} refused, {converted} converted");
}
