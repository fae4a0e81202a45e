//! The architecture that GPU kernels are compiled for.

/// The compiler target of a GPU's kernels. Architectures are compute capabilities times ten, such as 90.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Machine code of exactly this architecture, which a driver of any age can run.
    Code(u32),
    /// Portable code (PTX) of this architecture, which the driver of a newer GPU translates.
    Portable(u32),
}

impl Target {
    /// Returns the target for a GPU of architecture `gpu` and a compiler that supports the architectures
    /// `known`: the GPU's own machine code, or portable code of the newest supported architecture below it.
    /// `None` if the compiler supports newer architectures only.
    ///
    /// ```
    /// use antdt_gpu::device::Target;
    /// assert_eq!(Target::of(90, &[75, 90, 100]), Some(Target::Code(90)));
    /// assert_eq!(Target::of(120, &[75, 90, 100]), Some(Target::Portable(100)));
    /// ```
    pub fn of(gpu: u32, known: &[u32]) -> Option<Self> {
        if known.contains(&gpu) {
            return Some(Self::Code(gpu));
        }
        known.iter().copied().filter(|known| *known < gpu).max().map(Self::Portable)
    }

    /// Returns the command-line option that selects this target in the compiler.
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
