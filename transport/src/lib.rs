//! The reliable transport protocol: wire format, link, port. Pure state machines.
