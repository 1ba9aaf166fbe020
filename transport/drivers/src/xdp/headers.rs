//! Ethernet, IP and UDP headers of one destination, prepared so that only lengths and checksums are left to fill in.

use std::net::{IpAddr, SocketAddr};

/// An Ethernet address.
pub(super) type Mac = [u8; 6];

/// Bytes of the longest headers: 14 (Ethernet), 40 (IPv6), 8 (UDP).
pub(super) const HEADER_BYTES_MAX: usize = 62;

/// Headers of frames to one destination.
#[derive(Clone, Copy)]
pub(super) struct Headers {
    bytes: [u8; HEADER_BYTES_MAX],
    len: usize,
    /// Sum of the constant bytes that a checksum covers: IPv4's header, or IPv6's addresses and protocol.
    sum: u64,
}

impl Headers {
    /// `None`: the addresses are of two families.
    pub(super) fn new(from: (Mac, SocketAddr), to: (Mac, SocketAddr)) -> Option<Headers> {
        let mut bytes = [0; HEADER_BYTES_MAX];
        bytes[..6].copy_from_slice(&to.0);
        bytes[6..12].copy_from_slice(&from.0);
        let len = match (from.1.ip(), to.1.ip()) {
            (IpAddr::V4(source), IpAddr::V4(target)) => {
                bytes[12..14].copy_from_slice(&[0x08, 0x00]);
                bytes[14] = 0x45;
                // Don't fragment; 64 hops; UDP.
                bytes[20..24].copy_from_slice(&[0x40, 0, 64, 17]);
                bytes[26..30].copy_from_slice(&source.octets());
                bytes[30..34].copy_from_slice(&target.octets());
                42
            }
            (IpAddr::V6(source), IpAddr::V6(target)) => {
                bytes[12..14].copy_from_slice(&[0x86, 0xdd]);
                bytes[14] = 0x60;
                // UDP; 64 hops.
                bytes[20..22].copy_from_slice(&[17, 64]);
                bytes[22..38].copy_from_slice(&source.octets());
                bytes[38..54].copy_from_slice(&target.octets());
                62
            }
            _ => return None,
        };
        bytes[len - 8..len - 6].copy_from_slice(&from.1.port().to_be_bytes());
        bytes[len - 6..len - 4].copy_from_slice(&to.1.port().to_be_bytes());
        let sum = if len == 42 { sum(&bytes[14..34]) } else { sum(&bytes[22..54]) + 17 };
        Some(Headers { bytes, len, sum })
    }

    /// Fills in the first bytes of `wire`, which holds the frame behind them.
    pub(super) fn write(&self, wire: &mut [u8]) {
        wire[..self.len].copy_from_slice(&self.bytes[..self.len]);
        let udp_bytes = u16::try_from(wire.len() - self.len + 8).unwrap_or(u16::MAX);
        let udp = self.len - 8;
        wire[udp + 4..udp + 6].copy_from_slice(&udp_bytes.to_be_bytes());
        if self.len == 42 {
            let bytes = udp_bytes.saturating_add(20);
            wire[16..18].copy_from_slice(&bytes.to_be_bytes());
            let sum = folded(self.sum + u64::from(bytes));
            wire[24..26].copy_from_slice(&(!sum).to_be_bytes());
            // UDP's own checksum stays 0: IPv4 permits none (RFC 768), and the frame has its tag.
        } else {
            wire[18..20].copy_from_slice(&udp_bytes.to_be_bytes());
            // IPv6 asks for one (RFC 8200, 8.1), over both addresses, length, protocol and the datagram; 0 is written as its complement.
            let total = self.sum + u64::from(udp_bytes) + sum(&wire[54..]);
            let checksum = match !folded(total) {
                0 => 0xffff,
                checksum => checksum,
            };
            wire[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

/// Sum of 16-bit words in network order, an odd byte padded with 0.
fn sum(bytes: &[u8]) -> u64 {
    let (pairs, odd) = bytes.as_chunks::<2>();
    let words: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    words + odd.first().map_or(0, |byte| u64::from(*byte) << 8)
}

/// The one's-complement sum (RFC 1071).
fn folded(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    u16::try_from(sum).unwrap_or(u16::MAX)
}

/// The frame in the device's received bytes, by UDP's own length: short frames come padded. `None`: it cannot be one.
pub(super) fn frame_of(wire: &[u8], header_bytes: usize) -> Option<&[u8]> {
    let length = wire.get(header_bytes - 4..header_bytes - 2)?;
    let udp_bytes = usize::from(u16::from_be_bytes([length[0], length[1]]));
    wire.get(header_bytes..header_bytes + udp_bytes.checked_sub(8)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_add_up_at_the_receiver() {
        for (from, to) in [("10.0.0.1:1000", "10.0.0.2:2000"), ("[fd00::1]:1000", "[fd00::2]:2000")] {
            let (from, to) = (from.parse().expect("an address"), to.parse().expect("an address"));
            let headers = Headers::new(([2; 6], from), ([4; 6], to)).expect("one family");
            for bytes in [0, 1, 2, 7, 1400] {
                let mut wire = vec![0xa7; headers.len + bytes];
                headers.write(&mut wire);
                assert_eq!(frame_of(&wire, headers.len), Some(&vec![0xa7; bytes][..]));
                if headers.len == 42 {
                    assert_eq!(folded(sum(&wire[14..34])), 0xffff);
                } else {
                    let pseudo = sum(&wire[22..54]) + (bytes as u64 + 8) + 17;
                    assert_eq!(folded(pseudo + sum(&wire[54..])), 0xffff);
                }
            }
        }
    }

    #[test]
    fn lengths_that_cannot_be_are_refused() {
        let mut wire = [0; 60];
        for udp_bytes in [0u16, 7, 27, u16::MAX] {
            wire[38..40].copy_from_slice(&udp_bytes.to_be_bytes());
            assert_eq!(frame_of(&wire, 42), None, "{udp_bytes}");
        }
        wire[38..40].copy_from_slice(&9u16.to_be_bytes());
        assert_eq!(frame_of(&wire, 42), Some(&[0][..]), "padding is no part of the frame");
    }
}
