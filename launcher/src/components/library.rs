//! A component in this process: its library, checked, and calls of its functions.

use std::ffi::{CStr, CString, c_char, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use super::ComponentKind;
use super::interface::{
    self, Close, Component, Detector, ENTRY, Entry, KINDS, NAME_BYTES, NONE, Open, Reaction, Recovery,
    Suspicion, VERSION, size_of,
};
use super::wire::{FaultView, NodeView, Opening, Report};
use crate::limits::{COMPONENT_PERIOD_MAX, COMPONENT_PERIOD_MIN};

/// A component whose description is that of this version. It stays in memory until the process ends.
#[derive(Debug)]
pub(super) struct Loaded {
    name: String,
    functions: Functions,
    state: *mut c_void,
}

#[derive(Clone, Copy)]
enum Functions {
    Detector(Detector),
    Recovery(Recovery),
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Functions::Detector(_) => "Detector",
            Functions::Recovery(_) => "Recovery",
        })
    }
}

impl Loaded {
    /// Loads, checks and opens a component.
    ///
    /// # Errors
    /// Why it is none of this version, or does not begin, in words.
    pub(super) fn open(opening: &Opening) -> Result<Loaded, String> {
        // SAFETY: loading runs initialisers of the library, and their code may do anything. This process exists for that code alone: it shares no memory with the
        // job, and its end is an answer that the launcher expects.
        let library = unsafe { Library::open(Some(&opening.library), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| format!("it cannot be loaded: {}", cause(&error)))?;
        // SAFETY: the header declares the function under this name with this type.
        let entry = unsafe { library.get::<Entry>(ENTRY) };
        let entry = entry.map_err(|_| {
            "it exports no function stillwire_component, which each component has (stillwire_component.h)"
                .to_owned()
        })?;
        // SAFETY: as for the initialisers; the type is that of the header.
        let description = unsafe { entry() };
        // Its functions are called until the process ends.
        core::mem::forget(library);
        // SAFETY: the header asks for a pointer to a description that stays valid, and `checked` reads no field before the size that holds it is known.
        let (name, functions) = unsafe { checked(description, opening.kind)? };
        let mut loaded = Loaded { name, functions, state: core::ptr::null_mut() };
        loaded.begin(opening)?;
        Ok(loaded)
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Milliseconds between two calls of [`Loaded::poll`]; 0: never.
    pub(super) fn period_ms(&self) -> u32 {
        match self.functions {
            Functions::Detector(Detector { poll: Some(_), period_ms, .. }) => period_ms,
            _ => 0,
        }
    }

    fn hooks(&self) -> (Option<Open>, Option<Close>) {
        match self.functions {
            Functions::Detector(Detector { open, close, .. })
            | Functions::Recovery(Recovery { open, close, .. }) => (open, close),
        }
    }

    fn begin(&mut self, opening: &Opening) -> Result<(), String> {
        let (job, argument) = (text(&opening.job), text(&opening.argument));
        let job = interface::Job {
            size: size_of::<interface::Job>(),
            ranks: opening.ranks,
            nodes: opening.nodes,
            reserved: 0,
            job: job.as_ptr(),
            argument: argument.as_ptr(),
        };
        let Some(open) = self.hooks().0 else { return Ok(()) };
        // SAFETY: the function has the header's type; both pointers are valid during the call.
        match unsafe { open(&raw const job, &raw mut self.state) } {
            0 => Ok(()),
            code => Err(format!("its function open returned {code}; expected 0")),
        }
    }

    /// The number of the model that it gives a report.
    pub(super) fn report(&self, report: &Report) -> u32 {
        let Functions::Detector(Detector { report: Some(call), .. }) = self.functions else {
            return interface::BUILT_IN;
        };
        let number =
            |number: Option<u32>| number.and_then(|number| i32::try_from(number).ok()).unwrap_or(NONE);
        let report = interface::Report {
            size: size_of::<interface::Report>(),
            kind: report.kind,
            now_ms: report.now_ms,
            silent_ms: report.silent_ms,
            rank: number(report.rank),
            node: number(report.node),
            exit_code: number(report.exit_code.map(u32::from)),
            signal: number(report.signal.map(u32::from)),
            model: report.model,
            is_asked: u32::from(report.is_asked),
        };
        // SAFETY: the function has the header's type; the state is its own, and the report is valid during the call.
        unsafe { call(self.state, &raw const report) }
    }

    /// The node that it suspects, and why.
    pub(super) fn poll(&self, now_ms: u64, nodes: &[NodeView]) -> Option<(u32, String)> {
        let Functions::Detector(Detector { poll: Some(call), .. }) = self.functions else { return None };
        let hosts: Vec<CString> = nodes.iter().map(|node| text(&node.host)).collect();
        let node = |(node, host): (&NodeView, &CString)| interface::Node {
            size: size_of::<interface::Node>(),
            node: node.node,
            ranks: node.ranks,
            answers: u32::from(node.answers),
            host: host.as_ptr(),
        };
        let all: Vec<interface::Node> = nodes.iter().zip(&hosts).map(node).collect();
        let view = interface::Nodes {
            size: size_of::<interface::Nodes>(),
            count: count(&all),
            now_ms,
            nodes: all.as_ptr(),
        };
        let mut suspicion = Suspicion { size: size_of::<Suspicion>(), node: 0, reason: [0; _] };
        // SAFETY: the function has the header's type; what the pointers lead to is valid during the call, and the suspicion may be written to.
        let suspects = unsafe { call(self.state, &raw const view, &raw mut suspicion) };
        (suspects != 0).then(|| (suspicion.node, reason(&suspicion.reason)))
    }

    /// The protocol, the candidate, and why.
    pub(super) fn react(&self, fault: &FaultView) -> (u32, i32, String) {
        let nothing = Reaction {
            size: size_of::<Reaction>(),
            protocol: interface::BUILT_IN,
            candidate: NONE,
            reason: [0; _],
        };
        let as_built_in = (interface::BUILT_IN, NONE, String::new());
        let Functions::Recovery(Recovery { react: Some(call), .. }) = self.functions else {
            return as_built_in;
        };
        let hosts: Vec<CString> = fault.candidates.iter().map(|candidate| text(&candidate.host)).collect();
        let candidates: Vec<interface::Candidate> = fault
            .candidates
            .iter()
            .zip(&hosts)
            .map(|(candidate, host)| interface::Candidate {
                size: size_of::<interface::Candidate>(),
                ranks: candidate.ranks,
                host: host.as_ptr(),
            })
            .collect();
        let host = text(&fault.host);
        let view = interface::Fault {
            size: size_of::<interface::Fault>(),
            model: fault.model,
            confidence: fault.confidence,
            protocol: fault.protocol,
            now_ms: fault.now_ms,
            rank: fault.rank.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(NONE),
            node: fault.node,
            host: host.as_ptr(),
            candidates_count: count(&candidates),
            reserved: 0,
            candidates: candidates.as_ptr(),
        };
        let mut reaction = nothing;
        // SAFETY: the function has the header's type; what the pointers lead to is valid during the call, and the reaction may be written to.
        match unsafe { call(self.state, &raw const view, &raw mut reaction) } {
            0 => as_built_in,
            _ => (reaction.protocol, reaction.candidate, reason(&reaction.reason)),
        }
    }

    /// Nothing is asked any more.
    pub(super) fn close(&self) {
        if let Some(close) = self.hooks().1 {
            // SAFETY: the function has the header's type; the state is its own, and no other function follows.
            unsafe { close(self.state) };
        }
    }
}

/// The error, and what the dynamic loader says about it.
fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// A string of C. Texts of ours have no zero byte: such a one comes as an empty string.
fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

fn count<T>(all: &[T]) -> u32 {
    u32::try_from(all.len()).unwrap_or(u32::MAX)
}

/// A reason up to its zero byte, or whole without one, in one line.
fn reason(bytes: &[c_char]) -> String {
    let bytes: Vec<u8> =
        bytes.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes)
        .chars()
        .map(|symbol| if symbol.is_control() { ' ' } else { symbol })
        .collect()
}

/// What follows a number that is another one.
const BUILD: &str = "build it with the stillwire_component.h of this Stillwire";

/// The name and the functions of a description.
///
/// # Safety
/// `description` is null, or leads to a structure that begins with its size and its version; those of this version are valid as the header says.
///
/// # Errors
/// The first field that is not as it must be: the found value and the expected one.
unsafe fn checked(description: *const Component, kind: ComponentKind) -> Result<(String, Functions), String> {
    if description.is_null() {
        return Err("its function stillwire_component returned NULL; expected a description".to_owned());
    }
    // SAFETY: every version begins with the size and the version.
    let (size, version) = unsafe {
        let numbers = description.cast::<u32>();
        (numbers.read_unaligned(), numbers.add(1).read_unaligned())
    };
    if version != VERSION {
        return Err(format!(
            "it has version {version} of the component interface; expected version {VERSION}: {BUILD}"
        ));
    }
    sized::<Component>("description", size)?;
    // SAFETY: its size is that of the structure.
    let Component { kind: found, name, functions, .. } = unsafe { description.read_unaligned() };
    let found = KINDS.into_iter().find(|(code, _)| *code == found).map(|(_, kind)| kind);
    if found != Some(kind) {
        let found = found.map_or_else(|| "of an unknown kind".to_owned(), |kind| format!("a {kind}"));
        return Err(format!("it is {found}; expected a {kind}"));
    }
    if name.is_null() || functions.is_null() {
        return Err("its description has no name or no functions; expected both".to_owned());
    }
    // SAFETY: the header asks for a string that ends with a zero byte and stays valid.
    let name = unsafe { CStr::from_ptr(name) }.to_bytes();
    let is_usual = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    if name.is_empty() || name.len() >= NAME_BYTES || !name.iter().all(is_usual) {
        return Err(format!(
            "its name is `{}`; expected 1 to {} letters, digits, `-`, `_` and `.`",
            String::from_utf8_lossy(name).escape_debug().take(80).collect::<String>(),
            NAME_BYTES - 1
        ));
    }
    let name = String::from_utf8_lossy(name).into_owned();
    // SAFETY: each table begins with its size.
    let size = unsafe { functions.cast::<u32>().read_unaligned() };
    let functions = match kind {
        ComponentKind::Detector => {
            sized::<Detector>("table of functions", size)?;
            // SAFETY: its size is that of the structure.
            let table = unsafe { functions.cast::<Detector>().read_unaligned() };
            let (least, most) = (COMPONENT_PERIOD_MIN.as_millis(), COMPONENT_PERIOD_MAX.as_millis());
            if table.poll.is_some() && !(least..=most).contains(&u128::from(table.period_ms)) {
                return Err(format!("its period_ms is {}; expected {least} to {most}", table.period_ms));
            }
            Functions::Detector(table)
        }
        ComponentKind::Recovery => {
            sized::<Recovery>("table of functions", size)?;
            // SAFETY: its size is that of the structure.
            let table = unsafe { functions.cast::<Recovery>().read_unaligned() };
            if table.react.is_none() {
                return Err("its function react is NULL; expected a function".to_owned());
            }
            Functions::Recovery(table)
        }
    };
    Ok((name, functions))
}

fn sized<T>(what: &str, found: u32) -> Result<(), String> {
    let expected = size_of::<T>();
    if found == expected {
        return Ok(());
    }
    Err(format!("its {what} has {found} bytes; expected {expected} bytes in version {VERSION}: {BUILD}"))
}
