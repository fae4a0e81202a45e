//! What a library asks of the members of a group.

/// What a library asks of the members of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Its name, as messages say it.
    pub library: &'static str,
    /// Whether several members may be on one GPU.
    pub shares_gpus: bool,
    /// Whether all members must be on one host.
    pub one_host: bool,
    /// The most members of a group.
    pub world_max: u32,
}

impl Terms {
    /// A GPU for each member, on any hosts.
    pub const NCCL: Self = Self { library: "NCCL", shares_gpus: false, one_host: false, world_max: u32::MAX };

    /// Memory of GPUs that processes of one host map.
    pub const CUDA_IPC: Self = Self { library: "CUDA IPC", shares_gpus: true, one_host: true, world_max: 64 };
}
