//! The steps of a thread that is ordered to stop: record, wait, return. No allocation, no lock, no thread-local
//! storage, no panic: it may have interrupted anything.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use super::table::{ENTERED, Noted, PASSED, RseqAnswer, STOPPED, Slot, TABLE, WANTED, let_go, staged};
use super::waits;
use crate::arch::{self, Call, Frame};
use crate::sys::{self, Answer, Errno};

/// Used by the GNU C library inside of `setuid(3)` and its like, which blocks it nowhere else; no program can block it
/// through that library.
pub(super) const SIGNAL: i32 = 33;

/// How often threads check that their stopper lives.
const WATCH_NS: u64 = 1_000_000_000;

/// How often, in one stop. A thread that does nothing else than to signal itself is out of such a place most of the time.
const PASSES_MAX: u32 = 100;

/// `struct sigaction` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelAction {
    pub(crate) handler: usize,
    pub(crate) flags: u64,
    pub(crate) restorer: usize,
    pub(crate) mask: u64,
}

impl KernelAction {
    pub(crate) const DEFAULT: KernelAction = KernelAction { handler: 0, flags: 0, restorer: 0, mask: 0 };
}

const SA_RESTORER: u64 = 0x0400_0000;

/// Sets and reads the disposition of a signal.
///
/// # Safety
/// `new` is a handler that may run at any time.
pub(crate) unsafe fn action(signal: i32, new: Option<&KernelAction>) -> Answer<KernelAction> {
    let mut old = KernelAction::DEFAULT;
    let new = new.map_or(0, |new| std::ptr::from_ref(new) as usize);
    // SAFETY: the kernel reads one and writes the other; the caller answers for the handler.
    unsafe {
        sys::call(libc::SYS_rt_sigaction, [signal as usize, new, &raw mut old as usize, 8, 0, 0])?;
    }
    Ok(old)
}

/// Puts the handler in place, in front of the present one. It stays: a signal that comes late must find it.
pub(crate) fn install() -> Answer<()> {
    let ours = KernelAction {
        handler: on_signal as *const () as usize,
        // Calls that the kernel restarts by itself are no work for us.
        flags: (libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK) as u64 | SA_RESTORER,
        restorer: arch::return_from_handler as *const () as usize,
        mask: u64::MAX,
    };
    // SAFETY: nothing is changed.
    let present = unsafe { action(SIGNAL, None) }?;
    if present.handler == ours.handler {
        return Ok(());
    }
    TABLE.earlier[0].store(present.handler as u64, Ordering::Relaxed);
    TABLE.earlier[1].store(present.flags, Ordering::Relaxed);
    find_rseq();
    // SAFETY: `on_signal` may interrupt anything.
    unsafe { action(SIGNAL, Some(&ours)) }.map(drop)
}

/// Looks where the C library keeps its registrations of `rseq(2)`.
fn find_rseq() {
    let symbol = |name: &std::ffi::CStr| {
        // SAFETY: a name that ends with a zero byte.
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
    };
    let (offset, size) = (symbol(c"__rseq_offset"), symbol(c"__rseq_size"));
    if offset.is_null() || size.is_null() {
        return;
    }
    // SAFETY: the C library documents the two as `ptrdiff_t` and `unsigned int`.
    let (offset, size) = unsafe { (*offset.cast::<isize>(), *size.cast::<u32>()) };
    if size > 0 {
        TABLE.rseq_offset.store(offset as i64 as u64, Ordering::Relaxed);
        TABLE.rseq_bytes.store(size.max(RSEQ_BYTES_MIN), Ordering::Relaxed);
    }
}

/// Length of the first `struct rseq`; no kernel takes less.
const RSEQ_BYTES_MIN: u32 = 32;
/// The signature that the C library puts before its abort handlers on x86.
pub(crate) const RSEQ_SIGNATURE: u32 = 0x5305_3053;

