//! What must hold for any bytes: a parser never panics, and what it accepts is written back as the same bytes.
//!
//! Each function is one fuzz target. Ordinary tests (`tests/tests/corpora.rs`) include this file and call the same
//! functions with every file of the corpora, and with each of them damaged in all simple ways.

/// A frame, as it comes from a stranger.
pub fn frame(bytes: &[u8]) {
    if let Ok(frame) = transport::wire::Frame::parse(bytes) {
        let mut again = vec![0; bytes.len()];
        let written = frame.emit(&mut again);
        assert_eq!((written, again.as_slice()), (bytes.len(), bytes), "{frame:?}");
    }
}

/// An image file.
pub fn image(bytes: &[u8]) {
    if let Ok(image) = store::image::parse_image(bytes) {
        let again =
            store::image::encode_image(image.identity, &image.sections).expect("it was an image already");
        assert!(again == bytes, "{} bytes became {}: {:?}", bytes.len(), again.len(), image.identity);
    }
}

/// The small records beside the images: manifest, commit record, decision.
pub fn manifest(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), sealed(bytes)] {
        if let Ok(manifest) = store::Manifest::parse(&bytes) {
            same(&manifest.emit(), &bytes);
        }
        if let Ok(record) = store::CommitRecord::parse(&bytes) {
            same(&record.emit(), &bytes);
        }
        if let Ok(decision) = store::Decision::parse(&bytes) {
            same(&decision.emit(), &bytes);
        }
    }
}

/// The job file.
pub fn jobfile(bytes: &[u8]) {
    for bytes in [bytes.to_vec(), sealed(bytes)] {
        if let Ok(file) = store::JobFile::parse(&bytes) {
            same(&file.emit(), &bytes);
        }
    }
}

/// The key of the control frames in the corpus.
pub const CONTROL_KEY: &[u8; 16] = b"a key of 16 byte";

/// A control frame, as a stranger sends it, and as somebody who has the job's key could.
pub fn control(bytes: &[u8]) {
    use ckpt_glue::control::stream::{emit, parse, seal};
    let key = ckpt_glue::ControlKey::new(CONTROL_KEY);
    let mut reader = ckpt_glue::ControlReader::new(key.clone());
    reader.feed(bytes);
    while let Ok(Some(_)) = reader.next() {}
    for bytes in [bytes.to_vec(), seal(&key, bytes.to_vec())] {
        if let Ok((number, control)) = parse(&key, &bytes) {
            let mut again = Vec::new();
            emit(&key, number, &control, &mut again);
            assert!(again == bytes, "{} bytes became {}: {control:?}", bytes.len(), again.len());
        }
    }
}

/// The fault-tolerance settings of a job. JSON has many texts for one meaning, so it is the meaning that must survive.
pub fn config(bytes: &[u8]) {
    if let Ok(config) = ckpt_glue::JobConfig::parse(bytes) {
        assert_eq!(ckpt_glue::JobConfig::parse(config.emit().as_bytes()), Ok(config));
    }
}

/// The record with its last line replaced by the checksum of the others: a fuzzer never guesses a checksum, and what
/// lies behind it must be tried too.
fn sealed(bytes: &[u8]) -> Vec<u8> {
    let body = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let kept = body.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let mut sealed = bytes[..kept].to_vec();
    sealed.extend_from_slice(
        format!("checksum {:016x}\n", store::checksum::checksum(&bytes[..kept])).as_bytes(),
    );
    sealed
}

fn same(written: &[u8], read: &[u8]) {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(written == read, "read:\n{}\nwritten:\n{}", text(read), text(written));
}
