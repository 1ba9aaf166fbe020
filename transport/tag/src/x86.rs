//! By the AES instructions of x86-64.

use core::arch::x86_64::{
    __m128i, _mm_aesenc_si128, _mm_loadu_si128, _mm_set_epi64x, _mm_storeu_si128, _mm_xor_si128,
};

cpufeatures::new!(aes_instructions, "aes");

/// Bits that the tag covers, and bits of the tag: both are mixed in at the end.
const SIZES: [i64; 2] = [128 * 8, 16 * 8];

/// The constants C0 and C1, the Fibonacci numbers modulo 256.
const C0: [u8; 16] =
    [0x00, 0x01, 0x01, 0x02, 0x03, 0x05, 0x08, 0x0d, 0x15, 0x22, 0x37, 0x59, 0x90, 0xe9, 0x79, 0x62];
const C1: [u8; 16] =
    [0xdb, 0x3d, 0x18, 0x55, 0x6d, 0xc2, 0x2f, 0xf1, 0x20, 0x11, 0x31, 0x42, 0x73, 0xb5, 0x28, 0xdd];

type State = [__m128i; 8];

/// Makes tags of 128 bytes with one key. Only where the processor has AES instructions.
#[derive(Clone)]
pub struct ShortTag {
    /// After the key, before the first byte.
    keyed: State,
}

impl ShortTag {
    /// `None`: the processor has no AES instructions.
    #[must_use]
    pub fn new(key: &[u8; 16]) -> Option<ShortTag> {
        // SAFETY: the processor has AES instructions, as has just been found.
        aes_instructions::get().then(|| ShortTag { keyed: unsafe { keyed(key) } })
    }

    /// The tag of these bytes in this order, words as little-endian bytes.
    #[inline]
    #[must_use]
    pub fn of(&self, first: [u64; 4], second: [u64; 8], third: [u64; 4]) -> [u8; 16] {
        // SAFETY: `ShortTag` is only made where the processor was found to have AES instructions.
        unsafe { tag(&self.keyed, first, second, third) }
    }
}

#[inline]
fn load(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: sixteen bytes, at any address.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "aes")]
fn update(state: State, one: __m128i, other: __m128i) -> State {
    let [a, b, c, d, e, f, g, h] = state;
    [
        _mm_xor_si128(_mm_aesenc_si128(h, a), one),
        _mm_aesenc_si128(a, b),
        _mm_aesenc_si128(b, c),
        _mm_aesenc_si128(c, d),
        _mm_xor_si128(_mm_aesenc_si128(d, e), other),
        _mm_aesenc_si128(e, f),
        _mm_aesenc_si128(f, g),
        _mm_aesenc_si128(g, h),
    ]
}

#[target_feature(enable = "aes")]
fn keyed(key: &[u8; 16]) -> State {
    let (key, c0, c1) = (load(key), load(&C0), load(&C1));
    let [with_c0, with_c1] = [c0, c1].map(|constant| _mm_xor_si128(key, constant));
    let mut state = [key, c1, c0, c1, key, with_c0, with_c1, with_c0];
    for _ in 0..10 {
        state = update(state, _mm_set_epi64x(0, 0), key);
    }
    state
}

#[target_feature(enable = "aes")]
fn tag(keyed: &State, first: [u64; 4], second: [u64; 8], third: [u64; 4]) -> [u8; 16] {
    let mut state = *keyed;
    let (second, _) = second.as_chunks::<4>();
    for [a, b, c, d] in [&first, &second[0], &second[1], &third].map(|words| words.map(u64::cast_signed)) {
        state = update(state, _mm_set_epi64x(b, a), _mm_set_epi64x(d, c));
    }
    let last = _mm_xor_si128(state[2], _mm_set_epi64x(SIZES[1], SIZES[0]));
    for _ in 0..7 {
        state = update(state, last, last);
    }
    let [a, b, c, d, e, f, g, _] = state;
    let halves = (_mm_xor_si128(_mm_xor_si128(a, b), _mm_xor_si128(c, d)), _mm_xor_si128(e, f));
    let sum = _mm_xor_si128(halves.0, _mm_xor_si128(halves.1, g));
    let mut tag = [0; 16];
    // SAFETY: sixteen bytes, at any address.
    unsafe { _mm_storeu_si128(tag.as_mut_ptr().cast(), sum) };
    tag
}
