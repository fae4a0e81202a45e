//! The transports of this crate keep I1 to I14.

mod memory {
    antdt_collective::transport_conforms!(antdt_collective::runtime::testing::mem_members);
}

mod tcp {
    antdt_collective::transport_conforms!(antdt_collective::runtime::testing::tcp_members);
}

mod shared_memory {
    antdt_collective::transport_conforms!(antdt_collective::runtime::testing::shm_members);
}

mod two_hosts {
    antdt_collective::transport_conforms!(antdt_collective::runtime::testing::mixed_members);
}