/// Asks the kernel whether the calling thread's `rseq` is where the C library has it: registering it once
/// more is refused with `EBUSY` if it is the same, and with `EINVAL` if it is another.
fn rseq(tls_base: u64) -> RseqAnswer {
    let known_bytes = TABLE.rseq_bytes.load(Ordering::Relaxed);
    let address = tls_base.wrapping_add(TABLE.rseq_offset.load(Ordering::Relaxed));
    if known_bytes == 0 {
        return rseq_unknown();
    }
    let register = |bytes: u32, flags: usize| {
        // SAFETY: the memory belongs to the C library for just this; the registration does not outlive this function.
        unsafe {
            sys::call(
                libc::SYS_rseq,
                [address as usize, bytes as usize, flags, RSEQ_SIGNATURE as usize, 0, 0],
            )
        }
    };
    for bytes in [RSEQ_BYTES_MIN, known_bytes.next_multiple_of(RSEQ_BYTES_MIN)] {
        match register(bytes, 0) {
            Err(Errno(libc::EBUSY)) => return RseqAnswer::Library { address, bytes },
            Err(Errno(libc::EINVAL | libc::EPERM)) => {}
            Err(_) => return RseqAnswer::Nothing,
            Ok(_) => {
                const UNREGISTER: usize = 1;
                let _ = register(bytes, UNREGISTER);
                return RseqAnswer::Nothing;
            }
        }
    }
    RseqAnswer::Foreign
}

/// The same where the C library has none: another library may have registered one, at an unknown address.
fn rseq_unknown() -> RseqAnswer {
    #[repr(align(32))]
    struct Area([u8; RSEQ_BYTES_MIN as usize]);
    const UNREGISTER: usize = 1;
    let mut area = Area([0; RSEQ_BYTES_MIN as usize]);
    let address = area.0.as_mut_ptr() as usize;
    let register = |flags: usize| {
        let arguments = [address, RSEQ_BYTES_MIN as usize, flags, RSEQ_SIGNATURE as usize, 0, 0];
        // SAFETY: the area lives longer than the registration.
        unsafe { sys::call(libc::SYS_rseq, arguments) }
    };
    match register(0) {
        Ok(_) => {
            let _ = register(UNREGISTER);
            RseqAnswer::Nothing
        }
        Err(Errno(libc::EINVAL | libc::EPERM | libc::EBUSY)) => RseqAnswer::Foreign,
        Err(_) => RseqAnswer::Nothing,
    }
}

/// The kernel's facts about the calling thread.
pub(super) fn note(frame: u64) -> Noted {
    const PR_GET_TID_ADDRESS: i32 = 40;
    let (tls_base, gs_base) = arch::segment_bases();
    let mut noted = Noted { frame, tls_base, gs_base, ..Noted::NOTHING };
    let (mut head, mut bytes, mut death) = (0u64, 0u64, 0i32);
    // SAFETY: each call writes to a variable of its type, or to nothing.
    unsafe {
        let _ = sys::call(
            libc::SYS_get_robust_list,
            [0, &raw mut head as usize, &raw mut bytes as usize, 0, 0, 0],
        );
        let _ = sys::prctl(PR_GET_TID_ADDRESS, &raw mut noted.tid_address as usize);
        let _ = sys::prctl(libc::PR_GET_NAME, noted.name.as_mut_ptr() as usize);
        let _ = sys::prctl(libc::PR_GET_PDEATHSIG, &raw mut death as usize);
        noted.timer_slack_ns = sys::prctl(libc::PR_GET_TIMERSLACK, 0).unwrap_or(0) as u64;
        let processors = (size_of_val(&noted.processors), &raw mut noted.processors as usize);
        let _ = sys::call(libc::SYS_sched_getaffinity, [0, processors.0, processors.1, 0, 0, 0]);
        let scheduling = (&raw mut noted.scheduling as usize, size_of_val(&noted.scheduling));
        let _ = sys::call(libc::SYS_sched_getattr, [0, scheduling.0, scheduling.1, 0, 0, 0]);
        let _ = sys::call(libc::SYS_rt_sigpending, [&raw mut noted.pending as usize, 8, 0, 0, 0, 0]);
    }
    noted.robust_list = (head, bytes);
    noted.parent_death_signal = u8::try_from(death).unwrap_or(0);
    noted.rseq = rseq(tls_base);
    noted
}

