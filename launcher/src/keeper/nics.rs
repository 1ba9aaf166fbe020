//! The NICs over which ranks reach other hosts, where they are not the program's.

use std::collections::BTreeMap;

use ckpt_glue::control::Message;
use drivers::{NicChoice, RailsError};
use transport::Rank;

use super::super::wire::FromKeeper;
use super::Shell;

#[derive(Debug, Default)]
pub(super) struct Nics {
    /// Requests for another NIC that ranks have received.
    wished: BTreeMap<(Rank, u64), NicChoice>,
    /// The last one that each rank has taken: it keeps it in later lives, too.
    taken: BTreeMap<Rank, NicChoice>,
}

impl Shell {
    /// Asks a rank to move to another NIC.
    pub(super) fn note_nic_request(&mut self, rank: Rank, message: &Message) {
        if let Message::HandOver { number, nic } = message
            && let Ok(choice) = nic.as_str().parse()
        {
            // One that has not answered by now never will.
            self.nics.wished.retain(|(asked, _), _| *asked != rank);
            self.nics.wished.insert((rank, *number), choice);
        }
    }

    pub(super) fn handed_over(&mut self, rank: Rank, number: u64, refused: &str) {
        let wished = self.nics.wished.remove(&(rank, number));
        if let Some(choice) = wished.filter(|_| refused.is_empty()) {
            self.nics.taken.insert(rank, choice);
        }
        self.send_to_launcher(&FromKeeper::HandedOver { rank: rank.0, number, refused: refused.to_owned() });
    }

    /// All ranks go over another NIC, and so do the processes that they spawn from now on.
    pub(super) fn note_nic(&mut self, nic: &str) {
        let Ok(choice) = nic.parse::<NicChoice>() else { return };
        self.nics = Nics::default();
        self.site.program.set_nic(&choice);
    }

    /// Over which NIC a rank is to reach other hosts when it is started.
    pub(super) fn nic_of(&self, rank: Rank) -> Result<NicChoice, RailsError> {
        self.nics.taken.get(&rank).map_or_else(|| self.site.program.nic(), |choice| Ok(choice.clone()))
    }
}
