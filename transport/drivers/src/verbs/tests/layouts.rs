//! The interface as it is written in `abi` and `library`, against a C compiler's reading of `infiniband/verbs.h`: the machine's, if it has one, and
//! those that tests/verbs/layouts fetches.

use core::mem::offset_of;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::super::abi;

#[path = "../../../../../tests/compiled.rs"]
mod compiled;
#[path = "../../../../../tests/skipped.rs"]
mod skipped;

/// Folders with `infiniband/verbs.h`, between colons.
const FOLDERS: &str = "STILLWIRE_VERBS_INCLUDE";

/// A structure here and in C. The library makes some, of which only the first fields are known here.
struct Structure {
    name: &'static str,
    c_name: &'static str,
    bytes: usize,
    whole: bool,
    fields: Vec<Field>,
}

struct Field {
    name: &'static str,
    c_name: &'static str,
    offset: usize,
    bytes: usize,
}

fn bytes_of<T, F>(_: fn(&T) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! structures {
    ($($name:ident = $kind:ident $c_name:literal { $($field:ident = $c_field:literal),* })*) => {
        vec![$(Structure {
            name: stringify!($name),
            c_name: $c_name,
            bytes: size_of::<abi::$name>(),
            whole: stringify!($kind) == "whole",
            fields: vec![$(Field {
                name: stringify!($field),
                c_name: $c_field,
                offset: offset_of!(abi::$name, $field),
                bytes: bytes_of(|structure: &abi::$name| &structure.$field),
            }),*],
        }),*]
    };
}

fn structures() -> Vec<Structure> {
    structures! {
        AlignedGid = whole "union ibv_gid" {}
        ContextCalls = whole "struct ibv_context_ops" {
            poll_cq = "poll_cq", request_notify = "req_notify_cq", post_send = "post_send", post_receive = "post_recv"
        }
        Context = start "struct ibv_context" { calls = "ops", command_fd = "cmd_fd", event_fd = "async_fd" }
        CompletionQueue = start "struct ibv_cq" { context = "context" }
        CompletionChannel = start "struct ibv_comp_channel" { fd = "fd" }
        QueuePair = start "struct ibv_qp" { context = "context", number = "qp_num" }
        MemoryRegion = start "struct ibv_mr" { local_key = "lkey" }
        DeviceAttributes = whole "struct ibv_device_attr" {
            requests_max = "max_qp_wr", completions_max = "max_cqe", ports = "phys_port_cnt"
        }
        // Newer headers have fields behind, which the function of version 1.1 does not write.
        PortAttributes = start "struct ibv_port_attr" {
            state = "state", mtu = "active_mtu", gids = "gid_tbl_len", lid = "lid", link_layer = "link_layer",
            flags = "flags"
        }
        GlobalRoute = whole "struct ibv_global_route" {
            to = "dgid", flow_label = "flow_label", own_gid_index = "sgid_index", hop_limit = "hop_limit",
            traffic_class = "traffic_class"
        }
        HandleAttributes = whole "struct ibv_ah_attr" {
            route = "grh", to_lid = "dlid", service_level = "sl", source_path_bits = "src_path_bits",
            static_rate = "static_rate", has_route = "is_global", port = "port_num"
        }
        QueueLimits = whole "struct ibv_qp_cap" {
            sends = "max_send_wr", receives = "max_recv_wr", send_pieces = "max_send_sge",
            receive_pieces = "max_recv_sge", inline_bytes = "max_inline_data"
        }
        QueuePairSetup = whole "struct ibv_qp_init_attr" {
            user = "qp_context", send_queue = "send_cq", receive_queue = "recv_cq", shared_receive = "srq",
            limits = "cap", kind = "qp_type", signal_all = "sq_sig_all"
        }
        QueuePairAttributes = whole "struct ibv_qp_attr" {
            state = "qp_state", key = "qkey", receive_number = "rq_psn", send_number = "sq_psn",
            partition = "pkey_index", port = "port_num"
        }
        Piece = whole "struct ibv_sge" { address = "addr", bytes = "length", local_key = "lkey" }
        ReceiveRequest = whole "struct ibv_recv_wr" {
            id = "wr_id", next = "next", pieces = "sg_list", piece_count = "num_sge"
        }
        SendRequest = whole "struct ibv_send_wr" {
            id = "wr_id", next = "next", pieces = "sg_list", piece_count = "num_sge", operation = "opcode",
            flags = "send_flags", immediate = "imm_data", to = "wr.ud.ah", to_queue = "wr.ud.remote_qpn",
            to_key = "wr.ud.remote_qkey"
        }
        Completion = whole "struct ibv_wc" {
            id = "wr_id", status = "status", operation = "opcode", vendor_error = "vendor_err", bytes = "byte_len"
        }
        Event = whole "struct ibv_async_event" { element = "element", kind = "event_type" }
    }
}

/// Structures of which only pointers are used.
const OPAQUE: [(&str, &str); 3] =
    [("Device", "struct ibv_device"), ("Domain", "struct ibv_pd"), ("AddressHandle", "struct ibv_ah")];

macro_rules! constants {
    ($($name:ident = $c_name:literal)*) => {
        vec![$((stringify!($name), $c_name, i64::try_from(abi::$name).expect("a small number"))),*]
    };
}

fn constants() -> Vec<(&'static str, &'static str, i64)> {
    constants! {
        GRH_BYTES = "sizeof(struct ibv_grh)"
        PORT_ACTIVE = "IBV_PORT_ACTIVE"
        LINK_LAYER_ETHERNET = "IBV_LINK_LAYER_ETHERNET"
        ROUTE_REQUIRED = "IBV_QPF_GRH_REQUIRED"
        UNRELIABLE_DATAGRAM = "IBV_QPT_UD"
        RESET = "IBV_QPS_RESET"
        INIT = "IBV_QPS_INIT"
        READY_TO_RECEIVE = "IBV_QPS_RTR"
        READY_TO_SEND = "IBV_QPS_RTS"
        HAS_STATE = "IBV_QP_STATE"
        HAS_PARTITION = "IBV_QP_PKEY_INDEX"
        HAS_PORT = "IBV_QP_PORT"
        HAS_KEY = "IBV_QP_QKEY"
        HAS_SEND_NUMBER = "IBV_QP_SQ_PSN"
        SEND = "IBV_WR_SEND"
        SIGNALLED = "IBV_SEND_SIGNALED"
        INLINE = "IBV_SEND_INLINE"
        SUCCESS = "IBV_WC_SUCCESS"
        COMPLETION_QUEUE_ERROR = "IBV_EVENT_CQ_ERR"
        QUEUE_PAIR_ACCESS_ERROR = "IBV_EVENT_QP_ACCESS_ERR"
        DEVICE_FATAL = "IBV_EVENT_DEVICE_FATAL"
    }
}

/// Fields that only fill a structure up: where the others lie says where these do.
fn is_filling(field: &str) -> bool {
    field.starts_with("before_") || ["rest", "between", "padding"].contains(&field)
}

/// Names that the source declares and the tables above lack.
fn missing() -> Vec<String> {
    let (structures, constants) = (structures(), constants());
    let mut missing = Vec::new();
    let mut inside = None;
    for line in include_str!("../abi.rs").lines() {
        let line = line.trim_start();
        let (line, is_used) = line.strip_prefix("pub(super) ").map_or((line, false), |line| (line, true));
        let name = |rest: &'static str| rest.split([' ', ':', '(']).next().unwrap_or_default();
        if let Some(name) = line.strip_prefix("struct ").map(name) {
            inside = structures.iter().find(|structure| structure.name == name);
            if inside.is_none() && !OPAQUE.iter().any(|(opaque, _)| *opaque == name) {
                missing.push(name.to_owned());
            }
        } else if let Some(name) = line.strip_prefix("const ").map(name) {
            if name != "_" && !constants.iter().any(|(constant, ..)| *constant == name) {
                missing.push(name.to_owned());
            }
        } else if line == "}" {
            inside = None;
        } else if let (Some(structure), Some((field, _))) = (inside, line.split_once(": ")) {
            let is_known = structure.fields.iter().any(|known| known.name == field);
            // Fields that nothing here reads are private.
            if is_used && !is_known && !is_filling(field) {
                missing.push(format!("{}.{field}", structure.name));
            }
        }
    }
    missing
}

/// A type of `library` in C.
fn c_type(rust: &str) -> String {
    let rust = rust.trim();
    if let Some(pointed) = rust.strip_prefix("*mut ") {
        return format!("{} *", c_type(pointed));
    }
    let structures = structures();
    let structure = |name: &str| {
        let known = structures.iter().map(|structure| (structure.name, structure.c_name)).chain(OPAQUE);
        known.into_iter().find(|(known, _)| *known == name).map(|(_, c_name)| c_name)
    };
    match rust {
        "c_int" => "int".to_owned(),
        "c_uint" => "unsigned int".to_owned(),
        "c_void" | "" => "void".to_owned(),
        "u8" => "uint8_t".to_owned(),
        "usize" => "size_t".to_owned(),
        "abi::DeviceList" => "struct ibv_device **".to_owned(),
        "abi::Name" => "const char *".to_owned(),
        _ => rust.strip_prefix("abi::").and_then(structure).expect("a type in the table").to_owned(),
    }
}

/// The functions of `library`: name, arguments and result in C.
fn functions() -> Vec<(String, String, String)> {
    let source = include_str!("../library.rs");
    let (_, list) = source.split_once("\nfunctions! {").expect("the list of functions");
    let (list, _) = list.split_once("\n}").expect("its end");
    list.split(';')
        .filter_map(|function| {
            let (_, rest) = function.split_once("c\"")?;
            let (name, rest) = rest.split_once("\": fn(")?;
            let (arguments, result) = rest.split_once(')')?;
            let result = result.split_once("->").map_or("", |(_, result)| result);
            let arguments: Vec<String> =
                arguments.split(',').filter(|argument| !argument.trim().is_empty()).map(c_type).collect();
            // Newer headers name the structure of version 1.1, which is shorter, otherwise.
            let of_its_version = |argument: String| {
                if name == "ibv_query_port" {
                    argument.replace("struct ibv_port_attr *", "PORT_ATTR *")
                } else {
                    argument
                }
            };
            let arguments: Vec<String> = arguments.into_iter().map(of_its_version).collect();
            let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
            Some((name.to_owned(), arguments, c_type(result)))
        })
        .collect()
}

/// A program that prints what differs, a line each, and at last how much it has compared.
fn program() -> String {
    let mut program = String::from(
        "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n\
         static long compared;\n\
         static void same(const char *name, long c, long rust) {\n\
         compared++; if (c != rust) printf(\"%s: %ld in C, %ld in Rust\\n\", name, c, rust); }\n\
         #ifdef ibv_query_port\n#define PORT_ATTR struct _compat_ibv_port_attr\n#else\n\
         #define PORT_ATTR struct ibv_port_attr\n#endif\n\
         int main(void) {\n",
    );
    let mut line = |text: String| writeln!(program, "{text}").expect("memory");
    for Structure { name, c_name, bytes, whole, fields } in structures() {
        if whole {
            line(format!("same(\"size of {name}\", sizeof({c_name}), {bytes});"));
        } else {
            line(format!("same(\"{name} is no longer than in C\", sizeof({c_name}) >= {bytes}, 1);"));
        }
        for Field { name: field, c_name: c_field, offset, bytes } in fields {
            line(format!("same(\"offset of {name}.{field}\", offsetof({c_name}, {c_field}), {offset});"));
            line(format!("same(\"size of {name}.{field}\", sizeof((({c_name} *)0)->{c_field}), {bytes});"));
        }
    }
    for (name, c_name, value) in constants() {
        line(format!("same(\"{name}\", {c_name}, {value});"));
    }
    for (name, arguments, result) in functions() {
        line(format!(
            "same(\"type of {name}\", __builtin_types_compatible_p(__typeof__((({name}))), {result} ({arguments})), 1);"
        ));
    }
    line("printf(\"%ld compared\\n\", compared);\nreturn 0;\n}".to_owned());
    program
}

/// Compiles and runs the program with the headers of a folder.
fn printed(include: &Path) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("layouts.c");
    std::fs::write(&source, program()).expect("room");
    let include = include.to_str().expect("text");
    let program = compiled::compiled(&source, &["-w", "-I", include], folder.path());
    let output = std::process::Command::new(program).output().expect("just compiled");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn every_declaration_is_compared() {
    assert_eq!(missing(), [""; 0]);
    assert_eq!(functions().len(), 26);
}

#[test]
fn layouts_constants_and_functions_are_those_of_the_headers() {
    let given = std::env::var(FOLDERS).unwrap_or_default();
    let mut folders: Vec<PathBuf> =
        given.split(':').filter(|path| !path.is_empty()).map(Into::into).collect();
    if Path::new("/usr/include/infiniband/verbs.h").exists() {
        folders.push("/usr/include".into());
    }
    if folders.is_empty() {
        let missing = "no infiniband/verbs.h on this machine; tests/verbs/layouts fetches some";
        skipped::skipped("verbs::tests::layouts", missing);
    }
    let structures = structures();
    let fields: usize = structures.iter().map(|structure| structure.fields.len()).sum();
    let all = structures.len() + 2 * fields + constants().len() + functions().len();
    for folder in folders {
        assert_eq!(printed(&folder), format!("{all} compared\n"), "{}", folder.display());
    }
}
