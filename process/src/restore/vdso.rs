//! The kernel's code in every process, when an image brings that of another kernel.
//!
//! Libraries have found its functions when the program started, and keep their addresses. So the old bytes stay where they
//! were, as ordinary code, and every function begins with a jump to the new kernel's function of that name.

use super::x86_64::{call_of, jump_to};

/// Dynamic symbols looked at, at most; kernels have about a dozen.
const SYMBOLS_MAX: usize = 1024;

const SYMBOL_BYTES: usize = 24;
const SECTION_BYTES: usize = 64;
/// `SHT_DYNSYM`.
const DYNAMIC_SYMBOLS: u32 = 11;
/// `STT_FUNC`.
const FUNCTION: u8 = 2;

/// Why it cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VdsoError {
    /// Not the ELF file that it should be.
    #[error("the kernel's code in the process (vdso) is no ELF file with dynamic symbols")]
    Unreadable,
    /// A function that neither the new kernel's code nor a system call can stand for.
    #[error("the image's kernel gave programs the function {name}, which this kernel does not have")]
    Missing {
        /// Which one.
        name: String,
    },
    /// A function too short for a jump.
    #[error(
        "the function {name} of the image's kernel has {bytes} bytes, a jump to this kernel's needs {needed}"
    )]
    Short {
        /// Which one.
        name: String,
        /// Its length.
        bytes: usize,
        /// Bytes of a jump.
        needed: usize,
    },
}

