//! The thread that listens to the keeper.

use core::time::Duration;
use std::io::{ErrorKind, Read as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ckpt_glue::control::{ControlReader, Message};
use ckpt_glue::participant::Input;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::signal::{Signal, kill};
use nix::unistd::getpid;

use crate::agent::Agent;

/// Bytes taken from the socket at once.
const CHUNK_BYTES: usize = 16 << 10;

/// Starts the thread. `reader` may hold bytes that came behind the last message of the start.
pub(crate) fn start(agent: Arc<Agent>, stream: UnixStream, reader: ControlReader) -> std::io::Result<()> {
    let run = move || {
        listen(&agent, stream, reader);
        if !agent.lose() {
            // This process cannot be saved, recovered or ended any more.
            eprintln!("stillwire: rank {}: the launcher is gone; ending", agent.identity().rank);
            let _ = kill(getpid(), Signal::SIGKILL);
        }
    };
    std::thread::Builder::new().name("stillwire-keeper".into()).spawn(run).map(drop)
}

/// Returns when the connection is of no use any more.
fn listen(agent: &Agent, mut stream: UnixStream, mut reader: ControlReader) {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        loop {
            match reader.next() {
                Ok(Some(control)) => {
                    let identity = agent.identity();
                    // Rule 7: only an equal life counts.
                    if control.job == identity.job && control.life == identity.life {
                        take(agent, control.message);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    eprintln!(
                        "stillwire: rank {}: the keeper's messages cannot be read: {error}",
                        agent.identity().rank
                    );
                    return;
                }
            }
        }
        let (due, wants) = agent.tick();
        wait(&stream, agent.wake_fd(), due, wants);
        match read_ready(&mut stream, &mut chunk) {
            Ok(0) => return,
            Ok(read) => reader.feed(&chunk[..read]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return,
        }
    }
}

fn take(agent: &Agent, message: Message) {
    match message {
        Message::FinalizeDone => agent.release(),
        Message::RankLost { rank, .. } => agent.lose_rank(rank),
        Message::WaitQuery { query, .. } => agent.report_waits(query),
        Message::HandOver { number, nic } => agent.hand_over(number, &nic),
        message @ (Message::OpenRail { .. } | Message::MeetRails { .. } | Message::ChangeRails { .. }) => {
            agent.change_rails(message);
        }
        message => agent.handle(Input::Message(message), None),
    }
}

/// Sleeps until bytes are there, or something is due or can be sent.
fn wait(stream: &UnixStream, wake: &EventFd, due: Option<Duration>, wants: PollFlags) {
    // Rounded up: a timer that fires early would only come back here.
    let millis = due.map(|due| u16::try_from(due.as_millis() + 1).unwrap_or(u16::MAX));
    let timeout = millis.map_or(PollTimeout::NONE, PollTimeout::from);
    // An interrupted sleep is a short one.
    let stream = PollFd::new(stream.as_fd(), PollFlags::POLLIN | wants);
    let _ = poll(&mut [stream, PollFd::new(wake.as_fd(), PollFlags::POLLIN)], timeout);
}

fn read_ready(stream: &mut UnixStream, chunk: &mut [u8]) -> std::io::Result<usize> {
    let mut ready = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
    if poll(&mut ready, PollTimeout::ZERO)? == 0 {
        return Err(ErrorKind::WouldBlock.into());
    }
    stream.read(chunk)
}
