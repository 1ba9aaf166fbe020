//! Atomic operations on memory, with an operand and perhaps a value to compare with (fi_atomic(3)).

use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::boundary::{Errno, Result};

/// `enum fi_op`.
pub(crate) mod op {
    pub(crate) const MIN: u8 = 0;
    pub(crate) const MAX: u8 = 1;
    pub(crate) const SUM: u8 = 2;
    pub(crate) const PROD: u8 = 3;
    pub(crate) const LOR: u8 = 4;
    pub(crate) const LAND: u8 = 5;
    pub(crate) const BOR: u8 = 6;
    pub(crate) const BAND: u8 = 7;
    pub(crate) const LXOR: u8 = 8;
    pub(crate) const BXOR: u8 = 9;
    pub(crate) const READ: u8 = 10;
    pub(crate) const WRITE: u8 = 11;
    pub(crate) const CSWAP: u8 = 12;
    pub(crate) const CSWAP_NE: u8 = 13;
    pub(crate) const CSWAP_LE: u8 = 14;
    pub(crate) const CSWAP_LT: u8 = 15;
    pub(crate) const CSWAP_GE: u8 = 16;
    pub(crate) const CSWAP_GT: u8 = 17;
    pub(crate) const MSWAP: u8 = 18;
}

/// A value in memory: its size, and its operations. `None`: the type does not have this operation.
trait Value: Copy {
    fn apply(op: u8, memory: Self, operand: Self, compare: Self) -> Option<Self>;
}

/// The operations of all types with an order: comparisons read "compare <op> memory".
macro_rules! ordered {
    ($op:expr, $memory:expr, $operand:expr, $compare:expr, $zero:expr, $one:expr) => {{
        let truth = |truth: bool| if truth { $one } else { $zero };
        let swap = |swap: bool| if swap { $operand } else { $memory };
        match $op {
            op::MIN => Some(if $operand < $memory { $operand } else { $memory }),
            op::MAX => Some(if $operand > $memory { $operand } else { $memory }),
            op::LOR => Some(truth($memory != $zero || $operand != $zero)),
            op::LAND => Some(truth($memory != $zero && $operand != $zero)),
            op::LXOR => Some(truth(($memory != $zero) != ($operand != $zero))),
            op::READ => Some($memory),
            op::WRITE => Some($operand),
            op::CSWAP => Some(swap($compare == $memory)),
            op::CSWAP_NE => Some(swap($compare != $memory)),
            op::CSWAP_LE => Some(swap($compare <= $memory)),
            op::CSWAP_LT => Some(swap($compare < $memory)),
            op::CSWAP_GE => Some(swap($compare >= $memory)),
            op::CSWAP_GT => Some(swap($compare > $memory)),
            _ => None,
        }
    }};
}

macro_rules! whole_numbers {
    ($($type:ty)*) => {$(
        impl Value for $type {
            fn apply(op: u8, memory: $type, operand: $type, compare: $type) -> Option<$type> {
                match op {
                    op::SUM => Some(memory.wrapping_add(operand)),
                    op::PROD => Some(memory.wrapping_mul(operand)),
                    op::BOR => Some(memory | operand),
                    op::BAND => Some(memory & operand),
                    op::BXOR => Some(memory ^ operand),
                    op::MSWAP => Some(operand & compare | memory & !compare),
                    _ => ordered!(op, memory, operand, compare, 0, 1),
                }
            }
        }
    )*};
}

