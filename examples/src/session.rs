//! The communicator of a real job: a rank that `stillwire run` started.

use session::Session;

use crate::communicator::{Communicator, Fault, State, Tag};

/// A program's state as a session protects it.
struct Protected<'a>(&'a mut dyn State);

impl session::Protect for Protected<'_> {
    fn regions(&mut self) -> Vec<session::Region<'_>> {
        self.0.regions().into_iter().map(|region| session::Region::fixed(region.id, region.bytes)).collect()
    }
}

impl Communicator for Session {
    fn rank(&self) -> u32 {
        Session::rank(self)
    }

    fn size(&self) -> u32 {
        Session::size(self)
    }

    fn send(&mut self, to: u32, tag: Tag, bytes: Vec<u8>) -> Result<(), Fault> {
        Ok(Session::send(self, to, tag.0, bytes)?)
    }

    fn begin_send(&mut self, to: u32, tag: Tag, bytes: Vec<u8>) -> Result<u64, Fault> {
        Ok(self.isend(to, tag.0, bytes)?.number())
    }

    fn end_send(&mut self, request: u64) -> Result<(), Fault> {
        if let Some(request) = self.request(request) {
            self.wait(request)?;
        }
        Ok(())
    }

    fn receive(&mut self, from: u32, tag: Tag) -> Result<Vec<u8>, Fault> {
        Ok(self.recv(from, tag.0)?.bytes)
    }

    fn restore(&mut self, state: &mut dyn State) -> Result<bool, Fault> {
        Ok(self.protect(&mut Protected(state))?)
    }

    fn point(&mut self, state: &mut dyn State) -> Result<(), Fault> {
        Ok(Session::point(self, &mut Protected(state))?)
    }
}
