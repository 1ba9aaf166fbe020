//! Rules that can be taken out, to show that the judges would notice.

use transport::{FrozenPort, Port};

/// Which rule is out, for each crate that has switches.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Switches {
    transport: transport::sabotage::Sabotage,
    glue: ckpt_glue::Sabotage,
}

impl Switches {
    pub(crate) fn glue(self) -> ckpt_glue::Sabotage {
        self.glue
    }

    pub(crate) fn apply(self, port: &mut Port) {
        port.sabotage(self.transport);
    }

    pub(crate) fn apply_frozen(self, port: &mut FrozenPort) {
        port.sabotage(self.transport);
    }
}
