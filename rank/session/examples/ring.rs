//! A token goes round and round; killed ranks do not keep it from its way.
//!
//! ```text
//! cargo build --release --package stillwire-session --example ring
//! stillwire run -n 4 --ckpt-every 100ms -- target/release/examples/ring 100000
//! ```
//!
//! Kill any of its processes meanwhile: the job goes back to its last checkpoint, and the sum is right.

use session::{Protect, Region, Session, SessionError};

const TOKEN: u64 = 1;

/// All that must survive: steps done, and the token's value. Saved as it lies in memory.
struct State([u8; 16]);

impl State {
    fn get(&self) -> (u64, u64) {
        let number = |at: usize| u64::from_le_bytes(self.0[at..at + 8].try_into().expect("8 bytes"));
        (number(0), number(8))
    }

    fn set(&mut self, step: u64, value: u64) {
        self.0[..8].copy_from_slice(&step.to_le_bytes());
        self.0[8..].copy_from_slice(&value.to_le_bytes());
    }
}

impl Protect for State {
    fn regions(&mut self) -> Vec<Region<'_>> {
        vec![Region::fixed(1, &mut self.0)]
    }
}

fn main() -> Result<(), SessionError> {
    let steps = std::env::args().nth(1).and_then(|steps| steps.parse().ok()).unwrap_or(10_000);
    let mut session = Session::open()?;
    // A rank that had finished before the restart has only to wait for the others.
    if !session.had_finished() {
        let (rank, size) = (session.rank(), session.size());
        let (next, previous) = ((rank + 1) % size, (rank + size - 1) % size);
        let mut state = State([0; 16]);
        // After a restart the state is that of the point; else it stays unchanged.
        session.protect(&mut state)?;
        while state.get().0 < steps {
            let (step, value) = state.get();
            session.send(next, TOKEN, (value + 1).to_le_bytes().to_vec())?;
            let message = session.recv(previous, TOKEN)?;
            let received = u64::from_le_bytes(message.bytes.try_into().expect("8 bytes were sent"));
            state.set(step + 1, received);
            session.point(&mut state)?;
        }
        let (step, value) = state.get();
        assert_eq!(step, value, "each step adds one to each token, once");
        println!("{step} steps, token {value}");
    }
    session.finalize()
}
