//! Times histories.
fn main() {
    let mut args = std::env::args().skip(1);
    let first: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(0);
    let count: u64 = args.next().and_then(|a| a.parse().ok()).unwrap_or(20);
    let trace = args.next().is_some();
    let begin = std::time::Instant::now();
    let (mut frames, mut events) = (0, 0);
    for seed in first..first + count {
        if std::env::var_os("LOUD").is_some() {
            eprintln!("{seed}");
        }
        let mut world = sim::world::World::new(sim::plan::generate(seed, 4), trace);
        world.run();
        events += world.events;
        if count <= 50 || !world.violations().is_empty() {
            println!("{seed}: {}", world.summary());
        }
        if !world.violations().is_empty() && !trace {
            println!("{}", world.ports_text());
        }
        if trace {
            println!("{}", world.trace_text());
        }
        frames += 1;
    }
    let t = begin.elapsed();
    println!("{frames} histories {events} events {:?} per history", t / count as u32);
}
