//! Pipes and pairs of sockets: made as a whole when the first of their ends is met.

use super::{Maker, RemakeError, calls};
use crate::state::files::What;

impl Maker<'_> {
    pub(super) fn make_pipe(&mut self, pipe: u64) -> Result<(), RemakeError> {
        let files = self.files;
        let mut ends = Vec::new();
        let mut pieces: &[Vec<u8>] = &[];
        let mut capacity = 0;
        let mut has_packets = false;
        for (index, open) in files.open.iter().enumerate() {
            let What::Pipe { pipe: other, capacity: bytes, content, .. } = &open.what else { continue };
            if *other != pipe {
                continue;
            }
            ends.push((index, open.flags.cast_signed()));
            has_packets |= open.flags.cast_signed() & libc::O_DIRECT != 0;
            capacity = *bytes;
            if !content.is_empty() {
                pieces = content;
            }
        }
        let Some((first, _)) = ends.first().copied() else { return Ok(()) };
        let flags = libc::O_NONBLOCK | if has_packets { libc::O_DIRECT } else { 0 };
        let [reader, writer] = calls::pipe(flags).map_err(self.failed(first, "pipe"))?;
        let reader = self.lift(first, Ok(reader), "pipe")?;
        let writer = self.lift(first, Ok(writer), "pipe")?;
        calls::set_pipe_capacity(writer, capacity).map_err(self.failed(first, "F_SETPIPE_SZ"))?;
        for piece in pieces {
            calls::write_all(writer, piece).map_err(self.failed(first, "filling a pipe"))?;
        }
        let (mut spare_reader, mut spare_writer) = (Some(reader), Some(writer));
        for (index, flags) in ends {
            let made = match flags & libc::O_ACCMODE {
                libc::O_RDONLY => spare_reader.take(),
                libc::O_WRONLY => spare_writer.take(),
                _ => None,
            };
            let fd = match made {
                Some(fd) => fd,
                None => self.reopen(index, reader, flags & (libc::O_ACCMODE | libc::O_NONBLOCK))?,
            };
            self.set_flags(index, fd)?;
            self.made[index] = Some(fd);
        }
        // The end that was closed.
        spare_reader.into_iter().chain(spare_writer).for_each(calls::close);
        Ok(())
    }

    pub(super) fn make_sockets(&mut self, index: usize) -> Result<(), RemakeError> {
        let files = self.files;
        let What::SocketPair { peer, kind, .. } = &files.open[index].what else { return Ok(()) };
        let other = files.open.iter().position(
            |open| matches!(&open.what, What::SocketPair { socket, .. } if *peer != 0 && socket == peer),
        );
        let [left, right] = calls::socket_pair(*kind).map_err(self.failed(index, "socketpair"))?;
        let left = self.lift(index, Ok(left), "socketpair")?;
        let right = self.lift(index, Ok(right), "socketpair")?;
        // Both ends get the room that they had before anything is sent.
        for (end, fd) in [(Some(index), left), (other, right)] {
            let Some(end) = end else { continue };
            let What::SocketPair { buffer_bytes: (send, receive), passes_credentials, timeouts_ns, .. } =
                &files.open[end].what
            else {
                continue;
            };
            for (option, bytes) in [(libc::SO_SNDBUF, send), (libc::SO_RCVBUF, receive)] {
                calls::set_option(fd, option, (bytes / 2).cast_signed())
                    .map_err(self.failed(end, "setting the room of a socket"))?;
            }
            calls::set_option(fd, libc::SO_PASSCRED, i32::from(*passes_credentials))
                .map_err(self.failed(end, "SO_PASSCRED"))?;
            for (option, ns) in [(libc::SO_RCVTIMEO, timeouts_ns.0), (libc::SO_SNDTIMEO, timeouts_ns.1)] {
                calls::set_timeout(fd, option, ns)
                    .map_err(self.failed(end, "setting the time-out of a socket"))?;
            }
        }
        for (end, from) in [(Some(index), right), (other, left)] {
            let Some(What::SocketPair { content, .. }) = end.map(|end| &files.open[end].what) else {
                continue;
            };
            for message in content {
                calls::send(from, message).map_err(self.failed(index, "filling a socket"))?;
            }
        }
        for (end, fd) in [(Some(index), left), (other, right)] {
            let Some((end, What::SocketPair { shut, .. })) = end.map(|end| (end, &files.open[end].what))
            else {
                continue;
            };
            let how = match shut & 3 {
                1 => libc::SHUT_RD,
                2 => libc::SHUT_WR,
                3 => libc::SHUT_RDWR,
                _ => continue,
            };
            calls::shut(fd, how).map_err(self.failed(end, "shutdown"))?;
        }
        self.set_flags(index, left)?;
        self.made[index] = Some(left);
        match other {
            Some(other) => {
                self.set_flags(other, right)?;
                self.made[other] = Some(right);
            }
            None => calls::close(right),
        }
        Ok(())
    }
}
