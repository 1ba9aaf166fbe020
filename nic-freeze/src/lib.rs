//! Freeze, dump, load and thaw a port.
