//! The cost model's choice, beside all shapes at the same point.

use std::process::Command;

use serde_json::Value;

#[test]
fn a_choice_is_compared_with_the_fastest_shape_at_its_point() {
    let command = [
        "parity",
        "--nodes",
        "2",
        "--mib",
        "1",
        "--shape",
        "all,auto",
        "--runs",
        "1",
        "--delay-ms",
        "0,1",
        "--json",
    ];
    let output =
        Command::new(env!("CARGO_BIN_EXE_bench")).args(command).output().expect("the program starts");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 2 * 5);
    let point = |row: &Value| (row["nodes"].as_u64(), row["delay_ms"].as_f64());
    let seconds = |row: &Value| row["seconds"].as_f64().expect("a time");
    let chosen = |row: &&Value| row["chosen"] == true;
    assert_eq!(rows.iter().filter(chosen).count(), 2);
    for row in rows {
        if !chosen(&row) {
            assert!(row["ratio_to_best"].is_null(), "{row}");
            continue;
        }
        let others = rows.iter().filter(|other| !chosen(other) && point(other) == point(row));
        let best = others.map(seconds).reduce(f64::min).expect("four shapes");
        let ratio = row["ratio_to_best"].as_f64().expect("a ratio");
        assert!((ratio - seconds(row) / best).abs() < 1e-9, "{row} {best}");
    }
}
