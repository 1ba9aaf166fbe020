//! x86-64.

mod syscall_wrapper;

use std::arch::{asm, naked_asm};
use std::ffi::c_void;

use crate::sys::peek;

/// Bytes of a page.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Name of the architecture in an image.
pub(crate) const NAME: &str = "x86_64";

/// Words of [`call_noting_registers`]: rbx, rbp, r12, r13, r14, r15, rsp (at the return address), and MXCSR with the
/// x87 control word above it.
pub(crate) const REGISTERS: usize = 8;

/// The return value of [`call_noting_registers`] the second time.
pub(crate) const RESTORED: u64 = 1;

/// Bytes of the instruction that makes a system call.
const CALL_BYTES: u64 = 2;

/// A number as the kernel writes it.
pub(crate) fn u16_of(bytes: [u8; 2]) -> u16 {
    u16::from_le_bytes(bytes)
}

/// A system call. Returns the kernel's answer: a value, or -4095..0 for an error.
///
/// # Safety
/// That of the call.
#[inline]
pub(crate) unsafe fn syscall(number: i64, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the kernel preserves all registers but rax, rcx and r11; the caller answers for the call's effects.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// Records the registers that a call preserves, calls `call(argument)`, and returns its result. A later call of
/// [`return_to`] with the recorded registers returns from here once more.
///
/// # Safety
/// `registers` has room for [`REGISTERS`] words; `call` does not unwind.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn call_noting_registers(
    registers: *mut u64,
    call: unsafe extern "C" fn(*mut c_void) -> u64,
    argument: *mut c_void,
) -> u64 {
    naked_asm!(
        "mov [rdi], rbx",
        "mov [rdi + 8], rbp",
        "mov [rdi + 16], r12",
        "mov [rdi + 24], r13",
        "mov [rdi + 32], r14",
        "mov [rdi + 40], r15",
        "mov [rdi + 48], rsp",
        "mov qword ptr [rdi + 56], 0",
        "stmxcsr [rdi + 56]",
        "fnstcw [rdi + 60]",
        "sub rsp, 8",
        "mov rdi, rdx",
        "call rsi",
        "add rsp, 8",
        "ret",
    )
}

/// Returns `value` from the call of [`call_noting_registers`] that noted `registers`.
///
/// # Safety
/// The stack above the recorded stack pointer is unchanged.
#[cfg(test)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn return_to(registers: *const u64, value: u64) -> ! {
    naked_asm!(
        "mov rbx, [rdi]",
        "mov rbp, [rdi + 8]",
        "mov r12, [rdi + 16]",
        "mov r13, [rdi + 24]",
        "mov r14, [rdi + 32]",
        "mov r15, [rdi + 40]",
        "ldmxcsr [rdi + 56]",
        "fldcw [rdi + 60]",
        "mov rsp, [rdi + 48]",
        "mov rax, rsi",
        "ret",
    )
}

/// Where a handler returns to. Debuggers and unwinders know these nine bytes.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn return_from_handler() {
    naked_asm!(".byte 0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00", "syscall")
}

/// Bases of FS and GS of the calling thread.
pub(crate) fn segment_bases() -> (u64, u64) {
    const ARCH_GET_FS: usize = 0x1003;
    const ARCH_GET_GS: usize = 0x1004;
    let mut bases = [0u64; 2];
    for (base, code) in bases.iter_mut().zip([ARCH_GET_FS, ARCH_GET_GS]) {
        // SAFETY: the kernel writes one word.
        unsafe { syscall(libc::SYS_arch_prctl, [code, std::ptr::from_mut(base) as usize, 0, 0, 0, 0]) };
    }
    (bases[0], bases[1])
}

/// The registers of a thread that a signal has stopped, in its signal frame.
#[derive(Clone, Copy)]
pub(crate) struct Frame(*mut libc::ucontext_t);

