//! Which call a thread makes through `syscall(2)` of the C library: by the code of the function's caller,
//! which gives the number.

use super::{CALL, Frame};
use crate::sys::peek;

/// The function's body, up to where the call has been made: GNU's and musl's are the same.
const BODY: [u8; 25] = [
    0x48, 0x89, 0xf8, // mov rax, rdi
    0x48, 0x89, 0xf7, // mov rdi, rsi
    0x48, 0x89, 0xd6, // mov rsi, rdx
    0x48, 0x89, 0xca, // mov rdx, rcx
    0x4d, 0x89, 0xc2, // mov r10, r8
    0x4d, 0x89, 0xc8, // mov r8, r9
    0x4c, 0x8b, 0x4c, 0x24, 0x08, // mov r9, [rsp + 8]
    CALL[0], CALL[1],
];

/// How many words of the caller's code are looked at.
const CALLER_WORDS: usize = 8;

/// The instruction that loads a number as a first argument; four bytes follow.
const MOVE_TO_EDI: u8 = 0xbf;
/// A call by distance, which follows in four bytes.
const CALL_NEAR: u8 = 0xe8;
/// A call of the address that is written at a distance, which follows in four bytes; a jump there.
const CALL_BY_TABLE: [u8; 2] = [0xff, 0x15];
const JUMP_BY_TABLE: [u8; 2] = [0xff, 0x25];
/// Where jumps by address may come to: `endbr64`.
const LANDING: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Calls that end with `EINTR` whenever a signal is handled, and that programs make by `syscall(2)`. A call that was taken for one
/// of these would be another one when it is made again; all others are left to the program.
const ENDED: [i64; 8] = [
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_clock_nanosleep,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_io_uring_enter,
];

/// Operations of `futex(2)` that wait and may be repeated.
const FUTEX_WAITS: [i32; 2] = [libc::FUTEX_WAIT, libc::FUTEX_WAIT_BITSET];

/// The number of the call that a thread has just come back from in `syscall(2)`, if it is one of [`ENDED`] and the caller's code shows it.
pub(super) fn number(frame: Frame, pc: u64, sp: u64) -> Option<i64> {
    let function = pc.wrapping_sub(BODY.len() as u64);
    if peek(function) != Ok(BODY) {
        return None;
    }
    let caller = peek::<u64>(sp).ok()?;
    let code = peek::<[u64; CALLER_WORDS]>(caller.wrapping_sub(size_of::<[u64; CALLER_WORDS]>() as u64));
    let number = given(before_call(code.ok()?.map(u64::to_le_bytes).as_flattened(), caller, function)?)?;
    let operation = frame.argument(1) as i32 & !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    (number != libc::SYS_futex || FUTEX_WAITS.contains(&operation)).then_some(number)
}

/// The code before the call instruction that ends `code` at the address `end`. `None` unless that calls
/// `function`, directly or by the linker's tables.
fn before_call(code: &[u8], end: u64, function: u64) -> Option<&[u8]> {
    let (code, distance) = code.split_last_chunk::<4>()?;
    let place = end.wrapping_add_signed(i32::from_le_bytes(*distance).into());
    if let Some(code) = code.strip_suffix(&CALL_BY_TABLE) {
        return starts(peek(place).ok()?, function).then_some(code);
    }
    let code = code.strip_suffix(&[CALL_NEAR])?;
    let reaches = starts(place, function) || table_entry(place).is_some_and(|entry| starts(entry, function));
    reaches.then_some(code)
}

/// Whether a function that is called at `place` is the one whose body begins at `body`.
fn starts(place: u64, body: u64) -> bool {
    place == body || place.wrapping_add(LANDING.len() as u64) == body && peek(place) == Ok(LANDING)
}

