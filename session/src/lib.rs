//! The native programming interface: a rank's port, protected memory, and counted checkpoint points.
