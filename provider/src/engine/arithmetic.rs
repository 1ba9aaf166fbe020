//! Atomic operations: what becomes of memory, an operand, and perhaps a value to compare with (fi_atomic(3)).

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

/// A value in memory: its size, and what an operation makes of it. `None`: the type does not have this operation.
trait Value: Copy {
    fn apply(op: u8, memory: Self, operand: Self, compare: Self) -> Option<Self>;
}

/// What all types with an order have: comparisons read "compare <op> memory".
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

/// Operates on `bytes` bytes at `place`. `payload` holds the operands, and behind them what to compare with, or nothing.
/// Returns what was there before.
///
/// # Safety
/// `bytes` bytes at `place` may be read and written, by nobody else meanwhile that expects more than a torn value.
pub(crate) unsafe fn perform(
    datatype: u8,
    op: u8,
    payload: &[u8],
    place: *mut u8,
    bytes: usize,
) -> Result<Vec<u8>> {
    with_type!(datatype, each(op, payload, place, bytes))
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
            let memory: T = place.add(at).cast::<T>().read_unaligned();
            let operand: T = payload.as_ptr().add(at).cast::<T>().read_unaligned();
            let compare: T = payload.as_ptr().add(compare_at).cast::<T>().read_unaligned();
            let result = T::apply(op, memory, operand, compare).ok_or(Errno(libc::EOPNOTSUPP))?;
            before.extend_from_slice(core::slice::from_raw_parts(place.add(at), size));
            place.add(at).cast::<T>().write_unaligned(result);
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
