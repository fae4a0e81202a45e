//! What must hold of any bytes that are said to be a message of the shard service. Also what the fuzzer drives.

use antdt_core as core;
use antdt_proto::convert::shard::ack_outcome;
use antdt_proto::v1;
use prost::Message;

/// Reads the bytes as each message of the service; says as how many they can be read and converted.
///
/// # Panics
/// If a message that was read does not come back from what it is written as.
pub(crate) fn check(bytes: &[u8]) -> u32 {
    let mut converted = 0;
    if let Some(request) = read::<v1::RegisterShardsRequest>(bytes) {
        let holder = request.holder.is_some_and(both::<v1::Holder, core::Holder>);
        let held = request.held.into_iter().filter(|held| both::<v1::Held, core::Held>(*held)).count();
        converted += u32::from(holder || held > 0);
    }
    if let Some(reply) = read::<v1::RegisterShardsReply>(bytes) {
        converted += u32::from(both::<_, core::Registered>(reply));
    }
    if let Some(request) = read::<v1::ExchangeRequest>(bytes) {
        converted += u32::from(asked(request.holder, request.acks));
    }
    if let Some(reply) = read::<v1::ExchangeReply>(bytes) {
        converted += u32::from(both::<_, core::Exchanged>(reply));
    }
    if let Some(request) = read::<v1::ReleaseRequest>(bytes) {
        converted += u32::from(asked(request.holder, request.acks));
    }
    if let Some(reply) = read::<v1::ReleaseReply>(bytes) {
        let outcomes = reply.outcomes.iter().map(|outcome| (*outcome, ack_outcome(*outcome)));
        converted += u32::from(outcomes.filter(known).count() > 0);
    }
    if let Some(request) = read::<v1::FailRequest>(bytes) {
        converted += u32::from(asked(request.holder, request.ack));
    }
    if let Some(reply) = read::<v1::FailReply>(bytes) {
        converted += u32::from(known(&(reply.outcome, ack_outcome(reply.outcome))));
    }
    converted
}

fn read<M: Message + Default + PartialEq + std::fmt::Debug>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let again = M::decode(message.encode_to_vec().as_slice());
    assert_eq!(again.as_ref(), Ok(&message), "a message is written as what it is read from");
    Some(message)
}

/// Whether the message says what it must; if so, nothing of it is lost on the way to core and back.
fn both<W, C>(wire: W) -> bool
where
    W: From<C>,
    C: TryFrom<W> + Clone + PartialEq + std::fmt::Debug,
    <C as TryFrom<W>>::Error: std::fmt::Debug,
{
    let Ok(value) = C::try_from(wire) else { return false };
    let again = C::try_from(W::from(value.clone())).expect("what core says can be said");
    assert_eq!(again, value, "a value comes back from the wire as it was");
    true
}

fn asked(holder: Option<v1::Holder>, acks: impl IntoIterator<Item = v1::Ack>) -> bool {
    let holder = holder.is_some_and(both::<v1::Holder, core::Holder>);
    acks.into_iter().filter(|ack| both::<v1::Ack, core::Ack>(*ack)).count() > 0 || holder
}

fn known((number, outcome): &(i32, Result<core::AckOutcome, antdt_proto::WireError>)) -> bool {
    outcome.as_ref().is_ok_and(|outcome| {
        assert_eq!(i32::from(v1::AckOutcome::from(*outcome)), *number, "an outcome has one number");
        true
    })
}