impl Frame {
    /// The frame whose context a handler was given.
    ///
    /// # Safety
    /// The context must stay in place for as long as this is used, and no one else may write to it.
    pub(crate) unsafe fn of(context: *mut c_void) -> Frame {
        Frame(context.cast())
    }

    fn register(self, index: i32) -> *mut i64 {
        // SAFETY: the caller of `of` answers for the context; the index is one of libc's.
        unsafe { (&raw mut (*self.0).uc_mcontext.gregs).cast::<i64>().add(index as usize) }
    }

    /// If the thread was interrupted in the call `number`, which `/proc/TID/syscall` showed with stack pointer and
    /// program counter, and would return `EINTR` from it, lets it make the call again. Returns whether it did.
    pub(crate) fn rewind(self, call: Call) -> bool {
        let is_it = self.is_interrupted(call);
        if is_it {
            // SAFETY: registers of a frame that is in place.
            unsafe {
                *self.register(libc::REG_RIP) = call.pc.wrapping_sub(CALL_BYTES).cast_signed();
                *self.register(libc::REG_RAX) = call.number;
            }
        }
        is_it
    }
}

impl Frame {
    /// Whether the thread would return `EINTR` from `call`.
    pub(crate) fn is_interrupted(self, call: Call) -> bool {
        // SAFETY: registers of a frame that is in place.
        unsafe {
            *self.register(libc::REG_RAX) == -i64::from(libc::EINTR)
                && (*self.register(libc::REG_RIP)).cast_unsigned() == call.pc
                && (*self.register(libc::REG_RSP)).cast_unsigned() == call.sp
        }
    }

    /// If the thread is about to make `call` again, lets it return `EINTR` from it instead. Whether it was so.
    pub(crate) fn interrupt(self, call: Call) -> bool {
        // SAFETY: registers of a frame that is in place.
        unsafe {
            let (pc, result) = (self.register(libc::REG_RIP), self.register(libc::REG_RAX));
            let is_again = (*pc).cast_unsigned() == call.pc.wrapping_sub(CALL_BYTES)
                && (*self.register(libc::REG_RSP)).cast_unsigned() == call.sp
                && *result == call.number;
            if is_again {
                *pc = call.pc.cast_signed();
                *result = -i64::from(libc::EINTR);
            }
            is_again
        }
    }

    /// An argument of the system call that the thread is in, or is about to make.
    pub(crate) fn argument(self, index: usize) -> u64 {
        // SAFETY: a register of a frame that is in place.
        ARGUMENTS.get(index).map_or(0, |register| unsafe { (*self.register(*register)).cast_unsigned() })
    }

    /// Changes it.
    pub(crate) fn set_argument(self, index: usize, value: u64) {
        if let Some(register) = ARGUMENTS.get(index) {
            // SAFETY: a register of a frame that is in place.
            unsafe { *self.register(*register) = value.cast_signed() };
        }
    }

    /// The call that the thread would return `EINTR` from, if its code shows which one it is.
    pub(crate) fn interrupted_call(self) -> Option<Call> {
        // SAFETY: registers of a frame that is in place.
        let (pc, sp, result) = unsafe {
            let of = |index| (*self.register(index)).cast_unsigned();
            (of(libc::REG_RIP), of(libc::REG_RSP), *self.register(libc::REG_RAX))
        };
        if result != -i64::from(libc::EINTR) {
            return None;
        }
        let at_the_call = peek(pc.wrapping_sub(LOAD_BYTES)).ok().and_then(loaded);
        let number = at_the_call.or_else(|| syscall_wrapper::number(self, pc, sp))?;
        Some(Call { number, sp, pc })
    }

