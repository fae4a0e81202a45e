//! An all-reduce between two processes: `cargo run --example all_reduce 1` in one terminal, then `... 0` in another, in
//! either order; on one host they share memory, on two they talk over TCP.

use std::time::Duration;

use antdt_collective::runtime::MixedTransport;
use antdt_collective::{
    AbortHandle, Communicator, CommunicatorConfig, Group, JobToken, Listener, Member, ReduceOp,
    ScheduledCommunicator,
};
use antdt_core::{Holder, Incarnation, MembershipVersion, NodeId, Rank};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let me = Rank(arguments.next().ok_or("which of the two is this, 0 or 1?")?.parse()?);
    let addresses: Vec<std::net::SocketAddr> = match (arguments.next(), arguments.next()) {
        (Some(first), Some(second)) => vec![first.parse()?, second.parse()?],
        _ => vec!["127.0.0.1:7000".parse()?, "127.0.0.1:7001".parse()?],
    };
    // README begin
    let listener = Listener::bind(addresses[me.0 as usize], JobToken::new("the job's secret"))?;
    let members = (0..).zip(&addresses).map(|(index, address)| Member {
        holder: Holder::new(NodeId::worker(index), Incarnation(0)),
        address: *address,
    });
    let group = Group::new(MembershipVersion(1), members.collect(), me)?;
    let abort = AbortHandle::new()?;
    let transport = MixedTransport::connect(&listener, &group, Duration::from_secs(10), &abort)?;
    let mut communicator = ScheduledCommunicator::new(transport, CommunicatorConfig::default());
    let mut gradient = communicator.buffer::<f32>(3)?;
    gradient.copy_from_slice(&[1.0, 2.0, me.0 as f32]);
    communicator.all_reduce_buffer(&mut gradient, ReduceOp::Sum)?;
    println!("{:?}", &*gradient);
    // README end
    Ok(())
}
