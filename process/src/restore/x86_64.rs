//! The machine code of a restore: the loop that runs a table of system calls, the creation of a thread, the last steps
//! of a thread before it goes on, and jumps between two kernels' vdso.

use std::arch::{asm, global_asm};

use super::ids::CloneArguments;
use super::table::{Program, Step, Table, ThreadEntry};
use crate::arch::PAGE_BYTES;

/// The first address that no program can use.
pub(super) const ADDRESSES_END: u64 = (1 << 47) - PAGE_BYTES;

// The loop. It is copied to where it runs, so it refers to nothing outside of itself. It uses no stack: while it runs, none of
// the process's memory but the table exists. Offsets are those of `Program` and `Step` (see the assertions below).
global_asm!(
    ".pushsection .rodata.stillwire_loop,\"a\",@progbits",
    ".hidden stillwire_loop",
    ".hidden stillwire_loop_end",
    ".globl stillwire_loop",
    "stillwire_loop:",
    "mov r14, rdi",
    "mov r12, [r14]",
    "mov r13, [r14 + 8]",
    "2:",
    "cmp r12, r13",
    "jae 5f",
    "mov rax, [r12]",
    "mov rdi, [r12 + 8]",
    "mov rsi, [r12 + 16]",
    "mov rdx, [r12 + 24]",
    "mov r10, [r12 + 32]",
    "mov r8, [r12 + 40]",
    "mov r9, [r12 + 48]",
    "syscall",
    "cmp rax, [r12 + 56]",
    "jne 6f",
    "add r12, {step_bytes}",
    "jmp 2b",
    // All done: on to the restored memory's code.
    "5:",
    "mov rsp, [r14 + 16]",
    "mov rdi, [r14 + 24]",
    "xor ebp, ebp",
    "jmp qword ptr [r14 + 32]",
    // The sentence, then the error's name from a list of cells with a length each, then the end.
    "6:",
    "mov r15, rax",
    "neg r15",
    "mov edi, [r14 + 48]",
    "mov rsi, [r12 + 64]",
    "mov rdx, [r12 + 72]",
    "mov eax, 1",
    "syscall",
    "cmp r15, {errors}",
    "jb 7f",
    "xor r15d, r15d",
    "7:",
    "shl r15, {cell_shift}",
    "add r15, [r14 + 40]",
    "mov edi, [r14 + 48]",
    "lea rsi, [r15 + 1]",
    "movzx edx, byte ptr [r15]",
    "mov eax, 1",
    "syscall",
    "mov edi, [r14 + 52]",
    "mov eax, 231",
    "syscall",
    "ud2",
    ".globl stillwire_loop_end",
    "stillwire_loop_end:",
    ".popsection",
    step_bytes = const size_of::<Step>(),
    errors = const super::table::ERRORS,
    cell_shift = const super::table::ERROR_CELL_BYTES.trailing_zeros(),
);

const _: () = {
    assert!(std::mem::offset_of!(Step, want) == 56 && std::mem::offset_of!(Step, text) == 64);
    assert!(std::mem::offset_of!(Step, text_bytes) == 72);
    assert!(std::mem::offset_of!(Program, stack) == 16 && std::mem::offset_of!(Program, argument) == 24);
    assert!(std::mem::offset_of!(Program, entry) == 32 && std::mem::offset_of!(Program, errors) == 40);
    assert!(std::mem::offset_of!(Program, reports) == 48 && std::mem::offset_of!(Program, exit_code) == 52);
};

unsafe extern "C" {
    static stillwire_loop: u8;
    static stillwire_loop_end: u8;
}

/// The loop's bytes.
pub(super) fn loop_code() -> &'static [u8] {
    let (start, end) = (&raw const stillwire_loop, &raw const stillwire_loop_end);
    // SAFETY: both symbols bound one piece of this library's read-only data, which lives as long as the library.
    unsafe { std::slice::from_raw_parts(start, end as usize - start as usize) }
}

/// Runs the loop that was copied to `code`. Does not come back.
///
/// # Safety
///
/// `code` holds [`loop_code`] in executable memory; `program` and all that it refers to is whole, and none of it is touched
/// by its own steps before they are done with.
pub(super) unsafe fn run_loop(code: u64, program: *const Program) -> ! {
    // SAFETY: the caller's promise; the loop never returns.
    unsafe { asm!("jmp {code}", code = in(reg) code, in("rdi") program, options(noreturn)) }
}

