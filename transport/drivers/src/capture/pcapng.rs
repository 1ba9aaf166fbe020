//! The file format: pcapng (draft-ietf-opsawg-pcapng), as much of it as a capture of one rail needs.
//!
//! ```text
//! file  = section header, interface description, enhanced packet*      all little-endian
//! block = type u32, length u32, body, length u32                       the length is that of the whole block, a multiple of 4
//! ```
//!
//! One interface: the rail, with its kind and address as its name, times in nanoseconds, link type USER0: a
//! packet is one of our frames, without the network's headers. A packet names its direction, and one that
//! leaves has its destination in a comment. Blocks of other types are passed over.

/// `LINKTYPE_USER0`: private use.
pub const LINK_TYPE: u16 = 147;

const SECTION: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
const INTERFACE: u32 = 1;
const PACKET: u32 = 6;

/// Options: `opt_endofopt`, `opt_comment`; `if_name`, `if_tsresol`; `epb_flags`.
const END: u16 = 0;
const COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// `if_tsresol`: 10^-9 s.
const NANOSECONDS: u8 = 9;

/// Bytes of a block around its body, and of a packet's body before its bytes.
const BLOCK_BYTES: usize = 12;
const PACKET_BYTES: usize = 20;

/// Which way a packet went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// It came.
    In,
    /// It was handed over.
    Out,
}

/// One captured frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// Nanoseconds since 1970.
    pub at_ns: u64,
    /// Which way it went; `None`: not in the file.
    pub direction: Option<Direction>,
    /// Its bytes, or the first of them.
    pub bytes: &'a [u8],
    /// How many there were.
    pub whole_bytes: u32,
    /// Where it was sent to.
    pub to: Option<&'a str>,
}

/// The contents of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Capture<'a> {
    /// The rail.
    pub name: &'a str,
    /// The frames, in the order of the file.
    pub packets: Vec<Packet<'a>>,
    /// The first fault in the file; later packets have not been read.
    pub damage: Option<Damage>,
}

/// The fault of a file, and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("at byte {at}: {what}")]
pub struct Damage {
    /// First byte of the block.
    pub at: usize,
    /// The fault.
    pub what: &'static str,
}

/// Appends the head of a file.
pub fn emit_head(name: &str, out: &mut Vec<u8>) {
    block(SECTION, out, |out| {
        out.extend_from_slice(&BYTE_ORDER.to_le_bytes());
        out.extend_from_slice(&[1, 0, 0, 0]);
        // The length of the section is not known.
        out.extend_from_slice(&u64::MAX.to_le_bytes());
    });
    block(INTERFACE, out, |out| {
        out.extend_from_slice(&LINK_TYPE.to_le_bytes());
        // Reserved; no limit to a packet's length.
        out.extend_from_slice(&[0; 6]);
        option(IF_NAME, name.as_bytes(), out);
        option(IF_TSRESOL, &[NANOSECONDS], out);
        option(END, &[], out);
    });
}

/// Appends a packet.
pub fn emit_packet(packet: &Packet<'_>, out: &mut Vec<u8>) {
    block(PACKET, out, |out| {
        out.extend_from_slice(&[0; 4]);
        let [a, b, c, d, e, f, g, h] = packet.at_ns.to_le_bytes();
        out.extend_from_slice(&[e, f, g, h, a, b, c, d]);
        let bytes = u32::try_from(packet.bytes.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(&packet.whole_bytes.to_le_bytes());
        out.extend_from_slice(packet.bytes);
        pad(out);
        if let Some(to) = packet.to {
            option(COMMENT, to.as_bytes(), out);
        }
        let flags: u32 = match packet.direction {
            None => 0,
            Some(Direction::In) => 1,
            Some(Direction::Out) => 2,
        };
        option(EPB_FLAGS, &flags.to_le_bytes(), out);
        option(END, &[], out);
    });
}

/// Every block begins at a multiple of 4.
fn pad(out: &mut Vec<u8>) {
    out.resize(out.len().next_multiple_of(4), 0);
}

fn block(kind: u32, out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = u32::try_from(out.len() + 4 - start).unwrap_or(u32::MAX).to_le_bytes();
    out[start + 4..start + 8].copy_from_slice(&length);
    out.extend_from_slice(&length);
}

fn option(code: u16, value: &[u8], out: &mut Vec<u8>) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&u16::try_from(value.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend_from_slice(value);
    pad(out);
}

/// Whether a file begins like a capture.
#[must_use]
pub fn is_capture(bytes: &[u8]) -> bool {
    bytes.starts_with(&SECTION.to_le_bytes())
}

/// Reads a file.
///
/// # Errors
/// The fault of its head: then nothing is known of the packets.
pub fn read(bytes: &[u8]) -> Result<Capture<'_>, Damage> {
    let mut at = 0;
    let name = loop {
        let (kind, body, next) = next_block(bytes, at)?;
        let bad = |what| Damage { at, what };
        if at == 0 && kind != SECTION {
            return Err(bad("expected a section header: no pcapng file"));
        }
        match kind {
            SECTION if at == 0 => section(body).map_err(bad)?,
            INTERFACE => break interface(body).map_err(bad)?,
            SECTION | PACKET => return Err(bad("expected the description of an interface first")),
            _ => {}
        }
        at = next;
    };
    let mut capture = Capture { name, packets: Vec::new(), damage: None };
    (_, _, at) = next_block(bytes, at)?;
    while at < bytes.len() {
        let block = next_block(bytes, at).and_then(|(kind, body, next)| {
            let bad = |what| Damage { at, what };
            match kind {
                PACKET => capture.packets.push(packet(body).map_err(bad)?),
                SECTION | INTERFACE => return Err(bad("a second section or interface: a rail has one")),
                _ => {}
            }
            Ok(next)
        });
        match block {
            Ok(next) => at = next,
            Err(damage) => {
                capture.damage = Some(damage);
                break;
            }
        }
    }
    Ok(capture)
}

