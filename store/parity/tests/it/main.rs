//! The arithmetic of parity: one binary, a module for each behaviour.

mod codes;
mod kernels;