/// Where code leads to that jumps by the linker's table alone.
fn table_entry(place: u64) -> Option<u64> {
    /// Means only that a jump's end is not to be checked.
    const BOUND: u8 = 0xf2;
    let code = peek::<[u8; 16]>(place).ok()?;
    let jump = code.strip_prefix(&LANDING).unwrap_or(&code);
    let jump = jump.strip_prefix(&[BOUND]).unwrap_or(jump);
    let (distance, after) = jump.strip_prefix(&JUMP_BY_TABLE)?.split_first_chunk::<4>()?;
    let end = place.wrapping_add((code.len() - after.len()) as u64);
    peek(end.wrapping_add_signed(i32::from_le_bytes(*distance).into())).ok()
}

/// The number that code loads last as a first argument, if it is one of [`ENDED`].
fn given(code: &[u8]) -> Option<i64> {
    code.windows(1 + size_of::<u32>()).rev().find_map(|bytes| {
        let [MOVE_TO_EDI, number @ ..] = bytes else { return None };
        let number = i64::from(u32::from_le_bytes(number.try_into().ok()?));
        ENDED.contains(&number).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code at places of its own: a caller, a table, an entry of the linker and the function.
    struct Code([u8; 256]);

    const FUNCTION: usize = 200;
    const TABLE: usize = 160;
    const STUB: usize = 128;

    impl Code {
        fn new() -> Box<Code> {
            let mut code = Box::new(Code([0x90; 256]));
            code.put(FUNCTION, &BODY);
            let function = code.at(FUNCTION);
            code.put(TABLE, &function.to_le_bytes());
            code.put(STUB, &LANDING);
            code.put(STUB + 4, &JUMP_BY_TABLE);
            code.put(STUB + 6, &((TABLE - STUB - 10) as i32).to_le_bytes());
            code
        }

        fn at(&self, offset: usize) -> u64 {
            self.0.as_ptr() as u64 + offset as u64
        }

        fn put(&mut self, offset: usize, bytes: &[u8]) {
            self.0[offset..offset + bytes.len()].copy_from_slice(bytes);
        }

        /// A caller that loads `number` and calls, by `call`, the code `to` bytes from the beginning; returns the number
        /// that is found.
        fn found(&mut self, number: i64, call: &[u8], to: usize) -> Option<i64> {
            const LOAD: usize = 70;
            const AT: usize = 100;
            let end = AT + call.len() + 4;
            self.put(LOAD, &[MOVE_TO_EDI]);
            self.put(LOAD + 1, &(number as u32).to_le_bytes());
            self.put(AT, call);
            self.put(AT + call.len(), &(to as i32 - end as i32).to_le_bytes());
            let sp = self.at(end);
            // SAFETY: an empty context has the registers of none.
            let mut context: libc::ucontext_t = unsafe { std::mem::zeroed() };
            // SAFETY: it lives longer than the frame.
            let frame = unsafe { Frame::of((&raw mut context).cast()) };
            super::number(frame, self.at(FUNCTION + BODY.len()), std::ptr::from_ref(&sp) as u64)
        }
    }

    #[test]
    fn a_number_is_found_however_the_function_is_called() {
        let futex = libc::SYS_futex;
        assert_eq!(Code::new().found(futex, &[CALL_NEAR], FUNCTION), Some(futex));
        assert_eq!(Code::new().found(futex, &[CALL_NEAR], STUB), Some(futex));
        assert_eq!(Code::new().found(futex, &CALL_BY_TABLE, TABLE), Some(futex));
    }

    #[test]
    fn what_calls_something_else_says_nothing() {
        assert_eq!(Code::new().found(libc::SYS_futex, &[CALL_NEAR], FUNCTION + 3), None);
        assert_eq!(Code::new().found(libc::SYS_futex, &CALL_BY_TABLE, STUB), None);
        assert_eq!(Code::new().found(libc::SYS_futex, &JUMP_BY_TABLE, TABLE), None);
        assert_eq!(Code::new().found(libc::SYS_getrandom, &[CALL_NEAR], FUNCTION), None, "it never ends so");
        let mut other = Code::new();
        other.put(FUNCTION, &[0x90]);
        assert_eq!(other.found(libc::SYS_futex, &[CALL_NEAR], FUNCTION), None, "another function");
    }
}
