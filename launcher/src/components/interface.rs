//! The structures of `include/stillwire_component.h`, field by field, and its numbers.

use std::ffi::{c_char, c_int, c_void};

use ckpt_glue::recovery::{Confidence, FaultModel, Plan, RecoveryProtocol};

use super::ComponentKind;

/// `STILLWIRE_COMPONENT_VERSION`.
pub(super) const VERSION: u32 = 1;

/// The exported function.
pub(super) const ENTRY: &[u8] = b"stillwire_component\0";

pub(super) const NAME_BYTES: usize = 64;
pub(super) const REASON_BYTES: usize = 128;
/// `STILLWIRE_NONE`.
pub(crate) const NONE: i32 = -1;

/// `STILLWIRE_BUILT_IN`.
pub(crate) const BUILT_IN: u32 = 0;

#[repr(C)]
pub(super) struct Job {
    pub(super) size: u32,
    pub(super) ranks: u32,
    pub(super) nodes: u32,
    pub(super) reserved: u32,
    pub(super) job: *const c_char,
    pub(super) argument: *const c_char,
}

#[repr(C)]
pub(super) struct Node {
    pub(super) size: u32,
    pub(super) node: u32,
    pub(super) ranks: u32,
    pub(super) answers: u32,
    pub(super) host: *const c_char,
}

#[repr(C)]
pub(super) struct Nodes {
    pub(super) size: u32,
    pub(super) count: u32,
    pub(super) now_ms: u64,
    pub(super) nodes: *const Node,
}

#[repr(C)]
pub(super) struct Report {
    pub(super) size: u32,
    pub(super) kind: u32,
    pub(super) now_ms: u64,
    pub(super) silent_ms: u64,
    pub(super) rank: i32,
    pub(super) node: i32,
    pub(super) exit_code: i32,
    pub(super) signal: i32,
    pub(super) model: u32,
    pub(super) is_asked: u32,
}

#[repr(C)]
pub(super) struct Suspicion {
    pub(super) size: u32,
    pub(super) node: u32,
    pub(super) reason: [c_char; REASON_BYTES],
}

pub(super) type Open = unsafe extern "C" fn(*const Job, *mut *mut c_void) -> c_int;
pub(super) type Close = unsafe extern "C" fn(*mut c_void);

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Detector {
    pub(super) size: u32,
    pub(super) period_ms: u32,
    pub(super) open: Option<Open>,
    pub(super) close: Option<Close>,
    pub(super) report: Option<unsafe extern "C" fn(*mut c_void, *const Report) -> u32>,
    pub(super) poll: Option<unsafe extern "C" fn(*mut c_void, *const Nodes, *mut Suspicion) -> c_int>,
}

#[repr(C)]
pub(super) struct Candidate {
    pub(super) size: u32,
    pub(super) ranks: u32,
    pub(super) host: *const c_char,
}

#[repr(C)]
pub(super) struct Fault {
    pub(super) size: u32,
    pub(super) model: u32,
    pub(super) confidence: u32,
    pub(super) protocol: u32,
    pub(super) now_ms: u64,
    pub(super) rank: i32,
    pub(super) node: u32,
    pub(super) host: *const c_char,
    pub(super) candidates_count: u32,
    pub(super) reserved: u32,
    pub(super) candidates: *const Candidate,
}

