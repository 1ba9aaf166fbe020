//! The program that the kernel runs for every frame of the device, and its attachment: frames of an IP address and UDP
//! port that is a rail's, and that fit its chunks, go to the rail's socket of their queue, everything else goes on as
//! if there were no program.

#![expect(clippy::host_endian_bytes, reason = "the program compares what the processor loads")]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use super::Attach;
use crate::error::Errno;

/// `XDP_PASS`: on to the kernel's own stack.
const PASS: i32 = 2;
/// `BPF_FUNC_redirect_map`.
const REDIRECT_MAP: i32 = 51;
/// `BPF_FUNC_xdp_get_buff_len`.
const WHOLE_LENGTH: i32 = 188;
/// `BPF_PSEUDO_MAP_FD`: the constant is a map's descriptor.
const MAP_FD: u8 = 1;

/// One instruction, as bpf(2) takes it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Instruction {
    code: u8,
    /// Destination in the low half, source in the high.
    registers: u8,
    offset: i16,
    constant: i32,
}

const fn op(code: u8, to: u8, from: u8, offset: i16, constant: i32) -> Instruction {
    Instruction { code, registers: to | from << 4, offset, constant }
}

/// Widths of a load (`BPF_LDX | BPF_MEM`).
const U8: u8 = 0x71;
const U16: u8 = 0x69;
const U32: u8 = 0x61;

/// `if` against a constant (32 bits: the loads above leave no more) or a register; the jump goes to the next rail's part, or the end.
const IF_NOT: u8 = 0x56;
const IF_ABOVE: u8 = 0x2d;
const IF_ABOVE_NUMBER: u8 = 0x25;

/// A program under construction.
struct Assembly {
    code: Vec<Instruction>,
    /// Jumps whose end is not known yet.
    open: Vec<usize>,
}

impl Assembly {
    fn push(&mut self, instruction: Instruction) {
        if matches!(instruction.code, IF_NOT | IF_ABOVE | IF_ABOVE_NUMBER) {
            self.open.push(self.code.len());
        }
        self.code.push(instruction);
    }

    /// Has all jumps that are open lead to the next instruction.
    fn land(&mut self) {
        for at in self.open.drain(..) {
            self.code[at].offset = i16::try_from(self.code.len() - at - 1).unwrap_or(i16::MAX);
        }
    }

    /// Leaves for the next part unless the bytes at `offset` of the frame are `expected`, in network order.
    fn expect(&mut self, width: u8, offset: i16, expected: &[u8]) {
        let mut bytes = [0; 4];
        bytes[..expected.len()].copy_from_slice(expected);
        self.push(op(width, 5, 2, offset, 0));
        self.push(op(IF_NOT, 5, 0, 0, i32::from_ne_bytes(bytes)));
    }

    /// Takes the rail's frames; others continue behind it. r6: context, r2: start of the frame, r3: its end,
    /// or that of its first part, and then r7: bytes of all.
    fn take(&mut self, rail: &Destination<'_>, in_parts: bool) {
        let bytes = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        // Long enough for the headers, and not too long for the rail.
        self.push(op(0xbf, 4, 2, 0, 0));
        self.push(op(0x07, 4, 0, 0, bytes(header_bytes(rail.address))));
        self.push(op(IF_ABOVE, 4, 3, 0, 0));
        if in_parts {
            self.push(op(IF_ABOVE_NUMBER, 7, 0, 0, bytes(rail.wire_bytes_max)));
        } else {
            self.push(op(0xbf, 4, 2, 0, 0));
            self.push(op(0x07, 4, 0, 0, bytes(rail.wire_bytes_max)));
            self.push(op(IF_ABOVE, 3, 4, 0, 0));
        }
        let port = rail.address.port().to_be_bytes();
        match rail.address.ip() {
            IpAddr::V4(ip) => {
                self.expect(U16, 12, &[0x08, 0x00]);
                // No options.
                self.expect(U8, 14, &[0x45]);
                self.expect(U8, 23, &[17]);
                // No fragment: neither an offset nor more to come.
                self.push(op(U16, 5, 2, 20, 0));
                self.push(op(0x57, 5, 0, 0, i32::from(u16::from_ne_bytes([0x3f, 0xff]))));
                self.push(op(IF_NOT, 5, 0, 0, 0));
                self.expect(U32, 30, &ip.octets());
                self.expect(U16, 36, &port);
            }
            IpAddr::V6(ip) => {
                self.expect(U16, 12, &[0x86, 0xdd]);
                // UDP follows at once: neither extensions nor a fragment.
                self.expect(U8, 20, &[17]);
                for (word, offset) in ip.octets().chunks(4).zip([38, 42, 46, 50]) {
                    self.expect(U32, offset, word);
                }
                self.expect(U16, 56, &port);
            }
        }
        // The socket of the frame's queue; where there is none, on to the kernel.
        self.push(op(0x18, 1, MAP_FD, 0, rail.map.as_raw_fd()));
        self.push(op(0, 0, 0, 0, 0));
        self.push(op(U32, 2, 6, 16, 0));
        self.push(op(0xb7, 3, 0, 0, PASS));
        self.push(op(0x85, 0, 0, 0, REDIRECT_MAP));
        self.push(op(0x95, 0, 0, 0, 0));
        self.land();
    }
}

