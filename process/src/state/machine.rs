//! The requirements of a restored process: the gate that an image must pass.

use serde::{Deserialize, Serialize};

/// The machine on which a process was saved.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// `x86_64`, `aarch64`.
    pub architecture: String,
    /// Kernel release, for reports.
    pub kernel: String,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// CPU features that the program can have seen: words of CPUID that libraries choose code by, in the order that
    /// the architecture's file documents. A restored process needs every bit that is set here.
    pub features: Vec<u32>,
    /// Components of the vector state that the kernel saves (XCR0).
    pub vector_components: u64,
    /// Bytes of that state.
    pub vector_bytes: u32,
}
