//! `docs/reference/image-format.md` agrees with the code.

use store::image::layout::{ENTRY_BYTES, ENTRY_FIELDS, Field, HEADER_BYTES, HEADER_FIELDS, MAGIC, VERSION};
use store::image::seal;
use store::packets::layout as packets;

use store::protect::parity_changes;

const DOCUMENT: &str = include_str!("../../../docs/reference/image-format.md");

/// The rows `| offset | bytes | name | meaning |` of the table below a heading.
fn table(heading: &str) -> Vec<(usize, usize, &'static str, &'static str)> {
    let (_, section) = DOCUMENT.split_once(heading).expect("the heading is there");
    let rows = section.lines().skip_while(|line| !line.starts_with('|'));
    let rows = rows.take_while(|line| line.starts_with('|')).skip(2);
    let cells = rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    cells.map(|row| (row[0].parse().unwrap(), row[1].parse().unwrap(), row[2], row[3])).collect()
}

fn compare(heading: &str, fields: &[Field], bytes: usize) {
    let rows = table(heading);
    let documented: Vec<Field> =
        rows.iter().map(|(offset, bytes, name, _)| Field { name, offset: *offset, bytes: *bytes }).collect();
    assert_eq!(documented, fields, "{heading}");
    let mut end = 0;
    for field in fields {
        assert_eq!(field.offset, end, "a gap before {}", field.name);
        end += field.bytes;
    }
    assert_eq!(end, bytes);
}

#[test]
fn the_tables_are_the_code_s() {
    compare("### Header", HEADER_FIELDS, HEADER_BYTES);
    compare("### Table", ENTRY_FIELDS, ENTRY_BYTES);
    compare("### Seal", seal::SEAL_FIELDS, seal::SEAL_BYTES);
    compare("### Changed parity", parity_changes::HEADER_FIELDS, parity_changes::HEADER_BYTES);
    compare("### Packet footer", packets::FOOTER_FIELDS, packets::FOOTER_BYTES);
    compare("### Packet table", packets::ENTRY_FIELDS, packets::ENTRY_BYTES);
}

#[test]
fn magic_and_version_are_the_code_s() {
    let rows = table("### Header");
    assert_eq!(rows[0].3, format!("`{}`", str::from_utf8(&MAGIC).unwrap()));
    assert_eq!(rows[1].3, format!("of this layout: {VERSION}"));
    let rows = table("### Changed parity");
    assert_eq!(rows[0].3, format!("`{}`", str::from_utf8(&parity_changes::MAGIC).unwrap()));
    assert_eq!(rows[1].3, format!("of this layout: {}", parity_changes::VERSION));
    let rows = table("### Packet footer");
    assert_eq!(rows[0].3, format!("`{}`", str::from_utf8(&packets::MAGIC).unwrap()));
    assert_eq!(rows[1].3, format!("of this layout: {}", packets::VERSION));
}
