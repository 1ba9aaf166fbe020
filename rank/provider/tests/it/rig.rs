//! Opens the library and its objects, and reads completions with a deadline.

use core::ffi::{c_int, c_void};
use std::ffi::OsStr;
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use stillwire_fi::abi::*;

use crate::processes::is_child;

/// Longest wait for one completion: the time that a busy machine may need, many times over.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) const ADDRESS_BYTES: usize = 64;
pub(crate) const SEND_RECV: u64 = flag::SEND | flag::RECV;
const SELECTIVE: u64 = flag::SELECTIVE_COMPLETION;

/// Whether a variable would steer the provider, libfabric or an MPI library; tests see none that the machine's user or a launcher has set.
pub(crate) fn steers(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let ours = name.starts_with("STILLWIRE_") && !name.starts_with("STILLWIRE_TEST_");
    ours || ["FI_", "PMI", "MPI_LOCAL", "OMPI_"].iter().any(|start| name.starts_with(start))
}

/// Tests of one process share a key of their own, and stay on this host. A child inherits its parent's.
fn prepare_environment() {
    static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        if !is_child() {
            // SAFETY: before any other thread of this test program reads the environment: all of them come here first.
            unsafe {
                for (name, _) in std::env::vars_os().filter(|(name, _)| steers(name)) {
                    std::env::remove_var(name);
                }
                std::env::set_var("STILLWIRE_KEY_FILE", folder.path().join("key"));
                std::env::set_var("STILLWIRE_ADDRESS", "127.0.0.1");
            }
        }
        folder
    });
}

pub(crate) fn library() -> PathBuf {
    // Cargo puts it beside the test program.
    std::env::current_exe().unwrap().with_file_name("libstillwire_fi.so")
}

/// The provider, loaded as libfabric loads it.
pub(crate) fn provider() -> &'static FiProvider {
    static PROVIDER: OnceLock<usize> = OnceLock::new();
    prepare_environment();
    let place = *PROVIDER.get_or_init(|| {
        let path = std::ffi::CString::new(library().to_str().unwrap()).unwrap();
        // SAFETY: plain loading of a library of ours.
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(
                !handle.is_null(),
                "{}: {:?}",
                path.to_string_lossy(),
                std::ffi::CStr::from_ptr(libc::dlerror())
            );
            let symbol = libc::dlsym(handle, c"fi_prov_ini".as_ptr());
            assert!(!symbol.is_null(), "fi_prov_ini is missing");
            let ini: extern "C" fn() -> *mut FiProvider = core::mem::transmute(symbol);
            ini() as usize
        }
    });
    // SAFETY: never freed.
    unsafe { &*(place as *const FiProvider) }
}

/// The answer of `fi_getinfo`.
pub(crate) fn getinfo(hints: *const FiInfo) -> Result<*mut FiInfo, c_int> {
    let mut info = null_mut();
    // SAFETY: as libfabric calls it.
    let answer = unsafe { (provider().getinfo)(version(1, 20), null(), null(), 0, hints, &raw mut info) };
    if answer == 0 { Ok(info) } else { Err(answer) }
}

/// An enabled endpoint with everything around it.
pub(crate) struct Rig {
    pub(crate) fabric: *mut FidFabric,
    pub(crate) domain: *mut FidDomain,
    pub(crate) vector: *mut FidAv,
    pub(crate) queue: *mut FidCq,
    pub(crate) counter: *mut FidCntr,
    pub(crate) ep: *mut FidEp,
}

// SAFETY: every call of the provider may be made by any thread (FI_THREAD_SAFE).
unsafe impl Sync for Rig {}

/// A completion or an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Done {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) bytes: usize,
    pub(crate) buffer: usize,
    pub(crate) data: u64,
    pub(crate) tag: u64,
    pub(crate) source: u64,
    /// Error number and bytes that found no room.
    pub(crate) error: Option<(c_int, usize)>,
}

fn fine(answer: c_int) {
    assert_eq!(answer, 0, "a call failed");
}

