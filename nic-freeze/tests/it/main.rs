//! Freeze, dump, load and thaw: one binary, a module for each behaviour.

mod common;
mod cuts;
mod damage;
mod five_states;
mod large;
mod procedure;