// Creation of a thread, and its last steps. Every signal is blocked meanwhile.
//
// `stillwire_clone(flags, stack, parent_tid, child_tid, tls, thread, table)` is clone(2) whose child calls `start(thread, table)`.
//
// `stillwire_clone_under_id(arguments, bytes, thread, table)` is the same by clone3(2), which asks for an id.
//
// `stillwire_leave_by_signal_return(table, frame)` and `stillwire_leave_to_agent(table, registers, mask, value)` wait
// for all threads of the process and continue. The last thread closes the descriptor for reports and unmaps the table
// and the stacks on which all came here; so from the count on nothing but registers, the thread's own restored stack
// and one word of this library is touched.
global_asm!(
    ".pushsection .text.stillwire_resume,\"ax\",@progbits",
    ".hidden stillwire_clone",
    ".hidden stillwire_leave_by_signal_return",
    ".hidden stillwire_leave_to_agent",
    ".globl stillwire_clone",
    "stillwire_clone:",
    "mov r10, rcx",
    "mov rax, [rsp + 8]",
    "mov rcx, r9",
    // The child finds its arguments on its stack.
    "mov [rsi - 16], rcx",
    "mov [rsi - 8], rax",
    "sub rsi, 16",
    "mov eax, 56",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    "2:",
    "xor ebp, ebp",
    "pop rdi",
    "pop rsi",
    "call {start}",
    "ud2",
    ".hidden stillwire_clone_under_id",
    ".globl stillwire_clone_under_id",
    "stillwire_clone_under_id:",
    // The call leaves all registers of the child as they are but rax, rcx and r11.
    "mov r8, rcx",
    "mov eax, 435",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "ret",
    "2:",
    "xor ebp, ebp",
    "mov rdi, rdx",
    "mov rsi, r8",
    "call {start}",
    "ud2",
    ".macro stillwire_wait_for_all",
    "lea r8, [rip + {released}]",
    "lock dec dword ptr [rdi + {waiting}]",
    "jnz 3f",
    "mov rsi, [rdi + {scaffold_bytes}]",
    "mov r9, [rdi + {scaffold}]",
    "mov edi, [rdi + {reports}]",
    "mov eax, 3",
    "syscall",
    "mov rdi, r9",
    "mov eax, 11",
    "syscall",
    "mov dword ptr [r8], 1",
    "mov rdi, r8",
    "mov esi, 129",
    "mov edx, 0x7fffffff",
    "mov eax, 202",
    "syscall",
    "jmp 4f",
    "3:",
    "cmp dword ptr [r8], 0",
    "jne 4f",
    "mov rdi, r8",
    "mov esi, 128",
    "xor edx, edx",
    "xor r10d, r10d",
    "mov eax, 202",
    "syscall",
    "jmp 3b",
    "4:",
    ".endm",
    ".globl stillwire_leave_by_signal_return",
    "stillwire_leave_by_signal_return:",
    // A context is aligned to 16 bytes, and the records below it are a multiple of that.
    "lea rsp, [rsi - {note_bytes}]",
    "stillwire_wait_for_all",
    "lea rdi, [rsp + {note_bytes}]",
    "call {settle}",
    "add rsp, {note_bytes}",
    "mov eax, 15",
    "syscall",
    "ud2",
    ".globl stillwire_leave_to_agent",
    "stillwire_leave_to_agent:",
    "mov rbx, [rsi]",
    "mov rbp, [rsi + 8]",
    "mov r12, [rsi + 16]",
    "mov r13, [rsi + 24]",
    "mov r14, [rsi + 32]",
    "mov r15, [rsi + 40]",
    "mov rsp, [rsi + 48]",
    "ldmxcsr [rsi + 56]",
    "fldcw [rsi + 60]",
    "mov [rsp - 8], rdx",
    "mov [rsp - 16], rcx",
    "stillwire_wait_for_all",
    "mov edi, 2",
    "lea rsi, [rsp - 8]",
    "xor edx, edx",
    "mov r10d, 8",
    "mov eax, 14",
    "syscall",
    "mov rax, [rsp - 16]",
    "ret",
    ".popsection",
    start = sym super::resume::start,
    settle = sym crate::stop::settle_restored,
    note_bytes = const crate::stop::NOTE_BYTES,
    released = sym super::resume::RELEASED,
    waiting = const std::mem::offset_of!(Table, waiting),
    scaffold = const std::mem::offset_of!(Table, scaffold),
    scaffold_bytes = const std::mem::offset_of!(Table, scaffold_bytes),
    reports = const std::mem::offset_of!(Table, reports),
);

unsafe extern "C" {
    pub(super) fn stillwire_clone(
        flags: u64,
        stack: u64,
        parent_tid: *mut u32,
        child_tid: u64,
        tls: u64,
        thread: *const ThreadEntry,
        table: *const Table,
    ) -> i64;
    pub(super) fn stillwire_clone_under_id(
        arguments: *const CloneArguments,
        bytes: usize,
        thread: *const ThreadEntry,
        table: *const Table,
    ) -> i64;
    pub(super) fn stillwire_leave_by_signal_return(table: *const Table, frame: u64) -> !;
    pub(super) fn stillwire_leave_to_agent(
        table: *const Table,
        registers: *const u64,
        mask: u64,
        value: u64,
    ) -> !;
}

