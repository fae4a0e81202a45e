//! What kernels are compiled to.

/// What kernels are compiled to, for a GPU and by a compiler that knows some of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The machine code of exactly this architecture, such as 90: it does not depend on how new the driver is.
    Code(u32),
    /// The portable form of this architecture, which the driver of a newer GPU translates.
    Portable(u32),
}

impl Target {
    /// Returns what to compile to for a GPU of this architecture, by a compiler that knows these: its own code, or the
    /// portable form of the newest before it. `None`: the compiler knows only newer ones.
    ///
    /// ```
    /// use antdt_collective::device::Target;
    /// assert_eq!(Target::of(90, &[75, 90, 100]), Some(Target::Code(90)));
    /// assert_eq!(Target::of(120, &[75, 90, 100]), Some(Target::Portable(100)));
    /// ```
    pub fn of(gpu: u32, known: &[u32]) -> Option<Self> {
        if known.contains(&gpu) {
            return Some(Self::Code(gpu));
        }
        known.iter().copied().filter(|known| *known < gpu).max().map(Self::Portable)
    }

    /// Returns the option of the compiler.
    pub fn option(self) -> String {
        match self {
            Self::Code(architecture) => format!("--gpu-architecture=sm_{architecture}"),
            Self::Portable(architecture) => format!("--gpu-architecture=compute_{architecture}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_gets_its_own_code_or_the_newest_portable_form_before_it() {
        let known = [90, 75, 80];
        assert_eq!(Target::of(80, &known), Some(Target::Code(80)));
        assert_eq!(Target::of(89, &known), Some(Target::Portable(80)));
        assert_eq!(Target::of(103, &known), Some(Target::Portable(90)));
        assert_eq!(Target::of(70, &known), None);
        assert_eq!(Target::of(90, &[]), None);
        assert_eq!(Target::Code(90).option(), "--gpu-architecture=sm_90");
        assert_eq!(Target::Portable(80).option(), "--gpu-architecture=compute_80");
    }
}
