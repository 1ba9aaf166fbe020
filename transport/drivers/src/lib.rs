//! The NICs under a port: memory, UDP, and wrappers; the endpoint that moves bytes between them.
