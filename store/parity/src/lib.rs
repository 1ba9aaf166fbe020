//! The arithmetic of parity, and nothing else. No I/O, no threads, no state.
//!
//! * [`field`]: the field of 256 elements in which everything is computed, as tables.
//! * [`Kernel`]: products of a matrix with slices of bytes, by the instructions that this processor has. The scalar one is
//!   the oracle: all others give the same bytes.
//! * [`Code`]: a systematic code of K data and M parity slices of which any M may be lost: encode, update, recover.
//!
//! A code is linear. So a change of data changes parity by the coefficient times (new xor old), wherever the old parity
//! lies ([`Code::update`]); contributions of several nodes may be added up in any order, on the way or at the end
//! ([`Code::add`]); and missing data counts as zeros, which are not sent.
//!
//! ```
//! use parity::{Code, Kernel};
//!
//! let (kernel, code) = (Kernel::best(), Code::new(3, 2)?);
//! let data = [b"never".as_slice(), b"lose", b"data"];
//! let mut parity = [[0; 5]; 2];
//! code.encode(kernel, &data, &mut parity.each_mut().map(|block| block.as_mut_slice()));
//!
//! // Data 0 and 2 are lost; data 1 and both parities are left.
//! let recovery = code.recovery(&[1, 3, 4], &[0, 2])?;
//! let (mut first, mut third) = ([0; 5], [0; 5]);
//! recovery.run(kernel, &[data[1], &parity[0], &parity[1]], &mut [&mut first, &mut third]);
//! assert_eq!((&first, &third), (b"never", b"data\0"));
//! # Ok::<(), parity::CodeError>(())
//! ```

mod code;
pub mod field;
mod kernel;
mod matrix;

pub use code::{Code, CodeError, MEMBERS_MAX, Recovery};
pub use kernel::Kernel;
pub use matrix::Matrix;
