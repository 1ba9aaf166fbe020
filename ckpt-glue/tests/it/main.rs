//! The machines of a job: one binary, a module for each behaviour.

mod codec;
mod components;
mod conversations;
mod diagnosis;
mod ends;
mod faults;
mod histories;
mod jobfile;
mod pmi;
mod sabotage;
mod support;
