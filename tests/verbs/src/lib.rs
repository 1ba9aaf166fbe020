//! Empty: only the dependency is of use, and only its files.
