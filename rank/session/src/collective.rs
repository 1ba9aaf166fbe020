//! Operations of all ranks together, built from messages in a space of their own.
//!
//! All ranks call the same operations in the same order. Receives take messages of one sender and tag in order, so one tag for
//! each kind of step is enough.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::SessionError;
use crate::message::{From, Tags};
use crate::requests::NOBODY;
use crate::session::Session;
use crate::traffic::COLLECTIVE;

const BARRIER: u64 = 1;
const REDUCE: u64 = 2;
const SPREAD: u64 = 3;
const BLOCKS: u64 = 4;

impl Session {
    /// Returns when every rank has called it. ceil(log2 n) rounds.
    ///
    /// # Errors
    /// As for [`Session::recv`].
    pub fn barrier(&mut self) -> Result<(), SessionError> {
        let (rank, size) = (self.rank, self.ranks);
        let mut step = 1;
        while step < size {
            self.give((rank + step) % size, BARRIER, Vec::new())?;
            self.take((rank + size - step) % size, BARRIER, 0)?;
            step *= 2;
        }
        Ok(())
    }

    /// Combines the values of all ranks, place by place, and gives every rank the result. The order of combining is the
    /// same in every run, so the result does not depend on timing.
    ///
    /// # Errors
    /// [`SessionError::Collective`] when ranks bring different numbers of values.
    pub fn allreduce<T>(&mut self, values: &mut [T], combine: impl Fn(T, T) -> T) -> Result<(), SessionError>
    where
        T: Copy + FromBytes + IntoBytes + Immutable,
    {
        let (rank, size) = (self.rank, self.ranks);
        let expected = size_of_val(values);
        let mut step = 1;
        while step < size && rank & step == 0 {
            if rank + step < size {
                let bytes = self.take(rank + step, REDUCE, expected)?;
                for (value, theirs) in values.iter_mut().zip(read::<T>(&bytes)) {
                    *value = combine(*value, theirs);
                }
            }
            step *= 2;
        }
        if rank != 0 {
            self.give(rank - step, REDUCE, values.as_bytes().to_vec())?;
            let bytes = self.take(rank - step, SPREAD, expected)?;
            for (value, result) in values.iter_mut().zip(read::<T>(&bytes)) {
                *value = result;
            }
        }
        while step > 1 {
            step /= 2;
            if rank + step < size {
                self.give(rank + step, SPREAD, values.as_bytes().to_vec())?;
            }
        }
        Ok(())
    }

    /// One value from every rank to every rank: place `i` goes to rank `i`, and the result's place `i` comes from it.
    ///
    /// # Errors
    /// [`SessionError::Collective`].
    ///
    /// # Panics
    /// If there is not one value for each rank.
    pub fn alltoall<T>(&mut self, values: &[T]) -> Result<Vec<T>, SessionError>
    where
        T: Copy + FromBytes + IntoBytes + Immutable,
    {
        let blocks = values.iter().map(|value| value.as_bytes().to_vec()).collect();
        let blocks = self.alltoallv(blocks)?;
        let mut result = Vec::with_capacity(values.len());
        for (source_rank, block) in (0..).zip(&blocks) {
            let (expected, found) = (size_of::<T>(), block.len());
            let value = T::read_from_bytes(block).map_err(|_| SessionError::Collective {
                source_rank,
                expected,
                found,
            })?;
            result.push(value);
        }
        Ok(result)
    }

    /// Bytes from every rank to every rank: block `i` goes to rank `i`, and the result's block `i` comes from it. Blocks
    /// may have any lengths.
    ///
    /// # Errors
    /// As for [`Session::recv`].
    ///
    /// # Panics
    /// If there is not one block for each rank.
    pub fn alltoallv(&mut self, mut blocks: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, SessionError> {
        let (rank, size) = (self.rank, self.ranks);
        assert_eq!(blocks.len(), size as usize, "one block for each rank");
        // Each rank begins with the next one, so that not all send to the same.
        for distance in 1..size {
            let to = (rank + distance) % size;
            self.give(to, BLOCKS, core::mem::take(&mut blocks[to as usize]))?;
        }
        for distance in 1..size {
            let from = (rank + size - distance) % size;
            let message = self.recv_in(COLLECTIVE, From::Rank(from), Tags::from(BLOCKS))?;
            blocks[from as usize] = message.bytes;
        }
        Ok(blocks)
    }

    fn give(&mut self, to: u32, tag: u64, bytes: Vec<u8>) -> Result<(), SessionError> {
        self.send_in(COLLECTIVE, to, tag, bytes, NOBODY)
    }

    fn take(&mut self, from: u32, tag: u64, expected: usize) -> Result<Vec<u8>, SessionError> {
        let bytes = self.recv_in(COLLECTIVE, From::Rank(from), Tags::from(tag))?.bytes;
        if bytes.len() == expected {
            return Ok(bytes);
        }
        Err(SessionError::Collective { source_rank: from, expected, found: bytes.len() })
    }
}

fn read<T: FromBytes>(bytes: &[u8]) -> impl Iterator<Item = T> + '_ {
    // A value without bytes needs no reading, and `chunks_exact` takes no zero.
    bytes.chunks_exact(size_of::<T>().max(1)).filter_map(|chunk| T::read_from_bytes(chunk).ok())
}
