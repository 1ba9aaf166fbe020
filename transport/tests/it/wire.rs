//! The bytes of every kind of frame, and everything that is not a frame. R14, R21, R23: the contents of a
//! header.
#![expect(clippy::cast_possible_truncation, reason = "test data")]

use transport::wire::{
    Body, Contact, Cts, Data, Eager, Flags, Frame, HEADER_BYTES, Header, Kind, Malformed, Resync, Rts,
    Stopped, TAG_BYTES, VERSION,
};
use transport::{Epoch, JobTag, Life, LinkIndex, OpId, PortId, Rank, RawAddress, Space};

fn header(kind: Kind) -> Header {
    Header {
        kind,
        job: JobTag(0x0403_0201),
        life: Life { counter: 7, nonce: 0x1122_3344_5566_7788 },
        epoch: Epoch(3),
        link: Some(5),
        seq: 100,
        ack: 90,
        transmission: 111,
        echo: 95,
        window_bytes: 65_536,
        selective: 0b101,
        window_frames: 64,
        flags: Flags::empty(),
        payload_bytes: 0,
        tag: [0xab; TAG_BYTES],
    }
}

fn bodies() -> Vec<Body> {
    vec![
        Body::Ack,
        Body::Probe,
        Body::Eager(Eager { tag: 1, data: 2, total: 3, space: Space(1) }),
        Body::More,
        Body::Rts(Rts {
            operation: OpId(4),
            tag: 1,
            data: 2,
            total: 1 << 40,
            space: Space(0),
            place: 5 << 48,
        }),
        Body::Cts(Cts { operation: OpId(4), total: 9 }),
        Body::Data(Data { operation: OpId(4), offset: 1 << 33 }),
        Body::Close,
        Body::Stopped(Stopped { pause: 6, expected_ns: 1_000_000 }),
        Body::Resync(Resync { expected: 1 << 35, next: 12, heard: 1 }),
    ]
}

fn contact() -> Contact {
    Contact {
        from: PortId::of_rank(Rank(2), 1),
        to: PortId::of_rank(Rank(3), 0),
        link: LinkIndex(8),
        address: RawAddress::new(&[127, 0, 0, 1, 9]).expect("short"),
    }
}

