//! Requests that are open across a cut: sends and receives, short and long, in both directions, begun before a point and
//! waited for after it, perhaps in another process of another life. The ranks are this very file, run by `stillwire run`.

use std::path::PathBuf;

use crate::support::{Place, Running, done, signal, stillwire, wait_until};
use session::{Outcome, Protect, Region, Request, Session};

/// Names the file that lets the ranks end.
const ENOUGH: &str = "STILLWIRE_TEST_ENOUGH";

/// Lengths of the messages of one kind: two that travel with their envelope, one that is announced and pulled.
const BYTES: [usize; 3] = [1000, 8, 300_000];

/// Tags of messages that are sent before the point and whose receive is posted after it, and the other way round.
const SENT_EARLY: u64 = 100;
const AWAITED_EARLY: u64 = 200;

/// A rank's protected data: its round, and the numbers of the requests that are open at its point.
#[derive(Default)]
struct RankRegions {
    round: [u8; 8],
    open: Vec<u8>,
}

impl Protect for RankRegions {
    fn regions(&mut self) -> Vec<Region<'_>> {
        vec![
            Region::Fixed { id: 1, bytes: &mut self.round },
            Region::Growing { id: 2, bytes: &mut self.open },
        ]
    }
}

/// Contents that no other message has.
fn contents(round: u64, from: u32, tag: u64, bytes: usize, last: bool) -> Vec<u8> {
    let seed = round.wrapping_mul(1_000_003) ^ (u64::from(from) << 40) ^ (tag << 44);
    let byte = |at: u64| (seed ^ at.wrapping_mul(0x9e37_79b9)).to_le_bytes()[3];
    let mut contents: Vec<u8> = (0..bytes as u64).map(byte).collect();
    contents[0] = u8::from(last);
    contents
}

fn tags(kind: u64) -> impl Iterator<Item = (u64, usize)> {
    BYTES.iter().zip(kind..).map(|(bytes, tag)| (tag, *bytes))
}

fn send_all(session: &mut Session, kind: u64, round: u64, last: bool) -> Vec<Request> {
    let (me, peer) = (session.rank(), 1 - session.rank());
    tags(kind)
        .map(|(tag, bytes)| session.isend(peer, tag, contents(round, me, tag, bytes, last)).expect("room"))
        .collect()
}

fn post_all(session: &mut Session, kind: u64) -> Vec<Request> {
    let peer = 1 - session.rank();
    tags(kind).map(|(tag, bytes)| session.irecv(peer, tag, bytes + 1).expect("room")).collect()
}

/// Takes the outcomes of receives, which must be the peer's messages of this round. Returns whether the peer ends with it.
fn received(session: &mut Session, kind: u64, round: u64, requests: &[Request]) -> bool {
    let peer = 1 - session.rank();
    let mut last = false;
    for (request, (tag, bytes)) in requests.iter().zip(tags(kind)) {
        let message = session.wait(*request).expect("it is open").message().expect("a receive");
        last = message.bytes.first() == Some(&1);
        assert_eq!(message.bytes, contents(round, peer, tag, bytes, last), "round {round}, tag {tag}");
    }
    last
}

/// Not a test by itself: the program of a rank.
#[test]
fn a_rank() {
    let Some(enough) = std::env::var_os(ENOUGH).map(PathBuf::from) else { return };
    let mut session = Session::open().expect("a launcher");
    let mut kept = RankRegions::default();
    let mut restored = session.protect(&mut kept).expect("its own regions");
    if restored {
        println!("rank {} goes on in round {}", session.rank(), u64::from_le_bytes(kept.round));
    }
    loop {
        let round = u64::from_le_bytes(kept.round);
        if !core::mem::take(&mut restored) {
            let mut open = send_all(&mut session, SENT_EARLY, round, false);
            open.extend(post_all(&mut session, AWAITED_EARLY));
            kept.open = open.iter().flat_map(|request| request.number().to_le_bytes()).collect();
            session.point(&mut kept).expect("it can be saved");
        }
        let open: Vec<Request> = kept
            .open
            .chunks_exact(8)
            .map(|number| u64::from_le_bytes(number.try_into().expect("eight")))
            .map(|number| session.request(number).expect("open across the cut"))
            .collect();
        let (sent, awaited) = open.split_at(BYTES.len());
        let ends = session.rank() == 0 && enough.exists();
        let late = post_all(&mut session, SENT_EARLY);
        let answered = send_all(&mut session, AWAITED_EARLY, round, ends);
        let ends = received(&mut session, AWAITED_EARLY, round, awaited) || ends;
        received(&mut session, SENT_EARLY, round, &late);
        for request in sent.iter().chain(&answered) {
            assert_eq!(session.wait(*request).expect("it is open"), Outcome::Sent);
        }
        kept.round = (round + 1).to_le_bytes();
        if ends {
            break;
        }
    }
    println!("rank {} is done after round {}", session.rank(), u64::from_le_bytes(kept.round));
    session.finalize().expect("all finish");
}

fn run(place: &Place) -> Running {
    let own = std::env::current_exe().expect("it runs").display().to_string();
    let enough = format!("{ENOUGH}={}", place.enough().display());
    let mut command = stillwire(&["run", "-n", "2", "--ckpt-every", "30ms", "--retries", "100"]);
    command.args(["--ckpt-dir", &place.job_text(), "--env", &enough, "--", &own]);
    command.args(["--exact", "requests::a_rank", "--nocapture"]);
    Running::start(command)
}

/// Both ranks came to the end, and at least one of them had gone on from a cut.
fn went_on(done: &crate::support::Done) {
    assert_eq!(done.code, Some(0), "{done:?}");
    for rank in 0..2 {
        assert!(done.stdout.contains(&format!("rank {rank} goes on in round")), "{done:?}");
        assert!(done.stdout.contains(&format!("rank {rank} is done after round")), "{done:?}");
    }
}

#[test]
fn open_requests_survive_the_death_of_either_end() {
    let place = Place::new();
    let mut job = run(&place);
    for victim in [0, 1, 1, 0] {
        job.wait_for("committed");
        signal(job.ranks()[victim], "KILL");
        job.wait_for(&format!("rank {victim} died (signal 9); rolling back"));
        job.wait_for("all ranks run again");
    }
    place.let_end();
    went_on(&job.finish());
}

#[test]
fn open_requests_survive_a_restart_of_the_whole_job() {
    let place = Place::new();
    let mut job = run(&place);
    job.wait_for("committed");
    job.wait_for("committed");
    job.signal("KILL");
    job.finish();
    wait_until("the guard has cleaned up", || place.lock_is_free());
    let mut job = place.restart(&[]);
    job.wait_for("all ranks run");
    // And once more in the new life.
    job.wait_for("committed");
    signal(job.ranks()[1], "KILL");
    job.wait_for("all ranks run again");
    place.let_end();
    went_on(&job.finish());
    assert_eq!(done(&mut stillwire(&["verify", &place.job_text()])).code, Some(0));
}
