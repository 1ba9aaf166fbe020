//! stillwire: run, checkpoint and restart parallel programs that survive failures.
fn main() {}
