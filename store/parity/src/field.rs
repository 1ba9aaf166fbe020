//! The field of 256 elements with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11d), the one that storage systems use; 2 generates it.
//!
//! Addition is exclusive or. Multiplication by a constant is linear over bits, so it is also a sum of two table
//! look-ups, one for each half of a byte (`HALVES`, for byte shuffles), and a matrix of 8 x 8 bits (`BITS`, for GFNI).

/// The polynomial without its highest term.
const REDUCTION: u8 = 0x1d;

/// `a` times `b`.
#[must_use]
pub const fn multiply(a: u8, b: u8) -> u8 {
    let (mut product, mut shifted, mut rest) = (0, a, b);
    while rest != 0 {
        if rest & 1 != 0 {
            product ^= shifted;
        }
        shifted = (shifted << 1) ^ (if shifted & 0x80 != 0 { REDUCTION } else { 0 });
        rest >>= 1;
    }
    product
}

/// The element that gives 1 when multiplied by `a`; 0 for 0, which has none.
#[must_use]
pub const fn inverse(a: u8) -> u8 {
    // a^255 = 1 for all but 0, so a^254 is the inverse: the product of a^2, a^4, ..., a^128.
    let (mut power, mut product, mut step) = (a, 1, 1);
    while step < 8 {
        power = multiply(power, power);
        product = multiply(product, power);
        step += 1;
    }
    product
}

/// All products, for the scalar kernel.
pub(crate) static PRODUCTS: [[u8; 256]; 256] = {
    let mut table = [[0; 256]; 256];
    let mut a = 0;
    while a < 256 {
        let mut b = 0;
        while b < 256 {
            table[a][b] = multiply(element(a), element(b));
            b += 1;
        }
        a += 1;
    }
    table
};

/// For each constant its products with 0 to 15, then with 0, 16, 32, ... 240.
pub(crate) static HALVES: [[u8; 32]; 256] = {
    let mut table = [[0; 32]; 256];
    let mut a = 0;
    while a < 256 {
        let mut b = 0;
        while b < 16 {
            table[a][b] = multiply(element(a), element(b));
            table[a][16 + b] = multiply(element(a), element(b << 4));
            b += 1;
        }
        a += 1;
    }
    table
};

/// For each constant the matrix by which GF2P8AFFINEQB multiplies: byte 7 - i selects the bits of the operand
/// that make bit i.
#[cfg(any(test, target_arch = "x86_64"))]
pub(crate) static BITS: [u64; 256] = {
    let mut table = [0; 256];
    let mut a = 0;
    while a < 256 {
        let mut column = 0;
        while column < 8 {
            let product = multiply(element(a), 1 << column);
            let mut row = 0;
            while row < 8 {
                if product >> row & 1 != 0 {
                    table[a] |= 1 << (8 * (7 - row) + column);
                }
                row += 1;
            }
            column += 1;
        }
        a += 1;
    }
    table
};

#[expect(clippy::cast_possible_truncation, reason = "called below 256 only")]
const fn element(index: usize) -> u8 {
    assert!(index < 256);
    index as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_generates_the_field() {
        let (mut power, mut seen) = (1, [false; 256]);
        for _ in 0..255 {
            assert!(!std::mem::replace(&mut seen[usize::from(power)], true), "{power} twice");
            power = multiply(power, 2);
        }
        assert_eq!((power, seen[0]), (1, false));
    }

    #[test]
    fn products_obey_the_laws_of_a_field() {
        for a in 0..=255 {
            assert_eq!((multiply(a, 1), multiply(a, 0)), (a, 0));
            assert_eq!(multiply(a, inverse(a)), u8::from(a != 0));
            for b in 0..=255 {
                assert_eq!(multiply(a, b), multiply(b, a));
                assert_eq!(multiply(a, b ^ 0x35), multiply(a, b) ^ multiply(a, 0x35));
                assert_eq!(multiply(multiply(a, b), 0x8e), multiply(a, multiply(b, 0x8e)));
            }
        }
    }

    /// Values of the field as others have it (the logarithm tables of RAID 6 and ISA-L).
    #[test]
    fn the_polynomial_is_the_usual_one() {
        assert_eq!((multiply(0x80, 2), multiply(2, 0x8e), inverse(2)), (0x1d, 1, 0x8e));
    }

    #[test]
    fn tables_hold_products() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                let (product, halves) = (multiply(a, b), &HALVES[usize::from(a)]);
                assert_eq!(PRODUCTS[usize::from(a)][usize::from(b)], product);
                assert_eq!(halves[usize::from(b & 15)] ^ halves[usize::from(16 + (b >> 4))], product);
                let rows = BITS[usize::from(a)].to_be_bytes();
                let by_bits =
                    (0..8).fold(0, |sum, bit| sum | u8::from((rows[bit] & b).count_ones() & 1 == 1) << bit);
                assert_eq!(by_bits, product, "{a} {b}");
            }
        }
    }
}