macro_rules! floating_numbers {
    ($($type:ty)*) => {$(
        impl Value for $type {
            fn apply(op: u8, memory: $type, operand: $type, compare: $type) -> Option<$type> {
                match op {
                    op::SUM => Some(memory + operand),
                    op::PROD => Some(memory * operand),
                    _ => ordered!(op, memory, operand, compare, 0.0, 1.0),
                }
            }
        }

        impl Value for [$type; 2] {
            fn apply(op: u8, memory: [$type; 2], operand: [$type; 2], compare: [$type; 2]) -> Option<[$type; 2]> {
                let zero = [0.0, 0.0];
                let truth = |truth: bool| if truth { [1.0, 0.0] } else { zero };
                let ([a, b], [c, d]) = (memory, operand);
                match op {
                    op::SUM => Some([a + c, b + d]),
                    op::PROD => Some([a * c - b * d, a * d + b * c]),
                    op::LOR => Some(truth(memory != zero || operand != zero)),
                    op::LAND => Some(truth(memory != zero && operand != zero)),
                    op::LXOR => Some(truth((memory != zero) != (operand != zero))),
                    op::READ => Some(memory),
                    op::WRITE => Some(operand),
                    op::CSWAP => Some(if compare == memory { operand } else { memory }),
                    op::CSWAP_NE => Some(if compare == memory { memory } else { operand }),
                    _ => None,
                }
            }
        }
    )*};
}

whole_numbers!(i8 u8 i16 u16 i32 u32 i64 u64 i128 u128);
floating_numbers!(f32 f64);

/// Calls `$call` with the type that `enum fi_datatype` numbers so; unknown ones and `long double` are not offered.
macro_rules! with_type {
    ($datatype:expr, $call:ident($($argument:expr),*)) => {
        match $datatype {
            0 => $call::<i8>($($argument),*),
            1 => $call::<u8>($($argument),*),
            2 => $call::<i16>($($argument),*),
            3 => $call::<u16>($($argument),*),
            4 => $call::<i32>($($argument),*),
            5 => $call::<u32>($($argument),*),
            6 => $call::<i64>($($argument),*),
            7 => $call::<u64>($($argument),*),
            8 => $call::<f32>($($argument),*),
            9 => $call::<f64>($($argument),*),
            10 => $call::<[f32; 2]>($($argument),*),
            11 => $call::<[f64; 2]>($($argument),*),
            14 => $call::<i128>($($argument),*),
            15 => $call::<u128>($($argument),*),
            _ => Err(Errno(libc::EOPNOTSUPP)),
        }
    };
}

fn size_of_valid<T: Value>(op: u8) -> Result<usize> {
    // SAFETY: all types here are numbers or pairs of them, for which zeros are a value.
    let zero: T = unsafe { core::mem::zeroed() };
    T::apply(op, zero, zero, zero).map(|_| size_of::<T>()).ok_or(Errno(libc::EOPNOTSUPP))
}

/// Bytes of one value, if the type has the operation.
pub(crate) fn value_bytes(datatype: u8, op: u8) -> Result<usize> {
    with_type!(datatype, size_of_valid(op))
}

/// Operates on `bytes` bytes at `place`. `payload` holds the operands, and behind them the values to compare
/// with, or nothing. Returns the old content.
///
/// # Safety
/// `bytes` bytes at `place` may be read, and written if the operation changes them, and not accessed meanwhile by code
/// that expects more than a torn value where it is not aligned or longer than 8 bytes.
pub(crate) unsafe fn perform(
    datatype: u8,
    op: u8,
    payload: &[u8],
    place: *mut u8,
    bytes: usize,
) -> Result<Vec<u8>> {
    with_type!(datatype, each(op, payload, place, bytes))
}

/// A number that the processor changes in one step.
trait AtomicWord {
    type Bits: Copy + Eq;
    fn load(&self) -> Self::Bits;
    fn replace(&self, old: Self::Bits, new: Self::Bits) -> core::result::Result<Self::Bits, Self::Bits>;
}

macro_rules! words {
    ($($atomic:ty = $bits:ty),*) => {$(
        impl AtomicWord for $atomic {
            type Bits = $bits;
            fn load(&self) -> $bits {
                <$atomic>::load(self, Ordering::Acquire)
            }
            fn replace(&self, old: $bits, new: $bits) -> core::result::Result<$bits, $bits> {
                self.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Acquire)
            }
        }
    )*};
}

words!(AtomicU8 = u8, AtomicU16 = u16, AtomicU32 = u32, AtomicU64 = u64);

