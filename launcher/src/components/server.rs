//! The process of a component: it answers the launcher's questions until the connection ends.

use std::fs::OpenOptions;
use std::io::{self, BufReader, Write as _};
use std::os::unix::net::UnixStream;

use super::library::Loaded;
use super::wire::{self, Answer, Question};

/// Answers the questions that come over standard input, a socket. False: it is none, or the launcher could not be answered.
#[must_use]
pub fn serve() -> bool {
    take_socket().and_then(answer_all).is_ok()
}

/// The component may print: its standard input is empty then, and its output goes to standard error.
fn take_socket() -> io::Result<UnixStream> {
    use std::os::fd::AsFd as _;
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let empty = OpenOptions::new().read(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&empty)?;
    nix::unistd::dup2_stdout(io::stderr())?;
    Ok(socket)
}

fn answer_all(mut socket: UnixStream) -> io::Result<()> {
    let mut from = BufReader::new(socket.try_clone()?);
    let mut component = None;
    while let Some(question) = wire::read::<Question>(&mut from)? {
        let answer = match (&question, &component) {
            (Question::Open(opening), _) => match Loaded::open(opening) {
                Ok(loaded) => {
                    let opened =
                        Answer::Opened { name: loaded.name().to_owned(), period_ms: loaded.period_ms() };
                    component = Some(loaded);
                    opened
                }
                Err(why) => Answer::Refused(why),
            },
            (_, None) => Answer::Refused("it is not open".to_owned()),
            (Question::Report(report), Some(component)) => Answer::Model(component.report(report)),
            (Question::Poll { now_ms, nodes }, Some(component)) => {
                Answer::Suspicion(component.poll(*now_ms, nodes))
            }
            (Question::React(fault), Some(component)) => {
                let (protocol, candidate, reason) = component.react(fault);
                Answer::Reaction { protocol, candidate, reason }
            }
        };
        socket.write_all(&wire::emit(&answer)?)?;
    }
    if let Some(component) = component {
        component.close();
    }
    Ok(())
}
