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

// As programs get them by name.
mod registered {
    use antdt_collective::runtime::testing::named_members;

    mod auto {
        antdt_collective::transport_conforms!(|world| super::named_members("auto", world));
    }

    mod tcp {
        antdt_collective::transport_conforms!(|world| super::named_members("tcp", world));
    }

    mod shm {
        antdt_collective::transport_conforms!(|world| super::named_members("shm", world));
    }
}