/// Changes a number in one step, also where the owner's own threads change it meanwhile. Stores only a
/// different value: memory that is looked at may be constant. Returns the old value.
///
/// # Safety
/// `place` is valid and aligned for a `W`; `T` and `W::Bits` are numbers of the same size as `W`.
unsafe fn update<T: Value, W: AtomicWord>(place: *mut u8, apply: impl Fn(T) -> Result<T>) -> Result<T> {
    // SAFETY: as the caller says; an atomic may be shared with others that use it as one.
    let word = unsafe { &*place.cast::<W>() };
    let mut old = word.load();
    loop {
        // SAFETY: numbers of the same size, as the caller says.
        let (memory, new) = unsafe {
            let memory: T = core::mem::transmute_copy(&old);
            (memory, core::mem::transmute_copy::<T, W::Bits>(&apply(memory)?))
        };
        if new == old {
            return Ok(memory);
        }
        match word.replace(old, new) {
            Ok(_) => return Ok(memory),
            Err(now) => old = now,
        }
    }
}

/// As [`update`], for numbers that the processor does not change in one step.
///
/// # Safety
/// `place` is valid for a `T`.
unsafe fn update_unaligned<T: Value>(place: *mut u8, apply: impl Fn(T) -> Result<T>) -> Result<T> {
    // SAFETY: as the caller says.
    unsafe {
        let place = place.cast::<T>();
        let memory = place.read_unaligned();
        let new = apply(memory)?;
        if bytes_of(&new) != bytes_of(&memory) {
            place.write_unaligned(new);
        }
        Ok(memory)
    }
}

fn bytes_of<T: Value>(value: &T) -> &[u8] {
    // SAFETY: all types here are numbers or pairs of them: bytes without gaps.
    unsafe { core::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) }
}