/// Type and body of the block at `at`, and where the next one begins.
fn next_block(bytes: &[u8], at: usize) -> Result<(u32, &[u8], usize), Damage> {
    let bad = |what| Damage { at, what };
    let rest = &bytes[at..];
    let head = word(rest, 0).zip(word(rest, 4));
    let (kind, length) = head.ok_or(bad("the file ends within the head of a block"))?;
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if length < BLOCK_BYTES || !length.is_multiple_of(4) {
        return Err(bad("a block's length is no multiple of 4, or less than 12"));
    }
    let block = rest.get(..length).ok_or(bad("the file ends within a block"))?;
    if block[4..8] != block[length - 4..] {
        return Err(bad("a block's two lengths differ"));
    }
    Ok((kind, &block[8..length - 4], at + length))
}

fn section(body: &[u8]) -> Result<(), &'static str> {
    match word(body, 0) {
        Some(BYTE_ORDER) => {}
        Some(order) if order.swap_bytes() == BYTE_ORDER => {
            return Err("the file is big-endian, expected little-endian");
        }
        _ => return Err("a section header without its mark"),
    }
    if body.get(4..6) == Some(&[1, 0]) && body.len() >= 16 {
        Ok(())
    } else {
        Err("a section header of another version than 1")
    }
}

fn interface(body: &[u8]) -> Result<&str, &'static str> {
    let link_type = body.get(..2).ok_or("an interface without a link type")?;
    if link_type != LINK_TYPE.to_le_bytes() {
        return Err(
            "the packets are not our frames alone: expected link type 147 (USER0), as `--pcap` writes it",
        );
    }
    let options = body.get(8..).ok_or("a short description of an interface")?;
    let mut name = "";
    let mut resolution = None;
    each_option(options, |code, value| match (code, value) {
        (IF_NAME, _) => {
            name = core::str::from_utf8(value).map_err(|_| "an interface's name is not text")?;
            Ok(())
        }
        (IF_TSRESOL, &[one]) => {
            resolution = Some(one);
            Ok(())
        }
        _ => Ok(()),
    })?;
    if resolution == Some(NANOSECONDS) { Ok(name) } else { Err("expected times in nanoseconds") }
}