    /// Whether the thread has just got `id` from the kernel, or is about to send a signal to a process or thread that
    /// it has in a register already. Read from the code where it is; a false positive does no harm.
    pub(crate) fn carries_id(self, ids: [u32; 2]) -> bool {
        // SAFETY: registers of a frame that is in place.
        let (pc, sp, result) = unsafe {
            let of = |index| (*self.register(index)).cast_unsigned();
            (of(libc::REG_RIP), of(libc::REG_RSP), of(libc::REG_RAX))
        };
        if ids.iter().any(|id| u64::from(*id) == result)
            && peek::<[u8; 2]>(pc.wrapping_sub(CALL_BYTES)) == Ok(CALL)
        {
            return true;
        }
        match next_call(pc, Some(result)) {
            Some(libc::SYS_getpid) => {
                // A function that asks for the process's id alone: its caller matters.
                let caller = peek::<u64>(sp).ok();
                caller.and_then(|caller| next_call(caller, None)).is_some_and(|next| SENDING.contains(&next))
            }
            next => next.is_some_and(|next| SENDING.contains(&next)),
        }
    }

    /// Signals that are blocked once the frame is taken down.
    pub(crate) fn mask(self) -> u64 {
        // SAFETY: the kernel's mask is the first word of the C library's, in a frame that is in place.
        unsafe { (&raw const (*self.0).uc_sigmask).cast::<u64>().read() }
    }
}

/// The instruction that makes a system call.
const CALL: [u8; 2] = [0x0f, 0x05];

/// Calls that name a process or a thread to send it a signal.
const SENDING: [i64; 5] = [
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_kill,
    libc::SYS_rt_sigqueueinfo,
    libc::SYS_rt_tgsigqueueinfo,
];

/// The first call that the code at `pc` comes to, if it is near and its number is loaded before it. `number` is loaded
/// already.
fn next_call(pc: u64, number: Option<u64>) -> Option<i64> {
    let code = peek::<[u64; 8]>(pc).ok()?.map(u64::to_le_bytes);
    let code = code.as_flattened();
    let at = code.windows(CALL.len()).position(|bytes| bytes == CALL)?;
    let loads = code.get(..at)?.windows(1 + size_of::<u32>());
    let load = loads.rev().find_map(|bytes| {
        let [MOVE_TO_EAX, number @ ..] = bytes else { return None };
        Some(i64::from(u32::from_le_bytes(number.try_into().ok()?)))
    });
    load.or(number.map(u64::cast_signed))
}

/// Where a system call takes its arguments from.
const ARGUMENTS: [i32; 6] =
    [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9];

/// How a call gets its time-out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Limit {
    /// Milliseconds, as an `int`; negative: for ever.
    Milliseconds,
    /// Address of a `timespec`; 0: for ever.
    Time,
}

/// A call that waits for a time from its beginning on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Timed {
    pub(crate) number: i64,
    /// The argument with the time limit.
    pub(crate) argument: usize,
    pub(crate) limit: Limit,
}

const fn timed(number: i64, argument: usize, limit: Limit) -> Timed {
    Timed { number, argument, limit }
}

/// All of them that a signal ends with `EINTR`. Not here: calls that write the rest of the time back to their
/// argument, as `select(2)` and `ppoll(2)` do. Nor calls that know the end of their time.
pub(crate) const TIMED: [Timed; 9] = [
    timed(libc::SYS_poll, 2, Limit::Milliseconds),
    timed(libc::SYS_epoll_wait, 3, Limit::Milliseconds),
    timed(libc::SYS_epoll_pwait, 3, Limit::Milliseconds),
    timed(libc::SYS_epoll_pwait2, 3, Limit::Time),
    timed(libc::SYS_nanosleep, 0, Limit::Time),
    timed(libc::SYS_clock_nanosleep, 2, Limit::Time),
    timed(libc::SYS_futex, 3, Limit::Time),
    timed(libc::SYS_rt_sigtimedwait, 2, Limit::Time),
    timed(libc::SYS_semtimedop, 3, Limit::Time),
];

/// Calls that the kernel goes on with by itself (`restart_syscall(2)`), once a stopped process continues.
const RESUMED: [i64; 4] = [libc::SYS_poll, libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_futex];

/// The instruction that loads the number of a call; four bytes follow.
const MOVE_TO_EAX: u8 = 0xb8;