/// The handler. A request to stop carries the number of the stop, and below it the thread's slot.
extern "C" fn on_signal(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel gives a whole siginfo; the value is read only where the code says that it is one.
    let request = unsafe {
        ((*info).si_code == libc::SI_QUEUE && (*info).si_pid() as u32 == sys::process_id())
            .then(|| (*info).si_value().sival_ptr as u64)
    };
    let Some(request) = request else { return pass_on(signal, info, context) };
    let (number, index) = ((request >> 32) as u32, (request & 0xffff_ffff) as usize);
    let Some(slot) = TABLE.slots.get(index) else { return };
    let is_wanted = slot
        .stage
        .compare_exchange(
            staged(number, WANTED),
            staged(number, ENTERED),
            Ordering::AcqRel,
            Ordering::Acquire,
        )
        .is_ok();
    if !is_wanted {
        return;
    }
    let call = slot.call();
    // SAFETY: the kernel's frame, in which this thread returns.
    let frame = unsafe { Frame::of(context) };
    let was_interrupted = call.is_some_and(|call| frame.is_interrupted(call));
    if !was_interrupted && passes(slot, frame) {
        slot.stage.store(staged(number, PASSED), Ordering::Release);
        TABLE.arrived.fetch_add(1, Ordering::AcqRel);
        sys::futex_wake(&TABLE.arrived);
        return;
    }
    slot.note(note(context as u64));
    slot.stage.store(staged(number, STOPPED), Ordering::Release);
    TABLE.arrived.fetch_add(1, Ordering::AcqRel);
    sys::futex_wake(&TABLE.arrived);
    wait(number);
    if let Some(call) = call {
        settle(frame, call, was_interrupted);
    }
}

/// Whether the thread goes on and is stopped a moment later: an id that it has in its registers alone, such as `raise(3)` on its way to
/// the kernel has, would be another one's in a restored process.
fn passes(slot: &Slot, frame: Frame) -> bool {
    let ids = [slot.tid.load(Ordering::Relaxed), sys::process_id()];
    slot.passes.load(Ordering::Relaxed) < PASSES_MAX && frame.carries_id(ids) && {
        slot.passes.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// A signal that came meanwhile, and that the program handles, would have ended the call: its handler runs as soon as
/// this one returns, and a program may wait for the call to end because of it, as with `pause(2)`.
pub(super) fn settle(frame: Frame, call: Call, was_interrupted: bool) {
    let mut pending = 0u64;
    // SAFETY: eight bytes, as the kernel's set has.
    let _ = unsafe { sys::call(libc::SYS_rt_sigpending, [&raw mut pending as usize, 8, 0, 0, 0, 0]) };
    let mut coming = pending & !frame.mask();
    while coming != 0 {
        let signal = coming.trailing_zeros().cast_signed() + 1;
        coming &= coming - 1;
        // SAFETY: nothing is changed.
        let Ok(action) = (unsafe { action(signal, None) }) else { continue };
        let is_handled = action.handler > libc::SIG_IGN && signal != SIGNAL;
        // Calls that the kernel restarts after handlers with SA_RESTART do not return EINTR for those.
        let ends_call = was_interrupted || action.flags & libc::SA_RESTART as u64 == 0;
        if is_handled && ends_call && frame.interrupt(call) {
            waits::give_back(frame, call);
        }
    }
}

/// Waits until the stop is over, or until the stopper is seen to be dead.
fn wait(number: u32) {
    let (mut seen, mut silent_s) = (0, 0);
    while TABLE.held.load(Ordering::Acquire) == number {
        let waited = sys::futex_wait(&TABLE.held, number, WATCH_NS);
        if waited != Err(Errno(libc::ETIMEDOUT)) {
            continue;
        }
        let beat = TABLE.heartbeat.load(Ordering::Relaxed);
        silent_s = if beat == seen { silent_s + 1 } else { 0 };
        seen = beat;
        let agent = TABLE.agent.load(Ordering::Relaxed) as usize;
        // SAFETY: signal 0 only asks.
        let answer = unsafe { sys::call(libc::SYS_tgkill, [sys::process_id() as usize, agent, 0, 0, 0, 0]) };
        if answer == Err(Errno(libc::ESRCH)) || silent_s > TABLE.patience_s.load(Ordering::Relaxed) {
            let_go(number);
        }
    }
}

/// Not ours: calls the handler that was there before.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    let handler = TABLE.earlier[0].load(Ordering::Relaxed) as usize;
    // Neither the default nor "ignored": the default would end the process for a stray signal.
    if handler > libc::SIG_IGN {
        // SAFETY: the program, or its C library, has installed it for this signal; a handler of one argument ignores the rest.
        let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut c_void) =
            unsafe { std::mem::transmute(handler) };
        handler(signal, info, context);
    }
}
