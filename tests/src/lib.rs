//! Tests of whole jobs: real processes, real sockets, real files.