/// Bytes that load the number of a call, right before the instruction that makes it.
const LOAD_BYTES: u64 = 5 + CALL_BYTES;

/// Which call it is that the kernel goes on with, by the code that has made it. `syscall(2)` has the number from its caller: of
/// a call that was made so, nothing is known.
pub(crate) fn resumed(pc: u64) -> Option<i64> {
    loaded(peek(pc.wrapping_sub(LOAD_BYTES)).ok()?).filter(|number| RESUMED.contains(number))
}

/// The number that such bytes load, if a call follows them.
fn loaded(code: [u8; 7]) -> Option<i64> {
    let [MOVE_TO_EAX, a, b, c, d, call @ ..] = code else { return None };
    (call == CALL).then_some(i64::from(i32::from_le_bytes([a, b, c, d])))
}

/// A system call in which a thread waits, as `/proc/TID/syscall` has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Call {
    pub(crate) number: i64,
    pub(crate) sp: u64,
    pub(crate) pc: u64,
}

/// Leaf, sub-leaf, register (eax, ebx, ecx, edx) and the bits of CPUID by which libraries choose code. Left out are
/// bits for kernels (virtual machines, interrupts, page tables, monitoring, power, speculation), those that the kernel
/// itself sets, and features that no saved program uses (protection keys, shadow stacks): hypervisors hide them at
/// their own choice.
const FEATURES: [(u32, u32, usize, u32); 12] = [
    (1, 0, 2, without(&[2, 3, 4, 5, 6, 7, 8, 10, 14, 15, 17, 18, 21, 24, 31])),
    (1, 0, 3, without(&[1, 2, 3, 6, 7, 9, 12, 13, 14, 16, 17, 18, 21, 22, 27, 28, 29, 31])),
    (7, 0, 1, without(&[1, 6, 7, 10, 12, 13, 15, 20, 25])),
    (7, 0, 2, without(&[2, 3, 4, 7, 13, 16, 24, 29, 30, 31])),
    (7, 0, 3, without(&[9, 10, 13, 15, 18, 19, 20, 26, 27, 28, 29, 30, 31])),
    (7, 1, 0, without(&[17, 18, 19, 22, 26])),
    (7, 1, 3, u32::MAX),
    // xsaveopt, xsavec, xgetbv with ecx 1.
    (0xd, 1, 0, 0b111),
    (0x8000_0001, 0, 2, without(&[1, 2, 3, 4, 9, 10, 12, 13, 22, 23, 24, 26, 27, 28])),
    // mmxext, rdtscp, long mode, 3dnowext, 3dnow: the others repeat leaf 1, on some processors.
    (0x8000_0001, 0, 3, !without(&[22, 27, 29, 30, 31])),
    // A clock that ticks at one rate.
    (0x8000_0007, 0, 3, 1 << 8),
    // clzero, rdpru.
    (0x8000_0008, 0, 1, 1 << 0 | 1 << 4),
];

/// All bits but these.
const fn without(bits: &[u32]) -> u32 {
    let (mut mask, mut at) = (u32::MAX, 0);
    while at < bits.len() {
        mask &= !(1 << bits[at]);
        at += 1;
    }
    mask
}

/// The words of [`FEATURES`].
pub(crate) fn features() -> Vec<u32> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    let word = |(leaf, sub, register, mask): &(u32, u32, usize, u32)| {
        if *leaf > __cpuid(leaf & 0x8000_0000).eax {
            return 0;
        }
        let words = __cpuid_count(*leaf, *sub);
        [words.eax, words.ebx, words.ecx, words.edx][*register] & mask
    };
    FEATURES.iter().map(word).collect()
}

/// Components of the vector state that the kernel saves (XCR0), and the bytes of that state.
pub(crate) fn vector_state() -> (u64, u32) {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const OSXSAVE: u32 = 1 << 27;
    if __cpuid(1).ecx & OSXSAVE == 0 {
        return (0, 512);
    }
    let (low, high): (u32, u32);
    // SAFETY: xgetbv of register 0 is allowed where OSXSAVE is set.
    unsafe { asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack)) };
    (u64::from(high) << 32 | u64::from(low), __cpuid_count(0xd, 0).ebx)
}

