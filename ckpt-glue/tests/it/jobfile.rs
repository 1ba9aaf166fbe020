//! The fault-tolerance part of a job file: defaults, and errors that name the field.

use ckpt_glue::interval::{Every, Percentage};
use ckpt_glue::{JobConfig, OnFault};
use expect_test::expect;

#[test]
fn an_empty_file_is_all_defaults_and_is_written_out_whole() {
    let config = JobConfig::parse(b"{}").unwrap();
    assert_eq!(config, JobConfig::default());
    expect![[r#"
        {
          "checkpoint": {
            "protocol": "coordinated",
            "every": null,
            "mtbf": null,
            "budget": "10%",
            "timeout": "1m"
          },
          "fault": {
            "policy": {
              "thresholds": {
                "repeated-faults": 3,
                "repeated-within": "10m",
                "transient-within": "0s",
                "network-after": "1m"
              },
              "on": {
                "network": "wait",
                "process": "restart",
                "repeated": "migration, restart",
                "transient": "restart",
                "permanent": "migration, restart"
              }
            },
            "on_fault": "restart",
            "on_exit": "fail",
            "restarts_max": 5,
            "back_off": "200ms",
            "start_timeout": "1m"
          },
          "keeper": {
            "fan_out": 16,
            "heartbeat": "250ms",
            "heartbeats_missed_max": 20
          },
          "time_limit": null
        }"#]]
    .assert_eq(&config.emit());
    assert_eq!(JobConfig::parse(config.emit().as_bytes()), Ok(config));
}

#[test]
fn what_is_given_is_taken() {
    let json = br#"{"checkpoint": {"every": "90s"}, "fault": {"on_fault": "abort", "restarts_max": 0}}"#;
    let config = JobConfig::parse(json).unwrap();
    assert_eq!(config.checkpoint.every, Every::Fixed(std::time::Duration::from_secs(90)));
    let json = br#"{"checkpoint": {"every": "auto", "mtbf": "30d", "budget": "1%"}}"#;
    let checkpoint = JobConfig::parse(json).unwrap().checkpoint;
    assert_eq!((checkpoint.every, checkpoint.budget), (Every::Auto, Percentage(10_000)));
    assert_eq!(checkpoint.mtbf, Some(std::time::Duration::from_secs(30 * 86_400)));
    assert_eq!((config.fault.on_fault, config.fault.restarts_max), (OnFault::Abort, 0));
}

#[test]
fn errors_name_the_field_what_is_expected_and_what_is_there() {
    let wrong = [
        "",
        "[]",
        r#"{"checkpoint": {"evry": "5m"}}"#,
        r#"{"checkpoint": {"every": 5}}"#,
        r#"{"checkpoint": {"every": "5 minutes"}}"#,
        r#"{"checkpoint": {"every": "10us"}}"#,
        r#"{"checkpoint": {"mtbf": "1ms"}}"#,
        r#"{"checkpoint": {"budget": "0%"}}"#,
        r#"{"checkpoint": {"timeout": "0s"}}"#,
        r#"{"checkpoint": {"protocol": "optimistic"}}"#,
        r#"{"fault": {"policy": {"on": {"process": "transfer"}}}}"#,
        r#"{"fault": {"policy": {"on": {"process": "wait"}}}}"#,
        r#"{"fault": {"on_fault": "panic"}}"#,
        r#"{"fault": {"restarts_max": 100000}}"#,
        r#"{"fault": {"restarts_max": -1}}"#,
        r#"{"fault": {"back_off": "6s"}}"#,
        r#"{"keeper": {"fan_out": 0}}"#,
        r#"{"keeper": {"heartbeats_missed_max": 1}}"#,
        r#"{"keeper": {"heartbeat": "1us"}}"#,
    ];
    let reported = wrong.map(|json| match JobConfig::parse(json.as_bytes()) {
        Ok(config) => panic!("{json} is accepted as {config:?}"),
        Err(error) => format!("{json}\n    {error}"),
    });
    expect![[r#"

            job file, line 1 column 0: EOF while parsing a value at line 1 column 0
        []
            job file, line 1 column 1: a list is not expected anywhere
        {"checkpoint": {"evry": "5m"}}
            job file, line 1 column 22: unknown field `evry`, expected one of `protocol`, `every`, `mtbf`, `budget`, `timeout` at line 1 column 22
        {"checkpoint": {"every": 5}}
            job file, line 1 column 26: invalid type: integer `5`, expected a string at line 1 column 26
        {"checkpoint": {"every": "5 minutes"}}
            job file, line 1 column 37: `5 minutes` is not a time between checkpoints; write auto, off, or a number and a unit (ms, s, m, h, d), such as 5m or 1.5s, from 1ms to 366d at line 1 column 37
        {"checkpoint": {"every": "10us"}}
            job file, line 1 column 32: `10us` is not a time between checkpoints; write auto, off, or a number and a unit (ms, s, m, h, d), such as 5m or 1.5s, from 1ms to 366d at line 1 column 32
        {"checkpoint": {"mtbf": "1ms"}}
            job file: `checkpoint.mtbf` is 1ms; expected at least 1s
        {"checkpoint": {"budget": "0%"}}
            job file, line 1 column 31: `0%` is not a part of the running time; write a percentage above 0% and up to 100%, with at most four digits behind the point, such as 1% or 0.5% at line 1 column 31
        {"checkpoint": {"timeout": "0s"}}
            job file: `checkpoint.timeout` is 0s; expected at least 1ms
        {"checkpoint": {"protocol": "optimistic"}}
            job file: `checkpoint.protocol` names `optimistic`; this build has `coordinated`
        {"fault": {"policy": {"on": {"process": "transfer"}}}}
            job file, line 1 column 51: `transfer` is no recovery protocol; expected wait, ignore, restart, migration or stop at line 1 column 51
        {"fault": {"policy": {"on": {"process": "wait"}}}}
            job file: fault.policy: on.process is `wait`; expected ignore, restart, migration, stop
        {"fault": {"on_fault": "panic"}}
            job file, line 1 column 30: unknown variant `panic`, expected `restart` or `abort` at line 1 column 30
        {"fault": {"restarts_max": 100000}}
            job file: `fault.restarts_max` is 100000; expected 0 to 65536
        {"fault": {"restarts_max": -1}}
            job file, line 1 column 29: invalid value: integer `-1`, expected u32 at line 1 column 29
        {"fault": {"back_off": "6s"}}
            job file: `fault.back_off` is 6s; expected at most 5s
        {"keeper": {"fan_out": 0}}
            job file: `keeper.fan_out` is 0; expected 1 to 1024
        {"keeper": {"heartbeats_missed_max": 1}}
            job file: `keeper.heartbeats_missed_max` is 1; expected at least 2
        {"keeper": {"heartbeat": "1us"}}
            job file: `keeper.heartbeat` is 1us; expected at least 1ms"#]].assert_eq(&reported.join("\n"));
    let long = " ".repeat(ckpt_glue::limits::JOB_FILE_BYTES_MAX + 1);
    expect!["job file has 65537 bytes; at most 65536 are expected"]
        .assert_eq(&JobConfig::parse(long.as_bytes()).unwrap_err().to_string());
}
