//! `stillwire-dev`: one binary, a module for each behaviour.

mod parity_job;
mod sim;
mod support;
