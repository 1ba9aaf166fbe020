//! Intel's storage library, if it is asked for: loaded while running, never linked.

use std::ffi::{CStr, CString, c_int, c_uchar, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ::parity::Matrix;

use crate::error::BenchError;

type InitTables = unsafe extern "C" fn(c_int, c_int, *const c_uchar, *mut c_uchar);
type Encode =
    unsafe extern "C" fn(c_int, c_int, c_int, *const c_uchar, *const *const c_uchar, *const *mut c_uchar);
type Update =
    unsafe extern "C" fn(c_int, c_int, c_int, c_int, *const c_uchar, *const c_uchar, *const *mut c_uchar);

/// Bytes of the tables for one coefficient.
const TABLE_BYTES: usize = 32;

/// The library. It stays loaded.
#[derive(Clone, Copy)]
pub(super) struct Isal {
    init_tables: InitTables,
    encode: Encode,
    update: Update,
}

/// The tables of one matrix.
pub(super) struct Tables {
    isal: Isal,
    rows: usize,
    columns: usize,
    tables: Vec<u8>,
}

impl Isal {
    pub(super) fn load(path: &Path) -> Result<Isal, BenchError> {
        let failed = |what: String| BenchError::Library { path: path.to_owned(), what };
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|error| failed(error.to_string()))?;
        // SAFETY: the name ends in zero; the constructors of the library that a person named run, and it stays loaded.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: after a failure `dlerror` returns text that lasts until its next call, or null.
            let said = unsafe { libc::dlerror() };
            // SAFETY: as before.
            let said =
                (!said.is_null()).then(|| unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned());
            return Err(failed(said.unwrap_or_else(|| "it cannot be loaded".to_owned())));
        }
        let symbol = |name: &CStr| {
            // SAFETY: the library is loaded and the name ends in zero.
            let found: *mut c_void = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() {
                Err(failed(format!("it has no {}", name.to_string_lossy())))
            } else {
                Ok(found)
            }
        };
        let (init_tables, encode, update) =
            (symbol(c"ec_init_tables")?, symbol(c"ec_encode_data")?, symbol(c"ec_encode_data_update")?);
        // SAFETY: these are the types of `erasure_code.h`, the same in all versions of the library; the pointers are not null.
        unsafe {
            Ok(Isal {
                init_tables: std::mem::transmute::<*mut c_void, InitTables>(init_tables),
                encode: std::mem::transmute::<*mut c_void, Encode>(encode),
                update: std::mem::transmute::<*mut c_void, Update>(update),
            })
        }
    }

    pub(super) fn tables(self, matrix: &Matrix) -> Tables {
        let (rows, columns) = (matrix.rows(), matrix.columns());
        let elements: Vec<u8> = (0..rows).flat_map(|row| matrix.row(row)).copied().collect();
        let mut tables = vec![0; TABLE_BYTES * elements.len()];
        // SAFETY: it reads rows x columns elements and writes 32 bytes for each.
        unsafe { (self.init_tables)(int(columns), int(rows), elements.as_ptr(), tables.as_mut_ptr()) };
        Tables { isal: self, rows, columns, tables }
    }
}

impl Tables {
    /// The tables of one coefficient alone.
    pub(super) fn one(&self, factor: u8) -> Tables {
        self.isal.tables(&Matrix::from_fn(1, 1, |_, _| factor))
    }

    /// Sets `parity` to the matrix times `data`.
    pub(super) fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) {
        let length = self.check(data, parity, self.columns);
        let data: Vec<*const u8> = data.iter().map(|slice| slice.as_ptr()).collect();
        let parity: Vec<*mut u8> = parity.iter_mut().map(|slice| slice.as_mut_ptr()).collect();
        let (columns, rows, tables) = (int(self.columns), int(self.rows), self.tables.as_ptr());
        // SAFETY: there are as many slices as it reads and writes, all of the length that it is given.
        unsafe { (self.isal.encode)(int(length), columns, rows, tables, data.as_ptr(), parity.as_ptr()) };
    }

    /// Adds column `column` of the matrix times `data` to `parity`.
    pub(super) fn update(&self, column: usize, data: &[u8], parity: &mut [&mut [u8]]) {
        assert!(column < self.columns);
        let length = self.check(&[data], parity, 1);
        let parity: Vec<*mut u8> = parity.iter_mut().map(|slice| slice.as_mut_ptr()).collect();
        let (columns, rows, tables) = (int(self.columns), int(self.rows), self.tables.as_ptr());
        // SAFETY: there are as many slices as it reads and writes, all of the length that it is given.
        unsafe {
            (self.isal.update)(
                int(length),
                columns,
                rows,
                int(column),
                tables,
                data.as_ptr(),
                parity.as_ptr(),
            );
        }
    }

    fn check(&self, data: &[&[u8]], parity: &[&mut [u8]], columns: usize) -> usize {
        assert_eq!((data.len(), parity.len()), (columns, self.rows));
        let length = parity[0].len();
        assert!(
            parity.iter().all(|slice| slice.len() == length)
                && data.iter().all(|slice| slice.len() == length)
        );
        length
    }
}

fn int(number: usize) -> c_int {
    c_int::try_from(number).expect("slices are shorter than 2 GiB, matrices small")
}
