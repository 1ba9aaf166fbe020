//! The output of the measuring program (`bench/mpi/figures.c`).

use std::collections::BTreeMap;

use crate::statistics::Summary;

/// A kind of transfer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Kind {
    /// A message and its answer.
    Pingpong,
    /// Messages one way.
    Stream,
    Allreduce,
    Alltoall,
    Put,
    Get,
}

impl Kind {
    /// Those that are no plain messages.
    pub(crate) const OPERATIONS: [Kind; 4] = [Kind::Allreduce, Kind::Alltoall, Kind::Put, Kind::Get];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Pingpong => "pingpong",
            Kind::Stream => "stream",
            Kind::Allreduce => "allreduce",
            Kind::Alltoall => "alltoall",
            Kind::Put => "put",
            Kind::Get => "get",
        }
    }

    fn of(name: &str) -> Option<Kind> {
        [Kind::Pingpong, Kind::Stream].into_iter().chain(Kind::OPERATIONS).find(|kind| kind.name() == name)
    }
}

/// Seconds for one transfer of each kind and length: the median of the blocks.
pub(crate) type Figures = BTreeMap<(Kind, u64), f64>;

/// Line that ends the output of a run in which every byte was compared.
pub(crate) const CHECKED: &str = "checked";
/// Line that ends a measurement.
const MEASURED: &str = "measured";

/// Reads a measurement; other lines are MPICH's. Returns a description of the fault if the output is wrong.
pub(crate) fn parse(output: &str) -> Result<Figures, String> {
    if !output.lines().any(|line| line == MEASURED) {
        return Err(format!("the measuring program ended before it said '{MEASURED}'"));
    }
    let mut blocks: BTreeMap<(Kind, u64), Vec<f64>> = BTreeMap::new();
    for line in output.lines() {
        let Some(rest) = line.strip_prefix("figure ") else { continue };
        let (place, seconds) = block(rest).ok_or_else(|| {
            format!("the measuring program said '{line}', not 'figure KIND BYTES COUNT SECONDS'")
        })?;
        blocks.entry(place).or_default().push(seconds);
    }
    Ok(blocks.into_iter().map(|(place, seconds)| (place, Summary::of(&seconds).median)).collect())
}

fn block(line: &str) -> Option<((Kind, u64), f64)> {
    let mut words = line.split(' ');
    let kind = Kind::of(words.next()?)?;
    let bytes: u64 = words.next()?.parse().ok()?;
    let count: u32 = words.next()?.parse().ok()?;
    let seconds: f64 = words.next()?.parse().ok()?;
    let whole = words.next().is_none() && count > 0 && seconds.is_finite() && seconds > 0.0;
    whole.then(|| ((kind, bytes), seconds / f64::from(count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_become_medians_and_other_lines_are_passed_over() {
        let output = "libfabric provider: tcp\nfigure pingpong 8 1000 0.002\nfigure pingpong 8 1000 0.003\n\
                      figure pingpong 8 1000 0.010\nfigure stream 8 64 0.000064\nmeasured\n";
        let figures = parse(output).expect("figures");
        assert_eq!(figures.len(), 2);
        assert!((figures[&(Kind::Pingpong, 8)] - 3e-6).abs() < 1e-12);
        assert!((figures[&(Kind::Stream, 8)] - 1e-6).abs() < 1e-12);
    }

    #[test]
    fn what_is_cut_off_or_no_figure_is_refused_with_the_line() {
        let cut = parse("figure pingpong 8 1000 0.002\n").expect_err("no end");
        assert!(cut.contains("before it said 'measured'"), "{cut}");
        for bad in [
            "figure ping 8 1 0.1",
            "figure put 8 1",
            "figure put 8 0 0.1",
            "figure put 8 1 -0.1",
            "figure put 8 1 NaN",
            "figure put x 1 0.1",
            "figure put 8 1 0.1 more",
        ] {
            let refused = parse(&format!("{bad}\nmeasured\n")).expect_err(bad);
            assert!(refused.contains(bad), "{refused}");
        }
    }
}
