//! Control frames: every written frame is read, nothing else is, and the bytes do not change by accident.

use crate::support::samples;

use ckpt_glue::control::{ControlKey, stream};
use ckpt_glue::limits::CONTROL_BYTES_MAX;
use ckpt_glue::{Control, ControlReader, ControlWriter, Malformed, Message};
use expect_test::expect;
use proptest::prelude::*;
use samples::Numbers;

fn key() -> ControlKey {
    ControlKey::new(b"0123456789abcdef")
}

fn frame(control: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream::emit(&key(), 1, control, &mut bytes);
    bytes
}

/// Under a right tag, with any contents.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    stream::seal(&key(), &mut bytes);
    bytes
}

fn samples(numbers: &[u64]) -> Vec<Control> {
    let mut numbers = Numbers::new(numbers);
    numbers.messages().into_iter().map(|message| numbers.control(message)).collect()
}

proptest! {
    #[test]
    fn what_is_written_is_read(numbers in proptest::collection::vec(any::<u64>(), 1..40), number in 1u64..) {
        for control in samples(&numbers) {
            let mut bytes = Vec::new();
            stream::emit(&key(), number, &control, &mut bytes);
            let (found, parsed) = stream::parse(&key(), &bytes).unwrap();
            prop_assert_eq!((found, &parsed), (number, &control));
            let mut again = Vec::new();
            stream::emit(&key(), found, &parsed, &mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn strangers_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(stream::parse(&key(), &bytes).is_err());
        let mut reader = ControlReader::new(key());
        reader.feed(&bytes);
        while let Ok(Some(_)) = reader.next() {}
    }

    /// A message that a liar with the key could send: any body under a right tag. An accepted message has one
    /// encoding.
    #[test]
    fn any_body_is_refused_or_means_itself(
        numbers in proptest::collection::vec(any::<u64>(), 1..20),
        at in any::<prop::sample::Index>(),
        value in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        for control in samples(&numbers) {
            let mut bytes = frame(&control);
            let body = 72 + at.index(bytes.len() - 72);
            bytes[body] = value;
            if value % 4 == 0 {
                bytes.truncate(73 + cut.index(bytes.len() - 72));
            }
            let bytes = sealed(bytes);
            if let Ok((number, parsed)) = stream::parse(&key(), &bytes) {
                let mut again = Vec::new();
                stream::emit(&key(), number, &parsed, &mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }

    #[test]
    fn a_stream_in_pieces_is_the_same_stream(sizes in proptest::collection::vec(1usize..200, 1..60)) {
        let controls = samples(&[3, 5, 8]);
        let mut writer = ControlWriter::new(key());
        let mut bytes = Vec::new();
        for control in &controls {
            writer.emit(control, &mut bytes);
        }
        let (mut reader, mut found, mut rest) = (ControlReader::new(key()), Vec::new(), bytes.as_slice());
        for size in sizes.iter().cycle() {
            let (piece, later) = rest.split_at((*size).min(rest.len()));
            reader.feed(piece);
            while let Some(control) = reader.next().unwrap() {
                found.push(control);
            }
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(found, controls);
    }
}

#[test]
fn damage_is_refused_with_its_reason() {
    let whole = frame(&samples(&[1, 2, 3])[12]);
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(stream::parse(&key(), &bytes).is_err(), "bit {bit}");
    }
    for length in 0..whole.len() {
        assert!(
            matches!(stream::parse(&key(), &whole[..length]), Err(Malformed::Short { .. })),
            "{length} bytes"
        );
    }
    let error = |bytes: &[u8]| stream::parse(&key(), bytes).unwrap_err();
    let with = |at: usize, value: u8| {
        let mut bytes = whole.clone();
        bytes[at] = value;
        bytes
    };
    let longer = [&whole[..], &[0]].concat();
    let reported = [
        error(&longer),
        error(&with(3, 0xff)),
        error(&with(4, 0)),
        error(&with(6, 9)),
        error(&with(20, 0x55)),
        error(&sealed(with(7, 1))),
        error(&sealed(with(40, 8))),
        error(&sealed(with(72, 200))),
        error(&sealed([&whole[..], &[0]].concat())),
        stream::parse(&ControlKey::new(&[0; 16]), &whole).unwrap_err(),
    ];
    expect![[r#"
        control frame has 1 bytes behind its last field
        control frame says it is 4278190164 bytes long; at most 2097152 are expected
        not a control frame: starts with 0x4c00, expected 0x4c43; is this the right socket?
        control frame has version 9, this build speaks 1; run the same build on all nodes
        control frame is not authentic: made with another job's key, or damaged
        control frame: reserved byte has no variant 1
        control frame: sender has no variant 8
        control frame: kind of message has no variant 200
        control frame has 1 bytes behind its last field
        control frame is not authentic: made with another job's key, or damaged"#]]
    .assert_eq(&reported.map(|error| error.to_string()).join("\n"));
}

#[test]
fn a_replayed_frame_ends_the_connection() {
    let control = &samples(&[4])[1];
    let mut bytes = Vec::new();
    stream::emit(&key(), 7, control, &mut bytes);
    let mut reader = ControlReader::new(key());
    reader.feed(&bytes);
    reader.feed(&bytes);
    assert_eq!(reader.next(), Ok(Some(control.clone())));
    assert_eq!(reader.next(), Err(Malformed::Replayed { last: 7, found: 7 }));
}

#[test]
fn a_length_beyond_the_bound_is_refused_before_its_bytes_come() {
    let mut reader = ControlReader::new(key());
    let found = CONTROL_BYTES_MAX + 1;
    reader.feed(&u32::try_from(found).unwrap().to_le_bytes());
    assert_eq!(reader.next(), Err(Malformed::TooLong { expected: CONTROL_BYTES_MAX, found }));
}

/// When this changes between releases, `VERSION` in `control/stream.rs` has to change with it.
#[test]
fn the_bytes_of_every_message() {
    let mut reported = String::from("version 1\n");
    for control in samples(&[0x0102_0304_0506_0708, 0x1112_1314_1516_1718, 3]) {
        let bytes = frame(&control);
        let name = format!("{:?}", control.message);
        let name = name.split([' ', '{']).next().unwrap();
        let body: String = bytes[72..].iter().take(24).map(|byte| format!("{byte:02x}")).collect();
        reported.push_str(&format!("{name}: {} bytes, checksum {:08x}, {body}\n", bytes.len(), sum(&bytes)));
    }
    expect![[r#"
        version 1
        KeeperHello: 77 bytes, checksum d70d4818, 0102100e0c
        Fence: 78 bytes, checksum a6933fd7, 0244605c5800
        Fenced: 82 bytes, checksum 4f76fe37, 03108070602202e3c200
        Ending: 81 bytes, checksum 5c51032e, 0c8100840312111817
        NewLife: 151 bytes, checksum 5c48eebc, 0400003000402000e1c0a080600001000000070000000000
        Hello: 98 bytes, checksum 841b048e, 05302e2c2a0c000000000100000060000000000000000000
        Registered: 140 bytes, checksum 7cce17c4, 0603000000262422302e2c2a280000000018100840383028
        Addresses: 77 bytes, checksum e4add449, 0700000000
        Start: 82 bytes, checksum 7d6c50c9, 08000000000082624222
        Running: 81 bytes, checksum 0975ac9c, 090000000002820181
        Request: 74 bytes, checksum a16bd80f, 1001
        PointQuery: 77 bytes, checksum 54a9b3b1, 1100000000
        PointReport: 100 bytes, checksum e91fdc2d, 1214100c08a8a09890000000000001000000000080010006
        Cut: 94 bytes, checksum f8ded9b4, 13000000000100030000000000003028201810084038
        CutSeen: 77 bytes, checksum cf2af50e, 14814101c1
        ImageDone: 180 bytes, checksum 09ff3f15, 150b8b0a8a00e1c0a004c6854505c5844480010000000000
        Images: 303 bytes, checksum c9634df4, 160108070602000000018100841312111817161514000000
        NoImage: 98 bytes, checksum c71cb1c4, 1750403020a2826242008302820181008403161514131211
        Abandon: 77 bytes, checksum 11607e52, 1800000000
        Committed: 77 bytes, checksum 63f0c867, 191814100c
        Fault: 79 bytes, checksum 38928c0f, 200600000000c0
        Heartbeat: 85 bytes, checksum 82eee1fb, 21854505c50000000000008001
        Lease: 89 bytes, checksum c126ac1c, 2207060504030201082e2c2a2826242230
        Closed: 86 bytes, checksum ec31929c, 30000000000000000c0000000001
        ClosedQuery: 89 bytes, checksum f8ab3ab1, 310000000000000060c2814101c1804000
        ClosedAnswer: 90 bytes, checksum a01a57ed, 328c0b8b0a8a098908030000000000000000
        Finalize: 77 bytes, checksum a8ee3b02, 33605c5854
        FinalizeDone: 73 bytes, checksum 2fce116c, 34
        Ended: 79 bytes, checksum 41e2b206, 35180000000180
        PmiRequest: 85 bytes, checksum 2a20ea2d, 38c00000000000000000000000
        PmiAnswer: 94 bytes, checksum 4e73d8c1, 3904201c1814100c0888c0b8b0010000000000000000
        PmiState: 100 bytes, checksum d1ae12bf, 3a0000000000008001000000000002010807060504030000
        Nic: 84 bytes, checksum db7fa928, 3c0900756470202877687929
        HandOver: 91 bytes, checksum fac3efda, 3d211181716151413108007864703a65746830
        HandedOver: 85 bytes, checksum eeb16a0f, 3e000060000000000002006e6f
        StatusQuery: 73 bytes, checksum 85613937, 40
        StatusReport: 109 bytes, checksum ac9bdcaa, 41000100000003060402100e0c0a08000000001830201080
        OpenRail: 89 bytes, checksum 993d1603, 4400000000060000000500766572627300
        RailOpened: 88 bytes, checksum 78318dc8, 45a0989088c0b8b0a800000000000000
        MeetRails: 86 bytes, checksum 00abb070, 4605c5844404c685450000000001
        RailsMet: 85 bytes, checksum b9a29268, 472a28262422302e2c02006e6f
        ChangeRails: 82 bytes, checksum 880d6b34, 4800000000000c000000
        RailLost: 85 bytes, checksum 068d8573, 490a0076657262733a72786530
        Connecting: 77 bytes, checksum 1b98d7f2, 0a51413121
        Left: 77 bytes, checksum da0535b5, 0b00000000
        Unsaved: 81 bytes, checksum b14fcf5a, 1a0600612070697065
        Probe: 81 bytes, checksum 8173ea27, 234101c1804000c281
        ProbeAnswer: 85 bytes, checksum 76a7ff1d, 248b0a8a0989088c0b00000000
        Fault: 80 bytes, checksum ec3a90da, 20080c0a08060158
        WaitQuery: 85 bytes, checksum e2e4b15d, 4a60504030c2a28262422202e3
        WaitReports: 181 bytes, checksum fc7f17f0, 4b00000000030000001c1814100500000000000000060000
        RankLost: 79 bytes, checksum b0710f81, 28121118170100
    "#]]
    .assert_eq(&reported);
}

/// FNV-1a, 32 bits: enough to see a change.
fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

#[test]
fn the_head_of_a_frame() {
    let control = Control {
        job: transport::JobId(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100),
        life: transport::Life { counter: 0x2221_2120, nonce: 0x3736_3534_3332_3130 },
        epoch: transport::Epoch(0x4342_4140),
        sender: ckpt_glue::Party::Rank(transport::Rank(0x5352_5150)),
        message: Message::StatusQuery,
    };
    let bytes = frame(&control);
    let lines: Vec<String> =
        bytes.chunks(8).map(|row| row.iter().map(|byte| format!("{byte:02x} ")).collect()).collect();
    expect![[r#"
        45 00 00 00 43 4c 01 00 
        00 01 02 03 04 05 06 07 
        08 09 0a 0b 0c 0d 0e 0f 
        20 21 21 22 30 31 32 33 
        34 35 36 37 40 41 42 43 
        02 50 51 52 53 00 00 00 
        01 00 00 00 00 00 00 00 
        f5 58 7d e0 f4 fa 3b b9 
        2f d6 62 8b 42 0c d4 a3 
        40 "#]]
    .assert_eq(&lines.join("\n"));
}