/// General registers of a thread that goes on by returning from a signal, without stack pointer and program counter; and
/// these two.
///
/// # Safety
///
/// `frame` is the address of the signal's context, which nothing else uses for as long as the registers live.
pub(super) unsafe fn registers_of<'a>(frame: u64) -> (&'a mut [u64], u64, u64) {
    let context = frame as *mut libc::ucontext_t;
    // SAFETY: the caller's promise.
    unsafe {
        let registers = &raw mut (*context).uc_mcontext.gregs;
        let stack = (*registers)[libc::REG_RSP as usize].cast_unsigned();
        // All general registers lie before the stack pointer.
        let at = (*registers)[libc::REG_RIP as usize].cast_unsigned();
        (std::slice::from_raw_parts_mut(registers.cast::<u64>(), libc::REG_RSP as usize), stack, at)
    }
}

/// `arch_prctl(2)`: `ARCH_SET_GS`, `ARCH_SET_FS`, `ARCH_MAP_VDSO_64`.
pub(super) const SET_GS: u64 = 0x1001;
pub(super) const SET_FS: u64 = 0x1002;
pub(super) const MAP_VDSO: u64 = 0x2003;

/// A jump to `address` that changes no register which carries an argument.
pub(super) fn jump_to(address: u64) -> [u8; 13] {
    // movabs r11, address; jmp r11
    let mut code = [0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0, 0x41, 0xff, 0xe3];
    code[2..10].copy_from_slice(&address.to_le_bytes());
    code
}

/// Code in place of a function of a vdso that the kernel lacks: a system call, or one that returns `ENOSYS`.
pub(super) fn call_of(name: &str) -> Option<[u8; 8]> {
    let number: libc::c_long = match name {
        // Nothing that is saved has an enclave: the device is refused, and so is its memory. mov eax, -ENOSYS; ret; and twice nothing
        "sgx_enter_enclave" => return Some([0xb8, 0xda, 0xff, 0xff, 0xff, 0xc3, 0x90, 0x90]),
        "clock_gettime" => libc::SYS_clock_gettime,
        "clock_getres" => libc::SYS_clock_getres,
        "gettimeofday" => libc::SYS_gettimeofday,
        "time" => libc::SYS_time,
        "getcpu" => libc::SYS_getcpu,
        "getrandom" => libc::SYS_getrandom,
        _ => return None,
    };
    // mov eax, number; syscall; ret
    let mut code = [0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3];
    code[1..5].copy_from_slice(&u32::try_from(number).ok()?.to_le_bytes());
    Some(code)
}

/// Names of CPUID bits that programs choose code by: (word of the machine's features, bit, name as in /proc/cpuinfo).
const FEATURES: [(usize, u32, &str); 49] = [
    (0, 0, "pni"),
    (0, 1, "pclmulqdq"),
    (0, 9, "ssse3"),
    (0, 12, "fma"),
    (0, 13, "cx16"),
    (0, 19, "sse4_1"),
    (0, 20, "sse4_2"),
    (0, 22, "movbe"),
    (0, 23, "popcnt"),
    (0, 25, "aes"),
    (0, 26, "xsave"),
    (0, 28, "avx"),
    (0, 29, "f16c"),
    (0, 30, "rdrand"),
    (2, 0, "fsgsbase"),
    (2, 3, "bmi1"),
    (2, 5, "avx2"),
    (2, 8, "bmi2"),
    (2, 9, "erms"),
    (2, 11, "rtm"),
    (2, 16, "avx512f"),
    (2, 17, "avx512dq"),
    (2, 18, "rdseed"),
    (2, 19, "adx"),
    (2, 21, "avx512ifma"),
    (2, 23, "clflushopt"),
    (2, 24, "clwb"),
    (2, 28, "avx512cd"),
    (2, 29, "sha_ni"),
    (2, 30, "avx512bw"),
    (2, 31, "avx512vl"),
    (3, 1, "avx512vbmi"),
    (3, 6, "avx512_vbmi2"),
    (3, 8, "gfni"),
    (3, 9, "vaes"),
    (3, 10, "vpclmulqdq"),
    (3, 11, "avx512_vnni"),
    (3, 12, "avx512_bitalg"),
    (3, 14, "avx512_vpopcntdq"),
    (3, 22, "rdpid"),
    (4, 4, "fsrm"),
    (5, 5, "avx512_bf16"),
    (7, 1, "xsavec"),
    (8, 6, "sse4a"),
    (8, 7, "misalignsse"),
    (8, 8, "3dnowprefetch"),
    (9, 22, "mmxext"),
    (10, 8, "nonstop_tsc"),
    (11, 0, "clzero"),
];

/// The usual name of a bit of a machine's features.
pub(super) fn feature_name(word: usize, bit: u32) -> String {
    match FEATURES.iter().find(|feature| (feature.0, feature.1) == (word, bit)) {
        Some((_, _, name)) => (*name).to_owned(),
        None => format!("CPUID word {word} bit {bit}"),
    }
}
