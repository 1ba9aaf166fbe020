//! The tree as a whole: one binary, a module for each behaviour.

mod corpora;
mod demo_script;
mod five_states;
mod tidy;