fn each<T: Value>(op: u8, payload: &[u8], place: *mut u8, bytes: usize) -> Result<Vec<u8>> {
    let size = size_of::<T>();
    if !bytes.is_multiple_of(size) || payload.len() < bytes {
        return Err(Errno(libc::EINVAL));
    }
    let mut before = Vec::with_capacity(bytes);
    for at in (0..bytes).step_by(size) {
        let compare_at = if payload.len() >= 2 * bytes { bytes + at } else { at };
        // SAFETY: all three lie within their bounds (checked above; `place` by the contract of `perform`), and any bytes are a
        // number.
        unsafe {
            let operand: T = payload.as_ptr().add(at).cast::<T>().read_unaligned();
            let compare: T = payload.as_ptr().add(compare_at).cast::<T>().read_unaligned();
            let place = place.add(at);
            let apply = |memory| T::apply(op, memory, operand, compare).ok_or(Errno(libc::EOPNOTSUPP));
            let aligned = place.addr().is_multiple_of(size);
            let memory = match size {
                1 => update::<T, AtomicU8>(place, apply),
                2 if aligned => update::<T, AtomicU16>(place, apply),
                4 if aligned => update::<T, AtomicU32>(place, apply),
                8 if aligned => update::<T, AtomicU64>(place, apply),
                _ => update_unaligned(place, apply),
            }?;
            before.extend_from_slice(bytes_of(&memory));
        }
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T: Copy + PartialEq + core::fmt::Debug>(datatype: u8, op: u8, memory: T, rest: &[T]) -> (T, T) {
        let mut memory = memory;
        let size = size_of::<T>();
        // SAFETY: numbers as bytes.
        let payload = unsafe { core::slice::from_raw_parts(rest.as_ptr().cast::<u8>(), size_of_val(rest)) };
        // SAFETY: one value.
        let before = unsafe { perform(datatype, op, payload, (&raw mut memory).cast(), size) }.unwrap();
        // SAFETY: as many bytes as a `T`.
        (unsafe { before.as_ptr().cast::<T>().read_unaligned() }, memory)
    }

    #[test]
    fn operations_do_what_the_manual_says() {
        assert_eq!(run(4, op::SUM, 5i32, &[-7]), (5, -2));
        assert_eq!(run(7, op::MIN, 5u64, &[3]), (5, 3));
        assert_eq!(run(7, op::READ, 5u64, &[3]), (5, 5));
        assert_eq!(run(9, op::PROD, 1.5f64, &[2.0]), (1.5, 3.0));
        assert_eq!(run(10, op::PROD, [1.0f32, 1.0], &[[0.0, 1.0]]), ([1.0, 1.0], [-1.0, 1.0]));
        assert_eq!(run(5, op::LXOR, 5u32, &[0]), (5, 1));
        assert_eq!(run(4, op::CSWAP, 5i32, &[9, 5]), (5, 9));
        assert_eq!(run(4, op::CSWAP, 5i32, &[9, 6]), (5, 5));
        // "compare <= memory"
        assert_eq!(run(4, op::CSWAP_LE, 5i32, &[9, 4]), (5, 9));
        assert_eq!(run(4, op::CSWAP_GT, 5i32, &[9, 4]), (5, 5));
        assert_eq!(run(1, op::MSWAP, 0b1100u8, &[0b1010, 0b0110]), (0b1100, 0b1010));
        assert_eq!(run(6, op::SUM, i64::MAX, &[1]), (i64::MAX, i64::MIN));
    }

    #[test]
    fn only_what_changes_is_stored() {
        // SAFETY: plain allocation of a page, which is given back.
        unsafe {
            let page = libc::mmap(
                core::ptr::null_mut(),
                4096,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            let nothing = [0u8; 32];
            let ones = [1u8; 32];
            // Aligned and not, short and long: a store would be a signal.
            for (offset, datatype, bytes) in
                [(0, 7, 8), (8, 1, 1), (3, 7, 8), (0, 15, 16), (16, 11, 16), (4, 8, 4)]
            {
                let place = page.cast::<u8>().add(offset);
                for (op, payload) in [(op::READ, &ones[..]), (op::SUM, &nothing[..])] {
                    let before = perform(datatype, op, &payload[..bytes], place, bytes);
                    assert_eq!(before, Ok(vec![0; bytes]), "type {datatype}, operation {op}");
                }
            }
            let mismatch = [9u64, 1].map(u64::to_le_bytes).concat();
            assert_eq!(perform(7, op::CSWAP, &mismatch, page.cast(), 8), Ok(vec![0; 8]));
            assert_eq!(perform(7, op::MIN, &ones[..8], page.cast(), 8), Ok(vec![0; 8]));
            libc::munmap(page, 4096);
        }
    }

    #[test]
    fn what_the_owners_threads_add_meanwhile_is_not_lost() {
        const ROUNDS: u64 = 20_000;
        let word = AtomicU64::new(0);
        let place = word.as_ptr() as usize;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    word.fetch_add(1, Ordering::Relaxed);
                }
            });
            for i in 0..ROUNDS {
                let op = if i % 2 == 0 { op::SUM } else { op::READ };
                // SAFETY: an atomic, which the other thread uses as one.
                unsafe { perform(7, op, &1u64.to_le_bytes(), place as *mut u8, 8) }.unwrap();
            }
        });
        assert_eq!(word.into_inner(), ROUNDS + ROUNDS / 2);
    }

    #[test]
    fn what_a_type_does_not_have_is_refused() {
        assert!(value_bytes(9, op::BOR).is_err(), "bits of a double");
        assert!(value_bytes(10, op::MIN).is_err(), "an order of complex numbers");
        assert!(value_bytes(12, op::SUM).is_err(), "long double");
        assert!(value_bytes(99, op::SUM).is_err());
        assert!(value_bytes(4, 77).is_err());
        assert_eq!(value_bytes(11, op::SUM), Ok(16));
        let mut memory = [0u8; 6];
        // SAFETY: six bytes.
        assert!(unsafe { perform(4, op::SUM, &[0; 6], memory.as_mut_ptr(), 6) }.is_err(), "half a value");
    }
}
