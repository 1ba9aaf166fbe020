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
