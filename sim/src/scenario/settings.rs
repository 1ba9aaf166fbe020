//! The settings of a scenario, in one list: for the parser, for proposals of errors, and for `sim scenario --help`.

/// A setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The first word of its line.
    pub name: &'static str,
    /// The rest of the line; the default if the setting is left out.
    pub usual: &'static str,
    /// Explanation, where the name is not enough; may have several lines, of at most 66 letters.
    pub meaning: &'static str,
}

const fn setting(name: &'static str, usual: &'static str, meaning: &'static str) -> Setting {
    Setting { name, usual, meaning }
}

/// All but the seed, which has two forms.
pub const SETTINGS: [Setting; 27] = [
    setting("ranks", "4", ""),
    setting("nodes", "2", ""),
    setting(
        "losses",
        "0",
        "nodes have directories of their own, protect each other, and this\n\
         many may be lost; 0: one directory for all",
    ),
    setting("group", "0", "so many nodes in a row protect each other; 0: all"),
    setting("spares", "0", "hosts that may take the place of lost ones"),
    setting(
        "reactions",
        "usual",
        "to faults; or moving: the node of any fault leaves, waiting: lost\nnodes are waited for, ending: a fault whose node cannot leave ends\nthe job, ignoring: it goes on without ranks that have died",
    ),
    setting("ports", "1", "of each rank"),
    setting("rails", "1", "of each port"),
    setting(
        "mode",
        "instant",
        "ranks are saved at any instant; or counted: at points of their\n\
         program",
    ),
    setting("auth", "off", "of frames; or header, full"),
    setting("messages", "1200", "of the program, at least"),
    setting("reserve", "0", "messages of further rounds, until the floors are reached"),
    setting(
        "floors",
        "0 frames, 0 commands, 0 restarts, crash by 0 frames",
        "what must have happened before the program may end; by so many\n\
         frames the first planned crash happens in any case",
    ),
    setting("calm", "no", "the program ends after a checkpoint that begins long after the\nlast fault"),
    setting("message-bytes", "1500", "at most"),
    setting("frame-bytes", "512", "at most"),
    setting("tight-bounds", "no", "the ports' bounds are so tight that senders run into them"),
    setting("congested", "no", "the ports treat the path as a network"),
    setting(
        "pulls",
        "no",
        "ranks of a node read large payloads out of their sender's memory,\n\
         and short messages leave at once",
    ),
    setting("helper", "yes", "a helper makes progress while the program computes"),
    setting(
        "network",
        "jitter 2us",
        "and any of: loss 2.5%, duplication 1%, reordering 1%,\n\
         corruption 1%, delay 0.1%; or only: still",
    ),
    setting("control-time", "20us", "of a control message, at most"),
    setting("write-time", "100us", "of an image or a record, at most"),
    setting("pause-time", "20us", "from freeze to thaw, at most"),
    setting("nic-frames", "32", "that a NIC holds on the way out; or 4, 8, 16"),
    setting(
        "completion-time",
        "12us",
        "until a NIC gives back the buffers of frames that it has read, at\nmost",
    ),
    setting("drift", "0", "of the clock of each node, in parts per 2^20"),
];
