//! libibverbs, opened where it is found, and its objects.

use core::ffi::{CStr, c_int, c_uint, c_void};
use core::ptr::NonNull;
use std::sync::OnceLock;

use super::abi;
use crate::error::{DriverError, Errno};

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions that are used, all of version 1.1 or older.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            /// # Safety
            /// `handle` is an opened libibverbs, which is never closed.
            unsafe fn find(handle: *mut c_void) -> Option<Library> {
                Some(Library {
                    $($name: {
                        // SAFETY: a handle and a string.
                        let found = NonNull::new(unsafe { libc::dlsym(handle, $symbol.as_ptr()) })?;
                        // SAFETY: the function of that name has this type in `infiniband/verbs.h`, and the library stays.
                        unsafe {
                            core::mem::transmute::<NonNull<c_void>, unsafe extern "C" fn($($argument),*) $(-> $result)?>(found)
                        }
                    },)*
                })
            }
        }
    };
}

functions! {
    fork_init = c"ibv_fork_init": fn() -> c_int;
    get_device_list = c"ibv_get_device_list": fn(*mut c_int) -> abi::DeviceList;
    free_device_list = c"ibv_free_device_list": fn(abi::DeviceList);
    get_device_name = c"ibv_get_device_name": fn(*mut abi::Device) -> abi::Name;
    open_device = c"ibv_open_device": fn(*mut abi::Device) -> *mut abi::Context;
    close_device = c"ibv_close_device": fn(*mut abi::Context) -> c_int;
    query_device = c"ibv_query_device": fn(*mut abi::Context, *mut abi::DeviceAttributes) -> c_int;
    query_port = c"ibv_query_port": fn(*mut abi::Context, u8, *mut abi::PortAttributes) -> c_int;
    query_gid = c"ibv_query_gid": fn(*mut abi::Context, u8, c_int, *mut abi::AlignedGid) -> c_int;
    get_event = c"ibv_get_async_event": fn(*mut abi::Context, *mut abi::Event) -> c_int;
    ack_event = c"ibv_ack_async_event": fn(*mut abi::Event);
    alloc_domain = c"ibv_alloc_pd": fn(*mut abi::Context) -> *mut abi::Domain;
    free_domain = c"ibv_dealloc_pd": fn(*mut abi::Domain) -> c_int;
    register = c"ibv_reg_mr": fn(*mut abi::Domain, *mut c_void, usize, c_int) -> *mut abi::MemoryRegion;
    deregister = c"ibv_dereg_mr": fn(*mut abi::MemoryRegion) -> c_int;
    create_channel = c"ibv_create_comp_channel": fn(*mut abi::Context) -> *mut abi::CompletionChannel;
    destroy_channel = c"ibv_destroy_comp_channel": fn(*mut abi::CompletionChannel) -> c_int;
    create_queue = c"ibv_create_cq": fn(*mut abi::Context, c_int, *mut c_void, *mut abi::CompletionChannel, c_int)
        -> *mut abi::CompletionQueue;
    destroy_queue = c"ibv_destroy_cq": fn(*mut abi::CompletionQueue) -> c_int;
    get_wake = c"ibv_get_cq_event": fn(*mut abi::CompletionChannel, *mut *mut abi::CompletionQueue, *mut *mut c_void)
        -> c_int;
    ack_wakes = c"ibv_ack_cq_events": fn(*mut abi::CompletionQueue, c_uint);
    create_pair = c"ibv_create_qp": fn(*mut abi::Domain, *mut abi::QueuePairSetup) -> *mut abi::QueuePair;
    modify_pair = c"ibv_modify_qp": fn(*mut abi::QueuePair, *mut abi::QueuePairAttributes, c_int) -> c_int;
    destroy_pair = c"ibv_destroy_qp": fn(*mut abi::QueuePair) -> c_int;
    create_handle = c"ibv_create_ah": fn(*mut abi::Domain, *mut abi::HandleAttributes) -> *mut abi::AddressHandle;
    destroy_handle = c"ibv_destroy_ah": fn(*mut abi::AddressHandle) -> c_int;
}

/// The name that the dynamic linker looks for.
const NAME: &CStr = c"libibverbs.so.1";

/// The library, opened once for the whole process.
pub(super) fn library() -> Result<&'static Library, DriverError> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    // SAFETY: a string; the library's constructors are rdma-core's.
    let handle = unsafe { libc::dlopen(NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(DriverError::LibraryMissing);
    }
    // SAFETY: just opened by its name, and not closed.
    let Some(found) = (unsafe { Library::find(handle) }) else { return Err(DriverError::LibraryMissing) };
    Ok(LIBRARY.get_or_init(|| {
        // SAFETY: takes nothing. New kernels copy a device's pinned memory at a fork, and then this does
        // nothing.
        let failed = unsafe { (found.fork_init)() };
        if failed != 0 {
            tracing::warn!(errno = %Errno(failed), "libibverbs cannot be made ready for forks: children may see frames of their parent");
        }
        found
    }))
}

/// Something that the library made and takes back at the end.
pub(super) struct Made<T> {
    at: NonNull<T>,
    end: unsafe extern "C" fn(*mut T) -> c_int,
}

// SAFETY: libibverbs can be called from any thread, and only the owner of the object calls for it.
unsafe impl<T> Send for Made<T> {}

impl<T> Made<T> {
    /// # Safety
    /// `at` is null, with the reason in `errno`, or a new object that `end` ends. All that it was made from is dropped after it.
    pub(super) unsafe fn new(
        at: *mut T,
        end: unsafe extern "C" fn(*mut T) -> c_int,
    ) -> Result<Made<T>, Errno> {
        NonNull::new(at).map(|at| Made { at, end }).ok_or_else(Errno::last)
    }

    pub(super) fn at(&self) -> *mut T {
        self.at.as_ptr()
    }
}

impl<T> Drop for Made<T> {
    fn drop(&mut self) {
        // SAFETY: made by the library, and ended once. Refused while something made from it lives: it leaks then.
        let failed = unsafe { (self.end)(self.at.as_ptr()) };
        if failed != 0 {
            tracing::debug!(errno = %Errno(failed), "libibverbs does not take an object back");
        }
    }
}

/// The result of a library function that returns an error number.
pub(super) fn checked(errno: c_int) -> Result<(), Errno> {
    if errno == 0 { Ok(()) } else { Err(Errno(errno.abs())) }
}