fn packet(body: &[u8]) -> Result<Packet<'_>, &'static str> {
    let number = |at| word(body, at).ok_or("a short packet block");
    if number(0)? != 0 {
        return Err("a packet of an interface that was not described");
    }
    let at_ns = u64::from(number(4)?) << 32 | u64::from(number(8)?);
    let length = usize::try_from(number(12)?).unwrap_or(usize::MAX);
    let whole_bytes = number(16)?;
    let rest = &body[PACKET_BYTES..];
    let bytes = rest.get(..length).ok_or("a packet that is longer than its block")?;
    if bytes.len() > usize::try_from(whole_bytes).unwrap_or(usize::MAX) {
        return Err("more of a packet than there was");
    }
    // The padding is part of the block, whose length is a multiple of 4.
    let options = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    let mut packet = Packet { at_ns, direction: None, bytes, whole_bytes, to: None };
    each_option(options, |code, value| {
        match code {
            COMMENT => packet.to = Some(core::str::from_utf8(value).map_err(|_| "a comment is not text")?),
            EPB_FLAGS => {
                let flags = word(value, 0).ok_or("a packet's flags are short")?;
                packet.direction = match flags & 3 {
                    1 => Some(Direction::In),
                    2 => Some(Direction::Out),
                    _ => None,
                };
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(packet)
}

fn each_option<'a>(
    mut options: &'a [u8],
    mut each: impl FnMut(u16, &'a [u8]) -> Result<(), &'static str>,
) -> Result<(), &'static str> {
    while let Some((head, rest)) = options.split_first_chunk::<4>() {
        let [a, b, c, d] = *head;
        let (code, length) = (u16::from_le_bytes([a, b]), usize::from(u16::from_le_bytes([c, d])));
        if code == END {
            break;
        }
        each(code, rest.get(..length).ok_or("an option that is longer than its block")?)?;
        options = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(packets: &[Packet<'_>]) -> Vec<u8> {
        let mut file = Vec::new();
        emit_head("udp 10.0.0.1:4000", &mut file);
        packets.iter().for_each(|packet| emit_packet(packet, &mut file));
        file
    }

    const SENT: Packet<'_> = Packet {
        at_ns: 0x0123_4567_89ab_cdef,
        direction: Some(Direction::Out),
        bytes: b"a frame",
        whole_bytes: 9,
        to: Some("10.0.0.2:4000"),
    };

    #[test]
    fn what_is_written_is_read() {
        let came = Packet { direction: Some(Direction::In), to: None, bytes: b"", whole_bytes: 0, ..SENT };
        let file = file(&[SENT, came]);
        let capture = read(&file).expect("just written");
        assert_eq!((capture.name, capture.damage), ("udp 10.0.0.1:4000", None));
        assert_eq!(capture.packets, [SENT, came]);
    }

    #[test]
    fn a_file_that_was_cut_short_gives_what_is_whole_and_says_where_it_ends() {
        let (one, two) = (file(&[SENT]), file(&[SENT, SENT]));
        for length in one.len() + 1..two.len() {
            let capture = read(&two[..length]).expect("its head is whole");
            assert_eq!(capture.packets, [SENT]);
            assert_eq!(capture.damage.map(|damage| damage.at), Some(one.len()), "{length}");
        }
        for length in 0..file(&[]).len() {
            read(&two[..length]).expect_err("its head is not whole");
        }
    }

    /// The bytes that others read: draft-ietf-opsawg-pcapng, sections 4.1 to 4.3.
    #[test]
    fn the_format_is_that_of_the_draft() {
        let mut file = Vec::new();
        emit_head("udp", &mut file);
        emit_packet(&Packet { to: Some("a:1"), ..SENT }, &mut file);
        #[rustfmt::skip]
        let expected: &[u8] = &[
            0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0,
            0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 28, 0, 0, 0,
            1, 0, 0, 0, 40, 0, 0, 0, 147, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 3, 0, b'u', b'd', b'p', 0, 9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0, 40, 0, 0, 0,
            6, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 0x67, 0x45, 0x23, 0x01, 0xef, 0xcd, 0xab, 0x89,
            7, 0, 0, 0, 9, 0, 0, 0, b'a', b' ', b'f', b'r', b'a', b'm', b'e', 0,
            1, 0, 3, 0, b'a', b':', b'1', 0, 2, 0, 4, 0, 2, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0,
        ];
        assert_eq!(file, expected);
    }

    #[test]
    fn damage_is_named_with_its_place() {
        let (head, whole) = (file(&[]).len(), file(&[SENT]));
        let cases: &[(usize, u8, &str)] = &[
            (4, 13, "no multiple of 4"),
            (4, 8, "less than 12"),
            (7, 1, "ends within a block"),
            (whole.len() - head - 1, 1, "two lengths differ"),
            (8, 1, "an interface that was not described"),
            (20, 200, "longer than its block"),
            (24, 1, "more of a packet than there was"),
            (38, 200, "an option that is longer"),
            (0, 1, "a second section or interface"),
        ];
        for &(at, value, what) in cases {
            let mut damaged = whole.clone();
            damaged[head + at] = value;
            let capture = read(&damaged).expect("its head is whole");
            let damage = capture.damage.unwrap_or_else(|| panic!("{what}: nothing was noticed"));
            assert_eq!(damage.at, head, "{what}");
            assert!(damage.what.contains(what), "{what}: {damage}");
        }
    }

    #[test]
    fn another_link_type_is_named() {
        let mut file = file(&[]);
        let place = file.windows(2).position(|two| two == LINK_TYPE.to_le_bytes()).expect("it is there");
        file[place..place + 2].copy_from_slice(&[1, 0]);
        let error = read(&file).expect_err("Ethernet");
        assert!(error.to_string().contains("link type 147"), "{error}");
    }
}