#[repr(C)]
pub(super) struct Reaction {
    pub(super) size: u32,
    pub(super) protocol: u32,
    pub(super) candidate: i32,
    pub(super) reason: [c_char; REASON_BYTES],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Recovery {
    pub(super) size: u32,
    pub(super) reserved: u32,
    pub(super) open: Option<Open>,
    pub(super) close: Option<Close>,
    pub(super) react: Option<unsafe extern "C" fn(*mut c_void, *const Fault, *mut Reaction) -> c_int>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Component {
    pub(super) size: u32,
    pub(super) version: u32,
    pub(super) kind: u32,
    pub(super) reserved: u32,
    pub(super) name: *const c_char,
    pub(super) functions: *const c_void,
}

pub(super) type Entry = unsafe extern "C" fn() -> *const Component;

/// The size of a structure, as it stands in its first field.
pub(super) fn size_of<T>() -> u32 {
    u32::try_from(core::mem::size_of::<T>()).unwrap_or(u32::MAX)
}

/// The numbers of the kinds of components.
pub(super) const KINDS: [(u32, ComponentKind); 2] =
    [(1, ComponentKind::Detector), (2, ComponentKind::Recovery)];

/// The numbers of the kinds of reports.
pub(crate) mod report_kind {
    pub(crate) const RANK_DIED: u32 = 1;
    pub(crate) const RANK_NOT_STARTED: u32 = 2;
    pub(crate) const RANK_SILENT: u32 = 3;
    pub(crate) const RANK_HEARD: u32 = 4;
    pub(crate) const NODE_OVERDUE: u32 = 5;
    pub(crate) const NODE_HEARD: u32 = 6;
    pub(crate) const NODE_SILENT: u32 = 7;
    pub(crate) const NODE_CUT_OFF: u32 = 8;
    pub(crate) const NODE_SUSPECTED: u32 = 9;
    pub(crate) const OTHER_REPORT: u32 = 10;
}

const MODELS: [(u32, FaultModel); 5] = [
    (1, FaultModel::Network),
    (2, FaultModel::Process),
    (3, FaultModel::Repeated),
    (4, FaultModel::Transient),
    (5, FaultModel::Permanent),
];

/// The number of a model; that of the others, which have no reaction to choose, is [`BUILT_IN`].
pub(crate) fn model_code(model: FaultModel) -> u32 {
    MODELS.into_iter().find(|(_, of)| *of == model).map_or(BUILT_IN, |(code, _)| code)
}

/// The model of a number.
pub(crate) fn model_of(code: u32) -> Option<FaultModel> {
    MODELS.into_iter().find(|(of, _)| *of == code).map(|(_, model)| model)
}

const PROTOCOLS: [(u32, RecoveryProtocol); 4] = [
    (1, RecoveryProtocol::Restart),
    (2, RecoveryProtocol::Migration),
    (3, RecoveryProtocol::Stop),
    (4, RecoveryProtocol::Ignore),
];

/// The protocol of a number.
pub(crate) fn protocol_of(code: u32) -> Option<RecoveryProtocol> {
    PROTOCOLS.into_iter().find(|(of, _)| *of == code).map(|(_, protocol)| protocol)
}

/// The number of a plan's protocol.
pub(crate) fn plan_code(plan: Plan) -> u32 {
    let protocol = match plan {
        Plan::Migrate { .. } => RecoveryProtocol::Migration,
        Plan::Stop { .. } => RecoveryProtocol::Stop,
        Plan::Ignore { .. } => RecoveryProtocol::Ignore,
        _ => RecoveryProtocol::Restart,
    };
    PROTOCOLS.into_iter().find(|(_, of)| *of == protocol).map_or(BUILT_IN, |(code, _)| code)
}

/// The number of a confidence.
pub(crate) fn confidence_code(confidence: Confidence) -> u32 {
    match confidence {
        Confidence::Certain => 1,
        Confidence::TimedOut => 2,
        Confidence::Person => 3,
        Confidence::Component => 4,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// Assertions of C that a structure of the header has this size and these fields.
    macro_rules! layout {
        ($text:expr, $name:literal, $type:ty, $($field:ident),*) => {
            writeln!($text, "_Static_assert(sizeof(struct {}) == {}, \"size\");", $name, core::mem::size_of::<$type>())
                .expect("a string");
            $(writeln!(
                $text,
                "_Static_assert(offsetof(struct {}, {}) == {}, \"{1}\");",
                $name, stringify!($field), core::mem::offset_of!($type, $field)
            ).expect("a string");)*
        };
    }

    #[test]
    fn the_header_has_these_layouts_and_numbers() {
        let mut text = "#include <stddef.h>\n#include \"stillwire_component.h\"\n".to_owned();
        layout!(text, "stillwire_job", Job, size, ranks, nodes, reserved, job, argument);
        layout!(text, "stillwire_node", Node, size, node, ranks, answers, host);
        layout!(text, "stillwire_nodes", Nodes, size, count, now_ms, nodes);
        layout!(
            text,
            "stillwire_report",
            Report,
            size,
            kind,
            now_ms,
            silent_ms,
            rank,
            node,
            exit_code,
            signal,
            model,
            is_asked
        );
        layout!(text, "stillwire_suspicion", Suspicion, size, node, reason);
        layout!(text, "stillwire_detector", Detector, size, period_ms, open, close, report, poll);
        layout!(text, "stillwire_candidate", Candidate, size, ranks, host);
        layout!(
            text,
            "stillwire_fault",
            Fault,
            size,
            model,
            confidence,
            protocol,
            now_ms,
            rank,
            node,
            host,
            candidates_count,
            reserved,
            candidates
        );
        layout!(text, "stillwire_reaction", Reaction, size, protocol, candidate, reason);
        layout!(text, "stillwire_recovery", Recovery, size, reserved, open, close, react);
        layout!(text, "stillwire_component", Component, size, version, kind, reserved, name, functions);
        let mut number = |name: &str, value: i64| {
            writeln!(text, "_Static_assert(STILLWIRE_{name} == {value}, \"{name}\");").expect("a string");
        };
        number("COMPONENT_VERSION", VERSION.into());
        number("BUILT_IN", BUILT_IN.into());
        number("NONE", NONE.into());
        number("NAME_BYTES", i64::try_from(NAME_BYTES).expect("a small number"));
        number("REASON_BYTES", i64::try_from(REASON_BYTES).expect("a small number"));
        for (code, kind) in KINDS {
            number(if kind == ComponentKind::Detector { "DETECTOR" } else { "RECOVERY" }, code.into());
        }
        for (name, kind) in [
            ("RANK_DIED", report_kind::RANK_DIED),
            ("RANK_NOT_STARTED", report_kind::RANK_NOT_STARTED),
            ("RANK_SILENT", report_kind::RANK_SILENT),
            ("RANK_HEARD", report_kind::RANK_HEARD),
            ("NODE_OVERDUE", report_kind::NODE_OVERDUE),
            ("NODE_HEARD", report_kind::NODE_HEARD),
            ("NODE_SILENT", report_kind::NODE_SILENT),
            ("NODE_CUT_OFF", report_kind::NODE_CUT_OFF),
            ("NODE_SUSPECTED", report_kind::NODE_SUSPECTED),
            ("OTHER_REPORT", report_kind::OTHER_REPORT),
        ] {
            number(name, kind.into());
        }
        for model in FaultModel::CHOSEN {
            number(&model.name().to_uppercase(), model_code(model).into());
            assert_eq!(model_of(model_code(model)), Some(model));
        }
        for (code, protocol) in PROTOCOLS {
            number(&protocol.name().to_uppercase(), code.into());
        }
        for (name, confidence) in [
            ("CERTAIN", Confidence::Certain),
            ("TIMED_OUT", Confidence::TimedOut),
            ("PERSON", Confidence::Person),
            ("COMPONENT", Confidence::Component),
        ] {
            number(name, confidence_code(confidence).into());
        }
        let folder = tempfile::tempdir().expect("a folder");
        let source = folder.path().join("layout.c");
        std::fs::write(&source, text).expect("a file");
        let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include");
        let mut compiler = Command::new("cc");
        compiler.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"]);
        let output = compiler.arg(header).arg(source).output().expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