impl Rig {
    pub(crate) fn new() -> Rig {
        Rig::with(0, WAIT_NONE)
    }

    /// With more flags for binding the queue (selective completion), and a wait object.
    pub(crate) fn with(bind_flags: u64, wait_obj: u32) -> Rig {
        let info = getinfo(null()).unwrap();
        let (mut fabric, mut domain, mut vector) = (null_mut(), null_mut(), null_mut());
        let (mut queue, mut counter, mut ep) = (null_mut(), null_mut(), null_mut());
        // SAFETY: every call as the man pages say, with objects that live on.
        unsafe {
            (*(*info).fabric_attr).api_version = version(1, 20);
            fine((provider().fabric)((*info).fabric_attr, &raw mut fabric, null_mut()));
            fine(((*(*fabric).ops).domain)(fabric, info, &raw mut domain, null_mut()));
            let ops = &*(*domain).ops;
            fine((ops.av_open)(domain, null_mut(), &raw mut vector, null_mut()));
            let mut attr: FiCqAttr = core::mem::zeroed();
            attr.format = CQ_FORMAT_TAGGED;
            attr.wait_obj = wait_obj;
            fine((ops.cq_open)(domain, &raw mut attr, &raw mut queue, null_mut()));
            fine((ops.cntr_open)(domain, null_mut(), &raw mut counter, null_mut()));
            fine((ops.endpoint)(domain, info, &raw mut ep, null_mut()));
            let bind = (*(*ep).fid.ops).bind;
            let fid = ep.cast::<Fid>();
            fine(bind(fid, queue.cast(), SEND_RECV | bind_flags & SELECTIVE));
            fine(bind(fid, counter.cast(), flag::WRITE | flag::READ));
            fine(bind(fid, vector.cast(), 0));
            fine(((*(*ep).fid.ops).control)(fid, CONTROL_ENABLE, null_mut()));
        }
        Rig { fabric, domain, vector, queue, counter, ep }
    }

    pub(crate) fn fabric(&self) -> *mut FidFabric {
        self.fabric
    }

    pub(crate) fn address(&self) -> [u8; ADDRESS_BYTES] {
        let mut bytes = [0; ADDRESS_BYTES];
        let mut room = 0;
        // SAFETY: first without room, to learn the length.
        unsafe {
            let getname = (*(*self.ep).cm).getname;
            assert_eq!(getname(self.ep.cast(), null_mut(), &raw mut room), -errno::ETOOSMALL);
            assert_eq!(room, ADDRESS_BYTES);
            fine(getname(self.ep.cast(), bytes.as_mut_ptr().cast(), &raw mut room));
        }
        bytes
    }

    pub(crate) fn insert(&self, address: &[u8; ADDRESS_BYTES]) -> u64 {
        let mut number = 0;
        // SAFETY: one address.
        let inserted = unsafe {
            ((*(*self.vector).ops).insert)(
                self.vector,
                address.as_ptr().cast(),
                1,
                &raw mut number,
                0,
                null_mut(),
            )
        };
        assert_eq!(inserted, 1);
        number
    }

    pub(crate) fn remote(&self) -> &FiOpsRma {
        // SAFETY: the table is static.
        unsafe { &*(*self.ep).rma }
    }

    pub(crate) fn tagged(&self) -> &FiOpsTagged {
        // SAFETY: the table is static.
        unsafe { &*(*self.ep).tagged }
    }

    pub(crate) fn plain(&self) -> &FiOpsMsg {
        // SAFETY: the table is static.
        unsafe { &*(*self.ep).msg }
    }

    pub(crate) fn atomics(&self) -> &FiOpsAtomic {
        // SAFETY: the table is static.
        unsafe { &*(*self.ep).atomic }
    }

