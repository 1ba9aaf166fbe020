//! The part of this host in continuing the job if its launcher is lost.

use std::path::Path;

use super::super::Addresses;
use super::super::succession::SuccessorOrder;
use super::super::wire::Begin;
use super::Site;

impl Site {
    /// What the guard starts behind this keeper; `None`: nothing.
    pub(super) fn successor(&self, begin: &Begin, lock: &Path) -> Option<SuccessorOrder> {
        let place = begin.successor.as_ref().filter(|_| begin.own.is_some())?;
        let paths = (self.directory.clone(), lock.to_path_buf());
        let addresses = Addresses { first: self.bind.ip(), further: self.further.clone() };
        let below = begin.inherited.as_deref().unwrap_or_default();
        Some(SuccessorOrder::new(place, (self.job.to_string(), self.node.0), paths, &addresses, below))
    }
}