/// A function of a vdso.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Function {
    name: String,
    offset: usize,
    bytes: usize,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<usize> {
    Some(usize::from(u16::from_le_bytes(word(bytes, at)?)))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(word(bytes, at)?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<usize> {
    usize::try_from(u64::from_le_bytes(word(bytes, at)?)).ok()
}

/// A section header's (kind, offset, length, linked section).
fn section(image: &[u8], index: usize) -> Option<(u32, usize, usize, usize)> {
    let at = u64_at(image, 40)?.checked_add(index.checked_mul(SECTION_BYTES)?)?;
    let header = image.get(at..at.checked_add(SECTION_BYTES)?)?;
    let linked = usize::try_from(u32_at(header, 40)?).ok()?;
    Some((u32_at(header, 4)?, u64_at(header, 24)?, u64_at(header, 32)?, linked))
}

fn functions_of(image: &[u8]) -> Option<Vec<Function>> {
    if image.get(..4)? != b"\x7fELF" {
        return None;
    }
    let sections = u16_at(image, 60)?;
    let (_, offset, length, linked) =
        (0..sections).filter_map(|index| section(image, index)).find(|found| found.0 == DYNAMIC_SYMBOLS)?;
    let (_, names, names_length, _) = section(image, linked)?;
    let names = image.get(names..names.checked_add(names_length)?)?;
    let symbols = image.get(offset..offset.checked_add(length)?)?;
    let mut functions = Vec::new();
    for symbol in symbols.chunks_exact(SYMBOL_BYTES).take(SYMBOLS_MAX) {
        let is_defined = u16_at(symbol, 6)? != 0;
        if symbol[4] & 15 != FUNCTION || !is_defined {
            continue;
        }
        let name = names.get(usize::try_from(u32_at(symbol, 0)?).ok()?..)?;
        let name = name.split(|byte| *byte == 0).next()?;
        let (offset, bytes) = (u64_at(symbol, 8)?, u64_at(symbol, 16)?);
        image.get(offset..offset.checked_add(bytes)?)?;
        functions.push(Function { name: String::from_utf8(name.to_vec()).ok()?, offset, bytes });
    }
    (!functions.is_empty()).then_some(functions)
}

/// The old kernel's code with jumps to the new kernel's, which begins at `address`; a kernel may have none.
pub(super) fn redirect(old: &[u8], new: Option<&[u8]>, address: u64) -> Result<Vec<u8>, VdsoError> {
    let there = match new {
        Some(new) => functions_of(new).ok_or(VdsoError::Unreadable)?,
        None => Vec::new(),
    };
    let mut patched = old.to_vec();
    for function in functions_of(old).ok_or(VdsoError::Unreadable)? {
        let code = match there.iter().find(|there| there.name == function.name) {
            Some(there) => jump_to(address + there.offset as u64).to_vec(),
            None => match call_of(function.name.trim_start_matches("__vdso_")) {
                Some(code) => code.to_vec(),
                None => return Err(VdsoError::Missing { name: function.name }),
            },
        };
        if code.len() > function.bytes {
            return Err(VdsoError::Short { name: function.name, bytes: function.bytes, needed: code.len() });
        }
        patched[function.offset..function.offset + code.len()].copy_from_slice(&code);
    }
    Ok(patched)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This process's own.
    fn here() -> (u64, Vec<u8>) {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let line = maps.lines().find(|line| line.ends_with("[vdso]")).expect("a vdso");
        let (start, rest) = line.split_once('-').expect("a range");
        let end = rest.split(' ').next().expect("an end");
        let address = |text| u64::from_str_radix(text, 16).expect("a number");
        let (start, end) = (address(start), address(end));
        let bytes = usize::try_from(end - start).expect("short");
        // SAFETY: the kernel keeps these pages mapped and readable for as long as the process lives.
        let image = unsafe { std::slice::from_raw_parts(start as *const u8, bytes) };
        (start, image.to_vec())
    }

    #[test]
    fn the_functions_of_this_kernel_are_found() {
        let functions = functions_of(&here().1).expect("readable");
        for name in ["__vdso_clock_gettime", "__vdso_gettimeofday", "__vdso_time", "__vdso_getcpu"] {
            assert!(functions.iter().any(|function| function.name == name && function.bytes > 0), "{name}");
        }
    }

    #[test]
    fn old_functions_call_the_new_ones() {
        let (start, image) = here();
        let patched = redirect(&image, Some(&image), start).expect("redirected");
        assert_ne!(patched, image);
        let function = functions_of(&image).expect("readable");
        let clock = function.iter().find(|function| function.name == "__vdso_clock_gettime").expect("there");
        let code = mapped(&patched);
        // SAFETY: the copy lies in executable memory, and its function has been replaced by a jump to the kernel's own.
        let read: extern "C" fn(i32, *mut libc::timespec) -> i32 =
            unsafe { std::mem::transmute(code + clock.offset) };
        assert_clock_goes(read);
    }

    #[test]
    fn a_function_that_the_new_kernel_lacks_is_a_system_call() {
        let (start, image) = here();
        let name = b"__vdso_clock_gettime\0";
        let mut other = image.clone();
        let at = other.windows(name.len()).position(|window| window == name).expect("its name");
        other[at + 7] = b'C';
        let patched = redirect(&image, Some(&other), start).expect("redirected");
        let function = functions_of(&image).expect("readable");
        let clock = function.iter().find(|function| function.name == "__vdso_clock_gettime").expect("there");
        let code = mapped(&patched);
        // SAFETY: the copy lies in executable memory, and its function has been replaced by a system call.
        let read: extern "C" fn(i32, *mut libc::timespec) -> i32 =
            unsafe { std::mem::transmute(code + clock.offset) };
        assert_clock_goes(read);

        let mut strange = image.clone();
        strange[at + 7] = b'C';
        let error = redirect(&strange, Some(&image), start).expect_err("nothing can stand for it");
        assert!(error.to_string().contains("Clock_gettime"), "{error}");
    }

    /// Kernels are built with and without it.
    #[test]
    fn a_function_that_nothing_saved_can_use_says_so() {
        let code = mapped(&call_of("sgx_enter_enclave").expect("an answer"));
        // SAFETY: the code loads a number and returns.
        let enter: extern "C" fn() -> i32 = unsafe { std::mem::transmute(code) };
        assert_eq!(enter(), -libc::ENOSYS);
    }

    fn assert_clock_goes(read: extern "C" fn(i32, *mut libc::timespec) -> i32) {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        assert_eq!(read(libc::CLOCK_MONOTONIC, &raw mut time), 0);
        let first = (time.tv_sec, time.tv_nsec);
        assert!(first > (0, 0));
        assert_eq!(read(libc::CLOCK_MONOTONIC, &raw mut time), 0);
        assert!((time.tv_sec, time.tv_nsec) >= first);
    }

    fn mapped(code: &[u8]) -> usize {
        // SAFETY: new memory at an address of the kernel's choice, written before it is made executable.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let at = libc::mmap(std::ptr::null_mut(), code.len(), libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            std::ptr::copy_nonoverlapping(code.as_ptr(), at.cast(), code.len());
            assert_eq!(libc::mprotect(at, code.len(), libc::PROT_READ | libc::PROT_EXEC), 0);
            at as usize
        }
    }

    #[test]
    fn damage_is_refused() {
        let (start, image) = here();
        for length in 0..image.len().min(600) {
            assert!(redirect(&image[..length], Some(&image), start).is_err(), "{length}");
        }
        for at in 0..image.len().min(4096) {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = image.clone();
                damaged[at] = value;
                let _ = redirect(&damaged, Some(&image), start);
            }
        }
    }
}