    /// The next completion, if there is one.
    pub(crate) fn poll(&self) -> Option<Done> {
        // SAFETY: entries of the queue's format.
        unsafe {
            let ops = &*(*self.queue).ops;
            let mut entry: FiCqTaggedEntry = core::mem::zeroed();
            let mut source = 0;
            match (ops.readfrom)(self.queue, (&raw mut entry).cast(), 1, &raw mut source) {
                1 => Some(Done {
                    context: entry.op_context as usize,
                    flags: entry.flags,
                    bytes: entry.len,
                    buffer: entry.buf as usize,
                    data: entry.data,
                    tag: entry.tag,
                    source,
                    error: None,
                }),
                answer if answer == -(errno::EAVAIL as isize) => {
                    let mut entry: FiCqErrEntry = core::mem::zeroed();
                    assert_eq!((ops.readerr)(self.queue, &raw mut entry, 0), 1);
                    Some(Done {
                        context: entry.op_context as usize,
                        flags: entry.flags,
                        bytes: entry.len,
                        buffer: entry.buf as usize,
                        data: entry.data,
                        tag: entry.tag,
                        source: entry.src_addr,
                        error: Some((entry.err, entry.olen)),
                    })
                }
                answer => {
                    assert_eq!(answer, -(libc::EAGAIN as isize));
                    None
                }
            }
        }
    }

    /// The next completion, while `others` make progress too.
    pub(crate) fn next(&self, others: &[&Rig]) -> Done {
        let started = Instant::now();
        loop {
            if let Some(done) = self.poll() {
                return done;
            }
            for other in others {
                // SAFETY: reading a counter makes progress and takes nothing.
                unsafe { ((*(*other.counter).ops).read)(other.counter) };
            }
            assert!(started.elapsed() < DEADLINE, "no completion within {DEADLINE:?}");
        }
    }

    /// Registers memory for all kinds of access under `key`.
    pub(crate) fn register(&self, memory: &mut [u8], key: u64) -> *mut FidMr {
        let mut region = null_mut();
        let access = flag::REMOTE_READ | flag::REMOTE_WRITE;
        // SAFETY: the memory lives until the region is closed, by the tests.
        unsafe {
            let reg = (*(*self.domain).mr).reg;
            let start: *const c_void = memory.as_mut_ptr().cast();
            fine(reg(
                self.domain.cast(),
                start,
                memory.len(),
                access,
                0,
                key,
                0,
                &raw mut region,
                null_mut(),
            ));
        }
        region
    }

    pub(crate) fn counted(&self) -> u64 {
        // SAFETY: a counter of ours.
        unsafe { ((*(*self.counter).ops).read)(self.counter) }
    }
}

/// Closes an object.
pub(crate) fn close<T>(object: *mut T) -> c_int {
    // SAFETY: every object begins with a `fid`.
    unsafe { ((*(*object.cast::<Fid>()).ops).close)(object.cast()) }
}

/// Repeats a call until it is accepted; the others make progress meanwhile.
pub(crate) fn accepted(rigs: &[&Rig], mut call: impl FnMut() -> isize) {
    let started = Instant::now();
    loop {
        match call() {
            0 => return,
            answer => assert_eq!(answer, -(libc::EAGAIN as isize), "a call failed"),
        }
        for rig in rigs {
            rig.counted();
        }
        assert!(started.elapsed() < DEADLINE, "no room within {DEADLINE:?}");
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        assert_eq!(close(self.queue), -libc::EBUSY, "an endpoint uses it");
        for answer in [
            close(self.ep),
            close(self.queue),
            close(self.counter),
            close(self.vector),
            close(self.domain),
            close(self.fabric),
        ] {
            assert_eq!(answer, 0);
        }
    }
}

/// Two endpoints that know each other's numbers: the second one's at the first, and the other way round.
pub(crate) fn pair() -> (Rig, Rig, u64, u64) {
    let (one, two) = (Rig::new(), Rig::new());
    let (to_two, to_one) = (one.insert(&two.address()), two.insert(&one.address()));
    (one, two, to_two, to_one)
}

pub(crate) fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|i| u8::try_from((i * 31 + i / 251 + seed) % 256).unwrap()).collect()
}
