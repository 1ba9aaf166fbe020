//! The binary interface against libfabric's own headers, where those are installed.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use stillwire_fi::abi::*;

const HEADERS: &str = "/usr/include/rdma/fabric.h";

/// Structures whose tails the headers of libfabric 1.x do not have, with the first field that they lack.
const TAILS: [(&str, &str); 4] = [
    ("fi_domain_attr", "max_ep_auth_key"),
    ("fi_mr_attr", "page_size"),
    ("fi_ops_av", "insert_auth_key"),
    ("fi_cq_err_entry", "src_addr"),
];

/// Fields whose names differ for the sake of Rust, or that are members of a union.
fn c_field(structure: &str, field: &str) -> Option<String> {
    match (structure, field) {
        // A union without a name in older headers.
        ("fi_mr_attr", "device" | "hmem_data") => None,
        _ => Some(field.trim_start_matches("r#").to_owned()),
    }
}

fn assertions<T: Layout>(out: &mut String, old: bool) {
    let tail = TAILS.iter().find(|(name, _)| *name == T::C_NAME).filter(|_| old).map(|(_, field)| *field);
    let fields = T::FIELDS.iter().take_while(|(field, _)| Some(*field) != tail);
    for (field, offset) in fields {
        if let Some(name) = c_field(T::C_NAME, field) {
            let structure = T::C_NAME;
            writeln!(
                out,
                "_Static_assert(offsetof(struct {structure}, {name}) == {offset}, \"{structure}.{name}\");"
            )
            .unwrap();
        }
    }
    if tail.is_none() {
        writeln!(out, "_Static_assert(sizeof(struct {0}) == {1}, \"{0}\");", T::C_NAME, size_of::<T>())
            .unwrap();
    }
}

macro_rules! all {
    ($out:expr, $old:expr, $($type:ident)*) => { $(assertions::<$type>($out, $old);)* };
}

fn constants(out: &mut String) {
    let numbers: [(&str, u64); 41] = [
        ("FI_EP_RDM", EP_RDM.into()),
        ("FI_AV_TABLE", AV_TABLE.into()),
        ("FI_THREAD_SAFE", THREAD_SAFE.into()),
        ("FI_PROGRESS_MANUAL", PROGRESS_MANUAL.into()),
        ("FI_RM_ENABLED", RM_ENABLED.into()),
        ("FI_MR_VIRT_ADDR", MR_VIRT_ADDR as u64),
        ("FI_MR_PROV_KEY", MR_PROV_KEY as u64),
        ("FI_WAIT_FD", WAIT_FD.into()),
        ("FI_CQ_FORMAT_TAGGED", CQ_FORMAT_TAGGED.into()),
        ("FI_CLASS_DOMAIN", CLASS_DOMAIN as u64),
        ("FI_CLASS_EP", CLASS_EP as u64),
        ("FI_CLASS_AV", CLASS_AV as u64),
        ("FI_CLASS_MR", CLASS_MR as u64),
        ("FI_CLASS_EQ", CLASS_EQ as u64),
        ("FI_CLASS_CQ", CLASS_CQ as u64),
        ("FI_CLASS_CNTR", CLASS_CNTR as u64),
        ("FI_CLASS_WAIT", CLASS_WAIT as u64),
        ("FI_CLASS_POLL", CLASS_POLL as u64),
        ("FI_WAIT_SET", WAIT_SET.into()),
        ("FI_ALIAS", CONTROL_ALIAS as u64),
        ("FI_ENABLE", CONTROL_ENABLE as u64),
        ("FI_GETWAIT", CONTROL_GETWAIT as u64),
        ("FI_GETWAITOBJ", CONTROL_GETWAITOBJ as u64),
        ("FI_GETOPSFLAG", CONTROL_GETOPSFLAG as u64),
        ("FI_REFRESH", CONTROL_REFRESH as u64),
        ("FI_OPT_MIN_MULTI_RECV", OPT_MIN_MULTI_RECV as u64),
        ("FI_TAGGED", flag::TAGGED),
        ("FI_ATOMIC", flag::ATOMIC),
        ("FI_MULTI_RECV", flag::MULTI_RECV),
        ("FI_REMOTE_CQ_DATA", flag::REMOTE_CQ_DATA),
        ("FI_PEEK", flag::PEEK),
        ("FI_CLAIM", flag::CLAIM),
        ("FI_DISCARD", flag::DISCARD),
        ("FI_DELIVERY_COMPLETE", flag::DELIVERY_COMPLETE),
        ("FI_MATCH_COMPLETE", flag::MATCH_COMPLETE),
        ("FI_SOURCE", flag::SOURCE),
        ("FI_DIRECTED_RECV", flag::DIRECTED_RECV),
        ("FI_ORDER_SAS", flag::ORDER_SAS),
        ("FI_ORDER_ATOMIC_WAW", flag::ORDER_ATOMIC_WAW),
        ("FI_ETRUNC", errno::ETRUNC as u64),
        ("FI_ENOKEY", errno::ENOKEY as u64),
    ];
    for (name, value) in numbers {
        writeln!(out, "_Static_assert((unsigned long long) {name} == {value}ull, \"{name}\");").unwrap();
    }
}

#[test]
fn structures_are_laid_out_as_the_headers_say() {
    if !Path::new(HEADERS).exists() {
        let missing = format!("{HEADERS} is missing; install libfabric-dev to compare the interface with it");
        crate::skipped::skipped("structures_are_laid_out_as_the_headers_say", &missing);
        return;
    }
    let old =
        Command::new("grep").args(["-q", "max_ep_auth_key", HEADERS]).status().is_ok_and(|s| !s.success());
    let mut text = String::from("#include <stddef.h>\n");
    for header in ["fabric", "fi_domain", "fi_endpoint", "fi_eq", "fi_cm", "fi_tagged", "fi_rma", "fi_atomic"]
    {
        writeln!(text, "#include <rdma/{header}.h>").unwrap();
    }
    text.push_str("#include <rdma/providers/fi_prov.h>\n");
    let out = &mut text;
    all!(out, old, Fid FidFabric FidDomain FidEp FidAv FidMr FidEq FidCq FidCntr FidWait FidPoll FiAlias);
    all!(out, old, FiOps FiOpsFabric FiOpsDomain FiOpsMr FiOpsEp FiOpsCm FiOpsMsg FiOpsTagged FiOpsRma);
    all!(out, old, FiOpsAtomic FiOpsAv FiOpsCq FiOpsCntr FiOpsEq FiOpsWait FiOpsPoll FiWaitAttr FiPollAttr FiProvider);
    all!(out, old, FiInfo FiTxAttr FiRxAttr FiEpAttr FiDomainAttr FiFabricAttr FiAvAttr FiCqAttr FiCntrAttr);
    all!(out, old, FiEqAttr FiMrAttr FiMsg FiMsgTagged FiMsgRma FiMsgAtomic FiRmaIov FiRmaIoc FiIoc);
    all!(out, old, FiMsgFetch FiMsgCompare FiAtomicAttr);
    all!(out, old, FiCqEntry FiCqMsgEntry FiCqDataEntry FiCqTaggedEntry FiCqErrEntry FiEqEntry FiEqErrEntry);
    constants(out);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("layout.c");
    std::fs::write(&file, &text).unwrap();
    let compiled = Command::new("cc").args(["-std=c11", "-fsyntax-only"]).arg(&file).output().unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    assert!(text.lines().count() > 300, "an empty comparison proves nothing");
}