/// Whether the calling thread runs with a shadow stack.
pub(crate) fn has_shadow_stack() -> bool {
    const ARCH_SHSTK_STATUS: usize = 0x5005;
    let mut features = 0u64;
    // SAFETY: the kernel writes one word.
    let answer = unsafe {
        syscall(
            libc::SYS_arch_prctl,
            [ARCH_SHSTK_STATUS, std::ptr::from_mut(&mut features) as usize, 0, 0, 0, 0],
        )
    };
    answer == 0 && features & 1 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn counts(argument: *mut c_void) -> u64 {
        // SAFETY: the test gives a counter.
        let count = unsafe { &mut *argument.cast::<u64>() };
        *count += 1;
        *count
    }

    #[test]
    fn a_call_returns_again_to_the_registers_that_were_noted() {
        let mut registers = [0u64; REGISTERS];
        let mut count = 0u64;
        // SAFETY: room for the registers; `counts` does not unwind.
        let value = unsafe {
            call_noting_registers(registers.as_mut_ptr(), counts, std::ptr::from_mut(&mut count).cast())
        };
        // Volatile: this line runs twice, which the compiler does not know.
        // SAFETY: a live local variable.
        let times = unsafe { std::ptr::read_volatile(&raw const count) };
        assert_eq!(times, 1);
        if value == 1 {
            // SAFETY: this frame has not been left.
            unsafe { return_to(registers.as_ptr(), 77) };
        }
        assert_eq!(value, 77);
        assert_eq!(registers[7] as u32 & 0x1f80, 0x1f80, "MXCSR masks exceptions");
    }

    /// Under any hypervisor: an image of a machine that shows them can go to one that hides them.
    #[test]
    fn features_for_kernels_are_not_asked_for() {
        let features = features();
        let has = |word: usize, bit: u32| features[word] >> bit & 1 == 1;
        assert!(has(1, 25) && has(1, 26), "SSE and SSE2 are everywhere");
        for (word, bit, name) in [
            (0, 17, "pcid"),
            (0, 21, "x2apic"),
            (0, 24, "tsc_deadline_timer"),
            (0, 31, "hypervisor"),
            (1, 1, "vme"),
            (2, 7, "smep"),
            (2, 20, "smap"),
            (3, 2, "umip"),
            (3, 16, "la57"),
            (8, 2, "svm"),
            (9, 11, "syscall, which leaf 1 has on some"),
        ] {
            assert!(!has(word, bit), "{name}");
        }
    }

    #[test]
    fn the_next_call_is_read_from_the_code() {
        let mut code = [0x90u8; 96];
        code[3..10].copy_from_slice(&[MOVE_TO_EAX, 0xea, 0, 0, 0, 0x0f, 0x05]);
        let at = |offset: u64| code.as_ptr() as u64 + offset;
        assert_eq!(next_call(at(0), None), Some(libc::SYS_tgkill));
        assert_eq!(next_call(at(3), Some(1)), Some(libc::SYS_tgkill));
        assert_eq!(next_call(at(8), Some(62)), Some(libc::SYS_kill), "the number is loaded already");
        assert_eq!(next_call(at(8), None), None);
        assert_eq!(next_call(at(10), Some(62)), None, "no call is near");
        assert_eq!(next_call(16, Some(62)), None, "there is no code");
    }

    #[test]
    fn a_system_call_returns_the_value_or_the_error() {
        // SAFETY: neither call touches memory.
        let (pid, error) = unsafe {
            (syscall(libc::SYS_getpid, [0; 6]), syscall(libc::SYS_close, [usize::MAX, 0, 0, 0, 0, 0]))
        };
        assert_eq!(pid, std::process::id() as isize);
        assert_eq!(error, -(libc::EBADF as isize));
    }
}
