//! A transport that a user of the crate has written, tested as the README shows.

use std::time::Duration;

use antdt_collective::runtime::transport::REGISTRY;
use antdt_collective::runtime::transport::registry::Entry;
use antdt_collective::runtime::{Exchange, Fabric, Incoming, Outgoing, Regroup};
use antdt_collective::{AbortHandle, CollectiveError, Group, Listener, MemTransport, Transport};

/// Counts the rounds of another transport: what one writes to look at one's own traffic.
struct MyTransport {
    inner: MemTransport,
    rounds: u64,
}

impl Transport for MyTransport {
    fn group(&self) -> &Group {
        self.inner.group()
    }

    fn exchange(
        &mut self,
        call: &Exchange,
        sends: &[Outgoing<'_>],
        receives: &mut [Incoming<'_>],
    ) -> Result<(), CollectiveError> {
        self.rounds += 1;
        self.inner.exchange(call, sends, receives)
    }

    fn fail(&mut self, error: CollectiveError) -> CollectiveError {
        self.inner.fail(error)
    }
}

impl MyTransport {
    const fn new(inner: MemTransport) -> Self {
        Self { inner, rounds: 0 }
    }
}

mod conformance {
    use super::MyTransport;

    // README begin
    use antdt_collective::runtime::testing::{Members, mem_members};

    fn members(world: u32) -> Members<MyTransport> {
        let (connected, aborts) = mem_members(world);
        (connected.into_iter().map(MyTransport::new).collect(), aborts)
    }

    antdt_collective::transport_conforms!(members); // a test for each of I1 to I14
    // README end
}

/// A way that only a program of its own knows: TCP with a word of its own on every error.
#[derive(Debug)]
struct MyFabric(Box<dyn Fabric>);

impl Fabric for MyFabric {
    fn connect(
        &self,
        listener: &Listener,
        group: &Group,
        timeout: Duration,
        abort: &AbortHandle,
    ) -> Result<Box<dyn Regroup>, CollectiveError> {
        let connected = self.0.connect(listener, group, timeout, abort);
        connected.map_err(|error| CollectiveError::Invalid { what: format!("my fabric: {error}") })
    }
}

#[test]
fn a_program_adds_a_transport_that_is_as_good_as_those_that_ship() {
    use antdt_collective::runtime::testing::{any_members, i02_value, named_members};

    let entry = Entry {
        name: "mine",
        about: "my own",
        settings: Vec::new,
        build: |_| Ok(Box::new(MyFabric(REGISTRY.by_name("tcp").expect("it ships")))),
    };
    REGISTRY.register(entry).expect("nobody else has the name");
    let names = REGISTRY.names();
    assert_eq!((&names[..3], names.last()), (&["auto", "tcp", "shm"][..], Some(&"mine")));
    i02_value(&|world| any_members(named_members("mine", world)));
}
