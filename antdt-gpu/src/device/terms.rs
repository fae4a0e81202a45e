//! Requirements of a GPU library on the members of a group.

/// Requirements of a GPU library on the members of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Name of the library in messages.
    pub library: &'static str,
    /// Whether several members may use one GPU.
    pub shares_gpus: bool,
    /// Whether all members must be on one host.
    pub one_host: bool,
    /// Largest number of members of a group.
    pub world_max: u32,
}

impl Terms {
    /// Requirements of NCCL: a GPU for each member, on any hosts.
    pub const NCCL: Self = Self { library: "NCCL", shares_gpus: false, one_host: false, world_max: u32::MAX };

    /// Requirements of CUDA IPC: all members on one host, where they may share GPUs; at most 64 members.
    pub const CUDA_IPC: Self = Self { library: "CUDA IPC", shares_gpus: true, one_host: true, world_max: 64 };
}
