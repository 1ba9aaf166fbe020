//! Nothing: all of it is in the test program.
