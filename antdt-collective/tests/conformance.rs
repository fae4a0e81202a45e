//! The transports of this crate keep I1 to I14.

use antdt_collective::runtime::testing::named_members;

mod memory {
    antdt_collective::transport_conforms!(antdt_collective::runtime::testing::mem_members);
}

// By name, as programs get them.
mod tcp {
    antdt_collective::transport_conforms!(|world| super::named_members("tcp", world));
}

// What a program wraps, changed byte by byte.
mod masked {
    antdt_collective::transport_conforms!(antdt_collective::runtime::testing::masked_members, one case in 4);
}

mod shared_memory {
    antdt_collective::transport_conforms!(|world| super::named_members("shm", world));
}

// The one that chooses for each pair of members, on one host; `two_hosts` has both of what it chooses from.
mod auto {
    antdt_collective::transport_conforms!(|world| super::named_members("auto", world), one case in 4);
}

mod two_hosts {
    antdt_collective::transport_conforms!(antdt_collective::runtime::testing::mixed_members, one case in 2);
}

// Over an emulated network of two members to a host: what another wait before each message could break.
mod paced {
    use std::time::Duration;

    use antdt_collective::runtime::testing::{Members, fabric_members};
    use antdt_collective::runtime::transport::paced::{EmulatedNetwork, Lines, PacedFabric};
    use antdt_collective::runtime::transport::{REGISTRY, Regroup};
    use antdt_core::NodeId;

    antdt_collective::transport_conforms! {
        members;
        i01_identity i02_value i03_determinism i06_disjoint i07_termination i09_fencing i12_composition i14_few
    }

    fn members(world: u32) -> Members<Box<dyn Regroup>> {
        let network = EmulatedNetwork {
            workers_per_host: 2,
            ..EmulatedNetwork::new(500e6, Duration::from_micros(100))
        };
        let below = REGISTRY.by_name("auto").expect("on loopback");
        let lines = Lines::new().expect("on loopback");
        fabric_members(
            &PacedFabric::new(below, network, lines, NodeId::worker(0)).expect("on loopback"),
            world,
        )
    }
}