/// Bytes of Ethernet, IP and UDP headers of the frames that the program takes.
pub(super) const fn header_bytes(address: SocketAddr) -> usize {
    if address.is_ipv4() { 14 + 20 + 8 } else { 14 + 40 + 8 }
}

/// Where frames of one rail go.
pub(super) struct Destination<'a> {
    /// The rail's.
    pub(super) address: SocketAddr,
    /// Of the longest frame, headers included, that the rail takes.
    pub(super) wire_bytes_max: usize,
    /// Its sockets by queue.
    pub(super) map: BorrowedFd<'a>,
}

fn assemble(rails: &[Destination<'_>], in_parts: bool) -> Vec<Instruction> {
    let mut program = Assembly { code: Vec::new(), open: Vec::new() };
    program.push(op(0xbf, 6, 1, 0, 0));
    if in_parts {
        program.push(op(0x85, 0, 0, 0, WHOLE_LENGTH));
        program.push(op(0xbf, 7, 0, 0, 0));
    }
    program.push(op(U32, 2, 6, 0, 0));
    program.push(op(U32, 3, 6, 4, 0));
    for rail in rails {
        program.take(rail, in_parts);
    }
    program.push(op(0xb7, 0, 0, 0, PASS));
    program.push(op(0x95, 0, 0, 0, 0));
    program.code
}

/// bpf(2) with a command's leading fields; the other fields are zero to the kernel.
fn bpf<T>(command: libc::c_int, fields: &mut T) -> Result<libc::c_int, Errno> {
    // SAFETY: `fields` is a `repr(C)` struct without padding, valid for its size during the call; its maker
    // keeps the memory that it points at alive for as long.
    let rc = unsafe { libc::syscall(libc::SYS_bpf, command, core::ptr::from_mut(fields), size_of::<T>()) };
    libc::c_int::try_from(rc).ok().filter(|rc| *rc >= 0).ok_or_else(Errno::last)
}

fn descriptor(fd: libc::c_int) -> OwnedFd {
    // SAFETY: bpf(2) just made this descriptor (close-on-exec, as it always does), and no other code knows it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A map from queue to socket, with room for `queues`.
pub(super) fn queue_map(queues: u32) -> Result<OwnedFd, Errno> {
    const MAP_CREATE: libc::c_int = 0;
    const XSKMAP: u32 = 17;
    bpf(MAP_CREATE, &mut [XSKMAP, 4, 4, queues, 0]).map(descriptor)
}

/// Frames of `queue` go to `socket` from now on.
pub(super) fn put_queue(map: BorrowedFd<'_>, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
    const MAP_UPDATE_ELEM: libc::c_int = 2;
    #[repr(C)]
    struct Fields {
        map: u32,
        unused: u32,
        key: u64,
        value: u64,
        flags: u64,
    }
    let value = socket.as_raw_fd();
    let mut fields = Fields {
        map: u32::try_from(map.as_raw_fd()).unwrap_or(u32::MAX),
        unused: 0,
        key: (&raw const queue) as u64,
        value: (&raw const value) as u64,
        flags: 0,
    };
    bpf(MAP_UPDATE_ELEM, &mut fields).map(drop)
}

/// Loads the program for frames of these rails. With `in_parts` it can see frames whose bytes do not lie in one piece (Linux 5.18).
pub(super) fn load(rails: &[Destination<'_>], in_parts: bool) -> Result<OwnedFd, Errno> {
    const PROG_LOAD: libc::c_int = 5;
    const TYPE_XDP: u32 = 6;
    const HAS_FRAGS: u32 = 1 << 5;
    #[repr(C)]
    struct Fields {
        kind: u32,
        instructions: u32,
        code: u64,
        license: u64,
        log_level: u32,
        log_bytes: u32,
        log: u64,
        kernel: u32,
        flags: u32,
    }
    let code = assemble(rails, in_parts);
    let mut fields = Fields {
        kind: TYPE_XDP,
        instructions: u32::try_from(code.len()).unwrap_or(u32::MAX),
        code: code.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel: 0,
        flags: if in_parts { HAS_FRAGS } else { 0 },
    };
    bpf(PROG_LOAD, &mut fields).map(descriptor)
}

/// A loaded program by the kernel's number of it.
pub(super) fn by_id(id: u32) -> Result<OwnedFd, Errno> {
    const PROG_GET_FD_BY_ID: libc::c_int = 13;
    bpf(PROG_GET_FD_BY_ID, &mut [id, 0, 0]).map(descriptor)
}

/// The name of a loaded program (`struct bpf_prog_info`), up to its end of zeros.
pub(super) fn name(program: BorrowedFd<'_>) -> Result<[u8; 16], Errno> {
    const OBJ_GET_INFO_BY_FD: libc::c_int = 15;
    const NAME_AT: usize = 64;
    const INFO_BYTES: usize = 80;
    #[repr(C)]
    struct Fields {
        program: u32,
        bytes: u32,
        info: u64,
    }
    let mut info = [0_u64; INFO_BYTES / 8];
    let mut fields = Fields {
        program: u32::try_from(program.as_raw_fd()).unwrap_or(u32::MAX),
        bytes: u32::try_from(INFO_BYTES).unwrap_or(0),
        info: info.as_mut_ptr() as u64,
    };
    bpf(OBJ_GET_INFO_BY_FD, &mut fields)?;
    let words = info.map(u64::to_ne_bytes);
    let mut name = [0; 16];
    name.copy_from_slice(&words.as_flattened()[NAME_AT..]);
    Ok(name)
}

/// A program at a device.
pub(super) struct Link(OwnedFd);

impl Link {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Has the device run another program instead, from one frame to the next.
    pub(super) fn replace(&self, program: BorrowedFd<'_>) -> Result<(), Errno> {
        const LINK_UPDATE: libc::c_int = 29;
        let number = |fd: BorrowedFd<'_>| u32::try_from(fd.as_raw_fd()).unwrap_or(u32::MAX);
        bpf(LINK_UPDATE, &mut [number(self.fd()), number(program), 0, 0]).map(drop)
    }
}

impl Drop for Link {
    /// Detaches the program. Closing would not do while a forked child has the descriptor too.
    fn drop(&mut self) {
        const LINK_DETACH: libc::c_int = 34;
        // An error: the device is gone, and the program with it.
        let _ = bpf(LINK_DETACH, &mut [u32::try_from(self.0.as_raw_fd()).unwrap_or(u32::MAX)]);
    }
}

/// Attaches the program to a device.
pub(super) fn attach(program: BorrowedFd<'_>, interface: u32, attach: Attach) -> Result<Link, Errno> {
    const LINK_CREATE: libc::c_int = 28;
    const XDP: u32 = 37;
    let flags = match attach {
        Attach::Generic => 2,
        Attach::Native => 4,
    };
    let program = u32::try_from(program.as_raw_fd()).unwrap_or(u32::MAX);
    bpf(LINK_CREATE, &mut [program, interface, XDP, flags]).map(descriptor).map(Link)
}
