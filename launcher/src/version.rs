//! The version that launcher and keepers must share.

/// The program's version, and behind it a checksum of the messages between launcher, keepers, their protectors and ranks: builds of one version may
/// differ in them.
pub const VERSION: &str = match core::str::from_utf8(&TEXT) {
    Ok(text) => text,
    Err(_) => panic!("letters and digits"),
};

const PROGRAM: &[u8] = env!("CARGO_PKG_VERSION").as_bytes();

/// Where all of it is defined.
const WORDS: [&[u8]; 31] = [
    include_bytes!("wire.rs"),
    include_bytes!("nodes/root.rs"),
    include_bytes!("nodes/wire.rs"),
    include_bytes!("flush/wire.rs"),
    include_bytes!("terminal.rs"),
    include_bytes!("mpi/replacement.rs"),
    include_bytes!("../../ckpt-glue/src/control/checkpoint.rs"),
    include_bytes!("../../ckpt-glue/src/control/life.rs"),
    include_bytes!("../../ckpt-glue/src/control/mod.rs"),
    include_bytes!("../../ckpt-glue/src/control/nic.rs"),
    include_bytes!("../../ckpt-glue/src/control/stream.rs"),
    include_bytes!("../../ckpt-glue/src/control/wire.rs"),
    include_bytes!("../../ckpt-glue/src/keeper/ranks.rs"),
    include_bytes!("../../ckpt-glue/src/names.rs"),
    include_bytes!("../../ckpt-glue/src/pmi/member.rs"),
    include_bytes!("../../ckpt-glue/src/pmi/spawn.rs"),
    include_bytes!("../../ckpt-glue/src/protection/late.rs"),
    include_bytes!("../../ckpt-glue/src/protection/nodes/mod.rs"),
    include_bytes!("../../store/copies/src/key.rs"),
    include_bytes!("../../store/copies/src/pack.rs"),
    include_bytes!("../../store/copies/src/parts.rs"),
    include_bytes!("../../store/protector/src/api.rs"),
    include_bytes!("../../store/protector/src/message.rs"),
    include_bytes!("../../store/protector/src/shape.rs"),
    include_bytes!("../../store/src/delta/hash.rs"),
    include_bytes!("../../store/src/delta/writer.rs"),
    include_bytes!("../../store/src/record/copy_record.rs"),
    include_bytes!("../../store/src/record/decision.rs"),
    include_bytes!("../../store/src/record/manifest.rs"),
    include_bytes!("../../store/src/seal.rs"),
    include_bytes!("../../transport/src/ids.rs"),
];

const SUM_DIGITS: usize = 8;

const TEXT: [u8; PROGRAM.len() + 1 + SUM_DIGITS] = {
    let mut text = [b'+'; PROGRAM.len() + 1 + SUM_DIGITS];
    let mut at = 0;
    while at < PROGRAM.len() {
        text[at] = PROGRAM[at];
        at += 1;
    }
    let sum = sum();
    let mut digit = 0;
    while digit < SUM_DIGITS {
        let nibble = (sum >> (4 * (SUM_DIGITS - 1 - digit))) as usize & 0xf;
        text[PROGRAM.len() + 1 + digit] = b"0123456789abcdef"[nibble];
        digit += 1;
    }
    text
};

/// FNV-1a: nobody tries to find two that are the same.
const fn sum() -> u32 {
    let (mut sum, mut file) = (0x811c_9dc5_u32, 0);
    while file < WORDS.len() {
        let mut at = 0;
        while at < WORDS[file].len() {
            sum = (sum ^ WORDS[file][at] as u32).wrapping_mul(0x0100_0193);
            at += 1;
        }
        file += 1;
    }
    sum
}