fn emit(body: Body, contact: Option<Contact>, payload: &[u8]) -> Vec<u8> {
    let mut header = header(body.kind());
    header.flags.set(Flags::CONTACT, contact.is_some());
    header.payload_bytes = payload.len() as u32;
    let frame = Frame { header, contact, body, head_bytes: 0, payload };
    let mut bytes = vec![0; 1000];
    let length = frame.emit(&mut bytes);
    bytes.truncate(length);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> =
        bytes.chunks(16).map(|row| row.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    digits.join("\n")
}

/// These bytes are wire version 1. If they change, the version changes, and docs/reference/protocol.md with it.
#[test]
fn golden_bytes() {
    assert_eq!(VERSION, 1);
    let mut text = String::new();
    for body in bodies() {
        text += &format!("{:?}\n{}\n", body.kind(), hex(&emit(body, None, b"")[HEADER_BYTES..]));
    }
    text += &format!("header and contact\n{}\n", hex(&emit(Body::Ack, Some(contact()), b"")));
    expect_test::expect![[r#"
        Ack

        Probe

        Eager
        01000000000000000200000000000000
        03000000000000000100000000000000
        More

        Rts
        04000000000000000100000000000000
        02000000000000000000000000010000
        0000000000000005
        Cts
        04000000000000000900000000000000
        Data
        04000000000000000000000002000000
        Close

        Stopped
        060000000000000040420f0000000000
        Resync
        00000000080000000c00000000000000
        0100000000000000
        header and contact
        53570101010203040700000003000000
        88776655443322110500000064000000
        5a0000006f0000005f00000000000100
        05000000000000004000010000000000
        abababababababababababababababab
        01000000020000000000000003000000
        0800000000000000050000007f000001
        09000000000000000000000000000000
        0000000000000000
    "#]]
    .assert_eq(&text);
}

#[test]
fn what_is_written_can_be_read() {
    for body in bodies() {
        for contact in [None, Some(contact())] {
            let bytes = emit(body, contact, b"payload");
            let frame = Frame::parse(&bytes).expect("lawful");
            assert_eq!((frame.body, frame.contact, frame.payload), (body, contact, &b"payload"[..]));
            assert_eq!(frame.head_bytes + 7, bytes.len());
            let mut again = vec![0; bytes.len()];
            assert_eq!(frame.emit(&mut again), bytes.len());
            assert_eq!(again, bytes);
        }
    }
}

#[test]
fn a_frame_cut_short_anywhere_is_refused() {
    for body in bodies() {
        let bytes = emit(body, Some(contact()), b"payload");
        for length in 0..bytes.len() {
            assert!(Frame::parse(&bytes[..length]).is_err(), "{:?} of {length} bytes", body.kind());
        }
        let mut long = bytes.clone();
        long.push(0);
        assert_eq!(Frame::parse(&long), Err(Malformed::Length { said: 7, found: 8 }));
    }
}

#[test]
fn every_refusal_says_what_was_expected_and_what_came() {
    let good = emit(Body::Ack, None, b"");
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Frame::parse(&bytes).expect_err("damaged").to_string()
    };
    assert_eq!(with(0, 0), "magic 0x5700, expected 0x5753: not a stillwire frame");
    assert_eq!(with(2, 9), "wire version 9, this build speaks 1: run one build on all nodes");
    assert_eq!(with(3, 77), "frame kind 77 is not known to wire version 1");
    assert_eq!(with(58, 128), "field flags holds 128, at most 3 is allowed");
    assert_eq!(with(59, 1), "field reserved holds 1, at most 0 is allowed");
    assert_eq!(with(60, 5), "frame announces 5 payload bytes, 0 arrived");
    assert_eq!(
        Frame::parse(&good[..20]).expect_err("short").to_string(),
        "frame of 20 bytes, its kind needs at least 80"
    );
}

/// The byte table of docs/reference/protocol.md matches the code: each field is written at its place in the
/// table.
#[test]
fn the_documented_header_is_the_real_one() {
    let document = include_str!("../../../docs/reference/protocol.md");
    let table = document
        .split("### Header, 80 bytes")
        .nth(1)
        .and_then(|rest| rest.split("\n\n").nth(1))
        .expect("a table");
    let rows: Vec<(usize, usize, &str)> = table
        .lines()
        .skip(2)
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (cells[1].parse().expect("offset"), cells[2].parse().expect("bytes"), cells[3])
        })
        .collect();
    let mut at = 0;
    for (offset, bytes, name) in &rows {
        assert_eq!(*offset, at, "{name}");
        at += bytes;
    }
    assert_eq!(at, HEADER_BYTES);
    let bytes = emit(Body::Ack, None, b"");
    let value = |name: &str| {
        let (offset, length, _) = rows.iter().find(|row| row.2 == name).expect(name);
        let mut wide = [0; 8];
        wide[..*length].copy_from_slice(&bytes[*offset..offset + length]);
        u64::from_le_bytes(wide)
    };
    let expected = [
        ("magic", 0x5753),
        ("version", 1),
        ("kind", 1),
        ("job", 0x0403_0201),
        ("life counter", 7),
        ("epoch", 3),
        ("life nonce", 0x1122_3344_5566_7788),
        ("link", 5),
        ("sequence", 100),
        ("acknowledgement", 90),
        ("transmission", 111),
        ("echo", 95),
        ("window bytes", 65_536),
        ("selective", 5),
        ("window frames", 64),
        ("payload bytes", 0),
    ];
    for (name, number) in expected {
        assert_eq!(value(name), number, "{name}");
    }
}
